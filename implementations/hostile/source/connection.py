"""The state of a connection: packet number spaces with their keys, received streams, transport parameters."""

from dataclasses import dataclass, field
from typing import Any

from aioquic.quic.crypto import CryptoContext, CryptoPair, next_key_phase

PARAMETERS = {
    "original_destination_connection_id": 0x00,
    "max_idle_timeout": 0x01,
    "stateless_reset_token": 0x02,
    "max_udp_payload_size": 0x03,
    "initial_max_data": 0x04,
    "initial_max_stream_data_bidi_local": 0x05,
    "initial_max_stream_data_bidi_remote": 0x06,
    "initial_max_stream_data_uni": 0x07,
    "initial_max_streams_bidi": 0x08,
    "initial_max_streams_uni": 0x09,
    "ack_delay_exponent": 0x0A,
    "max_ack_delay": 0x0B,
    "disable_active_migration": 0x0C,
    "preferred_address": 0x0D,
    "active_connection_id_limit": 0x0E,
    "initial_source_connection_id": 0x0F,
    "retry_source_connection_id": 0x10,
    "version_information": 0x11,
    "max_datagram_frame_size": 0x20,
    "grease_quic_bit": 0x2AB2,
}
OPAQUE_PARAMETERS = {0x00, 0x02, 0x0C, 0x0D, 0x0F, 0x10, 0x11, 0x2AB2}  # parameters whose value is no integer


def update_keys(keys: CryptoContext) -> None:
    """Change to the next keys of a direction (RFC 9001 §6)."""
    following = next_key_phase(keys)
    keys.aead, keys.key_phase, keys.secret = following.aead, following.key_phase, following.secret


@dataclass(frozen=True)
class Identity:
    """What a server shows: its chain as PEM, its private key as PEM."""

    chain: bytes
    key: bytes


@dataclass
class Assembly:
    """A received byte stream."""

    data: bytearray = field(default_factory=bytearray)
    pieces: dict[int, bytes] = field(default_factory=dict)
    final: int | None = None

    def add(self, offset: int, data: bytes, *, fin: bool = False) -> bytes:
        """Store data. Returns the bytes that have become contiguous."""
        self.pieces[offset] = max(self.pieces.get(offset, b""), data, key=len)
        if fin:
            self.final = offset + len(data)
        before = len(self.data)
        for start in sorted(self.pieces):
            if start <= len(self.data):
                self.data += self.pieces.pop(start)[len(self.data) - start :]
        return bytes(self.data[before:])

    @property
    def complete(self) -> bool:
        return self.final is not None and len(self.data) >= self.final


@dataclass
class Space:
    """A packet number space, or the keys of 0-RTT."""

    keys: CryptoPair = field(default_factory=CryptoPair)
    number: int = 0
    received: set[int] = field(default_factory=set)
    owes_ack: bool = False
    queue: list[bytes] = field(default_factory=list)
    """Frames that wait to be sent, and sent again until they are acknowledged."""
    unacked: dict[int, list[bytes]] = field(default_factory=dict)
    sent: int = 0  # bytes of CRYPTO data
    old: tuple[Any, int] | None = None  # AEAD and key phase before the last update of ours
    crypto: Assembly = field(default_factory=Assembly)
