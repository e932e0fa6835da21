"""Formats numbers with units, and texts of strangers, for people. All other code uses bit/s, bytes, seconds."""

import re

# Control characters, marks that change the direction of text, separators of lines, and surrogates. Images can write
# such characters into logs, names, packets and other values.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
NARROW = "\u202f"  # narrow no-break space, between a number and its unit
KIB = 1024
MIB = 1024 * 1024


def format_digits(value: float) -> str:
    """Three significant digits and at most two decimals: `0.04`, `9.41`, `18.9`, `1,204`."""
    size = abs(value)
    return f"{value:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


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


def format_name(name: str) -> str:
    """A file name for people. The case zerortt has names of 250 characters: `jtryvlvsyrki…lypz`."""
    return name if len(name) <= 40 else f"{name[:12]}…{name[-4:]}"


def format_count(number: int, noun: str) -> str:
    """A number with its noun: `1 datagram`, `2 datagrams`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """The text with U+FFFD in the place of characters that a terminal obeys, or that hide or reverse other text."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
