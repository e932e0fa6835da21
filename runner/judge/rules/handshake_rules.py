"""Checks of the beginning of a connection (RFC 9000 §6 to §8, §17.2, §18, RFC 9001, RFC 9368)."""

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from runner.decode.columns import CLIENT, NULL, SERVER
from runner.decode.crypto_messages import offered
from runner.decode.wire import NAMES_OF_FRAMES, varint
from runner.judge.rules.packet_rules import broken, counted, shown
from runner.judge.rules.side import EARLY, HANDSHAKE, INITIAL, NEGOTIATION, ONE_RTT, RETRY, Broken, Side
from runner.model.facts import PacketPlace
from runner.model.rules import BY_ID, TRANSPORT, error_name
from runner.trace.establish import amplification
from runner.trace.handshake import no_secrets
from runner.trace.recording import Ints
from runner.units import format_count

# Transport parameters and TLS messages (RFC 9000 §7, §18, RFC 9001 §4, §8, RFC 9368).

_CLIENT_HELLO, _SERVER_HELLO, _TICKET, _END_OF_EARLY_DATA, _EXTENSIONS = 1, 2, 4, 5, 8
_CERTIFICATE_REQUEST, _CERTIFICATE_VERIFY, _FINISHED, _KEY_UPDATE = 13, 15, 20, 24
_TLS_ALERTS = range(0x100, 0x200)  # RFC 9001 §4.8
_SPACE_OF = {1: 0, 2: 0, 4: 2, 8: 1, 11: 1, 13: 1, 15: 1, 20: 1, 25: 1}
"""Type of a TLS message → packet number space in which it must be sent (RFC 9001 §4.1.3)."""
_CCM_8 = 0x1305
_KEYS, _EARLY_DATA, _KEY_MODES = 41, 42, 45  # extensions (RFC 8446 §4.2)
_LONGEST_LIFETIME = 604800  # s (RFC 8446 §4.6.1)
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
        return Broken(rule, actual, self.packets)


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
        actual = f"parameter 0x{twice[0]:x} is sent {format_count(codes.count(twice[0]), 'time')}"
        yield hello.broken("rfc9000-7.4-parameter-twice", actual)
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
        actual = f"disable_active_migration with a value of {len(hello.values[0x0C])} B"
        yield hello.broken("rfc9000-18.2-flag-with-value", actual)
    if hello.values.get(0x2AB2):
        actual = f"grease_quic_bit with a value of {len(hello.values[0x2AB2])} B"
        yield hello.broken("rfc9287-3-parameter-with-value", actual)
    yield from _role_parameters(side, hello)
    yield from _version_information(side, hello)


def _role_parameters(side: Side, hello: _Hello) -> Iterator[Broken]:
    if side.is_client:
        forbidden = [code for code in (0x00, 0x02, 0x0D, 0x10) if code in hello.values]
        if forbidden:
            actual = f"the client sends parameter 0x{forbidden[0]:02x}"
            yield hello.broken("rfc9000-18.2-server-parameter-from-client", actual)
        return
    token, preferred = hello.values.get(0x02), hello.values.get(0x0D)
    if token is not None and len(token) != 16:
        yield hello.broken("rfc9000-18.2-reset-token-length", f"a stateless_reset_token of {len(token)} B")
    if preferred is not None:
        size = preferred[24] if len(preferred) > 24 else -1
        if size < 0 or (1 <= size <= 20 and len(preferred) != 41 + size):
            yield hello.broken("rfc9000-18-malformed-parameter", "parameter 0x0d (preferred_address) is malformed")
        elif not 1 <= size <= 20:
            actual = f"preferred_address with a connection ID of {size} B"
            yield hello.broken("rfc9000-18.2-preferred-address-empty-id", actual)
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
            yield hello.broken("rfc9368-3-malformed", f"version_information of {len(value)} B")
            return
        listed = [int.from_bytes(value[at : at + 4]) for at in range(0, len(value), 4)]
        if 0 in listed:
            yield hello.broken("rfc9368-4-version-zero", "version_information with version 0")
        elif side.is_client:
            if listed[0] not in listed[1:]:
                actual = f"the Chosen Version 0x{listed[0]:08x} is not among the Available Versions"
                yield hello.broken("rfc9368-3-chosen-not-available", actual)
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
                actual = f"the Chosen Version is 0x{listed[0]:08x}, Handshake packets have version 0x{int(used[0]):08x}"
                yield hello.broken("rfc9368-4-server-chosen-wrong", actual)
    if side.is_client:
        return
    handshakes = side.of_type(HANDSHAKE)
    offered = side.peer_parameters.get("version_information")
    original = side.scope.row.value("original_version")
    if len(handshakes) and original and not side.scope.count(SERVER, "version_negotiation") and side.peer_parameters:
        available = {int(str(each), 16) for each in offered[1:]} if isinstance(offered, list) else set()
        version = int(packets["version"][handshakes[0]])
        if version != original and version not in available:
            actual = f"version 0x{version:08x} is not among the client's Available Versions"
            yield Broken("rfc9368-2.3-version-not-offered", actual, shown(handshakes[:1]))


