"""Facts about packets, the beginning and the end of a connection: ClientHello, Retry, 0-RTT, keys, what is unread."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.decode.columns import CLIENT, NULL, SERVER
from runner.decode.keys import APPLICATION_SECRETS, EARLY_SECRET, HANDSHAKE_SECRETS
from runner.model.facts import (
    ClientHello,
    Close,
    EcnCounts,
    EcnFacts,
    InitialProbe,
    Landmarks,
    PacketPlace,
    SentLength,
    ServerCertificate,
    StreamFacts,
    UnreadPackets,
    VersionNegotiation,
)
from runner.trace.recording import (
    APPLICATION,
    HANDSHAKE,
    INITIAL,
    ROLES,
    SPACE_OF_TYPE,
    Ints,
    Recording,
    Scope,
    Vantage,
    first_ack,
    new_bytes,
    values,
)

# The beginning and the end of a connection: Retry, 0-RTT, completion, CONNECTION_CLOSE.

_APPLICATION_ERROR = 0x0C
_CRYPTO_ERRORS = range(0x100, 0x200)  # RFC 9000 §20.1


def completed(scope: Scope) -> bool:
    """Whether the handshake completed at both ends. A server sends HANDSHAKE_DONE or acknowledges 1-RTT packets only
    when the handshake is complete (RFC 9001 §4.1.2, §5.7).

    A client that received its data in 0.5-RTT may close the connection before the server sends HANDSHAKE_DONE or such
    an ACK. Then a 1-RTT packet and the Finished of the client must have reached the server, and the server must not
    have refused the Finished with a CRYPTO_ERROR (RFC 9001 §4.1.1, §4.8). Without a client certificate, Finished is the
    only message in the client's Handshake packets; without the secrets of these packets, each of them counts.
    """
    for vantage in scope.recording.vantages:
        if len(scope.frames(vantage, SERVER, "handshake_done")) or _acknowledged(scope, vantage, "1rtt"):
            return True
    server = scope.recording.server
    if server is None or not len(scope.packets(server, CLIENT, "1rtt")):
        return False
    handshakes = scope.packets(server, CLIENT, "handshake")
    finished = scope.frames(server, CLIENT, "crypto")
    arrived = bool(np.isin(server.frames["packet"][finished], handshakes).any() or sealed(scope, CLIENT, "handshake"))
    refused = any(close.sender == ROLES[SERVER] and close.code in _CRYPTO_ERRORS for close in closes(scope))
    return arrived and not refused


def sealed(scope: Scope, sender: int, packet_type: str) -> bool:
    """Whether `sender` sent packets of this type, and no capture contains one that could be read."""
    sent = any(len(scope.packets(vantage, sender, packet_type)) for vantage in scope.recording.vantages)
    return sent and not _read(scope, sender, packet_type)


def _read(scope: Scope, sender: int, packet_type: str) -> bool:
    rows = [(vantage, scope.packets(vantage, sender, packet_type)) for vantage in scope.recording.vantages]
    return any((vantage.packets["decrypted"][packets] == 1).any() for vantage, packets in rows)


def alpn(scope: Scope) -> str | None:
    """The negotiated protocol. Without the secrets of the server's Handshake packets: the only protocol that the client
    offered, if the handshake completed, because a server can't choose another one (RFC 9001 §8.1)."""
    known: str | None = scope.row.value("alpn")
    offered: list[str] = scope.row.value("offered_alpn") or []
    if known is None and len(offered) == 1 and not _read(scope, SERVER, "handshake") and completed(scope):
        return offered[0]
    return known


def _acknowledged(scope: Scope, vantage: Vantage, packet_type: str) -> bool:
    """True when this capture shows that the server acknowledged a packet of this type from the client."""
    rows = scope.packets(vantage, CLIENT, packet_type)
    numbers = np.sort(vantage.packets["packet_number"][rows])
    numbers = numbers[numbers >= 0]
    acks = vantage.ack_frames
    if not len(numbers):
        return False
    mine = scope.mine(acks, SERVER) & (vantage.ack_space == APPLICATION) & (acks["largest"] >= numbers[0])
    return first_ack(vantage, np.flatnonzero(mine), numbers) is not None


