"""Transport parameters and TLS messages (RFC 9000 §7, §18, RFC 9001 §4, §8, RFC 9368)."""

from collections.abc import Iterator
from typing import Any

from runner.decode.frames import varint
from runner.decode.schema import CLIENT, SERVER
from runner.judge.invariants.packets import shown
from runner.judge.side import HANDSHAKE, INITIAL, ONE_RTT, RETRY, Broken, Side

_CLIENT_HELLO, _SERVER_HELLO, _TICKET, _END_OF_EARLY_DATA, _EXTENSIONS = 1, 2, 4, 5, 8
_CERTIFICATE_REQUEST, _KEY_UPDATE = 13, 24
_SPACE_OF = {1: 0, 2: 0, 4: 2, 8: 1, 11: 1, 13: 1, 15: 1, 20: 1, 25: 1}
"""Type of a TLS message → packet number space in which it must be sent (RFC 9001 §4.1.3)."""
_CCM_8 = 0x1305
_TLS_1_3 = 0x0304
_INTEGERS = (0x01, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0E, 0x20)
_IDS = (0x00, 0x0F, 0x10)
_BOUNDS = (
    (0x03, "udp-payload-limit-low", 1200, 1 << 62),
    (0x0A, "ack-delay-exponent-high", 0, 20),
    (0x0B, "max-ack-delay-high", 0, (1 << 14) - 1),
    (0x0E, "active-id-limit-low", 2, 1 << 62),
    (0x08, "stream-limit-high", 0, 1 << 60),
    (0x09, "stream-limit-high", 0, 1 << 60),
)
"""Number of a transport parameter, rule, lowest and highest allowed value (RFC 9000 §18.2)."""
_LIMITS = (
    "active_connection_id_limit",
    "initial_max_data",
    "initial_max_stream_data_bidi_local",
    "initial_max_stream_data_bidi_remote",
    "initial_max_stream_data_uni",
    "initial_max_streams_bidi",
    "initial_max_streams_uni",
)


class _Hello:
    """The TLS message with an endpoint's transport parameters."""

    def __init__(self, side: Side) -> None:
        kind = _CLIENT_HELLO if side.is_client else _EXTENSIONS
        self.message: dict[str, Any] | None = side.message(kind, side.sender)
        self.packets: tuple[int, ...] = (int(self.message["packet"]),) if self.message else ()
        raw = self.message.get("parameters") if self.message else None
        self.list: list[tuple[int, bytes]] = [(int(code), bytes.fromhex(value)) for code, value in raw or ()]
        self.values = dict(self.list)

    def integer(self, code: int) -> int | None:
        """The value of an integer parameter; None when the parameter is absent or malformed."""
        value = self.values.get(code)
        return None if value is None else _integer(value)

    def broken(self, rule: str, actual: str) -> Broken:
        """A finding about this message."""
        return Broken(rule=rule, actual=actual, packets=self.packets)


def _integer(value: bytes) -> int | None:
    try:
        number, position = varint(value, 0)
    except IndexError:
        return None
    return number if position == len(value) else None


def parameters(side: Side) -> Iterator[Broken]:
    """An endpoint sends transport parameters with allowed values."""
    hello = _Hello(side)
    if hello.message is None:
        return
    if hello.message.get("parameters") is None:
        yield hello.broken("rfc9001-8.2-parameters-missing", "no extension quic_transport_parameters")
        return
    codes = [code for code, _ in hello.list]
    twice = [code for code in dict.fromkeys(codes) if codes.count(code) > 1]
    if twice:
        yield hello.broken(
            "rfc9000-7.4-parameter-twice", f"parameter 0x{twice[0]:x} is sent {codes.count(twice[0])} times"
        )
    for code, value in hello.list:
        if code == -1 or (code in _INTEGERS and _integer(value) is None) or (code in _IDS and len(value) > 20):
            yield hello.broken(
                "rfc9000-18-malformed-parameter",
                "the list of parameters is cut off" if code == -1 else f"parameter 0x{code:x} is malformed",
            )
    for code, rule, low, high in _BOUNDS:
        number = hello.integer(code)
        if number is not None and not low <= number <= high:
            yield hello.broken(f"rfc9000-18.2-{rule}", f"parameter 0x{code:x} is {number}")
    if hello.values.get(0x0C):
        yield hello.broken(
            "rfc9000-18.2-flag-with-value", f"disable_active_migration with a value of {len(hello.values[0x0C])} bytes"
        )
    if hello.values.get(0x2AB2):
        yield hello.broken(
            "rfc9287-3-parameter-with-value", f"grease_quic_bit with a value of {len(hello.values[0x2AB2])} bytes"
        )
    yield from _role_parameters(side, hello)
    yield from _version_information(side, hello)


