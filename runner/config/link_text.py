"""Parses a link that is written on the command line: `--link rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp`. Pure.

A single value is for both directions; FORWARD/RETURN has one value for each direction. A second segment, which is the
ground segment, is written after a `;`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NoReturn

from runner.errors import UsageError
from runner.model.impairments import LinkImpairments
from runner.model.link import Direction, Link, Queue, Segment

EXAMPLE = "rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp"
_SOURCE = "written on the command line"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")  # as in links.json: the name becomes a part of folder names
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE]-?\d+)?)\s*([A-Za-z%/]*)")
_LARGEST = 10**15  # largest number: int() of a much larger Decimal may take very long
_RATES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_TIMES = {"ms": Decimal("0.001"), "s": Decimal(1), "us": Decimal("0.000001")}
_SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}

Parser = Callable[[str], Any]


def is_link_text(text: str) -> bool:
    """True when a value of `--link` describes a link; False when it consists of names of links."""
    return "=" in text


def parse_link(text: str) -> Link:
    """The link that the text describes. Raises UsageError with one sentence about the correct form."""
    parts = text.split(";")
    if len(parts) > 2:
        raise UsageError(f"--link '{text}': a link has one segment, or two: satellite;ground.")
    named = [_pairs(part, text) for part in parts]
    names = [pairs.pop("name") for pairs in named if "name" in pairs]
    if len(names) > 1 or (names and not _NAME.fullmatch(names[0])):
        raise UsageError(
            f"--link '{text}': write one name, of at most 40 small letters, digits, '-' and '.', such as name=alpine."
        )
    try:
        segments = tuple(_segment(pairs, text) for pairs in named)
        return Link(name=names[0] if names else "--".join(map(_segment_name, named)), segments=segments, source=_SOURCE)
    except ValueError as error:
        raise UsageError(f"--link '{text}': {error}.") from error


def _pairs(part: str, text: str) -> dict[str, str]:
    """The values of one segment by key."""
    pairs: dict[str, str] = {}
    for word in part.split(","):
        key, equals, value = (piece.strip() for piece in word.partition("="))
        if not equals or not value:
            raise UsageError(f"--link '{text}': '{word.strip()}' is not KEY=VALUE: write it as {EXAMPLE}.")
        if key not in _KEYS and key != "name":
            near = get_close_matches(key, _KEYS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"--link '{text}': there is no key '{key}'.{hint} Keys: {', '.join(_KEYS)}, name.")
        if key in pairs:
            raise UsageError(f"--link '{text}': '{key}' is given twice: keep one of them.")
        pairs[key] = value
    for key in ("rate", "delay"):
        if key not in pairs:
            raise UsageError(f"--link '{text}': {key} is missing: write it as {EXAMPLE}.")
    return pairs


def _segment(pairs: Mapping[str, str], text: str) -> Segment:
    forward, return_ = {}, {}
    for key, value in pairs.items():
        both = value.split("/")
        if len(both) > 2:
            raise UsageError(f"--link '{text}': {key} has one value, or FORWARD/RETURN, not {value}.")
        forward[key], return_[key] = _KEYS[key](both[0]), _KEYS[key](both[-1])
    return Segment(forward=_direction(forward), return_=_direction(return_))


def _direction(values: dict[str, Any]) -> Direction:
    return Direction(
        data_rate=values.pop("rate"),
        delay=values.pop("delay"),
        loss=values.pop("loss", 0.0),
        queue=values.pop("queue", Queue(bdp=1.0)),
        impairments=LinkImpairments(**values),
    )


def _segment_name(pairs: Mapping[str, str]) -> str:
    """A name such as `50M-5M-300ms-1bdp-loss0.001`. It has every parameter, so that different links never have the same
    name."""
    bare = ("rate", "delay", "queue")
    words = []
    for key in (*bare, *sorted(set(pairs) - set(bare))):
        if key in pairs:
            values = [_canonical(key, value) for value in dict.fromkeys(pairs[key].split("/"))]
            words.append(("" if key in bare else key.replace("_", "-")) + "-".join(values))
    return "-".join(words)


def _canonical(key: str, text: str) -> str:
    """The value in one standard spelling. It has no `%`, which has a special meaning in URLs, and no blanks."""
    value = _KEYS[key](text)
    if isinstance(value, Queue):
        return text.replace(" ", "")
    if key == "rate":
        unit = next(unit for unit in ("G", "M", "k", "") if value % _RATES[unit] == 0)
        return f"{value // _RATES[unit]}{unit}"
    if _UNITS.get(key) == "seconds":
        return f"{_plain(Decimal(repr(value)) * 1000)}ms"
    return _plain(Decimal(repr(value)))


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _refuse(text: str, expected: str) -> NoReturn:
    raise ValueError(f"'{text}' is not {expected}")


def _number(text: str, expected: str, units: Mapping[str, int | Decimal]) -> Decimal:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        _refuse(text, expected)
    value = Decimal(match[1])
    if value > _LARGEST:
        _refuse(text, expected)
    return value * units[match[2]]


def _rate(text: str) -> int:
    expected = "a data rate in bit/s, such as 50M or 500k"
    value = _number(text.removesuffix("bit/s"), expected, _RATES)
    if value != int(value):
        _refuse(text, expected)
    return int(value)


def _seconds(text: str) -> float:
    return float(_number(text, "a time, such as 300ms or 0.3s", _TIMES))


def _fraction(text: str) -> float:
    return float(_number(text, "a fraction, such as 0.1% or 0.001", {"": 1, "%": Decimal("0.01")}))


def _packets(text: str) -> int:
    expected = "a number of packets, such as 3"
    value = _number(text, expected, {"": 1, "p": 1})
    if value != int(value):
        _refuse(text, expected)
    return int(value)


def _queue(text: str) -> Queue:
    expected = "a queue, such as 1bdp, 125p (packets) or 750kB"
    value = _number(text, expected, {"bdp": 1, "p": 1, **_SIZES})
    if text.rstrip().endswith("bdp"):
        return Queue(bdp=float(value))
    if value != int(value):
        _refuse(text, expected)
    return Queue(packets=int(value)) if text.rstrip().endswith("p") else Queue(bytes=int(value))


_PARSERS: dict[str, Parser] = {"fraction": _fraction, "seconds": _seconds, "packets": _packets}
# The impairments that are single numbers, with their units.
_UNITS = {
    about.name: about.metadata["unit"] for about in fields(LinkImpairments) if about.metadata and about.default == 0
}
_UNITS["delay"] = "seconds"
_KEYS: dict[str, Parser] = {
    "rate": _rate,
    "delay": _seconds,
    "queue": _queue,
    "loss": _fraction,
    **{name: _PARSERS[unit] for name, unit in _UNITS.items() if name != "delay"},
}
