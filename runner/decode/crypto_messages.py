"""TLS 1.3 handshake messages in CRYPTO frames (RFC 8446 §4), and transport parameters (RFC 9000 §18).

Certificates need a part of `cryptography` that takes long to import, so it is imported when a certificate is read."""

import hashlib
import ipaddress
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from heapq import heappop, heappush
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING

from runner.decode.columns import CLIENT, SERVER
from runner.decode.keys import Hash
from runner.decode.wire import varint

if TYPE_CHECKING:
    from cryptography import x509


class Message(IntEnum):
    """Handshake types (RFC 8446 appendix B.3, RFC 8879 §4)."""

    CLIENT_HELLO = 1
    SERVER_HELLO = 2
    NEW_SESSION_TICKET = 4
    ENCRYPTED_EXTENSIONS = 8
    CERTIFICATE = 11
    CERTIFICATE_VERIFY = 15
    FINISHED = 20
    COMPRESSED_CERTIFICATE = 25


_SERVER_NAME, _ALPN, _PRE_SHARED_KEY, _EARLY_DATA, _SUPPORTED_VERSIONS, _QUIC_TRANSPORT_PARAMETERS = (
    0, 16, 41, 42, 43, 57
)  # fmt: skip

_READ = frozenset((_SERVER_NAME, _ALPN, _PRE_SHARED_KEY, _EARLY_DATA, _SUPPORTED_VERSIONS, _QUIC_TRANSPORT_PARAMETERS))

_LEAST_BINDER = 32  # bytes (RFC 8446 §4.2.11)

# The random of a ServerHello that is a HelloRetryRequest (RFC 8446 §4.1.3).
_RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")

# No stack sends more handshake data on one level. Data at a larger, forged offset is not kept.
_MAX_BUFFERED = 1 << 20
_MAX_WAITING = 4096  # pieces behind a gap


class CryptoStream:
    """One direction of one encryption level: sorts CRYPTO data and splits it into handshake messages."""

    __slots__ = ("_assembled", "_consumed", "_starts", "_waiting")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again at offset 0, as after a Retry (RFC 9000 §17.2.5.2)."""
        self._assembled = bytearray()
        self._consumed = 0
        self._waiting: dict[int, bytes] = {}
        self._starts: list[int] = []
        """Heap of the offsets in `_waiting`."""

    def feed(self, offset: int, data: bytes) -> list[tuple[int, bytes]]:
        """Type and body of the messages that this frame completes. Repeated data and frames without data are
        ignored."""
        end = self._end
        if (
            not data
            or offset + len(data) <= end
            or offset > end + _MAX_BUFFERED
            or len(self._assembled) > _MAX_BUFFERED
        ):
            return []
        if offset > end:
            if offset not in self._waiting:
                if len(self._waiting) >= _MAX_WAITING:
                    return []
                heappush(self._starts, offset)
            if len(data) > len(self._waiting.get(offset, b"")):
                self._waiting[offset] = data
            return []
        self._assembled += data[end - offset :]
        while self._starts and self._starts[0] <= self._end:
            start = heappop(self._starts)
            self._assembled += self._waiting.pop(start)[self._end - start :]
        return self._messages()

    @property
    def _end(self) -> int:
        return self._consumed + len(self._assembled)

    def _messages(self) -> list[tuple[int, bytes]]:
        messages, assembled = [], self._assembled
        while len(assembled) >= 4:
            size = 4 + int.from_bytes(assembled[1:4])
            if len(assembled) < size:
                break
            messages.append((assembled[0], bytes(assembled[4:size])))
            del assembled[:size]
            self._consumed += size
        return messages


def _vector(data: bytes, position: int, size: int) -> tuple[bytes, int]:
    """The TLS vector at `position`, and the position after the vector. `size`: bytes of the vector's length field.
    Raises IndexError when the vector is cut off."""
    start = position + size
    end = start + int.from_bytes(data[position:start])
    if end > len(data):
        raise IndexError
    return data[start:end], end


@lru_cache(maxsize=8)
def _numbers(data: bytes) -> list[int]:
    """`data` as numbers of two bytes each. The result is cached, so callers must not change it. Raises IndexError when
    a byte is left over."""
    if len(data) % 2:
        raise IndexError
    return list(struct.unpack(f">{len(data) // 2}H", data))


@dataclass(slots=True)
class Hello:
    """The content of a ClientHello, ServerHello or EncryptedExtensions message."""

    random: bytes = b""
    suites: list[int] = field(default_factory=list)
    alpn: list[str] = field(default_factory=list)
    sni: str | None = None
    early_data: bool = False
    pre_shared_key: bytes | None = None
    extensions: list[int] = field(default_factory=list)
    """The types of all extensions, in order."""
    session_id_length: int = 0
    versions: list[int] = field(default_factory=list)
    """TLS versions that a ClientHello offers."""
    transport_parameters: bytes | None = None

    @property
    def is_retry_request(self) -> bool:
        """Whether this ServerHello is a HelloRetryRequest."""
        return self.random == _RETRY_RANDOM


@lru_cache(maxsize=4)
def parse_client_hello(body: bytes) -> Hello | None:
    """A ClientHello (RFC 8446 §4.1.2); None when it is malformed. The result is cached, so callers must not change
    it."""
    try:
        hello = Hello(random=body[2:34])
        session_id, position = _vector(body, 34, 1)
        hello.session_id_length = len(session_id)
        suites, position = _vector(body, position, 2)
        hello.suites = _numbers(suites)
        _, position = _vector(body, position, 1)
        _extensions(_vector(body, position, 2)[0], hello)
    except IndexError:
        return None
    return hello


def offered(body: bytes, kind: int) -> list[int]:
    """The two-byte numbers that a ClientHello lists in the extension `kind`, such as groups (RFC 8446 §4.2.7). Empty
    when it has no such list."""
    try:
        _, position = _vector(body, 34, 1)
        _, position = _vector(body, position, 2)
        _, position = _vector(body, position, 1)
        for found, value in _listed(_vector(body, position, 2)[0]):
            if found == kind:
                return _numbers(_vector(value, 0, 2)[0])
    except IndexError:
        pass
    return []


def _listed(extensions: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each extension. Raises IndexError when one is cut off."""
    position = 0
    while position < len(extensions):
        kind = int.from_bytes(extensions[position : position + 2])
        value, position = _vector(extensions, position + 2, 2)
        yield kind, value


