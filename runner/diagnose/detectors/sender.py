"""Detectors of patterns that the server causes: bursts, slow start left early, a window too small, an idle
application."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from runner.decode.columns import CLIENT, NULL, SERVER
from runner.diagnose.detectors import detector
from runner.diagnose.limits import Course, Rounds, longest
from runner.diagnose.path import least_around
from runner.diagnose.transfer_view import EVIDENCE, View
from runner.model.result import Diagnosis, Limit, Pattern, Span
from runner.trace.recording import Bools, Floats, Ints
from runner.units import format_count, format_data_rate, format_duration, format_size

# Detector: no pacing (RFC 9002 §7.7). The server sends faster than the bottleneck, then rests until the next RTT.

_REST = 0.25  # RTTs without a packet
_FAST = 1.3  # ratio to the capacity of the forward link
_FAST_OFTEN = 3.0  # a paced sender in slow start has a ratio of 2.5
_RHYTHM = (0.6, 1.6)  # RTTs from one burst to the next
_OFTEN = 0.1  # RTTs; where ACKs arrive in groups, each group causes a burst
_NO_FAULT = (Limit.RECEIVE_WINDOW, Limit.APPLICATION, Limit.LINK)
_BURSTS_LEAST_PACKETS = 11  # one more than an initial window, which may be sent at once (RFC 9002 §7.7)
_LEAST_BURSTS = 4
_BURSTS_LEAST_SHARE = 0.3  # least share of the bytes
_LEAST_SHARE_OFTEN = 0.5  # least share of the bytes; some pacers sometimes send an initial window at once


@detector(Pattern("bursts", "The server sent in bursts and rested between them.", "RFC 9002 §7.7, thesis §5.6.5"))
def detect_bursts(course: Course) -> Iterator[Diagnosis]:
    """Report at least four bursts at distances of about one RTT that carry at least 30 % of the bytes, or at shorter
    distances at least 50 %. Each burst has more packets than an initial window, which a sender may send at once. No
    diagnosis where the capacity is unknown."""
    view = course.view
    capacity = view.capacity.known
    if not np.isfinite(capacity):
        return
    for often in (False, True):
        diagnosis = _bursts(course, capacity, often=often)
        if diagnosis is not None:
            yield diagnosis
            return


def _bursts(course: Course, capacity: float, *, often: bool) -> Diagnosis | None:
    """The diagnosis for bursts about once per RTT, or (`often`) as often as groups of ACKs arrive. `capacity` in
    bit/s."""
    least_rest, rhythm = (_OFTEN, _OFTEN) if often else (_REST, _RHYTHM[0])
    fast = _FAST_OFTEN if often else _FAST
    view, window = course.view, course.slices.window
    time, size = view.flight.time, view.flight.length
    gap = np.diff(time)
    heads = np.append(0, np.flatnonzero(gap > least_rest * window) + 1)
    tails = np.append(heads[1:], len(time)) - 1
    carried = np.add.reduceat(size, heads)
    lasted = np.maximum(time[tails] - time[heads], 1e-6)
    rate = 8 * (carried - size[heads]) / lasted
    step = np.diff(time[heads], append=np.inf) / window
    burst = (rate > fast * capacity) & (tails - heads + 1 >= _BURSTS_LEAST_PACKETS)
    queued = 8 * carried / capacity / window
    burst &= (step >= rhythm) & (step <= _RHYTHM[1] + queued)
    # Flow control or the application may release much data at once. Bursts that keep the link full cost no time.
    for span in (span for limit in _NO_FAULT for span in course.of_limit(limit)):
        burst &= (time[heads] < span.start - view.shift) | (time[heads] >= span.end - view.shift)
    supply = course.slices.supply
    burst[1:] &= ~np.isin(view.flight.row[heads[1:] - 1], supply.packets[supply.emptied])
    share = float(carried[burst].sum() / size.sum())
    if burst.sum() < _LEAST_BURSTS or share < (_LEAST_SHARE_OFTEN if often else _BURSTS_LEAST_SHARE):
        return None
    chosen = np.flatnonzero(burst)
    rest = float(np.median(gap[tails[chosen]]))
    sentence = (
        f"{len(chosen)} bursts at {format_data_rate(round(float(np.median(rate[chosen]))))}, above the link's "
        f"{format_data_rate(round(capacity))}, each followed by {format_duration(rest)} of rest: "
        f"they carry {share:.0%} of the bytes."
    )
    start, end = float(time[heads[chosen[0]]]), float(time[tails[chosen[-1]]])
    packets = view.numbers(view.flight.row[heads[chosen]])
    return course.diagnosis("bursts", sentence, start, end, share=share, packets=packets)


# Detector: slow start ended without a loss, far below the bytes that the path holds (RFC 9002 §7.3.1).

_GROWTH = 1.2  # slow start has 2.0, or 1.5 for a sender that counts ACKs when every second packet is acknowledged
_SLOW_START_LEFT_LEAST_ROUNDS = 4
_GREW = 1.5
_HELD = 0.7
_RETURN_FULL = 0.8
_NEARLY_FULL = 0.8
_SHORTEST_WAIT = 0.003  # s
_LATE = 1.5  # RTTs of the empty path; with a queue or late ACKs the window looks too small
_FIXED_LEAST_ROUNDS, _FIXED_LEAST_LOSSES = 10, 3  # losses count once a round
_FIXED_LEVEL, _FIXED_LEAST_SHARE = 0.05, 0.8  # deviation from the median, and share of the rounds within it
_REFUSED = 0.05  # share of the time in which the client's flow control may hold a server with a window of a fixed size
_FIXED_GROWTH = 240  # bytes per RTT; in congestion avoidance a window grows by a packet per RTT (RFC 9002 §7.3.3)


@detector(
    Pattern(
        "slow-start-left-early",
        "Slow start ended long before the link was full.",
        "RFC 9002 §7.3.1",
        over_tcp="RFC 9406",
    ),
    Pattern("window-never-grew", "The congestion window never grew.", "RFC 9002 §7.3.1", over_tcp="RFC 5681 §3.1"),
)
def detect_slow_start_left(course: Course) -> Iterator[Diagnosis]:
    """Report at least four rounds in which the window did not grow, although it was the limit, less than 80 % of the
    link were used, and no packet had been lost. Where datagrams are short, the application may have been the limit:
    then only a window that kept its first size for ten rounds is reported, and the sentence has both causes. No
    diagnosis where packets waited in front of a link of unknown capacity, because that link may be full, or
    where ACKs fill the return link, because then the return link sets the pace.

    Also report a window that kept one size for ten rounds although packets were lost: no congestion controller leaves a
    window as it is for so long after losses."""
    view, slices, rounds = course.view, course.slices, Rounds.of(course)
    if (fixed := _fixed_window(course, rounds)) is not None:
        yield fixed
        return
    first, last = rounds.flat(_GROWTH)
    if last - first < _SLOW_START_LEFT_LEAST_ROUNDS or rounds.peak[first] > view.bdp:
        return
    start, end = float(rounds.start[first]), float(rounds.start[last])
    inside = (slices.middle >= start) & (slices.middle < end)
    if not inside.any() or _rtt(course, start, end) > _LATE * slices.window:
        return
    if float(np.median(slices.return_use[inside])) >= _RETURN_FULL or _may_be_full(course, inside):
        return
    initial, peak = _initial_window(view), rounds.peak[first:last]
    level = float(np.median(peak))
    if level < _HELD * float(rounds.peak[: first + 1].max()):
        return  # the window had been larger, so slow start is not the cause
    grew, doubtful = level > _GREW * initial, slices.supply.doubtful(start - view.shift, end - view.shift)
    if doubtful and (grew or last - first < _FIXED_LEAST_ROUNDS or not _is_level(peak)):
        return
    end = start + (last - first) * rounds.length
    yield _limited(course, peak, start, end, "before any loss", doubtful=doubtful)


def _limited(course: Course, peak: Floats, start: float, end: float, losses: str, *, doubtful: bool) -> Diagnosis:
    """The diagnosis of a window that did not grow between two moments of the client's time. `peak`: most bytes in
    flight, by round. `losses`: what is known of losses. `doubtful`: datagrams are not full, so the application may have
    been the limit."""
    view, level = course.view, float(np.median(peak))
    fixed = len(peak) >= _FIXED_LEAST_ROUNDS and _is_level(peak)
    if level > _GREW * _initial_window(view):
        code, what = "slow-start-left-early", "Slow start ended early"
        reason = ". It did not grow at all: it, or a buffer in front of it, may have a fixed size" if fixed else ""
    else:
        code, what, reason = "window-never-grew", "The congestion window never grew", ""
        what += ", or a buffer of the application holds no more" if doubtful else ""
    size = f"{format_size(round(level))} in flight for {len(peak)} RTTs"
    return course.diagnosis(code, f"{what}: {size}, {losses}{reason}{_room(view.bdp)}", start, end)


def _is_level(peak: Floats) -> bool:
    """Whether most rounds have the same most bytes in flight, without growth."""
    level, third = float(np.median(peak)), max(1, len(peak) // 3)
    same = float((np.abs(peak - level) <= _FIXED_LEVEL * level).mean()) >= _FIXED_LEAST_SHARE
    grew = abs(float(np.median(peak[-third:])) - float(np.median(peak[:third])))
    return same and grew <= _FIXED_GROWTH * (len(peak) - third)


def _fixed_window(course: Course, rounds: Rounds) -> Diagnosis | None:
    """The diagnosis of a window that stays at one size although packets are lost; None when it changes, and when fewer
    than three rounds had losses."""
    view = course.view
    chosen = np.flatnonzero(rounds.by_window)
    if not len(chosen):
        return None
    peak = rounds.peak[chosen]
    reached = int((peak >= (1 - _FIXED_LEVEL) * np.median(peak)).argmax())
    chosen, peak = chosen[reached:], peak[reached:]
    if len(peak) < _FIXED_LEAST_ROUNDS or not _is_level(peak) or float(np.median(peak)) > view.bdp:
        return None
    if float(np.median(peak)) < _HELD * float(rounds.peak.max()):
        return None  # the window had been larger, so losses did change it
    start, end = float(rounds.start[chosen[0]]), float(rounds.start[chosen[-1]]) + rounds.length
    if sum(span.end - span.start for span in course.of_limit(Limit.RECEIVE_WINDOW)) > _REFUSED * (end - start):
        return None  # the client's window may be what has this size
    known = np.floor((view.flight.signals + view.shift - start) / rounds.length)
    lossy = len(np.unique(known[(known >= 0) & (known < len(peak))]))
    if lossy < _FIXED_LEAST_LOSSES:
        return None
    doubtful = course.slices.supply.doubtful(start - view.shift, end - view.shift)
    unchanged = f"and losses in {lossy} of them did not change it"
    return _limited(course, peak, start, end, unchanged, doubtful=doubtful)


def _initial_window(view: View) -> float:
    """Bytes in flight when the first ACK for response data reached the server."""
    flight = view.flight
    acked = flight.acked[np.searchsorted(flight.row, view.sent.packet[view.own[0]]) :].min(initial=np.inf)
    return float(flight.in_flight(np.array([np.nextafter(acked, 0)]))[0])


def _may_be_full(course: Course, inside: Bools) -> bool:
    """Whether the forward link may have been full in these slices. A queue that slow start leaves behind may be too
    short for `Slices.full`: RFC 9406 §4.2 stops at a wait of 4 to 16 ms."""
    capacity, slices = course.view.capacity, course.slices
    used = float(slices.utilisation[inside].mean()) * float(capacity.rate[0]) / capacity.known
    waited = float(np.median(least_around(slices.least_waited, slices.per_window)[inside]))
    return used >= _NEARLY_FULL or (not capacity.by_queue and waited > _SHORTEST_WAIT)


def _rtt(course: Course, start: float, end: float) -> float:
    """Median seconds from a packet to its ACK, for packets sent between two moments of the client's time."""
    flight, shift = course.view.flight, course.view.shift
    chosen = (flight.time + shift >= start) & (flight.time + shift < end) & np.isfinite(flight.acked)
    return float(np.median((flight.acked - flight.time)[chosen])) if chosen.any() else 0.0


