"""Whose fault a failed job is: real recordings in which one endpoint breaks a rule, falls silent, or ends the transfer,
and the other endpoint reacts as the RFCs say."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from lab.mutate.mutants.paths import probe_finished
from lab.mutate.mutation import Mutation, copied
from lab.mutate.recording import CLIENT, ROLES, SERVER
from lab.mutate.wire import FIN, F, Kind, P, Packet, frame, new_connection_id, padding
from runner.inputs.inputs import SERVER_NAMES, certificates
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome
from runner.plan.catalog import Catalog
from runner.tests.judge.stories import HANDSHAKE, JOB, NOBODY, SIZES, TOKEN, TRANSFER, Stories, Story, Tell, story_of


def _witness(rule: str, culprit: str, code: int, *, application: bool = False, kind: Kind = Kind.ONE_RTT) -> Tell:
    """`culprit` breaks a rule, and its peer closes with this error."""

    def tell(story: Story) -> None:
        broken = story.breaks(rule, culprit)
        peer = SERVER if culprit == CLIENT else CLIENT
        at = broken.seen[peer].time_ns if broken is not None and peer in broken.seen else 0
        story.closes(peer, at, code, application=application, kind=kind)
        story.ends()

    return tell


H3 = "quic-go_quinn/http3"
STORIES: Stories = {}

_story = partial(story_of, STORIES)

for _rule, _roles, _code in (
    ("rfc9114-7.2.1-data-on-control", ROLES, 0x105),
    ("rfc9114-7.2.4-settings-twice", ROLES, 0x105),
    ("rfc9114-6.2.1-two-control-streams", ROLES, 0x103),
    ("rfc9114-6.2.1-first-frame-not-settings", ROLES, 0x10A),
    ("rfc9114-4.1-data-before-headers", (SERVER,), 0x105),
    ("rfc9114-7.2.8-http2-frame", ROLES, 0x105),
    ("rfc9114-7.2.4.1-http2-setting", ROLES, 0x109),
    ("rfc9114-6.1-server-bidirectional-stream", (SERVER,), 0x103),
    ("rfc9114-7.2.7-max-push-id-from-server", (SERVER,), 0x105),
):
    for _role in _roles:
        _story(f"{_rule} {_role}", H3, "http3", (1024,), _role)(_witness(_rule, _role, _code, application=True))

for _rule, _roles, _code in (
    ("rfc9000-4.6-too-many-streams", (SERVER,), 0x04),
    ("rfc9000-19.10-credit-not-created", ROLES, 0x05),
    ("rfc9000-12.4-unknown-frame", ROLES, 0x07),
    ("rfc9000-19.20-handshake-done-from-client", (CLIENT,), 0x0A),
    ("rfc9000-13.1-ack-of-unsent", (SERVER,), 0x0A),
    ("rfc9000-17.3.1-reserved-bits-short", ROLES, 0x0A),
    ("rfc9000-19.15-retire-prior-to-high", (SERVER,), 0x01),  # not the code of the RFC
    ("rfc9001-6-tls-key-update", ROLES, 0x10A),
):
    for _role in _roles:
        _story(f"{_rule} {_role}", TRANSFER, "transfer", SIZES, _role)(_witness(_rule, _role, _code))

# Most clients ignore these violations, so a close with INTERNAL_ERROR is the client's fault.
for _rule in (
    "rfc9000-2.2-data-changed",
    "rfc9000-5.1.1-sequence-skipped",
    "rfc9000-8.2.2-response-unasked",
    "rfc9000-10.3.2-reset-token-repeated",
    "rfc9000-12.4-long-frame-type",
    "rfc9000-19.15-id-reused",
    "rfc9000-19.15-sequence-reused",
    "rfc9001-6.1-update-before-confirmed",
):
    _story(f"{_rule}, which few notice", TRANSFER, "transfer", SIZES, CLIENT)(_witness(_rule, SERVER, 0x01))

REBIND = "quinn_quic-go/rebind-port"
for _rule, _role, _code, _kind in (
    ("rfc9001-8.1-alpn-not-offered", SERVER, 0x178, Kind.HANDSHAKE),
    ("rfc9001-8.1-no-alpn-offered", CLIENT, 0x178, Kind.INITIAL),
    ("rfc9001-8.2-parameters-missing", CLIENT, 0x16D, Kind.INITIAL),
    ("rfc9001-8.2-parameters-missing", SERVER, 0x16D, Kind.HANDSHAKE),
    ("rfc9000-7.3-initial-source-wrong", SERVER, 0x08, Kind.HANDSHAKE),
    ("rfc9000-7.4-parameter-twice", CLIENT, 0x08, Kind.INITIAL),
):
    _story(f"{_rule} {_role}", HANDSHAKE, "handshake", (), _role)(_witness(_rule, _role, _code, kind=_kind))


for _code, _culprit in ((0x146, CLIENT), (0x01, SERVER)):  # a server that knows TLS 1.3 can ignore it
    _story(f"an old TLS version is offered, and 0x{_code:x}", HANDSHAKE, "handshake", (), _culprit)(
        _witness("rfc9001-4.2-old-tls-offered", CLIENT, _code, kind=Kind.INITIAL)
    )


@_story("server refuses an ACK of a packet that was lost", "aioquic_aioquic/lossy", "transferloss", (102_400,), NOBODY)
def _unreceived(story: Story) -> None:
    """The server had sent the packet, so it can't notice the violation."""
    story.breaks("rfc9000-13.1-ack-of-unreceived", CLIENT)
    sent = (each for each in story.recording.datagrams if any(packet.changed for packet in each.packets))
    story.closes(SERVER, next(sent).seen[SERVER].time_ns, 0x0A)
    story.ends()