def authenticated_ids(side: Side) -> Iterator[Broken]:
    """Connection IDs in transport parameters equal the connection IDs in packet headers (RFC 9000 §7.3)."""
    hello = _Hello(side)
    if hello.message is None or hello.message.get("parameters") is None or not side.whole:
        return
    row = side.scope.row
    if 0x0F not in hello.values:
        yield hello.broken("rfc9000-7.3-initial-source-missing", "initial_source_connection_id is missing")
    elif side.source is not None and hello.values[0x0F] not in side.ids("scid", side.of_type(INITIAL)):
        actual = f"the parameter is {hello.values[0x0F].hex()}, the connection ID is {side.source.hex()}"
        yield hello.broken("rfc9000-7.3-initial-source-wrong", actual)
    if side.is_client:
        return
    first = (row.client or {}).get("odcid")
    if 0x00 not in hello.values:
        yield hello.broken("rfc9000-7.3-original-destination-missing", "original_destination_connection_id is missing")
    elif first and hello.values[0x00] != first and not side.scope.count(SERVER, "version_negotiation"):
        actual = f"the parameter is {hello.values[0x00].hex()}, the connection ID is {first.hex()}"
        yield hello.broken("rfc9000-7.3-original-destination-wrong", actual)
    # When the Retry is lost, the server may accept the client's next Initial packet without a token.
    followed = side.ids("dcid", side.of_type(INITIAL, got=True))
    retries = side.ids("scid", side.of_type(RETRY))
    if retries and not set(retries) & set(followed):
        return
    if not retries:
        if 0x10 in hello.values:
            actual = f"retry_source_connection_id is {hello.values[0x10].hex()}"
            yield hello.broken("rfc9000-7.3-retry-source-without-retry", actual)
    elif 0x10 not in hello.values:
        yield hello.broken("rfc9000-7.3-retry-source-missing", "retry_source_connection_id is missing")
    elif hello.values[0x10] not in retries:
        actual = f"the parameter is {hello.values[0x10].hex()}, the connection ID is {retries[0].hex()}"
        yield hello.broken("rfc9000-7.3-retry-source-wrong", actual)


