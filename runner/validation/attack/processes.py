"""What processes take (proc(5))."""

import os
from contextlib import suppress
from pathlib import Path

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                waiting += map(int, task.read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """CPU time of a process and all that live below it."""
    total = 0.0
    for one in family(pid):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def resident(pid: int) -> int:
    """Resident bytes; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0