def _answers_by_reset(rule: str) -> Tell:
    """The client breaks a rule about connection IDs, and the server answers that packet by a stateless reset."""

    def tell(story: Story) -> None:
        at = story.breaks(rule, CLIENT)
        assert at is not None
        for role in ROLES:
            story.stop(role, at.sent_ns)
        story.loses_state(SERVER)
        story.ends()

    return tell


for _rule in ("rfc9000-7.2-id-not-issued", "rfc9000-5.1.2-retired-id-used"):
    _story(f"{_rule}, and a stateless reset", TRANSFER, "transfer", SIZES, CLIENT)(_answers_by_reset(_rule))


@_story("invalid token after a changed token", "quic-go_quinn/retry", "retry", (1024,), CLIENT)
def _invalid_token(story: Story) -> None:
    _witness("rfc9000-17.2.5.3-token-not-echoed", CLIENT, 0x0B, kind=Kind.INITIAL)(story)


@_story("client repeats its first Initial after each Retry", "quic-go_quinn/retry", "retry", (1024,), CLIENT)
def _retry_ignored(story: Story) -> None:
    hello, retry = story.recording.datagrams[:2]
    story.stop(CLIENT, hello.sent_ns)
    story.stop(SERVER, retry.sent_ns)
    for seconds in (1, 3, 7):
        again = copied(hello.packets[0], *hello.packets[0].frames, number=hello.packets[0].number + seconds)
        story.recording.insert(hello, [again], after_s=seconds)
        story.recording.insert(retry, list(retry.packets), after_s=seconds)
    story.ends(exit_code=None, timed_out=True)


@_story("server refuses the protocol of the case", HANDSHAKE, "handshake", (), SERVER)
def _protocol_refused(story: Story) -> None:
    story.closes(SERVER, 0, 0x178, kind=Kind.INITIAL)
    story.ends(exit_code=1)


@_story("small Initial that is not answered", HANDSHAKE, "handshake", (), CLIENT)
def _small_initial(story: Story) -> None:
    story.breaks("rfc9000-14.1-client-initial-small", CLIENT)
    story.stop(SERVER, 0)
    story.stop(CLIENT, story.recording.datagrams[0].sent_ns)
    story.ends(exit_code=None, timed_out=True)


def _reset(story: Story, sender: str, kind: int) -> None:
    datagram, packet = story.middle(sender)
    stream = story.mutation(SERVER).frames(F.STREAM)[-1][2]["stream"]
    packet.frames = [frame(kind, stream=stream, code=7, final=SIZES[-1])]
    packet.changed = True
    for each, sent, data in story.mutation(SERVER).frames(F.STREAM):
        if data["stream"] == stream and each.sent_ns > datagram.sent_ns:
            sent.swap(data, frame(F.PING))
    story.ends()


@_story("server resets the response", TRANSFER, "transfer", SIZES, SERVER)
def _server_resets(story: Story) -> None:
    _reset(story, SERVER, F.RESET_STREAM)


@_story("client stops the response", TRANSFER, "transfer", SIZES, CLIENT)
def _client_stops(story: Story) -> None:
    _reset(story, CLIENT, F.STOP_SENDING)


@_story("server leaves out FIN", TRANSFER, "transfer", SIZES, SERVER)
def _no_fin(story: Story) -> None:
    for _, packet, data in story.mutation(SERVER).frames(F.STREAM):
        if data.fin and data["stream"] == 8:
            packet.swap(data, data.but(type=data.type & ~FIN))
    closes = story.mutation(CLIENT).frames(F.CLOSE, F.CLOSE_APPLICATION)
    story.stop(CLIENT, closes[0][0].sent_ns - 1)
    story.ends(exit_code=None, timed_out=True)


@_story("server leaves out FIN, client closes at once", TRANSFER, "transfer", SIZES, SERVER)
def _no_fin_close(story: Story) -> None:
    for _, packet, data in story.mutation(SERVER).frames(F.STREAM):
        if data.fin and data["stream"] == 8:
            packet.swap(data, data.but(type=data.type & ~FIN))
    story.ends()


@_story("server leaves out FIN, client gives up", TRANSFER, "transfer", SIZES, SERVER)
def _no_fin_exit(story: Story) -> None:
    _no_fin(story)
    story.waits(3)
    story.ends(exit_code=1)


@_story("server falls silent", TRANSFER, "transfer", SIZES, SERVER)
def _server_silent(story: Story) -> None:
    story.stop(SERVER, story.middle(SERVER)[0].sent_ns)
    story.stop(CLIENT, story.middle(SERVER)[0].sent_ns + 10**8)
    story.ends(exit_code=None, timed_out=True)