def tls(side: Side) -> Iterator[Broken]:
    """TLS messages follow the additional rules that QUIC has for them."""
    for message in side.messages:
        if message["sender"] != side.sender:
            continue
        kind, space, packets = message["type"], message["space"], (int(message["packet"]),)
        if kind == _KEY_UPDATE:
            yield Broken("rfc9001-6-tls-key-update", "a KeyUpdate message", packets)
        elif kind == _END_OF_EARLY_DATA:
            yield Broken("rfc9001-8.3-end-of-early-data", "an EndOfEarlyData message", packets)
        elif kind == _CERTIFICATE_REQUEST and space == 2:
            yield Broken("rfc9001-4.4-late-client-authentication", "a CertificateRequest message", packets)
        elif space != _SPACE_OF.get(kind, space):
            actual = f"a TLS message of type {kind} in {('Initial', 'Handshake', '1-RTT')[space]} packets"
            yield Broken("rfc9001-4.1.3-message-at-wrong-level", actual, packets)
        elif kind == _TICKET and message.get("early_data_size") not in (None, 0xFFFFFFFF):
            yield Broken("rfc9001-4.6.1-early-data-size", f"max_early_data_size {message['early_data_size']}", packets)
        elif kind == _TICKET and message.get("lifetime", 0) > _LONGEST_LIFETIME:
            yield Broken("rfc8446-4.6.1-lifetime-long", f"ticket_lifetime {message['lifetime']} s", packets)
        elif kind == _SERVER_HELLO and message.get("suite") == _CCM_8:
            yield Broken("rfc9001-5.3-suite-forbidden", "suite 0x1305 is negotiated", packets)
    yield from _client_hello(side) if side.is_client else _alpn(side)
    yield from _offered_keys(side) if side.is_client else _selected_key(side)
    yield from _proofs(side)


def _offered_keys(side: Side) -> Iterator[Broken]:
    """Pre-shared keys and early data of each ClientHello (RFC 8446 §4.2.9 to §4.2.11)."""
    for message in side.messages:
        extensions = message.get("extensions", ())
        if (message["type"], message["sender"]) != (_CLIENT_HELLO, CLIENT):
            continue
        wrong = {}
        if _KEYS in extensions:
            identities, binders = message["keys"]
            wrong = {
                "4.2.9-modes-missing": "" if _KEY_MODES in extensions else "no psk_key_exchange_modes",
                "4.2.11-key-not-last": "" if extensions[-1] == _KEYS else f"extension {extensions[-1]} follows",
                "4.2.11-binder-missing": ""
                if identities == binders > 0
                else f"{format_count(binders, 'binder')} for {identities}",
            }
        elif _EARLY_DATA in extensions:
            wrong = {"4.2.10-early-data-without-key": "early_data without pre_shared_key"}
        for rule, actual in wrong.items():
            if actual:
                yield Broken(f"rfc8446-{rule}", actual, (int(message["packet"]),))


def _selected_key(side: Side) -> Iterator[Broken]:
    """The server selects one of the offered pre-shared keys, and accepts early data only with the first."""
    offer: dict[str, Any] = {}
    selected: int | None = 0
    for message in side.messages:
        kind, packets = message["type"], (int(message["packet"]),)
        if kind == _CLIENT_HELLO and message["sender"] == CLIENT:
            offer = message
        if message["sender"] != SERVER or "extensions" not in offer:
            continue
        if kind == _SERVER_HELLO:
            selected, offered = message.get("identity"), (offer["keys"] or [0])[0]
            if selected is not None and selected >= offered:
                yield Broken(
                    "rfc8446-4.2.11-identity-not-offered", f"identity {selected} of {offered}, counted from 0", packets
                )
        elif kind == _EXTENSIONS and _EARLY_DATA in message.get("extensions", ()):
            wrong = "" if _EARLY_DATA in offer["extensions"] else ", which the client did not offer"
            wrong = wrong or ("" if selected == 0 else ", but not the first pre-shared key")
            if wrong:
                rule = "rfc8446-4.2.10-early-data-not-offered"
                yield Broken(rule, f"early data accepted{wrong}", packets)


def _proofs(side: Side) -> Iterator[Broken]:
    """CertificateVerify and Finished cover the messages before them (RFC 8446 §4.4). A peer that accepts a Finished has
    verified it; then the transcript is another one than the packets show, as with Encrypted Client Hello."""
    finished, verify = (side.message(kind, side.sender) for kind in (_FINISHED, _CERTIFICATE_VERIFY))
    refused = _refused(side)
    if verify is not None and verify.get("right") is False and (refused or (finished or {}).get("right")):
        actual = f"the signature (scheme 0x{verify['scheme']:04x}) does not fit the certificate and the handshake"
        yield Broken("rfc8446-4.4.3-signature-wrong", actual, (int(verify["packet"]),))
    elif finished is not None and finished.get("right") is False and refused:
        actual = "verify_data is not the HMAC of the handshake messages in the packets"
        yield Broken("rfc8446-4.4.4-finished-wrong", actual, (int(finished["packet"]),))


