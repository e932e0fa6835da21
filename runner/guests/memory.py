"""Checks that this host has enough memory for guests."""

from pathlib import Path

from runner.errors import SetupError
from runner.units import MIB, format_size

LEAST = 512 * MIB  # bytes of one guest for a transfer of 10 MiB between two stacks, with their disks in the page cache


def require_memory(lanes: int, meminfo: Path = Path("/proc/meminfo")) -> None:
    """Raise SetupError when less than `LEAST` is available for each of `lanes` guests."""
    available = available_memory(meminfo)
    if available is not None and available < lanes * LEAST:
        raise SetupError(
            f"--clock virtual: {lanes} guests at once need {format_size(lanes * LEAST)} of memory, and "
            f"{format_size(available)} are available: end other programs, or use a smaller --lanes."
        )


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that programs can still get without swapping; None when the kernel does not report it."""
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
