"""Tests `runner.judge.public`, which predicts the verdicts of the public QUIC Interop Runner from our facts.

This module makes the public runner's checks again, on tshark's fields as the public runner does. They come from its
`trace.py`, `testcase.py` and `testcases_quic.py` of 2026. `.venv/bin/python -m lab.public RUN…` judges
the jobs of stored runs with captures (without RUN, the recordings of the tests) in both ways, and prints each
difference. Exit code 1 when a job differs.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lab.recordings.conformance import GOOD, GOOD_ONES
from lab.recordings.recordings import RECORDINGS, changed, sizes
from lab.tshark import (
    CLIENT,
    EARLY,
    HANDSHAKE,
    INITIAL,
    RETRY,
    SERVER,
    V2,
    Frame,
    Layer,
    frames,
    usable_key_log,
)
from runner.decode.decode import decode_capture
from runner.judge.public import public_verdict
from runner.model.result import Artifacts, Evidence, Outcome
from runner.model.run import CaseRecord
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder, load_evidence
from runner.trace.establish import facts

_V1 = 1
_CHAIN = 7500
_NAMES = 40 * 250  # bytes of the names of the requested files
out = Console(highlight=False, width=200)
Reasons = Iterator[str]


@dataclass(frozen=True)
class Traces:
    """Both captures of a job, read by tshark."""

    artifacts: Artifacts

    @cached_property
    def key_log(self) -> Path | None:
        """The key log that the public runner uses."""
        return usable_key_log([self.artifacts.folder / role / "keys.log" for role in (CLIENT, SERVER)])

    @cached_property
    def client(self) -> tuple[Frame, ...]:
        """The capture at the client's side of the link."""
        return frames(self.artifacts.client_capture, self.key_log)

    @cached_property
    def server(self) -> tuple[Frame, ...]:
        """The capture at the server's side of the link."""
        return frames(self.artifacts.server_capture, self.key_log)


def layers(captured: tuple[Frame, ...], kind: str, sender: str = "") -> list[Layer]:
    """Packets of a type; an empty type means packets with a short header."""
    return [
        layer
        for frame in captured
        if sender in ("", frame.sender) and frame.sender
        for layer in frame.layers
        if layer.type == kind and (kind or layer.get("header_form") in ("0", "False"))
    ]


def plain(traces: Traces, handshakes: int) -> Reasons:
    """Check the number of handshakes, counted by the server's connection IDs, and that all packets have version 1."""
    initials = layers(traces.server, INITIAL, SERVER)
    count = len({layer.get("scid") for layer in initials})
    if count != handshakes:
        yield f"{count} handshakes in place of {handshakes}"
    if {layer.version for layer in initials} != {_V1}:
        yield "not version 1 alone"


def no_retry(traces: Traces) -> Reasons:
    """Check the rule of the case handshake and of the cases that extend it: no Retry."""
    if layers(traces.client, RETRY):
        yield "a Retry packet"


def longrtt(traces: Traces) -> Reasons:
    """Check that there are at least two ClientHellos, retransmissions included."""
    hellos = 0
    for layer in layers(traces.client, INITIAL, CLIENT):
        kind = layer.get("tls.handshake.type")
        again = not layer.fields.keys().isdisjoint({"retransmission", "overlap"})
        hellos += kind == "1" if kind is not None else again
    if hellos < 2:
        yield f"{hellos} ClientHellos"


def chacha20(traces: Traces) -> Reasons:
    """Check the first cipher suite of each ClientHello."""
    suites = {layer.get("tls.handshake.ciphersuite") for layer in layers(traces.client, INITIAL, CLIENT)} - {None}
    if len(suites) != 1 or suites.isdisjoint({"4867", "0x1303"}):
        yield f"suites {suites}"


def multiplexing(traces: Traces) -> Reasons:
    """Check the server's initial limit of streams."""
    name = "tls.quic.parameter.initial_max_streams_bidi"
    limits = [int(layer.fields[name][0]) for layer in layers(traces.client, HANDSHAKE, SERVER) if name in layer.fields]
    if not limits or max(limits) > 1000:
        yield f"stream limits {limits}"


def retry(traces: Traces) -> Reasons:
    """Check that an Initial packet has the token of a Retry packet, and that the first packet with a token has a larger
    packet number than all packets without one."""
    tokens = {layer.get("retry_token") for layer in layers(traces.client, RETRY, SERVER)}
    highest = -1
    for layer in layers(traces.client, INITIAL, CLIENT):
        number = int(layer.get("packet_number") or -1)
        if layer.get("token_length") == "0":
            highest = max(highest, number)
        elif number <= highest:
            yield "packet number reset"
            return
        elif layer.get("token") in tokens:
            return
    yield "no Initial packet with a token of Retry"


def resumption(traces: Traces) -> Reasons:
    """Check that only the first connection has a Certificate. The server's connection IDs distinguish the
    connections."""
    packets = layers(traces.client, HANDSHAKE, SERVER)
    ids = [layer.get("scid") for layer in packets]
    certificates = [layer.get("scid") for layer in packets if "tls.handshake.certificates_length" in layer.fields]
    if set(ids) - {ids[0], ids[-1]}:
        yield "a Handshake packet of a third connection"
    if ids[-1] != ids[0] and ids[-1] in certificates:
        yield "a Certificate in the second handshake"
    if ids[0] not in certificates:
        yield "no Certificate in the first handshake"


