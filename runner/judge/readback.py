"""What endpoints really used: read back from their output, their qlogs and the wire, beside what they were asked."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.files.compressed import log_files, open_log
from runner.model.artifacts import Artifacts, Evidence
from runner.model.implementation import Role
from runner.model.result import Reading, Sample
from runner.trace import FirstFlight, TraceFacts

_APPLIED = re.compile(r"^applied:\s*(.+)$", re.MULTILINE)
_PARAMETERS = {"cca": "CCA", "iw": "IW", "ack": "ACK_FREQUENCY"}  # as in the line `applied: cca=… iw=… ack=…`
_QLOG_HEAD = 256 * 1024  # bytes: the first metrics stand at the beginning of a file that may have many MiB
# At most 18 digits: a window that doesn't fit into 64 bits is none, and Python refuses to convert very long numbers.
# `recovery:parameters_set` or the first `recovery:metrics_updated` (qlog 0.3), as stacks spell them.
_QLOG_WINDOW = re.compile(r'"(?:initial_congestion_window|congestion_window|cwnd)"\s*:\s*"?(\d{1,18})(?!\d)')
_QLOG_CONTROLLER = re.compile(r'"(?:congestion_control(?:ler)?(?:_type|_algorithm)?|cc_algorithm)"\s*:\s*"([^"]+)"')
# Bytes: what windows count in until the path's MTU is known. RFC 9000 §14; 1280 B of IPv6 or IPv4; quic-go.
_DATAGRAMS = (1200, 1232, 1252, 1280)
# How far a first flight may be from the window that was asked for: packets of the handshake open it, or fill it.
_SLACK_SHARE, _SLACK_PACKETS = 0.15, 3
_BLOCKED_SHARE = 0.9  # of the time to the first ACK: who still sends then was held by his pacing, not by the window
_CLOSE_SHARE, _FAR_SHARE = 0.25, 0.5  # of what was asked: data packets per ACK that confirm it, and that refute it
_LIMIT_SHARE = 0.95  # of the client's flow control or of the file, from which on these may have ended the flight


def applied_lines(artifacts: Artifacts, roles: Iterable[str] = tuple(Role)) -> dict[str, str]:
    """The first line `applied: …` of each one's output, by role, without that word."""
    found: dict[str, str] = {}
    for role in map(str, roles):
        log = artifacts.folder / role / "output.log"
        match = _APPLIED.search(log.read_text(errors="replace")) if log.is_file() else None
        if match:
            found[role] = match[1].strip()
    return found


def readings(
    artifacts: Artifacts, evidence: Evidence, facts: TraceFacts | None, sample: Sample | None
) -> tuple[Reading, ...]:
    """Everything that could be read back, by role and parameter; and what was asked for but can't be read anywhere."""
    lines = applied_lines(artifacts)
    found: list[Reading] = []
    for role, endpoint in (("client", evidence.client), ("server", evidence.server)):
        asked = {name: endpoint.environment.get(name, "") for name in _PARAMETERS.values()}
        mine = list(_of_output(role, lines.get(role, ""), asked))
        flight = facts.first_flight if facts is not None and role == "server" else None
        mine += _of_qlog(role, artifacts.folder / role / "qlog", asked, flight)
        if flight is not None and facts is not None:
            mine.append(_of_flight(flight, facts, asked["IW"]))
        if role == "client" and asked["ACK_FREQUENCY"] and sample is not None and sample.ack_ratio:
            mine.append(_of_acks(sample.ack_ratio, asked["ACK_FREQUENCY"]))
        silent = [name for name, value in asked.items() if value and all(one.parameter != name for one in mine)]
        found += [*mine, *(Reading(role=role, parameter=name, asked=asked[name]) for name in silent)]
    return tuple(found)


def _of_output(role: str, line: str, asked: dict[str, str]) -> Iterator[Reading]:
    """What the image itself says it applied."""
    for key, value in re.findall(r"(\w+)=(\S+)", line):
        if (name := _PARAMETERS.get(key)) is not None:
            holds = value == asked[name] if asked[name] else None
            yield Reading(role=role, parameter=name, asked=asked[name], found=value, source="output", holds=holds)


def _of_qlog(role: str, folder: Path, asked: dict[str, str], flight: FirstFlight | None) -> Iterator[Reading]:
    """The controller and the first congestion window of its first qlog that has one."""
    for path in log_files(folder):
        with open_log(path) as file:
            head = file.read(_QLOG_HEAD).decode(errors="replace")
        controller, window = _QLOG_CONTROLLER.search(head), _QLOG_WINDOW.search(head)
        if controller:
            holds = controller[1].lower() == asked["CCA"].lower() if asked["CCA"] else None
            yield Reading(
                role=role, parameter="CCA", asked=asked["CCA"], found=controller[1], source="qlog", holds=holds
            )
        if window:
            size = int(window[1])
            datagram = _datagram(size, flight)
            packets = size / datagram
            holds = abs(packets - int(asked["IW"])) < 1 + _SLACK_SHARE * packets if asked["IW"] else None
            yield Reading(
                role=role,
                parameter="IW",
                asked=asked["IW"],
                found=f"{packets:.0f}",
                source="qlog",
                holds=holds,
                detail=f"first congestion window {size:,} B, in packets of {datagram:,} B",
            )
        if controller or window:
            return


def _datagram(window: int, flight: FirstFlight | None) -> int:
    """The size of the packets that `window` counts in: of those in the trace or in use, the first that divides it."""
    sizes: tuple[int, ...] = (*((flight.datagram_bytes,) if flight is not None else ()), *_DATAGRAMS)
    whole = [size for size in sizes if window % size == 0]
    return whole[0] if whole else sizes[0]


def _of_flight(flight: FirstFlight, facts: TraceFacts, asked: str) -> Reading:
    """The initial window as the first flight shows it. A smaller flight contradicts only when nothing else ended it."""
    wanted, seen = int(asked or 0), flight.full_packets
    slack = _SLACK_SHARE * wanted + _SLACK_PACKETS
    ended = _what_ended(flight, facts)
    holds: bool | None = abs(seen - wanted) <= slack if asked else None
    if asked and seen < wanted - slack and ended:
        holds = None
    detail = f"{flight.bytes:,} B in {flight.packets} packets, within {flight.duration * 1e3:.1f} ms"
    return Reading(
        role="server",
        parameter="IW",
        asked=asked,
        found=f"{seen:.0f}",
        source="first flight",
        holds=holds,
        detail=f"{detail}; {ended}" if ended else detail,
    )


def _what_ended(flight: FirstFlight, facts: TraceFacts) -> str:
    """What else than the congestion window may have ended the flight; empty: nothing."""
    connection = next((one for one in facts.connections if one.request_streams), None)
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


def _of_acks(ratio: float, asked: str) -> Reading:
    """Data packets per ACK of the client. Out-of-order packets and the end of a transfer are acknowledged at once."""
    seen, wanted = 1 / ratio, int(asked)
    holds = True if abs(seen - wanted) <= _CLOSE_SHARE * wanted else False if seen < _FAR_SHARE * wanted else None
    return Reading(
        role="client",
        parameter="ACK_FREQUENCY",
        asked=asked,
        found=f"{seen:.1f}",
        source="ACKs on the wire",
        holds=holds,
        detail="data packets per packet with an ACK, over the whole transfer",
    )
