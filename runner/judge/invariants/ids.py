"""Connection IDs: issued, used, retired (RFC 9000 §5.1, §7.2, §19.15, §19.16)."""

from collections.abc import Iterator

import numpy as np

from runner.judge.invariants.packets import shown
from runner.judge.side import EARLY, HANDSHAKE, INITIAL, ONE_RTT, RETRY, Broken, Side
from runner.trace.vantage import NULL

_SETTLED_NS = 1_000_000_000  # an endpoint may use IDs below Retire Prior To for this time


def _issued(side: Side, *, got: bool = False) -> list[tuple[int, int, bytes, bytes, int]]:
    """NEW_CONNECTION_ID frames as (sequence number, Retire Prior To, ID, reset token, row of the packet)."""
    frames = side.capture.frames
    return [
        (
            int(frames["value"][row]),
            int(frames["offset"][row]),
            frames.cell("payload", int(row)) or b"",
            frames.cell("reset_token", int(row)) or b"",
            int(frames["packet"][row]),
        )
        for row in side.frames("new_connection_id", got=got)
    ]


def issuing(side: Side) -> Iterator[Broken]:
    """NEW_CONNECTION_ID frames have valid values and agree with each other."""
    issued = _issued(side)
    if not issued:
        return
    if side.source == b"":
        yield Broken(
            rule="rfc9000-19.15-new-id-beside-empty",
            actual=f"{len(issued)} NEW_CONNECTION_ID frames of an endpoint with an empty connection ID",
            packets=(issued[0][4],),
        )
    by_sequence: dict[int, tuple[bytes, bytes]] = {}
    by_id: dict[bytes, int] = {side.source: 0} if side.source else {}
    tokens: dict[bytes, bytes] = {}
    if (reset_token := side.parameters.get("stateless_reset_token")) and side.source is not None:
        tokens[bytes.fromhex(str(reset_token))] = side.source
    for sequence, prior, value, token, packet in issued:
        if not 1 <= len(value) <= 20:
            yield Broken(
                rule="rfc9000-19.15-id-length", actual=f"a connection ID of {len(value)} bytes", packets=(packet,)
            )
            continue
        if prior > sequence:
            yield Broken(
                rule="rfc9000-19.15-retire-prior-to-high",
                actual=f"Retire Prior To {prior} in the frame of sequence number {sequence}",
                packets=(packet,),
            )
        if by_sequence.setdefault(sequence, (value, token)) != (value, token):
            yield Broken(
                rule="rfc9000-19.15-sequence-reused",
                actual=f"sequence number {sequence} has two connection IDs or tokens",
                packets=(packet,),
            )
        elif by_id.setdefault(value, sequence) != sequence:
            yield Broken(
                rule="rfc9000-19.15-id-reused",
                actual=f"{value.hex()} has sequence numbers {by_id[value]} and {sequence}",
                packets=(packet,),
            )
        elif token and tokens.setdefault(token, value) != value:
            yield Broken(
                rule="rfc9000-10.3.2-reset-token-repeated",
                actual=f"connection ID {value.hex()} has the token of another connection ID",
                packets=(packet,),
            )
    if side.own_read and side.whole:
        first = 2 if "preferred_address" in side.parameters else 1
        missing = sorted(set(range(first, max(by_sequence, default=0))) - by_sequence.keys())
        if missing:
            packet = next(each[4] for each in issued if each[0] > missing[0])
            yield Broken(
                rule="rfc9000-5.1.1-sequence-skipped",
                actual=f"no NEW_CONNECTION_ID has sequence number {missing[0]}, but a later one has a higher number",
                packets=(packet,),
            )


def too_many(side: Side) -> Iterator[Broken]:
    """An endpoint issues no more active connection IDs than the peer accepts."""
    issued = _issued(side)
    if not issued or not side.sound or not side.peer_parameters:
        return
    limit = side.peer_parameters.get("active_connection_id_limit", 2)
    if not isinstance(limit, int) or limit < 2:
        return  # the peer breaks a rule of §18.2
    frames = side.capture.frames
    retired = [
        (int(frames["packet"][row]), int(frames["value"][row])) for row in side.frames("retire_connection_id", got=True)
    ]
    active = {0, 1} if "preferred_address" in side.parameters else {0}
    counted = set(active)
    prior_to = 0
    for sequence, prior, _, _, packet in issued:
        prior_to = max(prior_to, min(prior, sequence))
        if sequence in counted:
            continue
        counted.add(sequence)
        active.add(sequence)
        gone = {number for row, number in retired if row < packet}
        active = {number for number in active if number >= prior_to and number not in gone}
        if len(active) > limit:
            yield Broken(
                rule="rfc9000-5.1.1-too-many-ids",
                actual=f"{len(active)} active connection IDs, limit {limit}",
                packets=(packet,),
            )
            return


