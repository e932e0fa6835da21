"""The decoder: reads every QUIC packet of a capture in file order, with the keys of its connection."""

from collections.abc import Sequence

import numpy as np

from runner.decode import rows as columns
from runner.decode.attribution import attribute
from runner.decode.columns import Integers, no_integers
from runner.decode.connection import APPLICATION_SPACE, INITIAL_SPACE, Connection, OneRtt, Side
from runner.decode.file_bytes import release
from runner.decode.frames import NONE, parse_frames
from runner.decode.keylog import Session
from runner.decode.negotiation import Negotiation
from runner.decode.network import Datagrams
from runner.decode.packets import LongHeader, PacketType, parse_long_header
from runner.decode.protection import SUITES, TAG_LENGTH, VERSIONS, Protection, initial_protection
from runner.decode.registry import SPACE_OF, FlowState, Packet, Registry
from runner.decode.rescue import Rescue
from runner.decode.rows import Rows
from runner.decode.schema import CLIENT, HTTP3, MTU

_LONG_FORM = 0x80
_PIECE = 1 << 13  # datagrams that are read before the memory of their bytes is released
_LEAST_FIRST_DCID = 8  # bytes of the destination connection ID in a client's first Initial packet (RFC 9000 §7.2)
_LATELY = 64  # newest connections whose keys are tried for a packet of an unknown flow
_STRANGERS = 4  # senders whose keys are tried for an Initial packet with an unknown connection ID of usual length
_SPLITS = 8  # failed splits of super-datagrams on a flow; afterwards, only the last known size is tried
_LEAST_SEALED = 4 + TAG_LENGTH  # bytes behind the connection ID of the shortest packet (RFC 9001 §5.4.2)
_PADDING = bytes(1 << 16)  # as long as the largest datagram
_ONE_RTT = int(PacketType.ONE_RTT)  # numpy reads plain integers much faster
_SUITE_NUMBERS = {suite: number for number, suite in enumerate(SUITES.values())}
_PROTECTED = (PacketType.INITIAL, PacketType.ZERO_RTT, PacketType.HANDSHAKE)


class Decoder:
    """Reads the datagrams of one capture once. After `run`, `rows` and `registry` contain the result."""

    def __init__(self, datagrams: Datagrams, sessions: dict[bytes, Session]) -> None:
        self.rows = Rows()
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
            if ip_length > MTU:
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
            rows.add(datagram, index, PacketType.UNKNOWN, missing)
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
        self.rows.add(packet.datagram, packet.index, _ONE_RTT, packet.end - packet.start + packet.missing)
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

    def _accept_short(self, packet: Packet, side: Side, cid_length: int, opened: OneRtt) -> None:
        number, plain, phase, generation, first = opened
        rows, row, start = self.rows, packet.row, packet.start
        self.registry.changes += 1
        suite = side.ring.suite if side.ring else None
        fields = (
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
            first if side.ring is None else first & (0xE7 | side.ring.reserved_bits),
            NONE if side.ring is None else side.ring.version,
        )
        rows.packets.write(row, fields)
        side.largest[APPLICATION_SPACE] = max(side.largest[APPLICATION_SPACE], number)
        rows.frames.http3 = side.connection.alpn == HTTP3
        events = parse_frames(plain, row, APPLICATION_SPACE, rows.frames)
        if events:
            self.registry.learn(side, APPLICATION_SPACE, events, row)

    def _is_stateless_reset(self, packet: Packet, flow: FlowState) -> bool:
        """Whether the last 16 bytes are a stateless reset token that the sender had issued (RFC 9000 §10.3.1)."""
        token = self._data[packet.end - 16 : packet.end]
        if packet.end - packet.start < 21 or token not in self.registry.reset_tokens:
            return False
        for side in flow.sides:
            if token in side.connection.reset_tokens:
                self.rows.fill(packet.row, side.connection.number, side.sender, PacketType.STATELESS_RESET)
                return True
        return False

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
        shown = (header.version, rows.cid(header.dcid), rows.cid(header.scid), token)
        row = rows.add(packet.datagram, packet.index, int(header.type), length, shown)
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
        begins = header.type is PacketType.INITIAL and by_cid is None and len(header.dcid) >= _LEAST_FIRST_DCID
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
            time_ns = self._time_ns(packet.datagram)
            connection = self.registry.add_connection(flow, CLIENT, time_ns, header.dcid)
            orphan = None if flow.orphan is None or flow.orphan.dcid == header.dcid else flow.orphan
            flow.orphan = None
            connection.original_version = header.version if orphan is None else orphan.version
            connection.odcid = header.dcid if orphan is None else orphan.dcid
        else:  # after a Retry the client sends its ClientHello again; a faulty client sends a different ClientHello
            connection.sides[CLIENT].crypto(INITIAL_SPACE).restart()
            connection.add_initial_dcid(header.dcid)
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
        self, packet: Packet, header: LongHeader, side: Side, opened: tuple[int, bytes, int, Protection]
    ) -> None:
        """Write the row and the frames of a decrypted packet, and update the connection."""
        number, plain, first, protection = opened
        space = SPACE_OF[header.type]
        self.registry.changes += 1
        rows, row = self.rows, packet.row
        fields = (
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
        rows.packets.write(row, fields)
        side.largest[space] = max(side.largest[space], number)
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
            if not (rescue.search(packet, flow, self._time_ns(packet.datagram)) and self._attempt(packet, flow)):
                (flow.pending_short if packet.header is None else flow.pending).append(packet)

    def _split(self, whole: Packet, index: int, flow: FlowState) -> None:
        """Decode a super-datagram: one record that contains several datagrams, because it was captured before
        segmentation offload separated them."""
        rows, row = self.rows, len(self.rows) - 1
        if rows.get(row, columns.TYPE) != PacketType.ONE_RTT or rows.get(row, columns.DECRYPTED):
            return
        start = whole.end - (rows.get(row, columns.LENGTH) - whole.missing)
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
                for at in range(stop, whole.end, size):
                    end = min(at + size, whole.end)
                    missing = whole.missing if end == whole.end else 0
                    index = self._packets(Packet(len(rows), whole.datagram, index, at, end, missing), flow)
                return

    # Rows

    def _time_ns(self, datagram: int) -> int:
        return int(self._times[datagram])
