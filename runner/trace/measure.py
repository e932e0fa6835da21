"""Computes the numbers of one iteration from its recording, by the formulas of `runner.model.numbers`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from runner.decode.schema import CLIENT, SERVER, Trace
from runner.model.link_record import LinkParameters
from runner.model.numbers import DEFINITIONS
from runner.model.result import Sample
from runner.trace.bounds import slow_start_bound
from runner.trace.rtt import one_way_delays, rtt_samples
from runner.trace.trace_facts import TraceFacts
from runner.trace.transfer import Transfer
from runner.trace.vantage import APPLICATION, NULL, Recording

_STEADY_FROM, _STEADY_TO = 0.50, 0.95  # parts of the response's bytes


def sample(
    client_side: Trace | None,
    server_side: Trace | None,
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
    transfer = Transfer(Recording(client_side, server_side))
    recording = transfer.recording
    file_size = sum(file_sizes)
    first_1rtt, last_1rtt = _server_1rtt(recording)
    ttfb, ttlb, complete = _reception(transfer, file_sizes)
    goodput = None
    if complete and first_1rtt is not None and last_1rtt is not None and last_1rtt > first_1rtt:
        goodput = 8 * file_size / (last_1rtt - first_1rtt)
    steady = _steady_goodput(transfer) if complete else None
    rtts = rtt_samples(recording.server).rtt if recording.server else np.empty(0)
    rtt_min = float(rtts.min()) if len(rtts) else None
    delays = one_way_delays(recording) if recording.one_clock else np.empty(0)
    window, flight = transfer.initial_window_bytes, facts.first_flight
    efficiency = goodput / forward.data_rate if goodput is not None else None
    sent, unique, retransmitted, spurious = _sent(transfer)
    measured = Sample(
        file_size=file_size,
        definitions=DEFINITIONS,
        goodput=goodput,
        efficiency=efficiency,
        efficiency_exact=goodput / (forward.data_rate * (1 - forward.loss)) if goodput and forward.loss < 1 else None,
        slow_start_bound=_slow_start(file_size, forward, return_, rtt_min, window),
        steady_state_efficiency=steady / forward.data_rate if steady is not None else None,
        first_server_1rtt=first_1rtt,
        last_server_1rtt=last_1rtt,
        handshake_time=_earliest(connection.handshake_confirmed for connection in facts.connections),
        ttfb=ttfb,
        ttlb=ttlb if complete else None,
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
    return measured.completed(forward.data_rate)


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
    goodput = 8 * old.file_size / (last - first)
    exact = forward.data_rate * (1 - forward.loss)
    return replace(
        old,
        definitions=DEFINITIONS,
        goodput=goodput,
        efficiency=goodput / forward.data_rate,
        efficiency_exact=goodput / exact if exact else None,
        last_server_1rtt=last,
    ).completed(forward.data_rate)


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


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


def _steady_goodput(transfer: Transfer) -> float | None:
    """The goodput in bit/s between the times when 50 % and 95 % of the response's bytes had arrived."""
    received = transfer.received
    if received is None:
        return None
    arrived = np.cumsum(received.new)
    first, last = (int(np.searchsorted(arrived, share * arrived[-1])) for share in (_STEADY_FROM, _STEADY_TO))
    time = (received.time_ns[last] - received.time_ns[first]) / 1e9
    return float(8 * (arrived[last] - arrived[first]) / time) if time > 0 else None


def _slow_start(
    file_size: int, forward: LinkParameters, return_: LinkParameters, rtt_min: float | None, window: int | None
) -> float | None:
    """The efficiency of the slow-start bound. A real link has no configured delay, so its smallest measured RTT is
    used."""
    rtt = forward.delay + return_.delay or rtt_min
    if not window or rtt is None or file_size <= 0:
        return None
    bound = slow_start_bound(file_size=file_size, data_rate=forward.data_rate, rtt=rtt, initial_window=window)
    return bound.efficiency


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
