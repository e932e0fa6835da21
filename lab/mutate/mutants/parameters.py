"""Mutants of transport parameters and TLS messages (RFC 9000 §7, §18; RFC 9001 §4, §8; RFC 9287, 9368)."""

from collections.abc import Callable

from lab.mutate import tls
from lab.mutate.frames import F, frame
from lab.mutate.mutation import Mutation
from lab.mutate.packets import Kind
from lab.mutate.recording import CLIENT, SERVER
from lab.mutate.registry import mutant
from lab.mutate.tls import Message, P
from lab.mutate.wire import varint

Value = Callable[[Mutation], bytes | int | None]


def _set(
    rule: str,
    kind: int,
    value: Value,
    *roles: str,
    cases: tuple[str, ...] = (),
    name: str = "",
    along: dict[str, str] | None = None,
) -> None:
    """Mutants that only give a parameter another value."""

    def change(m: Mutation) -> None:
        m.set_parameter(kind, value(m))

    mutant(rule, *roles, cases=cases, name=name or f"parameter-{kind:#x}", along=along)(change)


def _other_id(kind: int) -> Value:
    def value(m: Mutation) -> bytes:
        old = m.parameters().get(kind)
        m.need(old, "that parameter isn't there, or is empty")
        assert old is not None
        return bytes([old[0] ^ m.rng.randrange(1, 256)]) + old[1:]

    return value


_set("rfc9000-7.3-initial-source-missing", P.INITIAL_SCID, lambda _: None)
_set("rfc9000-7.3-initial-source-wrong", P.INITIAL_SCID, _other_id(P.INITIAL_SCID))
_set("rfc9000-7.3-original-destination-missing", P.ORIGINAL_DCID, lambda _: None, SERVER)
_set("rfc9000-7.3-original-destination-wrong", P.ORIGINAL_DCID, _other_id(P.ORIGINAL_DCID), SERVER)
_set("rfc9000-7.3-retry-source-missing", P.RETRY_SCID, lambda _: None, SERVER, cases=("retry",))
_set("rfc9000-7.3-retry-source-wrong", P.RETRY_SCID, _other_id(P.RETRY_SCID), SERVER, cases=("retry",))
_set("rfc9000-7.3-retry-source-without-retry", P.RETRY_SCID, lambda m: m.rng.randbytes(8), SERVER, cases=("handshake",))
_set("rfc9000-18-malformed-parameter", P.MAX_IDLE_TIMEOUT, lambda _: varint(30_000) + b"\0")
_set("rfc9000-18.2-udp-payload-limit-low", P.MAX_UDP_PAYLOAD, lambda m: m.rng.randrange(200, 1200))
_set("rfc9000-18.2-ack-delay-exponent-high", P.ACK_DELAY_EXPONENT, lambda m: m.rng.randrange(21, 63))
_set("rfc9000-18.2-max-ack-delay-high", P.MAX_ACK_DELAY, lambda m: m.rng.randrange(1 << 14, 1 << 20))
_set(
    "rfc9000-18.2-active-id-limit-low",
    P.CID_LIMIT,
    lambda m: m.rng.randrange(2),
    along={"rfc9000-5.1.1-too-many-ids": "the peer sent more"},
)
_set("rfc9000-18.2-stream-limit-high", P.MAX_STREAMS_BIDI, lambda _: (1 << 60) + 1, name="bidirectional")
_set("rfc9000-18.2-stream-limit-high", P.MAX_STREAMS_UNI, lambda _: (1 << 60) + 1, name="unidirectional")
_set("rfc9000-18.2-reset-token-length", P.RESET_TOKEN, lambda m: m.rng.randbytes(15), SERVER)
_set("rfc9000-18.2-flag-with-value", P.DISABLE_MIGRATION, lambda m: m.rng.randbytes(1))
_set("rfc9287-3-parameter-with-value", P.GREASE_QUIC_BIT, lambda m: m.rng.randbytes(1))
_set(
    "rfc9000-18.2-preferred-address-empty-id",
    P.PREFERRED_ADDRESS,
    lambda m: bytes([193, 167, 100, 101, 1, 187]) + bytes(18) + b"\0" + m.rng.randbytes(16),
    SERVER,
    cases=("handshake", "transfer"),
)
_SERVERS = "rfc9000-18.2-server-parameter-from-client"
_set(_SERVERS, P.RESET_TOKEN, lambda m: m.rng.randbytes(16), CLIENT, name="reset-token")
_set(_SERVERS, P.ORIGINAL_DCID, lambda m: m.rng.randbytes(8), CLIENT, name="original-dcid")
_set(_SERVERS, P.RETRY_SCID, lambda m: m.rng.randbytes(8), CLIENT, name="retry-scid")


