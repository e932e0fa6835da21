"""Acknowledgments and ECN counts (RFC 9000 §13, §19.3)."""

from collections.abc import Iterator

import numpy as np

from runner.judge.invariants.packets import shown
from runner.judge.side import SPACE_NAMES, Broken, Capture, Side
from runner.trace.intervals import Bools, Ints
from runner.trace.vantage import APPLICATION, NULL, find

_ECT1, _ECT0, _CE = 1, 2, 3  # codepoints of the IP header (RFC 3168 §5)
_COUNTS = {"ect0": "ECT(0)", "ect1": "ECT(1)", "ce": "ECN-CE"}  # column of a count → its name in RFC 9000 §19.3.2
_ACK_DELAY_MS = 25  # max_ack_delay of an endpoint that does not send it (RFC 9000 §18.2)
_TIMER_NS = 20_000_000  # allowed lateness of a timer
_DELAY_TOLERANCE_US = 20_000  # allowance for clocks and rounding


def _numbers(capture: Capture, rows: Ints, space: int) -> tuple[Ints, Ints]:
    """Sorted distinct packet numbers, and for each number the row of the first packet with this number."""
    rows = rows[capture.vantage.packet_space[rows] == space]
    number = capture.packets["packet_number"][rows]
    number, first = np.unique(number, return_index=True)
    return number[number >= 0], rows[first][number >= 0]


def _ranges(side: Side, space: int) -> tuple[Ints, Ints, Ints]:
    """The endpoint's ACK ranges in a packet number space: rows of the frames, first and last packet numbers."""
    capture = side.capture
    rows = side.ack_frames(space=space)
    frame, first, last = capture.ranges
    mine = np.isin(frame, rows)
    return frame[mine], first[mine], last[mine]


def acknowledged(side: Side) -> Iterator[Broken]:
    """An endpoint acknowledges only packets that were sent and that have arrived."""
    if not side.sound or side.far is None:
        return
    packets = side.far.packets
    theirs = (packets["connection"] == side.scope.number) & (packets["sender"] == 1 - side.sender)
    for space, name in enumerate(SPACE_NAMES):
        frame, first, last = _ranges(side, space)
        if not len(frame):
            continue
        sent, _ = _numbers(side.far, np.flatnonzero(theirs), space)
        arrived, arrivals = _numbers(side.capture, side.got, space)
        unsent = _missing(first, last, sent)
        low, high = np.searchsorted(arrived, first), np.searchsorted(arrived, last, side="right")
        unreceived = (high - low < last - first + 1) & ~unsent
        early = (_latest(arrivals, low, high) > side.capture.acks["packet"][frame]) & ~unsent & ~unreceived
        for wrong, rule, word in (
            (unsent, "13.1-ack-of-unsent", "sent"),
            (unreceived, "13.1-ack-of-unreceived", "received"),
            (early, "13.1-ack-of-unreceived", "received by then"),
        ):
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                yield Broken(
                    rule=f"rfc9000-{rule}",
                    actual=f"{name} packets {first[at]} to {last[at]} are acknowledged; not all of them were {word}",
                    packets=shown(np.unique(side.capture.acks["packet"][frame[wrong]])),
                )


def _missing(first: Ints, last: Ints, known: Ints) -> Bools:
    within = np.searchsorted(known, last, side="right") - np.searchsorted(known, first)
    missing: Bools = within < last - first + 1
    return missing


def _latest(rows: Ints, low: Ints, high: Ints) -> Ints:
    """The largest of `rows[low:high]` for each pair of bounds; -1 for an empty slice.

    The largest values of all slices of 1, 2, 4, … rows are computed first. Any slice is the union of two such slices.
    """
    latest = np.full(len(low), -1)
    largest, length = rows, 1
    while length <= len(rows):
        within = (high - low >= length) & (high - low < 2 * length)
        latest[within] = np.maximum(largest[low[within]], largest[high[within] - length])
        largest = np.maximum(largest[:-length], largest[length:])
        length *= 2
    return latest


