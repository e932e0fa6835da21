"""Arithmetic on byte ranges [start, end): which bytes of a sequence of ranges are new, repeated, or repeated
needlessly.

Ranges are two int64 arrays of equal length, in order of time. Empty ranges cover nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Pieces:
    """The ranges cut at every border of any range: afterwards two pieces are either equal or disjoint."""

    ranges: int
    pieces: int
    owner: Ints
    """Per cut: the range from which it was cut; not decreasing."""
    piece: Ints
    """Per cut: its piece of the number line."""
    size: Ints
    """Per cut: bytes."""

    def sum(self, chosen: Bools) -> Ints:
        """Bytes per range of the `chosen` cuts."""
        return np.bincount(self.owner[chosen], weights=self.size[chosen], minlength=self.ranges).astype(np.int64)

    def first(self, chosen: Bools | None = None) -> Ints:
        """Per cut: the first range, of those in `chosen` cuts, that covers the same piece; `ranges` when none does."""
        owner, piece = (self.owner, self.piece) if chosen is None else (self.owner[chosen], self.piece[chosen])
        first = np.full(self.pieces, self.ranges, dtype=np.int64)
        first[piece[::-1]] = owner[
            ::-1
        ]  # for several values with one index, NumPy keeps the last one, which is the earliest range here
        return first[self.piece]


def cut(starts: Ints, ends: Ints) -> Pieces:
    """Cut the ranges at every border. O(n log n) for ranges that overlap little."""
    borders = np.unique(np.concatenate((starts, ends)))
    low, high = np.searchsorted(borders, starts), np.searchsorted(borders, ends)
    counts = np.maximum(high - low, 0)
    owner = np.repeat(np.arange(len(starts)), counts)
    piece = np.arange(len(owner)) + np.repeat(low - (np.cumsum(counts) - counts), counts)
    return Pieces(
        ranges=len(starts), pieces=max(len(borders) - 1, 0), owner=owner, piece=piece, size=np.diff(borders)[piece]
    )


def new_bytes(starts: Ints, ends: Ints) -> Ints:
    """Bytes of each range that no earlier range covers."""
    pieces = cut(starts, ends)
    return pieces.sum(pieces.first() == pieces.owner)


def resent_bytes(starts: Ints, ends: Ints, arrived: Bools) -> tuple[Ints, Ints]:
    """Bytes of each range that an earlier range covers, and how many of them needlessly.

    A repeated byte is needless, or spurious, when an earlier copy of it `arrived`, even if the sender couldn't know.
    """
    pieces = cut(starts, ends)
    repeated = pieces.first() < pieces.owner
    spurious = pieces.first(arrived[pieces.owner]) < pieces.owner
    return pieces.sum(repeated), pieces.sum(spurious)