def _role_parameters(side: Side, hello: _Hello) -> Iterator[Broken]:
    if side.is_client:
        forbidden = [code for code in (0x00, 0x02, 0x0D, 0x10) if code in hello.values]
        if forbidden:
            yield hello.broken(
                "rfc9000-18.2-server-parameter-from-client", f"the client sends parameter 0x{forbidden[0]:02x}"
            )
        return
    token, preferred = hello.values.get(0x02), hello.values.get(0x0D)
    if token is not None and len(token) != 16:
        yield hello.broken("rfc9000-18.2-reset-token-length", f"a stateless_reset_token of {len(token)} bytes")
    if preferred is not None:
        size = preferred[24] if len(preferred) > 24 else -1
        if size < 0 or (1 <= size <= 20 and len(preferred) != 41 + size):
            yield hello.broken("rfc9000-18-malformed-parameter", "parameter 0x0d (preferred_address) is malformed")
        elif not 1 <= size <= 20:
            yield hello.broken(
                "rfc9000-18.2-preferred-address-empty-id", f"preferred_address with a connection ID of {size} bytes"
            )
        if side.source == b"":
            yield hello.broken(
                "rfc9000-18.2-preferred-address-without-ids",
                "preferred_address of a server whose own connection ID is empty",
            )


def _version_information(side: Side, hello: _Hello) -> Iterator[Broken]:
    value = hello.values.get(0x11)
    packets = side.capture.packets
    if value is not None:
        if len(value) % 4 or not value:
            yield hello.broken("rfc9368-3-malformed", f"version_information of {len(value)} bytes")
            return
        listed = [int.from_bytes(value[at : at + 4]) for at in range(0, len(value), 4)]
        if 0 in listed:
            yield hello.broken("rfc9368-3-version-zero", "version_information with version 0")
        elif side.is_client:
            if listed[0] not in listed[1:]:
                yield hello.broken(
                    "rfc9368-3-chosen-not-available",
                    f"the Chosen Version 0x{listed[0]:08x} is not among the Available Versions",
                )
            first = side.of_type(INITIAL)[:1]
            if len(first) and int(packets["version"][first[0]]) != listed[0]:
                yield hello.broken(
                    "rfc9368-4-client-chosen-wrong",
                    f"the Chosen Version is 0x{listed[0]:08x}, the first Initial packet has version "
                    f"0x{int(packets['version'][first[0]]):08x}",
                )
        else:
            used = packets["version"][side.of_type(HANDSHAKE)]
            if len(used) and listed[0] not in used:
                yield hello.broken(
                    "rfc9368-4-server-chosen-wrong",
                    f"the Chosen Version is 0x{listed[0]:08x}, Handshake packets have version 0x{int(used[0]):08x}",
                )
    if side.is_client:
        return
    handshakes = side.of_type(HANDSHAKE)
    offered = side.peer_parameters.get("version_information")
    original = side.scope.row.value("original_version")
    if len(handshakes) and original and not side.scope.count(SERVER, "version_negotiation") and side.peer_parameters:
        available = {int(str(each), 16) for each in offered[1:]} if isinstance(offered, list) else set()
        version = int(packets["version"][handshakes[0]])
        if version != original and version not in available:
            yield Broken(
                rule="rfc9368-2.3-version-not-offered",
                actual=f"version 0x{version:08x} is not among the client's Available Versions",
                packets=shown(handshakes[:1]),
            )


def authenticated_ids(side: Side) -> Iterator[Broken]:
    """Connection IDs in transport parameters equal the connection IDs in packet headers (RFC 9000 §7.3)."""
    hello = _Hello(side)
    if hello.message is None or hello.message.get("parameters") is None or not side.whole:
        return
    row = side.scope.row
    if 0x0F not in hello.values:
        yield hello.broken("rfc9000-7.3-initial-source-missing", "initial_source_connection_id is missing")
    elif side.source is not None and hello.values[0x0F] not in side.ids("scid", side.of_type(INITIAL)):
        yield hello.broken(
            "rfc9000-7.3-initial-source-wrong",
            f"the parameter is {hello.values[0x0F].hex()}, the connection ID is {side.source.hex()}",
        )
    if side.is_client:
        return
    first = (row.client or {}).get("odcid")
    if 0x00 not in hello.values:
        yield hello.broken("rfc9000-7.3-original-destination-missing", "original_destination_connection_id is missing")
    elif first and hello.values[0x00] != first and not side.scope.count(SERVER, "version_negotiation"):
        yield hello.broken(
            "rfc9000-7.3-original-destination-wrong",
            f"the parameter is {hello.values[0x00].hex()}, the connection ID is {first.hex()}",
        )
    # When the Retry is lost, the server may accept the client's next Initial packet without a token.
    followed = side.ids("dcid", side.of_type(INITIAL, got=True))
    retries = side.ids("scid", side.of_type(RETRY))
    if retries and not set(retries) & set(followed):
        return
    if not retries:
        if 0x10 in hello.values:
            yield hello.broken(
                "rfc9000-7.3-retry-source-without-retry", f"retry_source_connection_id is {hello.values[0x10].hex()}"
            )
    elif 0x10 not in hello.values:
        yield hello.broken("rfc9000-7.3-retry-source-missing", "retry_source_connection_id is missing")
    elif hello.values[0x10] not in retries:
        yield hello.broken(
            "rfc9000-7.3-retry-source-wrong",
            f"the parameter is {hello.values[0x10].hex()}, the connection ID is {retries[0].hex()}",
        )


