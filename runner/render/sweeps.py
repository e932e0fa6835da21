"""What a run of paths sweeps: a loss from nothing to all, or one parameter, and the axis that shows it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from runner.render.charts import Axis

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")
_FEWEST = 3  # settings that make a curve
_DECADES = 2.0  # from here on, a linear axis shows most of the values in one place


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Variants of one path that differ in `parameter` alone, and what they have in common besides.

    `settings`: the value, in `unit`, and the variant's name, in order.
    """

    base: str
    parameter: str
    unit: str
    common: tuple[tuple[str, str], ...]
    settings: tuple[tuple[float, str], ...]


def sweeps(variants: Iterable[tuple[str, str, Mapping[str, str]]]) -> list[Sweep]:
    """Every sweep among variants, each by its name, what it is a variant of, and its parameters."""
    found: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], list[tuple[float, str]]] = defaultdict(list)
    for name, base, parameters in variants:
        for parameter, setting in parameters.items():
            number = _NUMBER.fullmatch(setting)
            if number:
                common = tuple((other, value) for other, value in parameters.items() if other != parameter)
                found[base, parameter, number[2], common].append((float(number[1]), name))
    return [
        Sweep(base=base, parameter=parameter, unit=unit, common=common, settings=tuple(sorted(settings)))
        for (base, parameter, unit, common), settings in found.items()
        if len(settings) >= _FEWEST
    ]


@dataclass(frozen=True)
class Scale:
    """Where a value stands on an axis: by itself, or by its logarithm when values span decades. Zero is left of all."""

    label: str
    first: int = 0  # exponents of the lowest and the highest decade
    last: int = 0
    zero: bool = False
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Sequence[float], label: str) -> "Scale":
        """The scale that keeps these values apart."""
        positive = [value for value in values if value > 0]
        if not positive or log10(max(positive) / min(positive)) < _DECADES:
            return cls(label)
        first, last = floor(log10(min(positive)) + 1e-9), ceil(log10(max(positive)) - 1e-9)
        return cls(label, first=first, last=last, zero=len(positive) < len(values), logarithmic=True)

    def at(self, value: float) -> float:
        """The place of a value."""
        if not self.logarithmic:
            return value
        return log10(value) if value > 0 else self.first - 1

    @property
    def axis(self) -> Axis:
        """The axis to the places."""
        if not self.logarithmic:
            return Axis(label=self.label)
        decades = range(self.first, self.last + 1)
        zero = [(float(self.first - 1), "0")] if self.zero else []
        return Axis(label=self.label, named=[*zero, *((float(decade), f"{10.0**decade:g}") for decade in decades)])
