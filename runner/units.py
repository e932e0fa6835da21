"""Parses numbers with units from the user, and formats them for people. All other code uses bit/s, bytes, seconds."""

KIB = 1024
MIB = 1024 * 1024


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
