"""The decoder: every QUIC packet of a capture in file order, with the keys of its connection."""

from bisect import bisect_right

from runner.decode.connection import APPLICATION_SPACE, INITIAL_SPACE, Connection, OneRtt, Side
from runner.decode.frames import NONE, parse_frames
from runner.decode.keylog import Session
from runner.decode.network import Datagrams
from runner.decode.packets import LongHeader, PacketType, parse_long_header
from runner.decode.protection import SUITES, Protection, initial_protection, retry_tag_is_valid
from runner.decode.registry import SPACE_OF, FlowState, Packet, Registry
from runner.decode.rescue import Rescue
from runner.decode.rows import (
    CONNECTION,
    DATAGRAM,
    DCID,
    DECRYPTED,
    INDEX,
    LENGTH,
    PACKET_COLUMNS,
    SCID,
    SENDER,
    TOKEN,
    TYPE,
    VERSION,
    Rows,
)
from runner.decode.schema import CLIENT, MTU, SERVER

_LONG_FORM = 0x80
_LEAST_FIRST_DCID = 8  # bytes of the destination connection ID of a client's first Initial (RFC 9000 §7.2)
_LATELY = 64  # connections with whose keys a packet of an unknown flow is tried
_SPLITS = 8  # super-datagrams in a row that could not be split, after which no size but the last is tried
_CLIENT_INITIAL = 1200  # bytes of UDP payload, at least
_ONE_RTT = int(PacketType.ONE_RTT)  # numpy reads plain integers much faster
_SUITE_NUMBERS = {suite: number for number, suite in enumerate(SUITES.values())}
_PROTECTED = (PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE)


