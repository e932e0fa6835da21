"""Mutants of connection IDs (empty, too long, too short, retired) and of tokens of Initial packets (RFC 9000 §5.1,
§7.2)."""

from lab.mutate import edits
from lab.mutate.frames import F, frame, new_connection_id
from lab.mutate.mutants.packets import arrived
from lab.mutate.mutation import Mutation, Sent
from lab.mutate.packets import LONG, Kind
from lab.mutate.protection import V1, V2, initial_keys
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.registry import mutant
from lab.mutate.tls import P

LONG_LASTING = ("longrtt", "blackhole", "mtublackhole", "rebind-addr", "rebind-port")


def rename(m: Mutation, owner: str, old: bytes, new: bytes) -> None:
    """Give a connection ID of an endpoint another value in all headers, and in its transport parameter."""
    peer = CLIENT if owner == SERVER else SERVER
    for sender, name in ((owner, "scid"), (peer, "dcid")):
        for datagram, packet in m.packets(sender=sender):
            if getattr(packet, name) == old and (name == "dcid" or packet.kind in LONG):
                size = datagram.size
                setattr(packet, name, new)
                packet.changed = True
                edits.keep_size(datagram, size)
    m.set_parameter(P.INITIAL_SCID, new, owner)


def without_ids(m: Mutation, owner: str) -> None:
    """Change the recording as if an endpoint had chosen an empty connection ID and so never issued another ID."""
    peer = CLIENT if owner == SERVER else SERVER
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "Retry needs a connection ID")
    ids = [value for value in m.connection.cids[owner] if value]
    m.need(ids, "its connection ID is empty already")
    for sender, kind in ((owner, F.NEW_CONNECTION_ID), (peer, F.RETIRE_CONNECTION_ID)):
        for datagram, packet, old in m.frames(kind, sender=sender):
            m.replace((datagram, packet), old, frame(F.PING))
    for value in ids:
        rename(m, owner, value, b"")


def at_its_source(m: Mutation, owner: str) -> bytes:
    """The source connection ID of an endpoint's first Initial packet."""
    sent = m.packets(Kind.INITIAL, sender=owner)
    m.need(sent and sent[0][1].scid, "its connection ID is empty")
    return sent[0][1].scid


@mutant(
    "rfc9000-17.2-id-too-long",
    along={"rfc9000-18-malformed-parameter": "the transport parameter has the same length"},
)
def _too_long(m: Mutation) -> None:
    rename(m, m.role, at_its_source(m, m.role), m.rng.randbytes(m.rng.randrange(21, 40)))


@mutant("rfc9000-18.2-preferred-address-without-ids", SERVER, cases=("handshake", "http3", "window"))
def _preferred_without(m: Mutation) -> None:
    without_ids(m, SERVER)
    ends = bytes([193, 167, 100, 101, 1, 187]) + bytes(18)
    m.set_parameter(P.PREFERRED_ADDRESS, ends + b"\x08" + m.rng.randbytes(8) + m.rng.randbytes(16))


@mutant("rfc9000-19.15-new-id-beside-empty", SERVER, name="emptied", cases=("handshake", "http3", "window"))
def _beside_emptied(m: Mutation) -> None:
    without_ids(m, SERVER)
    m.set_parameter(P.CID_LIMIT, 60, CLIENT)
    m.send(new_connection_id(1, m.rng.randbytes(8), token=m.rng.randbytes(16)))


@mutant("rfc9000-19.16-retire-empty", CLIENT, name="emptied", cases=("handshake", "http3", "window"))
def _retire_emptied(m: Mutation) -> None:
    without_ids(m, SERVER)
    m.send(frame(F.RETIRE_CONNECTION_ID, sequence=0))


@mutant("rfc9000-7.2-first-id-short", CLIENT)
def _first_short(m: Mutation) -> None:
    old = m.connection.original_dcid
    new = old[: m.rng.randrange(1, 8)]
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "the tag of Retry covers it")
    for sender in (CLIENT, SERVER):
        for datagram, packet in m.packets(sender=sender):
            size = datagram.size
            if sender == CLIENT and packet.dcid == old:
                packet.dcid, packet.changed = new, True
            if packet.kind is Kind.INITIAL and packet.keys is not None:
                packet.keys, packet.changed = initial_keys(new, packet.keys.version)[sender], True
            edits.keep_size(datagram, size)
    m.set_parameter(P.ORIGINAL_DCID, new, SERVER)


