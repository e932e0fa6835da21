"""Runs the processes of guests: in a container without rights, or as processes of this user."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any, Protocol

from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.lanes.resident import Holder
from runner.lanes.supervised import Bell

IMAGE = "bentpipe/guest"
_NOBODY = 1000  # user that runs guests when root has started bentpipe
_SILENCE = 600.0  # seconds; a guest gives a sign of life every 20 s, which a busy host may delay


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a guest ended (guest/run-guest): ended, spins, hangs, late, stopped, memory, panic, died. Times in
    seconds."""

    how: str
    exit_code: int
    host_s: float
    cpu_s: float
    virtual_s: float
    switches: int
    spinner: Mapping[str, Any] = field(default_factory=dict)
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by role: syscalls, faults, cpu_s
    least_s: float = 0.0  # shortest time in user code, in seconds; 0 without charges


class House(Protocol):
    """A place for all guests of a run. Thread-safe."""

    kernel: str  # version of the guests' kernel
    mkfs: Sequence[str]  # the command that makes a disk, without its arguments

    def give_to_guests(self, folder: Path) -> None:
        """Give a folder and its contents to the user that runs guests."""
        ...

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in this place to its end. Returns exit code and output."""
        ...

    def run(self, folder: Path) -> Ended:
        """Run the guest that `folder` describes to its end. Raises LaneError when it can't be run."""
        ...

    def close(self) -> None:
        """End all guests."""
        ...


def _ended(code: int, printed: str) -> Ended:
    """Parse the last line that guest/run-guest printed. Raises LaneError when the line has another form."""
    lines = printed.strip().splitlines()
    try:
        return Ended(**json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        message = f"The guest could not be run (exit code {code})."
        raise LaneError("guest-not-started", message, printed=printed) from None


class ContainerHouse:
    """A container: no network, no capability, nothing writable but the folders of its guests."""

    mkfs: Sequence[str] = ("mkfs.erofs",)

    def __init__(self, engine: Engine, stop: Event, *, name: str, work: Path, disks: Path, memory: int) -> None:
        """`memory`: bytes that all guests together may use."""
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
            foreign=True,
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
        self._stop, self._spec, self._name = stop, spec, f"{name}-house"
        self._opening = Lock()
        self._closed = False
        self._container, self._holder = self._open()
        self.kernel = self.execute(["cat", "/guest/version"])[1].strip()  # version of the guests' kernel

    def _open(self) -> tuple[str, Holder]:
        container = self._engine.create(self._name, self._spec)
        holder = Holder(self._engine, container, Bell(self._stop), silence=_SILENCE)
        holder.start()
        return container, holder

    def _replace(self, lost: Holder) -> None:
        """Replace the container of the holder `lost` by a new container, unless another thread has done this."""
        with self._opening:
            if self._holder is lost and not self._closed:
                self._engine.remove(self._container)
                self._container, self._holder = self._open()

    def give_to_guests(self, folder: Path) -> None:
        """Give a folder and its contents to the user that runs guests."""
        if os.getuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self._user, self._user)

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command in the container to its end. Returns its exit code and its output.

        Raises LaneError. When the container or the connection to it is lost, the error is raised after a new container
        has replaced the lost container. After `close`, raises LaneError `stopped`.
        """
        if self._closed:
            raise LaneError("stopped", "The run was stopped while this job ran.")
        holder = self._holder
        try:
            return holder.execute(command)
        except LaneError as error:
            if error.code == "holder-died":
                self._replace(holder)
            raise

    def run(self, folder: Path) -> Ended:
        """Run the guest that `folder` describes to its end. Raises LaneError when the container fails."""
        return _ended(*self.execute(["/guest/run-guest", "/guest/kernel", str(folder)]))

    def close(self) -> None:
        """End all guests and remove the container. Afterwards no guest can begin."""
        with self._opening:
            self._closed = True
            self._engine.remove(self._container)


class ProcessHouse:
    """Ordinary processes of this user, without an engine and without root.

    `tools`: the folder /guest of the image bentpipe/guest. `temporary`: a folder where programs may run, best in
    memory, because the files with the memory of guests are there.
    """

    def __init__(self, tools: Path, temporary: Path) -> None:
        self._tools = tools
        self._environment = {**os.environ, "TMPDIR": str(temporary)}
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self.kernel = (tools / "version").read_text().strip()
        erofs = tools / "erofs"  # mkfs.erofs uses its own libraries: this host may have other versions
        self.mkfs: Sequence[str] = (
            str(erofs / "ld-linux-x86-64.so.2"),
            "--library-path",
            str(erofs),
            str(erofs / "mkfs.erofs"),
        )

    def give_to_guests(self, folder: Path) -> None:
        """Do nothing: the folder already belongs to this user."""

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end. Returns exit code and output. Raises LaneError when it can't be started."""
        with self._lock:
            if self._closed:
                raise LaneError("stopped", "The run was stopped while this job ran.")
            try:
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise LaneError("guest-not-started", f"{command[0]} can't be started: {error}.") from error
            self._running.add(process)
        output, _ = process.communicate()
        with self._lock:
            self._running.discard(process)
        return process.returncode, output.decode(errors="replace")

    def run(self, folder: Path) -> Ended:
        """Run the guest that `folder` describes to its end. Raises LaneError when it can't be run."""
        command = [sys.executable, "-ISB", str(self._tools / "run-guest"), str(self._tools / "kernel"), str(folder)]
        return _ended(*self.execute(command))

    def close(self) -> None:
        """End all guests. Afterwards no guest can begin."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)