def _room(bdp: float) -> str:
    if np.isfinite(bdp):
        return f"; the path holds {format_size(round(bdp))}."
    return "; no packet had to wait, so the path holds more."


# Detector: after losses the congestion window, not the link, set the rate (RFC 9002 §7.3.2).

_WINDOW_AFTER_LOSS_LEAST_SHARE = 0.1
_KEPT = 0.85  # CUBIC keeps 0.7, NewReno 0.5
_LEAST_VANISHED = 0.5  # share of the packets that the server took for lost
_PROBED = 0.1  # of the bytes in flight before; BBR keeps four packets
_PROBE_RTTS = 5.0  # the longest probe: the bytes in flight fall, stay at four packets for 200 ms, and rise
_SUSTAINED_RTTS = 3  # a window that is small for fewer RTTs is a probe; CUBIC and NewReno grow more slowly
_SLOW_START_GROWTH = 1.4  # least growth per RTT in slow start: 1.5 for a sender that counts ACKs of every second packet
_GROWTH_RTTS = 4
_BACK_RTTS, _BACK = 2.0, 0.8  # no slow start grows from a tenth to 0.8 in two RTTs; CUBIC keeps 0.7 after a loss


@detector(
    Pattern(
        "window-after-loss",
        "The congestion window stayed small after losses.",
        "RFC 9002 §7.3.2",
        over_tcp="RFC 5681 §3.2",
    )
)
def detect_window_after_loss(course: Course) -> Iterator[Diagnosis]:
    """Report when the congestion window was the limit for at least 10 % of the time after a loss that reduced it or
    ended its growth. A window of a fixed size has another diagnosis (`detect_slow_start_left`). The two RTTs after an
    outage or a black hole don't count: the server needs one RTT to notice the end, and one RTT to send the lost packets
    again. Times in which the server probes the RTT with few packets don't count either (BBR)."""
    view = course.view
    lost = np.isfinite(view.flight.lost)
    vanished = lost & ~view.flight.arrived
    # The server takes late packets for lost, too; the diagnosis for these is spurious-retransmissions.
    if not vanished.any() or vanished.sum() < _LEAST_VANISHED * lost.sum():
        return
    first = float(view.flight.lost[vanished].min()) + view.shift
    held = held_after(course, first)
    if held is None or _fixed_window(course, Rounds.of(course)) is not None:
        return
    high, low = (format_size(round(size)) for size in (held.high, held.low))
    change = f"The bytes in flight fell from {high} to {low}."
    if held.low == held.high:
        change = f"At most {low} were in flight {_GROWTH_RTTS} RTTs later."
    sentence = (
        f"After the first of {int(lost.sum())} losses the congestion window held the server back in "
        f"{held.share:.0%} of the time. {change}"
    )
    packets = view.numbers(view.flight.row[lost])
    yield course.diagnosis("window-after-loss", sentence, held.start, held.end, share=held.share, packets=packets)


