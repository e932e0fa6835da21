"""Checks of paths and connection IDs (RFC 9000 §5.1, §7.2, §8.2, §9, §19.15, §19.16)."""

from collections.abc import Iterator
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from runner.decode.columns import NULL
from runner.judge.rules.packet_rules import shown
from runner.judge.rules.side import EARLY, HANDSHAKE, INITIAL, ONE_RTT, RETRY, Broken, Side
from runner.trace.establish import endpoint
from runner.trace.recording import APPLICATION, Address, Ints
from runner.units import format_count

# Paths: challenges, responses, unvalidated addresses, migration (RFC 9000 §8.2, §9).

_FULL = 1200  # bytes of the smallest datagram with PATH_CHALLENGE or PATH_RESPONSE
_FACTOR = 3  # RFC 9000 §8.1
_CHALLENGED_NS = 1_000_000_000  # time in which a server challenges a new address
_A_FEW = 5  # datagrams after this time that prove a broken rule
_LATENESS_NS = 25_000_000  # an endpoint may need this long to read a packet that arrived
_READ_NS = 100_000_000  # time from the acknowledgment of a challenge to its response; RFC 9000 §8.2.2 allows no delay
_AFTER_READING = 3  # packets after this time that prove a broken rule


class _Routes:
    """Datagrams of one connection at the endpoint, with their local and remote addresses."""

    def __init__(self, side: Side) -> None:
        self._side = side
        datagrams = side.capture.datagrams
        self.rows: Ints = np.flatnonzero(side.scope.mine(datagrams) & (datagrams["sender"] >= 0))
        self.sent = datagrams["sender"][self.rows] == side.sender

    def ends(self, datagram: int) -> tuple[Address, Address]:
        """Local and remote address of a datagram, sent or received."""
        return self._side.capture.ends(datagram, self._side.sender)

    @cached_property
    def single(self) -> bool:
        """Whether all datagrams of the connection had the same pair of addresses."""
        _, first = np.unique(self._side.capture.route[self.rows], return_index=True)
        return len({self.ends(row) for row in self.rows[first].tolist()}) <= 1


def _datagram(side: Side, frame: int) -> int:
    return int(side.capture.packets["datagram"][side.capture.frames["packet"][frame]])


def challenges(side: Side) -> Iterator[Broken]:
    """PATH_CHALLENGE and PATH_RESPONSE frames follow RFC 9000 §8.2."""
    capture = side.capture
    frames, routes = capture.frames, _Routes(side)
    sent = side.frames("path_challenge")
    got, responses = side.frames("path_challenge", got=True), side.frames("path_response")
    data: dict[bytes, tuple[Address, Address]] = {}
    for row in sent.tolist():
        ends = routes.ends(_datagram(side, row))
        value = frames.cell("payload", row) or b""
        if data.setdefault(value, ends) != ends:
            actual = f"PATH_CHALLENGE with data {value.hex()} on two paths"
            yield Broken("rfc9000-8.2.1-challenge-data-repeated", actual, (int(frames["packet"][row]),))
            break
    for rows, rule in ((sent, "8.2.1-challenge-not-padded"), (responses, "8.2.2-response-not-padded")):
        for row in rows.tolist():
            datagram = _datagram(side, row)
            length = int(capture.datagrams["payload_length"][datagram])
            if length < _FULL and (side.is_client or _allowance(side, routes, datagram) >= _FULL):
                actual = f"a datagram of {length} B with {'PATH_CHALLENGE' if rows is sent else 'PATH_RESPONSE'}"
                yield Broken(f"rfc9000-{rule}", actual, (int(frames["packet"][row]),))
                break
    yield from _responses(side, routes, got, responses)