def tls(side: Side) -> Iterator[Broken]:
    """TLS messages follow the additional rules that QUIC has for them."""
    for message in side.messages:
        if message["sender"] != side.sender:
            continue
        kind, space, packets = message["type"], message["space"], (int(message["packet"]),)
        if kind == _KEY_UPDATE:
            yield Broken(rule="rfc9001-6-tls-key-update", actual="a KeyUpdate message", packets=packets)
        elif kind == _END_OF_EARLY_DATA:
            yield Broken(rule="rfc9001-8.3-end-of-early-data", actual="an EndOfEarlyData message", packets=packets)
        elif kind == _CERTIFICATE_REQUEST and space == 2:
            yield Broken(
                rule="rfc9001-4.4-late-client-authentication", actual="a CertificateRequest message", packets=packets
            )
        elif space != _SPACE_OF.get(kind, space):
            yield Broken(
                rule="rfc9001-4.1.3-message-at-wrong-level",
                actual=f"a TLS message of type {kind} in {('Initial', 'Handshake', '1-RTT')[space]} packets",
                packets=packets,
            )
        elif kind == _TICKET and message.get("early_data_size") not in (None, 0xFFFFFFFF):
            yield Broken(
                rule="rfc9001-4.6.1-early-data-size",
                actual=f"max_early_data_size {message['early_data_size']}",
                packets=packets,
            )
        elif kind == _SERVER_HELLO and message.get("suite") == _CCM_8:
            yield Broken(rule="rfc9001-5.3-suite-forbidden", actual="suite 0x1305 is negotiated", packets=packets)
    yield from _client_hello(side) if side.is_client else _alpn(side)


def _client_hello(side: Side) -> Iterator[Broken]:
    hello = side.message(_CLIENT_HELLO, CLIENT)
    if hello is None or "versions" not in hello:
        return
    packets = (int(hello["packet"]),)
    old = [version for version in hello["versions"] if version < _TLS_1_3 and version & 0x0F0F != 0x0A0A]
    if old:
        yield Broken(
            rule="rfc9001-4.2-old-tls-offered", actual=f"TLS version 0x{old[0]:04x} is offered", packets=packets
        )
    if hello["session_id"]:
        yield Broken(
            rule="rfc9001-8.4-session-id", actual=f"a legacy_session_id of {hello['session_id']} bytes", packets=packets
        )
    if not hello["alpn"]:
        yield Broken(rule="rfc9001-8.1-no-alpn-offered", actual="a ClientHello without ALPN", packets=packets)


def _alpn(side: Side) -> Iterator[Broken]:
    offer, answer = side.message(_CLIENT_HELLO, CLIENT), side.message(_EXTENSIONS, SERVER)
    if offer is None or answer is None or not offer.get("alpn") or "alpn" not in answer:
        return
    packets = (int(answer["packet"]),)
    if not answer["alpn"]:
        if len(side.of_type(ONE_RTT)):
            yield Broken(
                rule="rfc9001-8.1-no-alpn-selected",
                actual="EncryptedExtensions without ALPN, but the server sends 1-RTT packets",
                packets=packets,
            )
    elif answer["alpn"][0] not in offer["alpn"]:
        yield Broken(
            rule="rfc9001-8.1-alpn-not-offered",
            actual=f"{answer['alpn'][0]} is selected, but not offered",
            packets=packets,
        )


def early_limits(side: Side, earlier: list[Side]) -> Iterator[Broken]:
    """A server that accepts 0-RTT doesn't reduce the limits of earlier connections (RFC 9000 §7.4.1, RFC 9221 §3)."""
    if side.is_client or not side.row or not side.row["early_data_accepted"]:
        return
    before = [server.parameters for server in earlier if not server.is_client and server.parameters]
    hello = _Hello(side)
    for names, rule in (
        (_LIMITS, "rfc9000-7.4.1-early-limits-reduced"),
        (("max_datagram_frame_size",), "rfc9221-3-early-limit-reduced"),
    ):
        for name in names if before else ():
            now, least = _number(side.parameters, name), min(_number(each, name) for each in before)
            if now < least:
                yield hello.broken(rule, f"{name} falls from {least} to {now}")
                break


def _number(values: Any, name: str) -> int:
    value = values.get(name, 2 if name == "active_connection_id_limit" else 0)
    return value if isinstance(value, int) else 0


DETECTORS = (parameters, authenticated_ids, tls)
