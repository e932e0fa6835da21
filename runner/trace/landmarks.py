"""Finds the steps of a connection in the captures, so that findings can point at them."""

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.handshake import retry_answer
from runner.trace.intervals import Ints
from runner.trace.nouns import Landmarks, Place
from runner.trace.scope import ROLES, Scope
from runner.trace.vantage import NULL, Vantage

_REQUESTS = 5  # landmarks of one kind that are shown
_SHOWN = 100  # most packets whose datagrams are listed; one datagram may contain many of them


def landmarks(scope: Scope) -> Landmarks:
    """The landmarks of one connection."""
    client, server = scope.best(CLIENT), scope.best(SERVER)
    retries = scope.packets(server, SERVER, "retry")
    return Landmarks(
        client_first=_first(scope, client, np.flatnonzero(scope.mine(client.packets, CLIENT))),
        client_last=_last(scope, client, scope.packets(client, CLIENT, "1rtt")),
        server_last=_last(scope, server, scope.packets(server, SERVER, "1rtt")),
        client_hellos=scope.places(client, _client_hellos(scope, client)),
        server_hello=_first(scope, server, _server_hellos(scope, server)),
        server_parameters=_first(scope, server, scope.packets(server, SERVER, "handshake")),
        retries=scope.places(server, retries),
        after_retry=retry_answer(scope),
        early_data=_first(scope, client, scope.packets(client, CLIENT, "0rtt")),
        requests=scope.places(client, _requests(scope, client)),
        client_key_update=_key_update(scope, CLIENT),
        server_key_update=_key_update(scope, SERVER),
        frameless=_frameless(scope, CLIENT) or _frameless(scope, SERVER),
        reused_numbers=tuple(place for sender in ROLES for place in _reused_numbers(scope, sender)),
    )


def _first(scope: Scope, vantage: Vantage, packets: Ints) -> Place | None:
    return scope.place(vantage, int(packets[0])) if len(packets) else None


def _last(scope: Scope, vantage: Vantage, packets: Ints) -> Place | None:
    return scope.place(vantage, int(packets[-1])) if len(packets) else None


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


def _key_update(scope: Scope, sender: int) -> Place | None:
    vantage = scope.best(sender)
    rows = scope.packets(vantage, sender, "1rtt")
    return _first(scope, vantage, rows[vantage.packets["key_generation"][rows] > 0])


def _frameless(scope: Scope, sender: int) -> tuple[Place, ...]:
    """Packets without a frame that `sender` sent. A link that corrupts packets can't make such packets, because a
    corrupted packet can't be decrypted."""
    vantage = scope.recording.near(sender)
    if vantage is None:
        return ()
    numbered = scope.mine(vantage.packets, sender) & (vantage.packets["packet_number"] != NULL)
    rows = np.flatnonzero(numbered & (vantage.packets["decrypted"] == 1))
    return scope.places(vantage, rows[~np.isin(rows, vantage.frames["packet"])][:_SHOWN])


def _reused_numbers(scope: Scope, sender: int) -> tuple[Place, ...]:
    """The first packet number that `sender` used twice in a packet number space: the place of the first packet with
    this number, and the place of the second. Empty when there is none.

    Only the capture at the sender's end counts, because a link may deliver a packet twice. Packets with
    CONNECTION_CLOSE may be sent again unchanged (RFC 9000 §10.2.1), so they don't count. A server may give up a
    handshake and begin a new handshake when a late ClientHello arrives. Then its numbers start again, with another
    source connection ID.
    """
    vantage = scope.recording.near(sender)
    if vantage is None:
        return ()
    rows = np.flatnonzero(scope.mine(vantage.packets, sender) & (vantage.packet_key != NULL))
    closing = vantage.frames["packet"][scope.frames(vantage, sender, "connection_close", "application_close")]
    rows = rows[~np.isin(rows, closing)]
    keys = vantage.packet_key[rows]
    if len(np.unique(keys)) < len(keys):
        source = vantage.trace.packets.column("scid").take(rows).to_pylist()
        numbers = dict[tuple[int, bytes | None], int]()
        keys = np.array([numbers.setdefault(pair, len(numbers)) for pair in zip(keys.tolist(), source, strict=True)])
    _, first, place = np.unique(keys, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[place] != np.arange(len(rows)))
    if not len(again):
        return ()
    return scope.places(vantage, (int(rows[first[place[again[0]]]]), int(rows[again[0]])))