def _allowance(side: Side, routes: _Routes, datagram: int) -> int:
    """The bytes that the server was allowed to send to the remote address of a datagram before it sent the datagram. A
    very large number when the address had been validated."""
    remote = routes.ends(datagram)[1]
    length = side.capture.datagrams["payload_length"]
    if remote in _valid(side, routes, datagram):
        return 1 << 40
    rows = routes.rows[routes.rows < datagram]
    same = np.array([routes.ends(int(row))[1] == remote for row in rows], dtype=bool)
    mine = side.capture.datagrams["sender"][rows] == side.sender
    read = rows <= _last_read(side, datagram)
    return int(_FACTOR * length[rows[same & ~mine & read]].sum() - length[rows[same & mine]].sum())


def _last_read(side: Side, datagram: int) -> int:
    """The last datagram of the peer that the endpoint had certainly read when it sent `datagram`; -1 when there is
    none.

    A datagram has certainly been read when it arrived long before, when the endpoint acknowledged a packet in it, or
    when `datagram` responds to a challenge in it.
    """
    capture = side.capture
    times, packets = capture.datagrams["time_ns"], capture.packets["datagram"]
    got = packets[side.got]
    old = got[times[got] < times[datagram] - _LATENESS_NS]
    read = [int(old[-1])] if len(old) else []
    acks = side.ack_frames()
    acks = acks[(capture.ack_space[acks] == APPLICATION) & (packets[capture.ack_frames["packet"][acks]] <= datagram)]
    if len(acks):
        ours = side.of_type(ONE_RTT, got=True)
        known = ours[capture.packets["packet_number"][ours] <= capture.ack_frames["largest"][acks].max()]
        read += packets[known[-1:]].tolist()
    answered = {
        capture.frames.cell("payload", row)
        for row in side.frames("path_response").tolist()
        if _datagram(side, row) == datagram
    }
    read += [
        _datagram(side, row)
        for row in side.frames("path_challenge", got=True).tolist()
        if capture.frames.cell("payload", row) in answered
    ]
    return max((row for row in read if row < datagram), default=-1)


def _valid(side: Side, routes: _Routes, before: int) -> set[Address]:
    """Addresses of the peer that were validated before a datagram. The handshake validates the first address and each
    address of a Handshake packet. An answer to a PATH_CHALLENGE validates the address to which the challenge was
    sent."""
    frames = side.capture.frames
    valid = {routes.ends(int(routes.rows[0]))[1]} if len(routes.rows) else set()
    valid.update(routes.ends(row)[1] for row in _handshakes(side) if row < before)
    answered = {
        frames.cell("payload", int(row))
        for row in side.frames("path_response", got=True)
        if _datagram(side, int(row)) < before
    }
    for row in side.frames("path_challenge").tolist():
        if frames.cell("payload", row) in answered:
            valid.add(routes.ends(_datagram(side, row))[1])
    return valid


def _responses(side: Side, routes: _Routes, got: Ints, responses: Ints) -> Iterator[Broken]:
    frames = side.capture.frames
    challenged: dict[bytes, list[int]] = {}
    for row in got.tolist():
        challenged.setdefault(frames.cell("payload", row) or b"", []).append(row)
    answers: dict[bytes, int] = {}
    reported = set()
    for row in responses.tolist():
        value, packet = frames.cell("payload", row) or b"", int(frames["packet"][row])
        before = [challenge for challenge in challenged.get(value, ()) if frames["packet"][challenge] < packet]
        answers[value] = answers.get(value, 0) + 1
        rule = ""
        if not before:
            rule = "8.2.2-response-unasked" if side.sound else ""
        elif routes.ends(_datagram(side, row)) not in [routes.ends(_datagram(side, challenge)) for challenge in before]:
            rule = "8.2.2-response-on-other-path"
        elif answers[value] > len(before) and side.sound:
            rule = "8.2.2-response-repeated"
        if rule and rule not in reported:
            reported.add(rule)
            yield Broken(f"rfc9000-{rule}", f"PATH_RESPONSE with data {value.hex()}", (packet,))
    yield from _unanswered(side, challenged, answers)