def early_data_accepted(scope: Scope) -> bool | None:
    """Whether the server acknowledged a 0-RTT packet. The numbers of rejected packets are not used again, so an ACK is
    clear. When no 0-RTT packet could be read, the server's EncryptedExtensions decide. None when the client sent no
    0-RTT packet, or when the captures don't show the decision."""
    readable = [
        vantage
        for vantage in scope.recording.vantages
        if (vantage.packets["packet_number"][scope.packets(vantage, CLIENT, "0rtt")] != NULL).any()
    ]
    if not readable:
        accepted = scope.row.either("early_data_accepted")
        return accepted if scope.count(CLIENT, "0rtt") else None
    return any(_acknowledged(scope, vantage, "0rtt") for vantage in readable)


def early_data_unread(scope: Scope) -> int:
    """The number of 0-RTT packets of the client that could not be decrypted."""
    vantage = scope.best(CLIENT)
    rows = scope.packets(vantage, CLIENT, "0rtt")
    return int((vantage.packets["decrypted"][rows] != 1).sum())


def early_requests(scope: Scope, streams: tuple[StreamFacts, ...]) -> int:
    """The number of request streams that began in 0-RTT.

    When 0-RTT packets can't be read, a request counts if it was answered and no other packet of the client contains its
    first frame. This conclusion is drawn only when all 1-RTT packets of the client could be read.
    """
    requests = [stream for stream in streams if stream.stream_id % 4 == 0]
    vantage = scope.best(CLIENT)
    later = scope.packets(vantage, CLIENT, "1rtt")
    inferred = early_data_unread(scope) and bool((vantage.packets["decrypted"][later] == 1).all())
    return sum(
        stream.early_data or bool(inferred and stream.request is None and stream.server_bytes) for stream in requests
    )


def client_1rtt_bytes(scope: Scope) -> int:
    """The size of all 1-RTT packets of the client in bytes. First bytes and connection IDs don't count; packet numbers
    count."""
    vantage = scope.best(CLIENT)
    rows = scope.packets(vantage, CLIENT, "1rtt")
    ids = sum(len(vantage.packets.cell("dcid", int(row)) or b"") for row in rows[:1]) * len(rows)
    return int(vantage.packets["length"][rows].sum()) - len(rows) - ids


def server_handshake_bytes(scope: Scope) -> int:
    """The highest end offset of the server's CRYPTO data in Handshake packets."""
    vantage = scope.best(SERVER)
    rows = scope.frames(vantage, SERVER, "crypto")
    rows = rows[vantage.packets.named("type", "handshake")[vantage.frames["packet"][rows]]]
    return int((vantage.frames["offset"][rows] + vantage.frames["length"][rows]).max(initial=0))


def confirmed(scope: Scope) -> float | None:
    """The time when the first HANDSHAKE_DONE arrived at the client; None when it was not seen."""
    client = scope.recording.client
    if client is None:
        return None
    rows = scope.frames(client, SERVER, "handshake_done")
    return scope.recording.seconds(int(client.frames["time_ns"][rows].min())) if len(rows) else None


def after_retry(scope: Scope) -> tuple[bool | None, bool | None]:
    """Whether the client echoed the token of the first Retry, and whether its packet numbers started again. A value is
    None without a Retry, or without the Initial packets that show it."""
    vantage = scope.best(CLIENT)
    packets = vantage.packets
    retries, initials = scope.packets(vantage, SERVER, "retry"), scope.packets(vantage, CLIENT, "initial")
    if not len(retries):
        return None, None
    retry = int(retries[0])
    after = initials[initials > retry]
    # A client that hasn't read the Retry may send its first flight again. Only answers have the new destination ID.
    source = packets.cell("scid", retry)
    answer = next((int(row) for row in after if packets.cell("dcid", int(row)) == source), None)
    if answer is None:
        return (False if len(after) else None), None
    same_token = packets.cell("token", answer) == packets.cell("token", retry)
    echoed = bool(packets["token_length"][retry] > 0) and bool(same_token)
    earlier = packets["packet_number"][initials[initials < retry]]
    later = packets["packet_number"][answer]
    reset = bool(later <= earlier.max()) if len(earlier) and later != NULL and earlier.max() != NULL else None
    return echoed, reset


