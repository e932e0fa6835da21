"""Expected values come from scipy, and from numbers that can be counted by hand."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runner.compare.stats import adjusted, least_n, least_p, least_rate_p, rank_test, rate_test, shift, shift_interval

GROUP = st.lists(st.integers(0, 8).map(float), min_size=2, max_size=6)


@pytest.mark.parametrize(("before", "after"), [(3, 3), (5, 8), (10, 10), (25, 35)])
def test_without_ties_the_rank_test_is_scipys_exact_one(before: int, after: int) -> None:
    random = np.random.default_rng(before)
    for moved in (0.0, 0.5, 1.5):
        first, second = random.normal(size=before), random.normal(moved, size=after)
        theirs = scipy.stats.mannwhitneyu(first, second, method="exact").pvalue
        assert rank_test(first, second) == pytest.approx(theirs, rel=1e-9)


@settings(max_examples=40)
@given(GROUP, GROUP)
def test_with_ties_every_split_is_counted(first: list[float], second: list[float]) -> None:
    def distance(x: NDArray[np.float64], y: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        """The distance of Mann and Whitney's U from its mean, from the signs of all pairs."""
        assert axis == -1
        signs = np.sign(x[..., :, np.newaxis] - y[..., np.newaxis, :])
        distances: NDArray[np.float64] = np.abs(signs.sum(axis=(-1, -2))) / 2
        return distances

    theirs = scipy.stats.permutation_test(
        (first, second), distance, alternative="greater", n_resamples=np.inf, vectorized=True
    )
    assert rank_test(first, second) == pytest.approx(theirs.pvalue, rel=1e-9)


@pytest.mark.parametrize("decimals", [6, 0])
def test_many_values_are_approximated_as_scipy_does(decimals: int) -> None:
    random = np.random.default_rng(2)
    first, second = random.normal(size=70).round(decimals), random.normal(0.4, size=50).round(decimals)
    theirs = scipy.stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert rank_test(first, second) == pytest.approx(theirs, rel=1e-9)


def test_the_exact_and_the_approximate_test_meet_where_they_change() -> None:
    random = np.random.default_rng(7)
    first, second = random.normal(size=51), random.normal(0.3, size=50)
    exact = scipy.stats.mannwhitneyu(first, second, method="exact").pvalue
    assert rank_test(first, second) == pytest.approx(exact, rel=0.1)
    assert 0.001 < exact < 0.5


def test_values_that_are_all_equal_show_nothing() -> None:
    assert rank_test([2.0] * 5, [2.0] * 5) == 1.0
    assert rank_test([2.0] * 50, [2.0] * 50) == 1.0


def test_three_iterations_are_never_enough_and_four_are() -> None:
    assert rank_test([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == least_p(3, 3) == pytest.approx(0.1)
    assert rank_test([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]) == least_p(4, 4) == pytest.approx(2 / 70)
    assert least_n(0.05) == 4
    assert least_n(0.05 / 100) == 8
    assert least_p(1, 1) == least_p(0, 9) == 1.0


def test_a_shift_is_found_whatever_the_outlier() -> None:
    result = shift([1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 1000.0])
    assert (result.median_before, result.median_after) == (2.5, 12.5)
    assert result.hodges_lehmann == 10.0
    assert result.cliffs_delta == 1.0
    assert shift([1.0, 3.0], [2.0]).cliffs_delta == 0.0
    assert shift([1.0, 2.0], [0.0, 2.0]).cliffs_delta == pytest.approx((1 - 2) / 4)


@given(st.integers(0, 12), st.integers(1, 12), st.integers(0, 12), st.integers(1, 12))
def test_the_rate_test_is_scipys(good: int, tried: int, later_good: int, later_tried: int) -> None:
    before, after = (min(good, tried), tried), (min(later_good, later_tried), later_tried)
    table = [[before[0], before[1] - before[0]], [after[0], after[1] - after[0]]]
    p = rate_test(before, after)
    assert p == pytest.approx(scipy.stats.fisher_exact(table).pvalue, rel=1e-7)
    assert least_rate_p(before, after) <= p * (1 + 1e-9)


def test_the_lady_and_her_tea() -> None:
    assert rate_test((4, 4), (0, 4)) == pytest.approx(2 / 70)
    assert least_rate_p((3, 3), (0, 3)) == pytest.approx(0.1)
    assert least_rate_p((5, 5), (5, 5)) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_correction_is_scipys(p_values: list[float]) -> None:
    theirs = scipy.stats.false_discovery_control(p_values)
    assert adjusted(p_values) == pytest.approx(list(theirs), abs=1e-12)


def test_tests_that_are_left_out_do_not_count_in_the_correction() -> None:
    assert adjusted([]) == []
    assert adjusted([None, 0.02, None, 0.04]) == [None, *adjusted([0.02, 0.04])[:1], None, *adjusted([0.02, 0.04])[1:]]
    assert adjusted([0.02, 0.04]) == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize(("before", "after"), [(4, 4), (3, 5), (6, 9), (10, 10), (60, 60)])
def test_the_shift_interval_is_what_the_rank_test_does_not_refute(before: int, after: int) -> None:
    random = np.random.default_rng(before)
    old, new = random.normal(0, 1, before), random.normal(0.5, 1, after)
    interval = shift_interval(old, new)
    assert interval is not None
    if before + after <= 100:
        for end, inside in zip(interval, (1e-6, -1e-6), strict=True):
            assert rank_test(old, new - (end + inside)) > 0.05
            assert rank_test(old, new - (end - inside)) <= 0.05
    else:
        theirs = [scipy.stats.mannwhitneyu(new - end, old, method="asymptotic").pvalue for end in interval]
        assert theirs == pytest.approx([0.05, 0.05], abs=0.002)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (3, 4), (1, 38)])
def test_with_few_values_there_is_no_interval_of_a_shift(before: int, after: int) -> None:
    assert shift_interval([1.0] * before, [2.0] * after) is None