def _unanswered(side: Side, challenged: dict[bytes, list[int]], answers: dict[bytes, int]) -> Iterator[Broken]:
    """Report a challenge that the endpoint acknowledged but never answered, although it sent further packets.

    A challenge without acknowledgment proves nothing: the endpoint may not have read the packet, or may have discarded
    it, for example because it came from an unknown address (RFC 9000 §9).
    """
    if not side.sound:
        return
    frames, sent = side.capture.frames, side.of_type(ONE_RTT)
    closes = [rows[side.capture.closing[rows]] for rows in (side.sent_read, side.got)]
    closed = min((int(rows[0]) for rows in closes if len(rows)), default=None)
    sent = sent if closed is None else sent[sent < closed]
    for value, rows in challenged.items():
        if value in answers:
            continue
        packet = int(frames["packet"][rows[0]])
        acknowledgment = _acknowledgment(side, packet)
        if acknowledgment is None:
            continue
        after = sent[side.time(sent) > side.at(acknowledgment) + _READ_NS]
        if len(after) >= _AFTER_READING:
            actual = f"no PATH_RESPONSE with data {value.hex()}"
            yield Broken("rfc9000-8.2.2-challenge-unanswered", actual, (packet, acknowledgment))
            return


def _acknowledgment(side: Side, packet: int) -> int | None:
    """The first packet in which the endpoint acknowledged `packet`, a 1-RTT packet of the peer; None when there is
    none."""
    capture = side.capture
    mine = side.ack_frames(space=APPLICATION)
    owner, first, last = capture.ack_ranges(mine)
    number = int(capture.packets["packet_number"][packet])
    holds = mine[owner[(first <= number) & (number <= last)]]
    return int(capture.ack_frames["packet"][holds].min()) if len(holds) else None


def unvalidated(side: Side) -> Iterator[Broken]:
    """A server sends a PATH_CHALLENGE to a new address of the client. Until the address is validated, the server sends
    at most three times the bytes that it received from there (RFC 9000 §8, §9.3)."""
    if side.is_client or not side.sound:
        return
    routes = _Routes(side)
    if routes.single:
        return
    capture = side.capture
    datagrams = capture.datagrams
    challenged = _data(side, side.frames("path_challenge"))
    answers = _data(side, side.frames("path_response", got=True))
    handshakes = _handshakes(side)
    valid = {routes.ends(int(routes.rows[0]))[1]}
    pending: dict[bytes, Address] = {}
    volume: dict[Address, list[int]] = {}
    begun: dict[Address, list[int]] = {}
    excess: dict[Address, tuple[int, int]] = {}
    for row, sent in zip(routes.rows.tolist(), routes.sent.tolist(), strict=True):
        remote = routes.ends(row)[1]
        if row in handshakes:
            valid.add(remote)
        length = int(datagrams["payload_length"][row])
        valid.update(pending[value] for value in answers.get(row, ()) if value in pending)
        pending.update(dict.fromkeys(challenged.get(row, ()), remote))
        if remote in valid:
            continue
        counts = volume.setdefault(remote, [0, 0])
        counts[sent] += length
        if sent:
            begun.setdefault(remote, []).append(row)
            if counts[1] > _FACTOR * counts[0] and counts[1] - _FACTOR * counts[0] > excess.get(remote, (0, 0))[0]:
                excess[remote] = counts[1] - _FACTOR * counts[0], row
    for remote, (bytes_, row) in excess.items():
        actual = f"{bytes_} B more than three times the bytes received from {endpoint(*remote)}"
        yield Broken("rfc9000-8-unvalidated-path", actual, _packets(side, row))
        break
    for remote, rows in begun.items():
        late = [row for row in rows if datagrams["time_ns"][row] > datagrams["time_ns"][rows[0]] + _CHALLENGED_NS]
        if remote not in pending.values() and len(late) >= _A_FEW:
            actual = f"{format_count(len(rows), 'datagram')} to {endpoint(*remote)} without a PATH_CHALLENGE"
            yield Broken("rfc9000-9.3-new-path-not-challenged", actual, _packets(side, rows[0]))
            break


