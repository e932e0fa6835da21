"""Establishes the facts of a recording, among them the paths that a connection used (RFC 9000 §8, §9)."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from runner.decode.columns import CLIENT, NULL, SERVER, Trace
from runner.model.facts import (
    Amplification,
    Challenge,
    ConnectionFacts,
    Ending,
    PacketPlace,
    Path,
    TraceFacts,
    UnreadPackets,
)
from runner.trace import handshake
from runner.trace.measure import first_flight
from runner.trace.recording import (
    APPLICATION,
    HANDSHAKE,
    INITIAL,
    ROLES,
    Bools,
    Ints,
    Recording,
    Scope,
    Vantage,
    cut,
    integer_parameter,
    values,
)
from runner.trace.streams import Streams, Transfer, limits_raised, max_streams, requests, used_up

# How each endpoint's part of a connection ended: its last packet, packets without an answer, data without credit.

_SHOWN = 5
_FLIGHT_NS = 100_000_000  # packets sent within this time are one flight
_PROBES = 2  # flights without the data that the peer lacks, before these data count as kept back
_FULL = 1200  # bytes of a full datagram (RFC 9000 §14.1)


def endings(scope: Scope) -> dict[str, Ending]:
    """By role, the end of its part of a connection. A role without a capture at its own end is left out."""
    near = {role: (scope.recording.near(sender), sender) for sender, role in ROLES.items()}
    return {role: _ending(scope, vantage, sender) for role, (vantage, sender) in near.items() if vantage is not None}


def _ending(scope: Scope, vantage: Vantage, sender: int) -> Ending:
    packets, times, place, streams = vantage.packets, vantage.packet_time, scope.place, vantage.stream_frames
    sent = np.flatnonzero(scope.mine(packets, sender))
    last = int(sent[times[sent].argmax()]) if len(sent) else None
    eliciting = vantage.eliciting
    arrived = np.flatnonzero(scope.mine(packets, 1 - sender) & eliciting)
    unanswered = arrived if last is None else arrived[times[arrived] > times[last]]
    if sender == CLIENT and not (vantage.packet_space[sent] == HANDSHAKE).any():
        unanswered = unanswered[vantage.packet_space[unanswered] != APPLICATION]  # the client has no keys for them
    timed_out = False
    if len(unanswered) and last is not None:
        both = scope.mine(packets, sender) | scope.mine(packets, 1 - sender)
        timed_out = _has_timed_out(scope, times[unanswered[0]] - times[both & (times < times[unanswered[0]])].max())
        unanswered = unanswered[:0] if timed_out else unanswered
    acknowledged = _acknowledged(scope, vantage, sender)
    waiting = sent[eliciting[sent] & ~acknowledged[sent]]
    if (vantage.ack_space[np.flatnonzero(scope.mine(vantage.ack_frames, 1 - sender))] == APPLICATION).any():
        # The peer may have discarded its Handshake keys before it acknowledged every packet (RFC 9001 §4.9.2).
        waiting = waiting[vantage.packet_space[waiting] == APPLICATION]
    waiting = waiting[~_replaced(scope, vantage, sender, waiting, acknowledged)]
    waiting = waiting[~_needs_no_repair(scope, vantage, sender, waiting, acknowledged)]
    return Ending(
        last=None if last is None else place(vantage, last),
        unanswered=len(unanswered),
        first_unanswered=place(vantage, int(unanswered[0])) if len(unanswered) else None,
        timed_out=timed_out,
        unacknowledged=scope.places(vantage, waiting[:_SHOWN].tolist()),
        backoff=_backoff(vantage, sent[eliciting[sent]], waiting),
        kept_back=_kept_back(scope, vantage, sender, acknowledged),
        lost_state=_lost_state(scope, vantage, sender),
        reset_arrival=scope.first_at(1 - sender, sender, "stateless_reset"),
        resets=_by_stream(scope, vantage, sender, "reset_stream"),
        stops=_by_stream(scope, vantage, sender, "stop_sending"),
        finished=values(streams["stream_id"][scope.mine(streams, sender) & (streams["fin"] == 1)]),
        blocked=used_up(scope) if sender == SERVER else frozenset(),
    )


def _backoff(vantage: Vantage, eliciting: Ints, waiting: Ints) -> float:
    """Seconds between the last two probes before the handshake is complete, when the client may not reset its backoff
    (RFC 9002 §6.2.1). 0 when the first packet of `waiting` is a 1-RTT packet, or without two probes."""
    space = vantage.packet_space[waiting[0]] if len(waiting) else APPLICATION
    sent = np.unique(vantage.packet_time[eliciting[vantage.packet_space[eliciting] == space]])
    return float(sent[-1] - sent[-2]) / 1e9 if space != APPLICATION and len(sent) > 1 else 0.0


def _acknowledged(scope: Scope, vantage: Vantage, sender: int) -> Bools:
    """Per packet: whether an ACK that arrived at `sender` acknowledges it."""
    packets, acks = vantage.packets, vantage.ack_frames
    done = np.zeros(len(packets), dtype=bool)
    rows = np.flatnonzero(scope.mine(acks, 1 - sender))
    for space in np.unique(vantage.ack_space[rows]):
        mine = np.flatnonzero(scope.mine(packets, sender) & (vantage.packet_space == space))
        mine = mine[packets["packet_number"][mine] != NULL]
        mine = mine[np.argsort(packets["packet_number"][mine], kind="stable")]
        numbers = packets["packet_number"][mine]
        change = np.zeros(len(mine) + 1, dtype=np.int64)
        _, low, high = vantage.ack_ranges(rows[vantage.ack_space[rows] == space])
        np.add.at(change, np.searchsorted(numbers, low), 1)
        np.subtract.at(change, np.searchsorted(numbers, high, side="right"), 1)
        done[mine] = np.cumsum(change[:-1]) > 0
    return done


def _replaced(scope: Scope, vantage: Vantage, sender: int, waiting: Ints, acknowledged: Bools) -> Bools:
    """Per 1-RTT packet of `waiting`: whether it counts as lost, because a packet with a higher number is acknowledged,
    and the sender sent all its stream data again (RFC 9002 §6.1, RFC 9000 §13.3)."""
    packets, frames = vantage.packets, vantage.stream_frames
    number, application = packets["packet_number"], vantage.packet_space == APPLICATION
    highest = number[acknowledged & application & scope.mine(packets, sender)].max(initial=NULL)
    lost: Bools = application[waiting] & (number[waiting] < highest)
    mine = np.flatnonzero(scope.mine(frames, sender))
    carrier, stream = frames["packet"][mine], frames["stream_id"][mine]
    begin, fin = frames["offset"][mine], frames["fin"][mine] == 1
    end, sent = begin + frames["length"][mine], vantage.packet_time[carrier]
    again = np.ones(len(packets), dtype=bool)  # per packet: whether all its stream data were sent again
    for one in np.unique(stream[np.isin(carrier, waiting[lost])]):
        rows = np.flatnonzero(stream == one)
        pieces = cut(begin[rows], end[rows])
        latest = np.zeros(pieces.pieces, dtype=np.int64)
        np.maximum.at(latest, pieces.piece, sent[rows][pieces.owner])
        kept = pieces.sum(latest[pieces.piece] <= sent[rows][pieces.owner]) > 0
        kept |= fin[rows] & (sent[rows] == sent[rows][fin[rows]].max(initial=0))
        again[carrier[rows[kept]]] = False
    return lost & again[waiting]


def _needs_no_repair(scope: Scope, vantage: Vantage, sender: int, waiting: Ints, acknowledged: Bools) -> Bools:
    """Per packet of `waiting`: whether it is an Initial or Handshake packet without CRYPTO data that counts as lost,
    because a packet with a higher number is acknowledged. A lost PING is not repaired (RFC 9000 §13.3)."""
    number, spaces = vantage.packets["packet_number"], vantage.packet_space
    bare = ~np.isin(waiting, vantage.frames["packet"][scope.frames(vantage, sender, "crypto")])
    for space in (INITIAL, HANDSHAKE, APPLICATION):
        mine = acknowledged & (spaces == space) & scope.mine(vantage.packets, sender)
        here = spaces[waiting] == space
        bare[here] &= space != APPLICATION and number[waiting[here]] < number[mine].max(initial=NULL)
    return bare


def _kept_back(scope: Scope, vantage: Vantage, sender: int, acknowledged: Bools) -> PacketPlace | None:
    """`Ending.kept_back` of this endpoint. A server that may not send a full datagram has no choice (RFC 9000 §8.1)."""
    far = scope.recording.far(sender)
    packets, times = vantage.packets, vantage.packet_time
    if far is None:
        return None
    for space in (INITIAL, HANDSHAKE):
        begin, end, sent = _crypto(scope, vantage, sender, space)
        there, until, arrived = _crypto(scope, far, sender, space)
        whole = np.concatenate((np.ones(len(arrived), dtype=bool), acknowledged[sent]))
        pieces = cut(np.concatenate((there, begin)), np.concatenate((until, end)))
        missing = pieces.sum(pieces.first(whole[pieces.owner]) == pieces.ranges)[len(arrived) :] > 0
        if not missing.any():
            continue
        last = int(sent[missing].max())
        mine = scope.mine(packets, sender) & vantage.eliciting & (vantage.packet_space == space)
        probes = np.flatnonzero(mine & (times > times[last] + _FLIGHT_NS))
        probes = probes[_may_send(scope, vantage, probes)] if sender == SERVER else probes
        flights = np.diff(times[probes], prepend=0) > _FLIGHT_NS
        return scope.place(vantage, last) if flights.sum() >= _PROBES else None
    return None


def _crypto(scope: Scope, vantage: Vantage, sender: int, space: int) -> tuple[Ints, Ints, Ints]:
    """The CRYPTO frames that `sender` sent in a packet number space: first offset, end offset, packet."""
    rows = scope.frames(vantage, sender, "crypto")
    rows = rows[vantage.packet_space[vantage.frames["packet"][rows]] == space]
    begin = vantage.frames["offset"][rows]
    return begin, begin + vantage.frames["length"][rows], vantage.frames["packet"][rows]


def _may_send(scope: Scope, vantage: Vantage, rows: Ints) -> Bools:
    """Whether the server had at least a full datagram of credit before it sent these packets."""
    datagrams = vantage.datagrams
    ours = np.flatnonzero(scope.mine(datagrams))
    length, by_client = datagrams["payload_length"][ours], datagrams["sender"][ours] == CLIENT
    credit = np.cumsum(np.where(by_client, _FACTOR * length, -length))
    before = np.searchsorted(ours, vantage.packets["datagram"][rows]) - 1
    enough: Bools = credit[before] >= _FULL
    return enough


def _lost_state(scope: Scope, vantage: Vantage, sender: int) -> PacketPlace | None:
    resets = scope.packets(vantage, sender, "stateless_reset")
    if not len(resets):
        return None
    arrived = np.flatnonzero(scope.mine(vantage.packets, 1 - sender))
    silence = np.diff(vantage.packet_time[arrived[arrived < resets[0]]]).max(initial=0)
    return None if _has_timed_out(scope, silence) else scope.place(vantage, int(resets[0]))


def _has_timed_out(scope: Scope, silence_ns: float) -> bool:
    """Whether an endpoint may give up the connection without a packet after this silence (RFC 9000 §10.1)."""
    parameters = (scope.client_parameters, scope.server_parameters)
    timeouts = [integer_parameter(each, "max_idle_timeout") for each in parameters]
    return any(each and silence_ns / 1e6 >= each for each in timeouts)


def _by_stream(scope: Scope, vantage: Vantage, sender: int, name: str) -> dict[int, PacketPlace | None]:
    """Stream ID → the first packet of `sender` with a frame of this name for the stream."""
    first: dict[int, PacketPlace | None] = {}
    for row in scope.frames(vantage, sender, name).tolist():
        stream = int(vantage.frames["stream_id"][row])
        first.setdefault(stream, scope.place(vantage, int(vantage.frames["packet"][row])))
    return first


# The addresses that a connection used, and how they were validated (RFC 9000 §8, §9).

_FACTOR = 3  # RFC 9000 §8.1
_ENTROPY_BYTES = 8  # bytes of a connection ID that validates an address (RFC 9000 §8.1: 64 bits)
_PROBING = ("path_challenge", "path_response", "new_connection_id", "padding")  # frames, RFC 9000 §9.1

Pair = tuple[str, str]
"""The client's address with port, the server's address with port."""


def endpoint(address: str, port: int) -> str:
    """An address with its port, IPv6 in brackets (RFC 3986 §3.2.2)."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class Paths:
    """The paths of one connection at one vantage point."""

    def __init__(self, scope: Scope, vantage: Vantage) -> None:
        self._scope = scope
        self._vantage = vantage
        rows = np.flatnonzero(scope.mine(vantage.datagrams) & (vantage.datagrams["sender"] >= 0))
        route = vantage.route[rows]
        self._groups = [rows[route == distinct] for distinct in np.unique(route)]

    def pair(self, datagram: int) -> Pair:
        """The path of a datagram, by its row."""
        client, server = self._vantage.ends(datagram, CLIENT)
        return endpoint(*client), endpoint(*server)

    def all(self) -> tuple[Path, ...]:
        """The paths in order of their first datagram."""
        by_pair: dict[Pair, list[Ints]] = {}
        for rows in self._groups:
            by_pair.setdefault(self.pair(int(rows[0])), []).append(rows)
        datagrams = {pair: np.sort(np.concatenate(groups)) for pair, groups in by_pair.items()}
        time = self._vantage.datagrams["time_ns"]
        ordered = sorted(datagrams.items(), key=lambda item: time[item[1]].min())
        return tuple(self._path(pair, rows) for pair, rows in ordered)

    def _path(self, pair: Pair, rows: Ints) -> Path:
        """The path with these datagrams, by their rows."""
        datagrams, recording = self._vantage.datagrams, self._scope.recording
        time, sender = datagrams["time_ns"][rows], datagrams["sender"][rows]
        sent, answers = rows[sender == CLIENT], time[sender == SERVER]
        return Path(
            client=pair[0],
            server=pair[1],
            first_seen=recording.seconds(int(time.min())),
            last_seen=recording.seconds(int(time.max())),
            server_datagrams=len(answers),
            client_cids=frozenset(self._destination_ids(sent)),
            place=recording.place(self._vantage, int(rows[0])),
            last_place=recording.place(self._vantage, int(rows[-1])),
            server_first=recording.seconds(int(answers.min())) if len(answers) else None,
            client_moved=bool(np.isin(sent, self._not_probing).any()),
            handshake_packet=bool(np.isin(sent, self._handshakes).any()),
        )

    @cached_property
    def _not_probing(self) -> Ints:
        """Datagrams with at least one frame that is no probing frame (RFC 9000 §9.1)."""
        frames, packets = self._vantage.frames, self._vantage.packets
        rows = np.flatnonzero(self._scope.mine(frames) & ~frames.named("name", *_PROBING))
        return np.unique(packets["datagram"][frames["packet"][rows]])

    @cached_property
    def _handshakes(self) -> Ints:
        """Datagrams with a Handshake packet that could be decrypted."""
        packets = self._vantage.packets
        handshakes = packets.named("type", "handshake") & (packets["decrypted"] == 1)
        return np.unique(packets["datagram"][handshakes])

    def _destination_ids(self, rows: Ints) -> set[bytes]:
        """Destination connection IDs of the 1-RTT packets in these datagrams."""
        packets = self._vantage.packets
        chosen = np.flatnonzero(packets.named("type", "1rtt") & np.isin(packets["datagram"], rows))
        return set(self._vantage.trace.packets.column("dcid").take(chosen).unique().to_pylist()) - {None}


