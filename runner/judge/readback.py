"""Compares the requested parameters and addresses with those that endpoints really used."""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.decode.capture import IpPacket
from runner.decode.columns import CLIENT, SERVER
from runner.files import log_files, open_log
from runner.model.facts import FirstFlight, TraceFacts
from runner.model.result import Artifacts, Evidence, Reading, Sample
from runner.model.stack import Role
from runner.units import format_count

# Compares the requested parameters with the parameters that endpoints really used. The used parameters are read from
# the output of endpoints, their qlogs and the packets.

_NUMBER = re.compile("[0-9]{1,9}", re.ASCII)
_APPLIED = re.compile(r"^applied:\s*(.+)$", re.MULTILINE)
_PARAMETERS = {"cca": "CCA", "iw": "IW", "ack": "ACK_FREQUENCY"}  # names in the line `applied: cca=… iw=… ack=…`
_QLOG_HEAD = 256 * 1024  # bytes; the first metrics are at the beginning of a file that may have many MiB
# Names that stacks use in `recovery:parameters_set` or `recovery:metrics_updated` (qlog 0.3). A number has at most 18
# digits: a larger number is no window, and Python refuses to convert very long numbers.
_QLOG_WINDOW = re.compile(r'"(?:initial_congestion_window|congestion_window|cwnd)"\s*:\s*"?(\d{1,18})(?!\d)')
_QLOG_CONTROLLER = re.compile(r'"(?:congestion_control(?:ler)?(?:_type|_algorithm)?|cc_algorithm)"\s*:\s*"([^"]+)"')
# Datagram sizes (bytes) that stacks use as the unit of windows until they know the path's MTU: 1200 (RFC 9000 §14), the
# UDP payload of packets of 1280 B with IPv6 (1232) and IPv4 (1252), and quic-go's 1280.
_DATAGRAMS = (1200, 1232, 1252, 1280)
# Allowed difference between a first flight and the requested window: handshake packets enlarge or use up the window.
_SLACK_SHARE, _SLACK_PACKETS = 0.15, 3
# Share of the time to the first ACK. Pacing, not the window, limits a server that still sends after this share.
_BLOCKED_SHARE = 0.9
# Shares of the requested number of data packets per ACK. A difference up to the first share confirms the request; a
# number below the second share refutes it.
_CLOSE_SHARE, _FAR_SHARE = 0.25, 0.5
_LIMIT_SHARE = 0.95  # share of the flow control window or of the response; above it, these may have ended the flight


def applied_lines(artifacts: Artifacts, roles: Iterable[str] = tuple(Role)) -> dict[str, str]:
    """By role: the rest of the first line in the role's output that begins with `applied:`."""
    lines: dict[str, str] = {}
    for role in map(str, roles):
        log = artifacts.folder / role / "output.log"
        match = _APPLIED.search(log.read_text(errors="replace")) if log.is_file() else None
        if match:
            lines[role] = match[1].strip()
    return lines


def readings(
    artifacts: Artifacts, evidence: Evidence, facts: TraceFacts | None, sample: Sample | None
) -> tuple[Reading, ...]:
    """Every value that could be read back, and every requested parameter whose value could not be read back."""
    lines = applied_lines(artifacts)
    known: list[Reading] = []
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        requested = {name: endpoint.environment.get(name, "") for name in _PARAMETERS.values()}
        for name in ("IW", "ACK_FREQUENCY"):
            if not _NUMBER.fullmatch(requested[name]):  # the evidence was changed: no run requests this
                requested[name] = ""
        mine = list(_from_output(role, lines.get(role, ""), requested))
        flight = facts.first_flight if facts is not None and role == "server" else None
        mine += _from_qlog(role, artifacts.folder / role / "qlog", requested, flight)
        if flight is not None and facts is not None:
            mine.append(_from_flight(flight, facts, requested["IW"]))
        if role == "client" and requested["ACK_FREQUENCY"] and sample is not None and sample.ack_ratio:
            mine.append(_from_acks(sample.ack_ratio, requested["ACK_FREQUENCY"]))
        silent = [
            name for name, value in requested.items() if value and all(reading.parameter != name for reading in mine)
        ]
        known += [*mine, *(Reading(role=role, parameter=name, asked=requested[name]) for name in silent)]
    return tuple(known)


def _from_output(role: str, line: str, requested: dict[str, str]) -> Iterator[Reading]:
    """The values that the image itself reports."""
    for key, value in re.findall(r"(\w+)=(\S+)", line):
        if (name := _PARAMETERS.get(key)) is not None:
            holds = value == requested[name] if requested[name] else None
            yield Reading(role=role, parameter=name, asked=requested[name], found=value, source="output", holds=holds)


def _from_qlog(role: str, folder: Path, requested: dict[str, str], flight: FirstFlight | None) -> Iterator[Reading]:
    """The congestion controller and the first congestion window, from the first qlog that contains one of them."""
    for path in log_files(folder):
        with open_log(path) as file:
            head = file.read(_QLOG_HEAD).decode(errors="replace")
        controller, window = _QLOG_CONTROLLER.search(head), _QLOG_WINDOW.search(head)
        if controller:
            holds = controller[1].lower() == requested["CCA"].lower() if requested["CCA"] else None
            yield Reading(
                role=role, parameter="CCA", asked=requested["CCA"], found=controller[1], source="qlog", holds=holds
            )
        if window:
            size = int(window[1])
            datagram = _datagram(size, flight)
            packets = size / datagram
            holds = abs(packets - int(requested["IW"])) < 1 + _SLACK_SHARE * packets if requested["IW"] else None
            yield Reading(
                role=role,
                parameter="IW",
                asked=requested["IW"],
                found=f"{packets:.0f}",
                source="qlog",
                holds=holds,
                detail=f"first congestion window {size:,} B, in packets of {datagram:,} B",
            )
        if controller or window:
            return


