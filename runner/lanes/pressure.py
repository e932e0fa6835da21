"""How long runnable tasks waited for a CPU: pressure stall information (Linux, Documentation/accounting/psi)."""

from pathlib import Path

from runner.lanes.cpu_usage import GROUPS

_HOST = Path("/proc/pressure/cpu")
# Mount points of cgroup v2: together with v1, or without v1.
_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))


def of_host() -> float | None:
    """Seconds since the boot in which some task waited; None when the kernel doesn't report it."""
    return _seconds(_HOST, "some")


def of_container(container: str) -> float | None:
    """Seconds since the container's start in which some of its threads were runnable and none had a CPU. `container`:
    its full id. None when the container has ended, when it runs on another host, or when the kernel (before 5.13)
    doesn't report this for cgroups.
    """
    for root in _ROOTS:
        for group in GROUPS:
            waited = _seconds(root / group.format(container) / "cpu.pressure", "full")
            if waited is not None:
                return waited
    return None


def _seconds(path: Path, kind: str) -> float | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{kind} ") and line.rpartition("total=")[2].isdigit():
            return int(line.rpartition("total=")[2]) / 1e6
    return None