@_story("the client is stopped while the server sends", TRANSFER, "transfer", SIZES, NOBODY)
def _slow(story: Story) -> None:
    """A slow transfer: a client that is stopped owes no answer to what arrives afterwards."""
    at = story.middle(SERVER)[0].sent_ns
    story.stop(SERVER, at)
    story.stop(CLIENT, at)
    story.waits(1, role=SERVER)
    story.ends(exit_code=None, timed_out=True)
    client = story.recording.evidence["client"]
    client["ended"] = client["started"]  # the end is then the client's last packet


@_story("the client is stopped before it could request the last file", TRANSFER, "transfer", SIZES, NOBODY)
def _slow_requests(story: Story) -> None:
    stream = story.mutation(SERVER).frames(F.STREAM)[-1][2]["stream"]
    for role in ROLES:
        for _, packet, data in story.mutation(role).frames(F.STREAM):
            if data["stream"] == stream:
                packet.swap(data, frame(F.PING))
    story.ends(exit_code=None, timed_out=True, missing=False)
    story.recording.evidence["files"][-1].update(received=None, equal=False)
    client = story.recording.evidence["client"]
    client["ended"] = client["started"]  # the end is then the client's last packet


@_story("server falls silent although the client probes", TRANSFER, "transfer", SIZES, SERVER)
def _server_silent_probes(story: Story) -> None:
    _server_silent(story)
    story.waits(1)
    story.waits(2)


@_story("server falls silent, client exits", TRANSFER, "transfer", SIZES, SERVER)
def _server_silent_exit(story: Story) -> None:
    _server_silent(story)
    story.waits(5)
    story.ends(exit_code=1)


@_story("server falls silent before the link does what the case needs", REBIND, "rebind-port", (40_960,), SERVER)
def _server_silent_early(story: Story) -> None:
    at = story.mutation(SERVER).packets(Kind.ONE_RTT)[3][0].sent_ns
    story.stop(SERVER, at)
    story.stop(CLIENT, at + 5 * 10**7)
    story.waits(5)
    story.ends(exit_code=1)


@_story("server ends after small PATH_RESPONSEs", REBIND, "rebind-port", (40_960,), SERVER)
def _ends_on_new_path(story: Story) -> None:
    """quic-go, the client of this recording, sends PATH_RESPONSE in small datagrams, which ends no connection."""
    first = story.mutation(CLIENT).frames(F.PATH_RESPONSE)[0][0]
    story.closes(SERVER, first.seen[SERVER].time_ns, 0x01)
    story.ends()


def _ends_after_one_answer(story: Story, code: int) -> None:
    _, packet, repeated = story.mutation(SERVER).frames(F.PATH_CHALLENGE)[-1]
    packet.swap(repeated, frame(F.PATH_CHALLENGE, b"another."))
    _, packet, answer = story.mutation(CLIENT).frames(F.PATH_RESPONSE)[-1]
    packet.swap(answer, frame(F.PING))
    for _, each, data in story.mutation(SERVER).frames(F.STREAM)[-3:]:
        each.swap(data, frame(F.PING))
    late = story.mutation(SERVER).packets(Kind.ONE_RTT)[-5][0]
    story.closes(SERVER, late.sent_ns - 1, code)
    story.ends()


for _name, _code, _role in (("INTERNAL_ERROR", 0x01, SERVER), ("NO_VIABLE_PATH", 0x10, NOBODY)):
    _story(f"server ends with {_name} after one challenge was answered", REBIND, "rebind-port", (40_960,), _role)(
        partial(_ends_after_one_answer, code=_code)
    )


@_story("server falls silent in a later handshake", "quic-go_quinn/resumption", "resumption", (1024,) * 2, SERVER)
def _silent_in_a_later_handshake(story: Story) -> None:
    """The client can't request the last file, although it completed a handshake before."""
    reply = story.mutation(SERVER).packets(Kind.INITIAL)[0][0]
    reply.packets = reply.packets[:1]
    story.stop(SERVER, reply.sent_ns)
    story.stop(CLIENT, reply.sent_ns)
    datagram, hello = story.mutation(CLIENT).packets(Kind.INITIAL)[0]
    for seconds in (1, 3, 7):
        probe = copied(hello, frame(F.PING), padding(1150), number=hello.number + seconds)
        story.recording.insert(datagram, [probe], after_s=seconds)
    story.ends(missing=False)
    story.recording.evidence["files"][-1].update(received=None, equal=False)


@_story("server falls silent, client closes", TRANSFER, "transfer", SIZES, SERVER)
def _server_silent_close(story: Story) -> None:
    _server_silent(story)
    story.waits(5)
    story.closes(CLIENT, story.mutation(CLIENT).packets(Kind.ONE_RTT)[-1][0].sent_ns - 1, 0, application=True)
    story.ends(exit_code=1)


@_story("client falls silent", TRANSFER, "transfer", SIZES, CLIENT)
def _client_silent(story: Story) -> None:
    story.stop(CLIENT, story.middle(CLIENT)[0].sent_ns)
    story.stop(SERVER, story.middle(CLIENT)[0].sent_ns + 2 * 10**7)
    story.waits(1, SERVER)
    story.waits(2, SERVER)
    story.ends(exit_code=None, timed_out=True)