def payload(packets: list[Layer]) -> int:
    """Bytes of the packets' payloads. For packets with a long header and no keys, tshark has them in another field."""
    size = 0
    for layer in packets:
        names = ("payload", "remaining_payload") if layer.type else ("protected_payload",)
        value = next((layer.fields[name][0] for name in names if name in layer.fields), "")
        size += value.count(":") + 1 if value else 0
    return size


def zerortt(traces: Traces) -> Reasons:
    """Check that the client sent bytes in 0-RTT, and bytes of at most half of the file names in 1-RTT."""
    early, late = payload(layers(traces.client, EARLY, CLIENT)), payload(layers(traces.client, "", CLIENT))
    if not early:
        yield "no 0-RTT"
    if late > _NAMES / 2:
        yield f"{late} B in 1-RTT packets"


def amplification(traces: Traces) -> Reasons:
    """Check that the server sent a long enough chain of certificates. Check also that the server sent less than four
    times the bytes that it had received, until it validated the client's address. Only the first packet of a datagram
    is examined."""
    sent = [layer for layer in layers(traces.server, HANDSHAKE, SERVER) if "crypto.offset" in layer.fields]
    ends = [int(layer.fields["crypto.offset"][0]) + int(layer.fields["crypto.length"][0]) for layer in sent]
    if max(ends, default=0) < _CHAIN:
        yield f"{max(ends, default=0)} B of CRYPTO data"
        return
    chosen = {layer.get("scid") for layer in layers(traces.server, INITIAL, SERVER)}
    chosen = {each for each in chosen if each and len(each.replace(":", "")) >= 16}
    allowed = 0
    for frame in traces.server:
        first = frame.layers[0]
        if frame.sender == CLIENT:
            if first.type == HANDSHAKE or (first.type == INITIAL and first.get("dcid") in chosen):
                return
            allowed += 4 * frame.size if first.type == INITIAL else 0
        elif frame.sender == SERVER:
            if frame.size >= allowed:
                yield "the server sent four times what it had received"
                return
            allowed -= frame.size
    yield "nothing validates the client's address"


def keyupdate(traces: Traces) -> Reasons:
    """Check that both endpoints sent packets in key phase 1."""
    for captured, sender in ((traces.client, CLIENT), (traces.server, SERVER)):
        if not any(layer.get("key_phase") in ("1", "True") for layer in layers(captured, "", sender)):
            yield f"no packet of the {sender} in key phase 1"


def ecn(traces: Traces) -> Reasons:
    """Check that each endpoint sends packets with ECT and none with CE, and that its ACKs have ECN counts. For the
    counts, only the first packet of a datagram is examined."""
    for captured, sender in ((traces.client, CLIENT), (traces.server, SERVER)):
        mine = [frame for frame in captured if frame.sender == sender]
        marks = Counter(frame.ecn for frame in mine)
        if not marks[1] + marks[2] or marks[3]:
            yield f"marks of the {sender}: {dict(marks)}"
        if not any(frame.has("ack.ect0_count") for frame in mine):
            yield f"no counts of the {sender}"


def rebinding(traces: Traces) -> Reasons:
    """Check that the server's first packet on each new path has a PATH_CHALLENGE, and that the client answers it."""
    mine = [frame for frame in traces.server if frame.sender == SERVER]
    challenges: set[str | None] = set()
    paths: set[tuple[object, object]] = set()
    last = (mine[0].source, mine[0].destination) if mine else None
    for frame in mine:
        current = frame.source, frame.destination
        if current != last and current not in paths:
            paths.add(last)  # type: ignore[arg-type]
            last = current
            if not frame.has("path_challenge.data"):
                yield f"the first packet to {current[1]} has no PATH_CHALLENGE"
                return
            challenges.add(frame.layers[0].get("path_challenge.data"))
    if len({(frame.source, frame.destination) for frame in mine}) < 2:
        yield "one path"
    answers = {
        frame.layers[0].get("path_response.data")
        for frame in traces.client
        if frame.sender == CLIENT and frame.has("path_response.data")
    }
    if challenges - answers:
        yield "a PATH_CHALLENGE without PATH_RESPONSE"


def readdressing(traces: Traces) -> Reasons:
    """Check that the server saw two addresses of the client."""
    if len({frame.destination[0] for frame in traces.server if frame.sender == SERVER}) < 2:
        yield "one address of the client"


def migration(traces: Traces) -> Reasons:
    """Check that the client's first packet on a new path has a different connection ID than its first packet on the
    previous path."""
    last, ids, paths = None, None, set()
    for frame in traces.client:
        if frame.sender != CLIENT:
            continue
        current = frame.source, frame.destination
        if last is not None and current != last and current not in paths:
            paths.add(last)
            if ids == frame.layers[0].get("dcid"):
                yield "the connection ID did not change with the path"
            last, ids = current, frame.layers[0].get("dcid")
        elif last is None:
            last, ids = current, frame.layers[0].get("dcid")