def closes(scope: Scope) -> tuple[Close, ...]:
    """Every different CONNECTION_CLOSE of both endpoints, ordered by time.

    In Initial and Handshake packets, APPLICATION_ERROR stands for the application's own close (RFC 9000 §10.2.3). It is
    left out when the application's own close was seen, too.
    """
    first_seen: dict[tuple[str, bool, int, str], tuple[int, PacketPlace | None]] = {}
    arrivals: dict[tuple[str, bool, int, str], int] = {}
    for sender, role in ROLES.items():
        for vantage in scope.recording.vantages:
            frames = vantage.frames
            for row in scope.frames(vantage, sender, "connection_close", "application_close"):
                application = bool(frames["type"][row] == 0x1D)
                reason = (frames.cell("payload", int(row)) or b"").decode(errors="replace")
                key = (role, application, int(frames["value"][row]), reason)
                time_ns = int(frames["time_ns"][row])
                if vantage is scope.recording.far(sender):
                    arrivals[key] = min(time_ns, arrivals.get(key, time_ns))
                if key not in first_seen or time_ns < first_seen[key][0]:
                    first_seen[key] = time_ns, scope.place(vantage, int(frames["packet"][row]))
    for role, application, _, _ in tuple(first_seen):
        if application:
            first_seen.pop((role, False, _APPLICATION_ERROR, ""), None)
    return tuple(
        Close(
            sender=key[0],
            application=key[1],
            code=key[2],
            reason=key[3],
            time=scope.recording.seconds(time_ns),
            place=place,
            arrival=scope.recording.seconds(arrivals.get(key)),
        )
        for key, (time_ns, place) in sorted(first_seen.items(), key=lambda item: item[1][0])
    )


# What endpoints prove in a handshake (RFC 8446 §4.4). The decoder has verified it.

_CERTIFICATES, _CERTIFICATE_VERIFY, _FINISHED = (11, 25), 15, 20


def _messages(scope: Scope, sender: int) -> Iterator[tuple[Vantage, dict[str, Any]]]:
    """The TLS messages of `sender` in both captures."""
    for vantage, row in ((scope.recording.client, scope.row.client), (scope.recording.server, scope.row.server)):
        if vantage is not None and row is not None and row["messages"]:
            yield from ((vantage, each) for each in json.loads(row["messages"]) if each["sender"] == sender)


def authenticated(scope: Scope) -> frozenset[str]:
    """The roles whose Finished, and whose CertificateVerify, if there is one, were right in each capture."""
    proven = set()
    for sender, role in ROLES.items():
        proofs = [each for _, each in _messages(scope, sender) if each["type"] in (_CERTIFICATE_VERIFY, _FINISHED)]
        if _FINISHED in {each["type"] for each in proofs} and all(each.get("right") for each in proofs):
            proven.add(role)
    return frozenset(proven)


def certificate(scope: Scope) -> ServerCertificate | None:
    """The server's certificate, as the client's capture shows it, or without it the server's."""
    for vantage, message in _messages(scope, SERVER):
        if message["type"] in _CERTIFICATES and "chain" in message:
            names = message.get("names")
            return ServerCertificate(
                chain=tuple(message["chain"]),
                names=None if names is None else tuple(names),
                **{name: message.get(name) for name in ("self_signed", "linked", "begins", "ends")},
                place=scope.place(vantage, int(message["packet"])),
            )
    return None