@_story("client crashes", TRANSFER, "transfer", SIZES, CLIENT)
def _client_crashes(story: Story) -> None:
    story.stop(CLIENT, story.middle(CLIENT)[0].sent_ns)
    story.stop(SERVER, story.middle(CLIENT)[0].sent_ns + 2 * 10**7)
    story.ends(exit_code=139)


@_story("client crashes after a small Initial packet of the server", TRANSFER, "transfer", SIZES, CLIENT)
def _client_crashes_after_a_small_initial(story: Story) -> None:
    story.breaks("rfc9000-14.1-server-initial-small", SERVER)
    _client_crashes(story)


@_story("client closes in the middle", TRANSFER, "transfer", SIZES, CLIENT)
def _client_leaves(story: Story) -> None:
    story.closes(CLIENT, story.middle(CLIENT)[0].sent_ns, 0)
    story.ends()


@_story("server closes in the middle", TRANSFER, "transfer", SIZES, SERVER)
def _server_leaves(story: Story) -> None:
    story.closes(SERVER, story.middle(SERVER)[0].sent_ns, 0)
    story.ends()


@_story("server has an internal error", TRANSFER, "transfer", SIZES, SERVER)
def _server_fails(story: Story) -> None:
    story.closes(SERVER, story.middle(SERVER)[0].sent_ns, 1)
    story.ends()


@_story("client accuses a server that broke nothing", TRANSFER, "transfer", SIZES, NOBODY)
def _client_accuses(story: Story) -> None:
    story.closes(CLIENT, story.middle(CLIENT)[0].sent_ns, 7)
    story.ends()


@_story("server accuses a client that broke nothing", TRANSFER, "transfer", SIZES, NOBODY)
def _server_accuses(story: Story) -> None:
    story.closes(SERVER, story.middle(SERVER)[0].sent_ns, 3)
    story.ends()


# Accusations that the packets show to be wrong, and others.


def _closes_after_a_ping(story: Story, *, code: int, begins: bool) -> None:
    """The server reads a PING and closes. `begins`: the client had sent its ClientHello before, which was lost."""
    datagram, hello = story.mutation(CLIENT).packets(Kind.INITIAL)[0]
    answer, ack = story.mutation(SERVER).packets(Kind.INITIAL)[0]
    probe = copied(hello, frame(F.PING), padding(1150), number=hello.number + 1)
    close = copied(ack, frame(F.CLOSE, code=code, frame=0), padding(1150))
    for role in ROLES:
        story.stop(role, datagram.sent_ns)
    story.recording.insert(datagram, [probe], after_s=1)
    story.recording.insert(answer, [close], after_s=1)
    if not begins:
        hello.edit(frames=[frame(F.PING), padding(1150)])
    story.recording.lose(datagram)
    story.ends()


for _name, _role, _code, _begins in (
    ("server accuses a client whose PING arrives before its ClientHello", SERVER, 0x0A, True),
    ("server refuses the token of a PING", NOBODY, 0x0B, True),
    ("server accuses a client that begins with a PING", NOBODY, 0x0A, False),
):
    _story(_name, HANDSHAKE, "handshake", (), _role)(partial(_closes_after_a_ping, code=_code, begins=_begins))


def _refuses_parameters(story: Story, peer: str, kind: int, value: bytes | int | None) -> None:
    for each, data in ((P.MIN_ACK_DELAY, None), (kind, value)):
        story.mutation(peer).set_parameter(each, data)
    role, kinds = (SERVER, Kind.INITIAL) if peer == CLIENT else (CLIENT, Kind.HANDSHAKE)
    story.closes(role, 0, 0x08, kind=kinds)
    story.ends()


for _peer, _role in ((CLIENT, SERVER), (SERVER, CLIENT)):
    for _name, _culprit, _kind_of, _value in (
        ("right parameters", _role, P.MAX_IDLE_TIMEOUT, 1000),
        ("a reserved parameter", _role, 31 * 7 + 27, b"x"),
        ("an unknown parameter", NOBODY, 31 * 7 + 28, b"x"),
        ("a parameter of a draft", NOBODY, P.MIN_ACK_DELAY, 1000),
        ("a wrong parameter", _peer, P.CID_LIMIT, 1),
    ):
        _story(f"{_role} refuses {_name}", HANDSHAKE, "handshake", (), _culprit)(
            partial(_refuses_parameters, peer=_peer, kind=_kind_of, value=_value)
        )


def _finds_no_group(story: Story, groups: str) -> None:
    value = bytes.fromhex(groups)
    story.mutation(CLIENT).edit_message(1, lambda message: message.set(10, len(value).to_bytes(2) + value))
    story.closes(SERVER, 0, 0x128, kind=Kind.INITIAL)
    story.ends()


# aioquic closes a ClientHello without a key share that it knows; it has to ask for another one.
for _name, _groups, _culprit in (
    ("all that is mandatory", "11ec001d0017", SERVER),
    ("no secp256r1", "11ec001d", NOBODY),
):
    _story(f"server finds no group, client offers {_name}", HANDSHAKE, "handshake", (), _culprit)(
        partial(_finds_no_group, groups=_groups)
    )