def _refused(side: Side) -> bool:
    """Whether the peer ended the handshake by a TLS alert after the endpoint's Finished. A client that sends neither
    its own Finished nor CONNECTION_CLOSE refuses it, too; a server may be silent because the client closed."""
    went_on = len(side.frames("handshake_done", got=True)) if side.is_client else side.finished(CLIENT) is not None
    codes = side.capture.frames["value"][side.frames("connection_close", "application_close", got=True)].tolist()
    return not went_on and all(code in _TLS_ALERTS for code in codes) and (bool(codes) or not side.is_client)


def _client_hello(side: Side) -> Iterator[Broken]:
    hello = side.message(_CLIENT_HELLO, CLIENT)
    if hello is None or "versions" not in hello:
        return
    packets = (int(hello["packet"]),)
    old = [version for version in hello["versions"] if version < _TLS_1_3 and version & 0x0F0F != 0x0A0A]
    if old:
        yield Broken("rfc9001-4.2-old-tls-offered", f"TLS version 0x{old[0]:04x} is offered", packets)
    if hello["session_id"]:
        yield Broken("rfc9001-8.4-session-id", f"a legacy_session_id of {hello['session_id']} B", packets)
    if not hello["alpn"]:
        yield Broken("rfc9001-8.1-no-alpn-offered", "a ClientHello without ALPN", packets)


def _alpn(side: Side) -> Iterator[Broken]:
    offer, answer = side.message(_CLIENT_HELLO, CLIENT), side.message(_EXTENSIONS, SERVER)
    if offer is None or answer is None or not offer.get("alpn") or "alpn" not in answer:
        return
    packets = (int(answer["packet"]),)
    if not answer["alpn"]:
        if len(side.of_type(ONE_RTT)):
            actual = "EncryptedExtensions without ALPN, but the server sends 1-RTT packets"
            yield Broken("rfc9001-8.1-no-alpn-selected", actual, packets)
    elif answer["alpn"][0] not in offer["alpn"]:
        yield Broken("rfc9001-8.1-alpn-not-offered", f"{answer['alpn'][0]} is selected, but not offered", packets)


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


HELLO_DETECTORS = (parameters, authenticated_ids, tls)


# Packets at the beginning of a connection: Retry, Version Negotiation, tokens, probes (RFC 9000 §6, §8, §17.2).

_FULL = 1200  # bytes of the smallest datagram that a server must answer (RFC 9000 §5.2.2)
_FLIGHT_NS = 100_000_000  # packets sent within this time are one flight
_BACKOFF = 1.5  # least ratio of a gap between probes to the gap before
_EXACT = 0.03  # relative difference within which a probe comes at the time of an exact backoff


