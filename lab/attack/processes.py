"""The resources that processes use (proc(5))."""

import os
from contextlib import suppress
from pathlib import Path

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    family_pids, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        family_pids.append(process)
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(OSError):
                waiting += map(int, task.read_text().split())
    return family_pids


def cpu_s(pid: int) -> float:
    """CPU time of a process and all its living descendants, in seconds."""
    total = 0.0
    for process in family(pid):
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def resident(pid: int) -> int:
    """Resident bytes; 0 when the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def largest_resident(pid: int) -> int:
    """The largest resident bytes so far, or since a reset (`clear_refs` of proc(5)); 0 when the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def runs(pid: int) -> bool:
    """True when the process runs on a CPU or waits for one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    except (OSError, IndexError):
        return False
