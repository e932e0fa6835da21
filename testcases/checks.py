"""Checks that several cases share. Each is a pure function from evidence to findings; no finding means success."""

from collections.abc import Iterator
from dataclasses import dataclass

from runner.model.facts import Close, ConnectionFacts, PacketPlace
from runner.model.result import Finding
from runner.model.stack import HTTP09, HTTP3
from runner.units import format_count, format_name
from testcases.base import CaseEvidence, keyless, reads, undecided

QUIC_V1 = 0x00000001


def version_text(version: int | None) -> str:
    """A QUIC version in hexadecimal digits: `0x00000001`."""
    return "unknown" if version is None else f"0x{version:08x}"


@keyless
@reads()
def files_are_equal(case: CaseEvidence) -> Iterator[Finding]:
    """The receiver saved exactly the files of the case, byte for byte (docs/contract.md, Files). The judge finds from
    the packets which endpoint is at fault for a file that differs (`runner/judge/judges.py`)."""
    receiver, named = case.case.sender.peer.value, "sent" if case.case.upload else "requested"
    wrong = []
    for file in case.evidence.files:
        if file.received is None:
            wrong.append(f"{format_name(file.name)} is missing")
        elif file.received != file.size:
            wrong.append(f"{format_name(file.name)} has {file.received} of {file.size} B")
        elif not file.equal:
            wrong.append(f"{format_name(file.name)} has the right size, but other content")
    if wrong:
        yield Finding(
            code="files-differ",
            requirement=f"The {receiver} saves every {named} file to /downloads, unchanged.",
            expected=f"{format_count(len(case.evidence.files), 'file')} as in /www",
            actual="; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
            section="endpoint contract, Files",
        )
    if case.evidence.extra_files:
        names = ", ".join(map(format_name, case.evidence.extra_files[:5]))
        yield Finding(
            code="files-extra",
            requirement=f"The {receiver} saves only the {named} files to /downloads.",
            expected="no other file",
            actual=f"{len(case.evidence.extra_files)} more: {names}",
            role=receiver,
            section="endpoint contract, Files",
        )


@keyless
@dataclass(frozen=True)
class Handshakes:
    """Exactly `expected` connections completed their handshake (RFC 9001 §4.1.1).

    A client that got its files in 0.5-RTT data may close before the server receives its Finished. Then it is enough
    that the client completed the handshake.
    """

    expected: int

    def __call__(self, case: CaseEvidence) -> Iterator[Finding]:
        """A finding when the number differs."""
        completed = sum(
            connection.handshake_completed or _closed_by_client(connection) for connection in case.facts.connections
        )
        if completed != self.expected:
            yield Finding(
                code="handshake-count",
                requirement="The case runs over a fixed number of connections.",
                expected=f"{self.expected} completed handshake{'s' if self.expected != 1 else ''}",
                actual=f"{completed}",
                section="RFC 9001 §4.1.1",
            ).proven_by(*_beginnings(case))


def _closed_by_client(connection: ConnectionFacts) -> bool:
    """True when the client completed the handshake and closed the connection first, without an error."""
    closes = connection.closes[:1]
    return connection.handshake_completed_by_client and any(
        close.sender == "client" and is_clean(connection, close) for close in closes
    )


def a_connection_completed(case: CaseEvidence) -> Iterator[Finding]:
    """At least one TLS handshake completed (RFC 8446 §2)."""
    if not any(connection.handshake_completed for connection in case.facts.connections):
        yield Finding(
            code="handshake-count",
            requirement="The files arrive over TLS on a TCP connection of this pair.",
            expected="at least 1 completed handshake",
            actual="none",
            section="RFC 8446 §2",
        ).proven_by(*_beginnings(case))


@keyless
def a_handshake_per_file(case: CaseEvidence) -> Iterator[Finding]:
    """At least one completed handshake per file. A client may give up a connection and open another one.

    A handshake counts when the client completed it. A server may send the file in 0.5-RTT data, and the client may then
    close before a lost Finished is sent again.
    """
    expected = len(case.case.file_sizes)
    unfinished = [
        connection
        for connection in case.facts.connections
        if not (connection.handshake_completed or connection.handshake_completed_by_client)
    ]
    completed = len(case.facts.connections) - len(unfinished)
    if completed < expected:
        yield Finding(
            code="handshake-count",
            requirement="Each request has a connection of its own.",
            expected=f"at least {expected} completed handshakes",
            actual=f"{completed}",
            section="RFC 9001 §4.1.1",
        ).proven_by(*(place for connection in unfinished for place in connection.landmarks.client_hellos[:1]))


def _beginnings(case: CaseEvidence) -> Iterator[PacketPlace]:
    """The first ClientHello of each connection."""
    for connection in case.facts.connections:
        yield from connection.landmarks.client_hellos[:1]