def challenges(scope: Scope) -> tuple[Challenge, ...]:
    """Every different PATH_CHALLENGE of both endpoints, ordered by time (RFC 9000 §8.2)."""
    by_data = []
    server = scope.best(SERVER)
    server_paths, datagram = Paths(scope, server), server.packets["datagram"]
    for sender, role in ROLES.items():
        near, far = scope.best(sender), scope.recording.far(sender)
        arrived = _data(scope, far, sender, "path_challenge") if far is not None else {}
        answers = _data(scope, scope.best(1 - sender), 1 - sender, "path_response")
        at_server = _data(scope, server, sender, "path_challenge")
        for data, rows in _data(scope, near, sender, "path_challenge").items():
            # Addresses are those that the server sees, so a lost challenge of the client has no addresses.
            arrivals = at_server.get(data)
            pair = server_paths.pair(datagram[server.frames["packet"][arrivals[0]]]) if arrivals else ("", "")
            answered = answers.get(data)
            by_data.append(
                Challenge(
                    sender=role,
                    client=pair[0],
                    server=pair[1],
                    time=_seconds(scope, near, rows[0]),
                    arrived=None if far is None else data in arrived,
                    arrival=_seconds(scope, far, arrived[data][0]) if far is not None and data in arrived else None,
                    answered=answered is not None,
                    place=scope.place(near, int(near.frames["packet"][rows[0]])),
                )
            )
    return tuple(sorted(by_data, key=lambda challenge: challenge.time if challenge.time is not None else 0.0))


