"""Checks of packets, acknowledgments and ECN counts (RFC 9000 §12 to §14, §17, §19.3)."""

from collections.abc import Iterator

import numpy as np

from runner.decode.columns import MTU, NULL
from runner.decode.wire import FRAME_NAMES, NAMES_OF_FRAMES, varint
from runner.judge.rules.side import EARLY, HANDSHAKE, INITIAL, ONE_RTT, SPACE_NAMES, Broken, Side
from runner.trace.recording import APPLICATION, Bools, Ints, Vantage, find, first_cover
from runner.units import format_count

# Packets: their numbers, headers and sizes, and the frames that they may contain (RFC 9000 §12, §14, §17).

_FULL = 1200  # smallest datagram with an Initial packet, in bytes (RFC 9000 §14.1)
_LONGEST_ID = 20
_NAMES = sorted(set(FRAME_NAMES.values()))
_HANDSHAKE_FRAMES = ("padding", "ping", "ack", "crypto", "connection_close", "unknown", "application_close")
_NOT_EARLY = ("ack", "crypto", "handshake_done", "new_token", "path_response", "retire_connection_id")


def shown(rows: Ints) -> tuple[int, ...]:
    """The first few rows, for a finding."""
    return tuple(int(row) for row in rows[:5])


def broken(rule: str, packets: Ints, actual: str) -> Iterator[Broken]:
    """The rule that these packets broke; nothing when there are none."""
    if len(packets):
        yield Broken(rule, actual, shown(packets))


def counted(rule: str, packets: Ints, noun: str, rest: str = "") -> Iterator[Broken]:
    """The rule that these packets broke, with their number and the noun for them as the beginning of the text."""
    yield from broken(rule, packets, f"{format_count(len(packets), noun)}{rest}")


def numbers(side: Side) -> Iterator[Broken]:
    """In each packet number space, every packet has a higher number than the packet before."""
    packets, vantage = side.capture.packets, side.capture
    for space, name in enumerate(SPACE_NAMES):
        rows = side.sent_read[vantage.packet_space[side.sent_read] == space]
        rows = rows[~side.capture.closing[rows]]
        for part in _attempts(side, rows, space):
            number = packets["packet_number"][part]
            order = np.argsort(number, kind="stable")
            again = order[1:][np.diff(number[order]) == 0]
            if len(again):
                first = part[np.flatnonzero(number == number[again[0]])[:2]]
                yield Broken(
                    "rfc9000-12.3-number-reused",
                    f"{format_count(len(again), 'number')} used twice, the first is {name} packet {number[again[0]]}",
                    shown(first),
                    pair=True,
                )
                continue
            back = np.flatnonzero(np.diff(number) < 0)
            if len(back):
                yield Broken(
                    "rfc9000-12.3-number-not-increasing",
                    f"{name} packet {number[back[0] + 1]} was sent after packet {number[back[0]]}; "
                    f"{format_count(len(back), 'packet')} with a lower number than the packet before",
                    shown(part[back[0] : back[0] + 2]),
                )


def _attempts(side: Side, rows: Ints, space: int) -> list[Ints]:
    """The packets of a packet number space, divided into sequences whose numbers are independent.

    A server may give up a handshake and begin a new handshake when a late ClientHello arrives. Then its numbers start
    again, with another source connection ID. A client that starts its numbers again after a Retry breaks another rule
    (§17.2.5.3).
    """
    if space == 2 or not len(rows):
        return [rows]
    codes, _ = side.capture.ids("scid")
    if side.is_client:
        codes, _ = side.capture.ids("dcid")
        retries = side.of_type(4, got=True)
        return [rows[codes[rows] == code] for code in np.unique(codes[rows])] if len(retries) else [rows]
    return [rows[codes[rows] == code] for code in np.unique(codes[rows])]


def destinations(side: Side) -> Iterator[Broken]:
    """All packets of a datagram have the same destination connection ID."""
    packets = side.capture.packets
    rows = side.sent_read[side.single_datagrams & (packets["packet_number"][side.sent_read] != NULL)]
    codes, _ = side.capture.ids("dcid")
    same = packets["datagram"][rows][1:] == packets["datagram"][rows][:-1]
    mixed = rows[1:][same & (codes[rows][1:] != codes[rows][:-1])]
    yield from counted("rfc9000-12.2-mixed-destinations", mixed, "datagram", " with several destination connection IDs")