class WindowSpan(NamedTuple):
    """A time in which the congestion window was the limit, in seconds since the origin, and its share of the transfer.
    `high`, `low`: the most bytes in flight before and after the largest fall. When only the growth ended, both are the
    bytes in flight four RTTs after the loss."""

    start: float
    end: float
    share: float
    high: float
    low: float


def held_after(course: Course, first: float) -> WindowSpan | None:
    """The time since `first` in which the congestion window was the limit. `first`: when the server took a packet for
    lost, in the client's time. None when it was the limit for less than 10 % of the transfer, or when losses did not
    change the window."""
    view, slices = course.view, course.slices
    limited = (span for span in course.of_limit(Limit.CONGESTION_WINDOW) if span.end > first)
    spans = [span for span in limited if not _probes_rtt(course, span)]
    silences = [each for each in (view.outage, view.black_hole) if each is not None]
    held = sum(span.end - max(span.start, first) for span in spans)
    held -= sum(
        max(0.0, min(span.end, silence.over + 2 * slices.window) - max(span.start, silence.start))
        for span in spans
        for silence in silences
    )
    share = held / course.duration
    if share < _WINDOW_AFTER_LOSS_LEAST_SHARE:
        return None
    end = spans[-1].end
    reaction = _reaction(slices.peak[(slices.middle > first) & (slices.middle <= end)], slices.per_window)
    if reaction is None or (reaction[0] == reaction[1] >= view.bdp):
        return None  # a window that fills the path needs no growth
    return WindowSpan(max(spans[0].start, first), end, share, *reaction)