def _data(scope: Scope, vantage: Vantage, sender: int, name: str) -> dict[bytes, list[int]]:
    """Data of the frames `name` → rows of the frames with this data, ordered by time."""
    rows_of: dict[bytes, list[int]] = {}
    for row in scope.frames(vantage, sender, name):
        rows_of.setdefault(vantage.frames.cell("payload", int(row)) or b"", []).append(int(row))
    return rows_of


def _seconds(scope: Scope, vantage: Vantage, frame: int) -> float | None:
    return scope.recording.seconds(int(vantage.frames["time_ns"][frame]))


def amplification(scope: Scope) -> Amplification | None:
    """The bytes of UDP payload that the server sent before it had validated the client's address (RFC 9000 §8.1). None
    without a capture at the server.

    The address is valid as soon as one of these packets of the client arrived: a Handshake packet, an Initial packet
    with a token, or a packet to a connection ID of at least 8 bytes that the server chose.
    """
    vantage = scope.recording.server
    if vantage is None:
        return None
    datagrams = vantage.datagrams
    rows = np.flatnonzero(scope.mine(datagrams) & (datagrams["sender"] >= 0))
    validated, how = _validation(scope, vantage)
    received = sent = worst = at_worst_sent = at_worst_received = 0
    worst_row, headroom = NULL, None
    for row in rows:
        if validated is not None and row >= validated:
            break
        length = int(datagrams["payload_length"][row])
        if datagrams["sender"][row] == CLIENT:
            received += length
            continue
        sent += length
        left = _FACTOR * received - sent
        headroom = left if headroom is None else min(headroom, left)
        if sent - _FACTOR * received > worst:
            worst, worst_row, at_worst_sent, at_worst_received = sent - _FACTOR * received, int(row), sent, received
    return Amplification(
        received=at_worst_received if worst else received,
        sent=at_worst_sent if worst else sent,
        excess=worst,
        place=scope.recording.place(vantage, worst_row) if worst else None,
        validated_by=how,
        headroom=headroom,
    )


