"""CPU weights of the containers of lanes, in comparison with other work of this host.

The weight of a container counts only inside its parent cgroup. Docker's own cgroup has the weight of a single process.
In that cgroup, a container that starts in another lane delays a simulator (sim/README.md, Measured). Therefore
containers of lanes are in two other cgroups:

* The harness's own containers (simulators, captures, holders) have the highest possible weight, because they must never
  wait for a CPU.
* Containers of images that are not trusted have on each CPU the weight of a few processes. They get most of the CPU
  time, but when they compute on all CPUs, the engine and the runner still get enough CPU time to end them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWN, FOREIGN = "bentpipe", "bentpipe-images"
"""Names of the cgroups of the harness's own containers, and of containers of images that are not trusted."""

PROCESSES = 8
"""Weight of all untrusted containers on one CPU, in processes of nice 0."""

_ROOT = Path("/sys/fs/cgroup")
# cgroup v1 and v2: folder of the groups, name of a weight, weight of one process, the highest possible weight.
_VERSIONS = (("cpu", "cpu.shares", 1024, 262144), (".", "cpu.weight", 100, 10000))


def cgroup_parent(engine: Mapping[str, Any], *, foreign: bool) -> str | None:
    """The cgroup for a container of a lane, from the engine's `info`. `foreign`: the image is not trusted. None when
    systemd manages cgroups: it requires a slice."""
    return f"/{FOREIGN if foreign else OWN}" if engine.get("CgroupDriver") == "cgroupfs" else None


def set_weights(root: Path = _ROOT) -> bool:
    """Give both cgroups their weights, after a container has joined the first one. Returns False when this process may
    not set them. The kernel divides the weight of a group between the CPUs on which the group runs."""
    for folder, name, process, highest in _VERSIONS:
        groups = root / folder
        foreign = min(highest, PROCESSES * process * (os.cpu_count() or 1))
        try:
            (groups / OWN / name).write_text(str(highest))
            (groups / FOREIGN).mkdir(exist_ok=True)
            (groups / FOREIGN / name).write_text(str(foreign))
        except OSError:
            continue
        return True
    return False