def _asks_for_delay(story: Story, delay: int) -> None:
    datagram, packet = story.middle(CLIENT)
    packet.add(frame(F.ACK_FREQUENCY, sequence=0, threshold=1, delay=delay, reordering=1))
    story.closes(SERVER, datagram.seen[SERVER].time_ns, 0x0A)
    story.ends()


for _delay, _culprit in ((999, CLIENT), (1000, NOBODY)):  # quinn's min_ack_delay is 1000 µs
    _story(f"server refuses an ACK_FREQUENCY of {_delay} µs", TRANSFER, "transfer", SIZES, _culprit)(
        partial(_asks_for_delay, delay=_delay)
    )


@_story("client refuses the certificate", HANDSHAKE, "handshake", (), NOBODY)
def _bad_certificate(story: Story) -> None:
    story.closes(CLIENT, 0, 0x12A, kind=Kind.HANDSHAKE)
    story.ends()


def _away(story: Story, *probes: float) -> None:
    """The server falls silent, the client probes after so many seconds, and the server has lost its state."""
    last = story.middle(SERVER)[0]
    story.stop(SERVER, last.sent_ns)
    story.stop(CLIENT, last.seen[CLIENT].time_ns)
    for seconds in probes:
        story.waits(seconds)
    story.loses_state(SERVER)
    story.ends()


@_story("server loses its state", TRANSFER, "transfer", SIZES, SERVER)
def _loses_state(story: Story) -> None:
    _away(story, 0.1)


@_story("server is away for seconds, and has lost its state then", TRANSFER, "transfer", SIZES, SERVER)
def _restarts(story: Story) -> None:
    _away(story, 0.3, 0.6, 1.2, 2.4)


@_story("server loses its state, client does not end", TRANSFER, "transfer", SIZES, SERVER)
def _loses_state_timeout(story: Story) -> None:
    _loses_state(story)
    story.ends(exit_code=None, timed_out=True)


@_story("server loses its state before a request", "quic-go_quinn/resumption", "resumption", (1024,) * 2, SERVER)
def _loses_state_of_the_first(story: Story) -> None:
    """The client gets one file over another connection, never requests the other file, and gives up (tquic)."""
    first, _ = story.recording.connections
    for role in ROLES:
        mutation = Mutation(story.recording, first, role, story.random)
        for _, packet, data in mutation.frames(F.STREAM):
            packet.swap(data, frame(F.PING))
        for datagram, _, _ in mutation.frames(F.CLOSE, F.CLOSE_APPLICATION):
            story.recording.remove(datagram)
    like = mutation.packets(Kind.ONE_RTT)[-1][0]
    token = mutation.parameters(SERVER)[P.RESET_TOKEN]
    story.recording.insert(like, [Packet(Kind.OPAQUE, b"\x4a" + story.random.randbytes(24) + token)], after_s=0.1)
    story.ends(missing=False)
    story.recording.evidence["files"][0].update(received=None, equal=False)


def _before_close(story: Story) -> None:
    """All files have arrived, the client has not closed, and it lives some seconds longer."""
    closes = story.mutation(CLIENT).frames(F.CLOSE, F.CLOSE_APPLICATION)
    for role in ROLES:
        story.stop(role, closes[0][0].sent_ns - 1)
    story.ends(missing=False)
    story.recording.evidence["client"]["ended"] += 5


def _loses_state_late(story: Story) -> None:
    _before_close(story)
    story.loses_state(SERVER)


_story("server loses its state when all files have arrived", TRANSFER, "transfer", SIZES, SERVER)(_loses_state_late)


@_story("server loses its state when the client has exited", TRANSFER, "transfer", SIZES, CLIENT)
def _loses_state_after(story: Story) -> None:
    _loses_state_late(story)
    story.recording.evidence["client"]["ended"] -= 5


@_story("server loses its state when all files have arrived, client does not end", TRANSFER, "transfer", SIZES, CLIENT)
def _loses_state_late_timeout(story: Story) -> None:
    _loses_state_late(story)
    story.ends(exit_code=None, timed_out=True, missing=False)


@_story("a stateless reset is lost when all files have arrived", TRANSFER, "transfer", SIZES, CLIENT)
def _loses_state_unheard(story: Story) -> None:
    _loses_state_late(story)
    story.recording.lose(story.recording.datagrams[-1])


@_story("server loses its state when the client has closed", TRANSFER, "transfer", SIZES, CLIENT)
def _loses_state_closed(story: Story) -> None:
    story.loses_state(SERVER)
    story.ends(missing=False)


@_story("server dies when all files have arrived", TRANSFER, "transfer", SIZES, SERVER)
def _dies_late(story: Story) -> None:
    _before_close(story)
    story.waits(1)
    story.waits(2)


@_story("server has an internal error when all files have arrived", TRANSFER, "transfer", SIZES, SERVER)
def _fails_late(story: Story) -> None:
    _before_close(story)
    story.closes(SERVER, 2**62, 1)


@_story("client answers a stateless reset by an error", TRANSFER, "transfer", SIZES, SERVER)
def _answers_reset(story: Story) -> None:
    """quic-go does so: it closes with INTERNAL_ERROR."""
    _away(story, 0.1)
    reset = story.recording.datagrams[-1]
    datagram, packet = story.mutation(CLIENT).packets(Kind.ONE_RTT)[-1]
    close = copied(packet, frame(F.CLOSE, code=1, frame=0), number=packet.number + 1)
    story.recording.insert(datagram, [close], after_s=(reset.seen[CLIENT].time_ns - datagram.sent_ns) / 1e9 + 0.001)