def _validation(scope: Scope, vantage: Vantage) -> tuple[int | None, str | None]:
    """The row of the client's first datagram that validates its address, and a text that names the validating packet.
    Both are None when the address was not validated."""
    packets = vantage.packets
    chosen = {
        packets.cell("scid", int(row)) for row in scope.packets(vantage, SERVER, "initial", "handshake", "retry")
    } - {None}
    proofs: list[tuple[int, str]] = []
    handshakes = scope.packets(vantage, CLIENT, "handshake")
    if not handshake.sealed(scope, CLIENT, "handshake"):
        handshakes = handshakes[packets["decrypted"][handshakes] == 1]
    if len(handshakes):
        proofs.append((int(packets["datagram"][handshakes[0]]), "a Handshake packet"))
    for row in scope.packets(vantage, CLIENT, "initial"):
        if packets["token_length"][row] > 0:
            proofs.append((int(packets["datagram"][row]), "a token"))
            break
    # Packets that the link damaged, or that can't be decrypted yet, contain the connection ID, too.
    for row in scope.packets(vantage, CLIENT, "initial", "handshake", "1rtt"):
        dcid = packets.cell("dcid", int(row))
        if dcid in chosen and len(dcid) >= _ENTROPY_BYTES:
            proofs.append((int(packets["datagram"][row]), "the server's connection ID"))
            break
    return min(proofs) if proofs else (None, None)


