"""Compares our verdicts with tshark's: `.venv/bin/python -m lab.crosscheck RUN…`.

This module has a second set of checks for the cases that tshark can judge. It uses only tshark's fields, without our
decoder, facts or checks. Both sets of checks judge every stored job with captures. The command prints each
disagreement, then a table of counts. tshark 4.0 can't decrypt every packet: after Retry it often loses the ClientHello,
and so the secrets; for some pairs it decrypts no 1-RTT packet of the server. When the second set finds a failure and
packets stayed encrypted, the job is not compared. Both sets leave out file contents, exit codes, and rules about byte
ranges or packet counts.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from lab.tshark import rows
from runner.decode import decode_capture
from runner.errors import BentpipeError
from runner.judge.execution import load_truth
from runner.model.result import Artifacts
from runner.model.run import CaseRecord, Job
from runner.model.stack import HTTP3, protocol_of
from runner.plan.catalog import load_catalog
from runner.plan.jobs import run_path
from runner.store.runs import RunFolder, load_evidence
from runner.trace.establish import facts
from testcases.base import Case, CaseEvidence

out = Console(highlight=False)

# Findings that tshark's fields can't confirm or refute.
_OURS_ALONE = frozenset({"files-differ", "files-extra", "packet-number-reused", "flow-control-violated"})
_FIELDS = (
    "frame.number",
    "udp.srcport",
    "ip.version",
    "ip.dsfield.ecn",
    "ipv6.tclass.ecn",
    "quic.connection.number",
    "quic.long.packet_type",
    "quic.version",
    "quic.packet_number",
    "quic.token",
    "quic.retry_token",
    "quic.bad_retry",
    "quic.decryption_failed",
    "quic.frame_type",
    "quic.key_phase",
    "quic.stream.stream_id",
    "quic.stream.fin",
    "quic.cc.error_code",
    "quic.cc.error_code.app",
    "tls.handshake.type",
    "tls.handshake.extension.type",
    "tls.handshake.extensions_alpn_str",
)
_QUIC_PORT = "443"
_V1, _V2 = 0x00000001, 0x6B3343CF
_INITIAL, _RETRY = "0", "3"  # values of quic.long.packet_type, version 1
_HANDSHAKE_DONE, _ACK_ECN = "30", "3"
_CERTIFICATE, _ENCRYPTED_EXTENSIONS, _SERVER_HELLO = "11", "8", "2"
_PRE_SHARED_KEY = "41"
# CE counts as ECT, because a link sets it only on packets that were ECT (RFC 3168 §5). It may set it on all ten packets
# with which an endpoint tests the path.
_ECT = ("1", "2", "3")
_H3_NO_ERROR = 0x100


class Row(dict[str, list[str]]):
    """One datagram: the values of each field, in order."""

    @property
    def closed(self) -> bool:
        """True when tshark could not decrypt one of its packets."""
        open_long = _RETRY in self["quic.long.packet_type"]
        return bool(self["quic.decryption_failed"]) or not (self["quic.frame_type"] or open_long)

    @property
    def from_server(self) -> bool:
        return self["udp.srcport"] == [_QUIC_PORT]


@dataclass
class Connection:
    """The datagrams to which tshark gave the same connection number."""

    rows: list[Row] = field(default_factory=list)

    def some(self, name: str, *values: str, server: bool | None = None) -> list[Row]:
        """The datagrams of an endpoint (or of both) in which the field has one of the values."""
        return [row for row in self.sent_by(server) if not set(values).isdisjoint(row[name])]

    def sent_by(self, server: bool | None) -> list[Row]:
        return [row for row in self.rows if server is None or row.from_server is server]

    @property
    def completed(self) -> bool:
        return bool(self.some("quic.frame_type", _HANDSHAKE_DONE, server=True))


def read(capture: Path, key_logs: Sequence[Path]) -> tuple[list[Connection], int]:
    """The connections of a capture according to tshark, and the number of datagrams with packets that it could not
    decrypt."""
    connections: dict[str, Connection] = {}
    closed = 0
    for row in map(Row, rows(capture, "quic", *_FIELDS, key_logs=key_logs, options=["-2"])):
        closed += row.closed
        for number in row["quic.connection.number"][:1]:
            connections.setdefault(number, Connection()).rows.append(row)
    return list(connections.values()), closed


Reasons = Iterator[str]


def _common(connections: list[Connection], protocol: str, handshakes: int, *, version_1: bool = True) -> Reasons:
    done = [connection for connection in connections if connection.completed]
    if len(done) != handshakes:
        yield f"{len(done)} handshakes"
    for connection in done:
        versions = {int(value, 16) for row in connection.rows for value in row["quic.version"]}
        if version_1 and versions != {_V1}:
            yield f"versions {sorted(versions)}"
        chosen = [
            name
            for row in connection.some("tls.handshake.type", _ENCRYPTED_EXTENSIONS, server=True)
            for name in row["tls.handshake.extensions_alpn_str"]
        ]
        if chosen[:1] != [protocol]:
            yield f"ALPN {chosen[:1]}"
    for connection in connections:
        codes = {int(code, 0) for row in connection.rows for code in row["quic.cc.error_code"]}
        if protocol == HTTP3:  # hq-interop defines no codes
            codes |= {int(code, 0) for row in connection.rows for code in row["quic.cc.error_code.app"]} - {
                _H3_NO_ERROR
            }
        if codes - {0}:
            yield f"closed with {sorted(codes - {0})}"


def _no_retry(connections: list[Connection]) -> Reasons:
    if any(connection.some("quic.long.packet_type", _RETRY, server=True) for connection in connections):
        yield "a Retry"


def _plain(connections: list[Connection], protocol: str) -> Reasons:
    yield from _common(connections, protocol, 1)


def _handshake(connections: list[Connection], protocol: str) -> Reasons:
    yield from _plain(connections, protocol)
    yield from _no_retry(connections)


def _retry(connections: list[Connection], protocol: str) -> Reasons:
    # A ClientHello of two datagrams may get two Retry packets. tshark 4.0 then sees two connections; there is only one.
    rows = sorted(
        (row for connection in connections for row in connection.rows), key=lambda row: int(row["frame.number"][0])
    )
    connections = [Connection(rows)]
    yield from _common(connections, protocol, 1)
    retried = [
        connection for connection in connections if connection.some("quic.long.packet_type", _RETRY, server=True)
    ]
    if not retried:
        yield "no Retry"
    for connection in retried:
        retry = connection.some("quic.long.packet_type", _RETRY, server=True)[0]
        place = connection.rows.index(retry)
        if retry["quic.bad_retry"]:  # tshark checks a second Retry with the wrong ID; the client drops it anyway
            yield "a wrong integrity tag"
        after = [
            row for row in connection.rows[place:] if not row.from_server and _INITIAL in row["quic.long.packet_type"]
        ]
        answers = [row for row in after if row["quic.token"][:1] == retry["quic.retry_token"][:1]]
        if not answers:
            yield "the token doesn't come back"
            continue
        before = [
            int(number)
            for row in connection.rows[:place]
            if not row.from_server
            for number in row["quic.packet_number"]
        ]
        if before and int(answers[0]["quic.packet_number"][0]) <= max(before):
            yield "packet numbers start again"


def _resumption(connections: list[Connection], protocol: str) -> Reasons:
    yield from _common(connections, protocol, 2)
    done = [connection for connection in connections if connection.completed]
    for number, connection in enumerate(done):
        certificate = bool(connection.some("tls.handshake.type", _CERTIFICATE, server=True))
        hellos = connection.some("tls.handshake.type", _SERVER_HELLO, server=True)
        resumed = any(_PRE_SHARED_KEY in row["tls.handshake.extension.type"] for row in hellos)
        if (certificate, resumed) != ((True, False) if number == 0 else (False, True)):
            yield f"connection {number}: certificate {certificate}, resumed {resumed}"


def _keyupdate(connections: list[Connection], protocol: str) -> Reasons:
    yield from _plain(connections, protocol)
    for server in (False, True):
        if not any(connection.some("quic.key_phase", "1", "True", server=server) for connection in connections):
            yield f"no key phase 1 from the {'server' if server else 'client'}"


def _ecn(connections: list[Connection], protocol: str) -> Reasons:
    yield from _plain(connections, protocol)
    for server in (False, True):
        name = "server" if server else "client"
        marked = [
            row
            for connection in connections
            for row in connection.sent_by(server)
            if (row["ip.dsfield.ecn"] or row["ipv6.tclass.ecn"])[:1] and _mark(row) in _ECT
        ]
        if not marked:
            yield f"no ECT from the {name}"
        peer_marks = any(
            _mark(row) not in ("0", "") for connection in connections for row in connection.sent_by(not server)
        )
        if peer_marks and not any(
            connection.some("quic.frame_type", _ACK_ECN, server=server) for connection in connections
        ):
            yield f"no ACK with counts from the {name}"


def _mark(row: Row) -> str:
    return next(iter(row["ip.dsfield.ecn"] or row["ipv6.tclass.ecn"]), "")


def _v2(connections: list[Connection], protocol: str) -> Reasons:
    yield from _common(connections, protocol, 1, version_1=False)
    for connection in connections:
        first = [int(value, 16) for row in connection.sent_by(False) for value in row["quic.version"]][:1]
        last = [int(value, 16) for row in connection.sent_by(True) for value in row["quic.version"]][-1:]
        if (first, last) != ([_V1], [_V2]):
            yield f"version {first} to {last}"


def _ipv6(connections: list[Connection], protocol: str) -> Reasons:
    yield from _plain(connections, protocol)
    if any("4" in row["ip.version"] for connection in connections for row in connection.rows):
        yield "IPv4"


CHECKS: dict[str, Callable[[list[Connection], str], Reasons]] = {
    "handshake": _handshake,
    "transfer": _plain,
    "retry": _retry,
    "resumption": _resumption,
    "keyupdate": _keyupdate,
    "ecn": _ecn,
    "v2": _v2,
    "ipv6": _ipv6,
}


def ours(artifacts: Artifacts, case: Case, record: CaseRecord) -> set[str] | None:
    """The codes of our findings, without exit codes and files; None when the job can't be judged."""
    evidence = load_evidence(artifacts)
    if evidence is None or not artifacts.key_logs:
        return None
    ours_facts = facts(
        decode_capture(artifacts.client_capture, artifacts.key_logs),
        decode_capture(artifacts.server_capture, artifacts.key_logs),
    )
    if not ours_facts.connections:
        return None
    context = CaseEvidence(
        facts=ours_facts,
        evidence=evidence,
        case=record,
        truth=load_truth(artifacts.link_truth),
        protocol=protocol_of(evidence.client.environment.get("TESTCASE", record.wire_names["client"])),
    )
    return {finding.code for check in case.checks for finding in check(context)} - _OURS_ALONE