def parse_server_hello(body: bytes) -> Hello | None:
    """A ServerHello (RFC 8446 §4.1.3); None when it is malformed."""
    try:
        hello = Hello(random=body[2:34])
        _, position = _vector(body, 34, 1)
        hello.suites = _numbers(body[position : position + 2])
        _extensions(_vector(body, position + 3, 2)[0], hello)
    except IndexError:
        return None
    return hello


def parse_encrypted_extensions(body: bytes) -> Hello | None:
    """EncryptedExtensions (RFC 8446 §4.3.1); None when the message is malformed."""
    hello = Hello()
    try:
        _extensions(_vector(body, 0, 2)[0], hello)
    except IndexError:
        return None
    return hello


def early_data_size(body: bytes) -> int | None:
    """max_early_data_size of a NewSessionTicket (RFC 8446 §4.6.1); None when it is absent or the message malformed."""
    try:
        _, position = _vector(body, 8, 1)
        _, position = _vector(body, position, 2)
        extensions = _listed(_vector(body, position, 2)[0])
        size = next((value for kind, value in extensions if kind == _EARLY_DATA), b"")
    except IndexError:
        return None
    return int.from_bytes(size[:4]) if len(size) >= 4 else None


def _extensions(data: bytes, hello: Hello) -> None:
    """Write the extensions of a message into `hello`. Raises IndexError when a length contradicts the data."""
    position, end = 0, len(data)
    while position < end:
        kind = data[position] << 8 | data[position + 1]
        start = position + 4
        position = start + (data[position + 2] << 8 | data[position + 3])
        if position > end:
            raise IndexError
        hello.extensions.append(kind)
        if kind not in _READ:
            continue
        value = data[start:position]
        if kind == _SERVER_NAME and value:
            hello.sni = _server_name(value)
        elif kind == _ALPN:
            hello.alpn.extend(_protocols(value))
        elif kind == _SUPPORTED_VERSIONS and len(value) > 2:  # a ServerHello has a single version
            hello.versions = _numbers(_vector(value, 0, 1)[0])
        elif kind == _EARLY_DATA:
            hello.early_data = True
        elif kind == _PRE_SHARED_KEY:
            hello.pre_shared_key = value
        elif kind == _QUIC_TRANSPORT_PARAMETERS:
            hello.transport_parameters = value


