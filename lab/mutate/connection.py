"""The facts about a connection that are needed to open its packets and to edit them."""

from dataclasses import dataclass, field

from lab.mutate.frames import Frame
from lab.mutate.protection import Keys

Address = tuple[bytes, int]


@dataclass(eq=False)
class Connection:
    """One connection. Dictionaries by role have the values that this role sent or chose."""

    client: Address
    server: Address
    original_dcid: bytes
    initial: list[tuple[bytes, dict[str, Keys]]] = field(default_factory=list)
    """Connection ID → sender → keys, for each ID and version with which Initial packets may be sealed."""
    version: int = 1
    suite: int = 0
    client_random: bytes = b""
    secrets: dict[str, bytes] = field(default_factory=dict)
    keys: dict[tuple[str, str, int], list[Keys]] = field(default_factory=dict)
    """Sender, encryption level, QUIC version → keys, ordered by key generation."""
    cids: dict[str, list[bytes]] = field(default_factory=lambda: {"client": [], "server": []})
    """Role → connection IDs that it issued, in order."""
    largest: dict[tuple[str, str], int] = field(default_factory=dict)
    """Sender and packet number space → highest packet number so far."""
    crypto: dict[tuple[str, str], dict[int, bytes]] = field(default_factory=dict)
    """Sender and packet number space → offset → bytes of the CRYPTO stream."""

    def add_crypto(self, sender: str, space: str, frame: Frame) -> None:
        """Keep the bytes of a CRYPTO frame."""
        pieces = self.crypto.setdefault((sender, space), {})
        if len(frame.data) > len(pieces.get(frame.offset, b"")):
            pieces[frame.offset] = frame.data

    def crypto_stream(self, sender: str, space: str) -> bytes:
        """The CRYPTO stream up to its first gap."""
        whole = b""
        for offset, data in sorted(self.crypto.get((sender, space), {}).items()):
            if offset > len(whole):
                break
            whole += data[len(whole) - offset :]
        return whole
