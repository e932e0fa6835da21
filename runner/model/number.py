"""A number of a job: its name, unit and formula, and the groups of numbers."""

from dataclasses import dataclass

DATA_RATE, TIMES, RETURN_LINK = "Data rate", "Times", "Return link"
RETRANSMISSIONS, PATH, BESIDE = "Retransmissions", "Path", "Beside another flow"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A field of `Sample` or of `PageLoad`. It is stored in SI units and printed in the unit `shown_in`. Label, formula
    and note are plain text."""

    key: str
    label: str
    short: str  # a shorter label, for narrow columns
    shown_in: str  # the printed unit, one of UNITS
    formula: str
    note: str = ""
    whole: bool = False  # True: the number is a count and is printed without decimals
    group: str
    since: int = 1  # the first version of the definitions that has this formula


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