# The beginning of a connection: the ClientHello in its datagrams, and the server's answer to an unknown version.

_HEADER = 4  # bytes of a handshake message: type and length
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
                place=scope.place(vantage, int(row)),
            )
        )
    return tuple(negotiations)


def probe(scope: Scope) -> InitialProbe | None:
    """The client's first ack-eliciting Initial packet after its first flight and before any packet of the server
    arrived: a ClientHello sent again, or a PING (RFC 9002 §6.2.4)."""
    vantage = scope.best(CLIENT)
    initials = scope.packets(vantage, CLIENT, "initial")
    rows = initials[vantage.eliciting[initials]]
    answers = np.flatnonzero(scope.mine(vantage.packets, SERVER))
    if len(answers):
        rows = rows[rows < answers[0]]
    waited = np.diff(vantage.packet_time[rows]) / 1e9
    late = np.flatnonzero(waited >= _AT_ONCE)
    if not len(late):
        return None
    return InitialProbe(waited=float(waited[late[0]]), place=scope.place(vantage, int(rows[late[0] + 1])))


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


def second_hellos(scope: Scope) -> int:
    """The number of Initial packets with the start of the ClientHello that follows a HelloRetryRequest."""
    vantage = scope.best(CLIENT)
    rows = _crypto(scope, vantage)
    if not len(rows):
        return 0
    return len(np.unique(vantage.frames["packet"][rows[vantage.frames["offset"][rows] == _size(vantage, rows)]]))


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


# Finds the steps of a connection in the captures, so that findings can point at them.

_REQUESTS = 5  # landmarks of one kind that are shown
_SHOWN = 100  # most packets whose datagrams are listed; one datagram may contain many of them


def landmarks(scope: Scope) -> Landmarks:
    """The landmarks of one connection."""
    client, server = scope.best(CLIENT), scope.best(SERVER)
    retries = scope.packets(server, SERVER, "retry")
    return Landmarks(
        client_first=_first(scope, client, np.flatnonzero(scope.mine(client.packets, CLIENT))),
        client_last=_first(scope, client, scope.packets(client, CLIENT, "1rtt")[-1:]),
        server_last=_first(scope, server, scope.packets(server, SERVER, "1rtt")[-1:]),
        client_hellos=scope.places(client, _client_hellos(scope, client)),
        server_hello=_first(scope, server, _server_hellos(scope, server)),
        server_parameters=_first(scope, server, scope.packets(server, SERVER, "handshake")),
        retries=scope.places(server, retries),
        early_data=_first(scope, client, scope.packets(client, CLIENT, "0rtt")),
        requests=scope.places(client, _requests(scope, client)),
        client_key_update=_key_update(scope, CLIENT),
        server_key_update=_key_update(scope, SERVER),
    )


def _first(scope: Scope, vantage: Vantage, packets: Ints) -> PacketPlace | None:
    return scope.place(vantage, int(packets[0])) if len(packets) else None


def _client_hellos(scope: Scope, vantage: Vantage) -> Ints:
    frames = vantage.frames
    rows = scope.frames(vantage, CLIENT, "crypto")
    packets = frames["packet"][rows[frames["offset"][rows] == 0]]
    return np.unique(packets[vantage.packets.named("type", "initial")[packets]])


def _server_hellos(scope: Scope, vantage: Vantage) -> Ints:
    """Initial packets of the server with CRYPTO data."""
    initial = scope.packets(vantage, SERVER, "initial")
    crypto = vantage.frames["packet"][scope.frames(vantage, SERVER, "crypto")]
    return initial[np.isin(initial, crypto)]


def _requests(scope: Scope, vantage: Vantage) -> Ints:
    frames = vantage.stream_frames
    rows = np.flatnonzero(scope.mine(frames, CLIENT) & (frames["stream_id"] % 4 == 0))
    _, first = np.unique(frames["stream_id"][rows], return_index=True)
    return frames["packet"][rows[np.sort(first)]][:_REQUESTS]


