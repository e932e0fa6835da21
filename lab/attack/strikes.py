"""Strikes at processes of a run: one function for each target of the kills."""

import contextlib
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import docker

from lab.attack.processes import family
from lab.testbed.hosts import Host
from runner.engine.containers import LABEL_ROLE, LABEL_RUN

_AWAY_S = 2.0  # seconds for which an engine is stopped or a disk is full
_HOG = "import time; a = []\nwhile True: a.append(bytearray(b'x') * (1 << 20)); time.sleep(0.0005)"
_ROOM = 128 << 20  # bytes that the runner can allocate after the strike begins
_MEMORY = Path("/sys/fs/cgroup/memory")
# This library moves only the wall clock of the runner. libfaketime is not used, because it breaks sleeping in threads.
_SHIM = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    void *place = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
    offset = place == MAP_FAILED ? NULL : place;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && offset) time->tv_sec += *offset;
    return result;
}
"""
_ROLES: dict[str, Callable[[str], bool]] = {
    "holder": lambda role: role.endswith("-holder"),
    "simulator": lambda role: role == "sim",
    "plumber": lambda role: role == "plumber",
    "endpoint": lambda role: role in ("client", "server"),
    "watchdog": lambda role: role == "watchdog",
    "guest": lambda role: role == "guest",
}
# After a strike at these targets the command must be started again.
ENDS_RUNNER = ("runner", "group", "memory", "interrupt")
SECOND = "second runner"  # no strike: a second runner is started on the same folder, and must refuse
TARGETS = {
    "real": (
        *("runner", "judge", "holder", "group", "simulator", "plumber", "endpoint", "watchdog", "dockerd"),
        *("containerd", "memory", "disk", "clock", "interrupt", SECOND),
    ),
    "virtual": (
        *("runner", "judge", "guest", "group", "watchdog", "dockerd", "containerd", "memory", "disk", "clock"),
        *("interrupt", SECOND),
    ),
}


class Striker:
    """Strikes at one run, whose containers run in the engine of `host`."""

    def __init__(self, host: Host, run: Path, offset: Path) -> None:
        """`run`: the run's folder, which has its own file system. `offset`: the file that the library of `build_shim`
        reads."""
        self._host = host
        self._run = run
        self._offset = offset

    def strike(self, target: str, rng: Random, pid: int) -> str:
        """Hit the target. Returns its description; empty when there is no target of this kind at the moment."""
        if target in _ROLES:
            return self._container(target, rng)
        hit: Callable[[Random, int], str] = getattr(self, f"_{target}")
        return hit(rng, pid)

    @staticmethod
    def _runner(rng: Random, pid: int) -> str:  # noqa: ARG004 - all strikes have the same parameters
        os.kill(pid, signal.SIGKILL)
        return "the runner"

    @staticmethod
    def _group(rng: Random, pid: int) -> str:  # noqa: ARG004
        os.killpg(pid, signal.SIGKILL)
        return "the runner's group"

    @staticmethod
    def _interrupt(rng: Random, pid: int) -> str:
        """One to three times Ctrl-C, which a terminal sends to the whole group, or SIGTERM."""
        if rng.randrange(4) == 0:
            os.kill(pid, signal.SIGTERM)
            return "the runner, by SIGTERM"
        times = rng.randint(1, 3)
        for _ in range(times):
            os.killpg(pid, signal.SIGINT)
            time.sleep(rng.uniform(0.05, 1.0))
        return f"the runner's group, by {times} times Ctrl-C"

    @staticmethod
    def _judge(rng: Random, pid: int) -> str:  # noqa: ARG004
        judges = [judge for judge in family(pid) if b"runner.judge.child" in command_line(judge)]
        for judge in judges:
            with contextlib.suppress(ProcessLookupError):
                os.kill(judge, signal.SIGKILL)
        return f"{len(judges)} judges" if judges else ""

    def _container(self, target: str, rng: Random) -> str:
        engine = self._host.engine()
        try:
            running = engine.api.containers(filters={"label": f"{LABEL_RUN}={self._run.name}"})
            chosen = [container for container in running if _ROLES[target](container["Labels"][LABEL_ROLE])]
            rng.shuffle(chosen)
            for container in chosen:
                pid = engine.api.inspect_container(container["Id"])["State"]["Pid"]
                if pid > 1:
                    os.kill(pid, signal.SIGKILL)
                    return str(container["Labels"][LABEL_ROLE])
        except (docker.errors.DockerException, ProcessLookupError):
            return ""
        finally:
            engine.close()
        return ""

    def _dockerd(self, rng: Random, pid: int) -> str:  # noqa: ARG002
        os.kill(self._pid_of("docker.pid"), signal.SIGKILL)
        time.sleep(_AWAY_S)
        self._host.restart_engine()
        return "dockerd"

    def _containerd(self, rng: Random, pid: int) -> str:  # noqa: ARG002
        # dockerd starts it again. A containerd that outlives its dockerd is no child of the next one, and the file with
        # the process id may be old.
        known = {*family(self._pid_of("docker.pid")), self._pid_of("docker/containerd/containerd.pid")}
        running = [pid for pid in known if command_line(pid).split(b"\0")[0].rpartition(b"/")[2] == b"containerd"]
        for containerd in running:
            os.kill(containerd, signal.SIGKILL)
        return "containerd" if running else ""

    def _pid_of(self, file: str) -> int:
        return int(Path(f"/proc/{self._host.anchor}/root/run/{file}").read_text())

    @staticmethod
    def _memory(rng: Random, pid: int) -> str:  # noqa: ARG004
        """Let the memory of the runner's control group run out, so that the kernel kills the runner or a judge."""
        group = _MEMORY / f"bentpipe-attack-{pid}"
        group.mkdir()
        members = family(pid)
        try:
            (group / "memory.limit_in_bytes").write_text(str(_ROOM))
            for member in members:
                with contextlib.suppress(OSError):
                    (group / "cgroup.procs").write_text(str(member))
            enter = f'echo $$ > {group}/cgroup.procs; exec python3 -c "$0"'
            hogs: list[subprocess.Popen[bytes]] = []
            end = time.monotonic() + 20
            while time.monotonic() < end and all(Path(f"/proc/{member}").exists() for member in members):
                if not hogs or hogs[-1].poll() is not None:  # the kernel may have killed the hog instead
                    hogs.append(subprocess.Popen(["sh", "-c", enter, _HOG]))
                time.sleep(0.1)
            for hog in hogs:
                hog.kill()
                hog.wait()
        finally:
            for left in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (_MEMORY / "cgroup.procs").write_text(left)
            with contextlib.suppress(OSError):
                group.rmdir()
        dead = [member for member in members if not Path(f"/proc/{member}").exists()]
        return f"{len(dead)} of {len(members)} processes, for want of memory" if dead else ""

    def _disk(self, rng: Random, pid: int) -> str:  # noqa: ARG002
        """Fill the file system of the run for some seconds."""
        filling = self._run.parent / "filling"
        free = os.statvfs(self._run.parent)
        subprocess.run(["fallocate", "-l", str(free.f_bavail * free.f_frsize), filling], check=False)
        with contextlib.suppress(OSError), filling.open("ab") as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(_AWAY_S)
        filling.unlink()
        return "the run's disk"

    def _clock(self, rng: Random, pid: int) -> str:  # noqa: ARG002
        step = rng.choice((-86400, -600, -5, 5, 600, 86400))
        self._offset.write_bytes(struct.pack("=q", step))
        return f"the runner's clock, {step} s"


def build_shim(folder: Path) -> Path:
    """Build a library for LD_PRELOAD that moves the wall clock of a process. The file that the variable CLOCK_OFFSET
    names has the number of seconds. Raises CalledProcessError."""
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(_SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def command_line(pid: int) -> bytes:
    """The command line of a process; empty when it is gone."""
    return _content(pid, "cmdline")


def environment(pid: int) -> bytes:
    """The variables with which a process was started; empty when it is gone."""
    return _content(pid, "environ")


def _content(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""