def payloads(side: Side) -> Iterator[Broken]:
    """Every packet contains frames. The frames are known and complete, and their types have the shortest encoding."""
    capture = side.capture
    numbered = side.sent_read[capture.packets["packet_number"][side.sent_read] != NULL]
    empty = numbered[~capture.framed[numbered]]
    yield from counted("rfc9000-12.4-empty-payload", empty, "packet", " without a frame")
    found: dict[str, Broken] = {}
    for row in side.frames("unknown"):
        kind, payload = int(capture.frames["type"][row]), capture.frames.cell("payload", int(row)) or b""
        if kind not in FRAME_NAMES:
            if _may_extend(side):
                continue
            rule, actual = "12.4-unknown-frame", f"a frame of the unknown type 0x{kind:x}"
        elif payload[:1] >= b"\x40" and kind < 0x40:
            rule, actual = "12.4-long-frame-type", f"frame type 0x{kind:x} takes several bytes"
        elif kind in (2, 3) and _goes_below_zero(payload):
            rule, actual = "19.3.1-ack-range-negative", "an ACK frame with a range below packet number 0"
        else:
            rule, actual = "12.4-malformed-frame", f"a malformed {FRAME_NAMES[kind].upper()} frame"
        found.setdefault(rule, Broken(f"rfc9000-{rule}", actual, (int(capture.frames["packet"][row]),)))
    yield from found.values()
    frames = np.concatenate([side.frames(name) for name in _NAMES] or [np.empty(0, dtype=np.int64)])
    long = frames[capture.frames["type_length"][frames] != NULL]
    if len(long):
        kind = int(capture.frames["type"][long[0]])
        actual = f"frame type 0x{kind:x} takes {capture.frames['type_length'][long[0]]} B"
        yield Broken("rfc9000-12.4-long-frame-type", actual, shown(capture.frames["packet"][long]))


def _goes_below_zero(frame: bytes) -> bool:
    """Whether a range of this ACK frame goes below packet number 0 (RFC 9000 §19.3.1). False when the frame is cut
    off."""
    try:
        smallest, position = varint(frame, 1)
        _, position = varint(frame, position)  # ACK Delay
        count, position = varint(frame, position)
        length, position = varint(frame, position)
        smallest -= length
        for _ in range(count):
            gap, position = varint(frame, position)
            length, position = varint(frame, position)
            smallest -= gap + 2 + length
    except IndexError:
        return False
    return smallest < 0 and position <= len(frame)


def _may_extend(side: Side) -> bool:
    """Whether the peer may have agreed on an extension that bentpipe does not know (RFC 9000 §19.21): one of its
    transport parameters is unknown and not reserved (§18.1)."""
    unknown = [int(name, 16) for name in side.peer_parameters if name.startswith("0x")]
    return any(number % 31 != 27 for number in unknown)


def wrong_packets(side: Side) -> Iterator[Broken]:
    """A packet contains only frames that its packet type allows."""
    capture = side.capture
    for name in _NAMES:
        rows = side.frames(name)
        if not len(rows):
            continue
        packets = capture.frames["packet"][rows]
        types = capture.type[packets]
        if name not in _HANDSHAKE_FRAMES:
            for kind, word in ((INITIAL, "Initial"), (HANDSHAKE, "Handshake")):
                wrong = packets[types == kind]
                actual = f"{format_count(len(wrong), f'{name.upper()} frame')} in {word} packets"
                yield from broken(f"rfc9000-12.5-frame-in-{word.lower()}", wrong, actual)
        if name in _NOT_EARLY:
            early, rule = packets[types == EARLY], "rfc9000-12.5-frame-in-early-data"
            yield from counted(rule, early, f"{name.upper()} frame", " in 0-RTT packets")
        if name == "application_close":
            yield from broken(
                "rfc9000-10.2.3-application-close-early",
                packets[np.isin(types, (INITIAL, HANDSHAKE))],
                "an Initial or Handshake packet with CONNECTION_CLOSE of type 0x1d",
            )


