"""Finds the connection and the keys of every packet by trying keys: the key that opens a packet is the right key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lab.mutate import tls
from lab.mutate.connection import Connection
from lab.mutate.frames import F
from lab.mutate.packets import LONG, Kind, Packet
from lab.mutate.protection import SUITES, V1, V2, Keys, initial_keys

if TYPE_CHECKING:
    from lab.mutate.recording import Datagram

_LEVELS = {Kind.HANDSHAKE: "HANDSHAKE_TRAFFIC_SECRET", Kind.ONE_RTT: "TRAFFIC_SECRET_0"}
_EARLY = "CLIENT_EARLY_TRAFFIC_SECRET"
_HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def open_all(datagrams: Sequence[Datagram], secrets: dict[bytes, dict[str, bytes]]) -> list[Connection]:
    """Open all packets that can be opened. This takes several passes, because packets may come before the packets that
    bring their keys."""
    connections: list[Connection] = []
    while True:
        before = sum(packet.opened for datagram in datagrams for packet in datagram.packets)
        for datagram in datagrams:
            for packet in datagram.packets:
                if packet.kind is Kind.RETRY:
                    retry_of(datagram, packet, connections)
                elif not packet.opened and packet.kind in (*LONG, Kind.ONE_RTT):
                    _open(datagram, packet, connections, secrets)
        if before == sum(packet.opened for datagram in datagrams for packet in datagram.packets):
            return connections


def retry_of(datagram: Datagram, packet: Packet, connections: list[Connection]) -> None:
    """Store the connection of a Retry packet, and the keys that follow from the packet."""
    if datagram.connection is not None:
        return
    for connection in reversed(connections):
        if packet.dcid in connection.cids["client"]:
            datagram.connection = connection
            packet.original = connection.original_dcid
            connection.cids["server"].append(packet.scid)
            _add_initial(connection, packet.scid)
            return


def _add_initial(connection: Connection, dcid: bytes) -> None:
    connection.initial += [(dcid, initial_keys(dcid, version)) for version in (V1, V2)]


def _open(
    datagram: Datagram,
    packet: Packet,
    connections: list[Connection],
    secrets: dict[bytes, dict[str, bytes]],
) -> None:
    sender = datagram.sender
    known = [datagram.connection] if datagram.connection else _by_tuple(datagram, connections)
    for connection in known:
        if _try(connection, datagram, packet):
            _learn(connection, datagram, packet, secrets)
            return
    if packet.kind is Kind.INITIAL and sender == "client" and datagram.connection is None:
        record = next(iter(datagram.seen.values()))
        connection = Connection(record.source, record.destination, packet.dcid, version=packet.version)
        _add_initial(connection, packet.dcid)
        if _try(connection, datagram, packet):
            connections.append(connection)
            _learn(connection, datagram, packet, secrets)


def _by_tuple(datagram: Datagram, connections: list[Connection]) -> list[Connection]:
    """The connections to try: first those with the datagram's addresses, then all others, because clients migrate; the
    newest first."""
    record = next(iter(datagram.seen.values()))
    ends = record.source, record.destination
    client = ends[0] if datagram.sender == "client" else ends[1]
    newest = list(reversed(connections))
    return sorted(newest, key=lambda connection: connection.client != client)


def _try(connection: Connection, datagram: Datagram, packet: Packet) -> bool:
    sender = datagram.sender
    receiver = "server" if sender == "client" else "client"
    largest = connection.largest.get((sender, packet.space), -1)
    if packet.kind is Kind.ONE_RTT:
        for cid in dict.fromkeys(connection.cids[receiver]):
            if packet.raw[1 : 1 + len(cid)] == cid:
                packet.fields = slice(1 + len(cid), len(packet.raw))
                packet.dcid = cid
                if any(packet.open(keys, largest) for keys in _one_rtt(connection, sender)):
                    return True
        return False
    return any(packet.open(keys, largest) for keys in _long(connection, sender, packet))


def _long(connection: Connection, sender: str, packet: Packet) -> Iterator[Keys]:
    if packet.kind is Kind.INITIAL:
        for _, keys in reversed(connection.initial):
            if keys[sender].version == packet.version:
                yield keys[sender]
        for _, keys in connection.initial:
            if keys[sender].version != packet.version:
                yield keys[sender]
        return
    for version in dict.fromkeys((packet.version, V1, V2)):
        if packet.kind is Kind.ZERO_RTT:
            secret = connection.secrets.get(_EARLY)
            suites = (connection.suite,) if connection.suite else SUITES
            for suite in suites if secret else ():
                yield _made(connection, sender, _EARLY, version, suite)
        elif connection.suite and f"{sender.upper()}_{_LEVELS[packet.kind]}" in connection.secrets:
            yield _made(connection, sender, f"{sender.upper()}_{_LEVELS[packet.kind]}", version, connection.suite)


def _one_rtt(connection: Connection, sender: str) -> Iterator[Keys]:
    label = f"{sender.upper()}_{_LEVELS[Kind.ONE_RTT]}"
    if label not in connection.secrets or not connection.suite:
        return
    for version in dict.fromkeys((connection.version, V1, V2)):
        keys = connection.keys.setdefault((sender, "1-RTT", version), [])
        if not keys:
            keys.append(_made(connection, sender, label, version, connection.suite))
        yield from reversed(keys)
        newest = keys[-1].next()
        keys.append(newest)
        yield newest
        keys.pop()


def _made(connection: Connection, sender: str, label: str, version: int, suite: int) -> Keys:
    keys = connection.keys.setdefault((sender, f"{label} {suite}", version), [])
    if not keys:
        keys.append(Keys(connection.secrets[label], suite, version))
    return keys[0]


def _learn(connection: Connection, datagram: Datagram, packet: Packet, secrets: dict[bytes, dict[str, bytes]]) -> None:
    """Store the facts that an opened packet gives about its connection."""
    sender = datagram.sender
    datagram.connection = connection
    space = sender, packet.space
    connection.largest[space] = max(connection.largest.get(space, -1), packet.number)
    if packet.kind in LONG:
        if packet.scid not in connection.cids[sender]:
            connection.cids[sender].append(packet.scid)
        if sender == "server" or packet.kind is Kind.HANDSHAKE:
            connection.version = packet.version
    elif packet.keys is not None:
        known = connection.keys[sender, "1-RTT", packet.keys.version]
        if packet.keys not in known:
            known.append(packet.keys)
    for frame in packet.frames:
        if frame.type == F.CRYPTO:
            connection.add_crypto(sender, packet.space, frame)
        elif frame.type == F.NEW_CONNECTION_ID:
            connection.cids[sender].append(frame.data[:-16])
    if packet.kind is Kind.HANDSHAKE and sender == "server":
        _preferred(connection)
    if packet.kind is Kind.INITIAL:
        _hello(connection, sender, secrets)
        for frame in packet.frames:  # after Retry some clients send a new ClientHello with another random
            if sender == "client" and frame.type == F.CRYPTO and frame.data[6:38] in secrets:
                connection.client_random = frame.data[6:38]
                connection.secrets = secrets[connection.client_random]


def _preferred(connection: Connection) -> None:
    """The connection ID of a preferred address (RFC 9000 §18.2). It follows the IPv4 and the IPv6 address with their
    ports."""
    for message in tls.messages(connection.crypto_stream("server", "handshake"))[0]:
        data = message.get(tls.TRANSPORT_PARAMETERS)
        for kind, value in tls.parameters(data) if data is not None else ():
            if kind == tls.P.PREFERRED_ADDRESS and value[25 : 25 + value[24]] not in connection.cids["server"]:
                connection.cids["server"].append(value[25 : 25 + value[24]])


def _hello(connection: Connection, sender: str, secrets: dict[bytes, dict[str, bytes]]) -> None:
    whole = connection.crypto_stream(sender, "initial")
    if sender == "client" and whole[6:38] in secrets and not connection.client_random:
        connection.client_random = whole[6:38]
        connection.secrets = secrets[connection.client_random]
    while sender == "server" and len(whole) >= 4:
        body, whole = whole[4 : 4 + int.from_bytes(whole[1:4])], whole[4 + int.from_bytes(whole[1:4]) :]
        if len(body) > 35 and body[2:34] != _HELLO_RETRY:
            connection.suite = int.from_bytes(body[35 + body[34] : 37 + body[34]])