def _handshakes(side: Side) -> set[int]:
    """Datagrams with a Handshake packet of the peer, which validates the address that it came from (RFC 9000 §8.1)."""
    return set(side.capture.packets["datagram"][side.of_type(HANDSHAKE, got=True)].tolist())


def _data(side: Side, rows: Ints) -> dict[int, list[bytes]]:
    """Datagram → the data of the PATH_CHALLENGE or PATH_RESPONSE frames in it, for these rows of frames."""
    data: dict[int, list[bytes]] = {}
    for row in rows.tolist():
        data.setdefault(_datagram(side, row), []).append(side.capture.frames.cell("payload", row) or b"")
    return data


def _packets(side: Side, datagram: int) -> tuple[int, ...]:
    return shown(side.sent[side.capture.packets["datagram"][side.sent] == datagram][:1])


def migration(side: Side) -> Iterator[Broken]:
    """A client migrates only when this is allowed. Both endpoints use new connection IDs for a new address (RFC 9000
    §9, §9.5)."""
    routes = _Routes(side)
    if routes.single or not len(routes.rows):
        return
    if side.is_client:
        yield from _moves(side, routes)
    mine, got = side.of_type(ONE_RTT), side.of_type(ONE_RTT, got=True)
    for end, rule in enumerate(("id-from-two-addresses", "id-to-two-addresses")):
        used, theirs = _used(side, routes, mine, end), _used(side, routes, got, end)
        for other, address in combinations(used, 2):
            # A client's address may change without its doing. Then the client uses no new connection ID.
            moved = (
                not end
                or side.is_client
                or bool(theirs.get(address) and theirs.get(other) and not theirs[address] & theirs[other])
            )
            common = (used[other] & used[address]) - {b""}
            if moved and common:
                value = sorted(common)[0]
                yield Broken(
                    f"rfc9000-9.5-{rule}",
                    f"connection ID {value.hex()} in packets {'to' if end else 'from'} a second address, "
                    f"{endpoint(*address)}",
                    shown(side.with_id("dcid", value, mine)[:1]),
                )
                break


def _used(side: Side, routes: _Routes, packets: Ints, end: int) -> dict[Address, set[bytes]]:
    """Local (`end` 0) or remote (1) address → the destination connection IDs of these packets there."""
    codes, values = side.capture.ids("dcid")
    datagrams = side.capture.packets["datagram"][packets]
    keys = side.capture.route[datagrams]
    used: dict[Address, set[bytes]] = {}
    for key in np.unique(keys):
        address = routes.ends(int(datagrams[keys == key][0]))[end]
        used.setdefault(address, set()).update(values[code] for code in np.unique(codes[packets[keys == key]]))
    return used


def _moves(side: Side, routes: _Routes) -> Iterator[Broken]:
    datagrams = routes.rows[routes.sent]
    home, server = routes.ends(int(datagrams[0]))
    moved = [int(row) for row in datagrams if routes.ends(int(row))[0] != home]
    if not moved:
        return
    first = _packets(side, moved[0])
    if side.sound and first and not side.confirmed(first[0]):
        yield Broken("rfc9000-9-migration-before-confirmed", "a packet from another local address", first)
    # A client that acts on preferred_address may also use other local addresses (§9).
    acted = next((int(row) for row in datagrams if routes.ends(int(row))[1] != server), None)
    there = [row for row in moved if routes.ends(row)[1] == server and (acted is None or row < acted)]
    if there and "disable_active_migration" in side.peer_parameters:
        yield Broken("rfc9000-9-migration-disabled", "a packet from another local address", _packets(side, there[0]))


ROUTE_DETECTORS = (challenges, unvalidated, migration)