def _reaction(peaks: Floats, per_rtt: int) -> tuple[float, float] | None:
    """The most bytes in flight before and after losses reduced the window, twice the same when they only ended its
    growth, or None when they did neither. `peaks`: most bytes in flight around each slice since the first loss.
    `per_rtt`: slices in an RTT."""
    if not len(peaks):
        return None
    held = sliding_window_view(np.pad(peaks, (0, _SUSTAINED_RTTS * per_rtt), mode="edge"), _SUSTAINED_RTTS * per_rtt)
    level = held.max(axis=1)[: len(peaks)]
    highest = np.maximum.accumulate(level)
    lowest = int((level / np.maximum(highest, 1.0)).argmin())
    if level[lowest] < _KEPT * highest[lowest]:
        return float(highest[lowest]), float(level[lowest])
    later = peaks[: _GROWTH_RTTS * per_rtt + 1]
    return (float(later[-1]),) * 2 if later[-1] < _SLOW_START_GROWTH ** (len(later) / per_rtt) * later[0] else None


def _probes_rtt(course: Course, span: Span) -> bool:
    """Whether the bytes in flight fell to a tenth in the span, and were back at once. After a loss a window grows more
    slowly."""
    slices, window = course.slices, course.slices.window
    if span.end - span.start > _PROBE_RTTS * window:
        return False
    flown, middle = slices.in_flight, slices.middle
    before = float(flown[(middle >= span.start - window) & (middle <= span.start)].max(initial=0.0))
    low = np.flatnonzero((middle > span.start) & (middle <= span.end) & (flown <= _PROBED * before))
    if not len(low):
        return False
    back = (middle > middle[low[-1]]) & (middle <= middle[low[-1]] + _BACK_RTTS * window)
    return float(flown[back].max(initial=0.0)) >= _BACK * before


