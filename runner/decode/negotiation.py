"""Reads the packets before a handshake that have no packet protection: Version Negotiation, Retry, and first flights of
unknown versions."""

from runner.decode import rows as columns
from runner.decode.columns import Integers
from runner.decode.file_bytes import Data
from runner.decode.packets import LongHeader, PacketType
from runner.decode.protection import VERSIONS, retry_tag_is_valid
from runner.decode.registry import FlowState, Packet, Registry
from runner.decode.rows import Rows
from runner.decode.schema import CLIENT, SERVER

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
        if orphan is not None and (orphan.scid, orphan.dcid) == (header.dcid, header.scid):
            registry.reverse(flow).orphan = None
            self._tried.add(orphan.dcid)
            connection = registry.add_connection(flow, SERVER, int(self._times[packet.datagram]))
            connection.original_version, connection.odcid = orphan.version, orphan.dcid
        if flow.sides and flow.sides[0].sender == SERVER:
            self._rows.fill(packet.row, flow.sides[0].connection.number, SERVER, PacketType.VERSION_NEGOTIATION)
        self._rows.set(packet.row, columns.DECRYPTED, 1)

    def _retry(self, packet: Packet, header: LongHeader, flow: FlowState) -> None:
        self._rows.set(packet.row, columns.DECRYPTED, 1)
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
            if flow.sides or not (readable or self._lengths[datagram] >= _CLIENT_INITIAL):
                continue
            sender = SERVER if readable and flow.flow.src_port < flow.flow.dst_port else CLIENT
            connection = self._registry.add_connection(flow, sender, int(self._times[datagram]))
            connection.original_version = orphan.version
            if readable:
                connection.version = orphan.version
                self._registry.issue(orphan.scid, connection.sides[sender])
            if sender == CLIENT:
                connection.odcid = orphan.dcid