# Connection IDs: issued, used, retired (RFC 9000 §5.1, §7.2, §19.15, §19.16).

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
        actual = f"{format_count(len(issued), 'NEW_CONNECTION_ID frame')} of an endpoint with an empty connection ID"
        yield Broken("rfc9000-19.15-new-id-beside-empty", actual, (issued[0][4],))
    by_sequence: dict[int, tuple[bytes, bytes]] = {}
    by_id: dict[bytes, int] = {side.source: 0} if side.source else {}
    tokens: dict[bytes, bytes] = {}
    if (reset_token := side.parameters.get("stateless_reset_token")) and side.source is not None:
        tokens[bytes.fromhex(str(reset_token))] = side.source
    if preferred := side.preferred():
        by_id.setdefault(preferred[0], 1)
        tokens.setdefault(preferred[1], preferred[0])
    handshake = {sequence: value for value, sequence in by_id.items()}
    for sequence, prior, value, token, packet in issued:
        if not 1 <= len(value) <= 20:
            yield Broken("rfc9000-19.15-id-length", f"a connection ID of {len(value)} B", (packet,))
            continue
        if prior > sequence:
            actual = f"Retire Prior To {prior} in the frame of sequence number {sequence}"
            yield Broken("rfc9000-19.15-retire-prior-to-high", actual, (packet,))
        known = by_sequence.setdefault(sequence, (value, token))
        if known != (value, token) or handshake.get(sequence, value) != value:
            actual = f"sequence number {sequence} has two connection IDs or tokens"
            yield Broken("rfc9000-19.15-sequence-reused", actual, (packet,))
        elif by_id.setdefault(value, sequence) != sequence:
            actual = f"{value.hex()} has sequence numbers {by_id[value]} and {sequence}"
            yield Broken("rfc9000-19.15-id-reused", actual, (packet,))
        elif token and tokens.setdefault(token, value) != value:
            actual = f"connection ID {value.hex()} has the token of another connection ID"
            yield Broken("rfc9000-10.3.2-reset-token-repeated", actual, (packet,))
    if side.own_read and side.whole:
        first = 2 if "preferred_address" in side.parameters else 1
        missing = sorted(set(range(first, max(by_sequence, default=0))) - by_sequence.keys())
        if missing:
            packet = next(each[4] for each in issued if each[0] > missing[0])
            actual = f"no NEW_CONNECTION_ID has sequence number {missing[0]}, but a later one has a higher number"
            yield Broken("rfc9000-5.1.1-sequence-skipped", actual, (packet,))


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
            yield Broken("rfc9000-5.1.1-too-many-ids", f"{len(active)} active connection IDs, limit {limit}", (packet,))
            return


