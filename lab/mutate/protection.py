"""Packet protection of versions 1 and 2: keys, sealing, opening, and the Retry tag (RFC 9001 §5, RFC 9369 §3.3)."""

import hashlib
import hmac
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import ECB

V1, V2 = 1, 0x6B3343CF
AES_128, AES_256, CHACHA = 0x1301, 0x1302, 0x1303
SUITES = (AES_128, AES_256, CHACHA)
TAG = 16
_SALT = {
    V1: bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a"),
    V2: bytes.fromhex("0dede3def700a6db819381be6e269dcbf9bd2ed9"),
}
_RETRY = {
    V1: ("be0c690b9f66575a1d766b54e368c84e", "461599d35d632bf2239825bb"),
    V2: ("8fb4b01b56ac48e260fbcbcead7ccc92", "d86969bc2d7c6d9990efb04a"),
}


def _expand(secret: bytes, label: str, size: int, digest: str) -> bytes:
    """HKDF-Expand-Label (RFC 8446 §7.1) for results of at most two hash lengths."""
    name = b"tls13 " + label.encode()
    info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0"
    first = hmac.digest(secret, info + b"\1", digest)
    return (first + hmac.digest(secret, first + info + b"\2", digest))[:size]


@dataclass(frozen=True)
class Keys:
    """The keys of one secret. `masks`: the secret for header protection, which a key update doesn't change."""

    secret: bytes
    suite: int
    version: int
    masks: bytes = b""
    generation: int = 0

    @property
    def _digest(self) -> str:
        return "sha384" if self.suite == AES_256 else "sha256"

    def _derive(self, secret: bytes, what: str, size: int) -> bytes:
        return _expand(secret, f"quicv2 {what}" if self.version == V2 else f"quic {what}", size, self._digest)

    @property
    def _size(self) -> int:
        return 16 if self.suite == AES_128 else 32

    @cached_property
    def _aead(self) -> AESGCM | ChaCha20Poly1305:
        key = self._derive(self.secret, "key", self._size)
        return ChaCha20Poly1305(key) if self.suite == CHACHA else AESGCM(key)

    @cached_property
    def _iv(self) -> bytes:
        return self._derive(self.secret, "iv", 12)

    @cached_property
    def _mask_key(self) -> bytes:
        return self._derive(self.masks or self.secret, "hp", self._size)

    def _nonce(self, number: int) -> bytes:
        return bytes(a ^ b for a, b in zip(self._iv, number.to_bytes(12), strict=True))

    def next(self) -> "Keys":
        """The keys after an update (RFC 9001 §6.1)."""
        secret = self._derive(self.secret, "ku", len(self.secret))
        return Keys(secret, self.suite, self.version, self.masks or self.secret, self.generation + 1)

    def mask(self, sample: bytes) -> bytes:
        """The mask of five bytes for the header (RFC 9001 §5.4)."""
        if self.suite == CHACHA:
            return Cipher(ChaCha20(self._mask_key, sample), None).encryptor().update(bytes(5))
        return Cipher(AES(self._mask_key), ECB()).encryptor().update(sample)[:5]

    def seal(self, number: int, header: bytes, payload: bytes) -> bytes:
        """The encrypted payload with its tag."""
        return self._aead.encrypt(self._nonce(number), payload, header)

    def open(self, number: int, header: bytes, sealed: bytes) -> bytes | None:
        """The decrypted payload; None when it was not sealed with these keys."""
        try:
            return self._aead.decrypt(self._nonce(number), sealed, header)
        except InvalidTag:
            return None


def initial_keys(dcid: bytes, version: int) -> dict[str, Keys]:
    """Sender → keys of its Initial packets (RFC 9001 §5.2)."""
    secret = hmac.digest(_SALT[version], dcid, "sha256")
    return {role: Keys(_expand(secret, f"{role} in", 32, "sha256"), AES_128, version) for role in ("client", "server")}


def retry_tag(version: int, original: bytes, packet: bytes) -> bytes:
    """The integrity tag for a Retry packet that is given without its tag (RFC 9001 §5.8)."""
    key, nonce = (bytes.fromhex(text) for text in _RETRY[version])
    return AESGCM(key).encrypt(nonce, b"", bytes([len(original)]) + original + packet)


def unguessable(*parts: object) -> bytes:
    """32 bytes that differ for different parts and are the same in every run."""
    return hashlib.sha256(repr(parts).encode()).digest()
