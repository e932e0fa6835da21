import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from runner.compare.stats import Attempts, count, median_interval, median_iteration, rate_interval, summarise
from runner.model.result import Outcome, Result, Sample

VALUES = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


def result(iteration: int, ttlb: float | None, outcome: Outcome = Outcome.SUCCEEDED) -> Result:
    sample = None if ttlb is None else Sample(file_size=1, ttlb=ttlb)
    return Result(server="s", client="c", case="sat", iteration=iteration, outcome=outcome, sample=sample)


def test_one_value_has_no_spread() -> None:
    summary = summarise([3.0])
    assert summary is not None
    assert (summary.n, summary.median, summary.mean) == (1, 3.0, 3.0)
    assert summary.deviation is summary.low is summary.high is None


def test_nothing_measured_has_no_summary() -> None:
    assert summarise([None, None]) is None


def test_the_deviation_is_that_of_a_sample() -> None:
    summary = summarise([2.0, None, 4.0, 9.0])
    assert summary is not None
    assert summary.n == 3
    assert summary.median == 4.0
    assert summary.mean == 5.0
    assert summary.deviation == pytest.approx(13**0.5)


@pytest.mark.parametrize("size", [6, 7, 9, 10, 11, 30, 101])
def test_the_interval_is_scipys(size: int) -> None:
    """scipy's test of a quantile is exact, too. Each end of the interval is one of the values."""
    values = np.sort(np.random.default_rng(4).lognormal(2.0, 0.3, size))
    theirs = [
        scipy.stats.quantile_test(values, p=0.5, alternative=side).confidence_interval(0.975)
        for side in ("greater", "less")
    ]
    assert median_interval(values) == (theirs[0].low, theirs[1].high)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_few_values_have_a_range_and_no_interval(size: int) -> None:
    summary = summarise([float(value) for value in range(size)])
    assert summary is not None
    assert summary.low is summary.high is None
    assert summary.spread == (None if size == 1 else ("range", 0.0, size - 1.0))


@pytest.mark.parametrize("size", [6, 8, 10, 15])
def test_the_interval_holds_the_median_as_often_as_it_says(size: int) -> None:
    samples = np.sort(np.random.default_rng(size).lognormal(0.0, 1.0, (4000, size)), axis=1)
    held = [low <= 1.0 <= high for low, high in filter(None, map(median_interval, samples))]
    assert len(held) == 4000
    assert np.mean(held) >= 0.94  # three standard errors below 0.95


@given(VALUES)
def test_the_interval_encloses_the_median_and_lies_within_the_values(values: list[float]) -> None:
    summary = summarise(values)
    assert summary is not None
    assert summary == summarise(reversed(values))
    if summary.low is not None and summary.high is not None:
        assert summary.minimum <= summary.low <= summary.median <= summary.high <= summary.maximum
        assert summary.spread == ("95 % interval", summary.low, summary.high)


def test_the_median_iteration_is_the_one_in_the_middle() -> None:
    assert median_iteration([result(1, 5.0), result(2, 1.0), result(3, 3.0)]) == 3
    assert median_iteration([result(1, 5.0), result(2, 1.0), result(3, 3.0), result(4, 4.0)]) == 4


def test_failed_iterations_are_never_the_median_one() -> None:
    failed = result(2, 3.0, Outcome.FAILED)
    assert median_iteration([result(1, 5.0), failed, result(3, 1.0)]) == 1
    assert median_iteration([failed]) is None
    assert median_iteration([]) is None


def test_without_delivery_time_the_first_success_is_typical() -> None:
    assert median_iteration([result(1, None, Outcome.ERROR), result(3, None), result(2, None)]) == 2


def test_unsupported_and_skipped_are_no_attempts() -> None:
    outcomes = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.ERROR, Outcome.UNSUPPORTED, Outcome.SKIPPED]
    attempts = count(result(number, None, outcome) for number, outcome in enumerate(outcomes, start=1))
    assert str(attempts) == "1/3"


@given(attempts=st.integers(1, 60), data=st.data())
def test_the_interval_of_a_rate_is_clopper_and_pearsons(attempts: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, attempts))
    theirs = scipy.stats.binomtest(successes, attempts).proportion_ci(method="exact")
    ours = rate_interval(Attempts(successes=successes, attempts=attempts))
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_no_attempt_has_no_rate() -> None:
    assert rate_interval(Attempts(successes=0, attempts=0)) is None