def retry_from_server(side: Side) -> Iterator[Broken]:
    """The form of a Retry (RFC 9000 §17.2.5.1)."""
    retries = side.of_type(RETRY)
    if side.is_client or not len(retries):
        return
    packets = side.capture.packets
    (sources, source_ids), (targets, target_ids) = side.capture.ids("scid"), side.capture.ids("dcid")
    empty = retries[packets["token_length"][retries] == 0]
    yield from broken("rfc9000-17.2.5.2-retry-token-empty", empty, "a Retry without a token")
    if side.row and side.row["retry_integrity_ok"] is False:
        yield from broken("rfc9001-5.8-retry-tag-wrong", retries, "a Retry with a wrong integrity tag")
    initials = side.of_type(INITIAL, got=True)
    for retry in retries.tolist():
        before = initials[initials < retry]
        if not len(before):
            continue
        request = int(before[-1])
        source = source_ids[sources[retry]]
        if source == target_ids[targets[request]]:
            actual = f"both connection IDs are {source.hex()}"
            yield Broken("rfc9000-17.2.5.1-retry-source-is-destination", actual, (request, retry))
        target = target_ids[targets[retry]]
        if target != source_ids[sources[request]]:
            yield Broken(
                "rfc9000-17.2.5.1-retry-destination",
                f"destination connection ID {target.hex()} in the Retry, source connection ID "
                f"{source_ids[sources[request]].hex()} in the client's Initial packet",
                (request, retry),
            )
        if packets["version"][retry] != packets["version"][request]:
            yield Broken(
                "rfc9369-4.1-retry-version",
                f"version 0x{packets['version'][retry]:08x} in the Retry, "
                f"0x{packets['version'][request]:08x} in the client's Initial packet",
                (request, retry),
            )
        datagrams = len(np.unique(packets["datagram"][before]))
        if int((retries <= retry).sum()) > datagrams and side.sound:
            actual = f"more Retry packets than the {format_count(datagrams, 'datagram')} that the client had sent"
            yield Broken("rfc9000-17.2.5.1-retries-per-datagram", actual, shown(retries))
            return


def retry_at_client(side: Side) -> Iterator[Broken]:
    """The client's answer to a Retry (RFC 9000 §17.2.5.3)."""
    retries = side.of_type(RETRY, got=True)
    if not side.is_client or not len(retries):
        return
    packets = side.capture.packets
    retry = int(retries[0])
    source = side.ids("scid", retries[:1])[0]
    initials = side.of_type(INITIAL)
    before, after = initials[initials < retry], side.with_id("dcid", source, initials[initials > retry])
    theirs = side.sent_by_peer
    if not len(after) or (side.capture.type[theirs[theirs < retry]] != NEGOTIATION).any():
        return  # a client drops a Retry that follows another packet of the server
    token = packets.cell("token", retry)
    # The first packet to the new connection ID shows that the client has read the Retry.
    tokens = [row for row in initials[initials >= after[0]].tolist() if packets.cell("token", row) != token]
    if token is not None and tokens:
        actual = f"{format_count(len(tokens), 'Initial packet')} with another token or none"
        yield Broken("rfc9000-17.2.5.3-token-not-echoed", actual, (retry, *tokens[:4]))
    new_numbers, old_numbers = (packets["packet_number"][rows] for rows in (after, before))
    if len(before) and new_numbers.min() <= old_numbers.max():
        actual = f"packet number {new_numbers.min()} follows {old_numbers.max()}"
        yield Broken("rfc9000-17.2.5.3-number-reset", actual, (int(before[-1]), int(after[0])), pair=True)
    if packets["version"][after[0]] != packets["version"][retry]:
        yield Broken(
            "rfc9369-4.1-version-after-retry",
            f"version 0x{packets['version'][after[0]]:08x} in the Initial packet after the Retry, "
            f"0x{packets['version'][retry]:08x} in the Retry",
            (retry, int(after[0])),
        )
    old, new = crypto(side, before), crypto(side, after)
    differs = [at for at in old.keys() & new.keys() if old[at] != new[at]]
    if differs:
        actual = f"byte {min(differs)} of the CRYPTO data differs"
        yield Broken("rfc9000-17.2.5.3-hello-changed", actual, (int(before[0]), int(after[0])), pair=True)


def crypto(side: Side, packets: Ints) -> dict[int, int]:
    """Offset → byte of the CRYPTO data in these packets. Where packets differ, the byte of the first packet counts:
    after a HelloRetryRequest, a second ClientHello follows."""
    frames = side.capture.frames
    data: dict[int, int] = {}
    for row in side.frames("crypto"):
        if frames["packet"][row] in packets:
            for at, byte in enumerate(frames.cell("payload", int(row)) or b"", int(frames["offset"][row])):
                data.setdefault(at, byte)
    return data