def retiring(side: Side) -> Iterator[Broken]:
    """An endpoint retires only issued connection IDs, and doesn't use a retired connection ID."""
    capture = side.capture
    frames = capture.frames
    issued = _issued(side, got=True)
    known = {sequence: value for sequence, _, value, _, _ in issued}
    if side.peer_source is not None:
        known.setdefault(0, side.peer_source)
    if preferred := side.preferred(of_peer=True):
        known.setdefault(1, preferred[0])
    codes, values = capture.ids("dcid")
    for row in side.frames("retire_connection_id").tolist():
        number, packet = int(frames["value"][row]), int(frames["packet"][row])
        if side.peer_source == b"":
            actual = f"RETIRE_CONNECTION_ID of sequence number {number}, although the peer's connection ID is empty"
            yield Broken("rfc9000-19.16-retire-empty", actual, (packet,))
            return
        highest = max([sequence for sequence, _, _, _, row in issued if row < packet], default=0)
        highest = max(highest, 1 if preferred else 0)
        if number > highest and side.sound:
            actual = f"RETIRE_CONNECTION_ID of sequence number {number}; the highest issued number is {highest}"
            yield Broken("rfc9000-19.16-retire-unissued", actual, (packet,))
            continue
        if number not in known:
            continue
        if values[codes[packet]] == known[number]:
            actual = f"RETIRE_CONNECTION_ID of sequence number {number} in a packet with this connection ID"
            yield Broken("rfc9000-19.16-retire-own-packet", actual, (packet,))
            continue
        later = side.sent_read[capture.packets["datagram"][side.sent_read] > capture.packets["datagram"][packet]]
        used = side.with_id("dcid", known[number], later)
        if len(used):
            actual = f"{format_count(len(used), 'later packet')} with the connection ID of sequence number {number}"
            yield Broken("rfc9000-5.1.2-retired-id-used", actual, (packet, *shown(used)), pair=True)
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
                    "rfc9000-5.1.2-retire-prior-to-ignored",
                    f"{format_count(len(used), 'packet')} with the connection ID of sequence number {number}, "
                    f"below Retire Prior To {prior}",
                    shown(used),
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
                "rfc9000-7.2-server-source-changed",
                f"source connection ID {late[0].hex()} in Handshake packets, {sources[-1].hex()} in Initial packets",
                shown(side.with_id("scid", late[0], side.of_type(HANDSHAKE))),
            )
        numbers = side.capture.packets["packet_number"]
        for source, other in pairwise(sources):
            first = side.with_id("scid", other, initials)[0]
            last = side.with_id("scid", source, initials[initials < first])[-1]
            # A server that begins the handshake again also begins its packet numbers again.
            if numbers[first] == numbers[last] + 1:
                yield Broken(
                    "rfc9000-7.2-server-source-changed",
                    f"source connection ID {other.hex()} in Initial packet {numbers[first]}, "
                    f"{source.hex()} in the packet before it",
                    shown(np.array([last, first])),
                )
                return
        return
    if not side.whole:
        return
    first = side.ids("dcid", initials)[:1]
    if first and len(first[0]) < 8 and not (side.capture.packets["token_length"][initials[:1]] > 0).any():
        yield Broken(
            "rfc9000-7.2-first-id-short", f"a destination connection ID of {len(first[0])} B", shown(initials[:1])
        )
    every = side.of_type(INITIAL, EARLY, HANDSHAKE)
    sources = side.ids("scid", side.of_type(INITIAL, EARLY))
    issued = [value for _, _, value, _, _ in _issued(side)]
    others = [value for value in side.ids("scid", side.of_type(HANDSHAKE)) if value not in (*sources[:1], *issued)]
    if sources[1:] or (sources and others):
        other = (*sources[1:], *others)[0]
        actual = f"source connection ID {other.hex()} after {sources[0].hex()}"
        yield Broken("rfc9000-7.2-client-source-changed", actual, shown(side.with_id("scid", other, every)))


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
    preferred, extensions = side.preferred(of_peer=True), side.message(8, 1 - side.sender)
    if preferred and extensions is not None:
        issued.setdefault(preferred[0], int(extensions["packet"]))
    rows = side.of_type(INITIAL, HANDSHAKE, ONE_RTT)
    if side.is_client:
        # The client chooses the first destination itself. What it acknowledges, it has read.
        initials = side.of_type(INITIAL)
        read = np.isin(initials, capture.ack_frames["packet"][side.ack_frames(space=0)])
        rows = np.setdiff1d(rows, initials[: int(np.argmax(read)) if read.any() else len(initials)])
    for value in side.ids("dcid", rows) if issued else ():
        used = side.with_id("dcid", value, rows)
        if issued.get(value, NULL) in range(int(used[0])):
            continue
        long = capture.type[used] != ONE_RTT
        yield Broken(
            f"rfc9000-7.2-{'id-not-the-servers' if side.is_client and long[0] else 'id-not-issued'}",
            f"{format_count(len(used), 'packet')} with the destination connection ID {value.hex()}, "
            f"which the {'server' if side.is_client else 'client'} had not issued",
            shown(used),
        )


ID_DETECTORS = (issuing, too_many, retiring, long_headers, unissued)
