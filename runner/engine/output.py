"""A container's output, read while it runs. Its beginning and its end are kept, and all bytes are counted."""

from collections import deque

HEAD = 512 * 1024  # bytes kept from the beginning
TAIL = 512 * 1024  # bytes kept from the end


class Output:
    """Takes output as bytes and returns it as text. Not thread-safe: callers that share an object need a lock."""

    def __init__(self) -> None:
        self.total = 0  # bytes that were printed
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def feed(self, data: bytes) -> None:
        """Add output."""
        self.total += len(data)
        room = HEAD - len(self._head)
        self._head += data[:room]
        if len(data) > room:
            self._tail.append(data[room:])
            self._tail_size += len(data) - room
            while self._tail_size - len(self._tail[0]) >= TAIL:
                self._tail_size -= len(self._tail.popleft())

    @property
    def left_out(self) -> int:
        """Bytes between the beginning and the end that are not kept."""
        return self.total - len(self._head) - self._tail_size

    def content(self) -> bytes:
        """The kept output, with a line in place of the part that is left out."""
        gap = f"\n[bentpipe: {self.left_out} bytes left out]\n".encode() if self.left_out else b""
        return bytes(self._head) + gap + b"".join(self._tail)

    def text(self) -> str:
        """`content` as text; bytes that aren't UTF-8 are replaced."""
        return self.content().decode(errors="replace")

    def last_lines(self, count: int) -> str:
        """The last `count` lines."""
        return "\n".join(self.text().splitlines()[-count:])