class Decoder:
    """Reads the datagrams of one capture once. After `run`, `rows` and `registry` hold the result."""

    def __init__(self, datagrams: Datagrams, sessions: dict[bytes, Session]) -> None:
        self.rows = Rows()
        self.registry = Registry(datagrams.flows, sessions, len(datagrams.start))
        self._datagrams = datagrams
        self._data = datagrams.data
        self._selected: list[int] = []
        self._tried: set[bytes] = set()
        """Connection IDs of first flights of an unknown version that Version Negotiation answered."""

    def run(self, selected: list[int]) -> None:
        """Decode the datagrams with these numbers; their rows count from 0. Never raises on what packets contain."""
        source, registry = self._datagrams, self.registry
        self._selected = selected
        for datagram, number in enumerate(selected):
            flow = registry.flows[source.flow[number]]
            self._decode(datagram, number, flow)
            if registry.news:
                registry.news = False
                self._retry_pending(flow)
                self._retry_pending(registry.reverse(flow))
        registry.credit += len(self.rows)
        rescue = Rescue(self._data, registry)
        for flow in registry.flows:
            self._rescue_pending(flow, rescue)
        registry.credit = max(registry.credit, 0) + len(self.rows)
        for flow in registry.flows:
            self._retry_pending(flow)
        self._adopt_orphans()
        self._attribute()

    def _decode(self, datagram: int, number: int, flow: FlowState) -> None:
        source = self._datagrams
        start, end = source.start[number], source.end[number]
        whole = Packet(len(self.rows), datagram, 0, start, end, source.payload_length[number] - (end - start))
        index = self._packets(whole, flow)
        if source.ip_length[number] > MTU:
            self._split(whole, index, flow)

    def _packets(self, whole: Packet, flow: FlowState) -> int:
        """The coalesced packets of one datagram (RFC 9000 §12.2), of which `whole` has the extent.

        Gives the index after the last one.
        """
        data, rows = self._data, self.rows
        position, end, missing, index = whole.start, whole.end, whole.missing, whole.index
        while position < end:
            if data[position] & _LONG_FORM:
                position = self._long(Packet(len(rows), whole.datagram, index, position, end, missing), flow)
            elif position > whole.start and data[position] == 0 and not any(data[position:end]):
                break  # padding behind the last packet
            else:
                self._short(Packet(len(rows), whole.datagram, index, position, end, missing), flow)
                position = end
            index += 1
        if whole.start == end:
            rows.add(whole.datagram, index, PacketType.UNKNOWN, missing)
        return index

    # Short headers

    def _short(self, packet: Packet, flow: FlowState) -> None:
        if not packet.missing:
            for side in flow.sides[:1]:
                opened = side.open_short(self._data, packet.start, packet.end, side.cid_length)
                if opened is not None:
                    self._accept_short(packet, side, side.cid_length, opened)
                    return
        self.rows.add(packet.datagram, packet.index, PacketType.ONE_RTT, packet.end - packet.start + packet.missing)
        if not packet.missing and not self._attempt_short(packet, flow):
            flow.pending.append(packet)

    def _attempt_short(self, packet: Packet, flow: FlowState) -> bool:
        """Try the sides of this flow, then who uses this connection ID elsewhere, then everybody."""
        data, start, end, registry = self._data, packet.start, packet.end, self.registry
        sides = []
        for length in registry.cid_lengths:
            by_cid = registry.cids.get(data[start + 1 : start + 1 + length])
            if by_cid is not None:
                sides.append((by_cid, length))
        sides += [each for each in ((side, side.cid_length) for side in flow.sides) if each not in sides]
        if not flow.sides and flow.attempts > 0:
            flow.attempts -= 1
            known = {side for side, _ in sides}
            everybody = (side for connection in registry.connections[: -_LATELY - 1 : -1] for side in connection.sides)
            sides += [(side, side.cid_length) for side in everybody if side not in known]
        for side, length in sides:
            tried = (side, length, side.ring or tuple(side.rings))
            if tried in packet.failed:
                continue
            if len(packet.failed) >= 2 and registry.credit <= 0:
                break
            packet.failed.add(tried)
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

    def _accept_short(self, packet: Packet, side: Side, cid_length: int, opened: OneRtt) -> None:
        number, plain, phase, generation, first = opened
        rows, row, start = self.rows, packet.row, packet.start
        suite = side.ring.suite if side.ring else None
        rows.packets[row * PACKET_COLUMNS : (row + 1) * PACKET_COLUMNS] = (
            packet.datagram,
            packet.index,
            side.connection.number,
            side.sender,
            _ONE_RTT,
            NONE,
            rows.cid(self._data[start + 1 : start + 1 + cid_length]),
            NONE,
            number,
            phase,
            generation,
            packet.end - start,
            1,
            NONE,
            NONE if suite is None else _SUITE_NUMBERS[suite],
            first,
            NONE if side.ring is None else side.ring.version,
        )
        side.largest[APPLICATION_SPACE] = max(side.largest[APPLICATION_SPACE], number)
        events = parse_frames(plain, row, APPLICATION_SPACE, rows.frames)
        if events:
            self.registry.learn(side, APPLICATION_SPACE, events, row)

    def _is_stateless_reset(self, packet: Packet, flow: FlowState) -> bool:
        """RFC 9000 §10.3.1: the last 16 bytes are a token that the sender had given out."""
        token = self._data[packet.end - 16 : packet.end]
        for side in flow.sides:
            if packet.end - packet.start >= 21 and token in side.connection.reset_tokens:
                self._fill(packet.row, side, PacketType.STATELESS_RESET)
                return True
        return False

    # Long headers

    def _long(self, packet: Packet, flow: FlowState) -> int:
        """One packet with a long header; gives where the next one starts."""
        end = packet.end
        packet.header = header = parse_long_header(self._data, packet.start, end)
        packet.end = header.end
        if header.end < end:
            packet.missing = 0
        elif packet.missing:
            header.complete = False
        rows = self.rows
        length = packet.end - packet.start + packet.missing
        row = rows.add(packet.datagram, packet.index, int(header.type), length)
        rows.set(row, VERSION, header.version)
        rows.set(row, DCID, rows.cid(header.dcid))
        rows.set(row, SCID, rows.cid(header.scid))
        if header.token is not None:
            rows.set(row, TOKEN, len(header.token))
            if header.token:
                rows.tokens[row] = header.token
        if header.supported_versions is not None:
            rows.supported_versions[row] = header.supported_versions
        if not header.complete:
            return end
        if header.type in _PROTECTED:
            if not self._attempt_long(packet, header, flow):
                flow.pending.append(packet)
        elif header.type is PacketType.VERSION_NEGOTIATION:
            self._version_negotiation(packet, header, flow)
        elif header.type is PacketType.RETRY:
            self._retry(packet, header, flow)
        elif flow.orphan is None and (not flow.sides or self._is_another_first_flight(packet, header)):
            flow.orphan, flow.orphan_datagram = header, packet.datagram
        return header.end

    def _is_another_first_flight(self, packet: Packet, header: LongHeader) -> bool:
        """Whether a packet of an unknown version on a flow with connections begins another one: its connection IDs are
        new, and its datagram as long as a client's first one has to be. Else a link has changed its version."""
        length = self._datagrams.payload_length[self._selected[packet.datagram]]
        return length >= _CLIENT_INITIAL and header.dcid not in self.registry.cids and header.dcid not in self._tried

    def _attempt_long(self, packet: Packet, header: LongHeader, flow: FlowState) -> bool:
        space, registry = SPACE_OF[header.type], self.registry
        by_cid = registry.cids.get(header.dcid)
        sides = list(flow.sides) if by_cid is None else [by_cid, *(side for side in flow.sides if side is not by_cid)]
        begins = header.type is PacketType.INITIAL and by_cid is None and len(header.dcid) >= _LEAST_FIRST_DCID
        if begins and not packet.failed and self._first_initial(packet, header, flow):
            return True
        for side in sides:
            if header.type is PacketType.INITIAL:
                options = side.connection.initial_options(header.version, side.sender)
            elif header.type is PacketType.HANDSHAKE:
                options = side.handshake
            else:
                options = side.early if side.sender == CLIENT else []
            tried = (side, *options)
            if tried in packet.failed:
                continue
            if len(packet.failed) >= 2 and registry.credit <= 0:
                break
            packet.failed.add(tried)
            registry.credit -= max(1, len(options))
            opened = side.open_long(options, space, self._data, header)
            if opened is not None:
                if side not in flow.sides:
                    registry.link(flow, side)
                self._accept_long(packet, header, side, opened)
                return True
        return header.type is PacketType.INITIAL and self._first_initial(packet, header, flow)

    def _first_initial(self, packet: Packet, header: LongHeader, flow: FlowState) -> bool:
        """An Initial packet under keys of its own destination connection ID: a new first flight of a client."""
        protection = initial_protection(header.version, header.dcid, CLIENT)
        connection = self._continued(header, flow)
        largest = connection.sides[CLIENT].largest[INITIAL_SPACE] if connection else -1
        opened = protection.open_long(self._data, header.start, header.number_at, header.end, largest)
        if opened is None:
            return False
        if connection is None:
            time_ns = self._time_ns(packet.datagram)
            connection = self.registry.add_connection(flow, CLIENT, time_ns)
            orphan = None if flow.orphan is None or flow.orphan.dcid == header.dcid else flow.orphan
            flow.orphan = None
            connection.original_version = header.version if orphan is None else orphan.version
            connection.odcid = header.dcid if orphan is None else orphan.dcid
        else:  # after a Retry the ClientHello comes from the beginning, of misbehaving clients another one
            connection.sides[CLIENT].crypto(INITIAL_SPACE).restart()
        connection.add_initial_dcid(header.dcid)
        client = connection.sides[CLIENT]
        self.registry.cids[header.dcid] = client
        self.registry.news = True
        self._accept_long(packet, header, client, (*opened, protection))
        return True

    def _continued(self, header: LongHeader, flow: FlowState) -> Connection | None:
        """The connection that this first flight continues: after a Retry or a Version Negotiation packet."""
        for side in flow.sides:
            connection = side.connection
            if side.sender == CLIENT and (header.dcid in connection.retry_scids or not connection.initial_dcids):
                return connection
        return None

    def _accept_long(
        self, packet: Packet, header: LongHeader, side: Side, opened: tuple[int, bytes, int, Protection]
    ) -> None:
        """Write the row and the frames of an authenticated packet, and learn from them."""
        number, plain, first, protection = opened
        space = SPACE_OF[header.type]
        rows, row = self.rows, packet.row
        rows.packets[row * PACKET_COLUMNS : (row + 1) * PACKET_COLUMNS] = (
            packet.datagram,
            packet.index,
            side.connection.number,
            side.sender,
            int(header.type),
            header.version,
            rows.cid(header.dcid),
            rows.cid(header.scid),
            number,
            NONE,
            NONE,
            packet.end - packet.start,
            1,
            NONE if header.token is None else len(header.token),
            _SUITE_NUMBERS[protection.suite],
            first,
            protection.version,
        )
        side.largest[space] = max(side.largest[space], number)
        self.registry.accept_header(side, header)
        events = parse_frames(plain, row, space, rows.frames)
        if events:
            self.registry.learn(side, space, events, row)

    def _version_negotiation(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        """RFC 9000 §17.2.1: it answers the client's packet and swaps its connection IDs."""
        registry = self.registry
        orphan = registry.reverse(flow).orphan
        if orphan is not None and (orphan.scid, orphan.dcid) == (header.dcid, header.scid):
            registry.reverse(flow).orphan = None
            self._tried.add(orphan.dcid)
            connection = registry.add_connection(flow, SERVER, self._time_ns(packet.datagram))
            connection.original_version, connection.odcid = orphan.version, orphan.dcid
        if flow.sides and flow.sides[0].sender == SERVER:
            self._fill(packet.row, flow.sides[0], PacketType.VERSION_NEGOTIATION)
        self.rows.set(packet.row, DECRYPTED, 1)

    def _retry(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        self.rows.set(packet.row, DECRYPTED, 1)
        for side in flow.sides:
            connection = side.connection
            if side.sender == SERVER and connection.initial_dcids:
                whole = self._data[header.start : header.end]
                valid = retry_tag_is_valid(header.version, connection.initial_dcids[-1], whole)
                connection.retry_integrity_ok = valid and connection.retry_integrity_ok is not False
                connection.retry_scids.add(header.scid)
                self._fill(packet.row, side, PacketType.RETRY)
                return

    # Second chances

    def _attempt(self, packet: Packet, flow: FlowState) -> bool:
        if packet.header is None:
            return self._attempt_short(packet, flow)
        return self._attempt_long(packet, packet.header, flow)

    def _retry_pending(self, flow: FlowState) -> None:
        if flow.pending and self.registry.credit > 0:
            self.registry.credit -= len(flow.pending)
            flow.pending = [packet for packet in flow.pending if not self._attempt(packet, flow)]

    def _rescue_pending(self, flow: FlowState, rescue: Rescue) -> None:
        """At the end of the file: packets of connections whose beginning is not in the capture."""
        waiting = []
        for packet in flow.pending:
            packet.failed.clear()  # the highest packet numbers are others than when it was tried
            if self._attempt(packet, flow):
                continue
            if not (rescue.search(packet, flow, self._time_ns(packet.datagram)) and self._attempt(packet, flow)):
                waiting.append(packet)
        flow.pending = waiting

    def _adopt_orphans(self) -> None:
        """First flights of unknown versions that no server took up: what was tried is a connection, too, however short.
        A client's is in a datagram of 1200 bytes at least (RFC 9000 §14.1)."""
        orphans = [(flow.orphan_datagram, flow, flow.orphan) for flow in self.registry.flows if flow.orphan is not None]
        for datagram, flow, orphan in sorted(orphans, key=lambda each: each[0]):
            length = self._datagrams.payload_length[self._selected[datagram]]
            if not flow.sides and length >= _CLIENT_INITIAL:
                connection = self.registry.add_connection(flow, CLIENT, self._time_ns(datagram))
                connection.original_version, connection.odcid = orphan.version, orphan.dcid

    def _split(self, whole: Packet, index: int, flow: FlowState) -> None:
        """Read a super-datagram: several datagrams that segmentation offload had not cut yet when it was captured."""
        rows, row = self.rows, len(self.rows) - 1
        if rows.get(row, TYPE) != PacketType.ONE_RTT or rows.get(row, DECRYPTED):
            return
        start = whole.end - (rows.get(row, LENGTH) - whole.missing)
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
                if flow.pending and flow.pending[-1].row == row:
                    flow.pending.pop()
                first = Packet(row, whole.datagram, index - 1, start, stop, 0)
                self._accept_short(first, side, side.cid_length, opened)
                flow.segment_size, flow.unsplit = size, 0
                for at in range(stop, whole.end, size):
                    end = min(at + size, whole.end)
                    missing = whole.missing if end == whole.end else 0
                    index = self._packets(Packet(len(rows), whole.datagram, index, at, end, missing), flow)
                return

    # Rows

    def _time_ns(self, datagram: int) -> int:
        return self._datagrams.time_ns[self._selected[datagram]]

    def _attribute(self) -> None:
        """Give packets that could not be read to the connection of their destination connection ID, else to the one on
        their flow at that time."""
        rows, source = self.rows, self._datagrams
        timelines = [_Timeline(flow) for flow in self.registry.flows]
        for row, connection in enumerate(rows.packets[CONNECTION::PACKET_COLUMNS]):
            if connection != NONE:
                continue
            number = self._selected[rows.get(row, DATAGRAM)]
            flow = source.flow[number]
            side = self._addressee(row, number) or timelines[flow].at(source.time_ns[number])
            if side is not None:
                rows.set(row, CONNECTION, side.connection.number)
                rows.set(row, SENDER, side.sender)

    def _addressee(self, row: int, number: int) -> Side | None:
        """The side that puts the destination connection ID of this packet into its packets; None when it is unknown."""
        cid = self.rows.get(row, DCID)
        if cid != NONE:
            return self.registry.cids.get(self.rows.cids[cid])
        if self.rows.get(row, TYPE) == _ONE_RTT and self.rows.get(row, INDEX) == 0:  # else it is behind others
            start = self._datagrams.start[number] + 1
            for length in sorted(self.registry.cid_lengths, reverse=True):
                side = self.registry.cids.get(self._data[start : start + length])
                if side is not None:
                    return side
        return None

    def _fill(self, row: int, side: Side, kind: PacketType) -> None:
        """Attribute a packet that has no packet protection."""
        self.rows.set(row, CONNECTION, side.connection.number)
        self.rows.set(row, SENDER, side.sender)
        self.rows.set(row, DECRYPTED, 1)
        self.rows.set(row, TYPE, kind)


class _Timeline:
    """The senders on a flow by the time at which their connections began."""

    def __init__(self, flow: FlowState) -> None:
        self._sides = sorted(flow.history, key=lambda side: side.connection.first_time_ns)
        self._times = [side.connection.first_time_ns for side in self._sides]

    def at(self, time_ns: int) -> Side | None:
        """The sender whose connection began last before this time, else the first one; None on an unknown flow."""
        if not self._sides:
            return None
        return self._sides[max(0, bisect_right(self._times, time_ns) - 1)]
