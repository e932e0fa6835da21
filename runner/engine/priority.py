"""A CPU weight for everything that runs in lanes, above the host's other work.

The weight of a container counts only inside the cgroup that holds it. Docker's own has that of a single process, so
that the start of a container in a neighbouring lane makes a simulator late (sim/README.md, Measured).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARENT = "/bentpipe"
_ROOT = Path("/sys/fs/cgroup")
# The highest weights that there are: of cgroup v1 and of cgroup v2.
_WEIGHTS = ((_ROOT / "cpu" / "bentpipe" / "cpu.shares", "262144"), (_ROOT / "bentpipe" / "cpu.weight", "10000"))


def cgroup_parent(engine: Mapping[str, Any]) -> str | None:
    """The cgroup for containers of lanes, by the engine's `info`; None where systemd owns them, which wants a slice."""
    return PARENT if engine.get("CgroupDriver") == "cgroupfs" else None


def raise_weight() -> bool:
    """Once a container is in the cgroup, give it the highest weight. False where that isn't ours to do."""
    for path, weight in _WEIGHTS:
        try:
            path.write_text(weight)
        except OSError:
            continue
        return True
    return False