def _offered_keys(value: bytes) -> list[int]:
    """The numbers of identities and of binders in the pre_shared_key of a ClientHello (RFC 8446 §4.2.11). Binders of
    fewer than 32 bytes, and what can't be read, don't count."""
    counts = [0, 0]
    try:
        listed, at = _vector(value, 0, 2)
        for place, size, more in ((0, 2, 4), (1, 1, 0)):
            position = 0
            while position < len(listed):
                entry, position = _vector(listed, position, size)
                position += more  # obfuscated_ticket_age
                counts[place] += place == 0 or len(entry) >= _LEAST_BINDER
            if place == 0:
                listed, _ = _vector(value, at, 2)
    except IndexError:
        pass
    return counts


# These values are cached, because a flood of connections usually offers the same values. The caches are small, because
# a hostile value has up to 64 KiB.


@lru_cache(maxsize=8)
def _server_name(value: bytes) -> str:
    names, _ = _vector(value, 0, 2)
    return _vector(names, 1, 2)[0].decode("ascii", "replace")


@lru_cache(maxsize=8)
def _protocols(value: bytes) -> tuple[str, ...]:
    """The protocols of an ALPN extension (RFC 7301 §3.1)."""
    names, _ = _vector(value, 0, 2)
    protocols, at = [], 0
    while at < len(names):
        name, at = _vector(names, at, 1)
        protocols.append(name.decode("ascii", "backslashreplace"))
    return tuple(protocols)


# QUIC transport parameters (RFC 9000 §18) as plain values.

# json.dumps would create a new encoder for every call. The check for cycles is off, because no value contains itself.
to_json = json.JSONEncoder(sort_keys=True, check_circular=False).encode
Value = int | str | bool | list[str] | dict[str, str | int]


def _integer(value: bytes) -> Value:
    size = 1 << (value[0] >> 6)  # RFC 9000 §16
    if size == 1:
        return value[0]
    if size > len(value):
        raise IndexError
    return int.from_bytes(value[:size]) & ((1 << 8 * size - 2) - 1)


def _flag(_: bytes) -> Value:
    return True


def _preferred_address(value: bytes) -> Value:
    size = value[24]
    if len(value) < 41 + size:
        raise IndexError
    return {
        "ipv4": str(ipaddress.IPv4Address(value[:4])),
        "ipv4_port": int.from_bytes(value[4:6]),
        "ipv6": str(ipaddress.IPv6Address(value[6:22])),
        "ipv6_port": int.from_bytes(value[22:24]),
        "connection_id": value[25 : 25 + size].hex(),
        "stateless_reset_token": value[25 + size : 41 + size].hex(),
    }


def _version_information(value: bytes) -> Value:
    """The chosen version, then the available versions (RFC 9368 §3)."""
    return [f"0x{int.from_bytes(value[at : at + 4]):08x}" for at in range(0, len(value), 4)]


_PARAMETERS: dict[int, tuple[str, Callable[[bytes], Value]]] = {
    0x01: ("max_idle_timeout", _integer),
    0x03: ("max_udp_payload_size", _integer),
    0x04: ("initial_max_data", _integer),
    0x05: ("initial_max_stream_data_bidi_local", _integer),
    0x06: ("initial_max_stream_data_bidi_remote", _integer),
    0x07: ("initial_max_stream_data_uni", _integer),
    0x08: ("initial_max_streams_bidi", _integer),
    0x09: ("initial_max_streams_uni", _integer),
    0x0A: ("ack_delay_exponent", _integer),
    0x0B: ("max_ack_delay", _integer),
    0x0C: ("disable_active_migration", _flag),
    0x0D: ("preferred_address", _preferred_address),
    0x0E: ("active_connection_id_limit", _integer),
    0x11: ("version_information", _version_information),  # RFC 9368
    0x20: ("max_datagram_frame_size", _integer),  # RFC 9221
    0x1057: ("loss_bits", _integer),  # draft-ferrieuxhamchaoui-quic-lossbits
    0x2AB2: ("grease_quic_bit", _flag),  # RFC 9287
    0xFF04DE1B: ("min_ack_delay", _integer),  # draft-ietf-quic-ack-frequency
}


_IDENTIFIERS = {
    0x00: "original_destination_connection_id",
    0x02: "stateless_reset_token",
    0x0F: "initial_source_connection_id",
    0x10: "retry_source_connection_id",
}
"""Parameters whose value is text in hexadecimal."""

