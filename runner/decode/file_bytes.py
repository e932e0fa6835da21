"""Reads the bytes of a capture file, and numbers at many positions of the file at once."""

import hashlib
import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runner.decode.columns import Integers

Data = bytes | mmap.mmap
"""The bytes of a file. Slices of both types are bytes."""

_LARGE = 1 << 25  # bytes; larger files are mapped, smaller ones are read
_PIECE = 1 << 22  # bytes


def file_bytes(path: Path) -> Data:
    """The content of a file. Raises OSError."""
    with path.open("rb") as file:
        if path.stat().st_size < _LARGE:
            return file.read()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release(data: Data) -> None:
    """Release the memory of a mapped file, because the judge's memory limit counts it. Later reads load the pages
    again."""
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)


def sha256(data: Data) -> str:
    """SHA-256 of all bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with memoryview(data) as view:
        for at in range(0, len(view), _PIECE):
            digest.update(view[at : at + _PIECE])
            release(data)
    return digest.hexdigest()


class NumbersAt:
    """Reads unsigned big-endian numbers. Bytes beyond the end of the file count as 0."""

    def __init__(self, data: Data) -> None:
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        self._last = len(self._bytes) - 1

    def __call__(self, positions: Integers, size: int = 1) -> Integers:
        """The numbers of `size` bytes (at most 7) at these positions, which must not be negative."""
        numbers = np.zeros(len(positions), dtype=np.int64)
        if self._last < 0:
            return numbers
        inside = not len(positions) or int(positions.max()) + size - 1 <= self._last
        for offset in range(size):
            at = positions + offset
            numbers <<= 8
            if inside:
                numbers |= self._bytes[at]
            else:
                numbers |= np.where(at <= self._last, self._bytes[np.minimum(at, self._last)], 0)
        return numbers

    def rows(self, positions: Integers, size: int) -> npt.NDArray[np.uint8]:
        """The `size` bytes from each position on. They must lie within the file."""
        rows: npt.NDArray[np.uint8] = self._bytes[positions[:, None] + np.arange(size)]
        return rows