def _datagram(window: int, flight: FirstFlight | None) -> int:
    """The datagram size that is the unit of `window` (bytes). It is the first size that divides `window`: the size in
    the trace, then common sizes."""
    sizes: tuple[int, ...] = (*((flight.datagram_bytes,) if flight is not None else ()), *_DATAGRAMS)
    whole = [size for size in sizes if window % size == 0]
    return whole[0] if whole else sizes[0]


def _from_flight(flight: FirstFlight, facts: TraceFacts, requested: str) -> Reading:
    """The initial window that the first flight shows. A smaller flight refutes the request only when no other reason
    ended the flight."""
    expected, sent = int(requested or 0), flight.full_packets
    slack = _SLACK_SHARE * expected + _SLACK_PACKETS
    ended = _other_end(flight, facts)
    holds: bool | None = abs(sent - expected) <= slack if requested else None
    if requested and sent < expected - slack and ended:
        holds = None
    detail = f"{flight.bytes:,} B in {format_count(flight.packets, 'packet')}, within {flight.duration * 1e3:.1f} ms"
    return Reading(
        role="server",
        parameter="IW",
        asked=requested,
        found=f"{sent:.0f}",
        source="first flight",
        holds=holds,
        detail=f"{detail}; {ended}" if ended else detail,
    )


def _other_end(flight: FirstFlight, facts: TraceFacts) -> str:
    """The reason, other than the congestion window, that may have ended the flight; empty when there is none."""
    connection = next((connection for connection in facts.connections if connection.request_streams), None)
    if connection is None or flight.acknowledged is None:
        return "no ACK came"
    if flight.response_bytes >= _LIMIT_SHARE * sum(stream.server_bytes for stream in connection.request_streams):
        return "it holds the whole response"
    limits = [limit for limit in (connection.initial_max_data, connection.initial_max_stream_data) if limit is not None]
    if limits and flight.response_bytes >= _LIMIT_SHARE * min(limits):
        return "it fills the client's flow control window"
    if flight.duration >= _BLOCKED_SHARE * flight.acknowledged:
        return "it was still being sent when the first ACK came"
    return ""


def _from_acks(ratio: float, requested: str) -> Reading:
    """Data packets per ACK of the client. Out-of-order packets and the end of a transfer are acknowledged at once, so a
    slightly lower number does not refute the request."""
    packets, expected = 1 / ratio, int(requested)
    holds: bool | None = None
    if abs(packets - expected) <= _CLOSE_SHARE * expected:
        holds = True
    elif packets < _FAR_SHARE * expected:
        holds = False
    return Reading(
        role="client",
        parameter="ACK_FREQUENCY",
        asked=requested,
        found=f"{packets:.1f}",
        source="ACKs on the wire",
        holds=holds,
        detail="data packets per packet with an ACK, over the whole transfer",
    )


# The addresses of client, server, middlebox and second flow. The host name in the request selects the IP version
# (docs/contract.md).

_ENDS = {
    "server4": ("193.167.0.100", "193.167.100.100"),
    "server6": ("fd00:cafe:cafe:0::100", "fd00:cafe:cafe:100::100"),
}
BESIDE = (  # client and server of the second flow
    ipaddress.ip_address("193.167.1.100").packed,
    ipaddress.ip_address("193.167.101.100").packed,
)
SIMULATOR = ("193.167.0.2", "193.167.100.2", "fd00:cafe:cafe::2", "fd00:cafe:cafe:100::2")  # of a lane
_NETWORKS = {  # of the hosts at the client's end of an emulated link, and at the server's end
    CLIENT: ("193.167.0.0/24", "193.167.1.0/24", "fd00:cafe:cafe::/64", "fd00:cafe:cafe:1::/64"),
    SERVER: ("193.167.100.0/24", "193.167.101.0/24", "fd00:cafe:cafe:100::/64", "fd00:cafe:cafe:101::/64"),
}
TERMINAL, GATEWAY = (ipaddress.ip_address(text).packed for text in ("10.55.0.100", "10.55.100.100"))


def addresses(host: str, at_client: Iterable[IpPacket]) -> tuple[bytes, bytes]:
    """The addresses of client and server in binary form. `server46` has addresses of both IP versions: IPv6 is chosen
    when the client sent packets only to the server's IPv6 address, otherwise IPv4."""
    pairs = {name: tuple(ipaddress.ip_address(text).packed for text in ends) for name, ends in _ENDS.items()}
    if host not in pairs:
        used = {packet.destination for packet in at_client}
        host = "server6" if pairs["server6"][1] in used and pairs["server4"][1] not in used else "server4"
    client, server = pairs[host]
    return client, server


def sending_end(source: str, destination: str) -> int | None:
    """The end of an emulated link from which a packet with these addresses came: CLIENT or SERVER. None when neither
    address shows it, because an endpoint used addresses that the lane does not have.

    The source decides first: an end may send to an address of its own network that no host has, and the link carries
    such a packet. It carries no packet with a source of the other end.
    """
    for address, receives in ((source, False), (destination, True)):
        for end, networks in _NETWORKS.items():
            if any(ipaddress.ip_address(address) in ipaddress.ip_network(network) for network in networks):
                return 1 - end if receives else end
    return None
