"""Arithmetic on byte ranges [start, end): finds bytes of a sequence of ranges that are new, repeated, or repeated
needlessly.

Ranges are given as two int64 arrays of equal length, ordered by time. Empty ranges cover nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Pieces:
    """The ranges after all of them were cut at the borders of all ranges. Two pieces are either equal or disjoint."""

    ranges: int
    pieces: int
    owner: Ints
    """For each cut: number of the range from which it was cut. These numbers never decrease."""
    piece: Ints
    """For each cut: number of its piece of the number line."""
    size: Ints
    """For each cut: its size in bytes."""

    def sum(self, chosen: Bools) -> Ints:
        """Per range: the bytes of its `chosen` cuts."""
        return np.bincount(self.owner[chosen], weights=self.size[chosen], minlength=self.ranges).astype(np.int64)

    def first(self, chosen: Bools | None = None) -> Ints:
        """Per cut: the first range that covers the same piece; `ranges` when no range does. With `chosen`, only ranges
        of these cuts count."""
        owner, piece = (self.owner, self.piece) if chosen is None else (self.owner[chosen], self.piece[chosen])
        first = np.full(self.pieces, self.ranges, dtype=np.int64)
        # For a repeated index, NumPy keeps the last value. In reversed order, this is the earliest range.
        first[piece[::-1]] = owner[::-1]
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
    """Per range: the bytes that an earlier range covers, and the bytes that were repeated needlessly.

    A repeated byte is needless (spurious) when an earlier copy arrived, even if the sender couldn't know this.
    `arrived`: whether each range arrived.
    """
    pieces = cut(starts, ends)
    repeated = pieces.first() < pieces.owner
    spurious = pieces.first(arrived[pieces.owner]) < pieces.owner
    return pieces.sum(repeated), pieces.sum(spurious)
