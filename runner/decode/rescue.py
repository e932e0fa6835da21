"""Finds keys for packets of a connection whose handshake is not in the capture: tries all secrets of the key logs.

A handshake is missing when a capture starts late or lost the first flight. Then session, direction, suite, version,
length of the connection ID, key generation and upper bits of the packet number are all unknown.
"""

from collections.abc import Iterator

from runner.decode.connection import APPLICATION_SPACE, Connection, KeyRing
from runner.decode.file_bytes import Data
from runner.decode.keylog import APPLICATION, EARLY, HANDSHAKE, Session
from runner.decode.packets import LongHeader, PacketType
from runner.decode.protection import VERSION_1, Protection, candidates
from runner.decode.registry import FlowState, Packet, Registry
from runner.decode.schema import CLIENT, SERVER

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
            secrets = session.get(APPLICATION[sender])
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
            label = HANDSHAKE[sender] if header.type is PacketType.HANDSHAKE else EARLY
            secrets = session.get(label)
            if secrets is None or (label == EARLY and sender == SERVER):
                continue
            options = candidates(secrets, header.version, None)
            self._attempts -= len(options)
            if any(self._opens(each, header) for each in options):
                adopted = self._adopt(flow, target, time_ns, header.version)
                self._registry.link(flow, adopted.sides[sender])
                return True
        return False

    def _opens(self, protection: Protection, header: LongHeader) -> bool:
        return protection.open_long(self._data, header.start, header.number_at, header.end, -1) is not None

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