# Detector: in mid-transfer the data rate falls to a fraction and stays there, and losses don't explain this.

_FELL_TO = 0.4
_HALVED = 0.5  # NewReno, for each RTT with losses (RFC 9002 §7.3.2); other controllers keep more
_BELOW = 0.6  # share of the rate after these halvings
_LEAST_REACHED = 0.2  # share of the link's data rate
_LEAST_RTTS = 5
_RATE_COLLAPSE_LEAST_ROUNDS = 3  # least number of RTTs with losses
_PACKET = 1200  # bytes by which a window grows in each RTT (RFC 9002 §7.3.3)
_RATE_COLLAPSE_LEAST_SHARE = 0.1
_OF_SERVER = (Limit.CONGESTION_WINDOW, Limit.PACING, Limit.UNKNOWN)


@detector(Pattern("rate-collapse", "The sending rate collapsed.", "thesis §5.6.8", over_tcp="RFC 5681 §3.1"))
def detect_rate_collapse(course: Course) -> Iterator[Diagnosis]:
    """Report when the rate is below 40 % of the highest earlier rate for at least 5 RTTs and 10 % of the time, and in
    that time the limit was the server itself or is unknown. On a link whose data rate changes, the share of the link
    must have fallen as far. The rate must also be below 60 % of the rate that a server has left when it halves its rate
    for each RTT with losses."""
    slices, view = course.slices, course.view
    carried = view.capacity.bits(slices.edges[:-1], slices.edges[1:]) / np.maximum(np.diff(slices.edges), 1e-9)
    used = slices.around(slices.utilisation, slices.per_window)
    rate = slices.around(slices.utilisation * carried, slices.per_window)
    highest, most_used = np.maximum.accumulate(rate), np.maximum.accumulate(used)
    own = slices.inside(span for span in course.spans if span.limit in _OF_SERVER)
    low = own & (rate < _FELL_TO * highest) & (used < _FELL_TO * most_used) & (most_used >= _LEAST_REACHED)
    first, last = longest(low)
    start, end = float(slices.edges[first]), float(slices.edges[last])
    if end - start < max(_LEAST_RTTS * slices.window, _RATE_COLLAPSE_LEAST_SHARE * course.duration):
        return
    high = float(slices.middle[int(rate[: first + 1].argmax())])
    if _explained(course, high, start, rate[first:last] / highest[first]):
        return
    if _kept_low(course, start, end, float(highest[first])):
        return
    before, during = round(float(highest[first])), round(float(rate[first:last].mean()))
    fell = f"The data rate fell from {format_data_rate(before)} to {format_data_rate(during)}"
    yield course.diagnosis("rate-collapse", f"{fell} for {format_duration(end - start)}.", start, end)


