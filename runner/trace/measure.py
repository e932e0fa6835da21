"""Computes the numbers of one iteration from its recording, by the formulas of `runner/model/numbers.toml`, and the
plots of `series.json`."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from runner.decode.columns import CLIENT, NULL, SERVER, Trace
from runner.files import log_files, open_log
from runner.model.facts import FirstFlight, TraceFacts
from runner.model.link import LinkParameters
from runner.model.result import DEFINITIONS, Sample
from runner.model.stack import HTTP09
from runner.trace.recording import APPLICATION, Bools, Ints, Recording, Vantage, find, packet_key
from runner.trace.streams import StreamData, Transfer, first_acknowledged

# Round-trip and one-way times of packets.


@dataclass(frozen=True)
class RttSamples:
    """One sample per ACK that newly acknowledged its largest packet (RFC 9002 §5.1), in the capture's order."""

    time_ns: Ints
    """Time in ns when the ACK passed the vantage point."""
    connection: Ints
    rtt: NDArray[np.float64]
    """Seconds from packet to ACK at one vantage point; the receiver's ACK delay is not subtracted."""


def rtt_samples(vantage: Vantage) -> RttSamples:
    """RTT samples of the server's 1-RTT packets. They are meaningful only at the vantage point of the server."""
    acks, packets = vantage.ack_frames, vantage.packets
    eliciting = vantage.eliciting & packets.named("type", "1rtt") & (packets["sender"] == SERVER)
    rows = np.flatnonzero((acks["sender"] == CLIENT) & (vantage.ack_space == APPLICATION) & (acks["connection"] >= 0))
    rows = rows[_newly_largest(acks["connection"][rows], acks["largest"][rows])]
    keys = np.where(eliciting, vantage.packet_key, NULL)
    acknowledged = packet_key(acks["connection"][rows], SERVER, APPLICATION, acks["largest"][rows])
    places = find(keys, acknowledged)
    rows, places = rows[places != NULL], places[places != NULL]
    rtt = (acks["time_ns"][rows] - vantage.packet_time[places]) / 1e9
    sane = rtt >= 0
    return RttSamples(time_ns=acks["time_ns"][rows][sane], connection=acks["connection"][rows][sane], rtt=rtt[sane])


def _newly_largest(connection: Ints, largest: Ints) -> Bools:
    """Per ACK: whether it acknowledges a higher packet number than every earlier ACK of its connection."""
    newly = np.zeros(len(largest), dtype=bool)
    for number in np.unique(connection):
        mine = np.flatnonzero(connection == number)
        highest = np.maximum.accumulate(largest[mine])
        newly[mine] = np.append(True, highest[1:] > highest[:-1])
    return newly


def one_way_delays(recording: Recording) -> NDArray[np.float64]:
    """The delay in seconds of every 1-RTT packet of the server that is in both captures. Empty when a capture is
    missing. When `Recording.one_clock` is False, the values contain the difference of the two clocks."""
    server, client, arrival = recording.server, recording.client, recording.arrival
    if server is None or client is None or arrival is None:
        return np.empty(0)
    chosen = server.packets.named("type", "1rtt") & (server.packets["sender"] == SERVER) & (arrival != NULL)
    delay: NDArray[np.float64] = (client.packet_time[arrival[chosen]] - server.packet_time[chosen]) / 1e9
    return delay


# Bounds that no sender exceeds on a link: the data rate itself, and ideal slow start from an initial window.

