"""The rows of a capture while they are collected: flat lists of integers, which `tables` reshapes into columns."""

from runner.decode.frames import NONE, FrameRows

(
    DATAGRAM,
    INDEX,
    CONNECTION,
    SENDER,
    TYPE,
    VERSION,
    DCID,
    SCID,
    NUMBER,
    PHASE,
    GENERATION,
    LENGTH,
    DECRYPTED,
    TOKEN,
    SUITE,
    FIRST_BYTE,
    KEY_VERSION,
) = range(17)
PACKET_COLUMNS = 17


class Rows:
    """Packets and frames of a capture. Fields that are unknown hold NONE."""

    __slots__ = ("_cid_numbers", "cids", "frames", "packets", "supported_versions", "tokens")

    def __init__(self) -> None:
        self.packets: list[int] = []
        self.frames = FrameRows()
        self.cids: list[bytes] = []
        """Distinct connection IDs; the packets hold positions in this list."""
        self.supported_versions: dict[int, list[int]] = {}
        """Row of a Version Negotiation packet → the versions that it lists."""
        self.tokens: dict[int, bytes] = {}
        """Row of an Initial or Retry packet → its token, where it has one."""
        self._cid_numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.packets) // PACKET_COLUMNS

    def cid(self, cid: bytes) -> int:
        """The number of a connection ID."""
        number = self._cid_numbers.get(cid)
        if number is None:
            number = self._cid_numbers[cid] = len(self.cids)
            self.cids.append(cid)
        return number

    def add(self, datagram: int, index: int, kind: int, length: int) -> int:
        """A packet of which only the type and length are known so far; gives its row number."""
        row = len(self)
        self.packets += (
            datagram, index, NONE, NONE, kind, NONE, NONE, NONE, NONE, NONE, NONE, length, 0, NONE, NONE,
            NONE, NONE,
        )  # fmt: skip
        return row

    def set(self, row: int, column: int, value: int) -> None:
        """Fill in one field of a packet."""
        self.packets[row * PACKET_COLUMNS + column] = value

    def get(self, row: int, column: int) -> int:
        """One field of a packet."""
        return self.packets[row * PACKET_COLUMNS + column]
