"""Checks of key updates, keys of versions, discarded keys and closing (RFC 9000 §10, RFC 9001 §4.9, §5.7, §6, RFC
9369)."""

from collections.abc import Iterator

import numpy as np

from runner.decode.columns import NULL, SERVER
from runner.decode.keys import VERSION_2
from runner.judge.rules.packet_rules import broken, counted, shown
from runner.judge.rules.side import EARLY, HANDSHAKE, INITIAL, ONE_RTT, Broken, Side
from runner.trace.recording import APPLICATION, find
from runner.units import format_count

_PROCESSED_NS = 500_000_000  # an endpoint may need this long to process a packet that arrived
_APPLICATION_ERROR = 0x0C


def generations(side: Side) -> Iterator[Broken]:
    """Key updates follow the rules of RFC 9001 §6."""
    capture = side.capture
    packets = capture.packets
    rows = side.of_type(ONE_RTT)
    order = np.argsort(packets["packet_number"][rows], kind="stable")
    generation = packets["key_generation"][rows]
    back = np.flatnonzero(np.diff(generation[order]) < 0)
    if len(back):
        pair = rows[order][back[0] : back[0] + 2]
        actual = "packet {} has older keys than packet {}".format(*packets["packet_number"][pair[::-1]])
        yield Broken("rfc9001-6.4-old-keys-on-higher-number", actual, shown(pair), pair=True)
        return
    if not side.sound:
        return
    got = side.of_type(ONE_RTT, got=True)
    acks = side.ack_frames(got=True, space=APPLICATION)
    for number in range(1, int(generation.max(initial=0)) + 1):
        updated = rows[generation == number]
        if not len(updated):
            continue
        first = int(updated[0])
        if (packets["key_generation"][got[got < first]] >= number).any():
            continue  # this update is the response to the peer's update
        if number == 1 and not side.confirmed(first):
            actual = "a packet of key phase 1 before the handshake was confirmed"
            yield Broken("rfc9001-6.1-update-before-confirmed", actual, (first,))
            return
        if number == 1:
            continue  # the first update needs only a confirmed handshake
        before = packets["packet_number"][rows[generation == number - 1]]
        arrived = capture.ack_frames["largest"][acks[capture.ack_frames["packet"][acks] < first]]
        if not len(before) or not (arrived >= before.min()).any():
            actual = f"no packet of key generation {number - 1} had been acknowledged"
            yield Broken("rfc9001-6.1-update-before-ack", actual, (first,))
            return
    mine = side.ack_frames(space=APPLICATION)
    place = find(packets["packet_number"][got], capture.ack_frames["largest"][mine])
    mine, place = mine[place != NULL], place[place != NULL]
    old = packets["key_generation"][capture.ack_frames["packet"][mine]] < packets["key_generation"][got[place]]
    late = capture.ack_frames["packet"][mine[old]]
    yield from counted("rfc9001-6.2-ack-with-old-keys", late, "ACK frame", " in packets with old keys")


def discarded(side: Side) -> Iterator[Broken]:
    """Initial keys and Handshake keys are discarded in time (RFC 9001 §4.9)."""
    capture = side.capture
    quiet = ~capture.closing
    initials = side.of_type(INITIAL)
    initials = initials[quiet[initials]]
    handshakes = side.of_type(HANDSHAKE)
    handshakes = handshakes[quiet[handshakes]]
    datagram = capture.packets["datagram"]
    late = initials[:0]
    if side.is_client:
        if len(first := side.of_type(HANDSHAKE)[:1]):
            late = initials[datagram[initials] > datagram[first[0]]]
    elif len(arrived := side.of_type(HANDSHAKE, got=True)[:1]):
        late = initials[side.time(initials) > side.at(int(arrived[0])) + _PROCESSED_NS]
        # A server that lost its state begins again with another ID, and can't read that packet.
        for target in side.ids("dcid", arrived):
            late = side.with_id("scid", target, late)
    whose = "its own" if side.is_client else "a"
    yield from counted(
        f"rfc9001-4.9.1-{side.role}-initial-late", late, "Initial packet", f" after {whose} Handshake packet"
    )
    done = side.frames("handshake_done", got=side.is_client)
    if not len(done):
        return
    confirmed = int(capture.frames["packet"][done[0]])
    if side.is_client:
        late = handshakes[side.time(handshakes) > side.at(confirmed) + _PROCESSED_NS]
    else:
        late = handshakes[datagram[handshakes] > datagram[confirmed]]
    yield from counted(f"rfc9001-4.9.2-{side.role}-handshake-late", late, "Handshake packet", " after HANDSHAKE_DONE")