def tokens(side: Side) -> Iterator[Broken]:
    """All Initial packets before a Retry carry the token of the first Initial packet (RFC 9000 §8.1.3). After Version
    Negotiation, a client leaves out a token of another version (RFC 9369 §5)."""
    if not side.is_client or not side.whole:
        return
    packets = side.capture.packets
    initials = side.of_type(INITIAL)
    retries = side.of_type(RETRY, got=True)
    initials = initials[initials < retries[0]] if len(retries) else initials
    if not len(initials):
        return
    if len(side.of_type(NEGOTIATION, got=True)):
        initials = initials[packets["version"][initials] == packets["version"][initials[0]]]
    token = packets.cell("token", int(initials[0]))
    other = [int(row) for row in initials if packets.cell("token", int(row)) != token]
    if token and other:
        actual = f"{format_count(len(other), 'Initial packet')} without the token of the first Initial packet"
        yield Broken("rfc9000-8.1.3-token-left-out", actual, (int(initials[0]), *other[:4]), pair=True)


def token_versions(side: Side, earlier: list[Side]) -> Iterator[Broken]:
    """A client uses a NEW_TOKEN token only with the QUIC version in which the server issued it (RFC 9369 §5)."""
    initials = side.of_type(INITIAL)
    if not side.is_client or not len(initials):
        return
    packets = side.capture.packets
    token = packets.cell("token", int(initials[0]))
    for client in earlier:
        frames = client.capture.frames
        if not client.is_client or not token:
            continue
        issued = {frames.cell("payload", int(row)) for row in client.frames("new_token", got=True)}
        version = client.scope.row.value("version")
        if token in issued and version != packets["version"][initials[0]]:
            yield Broken(
                "rfc9369-5-token-of-other-version",
                f"a token from a connection of version 0x{version:08x} in an Initial packet of version "
                f"0x{packets['version'][initials[0]]:08x}",
                shown(initials[:1]),
            )
            return


def amplified(side: Side) -> Iterator[Broken]:
    """The server keeps the anti-amplification limit of the handshake (RFC 9000 §8.1)."""
    if side.is_client or not side.whole or not (side.peer_read or no_secrets(side.scope.recording)):
        return
    limit = amplification(side.scope)
    if limit is None or not limit.excess:
        return
    packet: tuple[int, ...] = ()
    if limit.place is not None:
        records = side.capture.datagrams["record"][side.capture.packets["datagram"][side.sent]]
        packet = tuple(int(row) for row in side.sent[records == limit.place.record][:1])
    yield Broken(
        "rfc9000-8.1-amplification", f"{limit.sent} B were sent after {limit.received} B had been received", packet
    )


def negotiation(side: Side) -> Iterator[Broken]:
    """Only a server sends Version Negotiation, in response to a client's packet (RFC 9000 §6.1, §17.2.1)."""
    rows = side.sent[side.capture.type[side.sent] == NEGOTIATION]
    if side.is_client:
        yield from counted("rfc9000-6.1-negotiation-from-client", rows, "Version Negotiation packet")
        return
    capture = side.capture
    (sources, source_ids), (targets, target_ids) = capture.ids("scid"), capture.ids("dcid")
    requests = np.flatnonzero(
        (capture.packets["connection"] == side.scope.number)
        & (capture.packets["sender"] == 1 - side.sender)
        & (capture.packets["version"] != NULL)
    )
    for row in rows.tolist():
        before = requests[requests < row]
        if not len(before):
            continue
        source = [packet for packet in before.tolist() if source_ids[sources[packet]] == target_ids[targets[row]]]
        target = [packet for packet in before.tolist() if target_ids[targets[packet]] == source_ids[sources[row]]]
        if not source:
            yield Broken(
                "rfc9000-17.2.1-negotiation-destination",
                f"destination connection ID {target_ids[targets[row]].hex()}, "
                "but no packet of the client has this source connection ID",
                (int(before[-1]), row),
            )
        if not target:
            yield Broken(
                "rfc9000-17.2.1-negotiation-source",
                f"source connection ID {source_ids[sources[row]].hex()}, "
                "but no packet of the client has this destination connection ID",
                (int(before[-1]), row),
            )
        if source and target:
            length = capture.datagrams["payload_length"][capture.packets["datagram"][source]]
            if (length < _FULL).all():
                actual = f"Version Negotiation in response to a datagram of {int(length[-1])} B"
                yield Broken("rfc9000-5.2.2-small-datagram-answered", actual, (source[-1], row))