def retiring(side: Side) -> Iterator[Broken]:
    """An endpoint retires only issued connection IDs, and doesn't use a retired connection ID."""
    capture = side.capture
    frames = capture.frames
    issued = _issued(side, got=True)
    known = {sequence: value for sequence, _, value, _, _ in issued}
    if side.peer_source is not None:
        known.setdefault(0, side.peer_source)
    preferred = side.peer_parameters.get("preferred_address")
    if isinstance(preferred, dict):
        known.setdefault(1, bytes.fromhex(str(preferred["connection_id"])))
    codes, values = capture.ids("dcid")
    for row in side.frames("retire_connection_id").tolist():
        number, packet = int(frames["value"][row]), int(frames["packet"][row])
        if side.peer_source == b"":
            yield Broken(
                rule="rfc9000-19.16-retire-empty",
                actual=f"RETIRE_CONNECTION_ID of sequence number {number}, although the peer's connection ID is empty",
                packets=(packet,),
            )
            return
        highest = max([sequence for sequence, _, _, _, row in issued if row < packet], default=0)
        highest = max(highest, 1 if preferred else 0)
        if number > highest and side.sound:
            yield Broken(
                rule="rfc9000-19.16-retire-unissued",
                actual=f"RETIRE_CONNECTION_ID of sequence number {number}; the highest issued number is {highest}",
                packets=(packet,),
            )
            continue
        if number not in known:
            continue
        if values[codes[packet]] == known[number]:
            yield Broken(
                rule="rfc9000-19.16-retire-own-packet",
                actual=f"RETIRE_CONNECTION_ID of sequence number {number} in a packet with this connection ID",
                packets=(packet,),
            )
            continue
        later = side.sent_read[capture.packets["datagram"][side.sent_read] > capture.packets["datagram"][packet]]
        used = side.with_id("dcid", known[number], later)
        if len(used):
            yield Broken(
                rule="rfc9000-5.1.2-retired-id-used",
                actual=f"{len(used)} later packets use the connection ID of sequence number {number}",
                packets=(packet, *shown(used)),
            )
            return
    yield from _prior_to(side, issued, known)


def _prior_to(
    side: Side, issued: list[tuple[int, int, bytes, bytes, int]], known: dict[int, bytes]
) -> Iterator[Broken]:
    for _, prior, _, _, packet in issued:
        late = side.sent_read[side.time(side.sent_read) > side.at(packet) + _SETTLED_NS]
        for number in [each for each in known if each < prior]:
            used = side.with_id("dcid", known[number], late)
            if len(used):
                yield Broken(
                    rule="rfc9000-5.1.2-retire-prior-to-ignored",
                    actual=f"{len(used)} packets use the connection ID of sequence number {number}, "
                    f"below Retire Prior To {prior}",
                    packets=shown(used),
                )
                return


def long_headers(side: Side) -> Iterator[Broken]:
    """Connection IDs in long headers follow the rules of the handshake (RFC 9000 §7.2)."""
    initials = side.of_type(INITIAL)
    if not side.is_client:
        sources = side.ids("scid", initials)
        late = [value for value in side.ids("scid", side.of_type(HANDSHAKE)) if value not in sources]
        if late and sources:
            yield Broken(
                rule="rfc9000-7.2-server-source-changed",
                actual=f"source connection ID {late[0].hex()} in Handshake packets, "
                f"{sources[-1].hex()} in Initial packets",
                packets=shown(side.with_id("scid", late[0], side.of_type(HANDSHAKE))),
            )
        return
    if not side.whole:
        return
    first = side.ids("dcid", initials)[:1]
    if first and len(first[0]) < 8 and not (side.capture.packets["token_length"][initials[:1]] > 0).any():
        yield Broken(
            rule="rfc9000-7.2-first-id-short",
            actual=f"a destination connection ID of {len(first[0])} bytes",
            packets=shown(initials[:1]),
        )
    every = side.of_type(INITIAL, EARLY, HANDSHAKE)
    sources = side.ids("scid", side.of_type(INITIAL, EARLY))
    issued = [value for _, _, value, _, _ in _issued(side)]
    others = [value for value in side.ids("scid", side.of_type(HANDSHAKE)) if value not in (*sources[:1], *issued)]
    if sources[1:] or (sources and others):
        other = (*sources[1:], *others)[0]
        yield Broken(
            rule="rfc9000-7.2-client-source-changed",
            actual=f"source connection ID {other.hex()} after {sources[0].hex()}",
            packets=shown(side.with_id("scid", other, every)),
        )


def unissued(side: Side) -> Iterator[Broken]:
    """An endpoint sends its packets to connection IDs that the peer had issued (RFC 9000 §7.2, §19.15)."""
    if not side.sound:
        return
    capture = side.capture
    issued = {value: packet for _, _, value, _, packet in reversed(_issued(side, got=True))}
    codes, values = capture.ids("scid")
    theirs = side.of_type(INITIAL, HANDSHAKE, RETRY, got=True)
    for packet in theirs[np.sort(np.unique(codes[theirs], return_index=True)[1])].tolist():
        issued.setdefault(values[codes[packet]], packet)
        issued[values[codes[packet]]] = min(issued[values[codes[packet]]], packet)
    preferred, extensions = side.peer_parameters.get("preferred_address"), side.message(8, 1 - side.sender)
    if isinstance(preferred, dict) and extensions is not None:
        issued.setdefault(bytes.fromhex(str(preferred["connection_id"])), int(extensions["packet"]))
    rows = side.of_type(INITIAL, HANDSHAKE, ONE_RTT)
    if side.is_client:
        # The client chooses the first destination itself. What it acknowledges, it has read.
        initials = side.of_type(INITIAL)
        read = np.isin(initials, capture.acks["packet"][side.ack_frames(space=0)])
        rows = np.setdiff1d(rows, initials[: int(np.argmax(read)) if read.any() else len(initials)])
    for value in side.ids("dcid", rows) if issued else ():
        used = side.with_id("dcid", value, rows)
        if issued.get(value, NULL) in range(int(used[0])):
            continue
        long = capture.type[used] != ONE_RTT
        yield Broken(
            rule=f"rfc9000-7.2-{'id-not-the-servers' if side.is_client and long[0] else 'id-not-issued'}",
            actual=f"{len(used)} packets with the destination connection ID {value.hex()}, "
            f"which the {'server' if side.is_client else 'client'} had not issued",
            packets=shown(used),
        )


DETECTORS = (issuing, too_many, retiring, long_headers, unissued)
