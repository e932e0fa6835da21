"""Parses numbers with units from the user, and formats them for people. All other code uses bit/s, bytes, seconds."""

import re

from runner.errors import UsageError

KIB = 1024
MIB = 1024 * 1024

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)?$")
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


def parse_duration(text: str) -> float:
    """Parse a duration such as `90`, `90s`, `250 ms`, `2 min`, `1h` to seconds. Raises UsageError for other text."""
    match = _DURATION.match(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not a duration: write a number with ms, s, min, h or d, such as 90s.")
    return float(match[1]) * _SECONDS[match[2]]


def format_duration(seconds: float) -> str:
    """A duration for people: `350 ms`, `12.3 s`, `4 min 05 s`, `2 h 10 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def format_data_rate(bit_per_s: float) -> str:
    """A data rate for people, in decimal multiples: `20 Mbit/s`, `9.41 Mbit/s`, `250 kbit/s`."""
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bit_per_s >= factor:
            return f"{bit_per_s / factor:.3g} {unit}"
    return f"{bit_per_s:.3g} bit/s"


def format_size(size: float) -> str:
    """A size in bytes for people, in binary multiples: `10 MiB`, `1.5 KiB`, `32 B`."""
    for factor, unit in ((1024**3, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= factor:
            scaled = size / factor
            return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:.0f} {unit}"
    return f"{size:.0f} B"


def format_count(number: int, noun: str) -> str:
    """A number with its noun: `1 datagram`, `2 datagrams`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