def _explained(course: Course, high: float, fallen: float, share: Floats) -> bool:
    """Whether losses between the highest rate and the fall explain the new rate, or the path carried nothing before the
    fall."""
    view, window = course.view, course.slices.window
    signals = view.flight.signals + view.shift
    signals = signals[(signals > high - window) & (signals <= fallen + window)]
    halvings = len(np.unique(np.floor((signals - signals[:1]) / window)))
    silent = any(
        silence is not None and high <= silence.over <= fallen + window for silence in (view.outage, view.black_hole)
    )
    return silent or float(share.mean()) >= _BELOW * _HALVED**halvings


def _kept_low(course: Course, start: float, end: float, highest: float) -> bool:
    """Whether losses were so frequent that between two losses a window that grows by a packet per RTT could not reach
    40 % of the highest data rate. `highest` in bit/s."""
    view, window = course.view, course.slices.window
    signals = view.flight.signals + view.shift
    signals = signals[(signals > start - window) & (signals <= end)]
    if len(np.unique(np.floor((signals - start) / window))) < _RATE_COLLAPSE_LEAST_ROUNDS:
        return False
    longest_calm = float(np.diff(np.concatenate(([start], signals, [end]))).max())
    return longest_calm / window < _FELL_TO * highest * window / 8 / _PACKET


# Detector: packet numbers that don't increase, or are used twice (RFC 9000 §12.3).

_PACKET_NUMBERS_LEAST_PACKETS = 3
_OTHERS = 0.25  # ratio of held-back datagrams without new data to those with new data