@_story("client closes with an error before a stateless reset arrives", TRANSFER, "transfer", SIZES, CLIENT)
def _closes_before_reset(story: Story) -> None:
    last = story.middle(SERVER)[0]
    story.closes(CLIENT, last.sent_ns, 1)
    story.loses_state(SERVER)
    story.ends()


@_story("client loses its state", TRANSFER, "transfer", SIZES, CLIENT)
def _client_loses_state(story: Story) -> None:
    first = story.mutation(CLIENT).packets(Kind.ONE_RTT)[0]
    story.mutation(CLIENT).add_to(first, new_connection_id(1, b"new id", token=TOKEN))
    _client_crashes(story)
    story.loses_state(CLIENT)
    story.ends()


@_story("server forgets a connection that the client had closed", TRANSFER, "transfer", SIZES, CLIENT)
def _forgets_closed(story: Story) -> None:
    _client_leaves(story)
    story.waits(1)
    story.loses_state(SERVER)


@_story("server forgets a connection on which the client was silent", TRANSFER, "transfer", SIZES, NOBODY)
def _forgets_silent(story: Story) -> None:
    _client_silent(story)
    story.waits(40)
    story.loses_state(SERVER)


FINISHED, CERTIFICATE_VERIFY, DECRYPT_ERROR = 20, 15, 0x133
CERTIFICATE = "e240c8bc0aad92f71f31e2173adf1dd805ebb327a3e210130bad4ab434318fab"  # of the recording


def _proof(name: str, kind: int, sender: str, culprit: str, *, changed: bool) -> None:
    """A message of a handshake is changed or not, and the sender's peer closes with decrypt_error."""

    @_story(name, HANDSHAKE, "handshake", (), culprit)
    def tell(story: Story) -> None:
        if changed:
            mutation = story.mutation(sender)
            mutation.edit_message(kind, lambda message: setattr(message, "before", message.before[:-1] + b"?"))
        peer = SERVER if sender == CLIENT else CLIENT
        proof = story.mutation(sender).packets(Kind.HANDSHAKE)[-1][0]
        after, kinds = (0, Kind.HANDSHAKE) if peer == CLIENT else (proof.seen[peer].time_ns, Kind.ONE_RTT)
        story.closes(peer, after, DECRYPT_ERROR, kind=kinds)
        story.ends()


_proof("server's Finished is wrong", FINISHED, SERVER, SERVER, changed=True)
_proof("server's signature is wrong", CERTIFICATE_VERIFY, SERVER, SERVER, changed=True)
_proof("client's Finished is wrong", FINISHED, CLIENT, CLIENT, changed=True)
_proof("client refuses a right Finished", FINISHED, SERVER, CLIENT, changed=False)
_proof("server refuses a right Finished", FINISHED, CLIENT, SERVER, changed=False)


def _certificate(name: str, culprit: str, given: str) -> None:
    """The client refuses the certificate. `given`: SHA-256 of the certificate in /certs."""

    @_story(name, HANDSHAKE, "handshake", (), culprit)
    def tell(story: Story) -> None:
        _bad_certificate(story)
        story.recording.evidence["certificates"] = [given]


_certificate("client refuses the certificate of /certs", CLIENT, CERTIFICATE)
_certificate("client refuses another certificate", SERVER, "00" * 32)


@_story("client does not end although all files arrived", TRANSFER, "transfer", SIZES, CLIENT)
def _hangs(story: Story) -> None:
    story.ends(exit_code=None, timed_out=True, missing=False)


@_story("client exits with 1 although all files arrived", TRANSFER, "transfer", SIZES, CLIENT)
def _exits(story: Story) -> None:
    story.ends(exit_code=1, missing=False)


@_story("client does not finish the handshake", HANDSHAKE, "handshake", (), CLIENT)
def _no_finished(story: Story) -> None:
    story.stop(CLIENT, story.recording.datagrams[0].sent_ns)
    server = [datagram for datagram in story.recording.datagrams if datagram.sender == SERVER]
    story.stop(SERVER, server[1].sent_ns)
    story.ends(exit_code=None, timed_out=True)


@_story("server does not answer", HANDSHAKE, "handshake", (), SERVER)
def _unanswered(story: Story) -> None:
    story.stop(SERVER, 0)
    story.stop(CLIENT, story.recording.datagrams[0].sent_ns)
    story.ends(exit_code=1)


