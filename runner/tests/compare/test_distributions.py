"""The two distributions, compared with scipy's."""

import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from runner.compare.stats import beta_quantile, student_tail


@given(good=st.integers(1, 200), failed=st.integers(0, 200), p=st.sampled_from([0.025, 0.5, 0.975]))
def test_its_inverse(good: int, failed: int, p: float) -> None:
    expected = float(scipy.special.betaincinv(good, failed + 1, p))
    assert beta_quantile(good, failed + 1, p) == pytest.approx(expected, rel=1e-9)


@given(degrees=st.floats(1, 500), t=st.floats(0, 60))
def test_students_tail(degrees: float, t: float) -> None:
    expected = float(scipy.special.stdtr(degrees, -t))
    assert student_tail(degrees, t) == pytest.approx(expected, rel=1e-8, abs=1e-14)
