"""The beginning and the end of a connection: Retry, 0-RTT, completion, CONNECTION_CLOSE."""

from dataclasses import dataclass

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Ints
from runner.trace.nouns import Close, Place, StreamFacts
from runner.trace.scope import ROLES, Scope
from runner.trace.vantage import APPLICATION, NULL, Vantage, first_ack

_APPLICATION_ERROR = 0x0C
_TOKENS_KEPT = 5  # first version of the decoder whose tables contain tokens
_CRYPTO_ERRORS = range(0x100, 0x200)  # RFC 9000 §20.1


def completed(scope: Scope) -> bool:
    """Whether the handshake completed at both ends. A server sends HANDSHAKE_DONE or acknowledges 1-RTT packets only
    when the handshake is complete (RFC 9001 §4.1.2, §5.7).

    A client that received its data in 0.5-RTT may close the connection before the server sends HANDSHAKE_DONE or such
    an ACK. Then a 1-RTT packet and the Finished of the client must have reached the server, and the server must not
    have refused the Finished with a CRYPTO_ERROR (RFC 9001 §4.1.1, §4.8). Without a client certificate, Finished is the
    only message in the client's Handshake packets.
    """
    for vantage in scope.recording.vantages:
        if len(scope.frames(vantage, SERVER, "handshake_done")) or _acknowledged(scope, vantage, "1rtt"):
            return True
    server = scope.recording.server
    if server is None or not len(scope.packets(server, CLIENT, "1rtt")):
        return False
    handshakes = scope.packets(server, CLIENT, "handshake")
    finished = scope.frames(server, CLIENT, "crypto")
    arrived = bool(np.isin(server.frames["packet"][finished], handshakes).any())
    refused = any(close.sender == ROLES[SERVER] and close.code in _CRYPTO_ERRORS for close in closes(scope))
    return arrived and not refused


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
    around = _around_retry(scope, vantage)
    if around is None:
        return None, None
    if not around.answers:
        return (False if len(around.after) else None), None
    answer = around.answers[0]
    echoed = bool(packets["token_length"][around.retry] > 0) and _same_token(vantage, around.retry, answer)
    earlier = packets["packet_number"][around.before]
    later = packets["packet_number"][answer]
    reset = bool(later <= earlier.max()) if len(earlier) and later != NULL and earlier.max() != NULL else None
    return echoed, reset


def _same_token(vantage: Vantage, retry: int, answer: int) -> bool:
    """Whether both packets carry the same token. Old tables contain no tokens; then the lengths of the tokens are
    compared."""
    packets = vantage.packets
    if vantage.trace.meta.decoder_version < _TOKENS_KEPT:
        return bool(packets["token_length"][answer] == packets["token_length"][retry])
    return bool(packets.cell("token", answer) == packets.cell("token", retry))


@dataclass(frozen=True)
class _AroundRetry:
    """Rows of the first Retry, and of the client's Initial packets before and after it. `answers`: the Initial packets
    that respond to the Retry."""

    retry: int
    before: Ints
    after: Ints
    answers: list[int]


def _around_retry(scope: Scope, vantage: Vantage) -> _AroundRetry | None:
    packets = vantage.packets
    retries = scope.packets(vantage, SERVER, "retry")
    if not len(retries):
        return None
    retry = int(retries[0])
    initials = scope.packets(vantage, CLIENT, "initial")
    after = initials[initials > retry]
    # A client that hasn't read the Retry may send its first flight again. Only answers have the new destination ID.
    source = packets.cell("scid", retry)
    answers = [int(row) for row in after if packets.cell("dcid", int(row)) == source]
    return _AroundRetry(retry=retry, before=initials[initials < retry], after=after, answers=answers)


def retry_answer(scope: Scope) -> Place | None:
    """The client's first Initial packet that responds to the Retry. If there is none, its first Initial packet after
    the Retry."""
    vantage = scope.best(CLIENT)
    around = _around_retry(scope, vantage)
    rows = [*around.answers, *around.after] if around else []
    return scope.place(vantage, int(rows[0])) if rows else None


def closes(scope: Scope) -> tuple[Close, ...]:
    """Every different CONNECTION_CLOSE of both endpoints, ordered by time.

    In Initial and Handshake packets, APPLICATION_ERROR stands for the application's own close (RFC 9000 §10.2.3). It is
    left out when the application's own close was seen, too.
    """
    first_seen: dict[tuple[str, bool, int, str], tuple[int, Place | None]] = {}
    for sender, role in ROLES.items():
        for vantage in scope.recording.vantages:
            frames = vantage.frames
            for row in scope.frames(vantage, sender, "connection_close", "application_close"):
                application = bool(frames["type"][row] == 0x1D)
                reason = (frames.cell("payload", int(row)) or b"").decode(errors="replace")
                key = (role, application, int(frames["value"][row]), reason)
                time_ns = int(frames["time_ns"][row])
                if key not in first_seen or time_ns < first_seen[key][0]:
                    first_seen[key] = time_ns, scope.place(vantage, int(frames["packet"][row]))
    for role, application, _, _ in tuple(first_seen):
        if application:
            first_seen.pop((role, False, _APPLICATION_ERROR, ""), None)
    return tuple(
        Close(
            sender=role,
            application=application,
            code=code,
            reason=reason,
            time=scope.recording.seconds(time_ns),
            place=place,
        )
        for (role, application, code, reason), (time_ns, place) in sorted(
            first_seen.items(), key=lambda item: item[1][0]
        )
    )
