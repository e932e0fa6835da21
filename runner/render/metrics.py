"""Formats the numbers of `runner.model.numbers` for pages: digits and units."""

from dataclasses import asdict, dataclass
from functools import cached_property

from runner.model.number import UNITS, Number
from runner.model.numbers import PAIR_NUMBERS
from runner.model.result import Sample

NARROW = "\u202f"  # narrow no-break space, between a number and its unit


def digits(value: float) -> str:
    """Three significant digits and at most two decimals: `0.04`, `9.41`, `18.9`, `1,204`."""
    size = abs(value)
    return f"{value:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


@dataclass(frozen=True)
class Unit:
    """A unit as it is printed, and the factor that converts a value in SI units to it."""

    name: str
    factor: float


@dataclass(frozen=True, kw_only=True)
class Metric(Number):
    """A number of `runner.model.numbers` as pages show it."""

    @cached_property
    def unit(self) -> Unit:
        return Unit(self.shown_in, UNITS[self.shown_in])

    def number(self, value: float) -> str:
        """The value without its unit."""
        scaled = value * self.unit.factor
        return f"{scaled:,.0f}" if self.whole else digits(scaled)

    def text(self, value: float | None) -> str:
        """The value with its unit; `–` when the value is unknown."""
        if value is None:
            return "–"
        return f"{self.number(value)}{NARROW}{self.unit.name}".rstrip(NARROW)


def shown(number: Number) -> Metric:
    """The number as a metric, which pages can print with its unit."""
    return Metric(**asdict(number))


METRICS: tuple[Metric, ...] = tuple(map(shown, PAIR_NUMBERS))
BY_KEY: dict[str, Metric] = {metric.key: metric for metric in METRICS}

# The metrics that a matrix can show. Without scripts it shows the first metric.
SWITCHABLE = ("ttlb", "goodput", "efficiency", "retransmission_ratio", "handshake_time")
COLOURED = "link_share"
"""The metric that decides the colour of a cell. It is a fraction, and it orders cells in the same way as delivery
times."""
STATISTICS = ("median", "mean")
"""Statistics over the iterations of a cell, as fields of `Summary`. A matrix shows the first statistic when the browser
runs no scripts."""


def value(sample: Sample | None, key: str) -> float | None:
    """The metric's value in SI units; None when it could not be measured."""
    number: float | None = getattr(sample, key) if sample is not None else None
    return number
