"""Two modes are found where values have two modes, and none where only chance scatters the values."""

import numpy as np
import pytest

from runner.compare.rankings import two_modes

_THESIS = [20.1, 39.2, 19.8, 40.5, 20.4, 21.0, 38.8, 20.2, 39.9, 20.0]
"""TTLB in seconds as in thesis §5.6.5: about 20 s or about 40 s."""


def test_two_groups_are_found_with_their_medians() -> None:
    modes = two_modes(_THESIS)
    assert modes is not None
    assert (modes.lower, modes.upper) == (6, 4)
    assert modes.lower_median == pytest.approx(20.15)
    assert modes.upper_median == pytest.approx(39.55)
    assert modes.gap == pytest.approx(38.8 - 21.0)
    assert modes.ratio == pytest.approx(39.55 / 20.15)


def test_one_value_far_off_is_an_outlier_and_no_mode() -> None:
    assert two_modes([20.1, 20.2, 19.9, 20.0, 20.3, 20.1, 20.2, 41.0]) is None


def test_two_groups_that_hardly_differ_are_nobody_s_question() -> None:
    assert two_modes([10.0, 10.01, 10.02, 10.03, 10.9, 10.91, 10.92, 10.93]) is None


def test_few_values_say_nothing() -> None:
    assert two_modes([1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]) is None


@pytest.mark.parametrize("size", [8, 10, 20])
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_one_scattered_group_is_rarely_taken_for_two(size: int, spread: float) -> None:
    random = np.random.default_rng(5)
    samples = random.lognormal(0, spread, (2000, size))
    assert sum(two_modes(sample.tolist()) is not None for sample in samples) / len(samples) <= 0.02
