"""The values that a variable of a variant accepts. They are written as a text such as `cubic|newreno`,
`1..10000 packets` or `5s..1h`."""

import re
from dataclasses import dataclass

FORMS = "cubic|newreno, 1..10000 packets, 0|1200..1452 bytes, 5s..1h"  # an example of each kind
_WORD = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_RANGE = re.compile(
    r"(?P<low>[0-9]+(?P<time>ms|s|m|h)?)\.\.(?P<high>[0-9]+(?(time)(ms|s|m|h)))( (?P<unit>[a-z][a-z -]*))?"
)
_WHOLE = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"([0-9]{1,9})|([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Knob:
    """The allowed values: one of `words`, or a whole number or time from `low` to `high`. A time is written as `25ms`,
    `8s`, `1.5m` or `1h`; a time without a unit is in ms.
    """

    text: str  # the text of its declaration
    words: tuple[str, ...] = ()
    low: str = ""  # empty: only words are allowed
    high: str = ""
    unit: str = ""  # unit of the numbers, for people
    timed: bool = False  # True: `low` and `high` are times

    @classmethod
    def parse(cls, text: str) -> "Knob":
        """Parse words and at most one range, separated by `|`. Raises ValueError for a text in another form than in
        FORMS."""
        *words, last = text.split("|")
        match = _RANGE.fullmatch(last)
        words += [] if match else [last]
        if not all(_WORD.fullmatch(word) for word in words):
            raise ValueError(f"'{text}' is neither choices nor a range")
        if match is None:
            return cls(text=text, words=tuple(words))
        knob = cls(
            text=text,
            words=tuple(words),
            low=match["low"],
            high=match["high"],
            unit=match["unit"] or "",
            timed=bool(match["time"]),
        )
        if knob._amount(knob.low) > knob._amount(knob.high):
            raise ValueError(f"'{text}' ends before it begins")
        return knob

    def read(self, value: str) -> str | None:
        """`value` in the form that the image gets; None when it isn't allowed. Numbers have no leading zeros."""
        if value in self.words:
            return value
        if not self.low or not (_TIME if self.timed else _WHOLE).fullmatch(value):
            return None
        if not self._amount(self.low) <= self._amount(value) <= self._amount(self.high):
            return None
        return value if self.timed else str(int(value))

    def _amount(self, value: str) -> float:
        """A time in seconds, or a number."""
        if not self.timed:
            return int(value)
        match = _TIME.fullmatch(value)
        assert match is not None
        return int(match[1]) * 1e-3 if match[1] else float(match[2]) * _SECONDS[match[3]]

    def __str__(self) -> str:
        """The allowed values as a part of a sentence: `cubic or newreno`, `a number of packets, 1 to 10000`."""
        kind = "a time" if self.timed else f"a number of {self.unit}" if self.unit else "a number"
        ranges = [f"{kind}, {self.low} to {self.high}"] if self.low else []
        return " or ".join((*self.words, *ranges))