def _key_update(scope: Scope, sender: int) -> PacketPlace | None:
    vantage = scope.best(sender)
    rows = scope.packets(vantage, sender, "1rtt")
    return _first(scope, vantage, rows[vantage.packets["key_generation"][rows] > 0])


# Groups the protected packets that could not be decrypted by connection, sender and type. No verdict can use these
# packets.

TYPES = ("initial", "0rtt", "handshake", "1rtt")
"""Types of packets that have packet protection (RFC 9001 §5)."""

_SHOWN_PACKETS = 5  # packets that a group shows
_SENDERS, _KINDS = 3, len(TYPES)  # client, server, unknown

Group = tuple[int, int, int]
"""connection, or NULL when it is unknown; sender, or NULL; position in TYPES"""


def no_secrets(recording: Recording) -> bool:
    """Whether there are packets that need secrets (0-RTT, Handshake, 1-RTT), and none of them could be read."""
    secret = [(vantage, vantage.packets.named("type", *TYPES[1:])) for vantage in recording.vantages]
    read = any((vantage.packets["decrypted"][rows] == 1).any() for vantage, rows in secret)
    return not read and any(rows.any() for _, rows in secret)


def protected(recording: Recording) -> tuple[int, int]:
    """The number of protected packets in both captures, and the number of protected packets that could not be
    decrypted."""
    opened = [vantage.packets["decrypted"][vantage.packets.named("type", *TYPES)] for vantage in recording.vantages]
    return sum(map(len, opened)), sum(int((each == 0).sum()) for each in opened)


def unread(recording: Recording) -> tuple[UnreadPackets, ...]:
    """The groups with packets that could not be decrypted, ordered by connection, sender and type.

    If the capture at the sender's end contains such packets, this capture counts, because the link may have changed
    packets in the other capture.
    """
    counted = [(vantage, _groups(vantage)) for vantage in recording.vantages]
    opened = {group for _, groups in counted for group, count in groups.items() if count.packets > len(count.unread)}
    # A type of which the sender sent no packet, as its own capture shows, was made by the link.
    mine = {sender: groups for vantage, groups in counted for sender in ROLES if vantage is recording.near(sender)}
    worst: dict[Group, tuple[Vantage, _Count]] = {}
    for vantage, groups in counted:
        for group, count in groups.items():
            known = worst.get(group)
            near = group[1] != NULL and vantage is recording.near(group[1])
            if len(count.unread) and (known is None or near):
                worst[group] = vantage, count
    order = sorted(worst, key=lambda group: (group[0] == NULL, group))
    return tuple(
        _noun(recording, group, *worst[group], none_read=group not in opened and group in mine.get(group[1], (group,)))
        for group in order
    )


@dataclass(frozen=True)
class _Count:
    """One group in one capture: the number of its packets, and the rows of its packets that could not be decrypted."""

    packets: int
    unread: Ints


def may_be_authentic(recording: Recording, connection: int, sender: int, kind: str) -> bool:
    """Whether the peer may have read a packet of this kind that could not be decrypted here.

    When the keys decrypt other packets of this kind, nobody can read such a packet (RFC 9001 §5.2), unless the decoder
    is wrong. Then the peer acknowledges packet numbers that were not read.
    """
    vantage, space = recording.near(sender) or recording.far(sender), SPACE_OF_TYPE[kind]
    assert vantage is not None
    packets = vantage.packets
    mine = (packets["connection"] == connection) & (packets["sender"] == sender) & (packets["decrypted"] == 1)
    if kind == "0rtt" and recording.connections[connection].either("early_data_offered") is False:
        return False
    if not (mine & packets.named("type", kind)).any():
        return True
    numbers = np.unique(packets["packet_number"][mine & (vantage.packet_space == space)])
    peer = recording.far(sender) or vantage
    acks = peer.ack_frames
    rows = (acks["connection"] == connection) & (acks["sender"] == 1 - sender) & (peer.ack_space == space)
    _, first, last = peer.ack_ranges(np.flatnonzero(rows))
    read = np.searchsorted(numbers, last, side="right") - np.searchsorted(numbers, first)
    return bool((read <= last - first).any())