@mutant("rfc9000-7.4-parameter-twice")
def _twice(m: Mutation) -> None:
    known = (P.INITIAL_SCID, P.MAX_DATA, P.MAX_IDLE_TIMEOUT, P.MAX_STREAM_DATA_UNI)
    kind = m.pick([kind for kind in m.parameters() if kind in known])
    m.edit_parameters(lambda listed: [*listed, *((each, data) for each, data in listed if each == kind)])


@mutant("rfc9000-7.4.1-early-limits-reduced", SERVER, cases=("zerortt",))
def _early_limits(m: Mutation) -> None:
    m.need(m.packets(Kind.ZERO_RTT, sender=CLIENT), "no 0-RTT")
    m.set_parameter(P.MAX_DATA, m.parameter(P.MAX_DATA, SERVER) - m.rng.randrange(1, 1000))


@mutant("rfc9221-3-early-limit-reduced", SERVER, cases=("zerortt",))
def _early_datagrams(m: Mutation) -> None:
    m.need(m.packets(Kind.ZERO_RTT, sender=CLIENT), "no 0-RTT")
    first = m.recording.connections[0]
    m.need(first is not m.connection, "no earlier connection")
    Mutation(m.recording, first, SERVER, m.rng).set_parameter(P.MAX_DATAGRAM, 1200)
    m.set_parameter(P.MAX_DATAGRAM, m.rng.randrange(100, 1200))


def _information(rule: str, value: Value, *roles: str, name: str = "", cases: tuple[str, ...] = ("v2",)) -> None:
    _set(
        rule,
        P.VERSION_INFORMATION,
        value,
        *roles,
        cases=cases,
        name=name or "version-information",
        along={"rfc9368-2.3-version-not-offered": "the offer can't be read any more"},
    )


def _versions(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4) for number in numbers)


_information("rfc9368-3-malformed", lambda _: _versions(1, 1) + b"\0")
_information("rfc9368-4-version-zero", lambda m: _versions(m.connection.version, m.connection.version, 1, 0), SERVER)
_information("rfc9368-4-version-zero", lambda m: m.parameters()[P.VERSION_INFORMATION] + _versions(0), CLIENT)
_information("rfc9368-3-chosen-not-available", lambda _: _versions(1, 0x6B3343CF), CLIENT)
_information("rfc9368-4-client-chosen-wrong", lambda _: _versions(0x6B3343CF, 0x6B3343CF, 1), CLIENT)
_information("rfc9368-4-server-chosen-wrong", lambda _: _versions(1, 0x6B3343CF, 1), SERVER)
_information("rfc9369-4-no-version-information", lambda _: None)


@mutant("rfc9368-2.3-version-not-offered", SERVER, cases=("v2",))
def _offer_withdrawn(m: Mutation) -> None:
    m.need(m.connection.version != 1, "it stays with version 1")
    m.set_parameter(P.VERSION_INFORMATION, _versions(1, 1), CLIENT)


@mutant(
    "rfc9001-8.2-parameters-missing",
    along={"rfc9000-5.1.1-sequence-skipped": "number 1 was the connection ID of the preferred address"},
)
def _no_parameters(m: Mutation) -> None:
    kind = tls.CLIENT_HELLO if m.role == CLIENT else tls.ENCRYPTED_EXTENSIONS
    m.edit_message(kind, lambda message: message.set(tls.TRANSPORT_PARAMETERS, None))