Line = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The fastest possible reception. `time` in seconds. `line`: a polyline of points (seconds since the first byte
    could arrive, received bytes)."""

    time: float
    efficiency: float
    line: Line


def rate_bound(*, file_size: int, way: LinkParameters, begin: float = 0.0) -> Bound:
    """The bound of a link that is full from the first byte to the last, without headers. `file_size` in bytes. `begin`:
    the time when the link gets the first byte, in seconds after its first packet."""
    line = [(0.0, 0.0), *_carried(way, begin, file_size)]
    return Bound(time=line[-1][0], efficiency=1.0, line=tuple(line))


def _carried(way: LinkParameters, begin: float, size: float) -> Iterator[tuple[float, float]]:
    """The points (seconds after `begin`, bytes) at which the data rate changes while `size` bytes cross a full link,
    and the point at which all have crossed. That time is infinity when the link stops for ever."""
    carried = 0.0
    for start, stop, rate in way.steps(begin):
        if carried + rate / 8 * (stop - start) >= size if rate else carried >= size:
            yield start - begin + (8 * (size - carried) / rate if rate else 0.0), size
            return
        carried += rate / 8 * (stop - start) if rate else 0.0
        yield stop - begin, carried


def slow_start_bound(
    *, file_size: int, way: LinkParameters, rtt: float, initial_window: int, begin: float = 0.0
) -> Bound:
    """The bound of ideal slow start (RFC 9002 §7.3.1), without loss, headers and limits of the receiver.

    RTT round k begins k RTTs after the first byte and carries `initial_window` · 2^k bytes at the link's data rate. As
    soon as a window fills a round, data flows without a gap. `efficiency` is the mean data rate between the first byte
    and the last, divided by the mean data rate of the link in that time. Sizes in bytes, `rtt` in seconds; `begin` as
    in `rate_bound`. Raises ValueError when a value is not positive; only `rtt` may be 0.
    """
    if file_size <= 0 or way.data_rate <= 0 or rtt < 0 or initial_window <= 0:
        raise ValueError("file size, data rate and initial window must be positive, the RTT at least 0")
    now, sent, window = 0.0, 0.0, float(initial_window)
    line = [(0.0, 0.0)]
    while sent + window < file_size:
        points = list(_carried(way, begin + now, window))
        if points[-1][0] >= rtt:
            break
        line += [(now + time, sent + size) for time, size in points]
        sent, now, window = sent + window, now + rtt, 2 * window
        line.append((now, sent))
    line += [(now + time, sent + size) for time, size in _carried(way, begin + now, file_size - sent)]
    time = line[-1][0]
    efficiency = 8 * file_size / time / way.mean_rate(begin, begin + time) if math.isfinite(time) else 0.0
    return Bound(time=time, efficiency=efficiency, line=(*line[:-1], (time, float(file_size))))


_STEADY_FROM, _STEADY_TO = 0.50, 0.95  # parts of the response's bytes


def sample(
    transfer: Transfer,
    facts: TraceFacts,
    *,
    file_sizes: Sequence[int],
    forward: LinkParameters,
    return_: LinkParameters,
) -> Sample:
    """The numbers of one iteration. A number is None when these captures don't show it.

    `file_sizes` in bytes. Several files count as one transfer, from the start of the first connection to the end of the
    last connection.
    """
    recording = transfer.recording
    file_size = sum(file_sizes)
    first_1rtt, last_1rtt = _server_1rtt(recording)
    ttfb, ttlb, complete = _reception(transfer, file_sizes)
    rtts = rtt_samples(recording.server).rtt if recording.server else np.empty(0)
    rtt_min = float(rtts.min()) if len(rtts) else None
    delays = one_way_delays(recording) if recording.one_clock else np.empty(0)
    window, flight = transfer.initial_window_bytes, facts.first_flight
    sent, unique, retransmitted, spurious = _sent(transfer)
    rtt = forward.delay + return_.delay or rtt_min  # a real link has no configured delay
    bound = _slow_start(file_size, forward, rtt, window, ttfb)
    confirmed = [connection.handshake_confirmed for connection in facts.connections]
    measured = Sample(
        file_size=file_size,
        definitions=DEFINITIONS,
        slow_start_bound=bound.efficiency if bound is not None else None,
        steady_state_efficiency=_steady_efficiency(transfer, forward) if complete else None,
        first_server_1rtt=first_1rtt,
        last_server_1rtt=last_1rtt,
        handshake_time=min((time for time in confirmed if time is not None), default=None),
        ttfb=ttfb,
        ttlb=ttlb if complete else None,
        **_first_bytes(transfer),
        initial_window_bytes=window,
        first_flight_packets=flight.full_packets if flight is not None else None,
        return_data_rate=_return_data_rate(recording, first_1rtt, ttlb),
        ack_ratio=_ack_ratio(transfer),
        retransmission_ratio=sent / unique - 1 if sent is not None and unique else None,
        retransmitted_bytes=retransmitted,
        spurious_bytes=spurious,
        stream_bytes_sent=sent,
        rtt_min=rtt_min,
        rtt_median=float(np.median(rtts)) if len(rtts) else None,
        one_way_delay_median=float(np.median(delays)) if len(delays) else None,
        data_packets=_data_packets(transfer),
        lost_packets=_lost_packets(transfer),
    )
    whole = (_with_goodput(measured, forward) if complete else measured).completed(_link_rate(measured, forward))
    if bound is not None and whole.delivery_rate is not None:
        whole = replace(whole, efficiency_of_bound=whole.delivery_rate * bound.time / (8 * file_size))
    return whole


def _link_rate(sample: Sample, forward: LinkParameters) -> float:
    """The mean data rate of the forward link, in bit/s, until the last new byte arrived."""
    return forward.mean_rate(0.0, sample.ttlb - forward.delay) if sample.ttlb is not None else forward.data_rate


def _with_goodput(sample: Sample, forward: LinkParameters) -> Sample:
    """The sample with the goodput of a complete transfer, from the times of the server's 1-RTT packets."""
    first, last = sample.first_server_1rtt, sample.last_server_1rtt
    if first is None or last is None or last <= first:
        return sample
    data_rate = forward.mean_rate(first - forward.delay, last - forward.delay)
    goodput, exact = 8 * sample.file_size / (last - first), data_rate * (1 - forward.loss)
    return replace(
        sample,
        goodput=goodput,
        efficiency=goodput / data_rate if data_rate else None,
        efficiency_exact=goodput / exact if exact else None,
    )