_LONGEST_INTEGER = 8  # bytes


@dataclass(frozen=True, slots=True)
class TransportParameters:
    """The transport parameters of one TLS message."""

    values: dict[str, Value]
    """Name → value: an integer, or a hexadecimal string for connection IDs and tokens. An unknown parameter has its
    number as name, `0x…`. Reading stops at a parameter that is cut off or contradicts its length. A malformed value is
    left out."""
    text: str
    """`values` as JSON, sorted by name."""
    sent: str
    """JSON: number and hexadecimal value of every parameter as it was sent, including repeated parameters. When the
    list is cut off, the last pair has the number -1."""


@lru_cache(maxsize=8)
def parse_transport_parameters(data: bytes) -> TransportParameters:
    """Read the body of the extension. The result is cached, so callers must not change it. Never raises."""
    values: dict[str, Value] = {}
    texts: dict[str, str] = {}
    sent: list[str] = []
    position, size = 0, len(data)
    while position < size:
        try:
            # Most numbers and lengths take one byte.
            if (code := data[position]) < 0x40:
                position += 1
            else:
                code, position = varint(data, position)
            if (length := data[position]) < 0x40:
                position += 1
            else:
                length, position = varint(data, position)
        except IndexError:
            sent.append('[-1, ""]')
            break
        value = data[position : position + length]
        position += length
        if position > size:
            sent.append('[-1, ""]')
            break
        read = _usual_parameter if length <= _LONGEST_INTEGER and code in _PARAMETERS else _parameter
        name, meaning, text, pair = read(code, value)
        sent.append(pair)
        if meaning is not None:
            values[name] = meaning
            texts[name] = text
    # A text begins with its name, so that sorting the texts sorts the names.
    return TransportParameters(values, f"{{{', '.join(sorted(texts.values()))}}}", f"[{', '.join(sent)}]")


def _parameter(code: int, value: bytes) -> tuple[str, Value | None, str, str]:
    """Name and value of a parameter, both as JSON, and the JSON of the pair in `TransportParameters.sent`. When the
    value is malformed, it is None."""
    text = value.hex()
    pair = f'[{code}, "{text}"]'
    if code not in _PARAMETERS:
        name = _IDENTIFIERS.get(code) or f"0x{code:x}"
        return name, text, f'"{name}": "{text}"', pair
    name, read = _PARAMETERS[code]
    try:
        meaning = read(value)
    except IndexError:
        return name, None, "", pair
    return name, meaning, f'"{name}": {to_json(meaning)}', pair


_usual_parameter = lru_cache(maxsize=1024)(_parameter)
"""`_parameter` with a cache: endpoints send the same few limits on every connection. The cache gets short values only,
and no identifiers, because these differ."""


# Writes the TLS messages of a connection as JSON, with the parts that rules need.
#
# The JSON encoder would take twice as long, and a flood of connections has a ClientHello in every packet.


def message_text(kind: int, body: bytes, *, sender: int, space: int, packet: int) -> str:
    """A TLS message as a JSON object, sorted by name. `packet`: the row of the packet that completed the message."""
    origin = f'"packet": {packet}, "sender": {sender}, "space": {space}'
    if kind in (Message.CLIENT_HELLO, Message.ENCRYPTED_EXTENSIONS):
        hello = parse_client_hello(body) if kind == Message.CLIENT_HELLO else parse_encrypted_extensions(body)
        if hello is not None:
            return _hello_text(kind, hello, sender=sender, space=space, packet=packet)
    elif kind == Message.SERVER_HELLO and (hello := parse_server_hello(body)) is not None:
        identity = "null" if hello.pre_shared_key is None else int.from_bytes(hello.pre_shared_key[:2])
        return f'{{"identity": {identity}, {origin}, "suite": {hello.suites[0]}, "type": {kind}}}'
    elif kind == Message.NEW_SESSION_TICKET:
        size = early_data_size(body)
        sizes = f'"early_data_size": {"null" if size is None else size}, "lifetime": {int.from_bytes(body[:4])}'
        return f'{{{sizes}, {origin}, "type": {kind}}}'
    return f'{{{origin}, "type": {kind}}}'