def headers(side: Side) -> Iterator[Broken]:
    """Reserved bits, fixed bits and the lengths of connection IDs have allowed values."""
    capture = side.capture
    rows = side.sent_read[capture.packets["first_byte"][side.sent_read] != NULL]
    first_byte, short = capture.packets["first_byte"][rows], capture.type[rows] == ONE_RTT
    for chosen, bits, rule in ((~short, 0x0C, "17.2-reserved-bits-long"), (short, 0x18, "17.3.1-reserved-bits-short")):
        wrong = rows[chosen & (first_byte & bits != 0)]
        yield from counted(f"rfc9000-{rule}", wrong, "packet", " with reserved bits that are not 0")
    yield from _fixed_bits(side, rows[first_byte & 0x40 == 0])
    # In later packets, the peer chose the destination connection ID.
    first = rows[~short][:1] if side.is_client else rows[:0]
    for name, chosen in (("scid", rows[~short]), ("dcid", first)):
        for value in side.ids(name, chosen):
            if len(value) > _LONGEST_ID:
                actual = f"a connection ID of {len(value)} B"
                yield Broken("rfc9000-17.2-id-too-long", actual, shown(side.with_id(name, value, chosen)))


def _fixed_bits(side: Side, cleared: Ints) -> Iterator[Broken]:
    if not len(cleared) or not side.peer_parameters:
        return
    if "grease_quic_bit" not in side.peer_parameters:
        short = side.capture.type[cleared] == ONE_RTT
        for chosen, rule in ((cleared[~short], "17.2-fixed-bit-long"), (cleared[short], "17.3.1-fixed-bit-short")):
            yield from broken(f"rfc9000-{rule}", chosen, f"the fixed bit is 0 in {format_count(len(chosen), 'packet')}")
    elif side.is_client and side.sound:
        arrived = side.of_type(HANDSHAKE, got=True)
        early = cleared[side.capture.type[cleared] == INITIAL]
        early = early[early < arrived[0]] if len(arrived) else early
        if not (side.capture.packets["token_length"][side.of_type(INITIAL)] > 0).any():
            actual = f"the fixed bit is 0 in {format_count(len(early), 'packet')}"
            yield from broken("rfc9287-3.1-cleared-before-offer", early, actual)


def truncated_numbers(side: Side) -> Iterator[Broken]:
    """A packet number is encoded in enough bytes. The required size depends on the largest packet number that has been
    acknowledged (RFC 9000 §17.1, appendix A.2)."""
    if not side.sound:
        return
    capture = side.capture
    acks = side.ack_frames(got=True)
    for space, name in enumerate(SPACE_NAMES):
        rows = side.sent_read[capture.packet_space[side.sent_read] == space]
        rows = rows[capture.packets["first_byte"][rows] != NULL]
        if not len(rows):
            continue
        mine = acks[capture.ack_space[acks] == space]
        highest = np.maximum.accumulate(np.concatenate(([-1], capture.ack_frames["largest"][mine])))
        known = highest[np.searchsorted(capture.ack_frames["packet"][mine], rows)]
        number = capture.packets["packet_number"][rows]
        bits = 8 * ((capture.packets["first_byte"][rows] & 3) + 1)
        short = rows[(number - known) * 2 > (np.int64(1) << bits)]
        yield from counted(
            "rfc9000-17.1-number-truncated", short, f"{name} packet", " with a packet number of too few bytes"
        )


def sizes(side: Side) -> Iterator[Broken]:
    """Datagrams with Initial packets have at least 1200 B; for a server, only ack-eliciting Initial packets count. No
    datagram is larger than the peer accepts."""
    capture = side.capture
    packets, length = capture.packets, capture.datagrams["payload_length"]
    initials = side.of_type(INITIAL)
    if not side.is_client:
        initials = initials[capture.eliciting[initials]]
    small = initials[length[packets["datagram"][initials]] < _FULL]
    if len(small):
        actual = f"a datagram of {int(length[packets['datagram'][small]].min())} B"
        yield Broken(f"rfc9000-14.1-{side.role}-initial-small", actual, shown(small))
    limit = side.peer_parameters.get("max_udp_payload_size")
    if isinstance(limit, int) and limit >= _FULL:
        rows = _after_parameters(side)
        datagrams = packets["datagram"][rows]
        large = rows[(length[datagrams] > limit) & (capture.datagrams["ip_length"][datagrams] <= MTU)]
        if len(large):
            actual = f"a datagram of {int(length[packets['datagram'][large]].max())} B, limit {limit} B"
            yield Broken("rfc9000-18.2-datagram-above-peer-limit", actual, shown(large))


