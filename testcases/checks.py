"""Checks that several cases share. Each is a pure function from evidence to findings; none means that it holds."""

from collections.abc import Iterator
from dataclasses import dataclass

from runner.model.protocol import HTTP09, HTTP3
from runner.model.result import Finding
from testcases.base import CaseEvidence

QUIC_V1 = 0x00000001


def files_are_equal(case: CaseEvidence) -> Iterator[Finding]:
    """The client saved exactly the requested files, byte for byte (contract.md, Files)."""
    wrong = []
    for file in case.evidence.files:
        if file.received is None:
            wrong.append(f"{file.name} is missing")
        elif file.received != file.size:
            wrong.append(f"{file.name} has {file.received} of {file.size} B")
        elif not file.equal:
            wrong.append(f"{file.name} has the right size, but other content")
    if wrong:
        yield Finding(
            code="files-differ",
            requirement="The client saves every requested file to /downloads, unchanged.",
            expected=f"{len(case.evidence.files)} files equal to those in /www",
            actual="; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
            role="client",
        )
    if case.evidence.extra_files:
        names = ", ".join(case.evidence.extra_files[:5])
        yield Finding(
            code="files-extra",
            requirement="Nothing but the requested files is in /downloads.",
            expected="no other file",
            actual=f"{len(case.evidence.extra_files)} more: {names}",
            role="client",
        )


@dataclass(frozen=True)
class Handshakes:
    """Exactly `expected` connections completed their handshake (RFC 9001 §4.1.1)."""

    expected: int

    def __call__(self, case: CaseEvidence) -> Iterator[Finding]:
        """The finding when there were more or fewer."""
        completed = sum(connection.handshake_completed for connection in case.facts.connections)
        if completed != self.expected:
            yield Finding(
                code="handshake-count",
                requirement="The case runs over a fixed number of connections.",
                expected=f"{self.expected} completed handshake{'s' if self.expected != 1 else ''}",
                actual=f"{completed}",
                section="RFC 9001 §4.1.1",
            )


def a_handshake_per_file(case: CaseEvidence) -> Iterator[Finding]:
    """As many connections as files completed their handshake, or more: one that is given up may be begun anew."""
    expected = len(case.case.file_sizes)
    completed = sum(connection.handshake_completed for connection in case.facts.connections)
    if completed < expected:
        yield Finding(
            code="handshake-count",
            requirement="Each request has a connection of its own.",
            expected=f"at least {expected} completed handshakes",
            actual=f"{completed}",
            section="RFC 9001 §4.1.1",
        )


def version_is_1(case: CaseEvidence) -> Iterator[Finding]:
    """Every connection that came about uses QUIC version 1 (RFC 9000 §15)."""
    others = {connection.version for connection in case.facts.connections if connection.handshake_completed} - {QUIC_V1}
    if others:
        yield Finding(
            code="wrong-version",
            requirement="Cases that don't ask for another version run over QUIC version 1.",
            expected="0x00000001",
            actual=", ".join(f"0x{version:08x}" if version is not None else "none" for version in others),
            section="RFC 9000 §15",
        )


def no_retry(case: CaseEvidence) -> Iterator[Finding]:
    """The server sends no Retry where the case doesn't ask for address validation (RFC 9000 §8.1.2)."""
    retries = sum(connection.retries for connection in case.facts.connections)
    if retries:
        yield Finding(
            code="unexpected-retry",
            requirement="Only the case `retry` asks the server to validate addresses by Retry.",
            expected="no Retry packet",
            actual=f"{retries}",
            role="server",
            section="RFC 9000 §8.1.2",
        )


@dataclass(frozen=True)
class Alpn:
    """Every connection negotiated `protocol` (RFC 7301)."""

    protocol: str

    def __call__(self, case: CaseEvidence) -> Iterator[Finding]:
        """The finding when a connection negotiated another one, or none."""
        others = {connection.alpn for connection in case.facts.connections if connection.handshake_completed}
        others -= {self.protocol}
        if others:
            yield Finding(
                code="wrong-alpn",
                requirement=f"The case runs over {self.protocol}.",
                expected=self.protocol,
                actual=", ".join(str(other) for other in others),
                section="RFC 7301 §3.1",
            )


def alpn_as_asked(case: CaseEvidence) -> Iterator[Finding]:
    """Every connection negotiated the protocol that this pair was asked to speak."""
    yield from Alpn(case.protocol)(case)


_H3_NO_ERROR = 0x100


def closes_cleanly(case: CaseEvidence) -> Iterator[Finding]:
    """No side closed a connection with an error: NO_ERROR of the transport or of the application (RFC 9114 §8.1)."""
    for number, connection in enumerate(case.facts.connections):
        for close in connection.closes:
            if close.code == 0 or (connection.alpn == HTTP3 and close.application and close.code == _H3_NO_ERROR):
                continue
            kind = "application" if close.application else "transport"
            yield Finding(
                code="closed-with-error",
                requirement="Connections end without an error.",
                expected="CONNECTION_CLOSE with code 0, or none",
                actual=f"connection {number}: {kind} error 0x{close.code:x} ({close.reason or 'no reason given'})",
                role=close.sender,
                section="RFC 9000 §10.2",
            )


# What every test case asks whatever its connections are like, and what those ask that run over one plain connection.
COMMON = (files_are_equal, closes_cleanly)
ONE_CONNECTION = (files_are_equal, Handshakes(1), version_is_1, no_retry, Alpn(HTTP09), closes_cleanly)
