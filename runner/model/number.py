"""A number of a job: its name, unit and formula, and the groups of numbers."""

from dataclasses import dataclass

DATA_RATE, TIMES, RETURN_LINK = "Data rate", "Times", "Return link"
RETRANSMISSIONS, PATH, BESIDE = "Retransmissions", "Path", "Beside another flow"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A field of `Sample` (or of `PageLoad`), stored in SI units and printed in `shown_in`. Texts are plain."""

    key: str
    label: str
    short: str  # where there is little room
    shown_in: str  # unit that is printed, one of UNITS
    formula: str
    note: str = ""
    whole: bool = False  # a count: no decimals
    group: str
    since: int = 1  # version of the definitions from which the formula holds


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
"""Unit that is printed → the factor from SI to it."""
