"""The decoder: reads every QUIC packet of a capture in file order, with the keys of its connection."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from runner.decode.capture import Datagrams
from runner.decode.columns import CLIENT, HTTP3, MTU, SERVER, Data, Integers, no_integers, release
from runner.decode.connection import (
    APPLICATION_SPACE,
    INITIAL_SPACE,
    SPACE_OF,
    Connection,
    FlowState,
    KeyRing,
    OneRtt,
    Packet,
    Registry,
    SenderState,
)
from runner.decode.keys import (
    APPLICATION_SECRETS,
    EARLY_SECRET,
    HANDSHAKE_SECRETS,
    SUITES,
    TAG_LENGTH,
    VERSION_1,
    VERSIONS,
    Protection,
    Session,
    candidates,
    initial_protection,
    retry_tag_is_valid,
)
from runner.decode.wire import (
    NONE,
    LongHeader,
    PacketRow,
    PacketType,
    Rows,
    has_name,
    parse_frames,
    parse_long_header,
)

# Reads the packets before a handshake that have no packet protection: Version Negotiation, Retry, and first flights of
# unknown versions.

_CLIENT_INITIAL = 1200  # least bytes of UDP payload of a client's first datagram (RFC 9000 §14.1)


class Negotiation:
    """The packets of this kind in one capture. `times` and `lengths`: time in ns and bytes of UDP payload of each
    datagram."""

    def __init__(self, data: Data, rows: Rows, registry: Registry, times: Integers, lengths: Integers) -> None:
        self._data = data
        self._rows = rows
        self._registry = registry
        self._times = times
        self._lengths = lengths
        self._tried: set[bytes] = set()
        """Connection IDs of first flights with an unknown version that were answered by Version Negotiation."""

    def read(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        """Update the connections from a packet with a long header that has no packet protection."""
        if header.type is PacketType.VERSION_NEGOTIATION:
            self._version_negotiation(packet, header, flow)
        elif header.type is PacketType.RETRY:
            self._retry(packet, header, flow)
        elif flow.orphan is None and (not flow.sides or self._is_another_first_flight(packet, header)):
            flow.orphan, flow.orphan_datagram = header, packet.datagram

    def note_cut_off(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        """Remember the first long header on a flow whose packet is cut off by the snap length: its version and
        connection IDs describe the connection."""
        if flow.orphan is None and not flow.sides and header.dcid:
            flow.orphan, flow.orphan_datagram = header, packet.datagram

    def _is_another_first_flight(self, packet: Packet, header: LongHeader) -> bool:
        """Whether a packet of an unknown version begins another connection on a flow that has connections. Then its
        connection ID is new, and its datagram is large enough for a first datagram. Otherwise the link has corrupted a
        version field."""
        length = self._lengths[packet.datagram]
        return (
            bool(length >= _CLIENT_INITIAL)
            and header.dcid not in self._registry.cids
            and header.dcid not in self._tried
        )

    def _version_negotiation(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        """Assign a Version Negotiation packet to a connection. The packet contains the two connection IDs of the
        client's packet in swapped order (RFC 9000 §17.2.1)."""
        registry = self._registry
        orphan = registry.reverse(flow).orphan
        side = registry.cids.get(header.dcid) or next(iter(flow.sides), None)
        if orphan is not None and (orphan.scid, orphan.dcid) == (header.dcid, header.scid):
            registry.reverse(flow).orphan = None
            self._tried.add(orphan.dcid)
            connection = registry.add_connection(flow, SERVER, int(self._times[packet.datagram]))
            connection.original_version, connection.odcid = orphan.version, orphan.dcid
            side = connection.sides[SERVER]
        if side is not None and side.sender == SERVER:
            side.connection.listed_versions = header.supported_versions or ()
            self._rows.fill(packet.row, side.connection.number, SERVER, PacketType.VERSION_NEGOTIATION)
        self._rows.packets[packet.row, "decrypted"] = 1

    def _retry(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        self._rows.packets[packet.row, "decrypted"] = 1
        for side in flow.sides:
            connection = side.connection
            if side.sender == SERVER and connection.initial_dcids:
                whole = self._data[header.start : header.end]
                valid = retry_tag_is_valid(header.version, connection.initial_dcids[-1], whole)
                connection.retry_integrity_ok = valid and connection.retry_integrity_ok is not False
                connection.retry_scids.add(header.scid)
                self._registry.may_continue = True
                self._rows.fill(packet.row, connection.number, SERVER, PacketType.RETRY)
                return

    def adopt_orphans(self) -> None:
        """Create a connection for each first flight of an unknown version that no server answered, and for long headers
        whose packets are cut off."""
        flows = self._registry.flows
        orphans = [(flow.orphan_datagram, flow, flow.orphan) for flow in flows if flow.orphan is not None]
        for datagram, flow, orphan in sorted(orphans, key=lambda each: each[0]):
            readable = orphan.version in VERSIONS
            known = readable or has_name(orphan.version)  # only versions 1 and 2 fill their first datagram to 1200 B
            if flow.sides or not (known or self._lengths[datagram] >= _CLIENT_INITIAL):
                continue
            sender = SERVER if readable and flow.flow.src_port < flow.flow.dst_port else CLIENT
            connection = self._registry.add_connection(flow, sender, int(self._times[datagram]))
            connection.original_version = orphan.version
            if readable:
                connection.version = orphan.version
                self._registry.issue(orphan.scid, connection.sides[sender])
            if sender == CLIENT:
                connection.odcid = orphan.dcid


# Finds keys for packets of a connection whose handshake is not in the capture: tries all secrets of the key logs.
#
# A handshake is missing when a capture starts late or lost the first flight. Then session, direction, suite, version,
# length of the connection ID, key generation and upper bits of the packet number are all unknown.

_MAX_CID_LENGTH = 20  # RFC 9000 §17.2
_FEW_WINDOWS, _MANY_WINDOWS = 2, 256  # values to try for the upper bits of the packet number
_ATTEMPTS = 300_000
"""The largest number of attempts per capture, which take about half a second. Packets that are still unread afterwards
count as damaged."""
_FAILURES_PER_FLOW = 24  # searches without success; afterwards, no packet of the flow is searched

_Target = tuple[Connection | None, bytes, Session, int]
"""connection (None while unknown), client random, secrets, sender"""


class Rescue:
    """The search in one capture. Keys that are found are written to the registry, and the decoder uses them."""

    def __init__(self, data: Data, registry: Registry) -> None:
        self._data = data
        self._registry = registry
        self._attempts = _ATTEMPTS
        self._failures: dict[int, int] = {}
        self._rings: dict[tuple[bytes, int], list[KeyRing]] = {}

    def search(self, packet: Packet, flow: FlowState, time_ns: int) -> bool:
        """Search keys for this packet, and assign them to a connection on `flow`. Returns whether keys were found."""
        number = flow.flow.number
        self._attempts -= (len(self._registry.sessions) + len(self._registry.connections)) // 64
        if self._attempts <= 0 or self._failures.get(number, 0) >= _FAILURES_PER_FLOW:
            return False
        if packet.header is None:
            opened = any(self._short(packet, flow, time_ns, windows) for windows in (_FEW_WINDOWS, _MANY_WINDOWS))
        else:
            opened = self._long(packet, packet.header, flow, time_ns)
        if not opened:
            self._failures[number] = self._failures.get(number, 0) + 1
        return opened

    def _has_another_session(self, packet: Packet, flow: FlowState) -> bool:
        """Whether the packet belongs to a connection whose ClientHello was read. If secrets of another session open
        such a packet, the key log contains a wrong client random."""
        header, cids = packet.header, self._registry.cids
        known = [cids.get(header.dcid), cids.get(header.scid)] if header is not None else []
        if header is None:
            start = packet.start + 1
            known = [cids.get(self._data[start : start + length]) for length in self._registry.cid_lengths]
            known += [side for side in flow.sides if side.ring is None]
        return any(side is not None and side.connection.client_random is not None for side in known)

    def _targets(self, packet: Packet, flow: FlowState) -> Iterator[_Target]:
        of_another = self._has_another_session(packet, flow)
        by_random = {each.client_random: each for each in self._registry.connections if each.client_random}
        on_flow = {each.connection.client_random: each.sender for each in flow.sides}
        has_keys = any(side.ring is not None for side in flow.sides)
        nameless = next((side for side in flow.sides if side.connection.client_random is None), None)
        # Sessions of connections on this flow first, then sessions without a connection.
        order = sorted(self._registry.sessions.items(), key=lambda item: (item[0] not in on_flow, item[0] in by_random))
        for client_random, session in order:
            if client_random in by_random:
                known = on_flow.get(client_random)
                if known is None and has_keys:
                    continue  # more likely a damaged packet than a packet of a connection on another flow
                for sender in (CLIENT, SERVER) if known is None else (known,):
                    yield by_random[client_random], client_random, session, sender
            elif nameless is not None:
                yield nameless.connection, client_random, session, nameless.sender
            elif not of_another:
                yield None, client_random, session, CLIENT
                yield None, client_random, session, SERVER

    def _short(self, packet: Packet, flow: FlowState, time_ns: int, windows: int) -> bool:
        for target in self._targets(packet, flow):
            connection, client_random, session, sender = target
            secrets = session.get(APPLICATION_SECRETS[sender])
            if secrets is None or (connection is not None and connection.sides[sender].ring is not None):
                continue
            key = client_random, sender
            if key not in self._rings:
                self._rings[key] = [KeyRing(each) for each in candidates(secrets, VERSION_1, None)]
            for ring in self._rings[key]:
                for length in self._cid_lengths():
                    if self._attempts <= 0:
                        return False
                    at = packet.start + 1 + length
                    opened, attempts = ring.search(self._data, packet.start, at, packet.end, windows)
                    self._attempts -= attempts
                    if opened is None:
                        continue
                    adopted = self._adopt(flow, target, time_ns, ring.version)
                    side = adopted.sides[sender]
                    side.ring, side.cid_length = ring, length
                    side.largest[APPLICATION_SPACE] = opened[0] - 1
                    adopted.suite = ring.suite
                    self._registry.link(flow, side)
                    return True
        return False

    def _long(self, packet: Packet, header: LongHeader, flow: FlowState, time_ns: int) -> bool:
        """Search keys for a Handshake or 0-RTT packet. Keys of Initial packets can't be found: they come from the
        client's first connection ID, which is in no key log."""
        if header.type is PacketType.INITIAL:
            return False
        for target in self._targets(packet, flow):
            _, _, session, sender = target
            label = HANDSHAKE_SECRETS[sender] if header.type is PacketType.HANDSHAKE else EARLY_SECRET
            secrets = session.get(label)
            if secrets is None or (label == EARLY_SECRET and sender == SERVER):
                continue
            options = candidates(secrets, header.version, None)
            self._attempts -= len(options)
            place = self._data, header.start, header.number_at, header.end
            if any(each.open_long(*place, -1) is not None for each in options):
                adopted = self._adopt(flow, target, time_ns, header.version)
                self._registry.link(flow, adopted.sides[sender])
                return True
        return False

    def _adopt(self, flow: FlowState, target: _Target, time_ns: int, version: int) -> Connection:
        """The connection of the target, with the secrets of the target's session. A missing connection is created."""
        connection, client_random, session, sender = target
        if connection is None:
            connection = self._registry.add_connection(flow, sender, time_ns)
            # 1-RTT packets of drafts have the same keys as those of version 1. Their long headers tell the version.
            orphan = flow.orphan or self._registry.reverse(flow).orphan
            connection.version = version if orphan is None else orphan.version
        if connection.client_random is None:
            connection.client_random = client_random
            connection.use_session(session, version)
        return connection

    def _cid_lengths(self) -> list[int]:
        known = self._registry.cid_lengths
        return sorted(range(_MAX_CID_LENGTH + 1), key=lambda length: length not in known)


# Assigns packets that could not be decrypted to the connections to which they most likely belong, and finds those that
# belong to no connection.

_ONE_RTT = int(PacketType.ONE_RTT)  # comparing plain integers is faster


def attribute(rows: Rows, datagrams: Datagrams, selected: Integers, registry: Registry) -> None:
    """Fill in the connection and the sender of every packet without a connection.

    The packet's destination connection ID decides. When this ID is unknown, the connections on the packet's flow at
    that time decide. `selected`: for each datagram of `rows`, its number in `datagrams`.
    """
    nameless = np.flatnonzero(rows.packets.column("connection") == NONE)
    if not len(nameless) or not registry.connections:
        return
    timelines = [sorted(flow.history, key=lambda side: side.connection.first_time_ns) for flow in registry.flows]
    numbers = selected[rows.packets.column("datagram")[nameless]]
    columns = [rows.packets.column(column)[nameless] for column in ("dcid", "type", "index")]
    columns += [column[numbers] for column in (datagrams.flow, datagrams.start, datagrams.time_ns)]
    owners = np.full((len(nameless), 2), NONE, dtype=np.int64)
    lengths = sorted(registry.cid_lengths, reverse=True)
    for at, (cid, kind, index, flow, start, time_ns) in enumerate(zip(*map(np.ndarray.tolist, columns), strict=True)):
        side = None
        if cid != NONE:
            side = registry.cids.get(rows.cids[cid])
        elif kind == _ONE_RTT and index == 0:  # the first packet in its datagram
            side = _named_side(start + 1, lengths, datagrams.data, registry)
        side = side or _latest(timelines[flow], time_ns)
        if side is not None:
            owners[at] = side.connection.number, side.sender
    for column, values in zip(("connection", "sender"), owners.T, strict=True):
        rows.packets.set_column(column, nameless, values)


def strangers(rows: Rows, datagrams: Datagrams, selected: Integers, registry: Registry) -> Integers:
    """The unread datagrams that belong to no connection, as rows of `selected`: those with the form of a short header,
    and those that only seem to have a long header.

    A packet with an ID of a connection belongs to it. A packet with an unknown ID can belong to a connection on its
    flow that uses IDs of zero length, or whose keys are unknown. On a flow with long headers and no connection, it
    stays, too.
    """
    packets = rows.packets
    kind, datagram = packets.column("type"), packets.column("datagram")
    unread = np.flatnonzero((kind == _ONE_RTT) & (packets.column("decrypted") == 0) & (packets.column("index") == 0))
    numbers = selected[datagram[unread]]
    # Nothing decrypts a packet of which the capture lacks a part, nor several datagrams in one record.
    whole = datagrams.payload_length[numbers] == datagrams.end[numbers] - datagrams.start[numbers]
    whole &= datagrams.ip_length[numbers] <= MTU
    unread, numbers = unread[whole], numbers[whole]
    if not registry.connections:
        return no_integers()
    begun = set(datagrams.flow[selected[datagram[packets.column("version") != NONE]]].tolist())
    lengths = sorted(registry.cid_lengths, reverse=True)
    chosen = _no_long_headers(rows, datagrams, selected, registry)
    for row, flow_number, start in zip(
        datagram[unread].tolist(), datagrams.flow[numbers].tolist(), datagrams.start[numbers].tolist(), strict=True
    ):
        flow = registry.flows[flow_number]
        if flow.history:
            can_be_read = all(side.cid_length > 0 and side.has_short_keys for side in flow.history)
        else:
            can_be_read = begun.isdisjoint((flow_number, flow.flow.reverse))
        if can_be_read and _named_side(start + 1, lengths, datagrams.data, registry) is None:
            chosen.append(row)
    return np.array(chosen, dtype=np.int64)


def refused_answers(rows: Rows, registry: Registry) -> Integers:
    """The server's datagrams that a client ignores because it follows a Retry, as rows of the selected datagrams.

    A server that sent a Retry may also answer an Initial packet without the token: it then has a second connection with
    the same client random. The keys of these answers come from the client's first connection ID. After a Retry the
    client no longer has these keys (RFC 9001 §5.2).
    """
    refused = set()
    for connection in registry.connections:
        if connection.followed_retry:
            secrets = {initial_protection(each, connection.followed_retry, SERVER).secret for each in VERSIONS}
            refused |= {scid for scid, used in connection.server_initials.items() if scid and not used & secrets}
    if not refused:
        return no_integers()
    numbers = [number for number, cid in enumerate(rows.cids) if cid in refused]
    return np.unique(rows.packets.column("datagram")[np.isin(rows.packets.column("scid"), numbers)])


def _no_long_headers(rows: Rows, datagrams: Datagrams, selected: Integers, registry: Registry) -> list[int]:
    """The datagrams, as rows of `selected`, that begin like a long header of an unknown version but are too short for
    one (RFC 8999 §5.1), or have neither the fixed bit nor an ID of a connection, such as RTP (RFC 9443 §2)."""
    packets, chosen = rows.packets, []
    kinds = (packets.column("type") == PacketType.UNKNOWN) & (packets.column("index") == 0)
    for packet in np.flatnonzero(kinds).tolist():
        row = int(packets.column("datagram")[packet])
        number = selected[row]
        start, cid = datagrams.start[number], int(packets.column("dcid")[packet])
        unknown = not has_name(int(packets.column("version")[packet])) and not datagrams.data[start] & _FIXED_BIT
        named = cid != NONE and rows.cids[cid] in registry.cids
        if datagrams.payload_length[number] < _LEAST_LONG_HEADER or (unknown and not named):
            chosen.append(row)
    return chosen


def _named_side(cid_at: int, lengths: list[int], data: Data, registry: Registry) -> SenderState | None:
    """The side whose packets carry the connection ID at `cid_at` in the file; None when the ID is unknown."""
    for length in lengths:
        side = registry.cids.get(data[cid_at : cid_at + length])
        if side is not None:
            return side
    return None


def _latest(sides: Sequence[SenderState], time_ns: int) -> SenderState | None:
    """The last of these sides whose connection began before this time; the first side when none had begun. None without
    a side. `sides`: sorted by the times at which their connections began."""
    begun = bisect_right(sides, time_ns, key=lambda side: side.connection.first_time_ns)
    return sides[max(0, begun - 1)] if sides else None


_LONG_FORM = 0x80
_FIXED_BIT = 0x40
_LEAST_LONG_HEADER = 7  # bytes: form, version, and the lengths of two empty connection IDs (RFC 8999 §5.1)
_PIECE = 1 << 13  # datagrams that are read before the memory of their bytes is released
_LEAST_FIRST_DCID = 8  # bytes of the destination connection ID in a client's first Initial packet (RFC 9000 §7.2)
_LATELY = 64  # newest connections whose keys are tried for a packet of an unknown flow
_STRANGERS = 4  # senders whose keys are tried for an Initial packet with an unknown connection ID of usual length
_SPLITS = 8  # failed splits of super-datagrams on a flow; afterwards, only the last known size is tried
_LEAST_SEALED = 4 + TAG_LENGTH  # bytes behind the connection ID of the shortest packet (RFC 9001 §5.4.2)
_PADDING = bytes(1 << 16)  # as long as the largest datagram
_SUITE_NUMBERS = {suite: number for number, suite in enumerate(SUITES.values())}
_PROTECTED = (PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE)


class Decoder:
    """Reads the datagrams of one capture once. After `run`, `rows` and `registry` contain the result."""

    def __init__(self, datagrams: Datagrams, sessions: dict[bytes, Session], *, single: int = MTU) -> None:
        """`single`: IP packets of at most so many bytes contain one datagram."""
        self.rows = Rows()
        self.divided: list[int] = []
        """Datagrams that turned out to be several, which segmentation offload had joined."""
        self._single = single
        self.with_ignored_bytes = 0
        """Number of datagrams with bytes behind their last packet that are no packet (RFC 9000 §12.2)."""
        self.registry = Registry(datagrams.flows, sessions, len(datagrams.start))
        self._datagrams = datagrams
        self._data = datagrams.data
        self._times: Integers = no_integers()
        """Times in ns of the selected datagrams."""

    def run(self, selected: Sequence[int] | Integers) -> None:
        """Decode the datagrams with these numbers. Their rows count from 0. The content of packets raises no error."""
        source, registry = self._datagrams, self.registry
        numbers = np.asarray(selected, dtype=np.int64)
        self._times, lengths = source.time_ns[numbers], source.payload_length[numbers]
        self._negotiation = Negotiation(self._data, self.rows, registry, self._times, lengths)
        for first in range(0, len(numbers), _PIECE):
            self._decode(first, numbers[first : first + _PIECE])
            self.rows.settle()
            release(self._data)
        registry.credit += len(self.rows)
        rescue = Rescue(self._data, registry)
        for flow in registry.flows:
            self._rescue_pending(flow, rescue)
        registry.credit = max(registry.credit, 0) + len(self.rows)
        for flow in registry.flows:
            self._retry_pending(flow)
        self._negotiation.adopt_orphans()
        attribute(self.rows, source, numbers, registry)

    def _decode(self, first: int, numbers: Integers) -> None:
        """Decode the datagrams with these numbers. `first`: the row of the first datagram."""
        source, registry = self._datagrams, self.registry
        columns = source.flow, source.start, source.end, source.payload_length, source.ip_length
        rows = zip(*(column[numbers].tolist() for column in columns), strict=True)
        for datagram, (flow_number, start, end, length, ip_length) in enumerate(rows, first):
            flow = registry.flows[flow_number]
            whole = Packet(len(self.rows), datagram, 0, start, end, length - (end - start))
            index = self._packets(whole, flow)
            if ip_length > self._single:
                self._split(whole, index, flow)
            if registry.news:
                short = registry.short_news
                registry.news = registry.short_news = False
                self._retry_pending(flow, short=short)
                self._retry_pending(registry.reverse(flow), short=short)

    def _packets(self, whole: Packet, flow: FlowState) -> int:
        """Decode the coalesced packets (RFC 9000 §12.2) of the datagram `whole`. Returns the index after the last
        packet.

        Bytes behind a packet with a long header are a packet only when they can be one of the same connection.
        Receivers ignore other bytes, so they are left out.
        """
        data, rows, datagram, start, end = self._data, self.rows, whole.datagram, whole.start, whole.end
        position, missing, index = start, whole.missing, whole.index
        first: LongHeader | None = None
        while position < end:
            if data[position] & _LONG_FORM:
                if first is not None and not self._is_of_a_known_version(position, first):
                    self.with_ignored_bytes += 1
                    break
                packet = Packet(len(rows), datagram, index, position, end, missing)
                position = self._long(packet, flow)
                first = first or packet.header
            elif first is None:
                self._short(whole, flow)
                return index + 1
            elif data[position] == 0 and _PADDING.startswith(data[position:end]):
                break  # padding behind the last packet
            elif self._may_follow(first, position, end + missing) and self._short(
                Packet(len(rows), datagram, index, position, end, missing), flow, behind=first
            ):
                return index + 1
            else:
                self.with_ignored_bytes += 1
                break
            index += 1
        if start == end:
            rows.add(PacketRow(datagram, index, type=int(PacketType.UNKNOWN), length=missing))
        return index

    def _is_of_a_known_version(self, position: int, first: LongHeader) -> bool:
        """Whether the long header at `position` can follow the packet `first` in its datagram."""
        version = int.from_bytes(self._data[position + 1 : position + 5])
        return version in VERSIONS or version == first.version

    def _may_follow(self, first: LongHeader, position: int, end: int) -> bool:
        """Whether a packet with a short header at `position` can follow the packet `first` in its datagram: it is long
        enough, and it has the same connection ID, or another known one."""
        dcid_at, size = position + 1, len(first.dcid)
        if end - dcid_at < size + _LEAST_SEALED:
            return False
        if self._data[dcid_at : dcid_at + size] == first.dcid:
            return True
        lengths = self.registry.cid_lengths
        return any(self._data[dcid_at : dcid_at + length] in self.registry.cids for length in lengths)

    # Short headers

    def _short(self, packet: Packet, flow: FlowState, *, behind: LongHeader | None = None) -> bool:
        """Decode a packet with a short header, or let it wait for keys. `behind`: the packet before it in its datagram.

        Returns False when the bytes are no packet: the connection has no connection IDs, and its keys don't fit.
        """
        side = flow.sides[0] if flow.sides and not packet.missing else None
        if side is not None and side.has_short_keys:
            opened = side.open_short(self._data, packet.start, packet.end, side.cid_length)
            if opened is not None:
                self._accept_short(packet, side, side.cid_length, opened)
                return True
            if behind is not None and not behind.dcid and len(flow.sides) == 1:
                return False
            cause = side.circumstances(self._data, packet.start, packet.end, side.cid_length)
            packet.note(side.short_keys(side.cid_length), cause)
        length = packet.end - packet.start + packet.missing
        self.rows.add(PacketRow(packet.datagram, packet.index, type=_ONE_RTT, length=length))
        if packet.missing or (self.registry.can_read_short and self._attempt_short(packet, flow)):
            return True
        if flow.sides and self.registry.credit > 0:
            packet.failed_at = self.registry.changes
        flow.pending_short.append(packet)
        return True

    def _attempt_short(self, packet: Packet, flow: FlowState) -> bool:
        """Try to decrypt a packet with a short header. Returns False when no keys fit and the packet must wait.

        The keys come from the side of its connection ID, from the sides of its flow and, on an unknown flow, from the
        newest connections.
        """
        data, start, end, registry = self._data, packet.start, packet.end, self.registry
        sides = []
        for length in registry.cid_lengths:
            by_cid = registry.cids.get(data[start + 1 : start + 1 + length])
            if by_cid is not None and by_cid.has_short_keys:
                sides.append((by_cid, length))
        for side in flow.sides:
            if side.has_short_keys and (side, side.cid_length) not in sides:
                sides.append((side, side.cid_length))
        if not flow.sides and flow.attempts > 0:
            flow.attempts -= 1
            known = {side for side, _ in sides}
            everybody = (side for connection in registry.connections[: -_LATELY - 1 : -1] for side in connection.sides)
            sides += [(side, side.cid_length) for side in everybody if side.has_short_keys and side not in known]
        for side, length in sides:
            keys = side.short_keys(length)
            if keys in packet.failed:
                continue
            if len(packet.failed) >= 2 and registry.credit <= 0:
                break
            if not packet.note(keys, side.circumstances(data, start, end, length)):
                continue
            registry.credit -= max(1, len(side.rings)) if side.ring is None else 1
            opened = side.open_short(data, start, end, length)
            if opened is not None:
                if side not in flow.sides:
                    registry.link(flow, side)
                elif side is not flow.sides[0]:
                    flow.sides.remove(side)
                    flow.sides.insert(0, side)
                self._accept_short(packet, side, length, opened)
                return True
        return self._is_stateless_reset(packet, flow)

    def _accept_short(self, packet: Packet, side: SenderState, cid_length: int, opened: OneRtt) -> None:
        number, plain, phase, generation, first = opened
        rows, row, start = self.rows, packet.row, packet.start
        self.registry.changes += 1
        ring = side.ring
        values = PacketRow(
            packet.datagram,
            packet.index,
            side.connection.number,
            side.sender,
            type=_ONE_RTT,
            dcid=rows.cid(self._data[start + 1 : start + 1 + cid_length]),
            packet_number=number,
            key_phase=phase,
            key_generation=generation,
            length=packet.end - start,
            decrypted=1,
            suite=NONE if ring is None else _SUITE_NUMBERS[ring.suite],
            first_byte=first if ring is None else first & (0xE7 | ring.reserved_bits),
            key_version=NONE if ring is None else ring.version,
        )
        rows.packets.write(row, values)
        side.largest[APPLICATION_SPACE] = max(side.largest[APPLICATION_SPACE], number)
        rows.frames.http3 = side.connection.alpn == HTTP3
        events = parse_frames(plain, row, APPLICATION_SPACE, rows.frames)
        if events:
            self.registry.learn(side, APPLICATION_SPACE, events, row)

    def _is_stateless_reset(self, packet: Packet, flow: FlowState) -> bool:
        """Whether the last 16 bytes are a stateless reset token that the sender had issued (RFC 9000 §10.3.1)."""
        side = self.registry.reset_tokens.get(self._data[packet.end - 16 : packet.end])
        if side is None or side not in flow.history or packet.end - packet.start < 21:
            return False
        self.rows.fill(packet.row, side.connection.number, side.sender, PacketType.STATELESS_RESET)
        return True

    # Long headers

    def _long(self, packet: Packet, flow: FlowState) -> int:
        """Decode one packet with a long header. Returns the position of the next packet."""
        end = packet.end
        packet.header = header = parse_long_header(self._data, packet.start, end)
        packet.end = header.end
        if header.end < end:
            packet.missing = 0
        elif packet.missing:
            header.complete = False
        rows = self.rows
        if header.token:
            rows.tokens[packet.row] = header.token
        protected = header.complete and header.type in _PROTECTED
        if protected and self._attempt_long(packet, header, flow):
            return header.end
        length = packet.end - packet.start + packet.missing
        token = NONE if header.token is None else len(header.token)
        row = rows.add(
            PacketRow(
                packet.datagram,
                packet.index,
                type=int(header.type),
                version=header.version,
                dcid=rows.cid(header.dcid),
                scid=rows.cid(header.scid),
                length=length,
                token_length=token,
            )
        )
        if header.supported_versions is not None:
            rows.supported_versions[row] = header.supported_versions
        if not header.complete:
            if packet.missing:
                self._negotiation.note_cut_off(packet, header, flow)
            return end
        if protected:
            flow.pending.append(packet)
        else:
            self._negotiation.read(packet, header, flow)
        return header.end

    def _attempt_long(self, packet: Packet, header: LongHeader, flow: FlowState) -> bool:
        space, registry = SPACE_OF[header.type], self.registry
        by_cid = registry.cids.get(header.dcid)
        begins = header.type is PacketType.INITIAL and len(header.dcid) >= _LEAST_FIRST_DCID
        begins = begins and (by_cid is None or by_cid.connection.may_begin_again(header.version))
        if begins and len(packet.failed) >= _STRANGERS:
            packet.needs_cid = True
            return self._first_initial(packet, header, flow)
        if begins and not packet.failed and self._first_initial(packet, header, flow):
            return True
        sides = list(flow.sides) if by_cid is None else [by_cid, *(side for side in flow.sides if side is not by_cid)]
        for side in sides:
            if begins and len(packet.failed) >= _STRANGERS:
                break
            if header.type is PacketType.INITIAL:
                options = side.connection.initial_options(header.version, side.sender)
            elif header.type is PacketType.HANDSHAKE:
                options = side.handshake
            else:
                options = side.early if side.sender == CLIENT else []
            keys = (side, *options)
            if keys in packet.failed:
                continue
            if len(packet.failed) >= 2 and registry.credit <= 0:
                break
            if not packet.note(keys, side.largest[space]):
                continue
            registry.credit -= max(1, len(options))
            opened = side.open_long(options, space, self._data, header)
            if opened is not None:
                if side not in flow.sides:
                    registry.link(flow, side)
                self._accept_long(packet, header, side, opened)
                return True
        return header.type is PacketType.INITIAL and self._first_initial(packet, header, flow)

    def _first_initial(self, packet: Packet, header: LongHeader, flow: FlowState) -> bool:
        """Decrypt an Initial packet with keys from its own destination connection ID. If the keys fit, the packet
        begins a client's first flight, and True is returned."""
        connection = self._continued(header, flow) if self.registry.may_continue else None
        largest = connection.sides[CLIENT].largest[INITIAL_SPACE] if connection else -1
        if packet.first_failed == largest:
            return False
        protection = initial_protection(header.version, header.dcid, CLIENT)
        opened = protection.open_long(self._data, header.start, header.number_at, header.end, largest)
        packet.first_failed = largest
        if opened is None:
            return False
        if connection is None:
            time_ns = int(self._times[packet.datagram])
            connection = self.registry.add_connection(flow, CLIENT, time_ns, header.dcid)
            orphan = None if flow.orphan is None or flow.orphan.dcid == header.dcid else flow.orphan
            flow.orphan = None
            connection.original_version = header.version if orphan is None else orphan.version
            connection.odcid = header.dcid if orphan is None else orphan.dcid
        else:  # after a Retry the client sends its ClientHello again; a faulty client sends a different ClientHello
            connection.restart()
            connection.add_initial_dcid(header.dcid)
            if header.dcid in connection.retry_scids:
                connection.followed_retry = header.dcid
        client = connection.sides[CLIENT]
        self.registry.cids[header.dcid] = client
        self.registry.news = True
        self._accept_long(packet, header, client, (*opened, protection))
        return True

    def _continued(self, header: LongHeader, flow: FlowState) -> Connection | None:
        """The connection that this first flight continues after a Retry or a Version Negotiation packet; None when
        there is none."""
        for side in flow.sides:
            connection = side.connection
            if side.sender == CLIENT and (header.dcid in connection.retry_scids or not connection.initial_dcids):
                return connection
        return None

    def _accept_long(
        self, packet: Packet, header: LongHeader, side: SenderState, opened: tuple[int, bytes, int, Protection]
    ) -> None:
        """Write the row and the frames of a decrypted packet, and update the connection."""
        number, plain, first, protection = opened
        space = SPACE_OF[header.type]
        self.registry.changes += 1
        rows, row = self.rows, packet.row
        values = PacketRow(
            packet.datagram,
            packet.index,
            side.connection.number,
            side.sender,
            type=int(header.type),
            version=header.version,
            dcid=rows.cid(header.dcid),
            scid=rows.cid(header.scid),
            packet_number=number,
            length=packet.end - packet.start,
            decrypted=1,
            token_length=NONE if header.token is None else len(header.token),
            suite=_SUITE_NUMBERS[protection.suite],
            first_byte=first,
            key_version=protection.version,
        )
        rows.packets.write(row, values)
        side.largest[space] = max(side.largest[space], number)
        if space == INITIAL_SPACE and side.sender == SERVER:
            side.connection.server_initials.setdefault(header.scid, set()).add(protection.secret)
        self.registry.accept_header(side, header)
        rows.frames.http3 = False  # the first bytes of streams in 0-RTT packets are kept anyway
        events = parse_frames(plain, row, space, rows.frames)
        if events:
            self.registry.learn(side, space, events, row)

    # Packets that wait for keys

    def _attempt(self, packet: Packet, flow: FlowState) -> bool:
        registry = self.registry
        if packet.header is None:
            return packet.failed_at != registry.changes and self._attempt_short(packet, flow)
        if packet.needs_cid and not registry.may_continue and packet.header.dcid not in registry.cids:
            return False
        return self._attempt_long(packet, packet.header, flow)

    def _retry_pending(self, flow: FlowState, *, short: bool = True) -> None:
        """Try to decrypt the waiting packets of a flow again. Without `short`, packets with short headers keep
        waiting."""
        registry = self.registry
        if registry.credit <= 0 or not (flow.pending or flow.pending_short):
            return
        registry.credit -= len(flow.pending)
        if flow.pending:
            flow.pending = [packet for packet in flow.pending if not self._attempt(packet, flow)]
        if short and flow.pending_short:
            registry.credit -= len(flow.pending_short)
            if registry.can_read_short:
                flow.pending_short = [packet for packet in flow.pending_short if not self._attempt(packet, flow)]

    def _rescue_pending(self, flow: FlowState, rescue: Rescue) -> None:
        """At the end of the file, try to decrypt the waiting packets of a flow in other ways: the capture may lack the
        beginning of their connections."""
        pending = sorted((*flow.pending, *flow.pending_short), key=lambda packet: packet.row)
        flow.pending, flow.pending_short = [], []
        for packet in pending:
            if packet.header is None and not self.registry.can_read_short:
                flow.pending_short.append(packet)
                continue
            if packet.failed_at != self.registry.changes:
                packet.begin_pass()
            if self._attempt(packet, flow):
                continue
            found = rescue.search(packet, flow, int(self._times[packet.datagram]))
            if not (found and self._attempt(packet, flow)):
                (flow.pending_short if packet.header is None else flow.pending).append(packet)

    def _split(self, whole: Packet, index: int, flow: FlowState) -> None:
        """Decode a super-datagram: one record that contains several datagrams, because it was captured before
        segmentation offload separated them."""
        rows, row = self.rows, len(self.rows) - 1
        if rows.packets[row, "type"] != PacketType.ONE_RTT or rows.packets[row, "decrypted"]:
            return
        start = whole.end - (rows.packets[row, "length"] - whole.missing)
        if not any(side.has_short_keys for side in flow.sides):
            return
        if flow.unsplit >= _SPLITS and not flow.segment_size:
            return
        flow.unsplit += 1
        for size in (flow.segment_size, *(range(MTU - 28, 20, -1) if flow.unsplit <= _SPLITS else ())):
            stop = whole.start + size
            if not start < stop < whole.end:
                continue
            for side in flow.sides:
                opened = side.open_short(self._data, start, stop, side.cid_length)
                if opened is None:
                    continue
                if flow.pending_short and flow.pending_short[-1].row == row:
                    flow.pending_short.pop()
                first = Packet(row, whole.datagram, index - 1, start, stop, 0)
                self._accept_short(first, side, side.cid_length, opened)
                flow.segment_size, flow.unsplit = size, 0
                self.divided.append(whole.datagram)
                for at in range(stop, whole.end, size):
                    end = min(at + size, whole.end)
                    missing = whole.missing if end == whole.end else 0
                    index = self._packets(Packet(len(rows), whole.datagram, index, at, end, missing), flow)
                return