def _hello_text(kind: int, hello: Hello, *, sender: int, space: int, packet: int) -> str:
    data = hello.transport_parameters
    parameters = "null" if data is None else parse_transport_parameters(data).sent
    alpn = ", ".join(map(encode_basestring_ascii, hello.alpn))
    keys = "null" if hello.pre_shared_key is None else _offered_keys(hello.pre_shared_key)
    return (
        f'{{"alpn": [{alpn}], "extensions": {hello.extensions}, "keys": {keys}, "packet": {packet}, '
        f'"parameters": {parameters}, "sender": {sender}, '
        f'"session_id": {hello.session_id_length}, "space": {space}, "type": {kind}, "versions": {hello.versions}}}'
    )


# The proofs of a handshake (RFC 8446 §4.4): CertificateVerify and Finished cover all messages before them.

_MESSAGE_HASH = 254
_CONTEXTS = (b"TLS 1.3, client CertificateVerify", b"TLS 1.3, server CertificateVerify")
_ZLIB = 1  # RFC 8879 §7.3; `cryptography` and Python have no Brotli
_MOST_CERTIFICATES, _MOST_NAMES = 16, 32  # that are kept of a Certificate message
_LARGEST_CERTIFICATES = 1 << 18  # bytes of a Certificate message that is decompressed


@dataclass(frozen=True, slots=True)
class Kept:
    """A message of a handshake. `place`: its place in `Connection.messages`."""

    sender: int
    space: int
    kind: int
    body: bytes
    place: int
    packet: int

    def text(self, **proof: object) -> str:
        """The message as JSON, like `message_text`, with what is known about its content."""
        known = {"packet": self.packet, "sender": self.sender, "space": self.space, "type": self.kind}
        return to_json(known | proof)


def proofs(messages: Sequence[Kept], digest: Hash, secrets: Sequence[bytes | None]) -> Iterator[tuple[int, str]]:
    """Place and new text of the messages Certificate, CertificateVerify and Finished of a connection.

    `messages`: of both endpoints, each endpoint's in order, without a gap. `secrets`: the handshake traffic secrets of
    client and server. A CertificateVerify gets `right`, whether its signature is that of the
    certificate's key over the transcript, and `scheme`. A Finished gets `right`. `right` is null when it can't be
    known. A Certificate gets the fields of `_certificate_fields`.
    """
    transcript = digest.new(b"")
    known = _begin(messages, transcript, digest)
    leaves: dict[int, bytes] = {}
    flights = [[each for each in messages if (each.sender, each.space) == (sender, 1)] for sender in (SERVER, CLIENT)]
    for message in (message for flight in flights for message in flight):
        if message.kind in (Message.CERTIFICATE, Message.COMPRESSED_CERTIFICATE):
            chain = _chain(message)
            leaves.update({message.sender: chain[0]} if chain else {})
            yield message.place, message.text(**_certificate_fields(chain))
        elif message.kind == Message.CERTIFICATE_VERIFY:
            leaf, signed = leaves.get(message.sender), transcript.digest() if known else None
            right = None if leaf is None or signed is None else _is_signed(leaf, message, signed)
            yield message.place, message.text(right=right, scheme=int.from_bytes(message.body[:2]))
        elif message.kind == Message.FINISHED:
            secret, right = secrets[message.sender], None
            if secret is not None and known:
                key = digest.expand_label(secret, b"finished", digest.length)
                right = message.body == digest.hmac(key, transcript.digest())
            yield message.place, message.text(right=right)
        transcript.update(_with_head(message))


def _begin(messages: Sequence[Kept], transcript: "hashlib._Hash", digest: Hash) -> bool:
    """Add the messages in Initial packets to the transcript (RFC 8446 §4.4.1). Returns False when the transcript is
    unknown: messages are missing, or a handshake was begun again."""
    hellos, answers = (
        [each for each in messages if (each.sender, each.space, each.kind) == (sender, 0, kind)]
        for sender, kind in ((CLIENT, Message.CLIENT_HELLO), (SERVER, Message.SERVER_HELLO))
    )
    retries = [
        hello is not None and hello.is_retry_request
        for hello in map(parse_server_hello, (each.body for each in answers))
    ]
    if (len(hellos), retries) == (1, [False]):
        order = [hellos[0], answers[0]]
    elif (len(hellos), retries) == (2, [True, False]):
        first = digest.new(_with_head(hellos[0])).digest()
        transcript.update(bytes((_MESSAGE_HASH, 0, 0, len(first))) + first)
        order = [answers[0], hellos[1], answers[1]]
    else:
        return False
    for message in order:
        transcript.update(_with_head(message))
    return True