def _half_a_hello(story: Story, *, repeats: bool, code: int | None) -> None:
    """The second half of the ClientHello is lost. The client probes with PING (OpenSSL), or repeats the half, which is
    lost again. The server forgets the handshake, or closes with the error `code` after 10 s."""
    datagram, hello = story.mutation(CLIENT).packets(Kind.INITIAL)[0]
    answer, ack = story.mutation(SERVER).packets(Kind.INITIAL)[0]
    whole, size = next(each for each in hello.frames if each.data), datagram.size
    half = len(whole.data) // 2
    rest = whole.but(data=whole.data[half:], offset=half)
    hello.edit(frames=[whole.but(data=whole.data[:half])])
    ack.edit(frames=[each for each in ack.frames if each.is_ack])
    answer.packets = [ack]
    story.stop(CLIENT, datagram.sent_ns)
    story.stop(SERVER, answer.sent_ns)
    for each, there in ((hello, datagram), (ack, answer)):
        each.pad(size - there.size)
    for number, at in enumerate((0.0001, 1.0, 3.0, 7.0), start=hello.number + 1):
        data = repeats or at < 1
        probe = copied(hello, rest if data else frame(F.PING), number=number)
        probe.pad(1200 - len(probe.encode()))
        sent = story.recording.insert(datagram, [probe], after_s=at)
        if data:
            story.recording.lose(sent)
    if code is not None:
        close = copied(ack, frame(F.CLOSE, code=code, frame=0), number=ack.number + 1)
        story.recording.insert(answer, [close], after_s=10.0)
    story.ends()


for _name, _culprit, _repeats, _close in (
    ("server forgets a handshake before it has a whole ClientHello", CLIENT, False, None),
    ("server closes a handshake before it has a whole ClientHello", CLIENT, False, 0x02),
    ("server closes a handshake whose ClientHello is lost again and again", NOBODY, True, 0x02),
):
    _story(_name, HANDSHAKE, "handshake", (), _culprit)(partial(_half_a_hello, repeats=_repeats, code=_close))


@_story("server never repeats its lost Handshake packet, and the client gives up", HANDSHAKE, "handshake", (), SERVER)
def _half_a_flight(story: Story) -> None:
    answer, initial = story.mutation(SERVER).packets(Kind.INITIAL)[0]
    _, flight = story.mutation(SERVER).packets(Kind.HANDSHAKE)[0]
    datagram, hello = story.mutation(CLIENT).packets(Kind.INITIAL)[0]
    answer.packets = [initial]
    initial.pad(1200 - answer.size)
    story.stop(CLIENT, datagram.sent_ns)
    story.stop(SERVER, answer.sent_ns)
    story.recording.lose(story.recording.insert(answer, [flight], after_s=0.0001))
    for more, at in enumerate((1.0, 3.0, 7.0), start=1):
        story.recording.insert(answer, [copied(flight, frame(F.PING), number=flight.number + more)], after_s=at)
    close = copied(hello, frame(F.CLOSE, code=0, frame=0), number=hello.number + 1)
    close.pad(1200 - len(close.encode()))
    story.recording.insert(datagram, [close], after_s=9.0)
    story.ends()


@_story("client of HTTP/3 saves nothing of a whole answer", H3, "http3", (1024,), CLIENT)
def _saves_nothing(story: Story) -> None:
    story.ends(exit_code=0)


UNACKNOWLEDGED = "rfc9000-13.2.1-handshake-unacknowledged"


@_story("server acknowledges no packet of a handshake, and the client gives up", HANDSHAKE, "handshake", (), SERVER)
def _gives_up(story: Story) -> None:
    """HAProxy drops Initial packets with pieces of Chromium's ClientHello."""
    story.breaks(UNACKNOWLEDGED, SERVER)
    story.closes(CLIENT, story.mutation(CLIENT).packets(Kind.INITIAL)[-2][0].sent_ns, 0, kind=Kind.INITIAL)
    story.ends()


@_story("client leaves after a handshake with packets without acknowledgment", HANDSHAKE, "handshake", (), CLIENT)
def _leaves_later(story: Story) -> None:
    story.breaks(UNACKNOWLEDGED, SERVER)
    story.closes(CLIENT, 0, 0)
    story.ends()


EARLY = "bad/refuses-early-data"


@_story("0-RTT after a ClientHello whose fixed bit is 0 and that is answered", EARLY, "zerortt", (32,) * 4, SERVER)
def _cleared_and_read(story: Story) -> None:
    story.breaks("rfc9287-3.1-cleared-before-offer", CLIENT)


@_story("0-RTT after a ClientHello whose fixed bit is 0 and that is discarded", EARLY, "zerortt", (32,) * 4, CLIENT)
def _cleared_and_discarded(story: Story) -> None:
    datagram, hello = story.mutation(CLIENT).packets(Kind.INITIAL)[0]
    again = copied(hello, *hello.frames, number=hello.number + 100)
    _cleared_and_read(story)
    story.recording.insert(datagram, [again], after_s=0.005)


@pytest.mark.parametrize("name", STORIES)
def test_the_endpoint_at_fault_is_named_and_no_other(name: str, catalog: Catalog, tmp_path: Path) -> None:
    path, case, sizes, culprit, tell = STORIES[name]
    story = Story.of(path)
    tell(story)
    result = story.judge(catalog, tmp_path / "job", case, sizes)
    told = [(finding.code, finding.role, finding.actual) for finding in result.findings]
    assert result.outcome is Outcome.FAILED, told
    assert {finding.role for finding in result.findings} - {""} == {culprit} - {""}, told
    assert result.findings[0].role == culprit, told