@detector(Pattern("packet-numbers", "Packet numbers grew in an unusual way.", "RFC 9000 §12.3, thesis §5.6.9.2"))
def detect_packet_numbers(course: Course) -> Iterator[Diagnosis]:
    """Report when an endpoint sent at least three packets with wrong numbers. A datagram that was sent twice, or that
    was held back together with its data, doesn't count, because its number was assigned in order. A few datagrams
    without new data that were held back together with such datagrams don't count either."""
    view = course.view
    for sender, name in ((CLIENT, "client"), (SERVER, "server")):
        vantage = view.client if sender == CLIENT else view.server
        packets = vantage.packets
        mine = (packets["sender"] == sender) & (packets["connection"] == view.connection)
        mine &= packets.named("type", "1rtt") & (packets["packet_number"] != NULL)
        if sender == SERVER:
            mine[view.sent.packet[view.late_rows]] = False
        rows = np.flatnonzero(mine)
        if len(rows) < _PACKET_NUMBERS_LEAST_PACKETS:
            continue
        number = packets["packet_number"][rows]
        highest = np.maximum.accumulate(number)
        wrong = np.append(False, number[1:] <= highest[:-1])
        _, first, place = np.unique(
            np.column_stack([number, packets["length"][rows]]), axis=0, return_index=True, return_inverse=True
        )
        again = first[place.reshape(-1)] < np.arange(len(rows))
        wrong &= ~again
        if sender == SERVER:
            held = np.isin(rows, _only_again(view))
            if wrong[~held].sum() <= _OTHERS * (len(np.unique(view.sent.packet[view.late_rows])) + wrong[held].sum()):
                held[:] = True
            wrong &= ~(held & ~np.isin(number, number[~wrong]))
        if wrong.sum() < _PACKET_NUMBERS_LEAST_PACKETS:
            continue
        reused = int(np.isin(number[wrong], number[~wrong]).sum())
        time = view.seconds(vantage.packet_time[rows[wrong]])
        sentence = f"The {name} sent {format_count(int(wrong.sum()), 'packet')} with numbers below its earlier ones"
        sentence += f"; {reused} of these numbers belong to other packets, too." if reused else "."
        start, end, proof = float(time.min()), float(time.max()), tuple(number[wrong][:EVIDENCE].tolist())
        share = float(wrong.mean())
        yield course.diagnosis("packet-numbers", sentence, start, end, share=share, packets=proof, vantage=name)


def _only_again(view: View) -> Ints:
    """Packets whose response data had all been sent before."""
    sent, own = view.sent, view.own
    return np.setdiff1d(sent.packet[own], sent.packet[own][sent.new[own] > 0])


# Detector: ranges of a stream were skipped and sent after the data that follows them.

_LEAST_FRAMES = 5
_OUT_OF_ORDER_LEAST_SHARE = 0.005


@detector(Pattern("out-of-order", "Packets arrived out of order.", "thesis §5.6.6"))
def detect_out_of_order(course: Course) -> Iterator[Diagnosis]:
    """Report when at least five frames, and at least 0.5 % of the response's frames, were sent late."""
    view = course.view
    rows = view.late_rows
    share = len(rows) / max(len(view.own), 1)
    if len(rows) < _LEAST_FRAMES or share < _OUT_OF_ORDER_LEAST_SHARE:
        return
    time = view.seconds(view.sent.time_ns[rows])
    late = f"{format_count(len(rows), 'frame')} with {format_size(int(view.sent.new[rows].sum()))} of new data"
    sentence = f"The server sent {late} after data that follows in the stream."
    start, end, packets = float(time.min()), float(time.max()), view.numbers(np.unique(view.sent.packet[rows]))
    yield course.diagnosis("out-of-order", sentence, start, end, share=share, packets=packets)


# Detector: the server sent nothing although no limit held it back.

_APPLICATION_IDLE_LEAST_SHARE = 0.05
_LEAST_SECONDS = 0.25


@detector(Pattern("application-idle", "The server had nothing to send.", "RFC 9002 §7.8", over_tcp="RFC 9293 §3.8.6.2"))
def detect_application_idle(course: Course) -> Iterator[Diagnosis]:
    """Report when the server had nothing to send for at least 5 % of the time and 0.25 s."""
    spans = course.of_limit(Limit.APPLICATION)
    idle = sum(span.end - span.start for span in spans)
    share = idle / course.duration
    if share < _APPLICATION_IDLE_LEAST_SHARE or idle < _LEAST_SECONDS:
        return
    emptied = int(course.slices.supply.emptied.sum())
    again = f"; its buffer ran empty {format_count(emptied, 'time')}" if emptied else ""
    longest = max(spans, key=lambda span: span.end - span.start)
    sentence = (
        f"The server had nothing to send for {format_duration(idle)}, {share:.0%} of the time, although its "
        f"windows had room. The longest such pause lasted {format_duration(longest.end - longest.start)}{again}."
    )
    yield course.diagnosis("application-idle", sentence, longest.start, longest.end, share=share)


