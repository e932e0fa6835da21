"""The beginning of a connection: the ClientHello in its datagrams, and the server's answer to an unknown version."""

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Ints, new_bytes
from runner.trace.nouns import ClientHello, Probe, VersionNegotiation
from runner.trace.scope import Scope
from runner.trace.vantage import NULL, Vantage

_HEADER = 4  # bytes of a handshake message: type and length
_NOT_ELICITING = ("ack", "padding", "connection_close", "application_close")  # frames, RFC 9002 §2
# Packets sent within this time belong to one flight: no stack begins with such a short probe time-out. RFC 9002 §6.2.2
# recommends 999 ms; the shortest time-out in our captures was 300 ms.
_AT_ONCE = 0.05


def version_negotiations(scope: Scope) -> tuple[VersionNegotiation, ...]:
    """Every Version Negotiation packet of the server, with the client's packet that it answers (RFC 9000 §17.2.1).

    The answered packet is the last packet whose connection IDs are echoed. If there is none, it is the client's last
    packet before the Version Negotiation packet.
    """
    vantage = scope.best(SERVER)
    packets = vantage.packets
    offers = np.flatnonzero(scope.mine(packets, CLIENT) & (packets["version"] != NULL))
    negotiations = []
    for row in scope.packets(vantage, SERVER, "version_negotiation"):
        swapped = (packets.cell("scid", int(row)), packets.cell("dcid", int(row)))
        before = [int(packet) for packet in offers[offers < row]]
        echoed = [
            packet for packet in before if (packets.cell("dcid", packet), packets.cell("scid", packet)) == swapped
        ]
        answers = (echoed or before)[-1:]
        listed = packets.cell("supported_versions", int(row))
        negotiations.append(
            VersionNegotiation(
                offered=int(packets["version"][answers[0]]) if answers else None,
                listed=tuple(listed) if listed is not None else None,
                ids_echoed=bool(echoed),
                place=scope.place(vantage, int(row)),
            )
        )
    return tuple(negotiations)


def probe(scope: Scope) -> Probe | None:
    """The client's first ack-eliciting Initial packet after its first flight and before any packet of the server
    arrived: a ClientHello sent again, or a PING (RFC 9002 §6.2.4)."""
    vantage = scope.best(CLIENT)
    frames, packets = vantage.frames, vantage.packets
    initials = scope.packets(vantage, CLIENT, "initial")
    eliciting = np.flatnonzero(scope.mine(frames, CLIENT) & ~frames.named("name", *_NOT_ELICITING))
    rows = initials[np.isin(initials, frames["packet"][eliciting])]
    answers = np.flatnonzero(scope.mine(packets, SERVER))
    if len(answers):
        rows = rows[rows < answers[0]]
    waited = np.diff(vantage.packet_time[rows]) / 1e9
    late = np.flatnonzero(waited >= _AT_ONCE)
    if not len(late):
        return None
    return Probe(waited=float(waited[late[0]]), place=scope.place(vantage, int(rows[late[0] + 1])))


def client_hello(scope: Scope) -> ClientHello | None:
    """The first ClientHello; None when no ClientHello could be read. The length in its header (RFC 8446 §4) shows where
    it ends: after a HelloRetryRequest, a second ClientHello follows in the same stream."""
    vantage = scope.best(CLIENT)
    frames = vantage.frames
    rows = _crypto(scope, vantage)
    if not len(rows):
        return None
    rows = rows[frames["offset"][rows] < _size(vantage, rows)]
    packets = frames["packet"][rows]
    fresh = new_bytes(frames["offset"][rows], frames["offset"][rows] + frames["length"][rows])
    first_copies = np.unique(packets[fresh > 0])
    return ClientHello(
        bytes=int(fresh.sum()),
        datagrams=len(np.unique(vantage.packets["datagram"][first_copies])),
        out_of_order=_out_of_order(scope, vantage, first_copies),
        arrived=_arrived(scope, int(fresh.sum())),
        places=scope.places(vantage, first_copies),
    )


def _arrived(scope: Scope, size: int) -> bool | None:
    """Whether the first `size` bytes of the message reached the server's vantage point in readable packets."""
    server = scope.recording.server
    if server is None:
        return None
    frames, rows = server.frames, _crypto(scope, server)
    begin, end = frames["offset"][rows], frames["offset"][rows] + frames["length"][rows]
    within = begin < size
    return int(new_bytes(begin[within], np.minimum(end[within], size)).sum()) >= size


def _crypto(scope: Scope, vantage: Vantage) -> Ints:
    """Rows of the client's CRYPTO frames in Initial packets."""
    rows = scope.frames(vantage, CLIENT, "crypto")
    initial = vantage.packets.named("type", "initial")[vantage.frames["packet"][rows]]
    return rows[initial & (vantage.frames["length"][rows] > 0) & (vantage.frames["offset"][rows] >= 0)]


def _size(vantage: Vantage, rows: Ints) -> int:
    """The size of the first message of the stream in bytes. When its header can't be read, the size of the captured
    data."""
    for row in rows[vantage.frames["offset"][rows] == 0]:
        header = vantage.frames.cell("payload", int(row)) or b""
        if len(header) >= _HEADER:
            return _HEADER + int.from_bytes(header[1:_HEADER])
    return int((vantage.frames["offset"][rows] + vantage.frames["length"][rows]).max())


def _out_of_order(scope: Scope, client: Vantage, packets: Ints) -> bool | None:
    """Whether another of these packets arrived at the server before the packet that the client sent first."""
    server = scope.recording.server
    if server is None or client is server or not len(packets):
        return None
    keys = client.packet_key[packets]
    arrived = np.flatnonzero(np.isin(server.packet_key, keys[keys != NULL]))
    return bool(server.packet_key[arrived[0]] != keys[0]) if len(arrived) else None
