"""Packet protection (RFC 9001 §5, RFC 9369 §3.3), and the key logs that contain its secrets."""

import codecs
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from runner.decode.columns import Data
from runner.errors import CaptureError
from runner.files import open_regular
from runner.units import MIB, format_count, format_size

VERSION_1 = 0x00000001
VERSION_2 = 0x6B3343CF
VERSIONS = (VERSION_1, VERSION_2)

TAG_LENGTH = 16
SAMPLE_LENGTH = 16
_IV_LENGTH = 12


@dataclass(frozen=True, slots=True, eq=False)
class Hash:
    """A hash function of TLS 1.3. An object is equal only to itself."""

    new: Callable[[bytes], "hashlib._Hash"]
    block_length: int
    """Bytes of a block."""
    length: int
    """Bytes of a digest."""

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """HMAC (RFC 2104) with a key of at most one block. Python's `hmac.digest` takes three times as long, and a
        flood of Initial packets needs five HMACs for each packet."""
        return self.hmacs(key, (message,))[0]

    def hmacs(self, key: bytes, messages: tuple[bytes, ...]) -> list[bytes]:
        """The HMACs of several messages with the same key."""
        padded = key.ljust(self.block_length, b"\0")
        inner, outer, new = padded.translate(_INNER_PAD), padded.translate(_OUTER_PAD), self.new
        return [new(outer + new(inner + message).digest()).digest() for message in messages]

    def expand_label(self, secret: bytes, label: bytes, length: int) -> bytes:
        """HKDF-Expand-Label with an empty context (RFC 8446 §7.1); `length` is at most one digest."""
        return self.hmac(secret, _label_info(label, length))[:length]


_INNER_PAD, _OUTER_PAD = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_ECB = modes.ECB()
_SHA256, _SHA384 = Hash(hashlib.sha256, 64, 32), Hash(hashlib.sha384, 128, 48)


@dataclass(frozen=True, slots=True, eq=False)
class Suite:
    """A TLS 1.3 cipher suite that QUIC uses. An object is equal only to itself."""

    code: int
    name: str
    key_length: int
    hash: Hash
    aead: type[AESGCM] | type[ChaCha20Poly1305]


AES_128 = Suite(0x1301, "TLS_AES_128_GCM_SHA256", 16, _SHA256, AESGCM)
AES_256 = Suite(0x1302, "TLS_AES_256_GCM_SHA384", 32, _SHA384, AESGCM)
CHACHA20 = Suite(0x1303, "TLS_CHACHA20_POLY1305_SHA256", 32, _SHA256, ChaCha20Poly1305)
SUITES = {suite.code: suite for suite in (AES_128, AES_256, CHACHA20)}


@dataclass(frozen=True, slots=True)
class _VersionConstants:
    initial_salt: bytes
    label_prefix: bytes
    retry_key: bytes
    retry_nonce: bytes


_CONSTANTS = {
    VERSION_1: _VersionConstants(  # RFC 9001 §5.2, §5.8
        initial_salt=bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a"),
        label_prefix=b"quic ",
        retry_key=bytes.fromhex("be0c690b9f66575a1d766b54e368c84e"),
        retry_nonce=bytes.fromhex("461599d35d632bf2239825bb"),
    ),
    VERSION_2: _VersionConstants(  # RFC 9369 §3.3
        initial_salt=bytes.fromhex("0dede3def700a6db819381be6e269dcbf9bd2ed9"),
        label_prefix=b"quicv2 ",
        retry_key=bytes.fromhex("8fb4b01b56ac48e260fbcbcead7ccc92"),
        retry_nonce=bytes.fromhex("d86969bc2d7c6d9990efb04a"),
    ),
}


@lru_cache(maxsize=32)
def _label_info(label: bytes, length: int) -> bytes:
    """The message that HKDF-Expand authenticates: HkdfLabel (RFC 8446 §7.1) and the number of the block."""
    full = b"tls13 " + label
    return length.to_bytes(2) + bytes((len(full),)) + full + b"\0\1"