@mutant("rfc9001-8.1-no-alpn-offered", CLIENT, along={"rfc9001-8.1-alpn-not-offered": "nothing is offered any more"})
def _no_alpn_offered(m: Mutation) -> None:
    m.edit_message(tls.CLIENT_HELLO, lambda message: message.set(tls.ALPN, None))


@mutant("rfc9001-8.1-no-alpn-selected", SERVER)
def _no_alpn_selected(m: Mutation) -> None:
    m.edit_message(tls.ENCRYPTED_EXTENSIONS, lambda message: message.set(tls.ALPN, None))


@mutant("rfc9001-8.1-alpn-not-offered", SERVER)
def _other_alpn(m: Mutation) -> None:
    def change(message: Message) -> None:
        old = message.get(tls.ALPN)
        assert old is not None
        message.set(tls.ALPN, old[:3] + old[3:][::-1])

    m.edit_message(tls.ENCRYPTED_EXTENSIONS, change)


@mutant("rfc9001-4.2-old-tls-offered", CLIENT)
def _old_tls(m: Mutation) -> None:
    m.edit_message(tls.CLIENT_HELLO, lambda message: message.set(tls.SUPPORTED_VERSIONS, bytes.fromhex("0403040303")))


@mutant("rfc9001-8.4-session-id", CLIENT)
def _session_id(m: Mutation) -> None:
    session = m.rng.randbytes(32)
    m.edit_message(tls.CLIENT_HELLO, lambda message: tls.with_session_id(message, session))
    # The server echoes the session ID.
    m.edit_message(tls.SERVER_HELLO, lambda message: tls.with_session_id(message, session), SERVER)


@mutant("rfc9001-4.6.1-early-data-size", SERVER)
def _early_data_size(m: Mutation) -> None:
    size = m.rng.randrange(1, 0xFFFF_FFFF)
    m.edit_message(tls.NEW_SESSION_TICKET, lambda message: message.set(tls.EARLY_DATA, size.to_bytes(4)))


def _append(m: Mutation, message: Message) -> None:
    """Add a message after the last message of the role in 1-RTT packets."""
    end = len(m.connection.crypto_stream(m.role, "application"))
    m.send(frame(F.CRYPTO, message.encode(), offset=end))


@mutant("rfc9001-6-tls-key-update")
def _tls_key_update(m: Mutation) -> None:
    _append(m, Message(tls.KEY_UPDATE, bytes([m.rng.randrange(2)])))


@mutant("rfc9001-4.4-late-client-authentication", SERVER)
def _late_authentication(m: Mutation) -> None:
    context = m.rng.randbytes(4)
    signatures = bytes.fromhex("000d0004000204030000")[:8]
    body = bytes([4]) + context + len(signatures).to_bytes(2) + signatures
    _append(m, Message(tls.CERTIFICATE_REQUEST, body))


@mutant("rfc9001-8.3-end-of-early-data", CLIENT, cases=("zerortt",))
def _end_of_early_data(m: Mutation) -> None:
    m.need(m.packets(Kind.ZERO_RTT), "no 0-RTT")
    end = len(m.connection.crypto_stream(CLIENT, "handshake"))
    message = Message(tls.END_OF_EARLY_DATA, b"").encode()
    m.add_to(m.pick(m.packets(Kind.HANDSHAKE)), frame(F.CRYPTO, message, offset=end))


@mutant("rfc9001-4.1.3-message-at-wrong-level")
def _wrong_level(m: Mutation) -> None:
    end = len(m.connection.crypto_stream(m.role, "application"))
    m.send(frame(F.CRYPTO, bytes([20, 0, 0, 32]) + m.rng.randbytes(32), offset=end))  # Finished belongs to Handshake


@mutant("rfc9001-5.3-suite-forbidden", SERVER)
def _suite(m: Mutation) -> None:
    def change(message: Message) -> None:
        at = 35 + message.before[34]
        message.before = message.before[:at] + bytes.fromhex("1305") + message.before[at + 2 :]

    m.edit_message(tls.SERVER_HELLO, change, SERVER)
