"""The rows of a capture while it is read. `tables` converts them to columns."""

from runner.decode.frames import NONE, FrameRows
from runner.decode.integer_rows import IntegerRows

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
_NONE = (NONE,) * 4


class Rows:
    """Packets and frames of a capture. Unknown fields have the value NONE."""

    __slots__ = ("_cid_numbers", "cids", "frames", "packets", "supported_versions", "tokens")

    def __init__(self) -> None:
        self.packets = IntegerRows(PACKET_COLUMNS)
        self.frames = FrameRows()
        self.cids: list[bytes] = []
        """Distinct connection IDs; the packets hold positions in this list."""
        self.supported_versions: dict[int, list[int]] = {}
        """Row of a Version Negotiation packet → the versions that it lists."""
        self.tokens: dict[int, bytes] = {}
        """Row of an Initial or Retry packet → its token, where it has one."""
        self._cid_numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.packets)

    def settle(self) -> None:
        """Move the rows so far to arrays, which need less memory."""
        self.packets.settle()
        self.frames.settle()

    def cid(self, cid: bytes) -> int:
        """The position of a connection ID in `cids`. A new ID is appended."""
        number = self._cid_numbers.get(cid)
        if number is None:
            number = self._cid_numbers[cid] = len(self.cids)
            self.cids.append(cid)
        return number

    def add(self, datagram: int, index: int, kind: int, length: int, header: tuple[int, int, int, int] = _NONE) -> int:
        """Add a packet that is not decrypted yet, and return its row number. `header`: version, destination and source
        connection ID, token length."""
        row = len(self.packets)
        version, dcid, scid, token = header
        self.packets.tail += (
            datagram, index, NONE, NONE, kind, version, dcid, scid, NONE, NONE, NONE, length, 0, token, NONE,
            NONE, NONE,
        )  # fmt: skip
        return row

    def set(self, row: int, column: int, value: int) -> None:
        """Fill in one field of a packet."""
        self.packets[row, column] = value

    def fill(self, row: int, connection: int, sender: int, kind: int) -> None:
        """Fill in connection, sender and type of a packet without packet protection."""
        for column, value in ((CONNECTION, connection), (SENDER, sender), (DECRYPTED, 1), (TYPE, kind)):
            self.packets[row, column] = value

    def get(self, row: int, column: int) -> int:
        """One field of a packet."""
        return self.packets[row, column]
