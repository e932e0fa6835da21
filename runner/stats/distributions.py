"""Two distributions, computed with mpmath's incomplete beta function (NIST Digital Library of Mathematical Functions,
§8.17)."""

from functools import lru_cache

from mpmath import betainc

_HALVINGS = 53  # number of binary digits of a float


@lru_cache(maxsize=1024)
def beta_quantile(a: float, b: float, p: float) -> float:
    """The x for which the regularised incomplete beta function I_x(a, b) is p, for a and b above 0 and p of 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):  # bisection, because faster methods stop too early where the function is flat
        middle = (low + high) / 2
        low, high = (middle, high) if betainc(a, b, 0, middle, regularized=True) < p else (low, middle)
    return (low + high) / 2


def student_tail(degrees: float, t: float) -> float:
    """The probability of a value above `t`, for Student's distribution with `degrees` degrees of freedom. `t` must be 0
    or more."""
    square = t * t
    if square < 1:  # for a small t, the formula below would lose digits in 1 - x
        return float(betainc(0.5, degrees / 2, square / (degrees + square), 1, regularized=True)) / 2
    return float(betainc(degrees / 2, 0.5, 0, degrees / (degrees + square), regularized=True)) / 2