def from_headers(sample: Sample, forward: LinkParameters) -> Sample:
    """The numbers of a complete transfer that need no secrets: those that come from the server's 1-RTT packets."""
    known = Sample(
        file_size=sample.file_size,
        definitions=sample.definitions,
        first_server_1rtt=sample.first_server_1rtt,
        last_server_1rtt=sample.last_server_1rtt,
    )
    return _with_goodput(known, forward)


def _server_1rtt(recording: Recording) -> tuple[float | None, float | None]:
    """The times when the first and the last 1-RTT packet of the server passed the client's vantage point.

    Every packet with a short header counts, even when it has no stream data or can't be read. The public interop runner
    counts the same packets.
    """
    client = recording.client
    if client is None:
        return None, None
    times = client.packet_time[(client.packets["sender"] == SERVER) & client.packets.named("type", "1rtt")]
    if not len(times):
        return None, None
    return recording.seconds(int(times.min())), recording.seconds(int(times.max()))


def renewed(old: Sample, client_side: Trace, forward: LinkParameters) -> Sample:
    """A sample with older definitions, after goodput and the numbers that depend on it were computed again."""
    first, last = _server_1rtt(Recording(client_side, None))
    if old.goodput is None:  # an incomplete transfer has no goodput by any definition
        return replace(old, definitions=DEFINITIONS, last_server_1rtt=last)
    if first is None or last is None or last <= first:
        return old
    known = replace(old, definitions=DEFINITIONS, first_server_1rtt=first, last_server_1rtt=last)
    return _with_goodput(known, forward).completed(_link_rate(known, forward))


def _reception(transfer: Transfer, file_sizes: Sequence[int]) -> tuple[float | None, float | None, bool]:
    """The times of the first and the last new byte at the client's vantage point, and whether all files arrived
    completely.

    The files are the longest streams that arrived without a gap up to their FIN, because a browser also requests other
    objects. Over HTTP/3, the streams also contain the framing (RFC 9114 §7.1), so they are longer than the files.
    """
    received, size = transfer.received, transfer.layout.size
    if received is None:
        return None, None, False
    fresh = received.new > 0
    if not fresh.any():
        return None, None, False
    finished = np.zeros(len(size), dtype=bool)
    finished[received.stream[received.fin]] = True
    unique = np.bincount(received.stream, weights=received.new, minlength=len(size))
    whole = np.flatnonzero(finished & (unique == size))
    files = whole[np.argsort(-size[whole], kind="stable")][: len(file_sizes)]
    of_files = fresh & np.isin(received.stream, files)
    complete = bool(of_files.any() and size[files].sum() >= sum(file_sizes))
    times = received.time_ns[of_files if complete else fresh]
    seconds = transfer.recording.seconds
    return seconds(int(times.min())), seconds(int(times.max())), complete


def _first_bytes(transfer: Transfer) -> dict[str, float | None]:
    """The times until the first 2, 10 and 100 MB of response data had arrived, as far as they did; the same for the
    second connection, from its own first packet on."""
    received, recording = transfer.received, transfer.recording
    if received is None or recording.client is None or recording.origin_ns is None:
        return {}
    times = _megabytes("first", received.time_ns - recording.origin_ns, received.new, (2, 10, 100))
    connections = list(dict.fromkeys(received.connection[np.argsort(received.time_ns, kind="stable")].tolist()))
    if len(connections) < 2:
        return times
    packets = recording.client.packets
    mine = (packets["connection"] == connections[1]) & (packets["sender"] == CLIENT)
    begin = int(recording.client.packet_time[mine].min())
    again = received.connection == connections[1]
    fresh = (received.connection == connections[0]) & (received.new > 0)
    pause = (begin - int(received.time_ns[fresh].max())) / 1e9 if fresh.any() else None
    return (
        times
        | _megabytes("repeat", received.time_ns[again] - begin, received.new[again], (2, 10))
        | {"repeat_pause": pause}
    )