def backoff(side: Side) -> Iterator[Broken]:
    """The time between probes grows while no packet arrives (RFC 9002 §6.2.1)."""
    if not side.is_client or not side.whole:
        return
    initials, flights = _probes(side, side.of_type(INITIAL))
    gaps = np.diff(flights)
    short = np.flatnonzero(gaps[1:] < _BACKOFF * gaps[:-1])
    if len(short):
        at = int(short[0])
        yield Broken(
            "rfc9002-6.2.1-backoff",
            f"{gaps[at] / 1e9:.3f} s between the first two of three flights, then {gaps[at + 1] / 1e9:.3f} s",
            tuple(int(initials[side.time(initials) == flights[at + step]][0]) for step in range(3)),
        )


def _probes(side: Side, sent: Ints) -> tuple[Ints, Ints]:
    """The packets of `sent` before the first packet of the peer, and the times of their flights, in ns."""
    theirs = side.sent_by_peer
    sent = sent[sent < theirs[0]] if len(theirs) else sent
    times = np.unique(side.time(sent))
    return sent, times[np.concatenate(([True], np.diff(times) > _FLIGHT_NS))] if len(times) else times


def kept_backoff(side: Side) -> Iterator[Broken]:
    """The first probe after the client discarded its Initial keys doesn't continue the backoff of Initial packets (RFC
    9002 §6.2.2, RFC 9001 §4.9.1). With an RTT sample, the time of a probe is not known so well."""
    handshakes = side.of_type(HANDSHAKE)
    if not side.is_client or not side.sound or not len(handshakes):
        return
    eliciting = side.sent_read[side.capture.eliciting[side.sent_read]]
    _, flights = _probes(side, eliciting[side.capture.type[eliciting] == INITIAL])
    later = eliciting[eliciting >= handshakes[0]]
    pause = np.flatnonzero(np.diff(side.time(later)) > _FLIGHT_NS)[:1]
    acks = side.capture.ack_frames["packet"][side.ack_frames(got=True)]
    if len(flights) < 2 or not len(pause):
        return
    last, probe = (int(later[pause[0] + step]) for step in range(2))
    arrived = side.sent_by_peer
    if (acks < probe).any() or ((arrived > last) & (arrived < probe)).any():
        return
    first, waited = int(flights[1] - flights[0]), side.at(probe) - side.at(last)
    kept = first << len(flights) - 1
    if abs(waited - kept) < _EXACT * kept:
        yield Broken(
            "rfc9002-6.2.2-backoff-kept",
            f"the first Initial packets were {first / 1e9:.3f} s apart, and the first probe after them came "
            f"after {waited / 1e9:.3f} s",
            (last, probe),
            pair=True,
        )


BEGINNING_DETECTORS = (retry_from_server, retry_at_client, tokens, amplified, negotiation, backoff, kept_backoff)


# Closes whose error accuses the peer of something in the handshake that it did not do, as the packets show.

_CONTENT = tuple(set(NAMES_OF_FRAMES) - {"padding", "ping"})
_NOT_CHECKED = ("min_ack_delay", "loss_bits")  # transport parameters of drafts, whose values no rule checks
_RESERVED, _FIRST_RESERVED = 31, 27  # parameters that an endpoint must ignore (RFC 9000 §18.1)
_HANDSHAKE_FAILURE = 0x100 + 40  # RFC 8446 §6.2
_AES_128 = 0x1301  # TLS_AES_128_GCM_SHA256
_MANDATORY = {10: {0x0017}, 13: {0x0403, 0x0804}}
"""Extension of a ClientHello → what every server knows, like the suite (RFC 8446 §9.1): secp256r1, and the signatures
ecdsa_secp256r1_sha256 and rsa_pss_rsae_sha256."""