@keyless
def version_is_1(case: CaseEvidence) -> Iterator[Finding]:
    """Every completed connection uses QUIC version 1 (RFC 9000 §15)."""
    others = [
        connection
        for connection in case.facts.connections
        if connection.handshake_completed and connection.version != QUIC_V1
    ]
    if others:
        versions = {connection.version for connection in others}
        yield Finding(
            code="wrong-version",
            requirement="A case runs over QUIC version 1 unless it requires another version.",
            expected="0x00000001",
            actual=", ".join(map(version_text, versions)),
            section="RFC 9000 §15",
        ).proven_by(*(connection.landmarks.server_hello for connection in others))


@keyless
@reads("initial")
def no_retry(case: CaseEvidence) -> Iterator[Finding]:
    """The server sends no Retry. The contract forbids it in `handshake`; RFC 9000 §8.1.2 allows it elsewhere."""
    retries = sum(connection.retries for connection in case.facts.connections)
    if retries:
        yield Finding(
            code="unexpected-retry",
            requirement="The server sends no Retry in the case `handshake`; other cases allow it.",
            expected="no Retry packet",
            actual=f"{retries}",
            role="server",
            section="endpoint contract, Test case names",
        ).proven_by(*(place for connection in case.facts.connections for place in connection.landmarks.retries))


@keyless
@dataclass(frozen=True)
class Alpn:
    """Every connection negotiated `protocol` (RFC 7301)."""

    protocol: str

    def __call__(self, case: CaseEvidence) -> Iterator[Finding]:
        """A finding when a connection negotiated another protocol or none."""
        others = [
            connection
            for connection in case.facts.connections
            if connection.handshake_completed and connection.alpn != self.protocol
        ]
        unasked = [connection for connection in others if _offers_another(connection, self.protocol)]
        if unasked:
            yield _not_offered(self.protocol, unasked[0])
        elif case.facts.no_secrets and any(connection.alpn is None for connection in others):
            offered = ", ".join(others[0].offered_alpn)
            yield undecided("SERVER_HANDSHAKE_TRAFFIC_SECRET in a key log", f"the client offers {offered}")
        elif others:
            yield Finding(
                code="wrong-alpn",
                requirement=f"The case runs over {self.protocol}.",
                expected=self.protocol,
                actual=", ".join(sorted({str(connection.alpn) for connection in others})),
                section="RFC 7301 §3.1",
            ).proven_by(*(connection.landmarks.server_parameters for connection in others))


def _offers_another(connection: ConnectionFacts, protocol: str) -> bool:
    return bool(connection.offered_alpn) and protocol not in connection.offered_alpn


def _not_offered(protocol: str, connection: ConnectionFacts) -> Finding:
    return Finding(
        code="wrong-alpn",
        requirement="The client offers the protocol of the case.",
        expected=f"{protocol} among the protocols that the client offers",
        actual=", ".join(connection.offered_alpn),
        role="client",
        section="endpoint contract, Test case names",
    ).proven_by(*connection.landmarks.client_hellos[:1])


@keyless
@reads("initial")
def protocol_is_offered(case: CaseEvidence) -> Iterator[Finding]:
    """The client offers the protocol that the case requires (docs/contract.md), and the server accepts it, in each
    connection without a complete handshake; `Alpn` checks the others."""
    for connection in case.facts.connections:
        if connection.handshake_completed:
            continue
        if _offers_another(connection, case.protocol):
            yield _not_offered(case.protocol, connection)
            return
        refusals = [
            close
            for close in connection.closes
            if close.sender == "server" and not close.application and close.code == _NO_APPLICATION_PROTOCOL
        ]
        if refusals and case.protocol in connection.offered_alpn:
            yield Finding(
                code="wrong-alpn",
                requirement="The server accepts the protocol of the case.",
                expected=f"{case.protocol}, which the client offers",
                actual="no_application_protocol",
                role="server",
                section="endpoint contract, Test case names",
            ).proven_by(refusals[0].place)
            return


@keyless
def alpn_of_job(case: CaseEvidence) -> Iterator[Finding]:
    """Every connection negotiated the protocol that the job uses."""
    yield from Alpn(case.protocol)(case)


_H3_NO_ERROR = 0x100
_APPLICATION_ERROR = 0x0C
_NO_APPLICATION_PROTOCOL = 0x178  # RFC 9001 §8.1
# RFC 9000 §20.1: TRANSPORT_PARAMETER_ERROR and TLS alerts show that the server read the ClientHello.
_ABOUT_HELLO = frozenset((0x08, *range(0x100, 0x200)))