def _after_parameters(side: Side) -> Ints:
    """The packets that an endpoint sent when it knew the peer's transport parameters. A server learns them with the
    ClientHello, before its own ServerHello. A client has read them when it sends its Finished or a 1-RTT packet."""
    if not side.is_client:
        return side.of_type(INITIAL, HANDSHAKE, ONE_RTT)
    crypto = side.capture.frames["packet"][side.frames("crypto")]
    known = np.union1d(crypto[side.capture.type[crypto] == HANDSHAKE], side.of_type(ONE_RTT))
    datagram = side.capture.packets["datagram"][side.sent_read]
    return side.sent_read[datagram >= side.capture.packets["datagram"][known[0]]] if len(known) else known


def early_after_1rtt(side: Side) -> Iterator[Broken]:
    """A client sends no 0-RTT packet after it has read a 1-RTT packet; a server's Initial packets have no token."""
    if side.is_client:
        early = side.of_type(EARLY)
        # The acknowledgment of a 1-RTT packet shows that the client has read it.
        later = side.capture.ack_frames["packet"][side.ack_frames(space=APPLICATION)]
        late = early[early > later[0]] if len(later) else early[:0]
        late = late[side.time(late) > side.at(int(later[0]))] if len(late) else late
        actual = f"{len(late)} 0-RTT packets after the acknowledgment of a 1-RTT packet"
        yield from broken("rfc9000-17.2.3-early-after-1rtt", late, actual)
        return
    initials = side.of_type(INITIAL)
    tokens = initials[side.capture.packets["token_length"][initials] > 0]
    yield from counted("rfc9000-17.2.2-token-from-server", tokens, "Initial packet", " with a token")


PACKET_DETECTORS = (
    numbers,
    destinations,
    payloads,
    wrong_packets,
    headers,
    truncated_numbers,
    sizes,
    early_after_1rtt,
)


# Acknowledgments and ECN counts (RFC 9000 §13, §19.3).

_ECT1, _ECT0, _CE = 1, 2, 3  # codepoints of the IP header (RFC 3168 §5)
_COUNTS = {"ect0": "ECT(0)", "ect1": "ECT(1)", "ce": "ECN-CE"}  # column of a count → its name in RFC 9000 §19.3.2
_ACK_DELAY_MS = 25  # max_ack_delay of an endpoint that does not send it (RFC 9000 §18.2)
_TIMER_NS = 20_000_000  # allowed lateness of a timer
_DELAY_TOLERANCE_US = 20_000  # allowance for clocks and rounding
_AT_ONCE_NS = 500_000_000  # later than this, an endpoint has read a packet that arrived
_ALLOWED_EARLY = ("padding", "ping", "ack", "crypto")  # frames of a handshake that goes on (RFC 9000 §12.5)


def _numbers(capture: Vantage, rows: Ints, space: int) -> tuple[Ints, Ints]:
    """Sorted distinct packet numbers, and for each number the row of the first packet with this number."""
    rows = rows[capture.packet_space[rows] == space]
    number = capture.packets["packet_number"][rows]
    number, first = np.unique(number, return_index=True)
    return number[number >= 0], rows[first][number >= 0]