def _megabytes(name: str, time_ns: Ints, new: Ints, sizes: Sequence[int]) -> dict[str, float | None]:
    """The seconds until each of `sizes` (MB) of `new` bytes had arrived, as far as they did."""
    order = np.argsort(time_ns, kind="stable")
    arrived, times = np.cumsum(new[order]), time_ns[order]
    places = {size: int(np.searchsorted(arrived, size * 1_000_000)) for size in sizes}
    return {f"{name}_{size}_mb": int(times[at]) / 1e9 for size, at in places.items() if at < len(arrived)}


def _steady_efficiency(transfer: Transfer, forward: LinkParameters) -> float | None:
    """Goodput divided by the link's mean data rate, between the times when 50 % and 95 % of the response's bytes had
    arrived."""
    received = transfer.received
    if received is None:
        return None
    arrived = np.cumsum(received.new)
    first, last = (int(np.searchsorted(arrived, share * arrived[-1])) for share in (_STEADY_FROM, _STEADY_TO))
    begin, end = (transfer.recording.seconds(int(received.time_ns[index])) for index in (first, last))
    if begin is None or end is None or end <= begin:
        return None
    rate = forward.mean_rate(begin - forward.delay, end - forward.delay)
    return float(8 * (arrived[last] - arrived[first]) / (end - begin) / rate) if rate else None


def _slow_start(
    file_size: int, forward: LinkParameters, rtt: float | None, window: int | None, ttfb: float | None
) -> Bound | None:
    """The slow-start bound of a transfer whose first byte arrived after `ttfb` seconds; None when the link stopped for
    ever."""
    if not window or rtt is None or ttfb is None or file_size <= 0:
        return None
    begin = ttfb - forward.delay
    bound = slow_start_bound(file_size=file_size, way=forward, rtt=rtt, initial_window=window, begin=begin)
    return bound if bound.efficiency else None


def _sent(transfer: Transfer) -> tuple[int | None, int | None, int | None, int | None]:
    """Response bytes that the server sent: (all, unique, repeated, spurious)."""
    if transfer.sent is None or transfer.resent is None or not transfer.sent_completely:
        return None, None, None, None
    repeated, spurious = (int(counts.sum()) for counts in transfer.resent)
    total = int(transfer.sent.length.sum())
    return total, total - repeated, repeated, spurious if transfer.arrived is not None else None


def _return_data_rate(recording: Recording, begin: float | None, end: float | None) -> float | None:
    """The data rate, in bit/s, of the IP packets that the client sent between `begin` and `end`."""
    if recording.client is None or recording.origin_ns is None or begin is None or end is None or end <= begin:
        return None
    datagrams = recording.client.datagrams
    time = (datagrams["time_ns"] - recording.origin_ns) / 1e9
    during = (datagrams["sender"] == CLIENT) & (time >= begin) & (time <= end)
    return float(8 * datagrams["ip_length"][during].sum() / (end - begin))


def _ack_ratio(transfer: Transfer) -> float | None:
    """The number of the client's packets with an ACK of application data, divided by the number of packets with
    response data that reached the client before it closed the connection. Later packets are not acknowledged (RFC 9000
    §10.2)."""
    client, received = transfer.recording.client, transfer.received
    if client is None or received is None:
        return None
    acks = client.ack_frames
    mine = (acks["sender"] == CLIENT) & (client.ack_space == APPLICATION)
    closed = np.full(len(transfer.recording.connections), np.iinfo(np.int64).max)
    closes = client.frames.named("name", "connection_close", "application_close")
    closes &= (client.frames["sender"] == CLIENT) & (client.frames["connection"] >= 0)
    np.minimum.at(closed, client.frames["connection"][closes], client.frames["time_ns"][closes])
    open_ = received.time_ns <= closed[received.connection]
    packets = len(np.unique(received.packet[open_]))
    return len(np.unique(acks["packet"][mine])) / packets if packets else None


def _data_packets(transfer: Transfer) -> int | None:
    if transfer.sent is None or not transfer.sent_completely:
        return None
    return len(np.unique(transfer.sent.packet))