@mutant("rfc9000-5.1.2-retire-prior-to-ignored", cases=LONG_LASTING)
def _prior_ignored(m: Mutation) -> None:
    issued = m.frames(F.NEW_CONNECTION_ID, sender=m.peer)
    last = m.packets(Kind.ONE_RTT)[-1]
    sequences = {each.data[:-16]: each["sequence"] for _, _, each in issued}
    used = sequences.get(last[1].dcid, 0)
    fit = [
        each
        for each in issued
        if each[2]["sequence"] > used
        and each[0].arrived
        and each[0].seen[m.role].time_ns + 1_200_000_000 < last[0].sent_ns
    ]
    datagram, packet, old = m.pick(fit, "it has no connection ID to change to, or ends too soon")
    m.replace((datagram, packet), old, old.but(retire=old["sequence"]))


# Retry and tokens


@mutant("rfc9000-17.2.5.1-retry-source-is-destination", SERVER, cases=("retry",))
def _same_source(m: Mutation) -> None:
    outcome = [each for each in m.recording.packets(SERVER, Kind.RETRY) if each[0].connection is m.connection]
    _, retry = m.pick(outcome, "no Retry")
    old, new = retry.scid, m.connection.original_dcid
    retry.scid, retry.changed = new, True
    for sender in (CLIENT, SERVER):
        for datagram, packet in m.packets(Kind.INITIAL, sender=sender):
            size = datagram.size
            if sender == CLIENT and packet.dcid == old:
                packet.dcid = new
            if sender == SERVER or packet.token:
                assert packet.keys is not None
                packet.keys, packet.changed = initial_keys(new, packet.keys.version)[sender], True
            edits.keep_size(datagram, size)
    m.set_parameter(P.RETRY_SCID, new, SERVER)


def put_token(m: Mutation, token: bytes) -> None:
    """Put a token into all Initial packets of the client."""
    m.need(not list(m.recording.packets(SERVER, Kind.RETRY)), "they have the token of a Retry")
    for datagram, packet in m.packets(Kind.INITIAL, sender=CLIENT):
        size = datagram.size
        packet.token, packet.token_size, packet.changed = token, 1, True
        edits.keep_size(datagram, size)


@mutant("rfc9000-8.1.3-token-left-out", CLIENT, name="given")
def _token_dropped(m: Mutation) -> None:
    put_token(m, m.rng.randbytes(32))
    initial = arrived(m, Kind.INITIAL)
    m.need(len(initial) > 1, "one Initial packet alone")
    datagram, packet = initial[-1]
    size = datagram.size
    packet.token, packet.token_size, packet.changed = b"", 1, True
    edits.keep_size(datagram, size)


@mutant("rfc9369-5-token-of-other-version", CLIENT, cases=("resumption",))
def _token_of_other_version(m: Mutation) -> None:
    first = m.recording.connections[0]
    m.need(first is not m.connection, "no earlier connection")
    earlier = Mutation(m.recording, first, CLIENT, m.rng)
    _, _, issued = m.pick(earlier.frames(F.NEW_TOKEN, sender=SERVER), "no NEW_TOKEN")
    put_token(m, issued.data)
    speak_first(m, V2, m.packets(Kind.INITIAL, sender=CLIENT))
    versions = (V2, V2, V1)
    m.set_parameter(P.VERSION_INFORMATION, b"".join(each.to_bytes(4) for each in versions), CLIENT)


@mutant(
    "rfc9369-4.1-version-after-retry",
    CLIENT,
    cases=("retry",),
    along={"rfc9369-4-no-version-information": "the client never sends it"},
)
def _other_version_after_retry(m: Mutation) -> None:
    later = [each for each in m.packets(Kind.INITIAL) if each[1].token]
    speak_first(m, V2, later)


def speak_first(m: Mutation, version: int, sent: list[Sent]) -> None:
    """Seal Initial packets of the client in another version, as if the server had then changed the version."""
    for _, packet in m.pick([sent], "no Initial packet"):
        keys = packet.keys
        assert keys is not None
        dcid = next(dcid for dcid, known in m.connection.initial if known[CLIENT].secret == keys.secret)
        packet.keys, packet.version = initial_keys(dcid, version)[CLIENT], version
        packet.first = packet.first & ~0x30 | (0x10 if version == V2 else 0)
        packet.changed = True