# Detector: TCP's bytes in flight stay at one level, without a loss. CUBIC and BBR would send more after a few RTTs (RFC
# 9438 §4.3, draft-ietf-ccwg-bbr §5.3.3), so the socket holds no more.

_BUFFER_LEAST_ROUNDS, _BUFFER_LEAST_SHARE = 10, 0.6  # of the rounds from the first one near the level on
_LEVEL = 0.05
_BELOW_THE_PATH = 0.8


@detector(Pattern("send-buffer", "The server's send buffer was full.", "", over_tcp="RFC 9293 §3.9.1.2"))
def detect_send_buffer(course: Course) -> Iterator[Diagnosis]:
    """Report at least ten RTTs before any loss in which as many bytes were in flight, fewer than the client's window
    allows, and fewer were sent than fill the path."""
    view, rounds = course.view, Rounds.of(course)
    first = int((rounds.peak >= (1 - _LEVEL) * np.median(rounds.peak)).argmax())
    peak = rounds.peak[first:][~rounds.after_loss[first:]]
    level = float(np.median(peak)) if len(peak) else 0.0
    held = np.abs(peak - level) <= _LEVEL * level
    start, end = float(rounds.start[first]), float(rounds.start[first]) + len(peak) * rounds.length
    refused = sum(span.end - span.start for span in course.of_limit(Limit.RECEIVE_WINDOW))
    if held.sum() < max(_BUFFER_LEAST_ROUNDS, _BUFFER_LEAST_SHARE * len(peak)) or refused > (end - start) / 10:
        return
    flight = view.flight
    inside = (flight.time >= start) & (flight.time < end)
    each_rtt = float(flight.length[inside].sum()) * rounds.length / (end - start)
    if level < _GREW * _initial_window(view) or each_rtt > _BELOW_THE_PATH * view.bdp:
        return
    kept = f"The server kept {format_size(round(level))} in flight for {held.sum()} RTTs without a loss"
    full = f"its send buffer holds no more (Linux: net.ipv4.tcp_wmem){_room(view.bdp)}"
    yield course.diagnosis("send-buffer", f"{kept}: {full}", start, end)


# Detector: datagrams well below the size that every path carries (RFC 9000 §14).

_EVERY_PATH = 1200  # bytes of UDP payload
_SMALL = 0.9 * _EVERY_PATH  # bytes; a tenth fewer bytes per datagram mean about a tenth more headers and packets
_SMALL_DATAGRAMS_LEAST_SHARE = 0.2
_LEAST_DATAGRAMS = 50


@detector(Pattern("small-datagrams", "Datagrams were small.", "RFC 9000 §14, thesis §5.6.9.3"))
def detect_small_datagrams(course: Course) -> Iterator[Diagnosis]:
    """Report when at least 20 % of at least 50 datagrams with response data are small. A smaller share is no pattern,
    because the last datagram of a response is short, too. A datagram doesn't count as small when the application had no
    more data, or when the client's flow control allowed no more."""
    view = course.view
    supply = course.slices.supply
    packets, size = supply.packets, supply.size
    small = (size < _SMALL) & ~supply.emptied & ~supply.blocked
    share = float(small.mean())
    if len(size) < _LEAST_DATAGRAMS or share < _SMALL_DATAGRAMS_LEAST_SHARE:
        return
    time = supply.time[small]
    less = f"{int(small.sum())} of {len(size)} datagrams with response data have less than {_SMALL:.0f} B"
    sentence = f"{less}, with a median of {round(float(np.median(size[small])))} B."
    start, end, proof = float(time.min()), float(time.max()), view.numbers(packets[small])
    yield course.diagnosis("small-datagrams", sentence, start, end, share=share, packets=proof)
