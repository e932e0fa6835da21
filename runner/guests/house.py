"""The container in which guests run: no network, no capability, nothing writable but the folders of its guests."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.lanes.resident import Holder
from runner.lanes.supervised import Bell

IMAGE = "bentpipe/guest"
_NOBODY = 1000  # who runs guests when root has started bentpipe
_SHARED_MEMORY = "/dev/shm"  # of this host: guests have their memory there where there is no other


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a guest ended (guest/run-guest): ended, spins, hangs, late, stopped, panic, died. Seconds."""

    how: str
    exit_code: int
    host_s: float
    cpu_s: float
    virtual_s: float
    switches: int
    spinner: Mapping[str, Any] = field(default_factory=dict)
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by role: syscalls, faults, cpu_s
    least_s: float = 0.0  # the shortest stay in user code; 0 without charges


class House:
    """One container for all guests of a run. Thread-safe."""

    def __init__(self, engine: Engine, stop: Event, *, name: str, work: Path, disks: Path, memory: int) -> None:
        """`memory`: bytes that all guests together may use."""
        self.name = name
        self._engine = engine
        self._work = work
        user = os.getuid() or _NOBODY
        for folder in (work, disks):
            folder.mkdir(parents=True, exist_ok=True)
            if os.getuid() == 0:
                os.chown(folder, user, user)
        spec = ContainerSpec(
            image=IMAGE,
            role="house",
            command=("/guest/house",),
            stdin=True,
            host={
                "network_mode": "none",
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "read_only": True,
                "pids_limit": 16384,
                "mem_limit": memory,
                "memswap_limit": memory,
                "tmpfs": {"/tmp": f"exec,nosuid,nodev,size={memory}"},
                "binds": [f"{work}:{work}:rw", f"{disks}:{disks}:rw"],
                "log_config": {"Type": "none", "Config": {}},
            },
            user=f"{user}:{user}",
        )
        self._user = user
        self._container = engine.create(f"{name}-house", spec)
        self._holder = Holder(engine, self._container, Bell(stop))
        self._holder.start()
        self.kernel = self.execute(["cat", "/guest/version"])[1].strip()  # its version

    def own(self, folder: Path) -> None:
        """Give a folder and what is in it to who runs guests."""
        if os.getuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self._user, self._user)

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in the container to its end. Returns exit code and what it printed."""
        return self._holder.execute(command)

    def run(self, folder: Path) -> Ended:
        """Run the guest that `folder` describes to its end. Raises LaneError when the container fails."""
        code, said = self.execute(["/guest/run-guest", "/guest/kernel", str(folder)])
        lines = said.strip().splitlines()
        try:
            return Ended(**json.loads(lines[-1]))
        except (IndexError, ValueError, TypeError):
            raise LaneError(
                "guest-not-started", f"The guest could not be run (exit code {code}): {said[-300:]}"
            ) from None

    def close(self) -> None:
        """End all guests and remove the container."""
        self._engine.remove(self._container)
