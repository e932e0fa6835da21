"""For how long tasks stood ready without a CPU: pressure stall information (Linux, Documentation/accounting/psi)."""

from pathlib import Path

_HOST = Path("/proc/pressure/cpu")
# Where the groups of the second version are mounted: beside the first version's, or alone.
_ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
# The group of a container, below the parent that we ask for and below the engine's own, by driver.
_GROUPS = ("bentpipe/{0}", "docker/{0}", "system.slice/docker-{0}.scope")


def of_host() -> float | None:
    """Seconds since the boot in which some task waited; None on a kernel that doesn't say."""
    return _some(_HOST)


def of_container(container: str) -> float | None:
    """Seconds since its start in which some task of it waited, by its full id.

    None when it has ended, runs on another host, or the kernel doesn't say it by group.
    """
    for root in _ROOTS:
        for group in _GROUPS:
            waited = _some(root / group.format(container) / "cpu.pressure")
            if waited is not None:
                return waited
    return None


def _some(path: Path) -> float | None:
    try:
        some = path.read_text().split("\n", 1)[0]
        return int(some.rsplit("total=", 1)[1]) / 1e6
    except (OSError, IndexError, ValueError):
        return None
