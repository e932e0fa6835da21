"""The signed-rank test and its interval, compared with scipy, with counting every sign, and at their limits."""

from itertools import product
from math import inf

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from runner.compare.stats import LEAST_PAIRS, least_paired_p, pseudomedian, signed_rank_interval, signed_rank_test


@pytest.mark.parametrize("pairs", [3, 6, 17, 60, 100])
def test_p_is_that_of_scipy(pairs: int) -> None:
    random = np.random.default_rng(pairs)
    for centre in (0.0, 0.3, 2.0):
        differences = random.normal(centre, 1, pairs)
        assert signed_rank_test(differences.tolist()) == pytest.approx(wilcoxon(differences, method="exact").pvalue)


def test_beyond_the_exact_limit_p_is_the_normal_approximation_with_continuity() -> None:
    differences = np.random.default_rng(1).normal(0.15, 1, 150)
    wanted = wilcoxon(differences, method="approx", correction=True).pvalue
    assert signed_rank_test(differences.tolist()) == pytest.approx(wanted)


def test_ties_zeros_and_failures_are_counted_over_every_choice_of_signs() -> None:
    differences = [0.0, 1.0, -1.0, 1.0, 2.0, inf, 0.0, -3.0]
    ranks = rankdata(np.abs(differences))[np.array(differences) != 0]
    seen = sum(rank for rank, difference in zip(ranks, filter(None, differences), strict=True) if difference > 0)
    sums = [sum(np.compress(signs, ranks)) for signs in product((False, True), repeat=len(ranks))]
    far = [abs(total - sum(ranks) / 2) >= abs(seen - sum(ranks) / 2) for total in sums]
    assert signed_rank_test(differences) == pytest.approx(sum(far) / len(far))


def test_no_difference_at_all_has_p_1() -> None:
    assert signed_rank_test([0.0] * 8) == 1.0


def test_the_interval_holds_exactly_the_shifts_that_the_test_does_not_reject() -> None:
    differences = np.random.default_rng(3).normal(1, 1, 12)
    interval = signed_rank_interval(differences.tolist())
    assert interval is not None and interval[0] < pseudomedian(differences.tolist()) < interval[1]
    for end, outwards in zip(interval, (-1e-6, 1e-6), strict=True):
        assert signed_rank_test((differences - end - outwards).tolist()) <= 0.05
        assert signed_rank_test((differences - end + outwards).tolist()) > 0.05


def test_too_few_pairs_and_failures_have_no_interval() -> None:
    assert least_paired_p(LEAST_PAIRS) <= 0.05 < least_paired_p(LEAST_PAIRS - 1)
    assert signed_rank_interval([1.0] * (LEAST_PAIRS - 1)) is None
    assert signed_rank_interval([1.0] * LEAST_PAIRS) == (1.0, 1.0)
    assert signed_rank_interval([1.0] * LEAST_PAIRS + [inf]) is None