def _lost_packets(transfer: Transfer) -> int | None:
    """The number of the server's packets that are not in the client's capture. Packets that may have arrived after the
    last datagram of this capture don't count."""
    recording = transfer.recording
    client, server, arrival = recording.client, recording.server, recording.arrival
    if client is None or server is None or arrival is None or not transfer.sent_completely:
        return None
    sent = (server.packets["sender"] == SERVER) & (server.packet_key != NULL)
    delays = one_way_delays(recording)
    if len(delays):
        # The clocks of both captures may differ. The smallest difference of times belongs to the fastest packet.
        end = client.datagrams["time_ns"].max() - round(1e9 * delays.min())
        sent &= server.packet_time <= end
    return int((arrival[sent] == NULL).sum())


# The packets that a server sends before the first ACK can arrive: the initial window on the wire (RFC 9002 §7.2).

_LEAST_DATAGRAM = 1200  # bytes of UDP payload that every path carries (RFC 9000 §14)


def first_flight(transfer: Transfer) -> FirstFlight | None:
    """The first flight of the first connection with response data, at the server's vantage point.

    The flight begins when the first request arrives, because the client may acknowledge earlier packets (tickets,
    connection IDs, settings) together with the request. It ends before the first ACK for one of its packets arrives.
    None when the capture at the server is missing or lacks packets.

    RFC 9002 §7.2 recommends a window of 10 · max_datagram_size, at most 14 720 B or twice max_datagram_size if that is
    more. The flight differs from the window for three reasons. Flow control or the file may be smaller than the window.
    Pacing may spread the flight over more than an RTT. Handshake bytes use a part of the window until they are
    acknowledged, and then they enlarge it.
    """
    server, sent = transfer.recording.server, transfer.sent
    if server is None or sent is None or not transfer.sent_completely:
        return None
    connection = int(sent.connection[0])
    of_connection = sent.connection == connection
    first_data = int(sent.time_ns[of_connection].min())
    begin = _request(server, connection, first_data)
    packets = server.packets
    mine = (packets["sender"] == SERVER) & (packets["connection"] == connection) & packets.named("type", "1rtt")
    mine &= server.eliciting & (packets["packet_number"] != NULL) & (server.packet_time >= begin)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    acknowledged = first_acknowledged(server, connection, rows)
    if acknowledged is not None:
        rows = rows[server.packet_time[rows] < acknowledged]
        of_connection &= sent.time_ns < acknowledged
    if not len(rows):
        return None
    size = server.datagrams["payload_length"][np.unique(packets["datagram"][rows])]
    full = size[size >= _LEAST_DATAGRAM]
    return FirstFlight(
        packets=len(rows),
        bytes=int(packets["length"][rows].sum()),
        datagram_bytes=int(np.median(full)) if len(full) else _LEAST_DATAGRAM,
        response_bytes=int(sent.new[of_connection].sum()),
        duration=(int(server.packet_time[rows].max()) - first_data) / 1e9,
        acknowledged=(acknowledged - first_data) / 1e9 if acknowledged is not None else None,
    )


def _request(server: Vantage, connection: int, default: int) -> int:
    """The time when the first request arrived, in ns; at most `default`, which is also used without a request."""
    frames = server.stream_frames
    requests = (frames["connection"] == connection) & (frames["sender"] == CLIENT) & (frames["stream_id"] % 4 == 0)
    return min(int(frames["time_ns"][requests].min()), default) if requests.any() else default


# Converts a recording to `series.json`: the plots of a job as small integers. `series` describes the format.

SERIES_SCHEMA = 1

_MAX_BINS = 600
_INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_SPARK_POINTS = 40
# A plot is only about 2000 pixels wide, so adjacent frames are joined when there are more than `_MAX_FRAMES`.
_MAX_FRAMES = 20_000
_JOIN_SHARE = 2000


