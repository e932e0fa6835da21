"""Integers of variable length, and a reader of bytes (RFC 9000 §16)."""


def varint(value: int, size: int = 0) -> bytes:
    """The encoding of `value` in `size` bytes (1, 2, 4, 8), or in as few bytes as possible."""
    if not size:
        size = 1 if value < 1 << 6 else 2 if value < 1 << 14 else 4 if value < 1 << 30 else 8
    prefix = {1: 0, 2: 1, 4: 2, 8: 3}[size]
    return (value | prefix << (8 * size - 2)).to_bytes(size)


class Reader:
    """Reads bytes from the front. Raises IndexError when there are too few bytes."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def left(self) -> int:
        """The number of bytes that were not read yet."""
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.left:
            raise IndexError(f"{size} bytes are wanted, {self.left} are left")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, size: int) -> int:
        """The next `size` bytes as an integer."""
        return int.from_bytes(self.take(size))

    def varint(self) -> int:
        """The next integer of variable length."""
        first = self.number(1)
        size = 1 << (first >> 6)
        return (first & 0x3F) << 8 * (size - 1) | self.number(size - 1)

    def block(self, size: int = 0) -> bytes:
        """The next bytes, whose length comes before them. The length has `size` bytes, or is an integer of variable
        length."""
        return self.take(self.number(size) if size else self.varint())