def versions(side: Side) -> Iterator[Broken]:
    """Keys and headers belong to the QUIC version in use (RFC 9369 §3.3, §4.1)."""
    packets = side.capture.packets
    rows = side.sent_read[packets["key_version"][side.sent_read] != NULL]
    types, keys = side.capture.type[rows], packets["key_version"][rows]
    version = np.where(types == ONE_RTT, side.scope.row.value("version") or 0, packets["version"][rows])
    for kinds, rule in (((INITIAL,), "3.3.1-initial-keys"), ((EARLY, HANDSHAKE, ONE_RTT), "3.3.2-key-labels")):
        wrong = rows[np.isin(types, kinds) & (keys != version) & (version > 0)]
        yield from counted(f"rfc9369-{rule}", wrong, "packet", " with the keys of another version")
    parameters = side.parameters
    if parameters and "version_information" not in parameters:
        actual = "the transport parameters lack version_information"
        yield from broken("rfc9369-4-no-version-information", rows[version == VERSION_2], actual)
    handshakes = side.of_type(HANDSHAKE)
    # When the server has chosen a version, its Initial packets have this negotiated version.
    negotiated = packets["version"][side.of_type(INITIAL, got=side.is_client)]
    if len(handshakes) and len(negotiated):
        wrong = handshakes[packets["version"][handshakes] != negotiated[-1]]
        other = f" of another version than 0x{negotiated[-1]:08x}"
        yield from counted("rfc9369-4.1-handshake-version", wrong, "Handshake packet", other)
    early = side.of_type(EARLY)
    original = side.scope.row.value("original_version")
    wrong = early[packets["version"][early] != original]
    if not side.scope.count(SERVER, "version_negotiation"):
        actual = f"{len(wrong)} 0-RTT packets of another version than 0x{original or 0:08x}"
        yield from broken("rfc9369-4.1-early-data-version", wrong, actual)


def early_1rtt(side: Side) -> Iterator[Broken]:
    """The client sends 1-RTT packets, and the server reads them, only after the peer's Finished (RFC 9001 §5.7). Then
    the server sends HANDSHAKE_DONE (§4.1.2)."""
    if not side.sound or not side.messages:
        return
    capture = side.capture
    finished = side.finished(1 - side.sender)
    if side.is_client:
        rows = side.of_type(ONE_RTT)
        early = rows if finished is None else rows[rows < finished]
        yield from broken("rfc9001-5.7-client-1rtt-early", early, f"{len(early)} 1-RTT packets before Finished")
        return
    done = capture.frames["packet"][side.frames("handshake_done")]
    early = done if finished is None else done[done < finished]
    yield from counted("rfc9000-19.20-handshake-done-early", early, "HANDSHAKE_DONE frame", " before Finished")
    acks = side.ack_frames(space=APPLICATION)
    numbers = capture.packets["packet_number"][side.of_type(ONE_RTT, got=True)]
    read = acks[np.isin(capture.ack_frames["largest"][acks], numbers)]
    read = read if finished is None else read[capture.ack_frames["packet"][read] < finished]
    read, rule = capture.ack_frames["packet"][read], "rfc9001-5.7-server-1rtt-read-early"
    yield from counted(rule, read, "ACK frame", " for 1-RTT packets before Finished")
    if finished is not None and not len(done):
        rows = side.of_type(ONE_RTT)
        late = rows[(side.time(rows) > side.at(finished) + 2 * _PROCESSED_NS) & ~capture.closing[rows]]
        if len(late):
            actual = "no HANDSHAKE_DONE after the client's Finished"
            yield Broken("rfc9001-4.1.2-handshake-done-missing", actual, (finished, *shown(late[:1])))