def acks_of_acks(side: Side) -> Iterator[Broken]:
    """An endpoint sends no ACK-only packet in response to ACK-only packets.

    An ACK-only packet breaks the rule when it acknowledges new packets, none of them is ack-eliciting, and no
    ack-eliciting packet arrived shortly before.
    """
    if not side.sound:
        return
    capture = side.capture
    rows = side.ack_frames(space=APPLICATION)
    numbers, arrived = _numbers(capture, side.got, APPLICATION)
    if not len(rows) or not len(numbers):
        return
    eliciting_before = np.concatenate(([0], np.cumsum(capture.eliciting[arrived])))
    largest = capture.acks["largest"][rows]
    known = np.maximum.accumulate(np.concatenate(([-1], largest)))[:-1]
    low, high = np.searchsorted(numbers, known, side="right"), np.searchsorted(numbers, largest, side="right")
    packets = capture.acks["packet"][rows]
    wrong = (high > low) & (eliciting_before[np.maximum(high, low)] == eliciting_before[low])
    wrong &= ~capture.eliciting[packets] & ~capture.closing[packets]
    peers = side.sent_by_peer
    eliciting_times = side.time(peers[capture.eliciting[peers] | (capture.packets["decrypted"][peers] == 0)])
    times = side.time(packets)
    delay = side.parameters.get("max_ack_delay", _ACK_DELAY_MS)
    wait = (delay if isinstance(delay, int) else _ACK_DELAY_MS) * 1_000_000 + _TIMER_NS
    recent = np.searchsorted(eliciting_times, times, side="right") - np.searchsorted(eliciting_times, times - wait)
    wrong &= recent == 0
    if wrong.any():
        yield Broken(
            rule="rfc9000-13.2.1-ack-of-acks",
            actual=f"{int(wrong.sum())} ACK-only packets answer ACK-only packets",
            packets=shown(packets[wrong]),
        )


def delays(side: Side) -> Iterator[Broken]:
    """The ACK Delay field is at most the time between the arrival of a packet and its acknowledgment."""
    if not side.sound:
        return
    capture = side.capture
    rows = side.ack_frames(space=APPLICATION)
    numbers, arrived = _numbers(capture, side.got, APPLICATION)
    place = find(numbers, capture.acks["largest"][rows])
    rows, place = rows[place != NULL], place[place != NULL]
    elapsed = (capture.acks["time_ns"][rows] - side.time(arrived[place])) // 1000
    excessive = (elapsed >= 0) & (capture.acks["delay_us"][rows] > elapsed + _DELAY_TOLERANCE_US)
    wrong = rows[excessive]
    if len(wrong):
        delay_ms, elapsed_ms = int(capture.acks["delay_us"][wrong[0]]) / 1000, int(elapsed[excessive][0]) / 1000
        yield Broken(
            rule="rfc9000-13.2.5-ack-delay-too-long",
            actual=f"ACK Delay {delay_ms:.3f} ms, but the packet had arrived {elapsed_ms:.3f} ms before; "
            f"{len(wrong)} ACK frames have too long a delay",
            packets=shown(capture.acks["packet"][wrong]),
        )


def ecn(side: Side) -> Iterator[Broken]:
    """The ECN counts agree with the ECN marks of the packets that arrived."""
    if not side.sound:
        return
    capture = side.capture
    acks = capture.acks
    for space, name in enumerate(SPACE_NAMES):
        rows = side.ack_frames()
        rows = rows[(capture.vantage.ack_space[rows] == space) & (acks["ect0"][rows] != NULL)]
        if not len(rows):
            continue
        yield from _decreases(side, rows, name)
        too_high = list(_too_high(side, rows, space, name))
        yield from too_high
        if not too_high:
            yield from _too_low(side, rows, space, name)


def _decreases(side: Side, rows: Ints, name: str) -> Iterator[Broken]:
    acks = side.capture.acks
    order = np.argsort(side.capture.packets["packet_number"][acks["packet"][rows]], kind="stable")
    for count, title in _COUNTS.items():
        back = np.flatnonzero(np.diff(acks[count][rows[order]]) < 0)
        if len(back):
            pair = rows[order][back[0] : back[0] + 2]
            yield Broken(
                rule="rfc9000-13.4.2-ecn-counts-decrease",
                actual=f"{name} space: the {title} count falls from {acks[count][pair[0]]} to {acks[count][pair[1]]}",
                packets=shown(acks["packet"][pair]),
            )
            return