@lru_cache(maxsize=8)
def _key_infos(version: int, key_length: int) -> tuple[bytes, bytes, bytes]:
    """The messages from which key, IV and header protection key are expanded (RFC 9001 §5.1)."""
    prefix = _CONSTANTS[version].label_prefix
    return (
        _label_info(prefix + b"key", key_length),
        _label_info(prefix + b"iv", _IV_LENGTH),
        _label_info(prefix + b"hp", key_length),
    )


class Protection:
    """The keys of one sender at one encryption level; for 1-RTT, of one key generation."""

    __slots__ = ("iv", "mask", "open", "secret", "suite", "version")

    def __init__(self, suite: Suite, version: int, secret: bytes, mask: Callable[[bytes], bytes] | None = None) -> None:
        self.suite = suite
        self.secret = secret
        self.version = version
        length = suite.key_length
        key, iv, header_key = suite.hash.hmacs(secret, _key_infos(version, length))
        self.iv = int.from_bytes(iv[:_IV_LENGTH])
        self.open: Callable[[bytes, bytes, bytes], bytes] = suite.aead(key[:length]).decrypt
        """(nonce, ciphertext with tag, associated data) → plaintext; InvalidTag when any of them is wrong."""
        self.mask: Callable[[bytes], bytes] = mask or _header_protection(suite, header_key[:length])
        """Sample of 16 bytes → header protection mask of at least 5 bytes."""

    def next_generation(self) -> "Protection":
        """The keys after a key update; the header protection key stays the same (RFC 9001 §6.1)."""
        label = _CONSTANTS[self.version].label_prefix + b"ku"
        secret = self.suite.hash.expand_label(self.secret, label, len(self.secret))
        return Protection(self.suite, self.version, secret, self.mask)

    def open_long(self, data: Data, start: int, at: int, end: int, largest: int) -> tuple[int, bytes, int] | None:
        """Packet number, payload and unprotected first byte of a long header packet at data[start:end].

        None when these keys don't fit the packet. `at`: position of the packet number. `largest`: the highest packet
        number of the space so far, or -1.
        """
        if end - at < 4 + SAMPLE_LENGTH:
            return None
        mask = self.mask(data[at + 4 : at + 20])
        first = data[start] ^ mask[0] & 0x0F
        size = (first & 3) + 1
        encoded = int.from_bytes(data[at : at + size]) ^ int.from_bytes(mask[1 : 1 + size])
        number = reconstruct(encoded, size, largest)
        header = bytes((first,)) + data[start + 1 : at] + encoded.to_bytes(size)
        try:
            return number, self.open((self.iv ^ number).to_bytes(12), data[at + size : end], header), first
        except InvalidTag:
            return None


class RecordProtection:
    """The keys of one sender for TLS 1.3 records (RFC 8446 §5.2, §7.3), between two key updates."""

    __slots__ = ("_decrypt", "_iv", "_secret", "_suite")

    def __init__(self, suite: Suite, secret: bytes) -> None:
        self._suite = suite
        self._secret = secret
        self._decrypt = suite.aead(suite.hash.expand_label(secret, b"key", suite.key_length)).decrypt
        self._iv = int.from_bytes(suite.hash.expand_label(secret, b"iv", 12))

    def open(self, sequence: int, ciphertext: bytes, header: bytes) -> bytes:
        """The plaintext with its content type and padding. Raises InvalidTag when these keys don't fit the record."""
        return self._decrypt((self._iv ^ sequence).to_bytes(12), ciphertext, header)

    def next_generation(self) -> "RecordProtection":
        """The keys after a KeyUpdate (RFC 8446 §7.2)."""
        secret = self._suite.hash.expand_label(self._secret, b"traffic upd", len(self._secret))
        return RecordProtection(self._suite, secret)


def _header_protection(suite: Suite, key: bytes) -> Callable[[bytes], bytes]:
    if suite is CHACHA20:

        def chacha20_mask(sample: bytes) -> bytes:
            # The sample contains block counter and nonce in the order that `cryptography` expects (RFC 9001 §5.4.4).
            return Cipher(algorithms.ChaCha20(key, sample), None).encryptor().update(bytes(5))

        return chacha20_mask
    return Cipher(algorithms.AES(key), _ECB).encryptor().update