# Establishes the facts of a recording. Each fact comes from the vantage point that shows it.


def facts(client_side: Trace | None, server_side: Trace | None, *, transfer: Transfer | None = None) -> TraceFacts:
    """The facts that both captures of a job establish. A capture may be missing; facts that need this capture are None.
    `transfer`: that of the job, by default a download.

    Never raises when the tables follow the schema, whatever they contain.
    """
    transfer = transfer or Transfer(client_side, server_side)
    recording = Recording(client_side, server_side) if transfer.recording.upload else transfer.recording
    streams = Streams(recording)
    closed = handshake.unread(recording)
    by_connection: dict[int | None, list[UnreadPackets]] = {}
    for group in closed:
        by_connection.setdefault(group.connection, []).append(group)
    protected_packets, unread_packets = handshake.protected(recording)
    return TraceFacts(
        connections=tuple(
            _connection(Scope(recording, number), streams, by_connection.get(number, ()))
            for number in range(len(recording.connections))
        ),
        origin_unix_ns=recording.origin_ns,
        ip_versions=frozenset().union(*(values(each.datagrams["ip_version"]) for each in recording.vantages)),
        ipv4=handshake.first_ipv4(recording),
        first_flight=first_flight(transfer),
        protected_packets=protected_packets,
        unread_packets=unread_packets,
        unread=closed,
        no_secrets=handshake.no_secrets(recording),
    )