def _too_high(side: Side, rows: Ints, space: int, name: str) -> Iterator[Broken]:
    capture = side.capture
    peers = side.sent_by_peer
    read = capture.packets["decrypted"][peers] == 1
    counted = peers[~read | (capture.vantage.packet_space[peers] == space)]
    marks = capture.vantage.packet_ecn[counted]
    place = np.searchsorted(counted, capture.acks["packet"][rows])
    for column, mark in (("ect0", _ECT0), ("ect1", _ECT1), ("ce", _CE)):
        received = np.concatenate(([0], np.cumsum(marks == mark)))[place]
        excessive = capture.acks[column][rows] > received
        wrong = rows[excessive]
        if len(wrong):
            count, limit = capture.acks[column][wrong[0]], received[excessive][0]
            yield Broken(
                rule=f"rfc9000-19.3.2-{column}-count-too-high",
                actual=f"{name} space: {_COUNTS[column]} count {count} after {limit} such packets had arrived; "
                f"{len(wrong)} ACK frames have too high a count",
                packets=shown(capture.acks["packet"][wrong]),
            )
            if column != "ce":
                return


def _too_low(side: Side, rows: Ints, space: int, name: str) -> Iterator[Broken]:
    """Each ACK frame counts at least the marked packets that it and the frames with counts before it acknowledge. A
    count that stands still and catches up later breaks the rule, too."""
    capture = side.capture
    acks = capture.acks
    rows = rows[np.argsort(capture.packets["packet_number"][acks["packet"][rows]], kind="stable")]
    numbers, arrived = _numbers(capture, side.got, space)
    if not len(numbers):
        return
    frame, first, last = capture.ranges
    mine = np.isin(frame, rows)
    place = np.full(len(acks), NULL)
    place[rows] = np.arange(len(rows))
    low, high = np.searchsorted(numbers, first[mine]), np.searchsorted(numbers, last[mine], side="right")
    earliest = _earliest(place[frame[mine]], low, high, len(numbers), len(rows))
    marks = capture.vantage.packet_ecn[arrived]
    for column, mark, rule in (
        ("ect0", _ECT0, "ect-not-counted"),
        ("ect1", _ECT1, "ect-not-counted"),
        ("ce", _CE, "ce-not-counted"),
    ):
        owed = np.cumsum(np.bincount(earliest[marks == mark], minlength=len(rows) + 1)[: len(rows)])
        counted = acks[column][rows]
        short = np.flatnonzero(counted < owed)
        if len(short):
            at = short[0]
            yield Broken(
                rule=f"rfc9000-13.4.1-{rule}",
                actual=f"{name} space: {_COUNTS[column]} count {counted[at]} after {owed[at]} such packets were "
                f"acknowledged; {len(short)} ACK frames have too low a count",
                packets=shown(acks["packet"][rows[short]]),
            )


def _earliest(values: Ints, low: Ints, high: Ints, length: int, none: int) -> Ints:
    """For each place of an array of this length, the smallest of the `values` whose slice `low:high` contains the
    place; `none` where no slice does.

    Each slice is the union of two slices of 1, 2, 4, … places. These are written first, and then halved again and
    again.
    """
    steps = [np.full(length, none) for _ in range(length.bit_length())]
    within = high > low
    values, low, high = values[within], low[within], high[within]
    power = np.frexp(high - low)[1] - 1
    for exponent in np.unique(power).tolist():
        same = power == exponent
        np.minimum.at(steps[exponent], low[same], values[same])
        np.minimum.at(steps[exponent], high[same] - (1 << exponent), values[same])
    for exponent in range(len(steps) - 1, 0, -1):
        half = 1 << (exponent - 1)
        np.minimum(steps[exponent - 1], steps[exponent], out=steps[exponent - 1])
        np.minimum(steps[exponent - 1][half:], steps[exponent][:-half], out=steps[exponent - 1][half:])
    return steps[0]


DETECTORS = (acknowledged, acks_of_acks, delays, ecn)
