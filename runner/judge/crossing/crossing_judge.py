"""Judges how a job's traffic crossed the satellite link, and what an eavesdropper there sees. Reads files only."""

import ipaddress
from collections.abc import Iterator
from dataclasses import replace

from runner import store
from runner.decode import decode_capture
from runner.decode.ip_packets import TCP, UDP, Packet, read_packets
from runner.errors import CaptureError
from runner.inputs.loads import PORTS, secret, served
from runner.judge.crossing.connections import Ends, Exchange, connections, exchange
from runner.judge.crossing.eavesdropper import Private, Recorded, sights
from runner.judge.ends import GATEWAY, TERMINAL, addresses
from runner.judge.judge import JudgedJob
from runner.model.artifacts import Artifacts
from runner.model.middlebox import Box, Crossing, Middlebox
from runner.model.protocol import transport_of
from runner.model.real_link import RealLinkEvidence
from runner.model.result import Finding, Outcome, Result
from runner.model.run import CaseRecord, ClientKind


class CrossingJudge:
    """Judges jobs whose traffic passes the boxes of a middlebox."""

    def judge(self, judged: JudgedJob, result: Result) -> Result:
        """`result` with its crossing. It is an error when the traffic bypassed the middlebox, and a failure when a
        middlebox that encrypts reveals private data."""
        return _verdict(judged.artifacts, judged.record, result)


def _verdict(artifacts: Artifacts, record: CaseRecord, result: Result) -> Result:
    evidence = store.load_evidence(artifacts)
    if evidence is None or evidence.error or evidence.content_seed is None:
        return result
    try:
        crossing = _read(artifacts, record, evidence.content_seed, evidence.real_link)
    except CaptureError:
        return result  # an earlier judge has reported the missing capture
    result = replace(result, crossing=crossing)
    if result.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
        return result
    entry = evidence.via
    answered = result.outcome is Outcome.SUCCEEDED or crossing.answered
    if answered and (unproven := tuple(_unproven(entry, crossing, record, result.protocol or record.protocol))):
        return result.ending(Outcome.ERROR, *unproven)
    leaks = tuple(_leaks(crossing)) if entry is not None and entry.encrypts else ()
    return result.ending(Outcome.FAILED, *result.findings, *leaks) if leaks else result


def _read(artifacts: Artifacts, record: CaseRecord, seed: int, real: RealLinkEvidence | None) -> Crossing:
    """The crossing of a job. Raises CaptureError when a capture is missing."""
    _, at_client = read_packets(artifacts.client_capture)
    data, on_link = read_packets(artifacts.link_captures[0])
    _, at_server = read_packets(artifacts.server_capture)
    client, server = addresses(record.host, at_client)
    at_all_times = exchange(at_client, client, server)
    files = served(record, seed)
    private = Private(
        client=client,
        server=server,
        ports=tuple(PORTS.values()),
        name=record.host,
        url=files[0].name,
        header=secret(seed) if record.client is not ClientKind.STACK else "",
        files=tuple(file.content() for file in files),
    )
    return Crossing(
        **_split(at_all_times, exchange(on_link, client, server).connections, connections(at_server, idle=True)),
        inner_bytes=_bytes(on_link, client, server),
        outer_bytes=_bytes(on_link, TERMINAL, GATEWAY) if real is None else _bytes_with(on_link, real.server_address),
        client_bytes=at_all_times.bytes,
        answered=at_all_times.first is not None,
        sights=sights(Recorded(data, on_link, _initial_names(artifacts)), private),
    )


def _initial_names(artifacts: Artifacts) -> frozenset[str]:
    """The server names (SNI) of QUIC connections on the satellite link."""
    names = decode_capture(artifacts.link_captures[0]).connections.column("sni").to_pylist()
    return frozenset(name for name in names if name)


def _split(at_client: Exchange, on_link: tuple[Ends, ...], behind: tuple[Ends, ...]) -> dict[str, int]:
    """The counts of whole and split connections, by field name of Crossing.

    Initial sequence numbers are random: when two captures have the same numbers, they show the same connection. Ports
    prove nothing, because a proxy may use any port for its own connection. The data of a connection may have been lost
    before it reached a capture. So connections without data are compared, too.
    """
    first, last = ({ends.initials for ends in capture} for capture in (at_client.begun, behind))
    return {
        "connections": len(at_client.connections),
        "whole": sum(connection.initials in last for connection in at_client.connections),
        "on_link": len(on_link),
        "terminal_split": sum(ends.initials not in first for ends in on_link),
        "gateway_split": sum(ends.initials not in last for ends in on_link),
    }


def _bytes(packets: list[Packet], first: bytes, second: bytes) -> int:
    return sum(
        packet.length
        for packet in packets
        if {packet.source, packet.destination} == {first, second} and packet.protocol in (TCP, UDP)
    )


def _bytes_with(packets: list[Packet], address: str) -> int:
    """Bytes of IP packets from or to `address`. The terminal's address is not used, because address translation can
    change it on the link."""
    packed = ipaddress.ip_address(address).packed
    return sum(packet.length for packet in packets if packed in (packet.source, packet.destination))


def _unproven(entry: Middlebox | None, crossing: Crossing, record: CaseRecord, protocol: str) -> Iterator[Finding]:
    """Reasons why the captures don't prove that the traffic crossed the link in the way that the middlebox declares.
    Then no number counts."""
    tcp, splits = transport_of(protocol) == "tcp", entry.splits if entry is not None else ()
    name = f"through the middlebox {entry.name}" if entry is not None else "without a middlebox"

    def finding(expected: str, actual: str) -> Finding:
        return Finding(
            code="bypassed",
            requirement=f"The job's traffic crosses the satellite link {name}.",
            expected=expected,
            actual=actual,
        )

    if tcp and not crossing.connections:
        yield finding("a TCP connection of the client", "no connection with data in the client's capture")
        return
    if entry is not None and entry.encrypts:
        if crossing.inner_bytes:
            yield finding(
                "no packet with the addresses of client and server on the link",
                f"{crossing.inner_bytes} B of such packets",
            )
        # Half of the client's bytes, because compression can't save more. At most the sizes of the files, because bytes
        # that a proxy retransmits to the client don't cross the link again.
        payload = min(crossing.client_bytes // 2, sum(record.file_sizes))
        if crossing.outer_bytes < payload:
            yield finding(f"at least {payload} B between terminal and gateway", f"{crossing.outer_bytes} B")
    if not tcp:
        return
    if splits and crossing.whole:
        actual = f"{crossing.whole} of {crossing.connections} connections have the same numbers at client and server"
        yield finding("every TCP connection of the client ends at a box", actual)
    if not splits and crossing.whole < crossing.connections:
        actual = f"{crossing.connections - crossing.whole} of {crossing.connections} connections have other numbers"
        yield finding("the same initial sequence numbers at client and server", actual)
    if crossing.on_link:
        for box, count in ((Box.TERMINAL, crossing.terminal_split), (Box.GATEWAY, crossing.gateway_split)):
            required = crossing.on_link if box in splits else 0
            if count != required:
                yield finding(
                    f"{required} of {crossing.on_link} connections end at the {box.value}", f"{count} connections"
                )


def _leaks(crossing: Crossing) -> Iterator[Finding]:
    for sight in crossing.sights:
        if sight.visible:
            yield Finding(
                code="leak",
                requirement="A middlebox that encrypts hides the connections inside it.",
                expected=f"no {sight.what} in any captured byte of the satellite link",
                actual=f"{sight.what} {sight.how}, in {sight.times} packets",
                packets=() if sight.packet is None else (sight.packet,),
                vantage="client",
            )