def ipv6(traces: Traces) -> Reasons:
    """Check that no packet uses IPv4."""
    if any(frame.is_ipv4 and frame.sender == SERVER for frame in traces.server):
        yield "packets over IPv4"


def v2(traces: Traces) -> Reasons:
    """Check that the connection changed from version 1 to version 2."""
    if _V1 not in {layer.version for layer in layers(traces.client, INITIAL, CLIENT)}:
        yield "no Initial packet of the client in version 1"
    if V2 not in {layer.version for layer in layers(traces.server, INITIAL, SERVER)}:
        yield "no Initial packet of the server in version 2"
    for captured, sender in ((traces.client, CLIENT), (traces.server, SERVER)):
        if {layer.version for layer in layers(captured, HANDSHAKE, sender)} != {V2}:
            yield f"Handshake packets of the {sender} not in version 2 alone"


Question = Callable[[Traces], Reasons]
_QUESTIONS: dict[str, tuple[Question, ...]] = {
    **dict.fromkeys(("transfer", "http3", "blackhole", "transferloss", "transfercorruption", "goodput"), ()),
    **dict.fromkeys(("handshakeloss", "handshakecorruption"), ()),
    "handshake": (no_retry,),
    "longrtt": (longrtt,),
    "chacha20": (chacha20,),
    "multiplexing": (multiplexing,),
    "retry": (retry,),
    "resumption": (resumption,),
    "zerortt": (zerortt,),
    "amplificationlimit": (amplification,),
    "keyupdate": (keyupdate,),
    "ecn": (no_retry, ecn),
    "rebind-port": (rebinding,),
    "rebind-addr": (readdressing, rebinding),
    "connectionmigration": (rebinding, migration),
    "ipv6": (ipv6,),
    "v2": (v2,),
}


def first_reason(case: CaseRecord, traces: Traces, evidence: Evidence) -> str | None:
    """The public runner's first reason to fail a job, according to tshark. Empty when the job passes; None when the
    public runner doesn't have the case, or needs a longer chain of certificates."""
    if case.name not in _QUESTIONS or (case.chain_length > 1 and case.chain_bytes < _CHAIN):
        return None
    if evidence.client.timed_out or evidence.client.exit_code not in (0, None):
        return "the client's end"
    if evidence.extra_files or not all(file.equal for file in evidence.files):
        return "the files"
    expected = {"resumption": 2, "zerortt": 2}.get(case.name, 1)
    if case.name in ("handshakeloss", "handshakecorruption"):
        expected = len(evidence.files)
    common = () if case.name == "v2" else (lambda traces: plain(traces, expected),)
    return next((reason for question in (*common, *_QUESTIONS[case.name]) for reason in question(traces)), "")


def stored(runs: tuple[str, ...]) -> Iterator[tuple[str, CaseRecord, Artifacts]]:
    """The jobs with captures, and the records of their cases."""
    for name in runs:
        folder = RunFolder.open(Path(name))
        run = folder.run
        for job in run.order:
            artifacts = folder.artifacts(job)
            if artifacts.client_capture.is_file() and artifacts.server_capture.is_file():
                yield str(job.path), run.cases[job.case], artifacts
    if not runs:
        declared = {name: case.record() for name, case in load_catalog().cases.items()}
        for path, case, each in GOOD_ONES:
            record = changed(declared[case], sizes(*each)) if each else declared[case]
            yield path, record, Artifacts(RECORDINGS / path / "1")
        for good in GOOD:
            yield good.path, changed(declared[good.case], good.changes), Artifacts(RECORDINGS / good.path / "1")


@click.command()
@click.argument("runs", nargs=-1)
@click.option("--case", "cases", default="", help="Only these cases, separated by commas.")
def main(runs: tuple[str, ...], cases: str) -> None:
    """Compare `runner.judge.public` with the public runner's checks on tshark's fields."""
    table = Table("job", "ours", "by tshark", "unread by tshark", box=None)
    counts = Counter[str]()
    for name, case, artifacts in stored(runs):
        evidence = load_evidence(artifacts)
        if evidence is None or (cases and case.name not in cases.split(",")):
            continue
        traces = Traces(artifacts)
        theirs = first_reason(case, traces, evidence)
        captures = (artifacts.client_capture, artifacts.server_capture)
        sides = (decode_capture(capture, artifacts.key_logs) for capture in captures)
        ours = public_verdict(case, facts(*sides), evidence)
        if theirs is None or ours is None:
            continue
        same = (ours.outcome is Outcome.SUCCEEDED) == (theirs == "")
        counts["agree" if same else "differ"] += 1
        if not same:
            unread = sum("remaining_payload" in layer.fields for frame in traces.server for layer in frame.layers)
            table.add_row(name, ours.why or "succeeded", theirs or "succeeded", f"{unread} packets")
    out.print(table)
    out.print(f"{counts['agree']} jobs agree, {counts['differ']} differ.")
    sys.exit(counts["differ"] > 0)


if __name__ == "__main__":
    main()