def series(
    transfer: Transfer,
    facts: TraceFacts,
    sample: Sample,
    *,
    file_sizes: Sequence[int],
    forward: LinkParameters,
    return_: LinkParameters,
) -> dict[str, Any]:
    """The content of `series.json`.

    - `origin_unix_ns`: the time of the client's first Initial packet at the client's vantage point.
    - `files`: sizes of the response streams (over HTTP/3 with their framing). On the axis of offsets, the streams
      follow each other without gaps.
    - `client`, `server`: the frames with response data that passed each vantage point. `t_us` since the origin,
      `offset` on this axis, `length`, `kind` (0 new, 1 retransmission, 2 spurious retransmission).
    - `lost`: frames that never reached the client.
    - `rate`: bit/s per bin of `interval_s` at the client.
    - `marks`: times of events in seconds since the origin.
    - `bounds`: the best possible reception at the client over this link, from the request's arrival at the server on.
    - `spark`: points of a small curve: per mille of the time, per mille of the bytes.

    Lists named `t_us` and `offset` are delta-coded.
    """
    origin = _origin(transfer)
    asked = [stream.request for connection in facts.connections for stream in connection.request_streams]
    request = min((time for time in asked if time is not None), default=None)
    return {
        "schema": SERIES_SCHEMA,
        "origin_unix_ns": origin,
        "file_size": sum(file_sizes),
        "files": _stream_sizes(transfer, facts) or list(file_sizes),
        "client": _vantage(transfer.received, transfer.received_kind, origin),
        "server": _vantage(transfer.sent, transfer.sent_kind, origin),
        "lost": _lost(transfer, origin),
        "rate": _rate(transfer, origin),
        "marks": {
            "first_server_1rtt": sample.first_server_1rtt,
            "handshake_confirmed": sample.handshake_time,
            "request": request,
            "ttfb": sample.ttfb,
            "ttlb": sample.ttlb,
        },
        "bounds": _bounds(transfer, sample, request, forward=forward, return_=return_),
        "spark": _spark(transfer, origin),
    }


def _origin(transfer: Transfer) -> int:
    """The recording's origin. When it is unknown, the time of the first datagram in the captures; 0 when there is no
    datagram."""
    if transfer.recording.origin_ns is not None:
        return transfer.recording.origin_ns
    first = [
        int(vantage.datagrams["time_ns"].min()) for vantage in transfer.recording.vantages if len(vantage.datagrams)
    ]
    return min(first, default=0)


def _stream_sizes(transfer: Transfer, facts: TraceFacts) -> list[int]:
    """The size of each response stream in bytes, when streams contain framing besides the files. Empty when each stream
    is exactly a file."""
    framed = any(connection.alpn not in (None, HTTP09) for connection in facts.connections)
    sizes: list[int] = transfer.layout.size.tolist() if framed else []
    return sizes


def _microseconds(time_ns: Ints, origin: int) -> Ints:
    return (time_ns - origin) // 1000


def delta(values: Ints) -> list[int]:
    """Delta coding: the first value, then differences."""
    coded: list[int] = np.diff(values, prepend=0).tolist()
    return coded


def _vantage(data: StreamData | None, kind: Ints | None, origin: int) -> dict[str, list[int]]:
    if data is None or kind is None:
        return {"t_us": [], "offset": [], "length": [], "kind": []}
    filled = data.length > 0
    time, start, length, kind = (
        column[filled] for column in (_microseconds(data.time_ns, origin), data.start, data.length, kind)
    )
    if len(time) > _MAX_FRAMES:
        time, start, length, kind = _join(time, start, length, kind)
    return {"t_us": delta(time), "offset": delta(start), "length": length.tolist(), "kind": kind.tolist()}


