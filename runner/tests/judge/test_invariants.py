"""Protocol invariants: silent on recordings of real stacks but for violations that their packets show, and loud on
recordings of endpoints that misbehave on purpose."""

from pathlib import Path

import pytest

from runner.decode.tables import decode_capture
from runner.judge.job_traces import protocol_findings
from runner.paths import ROOT

RECORDINGS = ROOT / "runner" / "tests" / "recordings"

KNOWN = {
    "aioquic_aioquic/v2": {("rfc9369-3.3.1-initial-keys", "client")},
    "quic-go_quinn/longrtt": {("rfc9000-8.1-amplification", "server")},
    "quic-go_quinn/handshakeloss": {("rfc9000-8.1-amplification", "server")},
    "quic-go_quinn/rebind-addr": {("rfc9000-8-unvalidated-path", "server")},
    "quinn_quic-go/rebind-port": {
        ("rfc9000-8-unvalidated-path", "server"),
        ("rfc9000-8.2.2-response-not-padded", "client"),
    },
}
"""Violations by the stacks themselves. Each violation was confirmed in the packets (docs/rules.md)."""

BAD = {
    "amplifies": ("rfc9000-8.1-amplification", "server"),
    "exceeds-flow-control": ("rfc9000-4.1-connection-limit", "server"),
    "exceeds-windows-that-grow": ("rfc9000-4.1-stream-limit", "server"),
    "high-ecn-counts": ("rfc9000-19.3.2-ect0-count-too-high", "client"),
    "keeps-connection-id-client": ("rfc9000-9.5-id-from-two-addresses", "client"),
    "never-raises-streams": ("rfc9000-4.6-too-many-streams", "client"),
    "no-control-stream-client": ("rfc9114-6.2.1-no-control-stream", "client"),
    "no-control-stream-server": ("rfc9114-6.2.1-no-control-stream", "server"),
    "no-path-challenge-port": ("rfc9000-8-unvalidated-path", "server"),
    "no-retry-token": ("rfc9000-17.2.5.3-token-not-echoed", "client"),
    "packets-without-frames": ("rfc9000-12.4-empty-payload", "client"),
    "resets-packet-number": ("rfc9000-17.2.5.3-number-reset", "client"),
    "reuses-packet-numbers": ("rfc9000-12.3-number-reused", "server"),
    "wrong-retry-tag": ("rfc9001-5.8-retry-tag-wrong", "server"),
    "wrong-vn-ids": ("rfc9000-17.2.1-negotiation-source", "server"),
}


def broken(folder: Path) -> set[tuple[str, str]]:
    keys = [path for path in (folder / "client" / "keys.log", folder / "server" / "keys.log") if path.is_file()]
    left, right = (decode_capture(folder / "sim" / f"{side}.pcap", keys, kernel_drops=0) for side in ("left", "right"))
    findings = protocol_findings(left, right)
    assert all(finding.packets and finding.vantage == finding.role for finding in findings)
    return {(finding.code, finding.role) for finding in findings}


GOOD = sorted(
    str(path.parent.parent.parent.relative_to(RECORDINGS))
    for path in RECORDINGS.glob("*/*/1/sim/left.pcap")
    if path.parts[len(RECORDINGS.parts)] not in ("bad", "misbehaving_aioquic", "causes")
)


@pytest.mark.parametrize("name", GOOD)
def test_good_recordings_break_nothing_else(name: str) -> None:
    assert broken(RECORDINGS / name / "1") == KNOWN.get(name, set())


@pytest.mark.parametrize("name", BAD)
def test_bad_recordings_break_their_rule(name: str) -> None:
    assert BAD[name] in broken(RECORDINGS / "bad" / name / "1")


def test_without_keys_nothing_protected_is_broken() -> None:
    for name in GOOD[::4]:
        sides = (RECORDINGS / name / "1" / "sim" / f"{side}.pcap" for side in ("left", "right"))
        left, right = (decode_capture(path, [], kernel_drops=0) for path in sides)
        findings = {(finding.code, finding.role) for finding in protocol_findings(left, right)}
        # Initial packets open without a key log: what they show stands.
        assert findings <= KNOWN.get(name, set()), name