def acknowledged(side: Side) -> Iterator[Broken]:
    """An endpoint acknowledges only packets that were sent and that have arrived."""
    if not side.sound:
        return
    theirs = side.scope.mine(side.far.packets, 1 - side.sender)
    for space, name in enumerate(SPACE_NAMES):
        mine = side.ack_frames(space=space)
        owner, first, last = side.capture.ack_ranges(mine)
        if not len(owner):
            continue
        frame = mine[owner]
        sent, _ = _numbers(side.far, np.flatnonzero(theirs), space)
        arrived, arrivals = _numbers(side.capture, side.got, space)
        unsent = _missing(first, last, sent)
        low, high = np.searchsorted(arrived, first), np.searchsorted(arrived, last, side="right")
        unreceived = (high - low < last - first + 1) & ~unsent
        early = (_latest(arrivals, low, high) > side.capture.ack_frames["packet"][frame]) & ~unsent & ~unreceived
        for wrong, rule, word in (
            (unsent, "13.1-ack-of-unsent", "sent"),
            (unreceived, "13.1-ack-of-unreceived", "received"),
            (early, "13.1-ack-of-unreceived", "received by then"),
        ):
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                yield Broken(
                    f"rfc9000-{rule}",
                    f"{name} space: acknowledgment of packet numbers {first[at]} to {last[at]}, not all {word}",
                    shown(np.unique(side.capture.ack_frames["packet"][frame[wrong]])),
                )
    yield from _refused(side)