def _join(time: Ints, start: Ints, length: Ints, kind: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Join adjacent frames of the same kind whose times are in the same pixel."""
    pixel = max(1, int(time[-1] - time[0]) // _JOIN_SHARE)
    follows = (start[1:] == start[:-1] + length[:-1]) & (kind[1:] == kind[:-1])
    follows &= time[1:] // pixel == time[:-1] // pixel
    heads = np.flatnonzero(np.append(True, ~follows))
    return time[heads], start[heads], np.add.reduceat(length, heads), kind[heads]


def _lost(transfer: Transfer, origin: int) -> dict[str, list[int]]:
    data, arrived = transfer.sent, transfer.arrived
    if data is None or arrived is None:
        return {"t_us": [], "offset": []}
    chosen = ~arrived & (data.length > 0)
    return {"t_us": delta(_microseconds(data.time_ns[chosen], origin)), "offset": delta(data.start[chosen])}


def _rate(transfer: Transfer, origin: int) -> dict[str, object]:
    """Data rates at the client's vantage point, up to the last datagram of response data (without such data, up to the
    last datagram)."""
    client = transfer.recording.client
    if client is None or not len(client.datagrams):
        return {"interval_s": _INTERVALS[0], "forward_raw": [], "forward_goodput": [], "return_raw": []}
    datagrams = client.datagrams
    time = (datagrams["time_ns"] - origin) / 1e9
    data = transfer.received
    end = float(time.max()) if data is None or not len(data.time_ns) else int(data.time_ns.max() - origin) / 1e9
    interval = next((step for step in _INTERVALS if end / step <= _MAX_BINS - 1), max(end / (_MAX_BINS - 1), 0.1))
    bins = max(0, int(end / interval)) + 1

    def rates(times: NDArray[np.float64], sizes: Ints) -> list[int]:
        index = np.floor(times / interval).astype(np.int64)
        inside = (index >= 0) & (index < bins)
        sums = np.bincount(index[inside], weights=sizes[inside], minlength=bins)
        bits_per_second: list[int] = np.rint(8 * sums / interval).astype(np.int64).tolist()
        return bits_per_second

    forward, back = datagrams["sender"] == SERVER, datagrams["sender"] == CLIENT
    goodput = rates((data.time_ns - origin) / 1e9, data.new) if data is not None else [0] * bins
    return {
        "interval_s": interval,
        "forward_raw": rates(time[forward], datagrams["ip_length"][forward]),
        "forward_goodput": goodput,
        "return_raw": rates(time[back], datagrams["ip_length"][back]),
    }


def _bounds(
    transfer: Transfer, sample: Sample, request: float | None, *, forward: LinkParameters, return_: LinkParameters
) -> dict[str, object]:
    """The link's bounds as polylines. A polyline begins when the request reaches the server. Each byte needs the
    forward delay to reach the client."""
    rtt = forward.delay + return_.delay or sample.rtt_min
    window = sample.initial_window_bytes
    begin = _request_at_server(transfer, request, return_)
    ideal: list[list[float]] = []
    slow_start: list[list[float]] = []
    size = sample.file_size
    if begin is not None and size > 0:
        delay = forward.delay or sample.one_way_delay_median or 0.0
        ideal = _shift(rate_bound(file_size=size, way=forward, begin=begin).line, begin, delay)
        if rtt is not None and window:
            bound = slow_start_bound(file_size=size, way=forward, rtt=rtt, initial_window=window, begin=begin)
            slow_start = _shift(bound.line, begin, delay)
    return {
        "forward_rate": forward.data_rate,
        "rtt": rtt,
        "initial_window_bytes": window,
        "ideal": ideal,
        "slow_start": slow_start,
    }


def _request_at_server(transfer: Transfer, request: float | None, return_: LinkParameters) -> float | None:
    """The time when the first request passed the server's vantage point. When the captures don't show this time, the
    time of the request at the client plus the return delay. An upload begins with its first byte."""
    server = transfer.recording.server
    if transfer.recording.upload:
        sent = transfer.sent
        return transfer.recording.seconds(int(sent.time_ns.min())) if sent is not None and len(sent.time_ns) else None
    if server is not None and transfer.recording.one_clock:
        frames = server.stream_frames
        requests = frames["time_ns"][(frames["sender"] == CLIENT) & (frames["stream_id"] % 4 == 0)]
        if len(requests):
            return transfer.recording.seconds(int(requests.min()))
    return request + return_.delay if request is not None else None


def _shift(line: Line, begin: float, delay: float) -> list[list[float]]:
    return [
        [round(begin, 6), 0],
        *([round(begin + delay + time, 6), round(size)] for time, size in line if math.isfinite(time)),
    ]


def _spark(transfer: Transfer, origin: int) -> list[list[int]]:
    """The curve of unique bytes at the client, in 40 points. A point: per mille of the time since the origin, per mille
    of the bytes."""
    data = transfer.received
    if data is None or not data.new.any():
        return []
    fresh = data.new > 0
    time, size = data.time_ns[fresh] - origin, np.cumsum(data.new[fresh])
    grid = np.linspace(time[0], time[-1], _SPARK_POINTS)
    index = np.searchsorted(time, grid, side="right") - 1
    whole = max(int(time[-1]), 1)
    return [
        [round(1000 * at / whole), round(1000 * int(size[row]) / int(size[-1]))]
        for at, row in zip(grid.tolist(), index.tolist(), strict=True)
    ]


# Reads the congestion window from a server's qlog, because packets don't show the window.
#
# Formats: draft-ietf-quic-qlog-main-schema, as JSON-SEQ or as one JSON document; draft-ietf-quic-qlog-quic-events
# (`recovery:metrics_updated`), with the field names that stacks use. picoquic's events are arrays, as in
# draft-marx-qlog-main-schema-01.

_NAMES = ("congestion_window", "cwnd")
_TELLS = re.compile(rb'"(?:congestion_window|cwnd)"\s*:\s*"?(\d+)')
_MOST_WINDOW = 2**40  # bytes
_LONGEST_LINE = 1 << 20  # most bytes of a line; an event with a window has about a hundred
# Most bytes of a JSON document, which is read at once: in memory it is up to 25 times as long, and the judge has 1 GiB.
# A sequence is read line by line.
_LARGEST_DOCUMENT = 24 << 20
_SENT = "packet_sent"
_LATEST_MS = 4e12  # ms since 1970, the year 2096; in ns it fits into 64 bits


@dataclass(frozen=True)
class CongestionWindow:
    """The changes of the server's congestion window. `time_ns`: Unix times in ns, by the clock of the server's capture.
    `size`: the new windows in bytes."""

    time_ns: NDArray[np.int64]
    size: NDArray[np.int64]

    def at(self, moments_ns: NDArray[np.int64]) -> list[int | None]:
        """The window at each moment; None before the first known value."""
        index = np.searchsorted(self.time_ns, moments_ns, side="right") - 1
        return [None if value < 0 else int(self.size[value]) for value in index.tolist()]


def congestion_window(folder: Path, first_sent_ns: int) -> CongestionWindow | None:
    """The window of the connection with the largest qlog in `folder`. None when this qlog has
    no window.

    `first_sent_ns`: the time of the server's first datagram in the server's capture. The first sent packet of the qlog
    gets this time, because clocks of qlogs can't be trusted: quiche's clock differed by 2.7 s, and quinn's qlog has no
    absolute time. When the server sent a Retry that is not in the qlog, all times are one round trip too early.
    """
    files = log_files(folder)
    if not files:
        return None
    with open_log(max(files, key=lambda path: (path.stat().st_size, path.name))) as file:
        trace = _Trace()
        known = sorted(trace.windows(file), key=lambda sighting: sighting[0])
    if not known:
        return None
    first = known[0][0] if trace.first_sent_ms is None else trace.first_sent_ms
    time_ns = first_sent_ns + np.rint((np.array([place[0] for place in known]) - first) * 1e6).astype(np.int64)
    size = np.array([place[1] for place in known], dtype=np.int64)
    changes = np.flatnonzero(np.append(True, size[1:] != size[:-1]))
    return CongestionWindow(time_ns[changes], size[changes])


class _Trace:
    """One qlog while it is read. `first_sent_ms`: the time of the first sent packet."""

    def __init__(self) -> None:
        self.first_sent_ms: float | None = None
        self._scale = 1.0  # ms per unit of time

    def windows(self, file: BinaryIO) -> Iterator[tuple[float, int]]:
        """Time in ms and window in bytes of every event with a window."""
        for event in self._events(file):
            stamp, name, data = _members(event)
            time = (_number(stamp) or 0.0) * self._scale
            if stamp is None or abs(time) > _LATEST_MS:
                continue
            if self.first_sent_ms is None and str(name).endswith(_SENT):
                self.first_sent_ms = time
            sizes = [_number(data.get(name)) for name in _NAMES] if isinstance(data, dict) else []
            yield from ((time, int(size)) for size in sizes if size is not None and 0 < size < _MOST_WINDOW)

    def _events(self, file: BinaryIO) -> Iterator[Any]:
        """The events of the file. A JSON document gives all events. A sequence gives all events until a packet was
        sent, and then only events with a new window."""
        head = file.readline(_LONGEST_LINE)
        header = _parsed(head)
        if not isinstance(header, dict) or "traces" in header:
            document = header if isinstance(header, dict) else _parsed(head + file.read(_LARGEST_DOCUMENT))
            traces = document.get("traces") if isinstance(document, dict) else None
            if isinstance(traces, list) and traces and isinstance(traces[0], dict):
                self._describe(traces[0])
                events = traces[0].get("events")
                yield from events if isinstance(events, list) else ()
            return
        self._describe(header.get("trace"))
        before = b""
        while line := file.readline(_LONGEST_LINE):
            window = _TELLS.search(line)
            if self.first_sent_ms is None or (window is not None and window[1] != before):
                yield _parsed(line)
            if window is not None:
                before = window[1]

    def _describe(self, trace: Any) -> None:
        configuration = trace.get("configuration") if isinstance(trace, dict) else None
        if isinstance(configuration, dict) and configuration.get("time_units") == "us":
            self._scale = 1e-3


def _members(event: Any) -> tuple[Any, Any, Any]:
    """Time, name and data of an event. A missing value is None."""
    if isinstance(event, list) and len(event) == 4:
        return event[0], event[2], event[3]
    return (event.get("time"), event.get("name"), event.get("data")) if isinstance(event, dict) else (None, None, None)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text.lstrip(b"\x1e"))
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    """A finite number, also when it is written as a string; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
