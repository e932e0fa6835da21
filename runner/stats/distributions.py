"""Two distributions, without a library of 140 MB: the incomplete beta function by its continued fraction.

NIST Digital Library of Mathematical Functions, §8.17 (https://dlmf.nist.gov/8.17). `runner/tests/stats` compares both
with scipy.
"""

from functools import lru_cache
from math import exp, lgamma, log, log1p

_TINY = 1e-300
_ACCURATE = 1e-15
_MOST_TERMS = 10_000
_HALVINGS = 200


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a and b above 0 and x of 0 to 1."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly (§8.17.4)
        return 1 - incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of §8.17.22, by Lentz's method: W. J. Lentz, "Generating Bessel Functions in Mie
    Scattering Calculations Using Continued Fractions" (1976)."""
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 / _not_zero(1 + numerator * d)
            c = _not_zero(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < _ACCURATE:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


@lru_cache(maxsize=1024)
def beta_quantile(a: float, b: float, p: float) -> float:
    """Where I_x(a, b) is p: by bisection, since it grows with x."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if incomplete_beta(a, b, middle) < p else (low, middle)
    return (low + high) / 2


def student_tail(degrees: float, t: float) -> float:
    """The probability of more than `t` under Student's distribution with so many degrees of freedom; t is 0 or more."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2
