"""Detectors of patterns that the client or the path causes: receive window, ACKs, ECN, queue, outage, MTU, late
data."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from runner.decode.columns import CLIENT, SERVER
from runner.diagnose.detectors import detector
from runner.diagnose.detectors.sender import detect_window_after_loss, held_after
from runner.diagnose.limits import Course
from runner.diagnose.path import LinkEvents
from runner.diagnose.transfer_view import EVIDENCE, View
from runner.model.result import Diagnosis, Limit, Pattern
from runner.trace.handshake import CE
from runner.trace.recording import APPLICATION
from runner.units import format_count, format_data_rate, format_duration, format_size

# Detector: the client's flow control held the server back (RFC 9000 §4.1).

_RECEIVE_WINDOW_LEAST_SHARE = 0.05


@detector(
    Pattern(
        "receive-window", "The client's flow control held the server back.", "RFC 9000 §4.1", over_tcp="RFC 9293 §3.8.6"
    )
)
def detect_receive_window(course: Course) -> Iterator[Diagnosis]:
    """Report when flow control was the limit for at least 5 % of the time, with fewer bytes in flight than the path
    holds."""
    spans = course.of_limit(Limit.RECEIVE_WINDOW)
    share = sum(span.end - span.start for span in spans) / course.duration
    if share < _RECEIVE_WINDOW_LEAST_SHARE:
        return
    slices, view = course.slices, course.view
    inside = slices.inside(spans)
    if not inside.any() or float(np.median(slices.in_flight[inside])) >= view.bdp:
        return
    most = float(slices.in_flight[inside].max())
    path = format_size(round(view.bdp)) if np.isfinite(view.bdp) else "more, because no packet had to wait"
    sentence = (
        f"The client's flow control held the server back in {share:.0%} of the time: "
        f"at most {format_size(round(most))} were in flight then, and the path holds {path}."
    )
    start, packets = spans[0].start, view.numbers_in(spans[0].start, spans[0].end)
    yield course.diagnosis("receive-window", sentence, start, spans[-1].end, share=share, packets=packets)


# Detector: the client sends an ACK for almost every packet, or its packets fill the return link (RFC 9000 §13.2.2).

_DENSE = 0.9  # ACKs per packet with data
_COSTLY = 0.1  # share of the return link
_FULL = 0.8
_RETURN_LINK_LEAST_SHARE = 0.05
_LEAST_CALM = 0.5  # share of the packets


@detector(
    Pattern("dense-acks", "The client sent too many ACKs for the return link.", "RFC 9000 §13.2.2, thesis §5.6.9.1"),
    Pattern(
        "return-link-full", "The return link was full.", "RFC 9000 §13.2.2, thesis §5.6.9.1", over_tcp="RFC 3449 §2"
    ),
)
def detect_return_link(course: Course) -> Iterator[Diagnosis]:
    """Dense ACKs: at least nine ACKs for ten packets, and the client uses at least 10 % of the return link. Full: the
    client uses at least 80 % of the return link in 5 % of the time. No diagnosis where the capacity of the return link
    is unknown."""
    view, slices = course.view, course.slices
    if not np.isfinite(view.return_rate):
        return
    used = slices.return_use
    ratio = _ratio(view)
    if ratio is not None and ratio >= _DENSE and used.mean() >= _COSTLY:
        sentence = (
            f"The client sent {ratio:.2f} ACKs per packet that didn't need an immediate ACK; all ACKs take "
            f"{used.mean():.0%} of the return link's {format_data_rate(round(view.return_rate))}."
        )
        proof: dict[str, Any] = {"packets": view.client_numbers(view.first_byte, view.last_byte), "vantage": "client"}
        share = float(used.mean())
        yield course.diagnosis("dense-acks", sentence, view.first_byte, view.last_byte, share=share, **proof)
    full = used >= _FULL
    share = float(full.mean()) * float(slices.edges[-1] - slices.edges[0]) / course.duration
    if share >= _RETURN_LINK_LEAST_SHARE:
        chosen = np.flatnonzero(full)
        start, end = float(slices.edges[chosen[0]]), float(slices.edges[chosen[-1] + 1])
        sentence = (
            f"In {share:.0%} of the time, the client used at least {_FULL:.0%} of the return link's "
            f"{format_data_rate(round(view.return_rate))}. The maximum was {used.max():.0%}."
        )
        proof = {"packets": view.client_numbers(start, end), "vantage": "client"}
        yield course.diagnosis("return-link-full", sentence, start, end, share=share, **proof)


def _ratio(view: View) -> float | None:
    """ACKs per packet, without the packets that need an immediate ACK and their ACKs. These are packets after a gap,
    out of order, or with CE (RFC 9000 §13.2.1). None when most packets need an immediate ACK."""
    client, ratio = view.client, view.sample.ack_ratio
    packets, rows = client.packets, view.numbered(client, SERVER)
    if ratio is None or not len(rows):
        return None
    number = packets["packet_number"][rows]
    expected = np.append(number[0], np.maximum.accumulate(number)[:-1] + 1)
    urgent = (number != expected) | (client.packet_ecn[rows] == CE)
    share = float(urgent.mean())
    return (ratio - share) / (1 - share) if share <= 1 - _LEAST_CALM else None


# Detector: one ACK acknowledges much of the window, so the server stands still until it comes (RFC 9000 §13.2.2).

_SPARSE_LEAST_SHARE = 0.2  # of the time, in which the congestion window was the limit
_MUCH = 0.4  # share of the bytes in flight that one ACK acknowledges
_SPARSE_LEAST_PACKETS = 10  # as many as an initial window, which a sender may send at once
_LEAST_ACKS = 10
_LEAST_BYTES = 0.5  # share of the bytes that were acknowledged while the window was the limit


@detector(
    Pattern(
        "sparse-acks",
        "One ACK acknowledged nearly half of the window.",
        "RFC 9000 §13.2.2, draft-ietf-quic-ack-frequency",
        over_tcp="RFC 3449 §4.2",
    )
)
def detect_sparse_acks(course: Course) -> Iterator[Diagnosis]:
    """Report when the congestion window was the limit for at least 20 % of the time, and half of the bytes that were
    acknowledged then came by ACKs of ten packets or more that were 40 % of the bytes in flight."""
    view, spans, flight = course.view, course.of_limit(Limit.CONGESTION_WINDOW), course.view.flight
    share = sum(span.end - span.start for span in spans) / course.duration
    if share < _SPARSE_LEAST_SHARE:
        return
    known = np.isfinite(flight.acked)
    at, place = np.unique(flight.acked[known], return_inverse=True)
    released = np.bincount(place, weights=flight.length[known])
    before = flight.in_flight(at) + released
    inside = np.zeros(len(at), dtype=bool)
    for span in spans:
        inside |= (at >= span.start - view.shift) & (at < span.end - view.shift)
    packet = float(np.median(flight.length))
    large = inside & (released >= _MUCH * before) & (released >= _SPARSE_LEAST_PACKETS * packet)
    if large.sum() < _LEAST_ACKS or released[large].sum() < _LEAST_BYTES * released[inside].sum():
        return
    frames = view.server.frames
    asked = frames.named("name", "ack_frequency") & (frames["sender"] == SERVER)
    asked &= frames["connection"] == view.connection
    first_asked = float(view.seconds(frames["time_ns"][asked]).min(initial=np.inf))
    wish = " The server had asked for few ACKs (ACK_FREQUENCY)." if first_asked < np.median(at[large]) else ""
    sentence = (
        f"The congestion window held the server back in {share:.0%} of the time, and there one ACK acknowledged "
        f"{np.median(released[large]) / packet:.0f} of {np.median(before[large]) / packet:.0f} packets in flight: "
        f"the server stands still until it comes.{wish}"
    )
    start, end = float(at[large][0]), float(at[large][-1])
    proof: dict[str, Any] = {"packets": view.client_numbers(start - view.rtt, end), "vantage": "client"}
    yield course.diagnosis("sparse-acks", sentence, start, end, share=share, **proof)


# Detector: the client did not report CE marks, or the server ignored them (RFC 9000 §13.4, RFC 9002 §7.1).

_LEAST_MARKS = 3
_HEEDED = 0.9  # share of the earlier bytes in flight; CUBIC keeps 0.7, NewReno 0.5


@detector(
    Pattern("ecn-not-reported", "The client did not report congestion marks.", "RFC 9000 §13.4.1"),
    Pattern("ecn-ignored", "The server did not react to congestion marks.", "RFC 9002 §7.1"),
)
def detect_ecn(course: Course) -> Iterator[Diagnosis]:
    """Not reported: the client received at least three CE marks, and its ACKs report none. Ignored: one RTT after the
    first report the server has at least 90 % as many bytes in flight as before, and no packet was lost."""
    view, facts = course.view, course.view.connection_facts
    received = facts.client_ecn.received
    # s2n-quic sends some packets with CE itself, to test the path; only the path's marks are congestion.
    own = int((view.server.packet_ecn[view.numbered(view.server, SERVER)] == CE).sum())
    if received is None or received.ce - own < _LEAST_MARKS:
        return
    if facts.client_ecn.reported.ce == 0:
        sentence, start = f"{format_count(received.ce, 'packet')} with CE reached the client", view.first_byte
        sentence += ", but its ACKs report none."
        packets = _marked(view)
        yield course.diagnosis("ecn-not-reported", sentence, start, view.last_byte, share=None, packets=packets)
        return
    if len(view.flight.losses):
        return
    acks = view.server.ack_frames
    reporting = (acks["sender"] == CLIENT) & (view.server.ack_space == APPLICATION) & (acks["ce"] > 0)
    first = float(view.seconds(acks["time_ns"][reporting]).min(initial=np.inf))
    slices = course.slices
    before = slices.in_flight[(slices.sending > first - slices.window / 2) & (slices.sending <= first)]
    after = slices.in_flight[(slices.sending > first + slices.window) & (slices.sending <= first + 2 * slices.window)]
    # In slow start the window grows until the report arrives, so the largest earlier value counts.
    if len(before) and len(after) and after.max() >= _HEEDED * before.max():
        sentence = f"The client reported CE from {first:.3f} s on, and the server kept as much in flight as before."
        start = first + view.shift
        packets = view.numbers_in(start + slices.window, view.last_byte)
        yield course.diagnosis("ecn-ignored", sentence, start, view.last_byte, share=None, packets=packets)


def _marked(view: View) -> tuple[int, ...]:
    """Packet numbers of the first few packets that reached the client with CE."""
    rows = view.numbered(view.client, SERVER)
    marked = rows[view.client.packet_ecn[rows] == CE]
    numbers: list[int] = view.client.packets["packet_number"][marked][:EVIDENCE].tolist()
    return tuple(numbers)


# Detector: the forward link's queue overflowed, or held packets for much of the time.

_LEAST_DROPS = 10
_LEAST_COSTLY_DROPS = 3
_LEAST_DROP_SHARE = 0.02  # loss-based congestion control causes fewer losses when it probes
_STANDING = 1.0  # RTTs of the empty path
_QUEUE_LEAST_SHARE = 0.25  # share of the time


@detector(
    Pattern("queue-overflow", "The queue of the link overflowed.", "RFC 7567 §2", over_tcp="RFC 7567 §2"),
    Pattern(
        "standing-queue", "Packets waited in a queue for most of the transfer.", "RFC 7567 §1", over_tcp="RFC 7567 §1"
    ),
)
def detect_queue(course: Course) -> Iterator[Diagnosis]:
    """Overflow: the simulator counted that the queue dropped at least ten packets and at least 2 % of all packets; or
    at least three packets and most of the lost packets, and the window that stayed small after these losses cost time.
    Standing queue: in at least a quarter of the time packets wait for at least one RTT of the empty path, which doubles
    the RTT."""
    view = course.view
    if view.truth is not None:
        forward = view.truth.forward
        share = forward.dropped_queue / max(forward.packets_in, 1)
        lost = view.flight.time[~view.flight.arrived]
        often = forward.dropped_queue >= _LEAST_DROPS and share >= _LEAST_DROP_SHARE
        mostly = forward.dropped_queue >= _LEAST_COSTLY_DROPS and 2 * forward.dropped_queue > len(lost)
        if often or (mostly and any(detect_window_after_loss(course))):
            start, end = (float(lost.min()), float(lost.max())) if len(lost) else (view.first_byte, view.last_byte)
            queue = f"The forward link's queue of {view.link.forward.queue_packets} packets"
            sentence = f"{queue} dropped {forward.dropped_queue} of {forward.packets_in} packets."
            packets = view.numbers(view.flight.row[~view.flight.arrived])
            yield course.diagnosis("queue-overflow", sentence, start, end, share=share, packets=packets)
    yield from _standing(course)


def _standing(course: Course) -> Iterator[Diagnosis]:
    view, slices = course.view, course.slices
    least = slices.least_waited
    standing = np.isfinite(least) & (least >= _STANDING * view.rtt)
    share = float(standing.mean()) * float(slices.edges[-1] - slices.edges[0]) / course.duration
    if share < _QUEUE_LEAST_SHARE:
        return
    chosen = np.flatnonzero(standing)
    holds = f", whose queue holds {format_duration(view.queue_seconds)}" if view.queue_seconds else ""
    start, end = float(slices.edges[chosen[0]]), float(slices.edges[chosen[-1] + 1])
    waited = f"packets waited for {format_duration(float(np.median(least[standing])))}"
    sentence = f"In {share:.0%} of the time {waited} in front of the forward link{holds}."
    yield course.diagnosis("standing-queue", sentence, start, end, share=share)


# Detector: the path carried nothing for some time. On an emulated link this is the configured outage, if the simulator
# counted lost packets. On a real link it is the outage in the trace.


@detector(Pattern("outage", "The path carried nothing for a while.", "RFC 9002 §6.2", over_tcp="RFC 6298 §5"))
def detect_outage(course: Course) -> Iterator[Diagnosis]:
    """Report an outage that cost time, and how long the server needed to continue after it."""
    view, spans = course.view, course.of_limit(Limit.OUTAGE)
    if view.outage is None or not spans:
        return
    begin, end, over = view.outage.start, view.outage.end, view.outage.over
    dropped = len(view.outage.swallowed) if view.truth is None else view.truth.forward.dropped_outage
    lost = f"{format_count(dropped, 'packet')} of the server"
    sentence = f"The path carried nothing for {format_duration(end - begin)} and lost {lost}"
    if np.isfinite(over):
        sentence += f"; the next packet arrived {format_duration(over - end)} after the end of the outage"
    share, packets = sum(span.end - span.start for span in spans) / course.duration, view.numbers_in(begin, end)
    over = min(over, view.last_byte)
    yield course.diagnosis("outage", f"{sentence}.", begin, over, share=share, packets=packets)


# Detector: the sky changed. A handover lost packets, packets waited for capacity, or a fade took data rate away.

_APART = 1.0  # s without a loss between two handovers
_MOST_NAMED = 5  # handovers whose times a sentence gives
_FADED = 0.8  # share of the data rate at the beginning


@detector(
    Pattern("handover", "A handover lost packets.", "RFC 2488 §2", over_tcp="RFC 2488 §2"),
    Pattern(
        "waited-for-grant",
        "Packets waited for a grant of capacity.",
        "RFC 3449 §2.2, ETSI EN 301 545-2",
        over_tcp="RFC 3449 §2.2",
    ),
    Pattern("fade", "The link's data rate fell during the transfer.", "RFC 2488 §2", over_tcp="RFC 2488 §2"),
)
def detect_sky(course: Course) -> Iterator[Diagnosis]:
    """Handovers and grants as the simulator recorded them for each packet; fades of a link with a constant delay, by
    its parameters."""
    view = course.view
    if view.events is not None:
        yield from _handovers(course, view.events)
        yield from _grants(course, view.events)
    yield from _fade(course)


def _handovers(course: Course, events: LinkEvents) -> Iterator[Diagnosis]:
    view = course.view
    client, server = (view.seconds(times) for times in events.handover)
    times = np.sort(np.concatenate([client, server]))
    times = times[(times >= view.begin) & (times <= view.last_byte)]
    if not len(times):
        return
    heads = np.flatnonzero(np.diff(times, prepend=-np.inf) > _APART)
    named = ", ".join(f"{time:.1f}" for time in times[heads][:_MOST_NAMED].tolist())
    more = ", …" if len(heads) > _MOST_NAMED else ""
    lost = int(np.isin(server, times).sum())
    sentence = (
        f"{format_count(len(heads), 'handover')} (at {named}{more} s) lost {format_count(lost, 'packet')} of "
        f"the server and {len(times) - lost} of the client."
    )
    share, packets = lost / max(1, len(view.flight.row)), view.numbers(view.flight.row[~view.flight.arrived])
    yield course.diagnosis("handover", sentence, float(times[0]), float(times[-1]), share=share, packets=packets)


def _grants(course: Course, events: LinkEvents) -> Iterator[Diagnosis]:
    view = course.view
    sent = view.seconds(events.granted[CLIENT])
    during = (sent >= view.begin) & (sent <= view.last_byte)
    if not during.any():
        return
    waited, sent = events.waited[CLIENT][during], sent[during]
    start, end = float(sent[0] - waited[0]), float(sent[-1])
    every = view.truth.return_.packets_in if view.truth is not None else 0
    sentence = (
        f"{len(waited)} of {every} packets of the client waited for a grant of capacity: "
        f"{format_duration(float(np.median(waited)))} in the median, at most {format_duration(float(waited.max()))}."
    )
    proof: dict[str, Any] = {"packets": view.client_numbers(start, end), "vantage": "client"}
    share = len(waited) / every if every else None
    yield course.diagnosis("waited-for-grant", sentence, start, end, share=share, **proof)


def _fade(course: Course) -> Iterator[Diagnosis]:
    view = course.view
    changes = view.link.forward.impairments.changes
    if {change.delay for change in changes} - {view.link.forward.delay}:
        return  # the rates of satellites that pass are no fades
    capacity = view.capacity
    during = (capacity.start < view.last_byte) & (np.append(capacity.start[1:], np.inf) > view.first_byte)
    start, rate = capacity.start[during], capacity.rate[during]
    if not len(rate) or rate.min() >= _FADED * rate[0]:
        return
    low = rate < _FADED * rate[0]
    first, last = int(np.flatnonzero(low)[0]), int(np.flatnonzero(low)[-1])
    over = float(start[last + 1]) if last + 1 < len(start) else view.last_byte
    ends = f", and was back at {over:.1f} s" if last + 1 < len(start) else ", and did not come back"
    before, lowest = (format_data_rate(round(float(each))) for each in (rate[0], rate.min()))
    sentence = f"The link's data rate fell from {before} at {start[first]:.1f} s to {lowest}{ends}."
    yield course.diagnosis("fade", sentence, float(start[first]), over)


# Detector: datagrams never grew towards the path's MTU, or too large datagrams were lost (RFC 9000 §14.3).

_LEAST_SIZE = 0.9 * 1200  # bytes of UDP payload; `small_datagrams` detects smaller datagrams
_SMALL = 1300  # bytes of UDP payload; IPv6 guarantees 1232 (RFC 8200 §5)
_LEAST_DATAGRAMS = 500


@detector(
    Pattern("mtu-not-raised", "The server never used the path's full packet size.", "RFC 9000 §14.3, thesis §5.6.9.3"),
    Pattern("mtu-black-hole", "Long packets vanished.", "RFC 9000 §14.3, RFC 8899 §4.3"),
)
def detect_path_mtu(course: Course) -> Iterator[Diagnosis]:
    """Never grown: of at least 500 datagrams with 1-RTT packets none has 1300 B or more. Lost: the simulator counted
    datagrams as too long."""
    view = course.view
    carrier = view.server.packets["datagram"][view.flight.row]
    mine, size = np.unique(carrier), view.server.datagrams["payload_length"]
    largest = int(size[mine].max(initial=0))
    if len(mine) >= _LEAST_DATAGRAMS and _LEAST_SIZE <= largest < _SMALL:
        sentence = f"None of {len(mine)} datagrams has more than {largest} B, although the path carries 1500 B."
        packets = view.numbers(view.flight.row[size[carrier] == largest])
        yield course.diagnosis("mtu-not-raised", sentence, view.begin, view.last_byte, share=1.0, packets=packets)
    hole = view.black_hole
    if hole is not None and view.truth is not None:
        lost = f"{format_count(view.truth.forward.dropped_mtu, 'packet')} of the server, too large for it"
        after = "no packet arrived afterwards"
        if np.isfinite(hole.over):
            after = f"the next packet arrived {format_duration(hole.over - hole.start)} later"
        sentence = f"From {hole.start:.2f} s on the path dropped {lost}; {after}."
        end, packets = max(hole.start, min(hole.over, view.last_byte)), view.numbers(hole.swallowed)
        yield course.diagnosis("mtu-black-hole", sentence, hole.start, end, share=None, packets=packets)


# Detector: the transfer took longer because its end had to be sent again (RFC 9002 §6.2).

_LEAST_RTTS = 1.5  # RTTs; a single RTT is normal after a loss
_RETRANSMITTED_TAIL_LEAST_SHARE = 0.05


@detector(
    Pattern(
        "retransmitted-tail",
        "The end of the transfer was spent on retransmissions.",
        "RFC 9002 §6.2, thesis §5.6.6",
        over_tcp="RFC 8985 §7",
    )
)
def detect_retransmitted_tail(course: Course) -> Iterator[Diagnosis]:
    """Report when the transfer ended at least 1.5 RTTs, and at least 5 % of its time, after the earliest possible
    arrival of the last new byte."""
    view = course.view
    left = float(view.room.busy[1].max())
    whole = left + view.shift + _waited(view, left)
    tail = view.last_byte - whole
    if tail < _LEAST_RTTS * view.rtt or tail < _RETRANSMITTED_TAIL_LEAST_SHARE * course.duration:
        return
    late = view.own[view.seconds(view.sent.time_ns[view.own]) > left]
    assert view.transfer.resent is not None  # there is sent data
    if not view.transfer.resent[0][late].any():
        return
    rows = np.unique(view.sent.packet[late])
    sentence = (
        f"The transfer ended {format_duration(tail)} later than necessary: all data had been sent, "
        f"but {format_count(len(rows), 'packet')} with data followed."
    )
    yield course.diagnosis("retransmitted-tail", sentence, whole, view.last_byte, packets=view.numbers(rows))


def _waited(view: View, left: float) -> float:
    """Seconds that a packet sent at `left` had to wait in queues: as long as the last packet sent until then that
    arrived."""
    time, waited = view.waiting
    sent = time - waited - view.shift
    before = np.flatnonzero(sent <= left + 1e-6)
    return float(waited[before[sent[before].argmax()]]) if len(before) else 0.0


# Detector: data was sent again although its first copy had arrived, or everything was sent twice (RFC 9002 §6.1).

_LEAST_PACKETS = 4
_SPURIOUS_RETRANSMISSIONS_LEAST_SHARE = 0.001
_EVERYTHING = 0.8


@detector(
    Pattern("sent-twice", "Data was sent twice without need.", "RFC 9002 §6.1, thesis §5.6.7"),
    Pattern(
        "spurious-retransmissions",
        "Data was retransmitted although it had arrived.",
        "RFC 9002 §6.1, thesis §5.6.7",
        over_tcp="RFC 8985 §6",
    ),
)
def detect_spurious_retransmissions(course: Course) -> Iterator[Diagnosis]:
    """Report when at least four packets, with at least 0.1 % of the response, were sent again without need, or fewer,
    after which the congestion window was the limit for at least 10 % of the time. From 80 % of the response on, the
    diagnosis is that everything was sent twice."""
    view = course.view
    resent, sent = view.transfer.resent, view.sent
    assert resent is not None  # there is sent data
    vain = resent[1][view.own]
    rows = view.own[vain > 0]
    packets = np.unique(sent.packet[rows])
    unique = int(sent.new[view.own].sum())
    share = int(vain.sum()) / max(unique, 1)
    if not len(packets):
        return
    time = view.seconds(sent.time_ns[rows])
    held = None
    if len(packets) < _LEAST_PACKETS or share < _SPURIOUS_RETRANSMISSIONS_LEAST_SHARE:
        if (np.isfinite(view.flight.lost) & ~view.flight.arrived).any():
            return
        held = held_after(course, view.first_loss + view.shift)
        if held is None:
            return
    code, sentence = "spurious-retransmissions", "The server sent data again that had arrived"
    if share >= _EVERYTHING:
        code, sentence = "sent-twice", "The server needlessly sent everything more than once"
    sentence += f": {format_count(len(packets), 'packet')} with {format_size(int(vain.sum()))}"
    start, end = float(time.min()), float(time.max())
    if held is None:
        sentence += f", {share:.1%} of the response."
    else:
        sentence += f". The congestion window then held it back in {held.share:.0%} of the time."
        end, share = held.end, held.share
    yield course.diagnosis(code, sentence, start, end, share=share, packets=view.numbers(packets))