def _groups(vantage: Vantage) -> dict[Group, _Count]:
    """Every group in one capture."""
    rows = np.flatnonzero(vantage.packets.named("type", *TYPES))
    keys = _keys(vantage)[rows]
    groups, every = np.unique(keys, return_counts=True)
    failed = vantage.packets["decrypted"][rows] == 0
    keys, rows = keys[failed], rows[failed]
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    begins, ends = np.searchsorted(keys, groups), np.searchsorted(keys, groups, side="right")
    return {
        _group(number): _Count(packets, rows[begin:end])
        for number, packets, begin, end in zip(
            groups.tolist(), every.tolist(), begins.tolist(), ends.tolist(), strict=True
        )
    }


def _keys(vantage: Vantage) -> Ints:
    """Per packet: the number of its group."""
    packets = vantage.packets
    kind = packets.codes("type", {name: at for at, name in enumerate(TYPES)})
    return ((packets["connection"] + 1) * _SENDERS + packets["sender"] + 1) * _KINDS + kind


def _group(number: int) -> Group:
    rest, kind = divmod(number, _KINDS)
    connection, sender = divmod(rest, _SENDERS)
    return connection - 1, sender - 1, kind


def _noun(recording: Recording, group: Group, vantage: Vantage, count: _Count, *, none_read: bool) -> UnreadPackets:
    connection, sender, kind = group
    row = recording.connections[connection] if connection != NULL else None
    secret = _label(sender, TYPES[kind])
    logged: Any = row.value("secrets") if row is not None else None
    datagrams = dict.fromkeys(vantage.packets["datagram"][count.unread[: 4 * _SHOWN_PACKETS]].tolist())
    places = (recording.place(vantage, datagram) for datagram in tuple(datagrams)[:_SHOWN_PACKETS])
    return UnreadPackets(
        connection=None if connection == NULL else connection,
        client_random=row.value("client_random") if row is not None else None,
        sender=ROLES.get(sender, ""),
        type=TYPES[kind],
        secret=secret,
        secret_logged=None if logged is None else secret in logged,
        packets=count.packets,
        unread=len(count.unread),
        near=sender != NULL and vantage is recording.near(sender),
        none_read=none_read,
        may_be_authentic=NULL in (connection, sender) or may_be_authentic(recording, connection, sender, TYPES[kind]),
        places=tuple(place for place in places if place is not None),
    )


def _label(sender: int, kind: str) -> str:
    """The label in key logs of the secret for these packets (RFC 9001 §4, draft-ietf-tls-keylogfile)."""
    if sender == NULL or kind == "initial":
        return ""
    if kind == "0rtt":
        return EARLY_SECRET
    return (HANDSHAKE_SECRETS if kind == "handshake" else APPLICATION_SECRETS)[sender]


# Facts that don't need the content of packets: key updates, ECN, IP versions, lengths.

NOT_ECT, ECT1, ECT0, CE = range(4)  # codepoints of the IP header (RFC 3168 §5)


def key_updates(scope: Scope, sender: int) -> int:
    """How many times the 1-RTT keys of `sender` changed (RFC 9001 §6)."""
    generations = [
        int(vantage.packets["key_generation"][rows].max())
        for vantage in scope.recording.vantages
        if len(rows := scope.packets(vantage, sender, "1rtt"))
    ]
    return max([0, *generations])


def begun_key_updates(scope: Scope, sender: int) -> int:
    """How many of these updates `sender` began itself. Such an update is seen when `sender` used the new keys before a
    packet with these keys had arrived."""
    vantage = scope.best(sender)
    sent, received = (scope.packets(vantage, role, "1rtt") for role in (sender, 1 - sender))
    generation, time = vantage.packets["key_generation"], vantage.packet_time
    begun = 0
    for number in range(1, int(generation[sent].max(initial=0)) + 1):
        first = time[sent][generation[sent] >= number].min()
        begun += not (time[received][generation[received] >= number] < first).any()
    return begun


