"""Columns of the tables as NumPy arrays of integers.

Most captures have few rows; for such tables, Arrow's own functions take ten times as long. For every Python number,
pyarrow also looks for pandas; this takes 0.2 ms when pandas is not installed.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NULL = -1
"""Stands for null in arrays. No column of a trace has other negative values."""


def no_integers() -> Integers:
    """An array without rows."""
    return np.empty(0, dtype=np.int64)


def integers(column: pa.ChunkedArray) -> Integers:
    """A column of numbers; null becomes NULL."""
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(NULL)
    array: Integers = column.to_numpy().astype(np.int64, copy=False)
    return array


def words(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    """A column of strings as positions in a list of words, and this list. The position of null is NULL."""
    if not len(column):
        return np.empty(0, dtype=np.int64), []
    array = column.chunk(0) if column.num_chunks == 1 else column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    indices = array.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(NULL)
    return indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), array.dictionary.to_pylist()


def named(column: pa.ChunkedArray, word: str) -> Bools:
    """Per row of a column of strings: whether the string is `word`."""
    indices, known = words(column)
    matches: Bools = np.isin(indices, [index for index, each in enumerate(known) if each == word])
    return matches
