"""CPU time of a container of this host, read from its cgroup, because the engine needs up to a second to measure it."""

from pathlib import Path

from runner.engine.containers import Usage
from runner.engine.priority import FOREIGN, OWN

_ROOT = Path("/sys/fs/cgroup")
# The cgroup of a container, below a parent that bentpipe sets or below the engine's parent for each cgroup driver.
GROUPS = (f"{FOREIGN}/{{0}}", f"{OWN}/{{0}}", "docker/{0}", "system.slice/docker-{0}.scope")


def usage_of(container: str) -> Usage | None:
    """The container's CPU time so far, and the time for which its CPU limit stopped it. `container`: its full id. None
    when the container has ended, when it runs on another host, or when the kernel doesn't report its CPU time.
    """
    for group in GROUPS:
        name = group.format(container)
        first, second = _first_version(name), _second_version(name)
        if first is not None or second is not None:
            return first or second
    return None


def _first_version(group: str) -> Usage | None:
    """Linux, Documentation/admin-guide/cgroup-v1/cpuacct.rst: nanoseconds."""
    try:
        used = int((_ROOT / "cpuacct" / group / "cpuacct.usage").read_text())
    except (OSError, ValueError):
        return None
    return Usage(cpu=used / 1e9, throttled=_field(_ROOT / "cpu" / group / "cpu.stat", "throttled_time") / 1e9)


def _second_version(group: str) -> Usage | None:
    """Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.stat: microseconds."""
    path = _ROOT / group / "cpu.stat"
    if not path.is_file():
        return None
    return Usage(cpu=_field(path, "usage_usec") / 1e6, throttled=_field(path, "throttled_usec") / 1e6)


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
