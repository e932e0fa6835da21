"""Rows of integers. They are added one by one, and later read as columns."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runner.decode.columns import Integers, no_integers


class IntegerRows:
    """Rows of `width` integers of 64 bits.

    New rows are appended to the flat list `tail`, because this is fast. `settle` moves them to an array, which needs a
    fifth of the memory.
    """

    __slots__ = ("_blocks", "_starts", "settled", "tail", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.settled = 0
        """Rows that are not in `tail`."""
        self.tail: list[int] = []
        self._blocks: list[Integers] = []
        self._starts: list[int] = []
        """Number of the first row of each block."""

    def __len__(self) -> int:
        return self.settled + len(self.tail) // self.width

    def settle(self) -> None:
        """Move the rows from `tail` to an array. Raises OverflowError when a number has more than 64 bits."""
        if self.tail:
            self.add(np.array(self.tail, dtype=np.int64).reshape(-1, self.width))

    def add(self, block: Integers) -> None:
        """Append many rows at once, and empty `tail`. Before the call, `tail` must be empty or contain the same
        rows."""
        self._starts.append(self.settled)
        self._blocks.append(block)
        self.settled += len(block)
        self.tail.clear()

    def __getitem__(self, place: tuple[int, int]) -> int:
        row, column = place
        if row >= self.settled:
            return self.tail[(row - self.settled) * self.width + column]
        block = bisect_right(self._starts, row) - 1
        return int(self._blocks[block][row - self._starts[block], column])

    def __setitem__(self, place: tuple[int, int], value: int) -> None:
        row, column = place
        if row >= self.settled:
            self.tail[(row - self.settled) * self.width + column] = value
        else:
            block = bisect_right(self._starts, row) - 1
            self._blocks[block][row - self._starts[block], column] = value

    def write(self, row: int, values: Sequence[int]) -> None:
        """Replace a whole row."""
        if row >= self.settled:
            at = (row - self.settled) * self.width
            self.tail[at : at + self.width] = values
        else:
            block = bisect_right(self._starts, row) - 1
            self._blocks[block][row - self._starts[block]] = values

    def column(self, number: int) -> Integers:
        """One column of all rows, as a new array."""
        self.settle()
        if not self._blocks:
            return no_integers()
        return np.concatenate([block[:, number] for block in self._blocks])

    def set_column(self, number: int, rows: Integers, values: Integers) -> None:
        """Set the values of one column in many rows."""
        self.settle()
        column = self.column(number)
        column[rows] = values
        for start, block in zip(self._starts, self._blocks, strict=True):
            block[:, number] = column[start : start + len(block)]

    def matrix(self) -> npt.NDArray[np.int64]:
        """All rows as one array."""
        return np.stack([self.column(number) for number in range(self.width)], axis=1)