def _refused(side: Side) -> Iterator[Broken]:
    """A server that rejected 0-RTT acknowledges no 0-RTT packet (RFC 9001 §4.6.2)."""
    if side.is_client or side.scope.row.either("early_data_accepted") is not False:
        return
    early, _ = _numbers(side.capture, side.of_type(EARLY, got=True), APPLICATION)
    later, _ = _numbers(side.capture, side.of_type(ONE_RTT, got=True), APPLICATION)
    early = np.setdiff1d(early, later)
    mine = side.ack_frames(space=APPLICATION)
    owner, first, last = side.capture.ack_ranges(mine)
    wrong = np.searchsorted(early, last, side="right") > np.searchsorted(early, first)
    if wrong.any():
        yield Broken(
            "rfc9001-4.6.2-rejected-early-data-read",
            f"{format_count(int(wrong.sum()), 'ACK range')} with packet numbers of 0-RTT packets",
            shown(np.unique(side.capture.ack_frames["packet"][mine[owner[wrong]]])),
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
    largest = capture.ack_frames["largest"][rows]
    known = np.maximum.accumulate(np.concatenate(([-1], largest)))[:-1]
    low, high = np.searchsorted(numbers, known, side="right"), np.searchsorted(numbers, largest, side="right")
    packets = capture.ack_frames["packet"][rows]
    wrong = (high > low) & (eliciting_before[np.maximum(high, low)] == eliciting_before[low])
    wrong &= ~capture.eliciting[packets] & ~capture.closing[packets]
    peers = side.sent_by_peer
    eliciting_times = side.time(peers[capture.eliciting[peers] | (capture.packets["decrypted"][peers] == 0)])
    times = side.time(packets)
    delay = side.parameters.get("max_ack_delay", _ACK_DELAY_MS)
    wait = (delay if isinstance(delay, int) else _ACK_DELAY_MS) * 1_000_000 + _TIMER_NS
    recent = np.searchsorted(eliciting_times, times, side="right") - np.searchsorted(eliciting_times, times - wait)
    wrong &= recent == 0
    yield from counted(
        "rfc9000-13.2.1-ack-of-acks", packets[wrong], "ACK-only packet", " in answer to ACK-only packets"
    )


def unacknowledged(side: Side) -> Iterator[Broken]:
    """An endpoint acknowledges each ack-eliciting Initial and Handshake packet. It shows that it has the keys by a
    packet of the same type before, and that it is alive by one later. It shows that it accepts the packet's header by
    the acknowledgment of another packet with this header."""
    if not side.sound:
        return
    capture, packets = side.capture, side.capture.packets
    for space, kind in enumerate((INITIAL, HANDSHAKE)):
        name, acks = SPACE_NAMES[space], side.ack_frames(space=space)
        owner, first, last = capture.ack_ranges(acks)
        own, rows = side.of_type(kind), side.of_type(kind, got=True)
        own = own[~capture.closing[own]]
        begins_once = len(side.ids("scid", own)) == 1  # a server that begins again knows nothing of packets before
        if not len(owner) or not len(rows) or not begins_once:
            continue
        number = packets["packet_number"][rows]
        points, place = np.unique(number, return_inverse=True)
        missing = np.isinf(first_cover(points, first, last, owner.astype(np.float64)))[place]
        headers = _headers(capture, rows)
        # An endpoint may refuse numbers below those that it acknowledged (RFC 9000 §13.2.3).
        highest = np.maximum.accumulate(np.concatenate(([-1], capture.ack_frames["largest"][acks])))
        known = highest[np.searchsorted(capture.ack_frames["packet"][acks], rows)]
        wrong = missing & np.isin(headers, headers[~missing]) & _is_owed(side, rows) & (number > known)
        wrong &= (rows > own[0]) & (side.time(rows) + _AT_ONCE_NS < side.at(int(own[-1])))
        sought = rows[wrong]
        if len(sought) > 1:  # one packet may be lost in the endpoint's socket
            later = own[side.time(own) > side.at(int(sought[0])) + _AT_ONCE_NS][0]
            waited = (side.at(int(later)) - side.at(int(sought[0]))) / 1e9
            yield from counted(
                "rfc9000-13.2.1-handshake-unacknowledged",
                sought,
                f"{name} packet",
                f" without an acknowledgment, the first is number {packets['packet_number'][sought[0]]}; "
                f"{waited:.3f} s after it arrived, the {side.role} sent another {name} packet",
            )


def _is_owed(side: Side, rows: Ints) -> Bools:
    """Whether an endpoint must process these packets of its peer: ack-eliciting ones with a fixed bit and frames that
    the type allows, Initial packets of full datagrams, without a damaged packet in the same datagram."""
    capture, packets = side.capture, side.capture.packets
    datagram = packets["datagram"][rows]
    damaged = packets["datagram"][side.sent_by_peer[packets["decrypted"][side.sent_by_peer] == 0]]
    full = (capture.datagrams["payload_length"][datagram] >= _FULL) | (capture.type[rows] != INITIAL)
    others = capture.frames["packet"][side.frames(*(set(NAMES_OF_FRAMES) - set(_ALLOWED_EARLY)), got=True)]
    owed: Bools = capture.eliciting[rows] & full & (packets["first_byte"][rows] & 0x40 != 0)
    owed &= ~np.isin(datagram, damaged) & ~np.isin(rows, others)
    return owed


def _headers(capture: Vantage, rows: Ints) -> Ints:
    """A number for each packet that stands for its version, its connection IDs, its addresses and ports."""
    columns = capture.packets["version"], capture.ids("scid")[0], capture.ids("dcid")[0]
    route = capture.route[capture.packets["datagram"][rows]]
    numbers: Ints = np.unique([route, *(column[rows] for column in columns)], axis=1, return_inverse=True)[1]
    return numbers


def delays(side: Side) -> Iterator[Broken]:
    """The ACK Delay field is at most the time between the arrival of a packet and its acknowledgment."""
    if not side.sound:
        return
    capture = side.capture
    rows = side.ack_frames(space=APPLICATION)
    numbers, arrived = _numbers(capture, side.got, APPLICATION)
    place = find(numbers, capture.ack_frames["largest"][rows])
    rows, place = rows[place != NULL], place[place != NULL]
    elapsed = (capture.ack_frames["time_ns"][rows] - side.time(arrived[place])) // 1000
    excessive = (elapsed >= 0) & (capture.ack_frames["delay_us"][rows] > elapsed + _DELAY_TOLERANCE_US)
    wrong = rows[excessive]
    if len(wrong):
        delay_ms, elapsed_ms = int(capture.ack_frames["delay_us"][wrong[0]]) / 1000, int(elapsed[excessive][0]) / 1000
        yield Broken(
            "rfc9000-13.2.5-ack-delay-too-long",
            f"ACK Delay {delay_ms:.3f} ms, but the packet had arrived {elapsed_ms:.3f} ms before; "
            f"{format_count(len(wrong), 'ACK frame')} with too long a delay",
            shown(capture.ack_frames["packet"][wrong]),
        )


def frequencies(side: Side) -> Iterator[Broken]:
    """ACK_FREQUENCY asks for no shorter delay than the peer's min_ack_delay (draft-ietf-quic-ack-frequency §4)."""
    limit, frames = side.peer_parameters.get("min_ack_delay"), side.capture.frames
    if not isinstance(limit, int):
        return
    wanted: dict[int, int] = {}
    for row in side.frames("ack_frequency").tolist():
        fields, packet = frames.cell("payload", row), int(frames["packet"][row])
        if fields is not None and side.capture.type[packet] == ONE_RTT:
            _, position = varint(fields, 0)  # Sequence Number
            _, position = varint(fields, position)  # Ack-Eliciting Threshold
            wanted[packet], _ = varint(fields, position)
    wrong = np.array([packet for packet, delay in wanted.items() if delay < limit], dtype=np.int64)
    actual = f"a delay of {min(wanted.values(), default=0)} µs, the peer's min_ack_delay is {limit} µs"
    yield from broken("ack-frequency-4-delay-below-minimum", wrong, actual)


def ecn(side: Side) -> Iterator[Broken]:
    """The ECN counts agree with the ECN marks of the packets that arrived."""
    if not side.sound:
        return
    capture = side.capture
    acks = capture.ack_frames
    for space, name in enumerate(SPACE_NAMES):
        rows = side.ack_frames()
        rows = rows[(capture.ack_space[rows] == space) & (acks["ect0"][rows] != NULL)]
        if not len(rows):
            continue
        yield from _decreases(side, rows, name)
        too_high = list(_too_high(side, rows, space, name))
        yield from too_high
        if not too_high:
            yield from _too_low(side, rows, space, name)


def _decreases(side: Side, rows: Ints, name: str) -> Iterator[Broken]:
    acks = side.capture.ack_frames
    order = np.argsort(side.capture.packets["packet_number"][acks["packet"][rows]], kind="stable")
    for count, title in _COUNTS.items():
        back = np.flatnonzero(np.diff(acks[count][rows[order]]) < 0)
        if len(back):
            pair = rows[order][back[0] : back[0] + 2]
            actual = f"{name} space: the {title} count falls from {acks[count][pair[0]]} to {acks[count][pair[1]]}"
            yield Broken("rfc9000-13.4.1-ecn-counts-decrease", actual, shown(acks["packet"][pair]))
            return


def _too_high(side: Side, rows: Ints, space: int, name: str) -> Iterator[Broken]:
    capture = side.capture
    peers = side.sent_by_peer
    read = capture.packets["decrypted"][peers] == 1
    counted = peers[~read | (capture.packet_space[peers] == space)]
    marks = capture.packet_ecn[counted]
    place = np.searchsorted(counted, capture.ack_frames["packet"][rows])
    for column, mark in (("ect0", _ECT0), ("ect1", _ECT1), ("ce", _CE)):
        received = np.concatenate(([0], np.cumsum(marks == mark)))[place]
        excessive = capture.ack_frames[column][rows] > received
        wrong = rows[excessive]
        if len(wrong):
            count, limit = capture.ack_frames[column][wrong[0]], received[excessive][0]
            yield Broken(
                f"rfc9000-19.3.2-{column}-count-too-high",
                f"{name} space: {_COUNTS[column]} count {count} after "
                f"{format_count(limit, 'such packet')} had arrived; "
                f"{format_count(len(wrong), 'ACK frame')} with too high a count",
                shown(capture.ack_frames["packet"][wrong]),
            )
            if column != "ce":
                return


def _too_low(side: Side, rows: Ints, space: int, name: str) -> Iterator[Broken]:
    """Each ACK frame counts at least the marked packets that it and the frames with counts before it acknowledge. A
    count that stands still and catches up later breaks the rule, too."""
    capture = side.capture
    acks = capture.ack_frames
    rows = rows[np.argsort(capture.packets["packet_number"][acks["packet"][rows]], kind="stable")]
    numbers, arrived = _numbers(capture, side.got, space)
    if not len(numbers):
        return
    owner, first, last = capture.ack_ranges(rows)
    earliest = np.minimum(first_cover(numbers, first, last, owner.astype(np.float64)), len(rows)).astype(np.int64)
    marks = capture.packet_ecn[arrived]
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
                f"rfc9000-13.4.1-{rule}",
                f"{name} space: {_COUNTS[column]} count {counted[at]} after "
                f"acknowledgment of {format_count(owed[at], 'such packet')}; "
                f"{format_count(len(short), 'ACK frame')} with too low a count",
                shown(acks["packet"][rows[short]]),
            )


ACK_DETECTORS = (acknowledged, acks_of_acks, unacknowledged, delays, frequencies, ecn)