def reconstruct(encoded: int, size: int, largest: int) -> int:
    """The full packet number of `encoded`, a number of `size` bytes (RFC 9000 appendix A.3). `largest`: the highest
    packet number so far, or -1."""
    expected = largest + 1
    window = 1 << 8 * size
    number = expected & -window | encoded
    if number <= expected - window // 2 and number < (1 << 62) - window:
        return number + window
    if number > expected + window // 2 and number >= window:
        return number - window
    return number


@lru_cache(maxsize=4096)
def initial_protection(version: int, dcid: bytes, sender: int) -> Protection:
    """Initial keys of the client (0) or the server (1) for the client's destination connection ID (RFC 9001 §5.2)."""
    secret = _SHA256.hmac(_CONSTANTS[version].initial_salt, dcid)
    label = b"server in" if sender else b"client in"
    return Protection(AES_128, version, _SHA256.expand_label(secret, label, 32))


def candidates(secrets: Iterable[bytes], version: int, suite: Suite | None) -> list[Protection]:
    """The possible keys for a key log's secrets of one label: with every suite of the right hash length and with both
    versions. The most likely keys come first."""
    return [protection for secret in secrets for protection in _candidates(secret, version, suite)]


@lru_cache(maxsize=256)
def _candidates(secret: bytes, version: int, suite: Suite | None) -> tuple[Protection, ...]:
    """`candidates` for one secret. They are cached, because both captures of a job need the same keys."""
    suites = [each for each in SUITES.values() if each.hash.length == len(secret)]
    suites.sort(key=lambda each: each is not suite)
    versions = sorted(VERSIONS, key=lambda each: each != version)
    return tuple(Protection(suite, version, secret) for version in versions for suite in suites)


def retry_tag_is_valid(version: int, odcid: bytes, packet: bytes) -> bool:
    """Whether the integrity tag of a Retry packet belongs to an Initial packet with the destination connection ID
    `odcid` (RFC 9001 §5.8)."""
    constants = _CONSTANTS[version]
    pseudo_packet = bytes((len(odcid),)) + odcid + packet[:-TAG_LENGTH]
    try:
        AESGCM(constants.retry_key).decrypt(constants.retry_nonce, packet[-TAG_LENGTH:], pseudo_packet)
    except InvalidTag:
        return False
    return True


# TLS key logs in the NSS format (draft-ietf-tls-keylogfile): the traffic secrets of each session.

HANDSHAKE_SECRETS = ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET")
APPLICATION_SECRETS = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")
EARLY_SECRET = "CLIENT_EARLY_TRAFFIC_SECRET"
_LABELS = frozenset((*HANDSHAKE_SECRETS, *APPLICATION_SECRETS, EARLY_SECRET))

MOST_SECRETS = 4  # most secrets of one label and session that are read from one key log

LARGEST_KEY_LOG = 1 << 20  # most bytes that are read of a key log; a connection has five lines of at most 200 bytes
LARGEST_FOREIGN = 256 * MIB  # most bytes of a key log that the user gives to `decode`: browsers append for months
_PIECE = 1 << 20  # bytes that are read at once
_LONGEST_LINE = 4096  # characters; a longer line is no secret
_ENCODINGS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

Session = dict[str, tuple[bytes, ...]]
"""Label of a secret → the secrets with this label, of 32 bytes (cipher suites with SHA-256) or 48 bytes (SHA-384).
There are several secrets when key logs disagree. They are all kept, so that an endpoint can't hide the secrets of its
peer with false secrets; only packets show which secret is right."""