def ecn(scope: Scope, sender: int) -> EcnFacts:
    """ECN marks on the packets that `sender` sent and received, and the counts in its ACK frames."""
    near = scope.recording.near(sender)
    best = scope.best(sender)
    acks = best.ack_frames
    mine = scope.mine(acks, sender)
    counted = mine & (acks["ect0"] >= 0)
    highest = np.zeros(3, dtype=np.int64)
    for space in (INITIAL, HANDSHAKE, APPLICATION):
        rows = counted & (best.ack_space == space)
        if rows.any():
            highest += [acks[name][rows].max() for name in ("ect0", "ect1", "ce")]
    mine_sent = np.flatnonzero(scope.mine(best.packets, sender))
    return EcnFacts(
        sent=_marks(scope, near, sender) if near else None,
        received=_marks(scope, near, 1 - sender) if near else None,
        reported=EcnCounts(ect0=int(highest[0]), ect1=int(highest[1]), ce=int(highest[2])),
        ack_frames=int(mine.sum()),
        ack_frames_with_counts=int(counted.sum()),
        first_sent=scope.place(best, int(mine_sent[0])) if len(mine_sent) else None,
        highest_report=_highest_report(scope, best, np.flatnonzero(counted if counted.any() else mine)),
    )


def _highest_report(scope: Scope, vantage: Vantage, rows: Ints) -> PacketPlace | None:
    """The place of the ACK frame with the highest counts among these rows. When no frame has counts, the place of the
    last frame."""
    if not len(rows):
        return None
    acks = vantage.ack_frames
    counts = acks["ect0"][rows].astype(float) + acks["ect1"][rows] + acks["ce"][rows]
    return scope.place(vantage, int(acks["packet"][rows[np.flatnonzero(counts == counts.max())[-1]]]))


def _marks(scope: Scope, vantage: Vantage, sender: int) -> EcnCounts:
    mine = scope.mine(vantage.packets, sender)
    read = vantage.packets["decrypted"] == 1
    for kind in TYPES:  # nobody counts the marks of packets that nobody can read
        of_kind = mine & ~read & vantage.packets.named("type", kind)
        if of_kind.any() and may_be_authentic(scope.recording, scope.number, sender, kind):
            read = read | of_kind
    marks = vantage.packet_ecn[mine & read]
    counts = np.bincount(marks[(marks >= 0) & (marks <= CE)], minlength=4)
    return EcnCounts(not_ect=int(counts[NOT_ECT]), ect0=int(counts[ECT0]), ect1=int(counts[ECT1]), ce=int(counts[CE]))


def ip_versions(scope: Scope) -> frozenset[int]:
    """The IP versions that carried the connection, at either vantage point."""
    datagrams = [vantage.datagrams for vantage in scope.recording.vantages]
    return frozenset().union(*(values(each["ip_version"][scope.mine(each)]) for each in datagrams))


def first_ipv4(recording: Recording) -> PacketPlace | None:
    """The first QUIC datagram over IPv4, at either vantage point."""
    for vantage in recording.vantages:
        rows = np.flatnonzero(vantage.datagrams["ip_version"] == 4)
        if len(rows):
            return recording.place(vantage, int(rows[0]))
    return None


def lengths(scope: Scope, sender: int) -> dict[int, SentLength]:
    """The IP packets of `sender` by their length."""
    vantage = scope.best(sender)
    rows = np.flatnonzero(scope.mine(vantage.datagrams, sender))
    by_length = {}
    for length in np.unique(vantage.datagrams["ip_length"][rows]):
        same = rows[vantage.datagrams["ip_length"][rows] == length]
        first, last = (scope.recording.place(vantage, int(same[at])) for at in (0, -1))
        by_length[int(length)] = SentLength(count=len(same), first=first, last=last)
    return by_length