def _with_head(message: Kept) -> bytes:
    return bytes((message.kind,)) + len(message.body).to_bytes(3) + message.body


def _chain(message: Kept) -> list[bytes]:
    """The certificates of a Certificate or CompressedCertificate message, the leaf first; empty when they can't be
    read."""
    body = message.body
    try:
        if message.kind == Message.COMPRESSED_CERTIFICATE:
            if int.from_bytes(body[:2]) != _ZLIB:
                return []
            body = zlib.decompressobj().decompress(_vector(body, 5, 3)[0], _LARGEST_CERTIFICATES)
        _, position = _vector(body, 0, 1)
        entries, position = _vector(body, position, 3)[0], 0
        chain: list[bytes] = []
        while position < len(entries) and len(chain) < _MOST_CERTIFICATES:
            certificate, position = _vector(entries, position, 3)
            _, position = _vector(entries, position, 2)
            chain.append(certificate)
    except (IndexError, zlib.error):
        return []
    return chain


def _certificate_fields(chain: Sequence[bytes]) -> dict[str, object]:
    """What is known about a chain of certificates: `chain`, the SHA-256 of each certificate, and, when the
    certificates can be read: `begins` and `ends` of the leaf's validity in Unix seconds, `self_signed`, `linked`,
    whether each certificate is signed by the next, and `names` (DNS names and addresses of its subjectAltName)."""
    from cryptography import x509  # noqa: PLC0415

    fields: dict[str, object] = {"chain": [hashlib.sha256(each).hexdigest() for each in chain]}
    try:
        leaf, *others = read = [x509.load_der_x509_certificate(each) for each in chain]
        fields |= {
            "begins": int(leaf.not_valid_before_utc.timestamp()),
            "ends": int(leaf.not_valid_after_utc.timestamp()),
            "self_signed": _issued(leaf, leaf),
            "linked": all(_issued(*pair) for pair in zip(read, others, strict=False)),
            "names": (),
        }
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
        fields["names"] = shown[:_MOST_NAMES]
    except _unreadable():
        pass
    return fields


def _issued(certificate: "x509.Certificate", issuer: "x509.Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    wrong: tuple[type[Exception], ...] = (InvalidSignature, *_unreadable())
    try:
        certificate.verify_directly_issued_by(issuer)
    except wrong:
        return False
    return True


def _unreadable() -> tuple[type[Exception], ...]:
    """What `cryptography` raises for a certificate that it can't read."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415

    own = (x509.InvalidVersion, x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType)
    return (ValueError, TypeError, UnsupportedAlgorithm, *own)


def _is_signed(leaf: bytes, message: Kept, transcript: bytes) -> bool | None:
    """Whether a CertificateVerify has the signature of the leaf's key over the hash of the transcript (RFC 8446
    §4.4.3); None for schemes and keys that are not known."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa  # noqa: PLC0415

    scheme = int.from_bytes(message.body[:2])
    curves = {0x0403: (ec.SECP256R1, hashes.SHA256), 0x0503: (ec.SECP384R1, hashes.SHA384)}
    curves[0x0603] = (ec.SECP521R1, hashes.SHA512)
    sizes: tuple[hashes.HashAlgorithm, ...] = (hashes.SHA256(), hashes.SHA384(), hashes.SHA512())
    digests = dict(zip((4, 5, 6, 9, 10, 11), sizes * 2, strict=True))
    content = b" " * 64 + _CONTEXTS[message.sender] + b"\0" + transcript
    try:
        signature, key = _vector(message.body, 2, 2)[0], x509.load_der_x509_certificate(leaf).public_key()
        if scheme in curves:
            curve, algorithm = curves[scheme]
            if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, curve)):
                return False
            key.verify(signature, content, ec.ECDSA(algorithm()))
        elif scheme >> 8 == 8 and (chosen := digests.get(scheme & 0xFF)):
            if not isinstance(key, rsa.RSAPublicKey):
                return False
            pss = padding.PSS(mgf=padding.MGF1(chosen), salt_length=chosen.digest_size)
            key.verify(signature, content, pss, chosen)
        elif scheme in (0x0807, 0x0808):
            if not isinstance(key, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey)):
                return False
            key.verify(signature, content)
        else:
            return None
    except (InvalidSignature, IndexError):
        return False
    except _unreadable():
        return None
    return True