@keyless
@reads("initial")
def closes_cleanly(case: CaseEvidence) -> Iterator[Finding]:
    """Connections end with NO_ERROR of the transport or of HTTP/3 (RFC 9114 §8.1), or without CONNECTION_CLOSE.

    hq-interop defines no error codes, so any code in an application's close is accepted there.
    """
    for number, connection in enumerate(case.facts.connections):
        for close in connection.closes:
            if is_clean(connection, close) or _means_unknown(connection, close) or _echoes(connection, close):
                continue
            kind = "application" if close.application else "transport"
            yield Finding(
                code="closed-with-error",
                requirement="Connections end without an error.",
                expected="CONNECTION_CLOSE with code 0, or none",
                actual=f"connection {number}: {kind} error 0x{close.code:x} ({close.reason or 'no reason given'})",
                role=close.sender,
                section="RFC 9000 §10.2",
            ).proven_by(close.place)


def is_clean(connection: ConnectionFacts, close: Close) -> bool:
    """True when a close reports no error. hq-interop defines no error codes. APPLICATION_ERROR of the transport stands
    for a close by the application in Initial and Handshake packets (RFC 9000 §10.2.3)."""
    if close.application or close.code == _APPLICATION_ERROR:
        no_error = connection.alpn == HTTP3 and close.application and close.code == _H3_NO_ERROR
        return close.code == 0 or no_error or connection.alpn == HTTP09
    return close.code == 0


def _echoes(connection: ConnectionFacts, close: Close) -> bool:
    """True when `close` only repeats the code of an earlier close by the peer, which a draining endpoint may do (RFC
    9000 §10.2.2). APPLICATION_ERROR repeats any close by the peer's application."""
    for earlier in connection.closes[: connection.closes.index(close)]:
        if earlier.sender != close.sender:
            same = (earlier.application, earlier.code) == (close.application, close.code)
            return same or (earlier.application and close.code == _APPLICATION_ERROR)
    return False


def _means_unknown(connection: ConnectionFacts, close: Close) -> bool:
    """True when the meaning of an error code can't be known. Either the server's ALPN can't be decrypted, or the close
    is APPLICATION_ERROR, which hides the application's own close in 1-RTT packets (RFC 9000 §10.2.3)."""
    if close.application:
        return connection.alpn is None and connection.cannot_read("server", "handshake")
    return close.code == _APPLICATION_ERROR and connection.cannot_read(close.sender, "1rtt")


def close_code_of_http09(case: CaseEvidence) -> Iterator[Finding]:
    """A note: an application closed with an error code although hq-interop defines none."""
    for number, connection in enumerate(case.facts.connections):
        for close in connection.closes:
            if close.application and close.code and connection.alpn == HTTP09:
                yield Finding(
                    code="close-code-undefined",
                    requirement="hq-interop defines no error codes; other stacks send 0.",
                    expected="CONNECTION_CLOSE with code 0, or none",
                    actual=f"connection {number}: 0x{close.code:x} ({close.reason or 'no reason given'})",
                    role=close.sender,
                    section="RFC 9000 §20.2",
                ).proven_by(close.place)


@keyless
@reads("initial")
def hellos_are_answered(case: CaseEvidence) -> Iterator[Finding]:
    """In every connection without a handshake, the server answered a ClientHello that arrived completely."""
    for number, connection in enumerate(case.facts.connections):
        hello = connection.client_hello
        if connection.handshake_completed or connection.landmarks.server_hello is not None:
            continue
        read = any(close.sender == "server" and close.code in _ABOUT_HELLO for close in connection.closes)
        retried = connection.retries and not connection.retry_token_echoed  # Retry is an answer
        if hello is None or hello.arrived is False or read or retried:
            continue
        order = ", which arrived in another order" if hello.out_of_order else ""
        carried = format_count(hello.datagrams, "datagram")
        yield Finding(
            code="client-hello-unanswered",
            requirement="A server answers a ClientHello that arrived completely, in any number of packets.",
            expected="an Initial packet of the server with its ServerHello",
            actual=f"connection {number}: no answer to {hello.bytes} B in {carried}{order}",
            role="server",
            section="RFC 9000 §7",
        ).proven_by(*hello.places)


# COMMON: checks of every test case. ONE_CONNECTION, TWO_CONNECTIONS: of cases that use one connection, or two.
COMMON = (files_are_equal, protocol_is_offered, closes_cleanly)
# A server may send Retry (RFC 9000 §8.1.2), for example when a ClientHello takes two datagrams. The contract forbids
# Retry only in `handshake`.
ONE_CONNECTION = (*COMMON, Handshakes(1), version_is_1, Alpn(HTTP09))
TWO_CONNECTIONS = (*COMMON, Handshakes(2), version_is_1, Alpn(HTTP09))

# Checks of jobs over TCP. The kernel's TCP itself is not judged.
OVER_TCP = (files_are_equal, protocol_is_offered, alpn_of_job, a_connection_completed)

# Notes of every case.
NOTES = (close_code_of_http09,)

# Checks that need only Initial packets. The keys of these packets are public (RFC 9001 §5.2), so these checks explain
# failures without a key log.
OPEN = (protocol_is_offered, closes_cleanly, hellos_are_answered)