def closing(side: Side) -> Iterator[Broken]:
    """After it received CONNECTION_CLOSE, an endpoint sends only CONNECTION_CLOSE. In Initial and Handshake packets, a
    CONNECTION_CLOSE with APPLICATION_ERROR has no reason phrase (RFC 9000 §10.2)."""
    capture = side.capture
    frames = capture.frames
    rows = side.frames("connection_close")
    early = rows[np.isin(capture.type[frames["packet"][rows]], (INITIAL, HANDSHAKE))]
    reasons = early[(frames["value"][early] == _APPLICATION_ERROR) & (frames["length"][early] > 0)]
    if len(reasons):
        reason = (frames.cell("payload", int(reasons[0])) or b"").decode(errors="replace")
        yield Broken(
            "rfc9000-10.2.3-reason-not-cleared", f"the reason phrase “{reason[:40]}”", shown(frames["packet"][reasons])
        )
    closes = frames["packet"][side.frames("connection_close", "application_close", got=True)]
    closes = closes[capture.type[closes] == ONE_RTT]
    sent = side.of_type(ONE_RTT)
    if not len(closes) or not len(sent) or sent[0] > closes[0]:
        return
    if not side.is_client:
        done = frames["packet"][side.frames("handshake_done")]
        if not len(done) or done[0] > closes[0]:
            return
    close = int(closes[0])
    late = side.sent_read[side.time(side.sent_read) > side.at(close) + _PROCESSED_NS]
    # An endpoint that has forgotten the connection may answer late packets by stateless resets (RFC 9000 §10.2).
    late = late[~capture.closing[late] & ~capture.packets.named("type", "stateless_reset")[late]]
    if len(late):
        actual = f"{format_count(len(late), 'packet')} later than 0.5 s after the peer's CONNECTION_CLOSE"
        yield Broken("rfc9000-10.2.2-sent-while-draining", actual, (close, *shown(late)))
        return
    own = sent[capture.closing[sent]]
    if not len(own) or own[0] < close:
        return  # an endpoint that closed the connection itself answers packets with CONNECTION_CLOSE (§10.2.1)
    allowed = 1
    if not _read_close(side, close, int(own[0])):
        # The endpoint may have closed the connection itself before it read the peer's CONNECTION_CLOSE.
        allowed += len(np.unique(capture.packets["datagram"][side.sent_by_peer[side.sent_by_peer >= close]]))
    if len(own) > allowed:
        actual = f"{format_count(len(own), 'packet')} with CONNECTION_CLOSE after the peer's CONNECTION_CLOSE"
        yield Broken("rfc9000-10.2.2-sent-while-draining", actual, (close, *shown(own)))


def _read_close(side: Side, close: int, packet: int) -> bool:
    """Whether the endpoint had certainly read the peer's packet `close` when it sent `packet`: it acknowledges the
    packet by then, or the packet arrived long before."""
    capture = side.capture
    acks = side.ack_frames(space=APPLICATION)
    _, first, last = capture.ack_ranges(acks[capture.ack_frames["packet"][acks] <= packet])
    number = capture.packets["packet_number"][close]
    return bool(((first <= number) & (number <= last)).any()) or side.at(packet) > side.at(close) + _PROCESSED_NS


def done_from_client(side: Side) -> Iterator[Broken]:
    """Only a server sends HANDSHAKE_DONE and NEW_TOKEN, and a token is not empty."""
    if not side.is_client:
        rows = side.frames("new_token")
        empty = rows[side.capture.frames["length"][rows] == 0]
        packets = side.capture.frames["packet"][empty]
        yield from broken("rfc9000-19.7-token-empty", packets, "NEW_TOKEN with an empty token")
        return
    for name, rule in (("handshake_done", "19.20-handshake-done-from-client"), ("new_token", "19.7-token-from-client")):
        rows = side.frames(name)
        yield from counted(f"rfc9000-{rule}", side.capture.frames["packet"][rows], f"{name.upper()} frame")


KEY_DETECTORS = (generations, discarded, versions, early_1rtt, closing, done_from_client)
