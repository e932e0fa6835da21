"""Byte ranges against the obvious way to count bytes: one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runner.trace.recording import new_bytes, resent_bytes

_RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25), st.booleans()), max_size=40)


def _arrays(ranges: list[tuple[int, int, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts = np.array([start for start, _, _ in ranges], dtype=np.int64)
    lengths = np.array([length for _, length, _ in ranges], dtype=np.int64)
    return starts, starts + lengths, np.array([arrived for _, _, arrived in ranges], dtype=bool)


@given(_RANGES)
def test_new_and_resent_bytes_equal_those_counted_one_by_one(ranges: list[tuple[int, int, bool]]) -> None:
    starts, ends, arrived = _arrays(ranges)
    sent: set[int] = set()
    received: set[int] = set()
    new, repeated, spurious = [], [], []
    for start, length, came in ranges:
        covered = set(range(start, start + length))
        new.append(len(covered - sent))
        repeated.append(len(covered & sent))
        spurious.append(len(covered & received))
        sent |= covered
        received |= covered if came else set()
    assert new_bytes(starts, ends).tolist() == new
    found_repeated, found_spurious = resent_bytes(starts, ends, arrived)
    assert found_repeated.tolist() == repeated
    assert found_spurious.tolist() == spurious


@given(_RANGES, st.integers(0, 1 << 43))
def test_counts_do_not_depend_on_where_the_ranges_lie(ranges: list[tuple[int, int, bool]], shift: int) -> None:
    starts, ends, arrived = _arrays(ranges)
    assert new_bytes(starts + shift, ends + shift).tolist() == new_bytes(starts, ends).tolist()
    for moved, here in zip(
        resent_bytes(starts + shift, ends + shift, arrived), resent_bytes(starts, ends, arrived), strict=True
    ):
        assert moved.tolist() == here.tolist()


def test_a_retransmission_is_found_though_its_borders_moved() -> None:
    # The rule of equal start offsets misses both retransmissions.
    starts, ends = np.array([0, 1000, 2000, 500, 1700]), np.array([1000, 2000, 3000, 1700, 2100])
    repeated, spurious = resent_bytes(starts, ends, np.array([True, False, True, True, True]))
    assert repeated.tolist() == [0, 0, 0, 1200, 400]
    assert spurious.tolist() == [0, 0, 0, 500, 100]
