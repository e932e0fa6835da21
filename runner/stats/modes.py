"""Detects cells whose iterations form two separate groups of values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_VALUES = 8
_LEAST_SIDE = 2  # least size of a group: a single distant value is an outlier, not a mode
_LEAST_RATIO = 1.25  # ratio of the groups' medians; a smaller difference does not matter to users
_LEAST_GAP = 2.0  # in ranges of the wider group; 1 % of samples of 8 from one log-normal distribution have such a gap


@dataclass(frozen=True, kw_only=True)
class Modes:
    """The two groups. `lower` and `upper`: their numbers of values. Medians and gap are in the unit of the values.
    `gap` is the distance from the highest value of the lower group to the lowest value of the upper group."""

    lower: int
    upper: int
    lower_median: float
    upper_median: float
    gap: float

    @property
    def ratio(self) -> float:
        return self.upper_median / self.lower_median if self.lower_median else np.inf


def two_modes(values: Sequence[float]) -> Modes | None:
    """The two groups on both sides of the widest gap between the values, which must be 0 or more. None when there are
    fewer than 8 values, when the gap is not more than twice as wide as each group, or when the medians differ by less
    than a quarter.

    A dip test would need dozens of values, but a cell has about ten iterations. So the gap is compared with the range
    of each group.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if len(ordered) < LEAST_VALUES:
        return None
    gaps = np.diff(ordered)[_LEAST_SIDE - 1 : 1 - _LEAST_SIDE]
    split = int(gaps.argmax()) + _LEAST_SIDE
    lower, upper = ordered[:split], ordered[split:]
    gap = float(upper[0] - lower[-1])
    modes = Modes(
        lower=len(lower),
        upper=len(upper),
        lower_median=float(np.median(lower)),
        upper_median=float(np.median(upper)),
        gap=gap,
    )
    wide = max(float(np.ptp(lower)), float(np.ptp(upper)))
    return modes if gap > _LEAST_GAP * wide and modes.ratio >= _LEAST_RATIO else None
