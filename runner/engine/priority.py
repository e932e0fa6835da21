"""A higher CPU weight for the containers of lanes than for other work of this host.

The weight of a container counts only inside its parent cgroup. Docker's own cgroup has the weight of a single process.
In that cgroup, a container that starts in another lane delays a simulator (sim/README.md, Measured).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARENT = "/bentpipe"
_ROOT = Path("/sys/fs/cgroup")
# The highest possible weights of cgroup v1 and of cgroup v2.
_WEIGHTS = ((_ROOT / "cpu" / "bentpipe" / "cpu.shares", "262144"), (_ROOT / "bentpipe" / "cpu.weight", "10000"))


def cgroup_parent(engine: Mapping[str, Any]) -> str | None:
    """The cgroup for containers of lanes, from the engine's `info`. None when systemd manages cgroups: it requires a
    slice."""
    return PARENT if engine.get("CgroupDriver") == "cgroupfs" else None


def raise_weight() -> bool:
    """Give the cgroup the highest weight, after a container has joined it. Returns False when this process may not set
    the weight."""
    for path, weight in _WEIGHTS:
        try:
            path.write_text(weight)
        except OSError:
            continue
        return True
    return False
