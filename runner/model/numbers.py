"""The numbers of an iteration: field, formula, unit. `numbers.toml` declares each number once."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from runner.units import NARROW, format_digits


@dataclass(frozen=True, kw_only=True)
class Number:
    """A field of `Sample` or of `PageLoad`. It is stored in SI units and printed in the unit `shown_in`. Label, formula
    and note are plain text."""

    key: str
    label: str
    short: str  # a shorter label, for narrow columns
    shown_in: str = ""  # the printed unit, one of UNITS
    formula: str
    note: str = ""
    whole: bool = False  # True: the number is a count and is printed without decimals
    group: str
    since: int = 1  # the first version of the definitions that has this formula
    at_sender: bool = False  # True: the number needs a capture at the sender

    @property
    def factor(self) -> float:
        """The factor that converts a value in SI units to the printed unit."""
        return UNITS[self.shown_in]

    def number(self, value: float) -> str:
        """The value without its unit."""
        scaled = value * self.factor
        return f"{scaled:,.0f}" if self.whole else format_digits(scaled)

    def text(self, value: float | None) -> str:
        """The value with its unit, after a narrow no-break space; `–` when the value is unknown."""
        if value is None:
            return "–"
        return f"{self.number(value)}{NARROW}{self.shown_in}".rstrip(NARROW)


UNITS = {
    "Mbit/s": 1e-6,
    "kbit/s": 1e-3,
    "%": 100.0,
    "s": 1.0,
    "ms": 1e3,
    "kB": 1e-3,
    "B": 1.0,
    "packets": 1.0,
    "": 1.0,
}
"""Printed unit → the factor by which a value in SI units is multiplied."""

DEFINITIONS = 2
"""The version of the whole list. A result stores the version with which it was measured (`Sample.definitions`), so that
numbers with the same name and different formulas are never compared. In version 1, goodput ended at the last new byte.
Since version 2, it ends at the server's last 1-RTT packet."""

_TABLE = tomllib.loads(Path(__file__).with_name("numbers.toml").read_text())


def _numbers(kind: str) -> tuple[Number, ...]:
    return tuple(Number(key=key, **{"short": row["label"], **row}) for key, row in _TABLE[kind].items())


PAIR_NUMBERS, PAGE_NUMBERS = _numbers("pair"), _numbers("page")
BY_KEY = {number.key: number for number in PAIR_NUMBERS}
DOWNLOAD_NUMBERS = (BY_KEY["ttlb"], BY_KEY["throughput"], BY_KEY["link_share"], *_numbers("download"))
AT_SENDER = tuple(number.key for number in PAIR_NUMBERS if number.at_sender)
"""Keys of the numbers that need a capture at the sender."""


def is_current(key: str, definitions: int) -> bool:
    """True when the formula of `key` in version `definitions` is the same as the formula in the current version."""
    return key not in BY_KEY or definitions >= BY_KEY[key].since
