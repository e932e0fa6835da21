"""Finds middlebox variants that differ in one parameter, and the axis that shows its values."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from runner.render.axes import Axis

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([a-zA-Z]*)")
_FEWEST = 3  # least number of settings for a curve
_DECADES = 2.0  # from this span on, the axis is logarithmic: a linear axis would show most values in one place


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Variants of one middlebox that differ only in `parameter`. `common`: the parameters that all variants share.

    `settings`: the values of `parameter` in `unit`, each with the name of its variant, in increasing order.
    """

    base: str
    parameter: str
    unit: str
    common: tuple[tuple[str, str], ...]
    settings: tuple[tuple[float, str], ...]


def sweeps(variants: Iterable[tuple[str, str, Mapping[str, str]]]) -> list[Sweep]:
    """Every sweep among `variants`, which are (name, base middlebox, parameters)."""
    curves: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], list[tuple[float, str]]] = defaultdict(list)
    for name, base, parameters in variants:
        for parameter, setting in parameters.items():
            number = _NUMBER.fullmatch(setting)
            if number:
                common = tuple((other, value) for other, value in parameters.items() if other != parameter)
                curves[base, parameter, number[2], common].append((float(number[1]), name))
    return [
        Sweep(base=base, parameter=parameter, unit=unit, common=common, settings=tuple(sorted(settings)))
        for (base, parameter, unit, common), settings in curves.items()
        if len(settings) >= _FEWEST
    ]


@dataclass(frozen=True)
class Scale:
    """Maps values to places on an axis. The place is the value itself or, when the values span at least two decades,
    its logarithm. On a logarithmic axis, zero is at the left end."""

    label: str
    first: int = 0  # exponents of the lowest and the highest decade
    last: int = 0
    zero: bool = False
    logarithmic: bool = False

    @classmethod
    def of(cls, values: Sequence[float], label: str) -> "Scale":
        """The scale for these values: linear or logarithmic."""
        positive = [value for value in values if value > 0]
        if not positive or log10(max(positive) / min(positive)) < _DECADES:
            return cls(label)
        first, last = floor(log10(min(positive)) + 1e-9), ceil(log10(max(positive)) - 1e-9)
        return cls(label, first=first, last=last, zero=len(positive) < len(values), logarithmic=True)

    def at(self, value: float) -> float:
        """The place of `value` on the axis."""
        if not self.logarithmic:
            return value
        return log10(value) if value > 0 else self.first - 1

    @property
    def axis(self) -> Axis:
        """The axis with its ticks."""
        if not self.logarithmic:
            return Axis(label=self.label)
        decades = range(self.first, self.last + 1)
        zero = [(float(self.first - 1), "0")] if self.zero else []
        return Axis(label=self.label, named=[*zero, *((float(decade), f"{10.0**decade:g}") for decade in decades)])