def test_a_server_that_was_started_again_is_named(catalog: Catalog, recorded: Callable[[str], Artifacts]) -> None:
    """nginx was killed after its first flight. With the same quic_host_key, the next nginx answers the request by a
    stateless reset, and quic-go closes the connection with INTERNAL_ERROR."""
    case = catalog.cases["longrtt"]
    result = analyse(JOB, recorded("restarted/nginx_quic-go/longrtt"), case, case.record())
    codes = ["files-differ", "client-exit", "closed-with-error"]
    assert [(each.code, each.role) for each in result.findings] == list(zip(codes, (SERVER, "", ""), strict=True))
    assert "the server sent a stateless reset" in result.findings[0].actual
    # The second nginx can't read the Handshake packets that the client sends to the first.
    assert [each.code for each in result.violations] == ["rfc9000-14.1-server-initial-small"]


def test_a_stateless_reset_after_a_close_breaks_no_rule(catalog: Catalog, tmp_path: Path) -> None:
    story = Story.of(TRANSFER)
    _forgets_closed(story)
    assert story.judge(catalog, tmp_path / "job", "transfer", SIZES).violations == ()


_YEAR = 365 * 86400.0


def _shows(story: Story, *chain: x509.Certificate) -> None:
    """The server sends these certificates."""
    entries = [each.public_bytes(serialization.Encoding.DER) for each in chain]
    body = b"".join(len(entry).to_bytes(3) + entry + bytes(2) for entry in entries)
    text = bytes(1) + len(body).to_bytes(3) + body
    story.mutation(SERVER).edit_message(11, lambda message: setattr(message, "before", text))


def _made(at: float, *names: str, chain_length: int = 1) -> tuple[list[x509.Certificate], list[x509.Certificate]]:
    """A chain that begins at this Unix time, and its CA's certificate."""
    made = certificates(names=names or SERVER_NAMES, seed=1, now=at, chain_length=chain_length)
    return x509.load_pem_x509_certificates(made.chain), x509.load_pem_x509_certificates(made.ca)


@pytest.mark.parametrize(
    ("name", "actual"),
    [
        ("right", None),
        ("other", "other certificates"),
        ("expired", "a certificate that had expired at the time of the job"),
        ("early", "a certificate that was not yet valid at the time of the job"),
        ("renamed", "a certificate for a.example, not for server4"),
        ("own", "a certificate that is signed by its own key, not by the CA"),
        ("short", "only 1 of the 2 certificates"),
        ("unlinked", "a chain in which a certificate is not signed by the next"),
    ],
)
def test_a_wrong_certificate_that_the_client_accepts_is_a_note(
    name: str, actual: str | None, catalog: Catalog, tmp_path: Path
) -> None:
    story = Story.of(HANDSHAKE)
    at = min(datagram.sent_ns for datagram in story.recording.datagrams) / 1e9
    begins = {"expired": at - _YEAR, "early": at + _YEAR}.get(name, at)
    chain, ca = _made(begins, *(["a.example"] if name == "renamed" else []))
    others, _ = _made(at - 60, chain_length=2)
    shown = {"own": ca, "unlinked": [*chain, others[1]]}.get(name, chain)
    _shows(story, *shown)
    given = {"right": chain, "short": [chain[0], others[1]]}.get(name, others)
    story.recording.evidence["certificates"] = [each.fingerprint(hashes.SHA256()).hex() for each in given]
    result = story.judge(catalog, tmp_path / "job", "handshake")
    told = [(note.actual, note.role, len(note.packets)) for note in result.notes if note.code == "certificate-wrong"]
    assert told == ([] if actual is None else [(actual, SERVER, 1)])
    assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())


_OWN = "a certificate that is signed by its own key, not by the CA"


def test_a_real_server_with_a_certificate_of_its_own(catalog: Catalog, recorded: Callable[[str], Artifacts]) -> None:
    """nginx shows a certificate of its own: ngtcp2 accepts it, s2n-quic closes with handshake_failure."""
    case = catalog.cases["handshake"]
    accepted, refused = (
        analyse(JOB, recorded(f"nginx_{client}/own-certificate"), case, case.record())
        for client in ("ngtcp2", "s2n-quic")
    )
    assert (accepted.outcome, accepted.findings) == (Outcome.SUCCEEDED, ())
    assert [(note.code, note.role, note.actual) for note in accepted.notes] == [("certificate-wrong", SERVER, _OWN)]
    first = refused.findings[0]
    assert (refused.outcome, first.code, first.actual) == (Outcome.FAILED, "certificate-wrong", _OWN)
    assert {finding.role for finding in refused.findings} - {""} == {SERVER}


@pytest.mark.parametrize(
    ("seconds", "acked", "kept"),
    [(2.0, False, True), (1.0, False, False), (3.0, False, False), (2.0, True, False)],
    ids=["kept", "reset", "at another time", "with an RTT sample"],
)
def test_a_probe_as_late_as_initial_packets_kept_the_backoff(
    seconds: float, acked: bool, kept: bool, catalog: Catalog, tmp_path: Path
) -> None:
    story = Story.of(HANDSHAKE)
    probe_finished(story.mutation(CLIENT), seconds, acked=acked)
    story.ends()
    notes = story.judge(catalog, tmp_path / "job", "handshake").notes
    assert ("rfc9002-6.2.2-backoff-kept" in {note.code for note in notes}) == kept