@dataclass(slots=True)
class KeyLog:
    """What one key log contained, so that a user learns why packets stay unread."""

    name: str
    utf16: bool = False
    cut: int = 0
    """Bytes after which reading ended; 0 when the whole file was read."""
    lines: int = 0
    of_tls12: int = 0
    """Lines with a secret of TLS 1.2."""
    client_randoms: set[bytes] = field(default_factory=set)

    def remarks(self, client_randoms: Iterable[bytes | None]) -> Iterator[str]:
        """Sentences about what is unusual. `client_randoms`: of all connections in the capture."""
        if self.utf16:
            yield f"{self.name} is UTF-16 text, as PowerShell writes it; it was read as such."
        if self.cut:
            yield f"Only the first {format_size(self.cut)} of the key log {self.name} were read."
        if not self.lines:
            yield f"The key log {self.name} is empty."
        elif not self.client_randoms and self.of_tls12:
            yield f"The key log {self.name} has only secrets of TLS 1.2 (CLIENT_RANDOM). QUIC uses TLS 1.3."
        elif not self.client_randoms:
            yield (
                f"The key log {self.name} has no usable line. Expected: CLIENT_TRAFFIC_SECRET_0 (or another label of "
                "TLS 1.3), a client random and a secret, both in hexadecimal."
            )
        elif self.client_randoms.isdisjoint(filter(None, client_randoms)):
            sessions = format_count(len(self.client_randoms), "session")
            yield f"The key log {self.name} has secrets of {sessions}, but none of a connection in this capture."


def read_key_logs(
    paths: Iterable[Path], embedded: Iterable[bytes] = (), *, limit: int = LARGEST_KEY_LOG
) -> tuple[dict[bytes, Session], list[KeyLog]]:
    """Client random → session, merged from several key logs; and what each key log contained.

    Lines without a secret of QUIC are skipped. `limit`: bytes that are read of each key log.
    """
    sessions: dict[bytes, Session] = {}
    logs = []
    for path in paths:
        log = KeyLog(path.name)
        try:
            _merge(_pieces(path, limit, log), sessions, log)
        except OSError as error:
            raise CaptureError(f"{path} can't be read ({error.strerror}): give the path of a key log.") from error
        logs.append(log)
    for secrets in embedded:
        log = KeyLog("in the capture")
        text = secrets[: 2 * limit].decode("latin-1")
        _merge([text], sessions, log, most=2 * MOST_SECRETS)  # the secrets of both endpoints
        logs.append(log)
    return sessions, logs


def _pieces(path: Path, limit: int, log: KeyLog) -> Iterator[str]:
    """The text of a key log in pieces of whole lines. Bytes that are no text become other characters."""
    with os.fdopen(open_regular(path), "rb") as file:
        head = file.read(4)
        encoding = next((name for mark, name in _ENCODINGS if head.startswith(mark)), "latin-1")
        if encoding == "latin-1" and b"\0" in head[:2]:
            encoding = "utf-16-be" if head[0] == 0 else "utf-16-le"
        log.utf16 = encoding.startswith("utf-16")
        decoder, rest, left = codecs.getincrementaldecoder(encoding)("replace"), "", limit
        file.seek(0)
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            whole, newline, rest = (rest + decoder.decode(piece)).rpartition("\n")
            yield whole + newline
            rest = rest[:_LONGEST_LINE]
        yield rest
        log.cut = limit if file.read(1) else 0


def _merge(pieces: Iterable[str], sessions: dict[bytes, Session], log: KeyLog, *, most: int = MOST_SECRETS) -> None:
    counts: dict[tuple[bytes, str], int] = {}
    # Two writers of one file can leave a hole of NUL bytes between two lines.
    for line in (line for piece in pieces for line in piece.replace("\0", "\n").splitlines()):
        words = line.split()[-3:]  # a program's log has words before them
        log.lines += bool(words)
        if len(words) != 3 or words[0].removeprefix("QUIC_") not in _LABELS:  # the prefix of early drafts
            log.of_tls12 += len(words) == 3 and words[0] == "CLIENT_RANDOM"
            continue
        try:
            client_random, secret = bytes.fromhex(words[1]), bytes.fromhex(words[2])
        except ValueError:
            continue
        if len(client_random) != 32 or len(secret) not in (32, 48):
            continue
        label = words[0].removeprefix("QUIC_")
        log.client_randoms.add(client_random)
        session = sessions.setdefault(client_random, {})
        known = session.get(label, ())
        count = counts.get((client_random, label), 0)
        if secret not in known and count < most:
            session[label] = (*known, secret)
            counts[client_random, label] = count + 1