_VERDICTS = ("both pass", "both fail", "can't read", "disagree")


@dataclass(frozen=True)
class Comparison:
    """One job with both verdicts. An empty verdict: passed."""

    job: Job
    ours: set[str]
    tshark: tuple[str, ...]
    closed: int  # datagrams that tshark could not open

    @property
    def verdict(self) -> str:
        if bool(self.ours) != bool(self.tshark):
            return "can't read" if self.tshark and self.closed else "disagree"
        return "both fail" if self.ours else "both pass"


def compare(folder: RunFolder) -> Iterator[Comparison]:
    """Compare every job of a run that both sides can judge."""
    cases = load_catalog().cases
    for job in folder.results():
        artifacts = folder.artifacts(job)
        captures = (artifacts.client_capture, artifacts.server_capture)
        if job.case not in CHECKS or not all(path.is_file() for path in captures):
            continue
        record = folder.run.case(job)
        own_verdict = ours(artifacts, cases[job.case], record)
        if own_verdict is not None:
            connections, closed = read(artifacts.client_capture, artifacts.key_logs)
            reasons = CHECKS[job.case](connections, folder.run.protocol(job))
            yield Comparison(job, own_verdict, tuple(dict.fromkeys(reasons)), closed)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
def main(runs: tuple[str, ...]) -> None:
    """Judge the stored jobs of RUNs twice; exit code 1 when a verdict differs."""
    counts: Counter[tuple[str, str]] = Counter()
    for name in runs:
        try:
            for comparison in compare(RunFolder.open(run_path(name))):
                counts[comparison.job.case, comparison.verdict] += 1
                if comparison.verdict == "disagree":
                    ours = ", ".join(sorted(comparison.ours)) or "passed"
                    theirs = "; ".join(comparison.tshark) or "passed"
                    out.print(f"{name}/{comparison.job}: ours {ours}; tshark {theirs}", soft_wrap=True)
        except (BentpipeError, subprocess.SubprocessError, OSError) as error:
            out.print(f"{name}: {error}", soft_wrap=True, markup=False)
    table = Table("case", "jobs", *_VERDICTS, box=None)
    for case in CHECKS:
        numbers = [counts[case, verdict] for verdict in _VERDICTS]
        table.add_row(case, str(sum(numbers)), *(str(number) for number in numbers))
    out.print(table)
    raise SystemExit(1 if any(verdict == "disagree" for _, verdict in counts) else 0)


if __name__ == "__main__":
    main()