def _connection(scope: Scope, all_streams: Streams, closed: Sequence[UnreadPackets]) -> ConnectionFacts:
    row = scope.row
    streams = all_streams.of_connection(scope.number)
    echoed, reset = handshake.after_retry(scope)
    first_max_streams, last_max_streams = max_streams(scope)
    return ConnectionFacts(
        version=row.value("version"),
        original_version=row.value("original_version"),
        alpn=handshake.alpn(scope),
        offered_alpn=tuple(row.value("offered_alpn") or ()),
        suite=row.value("suite"),
        offered_suites=tuple(row.value("offered_suites") or ()),
        sni=row.value("sni"),
        client_parameters=scope.client_parameters,
        server_parameters=scope.server_parameters,
        version_negotiations=handshake.version_negotiations(scope),
        client_hello_count=(row.value("client_hello_count") or 0) + handshake.second_hellos(scope),
        client_hello=handshake.client_hello(scope),
        handshake_completed=handshake.completed(scope),
        handshake_completed_by_client=scope.count(CLIENT, "1rtt") > 0,
        certificate_sent=bool(row.either("certificate")),
        certificate=handshake.certificate(scope),
        authenticated=handshake.authenticated(scope),
        resumed=row.either("resumed"),
        retries=scope.count(SERVER, "retry"),
        retry_token_echoed=echoed,
        packet_number_reset=reset,
        early_data_offered=bool(row.either("early_data_offered")),
        early_data_accepted=handshake.early_data_accepted(scope),
        early_data_requests=handshake.early_requests(scope, streams),
        first_initial=scope.first_at(CLIENT, CLIENT, "initial"),
        first_server_1rtt=scope.first_at(CLIENT, SERVER, "1rtt"),
        handshake_confirmed=handshake.confirmed(scope),
        closes=handshake.closes(scope),
        streams=streams,
        max_concurrent_streams=all_streams.max_concurrent(scope.number),
        initial_max_streams_bidi=first_max_streams,
        max_streams_bidi=last_max_streams,
        initial_max_data=integer_parameter(scope.client_parameters, "initial_max_data"),
        initial_max_stream_data=integer_parameter(scope.client_parameters, "initial_max_stream_data_bidi_local"),
        client_key_updates=handshake.key_updates(scope, CLIENT),
        key_updates_begun_by_client=handshake.begun_key_updates(scope, CLIENT),
        server_key_updates=handshake.key_updates(scope, SERVER),
        client_ecn=handshake.ecn(scope, CLIENT),
        server_ecn=handshake.ecn(scope, SERVER),
        paths=Paths(scope, scope.best(SERVER)).all(),  # as the server sees them: a NAT may have changed addresses
        challenges=challenges(scope),
        amplification=amplification(scope),
        ip_versions=handshake.ip_versions(scope),
        server_lengths=handshake.lengths(scope, SERVER),
        landmarks=handshake.landmarks(scope),
        unread=tuple(closed),
        early_data_unread=handshake.early_data_unread(scope),
        probe=handshake.probe(scope),
        client_1rtt_bytes=handshake.client_1rtt_bytes(scope),
        server_handshake_bytes=handshake.server_handshake_bytes(scope),
        limits_raised=limits_raised(scope),
        requests=requests(scope),
        endings=endings(scope),
    )