def unfounded(side: Side, peer: Side, broken: Set[str]) -> PacketPlace | None:
    """The packet with the endpoint's close, when its error accuses the peer wrongly; None when it has no close, or the
    packets don't show this. `broken`: ids of the rules that the peer broke in this connection."""
    closes = side.frames("connection_close")
    if not len(closes) or not peer.whole or not side.peer_read:
        return None
    frames = side.capture.frames
    packet, code = int(frames["packet"][closes[0]]), int(frames["value"][closes[0]])
    if any(BY_ID[rule].answer or error_name(code) in BY_ID[rule].seldom for rule in broken):
        return None
    if code == TRANSPORT["TRANSPORT_PARAMETER_ERROR"] and _has_right_parameters(side, peer, packet):
        return side.scope.place(side.capture, packet)
    if code == _HANDSHAKE_FAILURE and _offers_enough(side, peer, packet):
        return side.scope.place(side.capture, packet)
    if code == TRANSPORT["INVALID_TOKEN"] or not _has_only_pinged(side, peer, packet):
        return None
    return side.scope.place(side.capture, packet)


def _has_only_pinged(side: Side, peer: Side, packet: int) -> bool:
    """Whether the endpoint could read only PING and PADDING before this packet. Every packet may contain them (RFC 9000
    §12.4). False for a client that really began without CRYPTO data, which breaks a rule (§17.2.2)."""
    arrived = side.sent_by_peer[side.sent_by_peer < packet]
    read = side.got[side.got < packet]
    first = peer.of_type(INITIAL)[:1]
    begins = peer.capture.frames["packet"][peer.frames("crypto")]
    return (
        len(read) > 0
        and all(side.capture.type[each] in (INITIAL, EARLY, HANDSHAKE, ONE_RTT) for each in arrived)
        and not (side.capture.frames["packet"][side.frames(*_CONTENT, got=True)] < packet).any()
        and (not peer.is_client or (len(first) > 0 and first[0] in begins))
    )


def _has_right_parameters(side: Side, peer: Side, packet: int) -> bool:
    """Whether the peer's transport parameters had arrived, and the rules check each of them and compare them with the
    connection IDs of the peer's packets. They do this in part only after Version Negotiation or Retry, with several
    source connection IDs, and for a server whose limits a client remembers."""
    kind = _CLIENT_HELLO if peer.is_client else _EXTENSIONS
    hello, row = side.message(kind, peer.sender), side.row
    names = side.peer_parameters
    if hello is None or row is None or int(hello["packet"]) > packet or not names:
        return False
    unknown = [int(name, 16) for name in names if name.startswith("0x")]
    return (
        not any(name in names for name in _NOT_CHECKED)
        and all(number % _RESERVED == _FIRST_RESERVED for number in unknown)
        and not row["retry"]
        and not side.scope.count(SERVER, "version_negotiation")
        and (peer.is_client or not row["early_data_offered"])
        and len(peer.ids("scid", peer.of_type(INITIAL))) == 1
    )


def _offers_enough(side: Side, peer: Side, packet: int) -> bool:
    """Whether a ClientHello had arrived that offers all that TLS 1.3 makes mandatory. A server asks for another key
    share by HelloRetryRequest (RFC 8446 §4.1.1)."""
    hello, row = side.message(_CLIENT_HELLO, peer.sender), peer.row
    if not peer.is_client or hello is None or int(hello["packet"]) > packet or row is None:
        return False
    data = crypto(peer, peer.of_type(INITIAL))
    body = bytes(data.get(at, 0) for at in range(4, max(data, default=0) + 1))
    return (
        side.message(_SERVER_HELLO, side.sender) is None
        and bool(hello.get("alpn"))
        and _AES_128 in (row["offered_suites"] or ())
        and all(numbers <= set(offered(body, kind)) for kind, numbers in _MANDATORY.items())
    )
