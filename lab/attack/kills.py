"""Strikes processes, containers, engine, disk, memory and clock of runs at random moments. The same command continues a
run until it is done.

The runs have their own Docker Engine in namespaces, and their own file system. Three rules are checked. Stored results
never change by a byte after a strike. Containers and processes of a dead runner disappear by themselves. The same
command continues the run until every job has a result, which is success or blames an endpoint that was killed.
"""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import docker

from lab.attack.verdicts import Finding, Tally, Verdict, family, proc_file
from lab.testbed.hosts import Host, free_number, lacking
from runner.engine.containers import LABEL_LANES, LABEL_ROLE, LABEL_RUN, WATCHDOG_ROLE
from runner.errors import SetupError
from runner.images import pulling
from runner.images.images import build, images_of
from runner.model.result import Outcome
from runner.paths import ROOT
from runner.places.supervised import TOOLS
from runner.plan.catalog import load_catalog
from runner.plan.jobs import FIRST_CASE
from runner.store.runs import RunFolder

_DISK = 4 << 30  # bytes of the run's file system, sparse


@contextlib.contextmanager
def private_host(folder: Path, *, stacks: Sequence[str], guests: bool) -> Iterator[Host]:
    """A host with the images of these stacks, and a file system of its own in `folder`/disk. `guests`: the host also
    gets the images for virtual time."""
    host = Host(folder, free_number())
    image, disk = folder / "disk.ext4", folder / "disk"
    disk.mkdir()
    try:
        host.open()  # before the mount; otherwise the host's namespace would get a copy of the mount
        for words in (f"truncate -s {_DISK} {image}", f"mkfs.ext4 -q -m 0 {image}", f"mount -o loop {image} {disk}"):
            subprocess.run(words.split(), check=True)
        implementations = load_catalog().implementations
        needed = images_of((implementations[stack] for stack in stacks), guests=guests)
        build(docker.from_env(), needed, report=lambda _: None)  # a private engine reaches no mirror
        host.load(pulling.TAG, *(image.tag for image in needed))
        yield host
    finally:
        host.close()
        subprocess.run(["umount", "--lazy", disk], check=False)  # a child of a killed runner may still use the disk


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

    def strike(self, target: str, rng: Random, pid: int) -> bool:
        """Hit the target. Returns False when there is no target of this kind at the moment."""
        if target in _ROLES:
            return self._container(target, rng)
        hit: Callable[[Random, int], bool] = getattr(self, f"_{target}")
        return hit(rng, pid)

    @staticmethod
    def _runner(rng: Random, pid: int) -> bool:  # noqa: ARG004 - all strikes have the same parameters
        os.kill(pid, signal.SIGKILL)
        return True

    @staticmethod
    def _group(rng: Random, pid: int) -> bool:  # noqa: ARG004
        os.killpg(pid, signal.SIGKILL)
        return True

    @staticmethod
    def _interrupt(rng: Random, pid: int) -> bool:
        """One to three times Ctrl-C, which a terminal sends to the whole group, or SIGTERM."""
        if rng.randrange(4) == 0:
            os.kill(pid, signal.SIGTERM)
            return True
        for _ in range(rng.randint(1, 3)):
            os.killpg(pid, signal.SIGINT)
            time.sleep(rng.uniform(0.05, 1.0))
        return True

    @staticmethod
    def _judge(rng: Random, pid: int) -> bool:  # noqa: ARG004
        judges = [judge for judge in family(pid) if b"runner.judge.child" in command_line(judge)]
        for judge in judges:
            with contextlib.suppress(ProcessLookupError):
                os.kill(judge, signal.SIGKILL)
        return bool(judges)

    def _container(self, target: str, rng: Random) -> bool:
        engine = self._host.engine()
        try:
            running = engine.api.containers(filters={"label": f"{LABEL_RUN}={self._run.name}"})
            chosen = [container for container in running if _ROLES[target](container["Labels"][LABEL_ROLE])]
            rng.shuffle(chosen)
            for container in chosen:
                pid = engine.api.inspect_container(container["Id"])["State"]["Pid"]
                if pid > 1:
                    os.kill(pid, signal.SIGKILL)
                    return True
        except (docker.errors.DockerException, ProcessLookupError):
            return False
        finally:
            engine.close()
        return False

    def _dockerd(self, rng: Random, pid: int) -> bool:  # noqa: ARG002
        os.kill(self._pid_of("docker.pid"), signal.SIGKILL)
        time.sleep(_AWAY_S)
        self._host.restart_engine()
        return True

    def _containerd(self, rng: Random, pid: int) -> bool:  # noqa: ARG002
        # dockerd starts it again. A containerd that outlives its dockerd is no child of the next one, and the file with
        # the process id may be old.
        known = {*family(self._pid_of("docker.pid")), self._pid_of("docker/containerd/containerd.pid")}
        running = [pid for pid in known if command_line(pid).split(b"\0")[0].rpartition(b"/")[2] == b"containerd"]
        for containerd in running:
            os.kill(containerd, signal.SIGKILL)
        return bool(running)

    def _pid_of(self, file: str) -> int:
        return int(Path(f"/proc/{self._host.anchor}/root/run/{file}").read_text())

    @staticmethod
    def _memory(rng: Random, pid: int) -> bool:  # noqa: ARG004
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
        return not all(Path(f"/proc/{member}").exists() for member in members)

    def _disk(self, rng: Random, pid: int) -> bool:  # noqa: ARG002
        """Fill the file system of the run for some seconds."""
        filling = self._run.parent / "filling"
        free = os.statvfs(self._run.parent)
        subprocess.run(["fallocate", "-l", str(free.f_bavail * free.f_frsize), filling], check=False)
        with contextlib.suppress(OSError), filling.open("ab") as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(_AWAY_S)
        filling.unlink()
        return True

    def _clock(self, rng: Random, pid: int) -> bool:  # noqa: ARG002
        self._offset.write_bytes(struct.pack("=q", rng.choice((-86400, -600, -5, 5, 600, 86400))))
        return True


def build_shim(folder: Path) -> Path:
    """Build a library for LD_PRELOAD that moves the wall clock of a process. The file that the variable CLOCK_OFFSET
    names has the number of seconds. Raises CalledProcessError."""
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(_SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def command_line(pid: int) -> bytes:
    """The command line of a process; empty when it is gone."""
    return proc_file(pid, "cmdline")


_STACKS = ("quic-go", "aioquic")
_CASES = ("handshake", "resumption", "chacha20", "zerortt", "ipv6", "http3")
_ORPHANS_S = 120.0
_LOG = 3000  # characters of dockerd's log in a finding about orphans
_INTERRUPTED_S = 60.0  # the longest time until an interrupted run ends
_ALONE = 3  # after one of this many deaths, no other runner removes the leftovers
_END_S = 400.0  # the longest duration of a run without further strikes
_ABORT_S = 5.0  # the longest time until an aborted runner has printed its stacks
_UNNOTICED_S = 15.0  # the longest time until dockerd notices the end of a process; it gives up a removal after 12 s
_STACKS_PRINTED = 12000  # characters of the output that show the stacks of an aborted runner
_SECOND_S = 60.0  # the longest time until a second runner refuses
_PATIENCE_S = 25.0  # the longest wait for a target
_LONGEST_PAUSE_S = 2.5  # between strikes, and after the start of the command
_POLL_S = 0.2


def attack_kills(
    tally: Tally,
    scratch: Path,
    *,
    clock: str,
    only: str,
    seed: int,
    count: int,
    seconds: float,
    progress: Callable[[Tally], None],
) -> None:
    """Strike until `count` strikes were tried, including those of earlier calls, or `seconds` have passed. `clock`: the
    clock of the jobs, `real` or `virtual`. `only`: a regular expression of targets.

    Raises SetupError when no own engine can be made.
    """
    if reason := lacking():
        raise SetupError(f"Kills need a Docker Engine of their own, which can't be made here: {reason}.")
    targets = tuple(target for target in TARGETS[clock] if re.search(only, target))
    if not targets:
        raise SetupError(f"No target matches {only!r}: choose among {', '.join(TARGETS[clock])}.")
    began = time.monotonic()
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder,
        private_host(Path(folder), stacks=_STACKS, guests=clock == "virtual") as host,
    ):
        shim = build_shim(Path(folder))
        while tally.tried < count and time.monotonic() - began < seconds:
            run = _Run(host, Path(folder) / "disk" / f"run{tally.tried}", clock, targets, seed, tally, progress, shim)
            run.strike_until_done(count, began + seconds)


@dataclass
class _Run:
    """One run under attack."""

    host: Host
    folder: Path
    clock: str
    targets: tuple[str, ...]
    seed: int
    tally: Tally
    progress: Callable[[Tally], None]
    shim: Path
    _stored: dict[str, str] = field(default_factory=dict)  # digests of results by folder
    _dead: dict[str, float] = field(default_factory=dict)  # container or volume of a dead runner → time of death
    _blamed: int = 0  # endpoints that were killed
    _without: dict[str, float] = field(default_factory=dict)  # id of a container without a process → since when
    _lost: set[str] = field(default_factory=set)  # ids of containers that dockerd lost
    _states: dict[str, str] = field(default_factory=dict)  # container → last state, as `docker ps` prints it

    def strike_until_done(self, count: int, deadline: float) -> None:
        """Strike one target after another until the run ends, `count` strikes are done, or `deadline` is reached. Then
        wait for the end of the run and check it."""
        began = time.monotonic()
        self.offset.write_bytes(bytes(8))
        striker = Striker(self.host, self.folder, self.offset)
        process = self._start()
        while self.tally.tried < count and time.monotonic() < deadline:
            number = self.tally.kinds.total()
            rng = Random(f"{self.seed}/{number}")
            target = self.targets[number % len(self.targets)]
            attack = f"kills --seed {self.seed}, {number}: {target}"
            time.sleep(rng.uniform(0.1, _LONGEST_PAUSE_S))
            if target == SECOND:
                hit = self._refuses_second(attack, process)
            else:
                hit = self._hit(striker, target, rng, process)
            if not hit:
                self.tally.kinds[f"{target} (nothing to strike at)"] += 1
                if process.poll() is not None:
                    break
                continue
            self.tally.kinds[target] += 1
            self.tally.tried += 1
            self._blamed += target == "endpoint"
            if target in ENDS_RUNNER:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1 if target == "memory" else _INTERRUPTED_S)
                if process.poll() is None and target != "memory":
                    self._abort(process)
                    why = f"not ended after {_INTERRUPTED_S:.0f} s\n{self._printed(_STACKS_PRINTED)}"
                    self._add(attack, Verdict.LOST, "time", why)
                if process.poll() is not None:
                    self._mourn()
                    self._look(attack)
                    if rng.randrange(_ALONE) == 0:  # otherwise the next runner removes them
                        self._await_the_end_of_all(attack)
                    process = self._start()
            self.progress(self.tally)
        self._finish(process)
        self.tally.seconds += time.monotonic() - began

    @property
    def offset(self) -> Path:
        """The file with the offset of the runner's clock."""
        return self.folder.with_name(f"{self.folder.name}.clock")

    def _hit(self, striker: Striker, target: str, rng: Random, process: "subprocess.Popen[bytes]") -> bool:
        """Strike as soon as there is a target. Returns False when there was none."""
        end = time.monotonic() + _PATIENCE_S
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError):
                if striker.strike(target, rng, process.pid):
                    return True
            time.sleep(_POLL_S)
        return False

    @staticmethod
    def _abort(process: "subprocess.Popen[bytes]") -> None:
        """Let a runner print the stacks of its threads, and end it with its children."""
        process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ABORT_S)
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _finish(self, process: "subprocess.Popen[bytes]") -> None:
        attack = f"kills --seed {self.seed}, run up to {self.tally.tried - 1}"
        code = self._end(process)
        if code is None:
            why = f"the run did not end in {_END_S:.0f} s\n{self._printed(_STACKS_PRINTED)}"
            self._add(attack, Verdict.LOST, "time", why)
        if code != 0:
            self._look(attack)
            self._mourn()
            self._await_engine()
            again = self._end(self._start())
            if again != 0:
                why = f"the command ended with {code}, again with {again}\n{self._printed()}"
                self._add(attack, Verdict.LOST, "resume", why)
        self._look(attack)
        self._check_results(attack)
        if "Traceback" in self._printed(1 << 20):
            self._add(attack, Verdict.LOST, "traceback", self._printed(4000))
        self._mourn()
        self._await_the_end_of_all(attack)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _await_the_end_of_all(self, attack: str) -> None:
        """Check that the containers, volumes and processes of dead runners disappear without another runner."""
        present = self._names()
        # It is unknown when the others disappeared.
        self._dead = {name: died for name, died in self._dead.items() if name in present}
        left = self._left()
        while left and time.monotonic() - max(left.values()) < _ORPHANS_S:
            time.sleep(_POLL_S)
            left = self._left()
        if left:
            states = ", ".join(f"{name} ({self._states.get(name, '')})" for name in left)
            log = (self.host.folder / "dockerd.log").read_text(errors="replace")[-_LOG:]
            self._add(attack, Verdict.ESCAPED, "orphan", f"{log}\nafter {_ORPHANS_S:.0f} s: {states}")
            self._dead.clear()

    def _await_engine(self) -> None:
        """Wait until the engine starts containers: dockerd needs up to a minute to start containerd again."""
        end = time.monotonic() + _ORPHANS_S
        while time.monotonic() < end:
            engine = self.host.engine()
            try:
                engine.containers.run(TOOLS, "true", remove=True, network_mode="none")
            except (docker.errors.DockerException, OSError):
                time.sleep(1.0)
            else:
                return
            finally:
                engine.close()

    def _add(self, attack: str, verdict: Verdict, kind: str, text: str) -> None:
        self.tally.add(Finding(attack=attack, verdict=verdict, what=kind, text=text))

    def _refuses_second(self, attack: str, first: "subprocess.Popen[bytes]") -> bool:
        """Start the same command while the first command runs, and check that it refuses to run. Returns False when the
        first command ended meanwhile."""
        printed = self.folder.with_name(f"{self.folder.name}.second.txt")
        printed.unlink(missing_ok=True)
        second = self._start(printed)
        try:
            code = second.wait(_SECOND_S)
        except subprocess.TimeoutExpired:
            os.killpg(second.pid, signal.SIGKILL)
            code = second.wait()
        text = printed.read_text(errors="replace")
        if first.poll() is not None:
            return False
        if code != 2 or "Another runner" not in text:
            self._add(attack, Verdict.LOST, "second runner", f"exit code {code}\n{text[-1500:]}")
        return True

    def _start(self, output: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start the command. `output`: the file for its output; None: the file for the output of the run's commands."""
        names = ",".join(_STACKS)
        selection = ("--server", names, "--client", names, "--case", ",".join(_CASES))
        options = ("--lanes", "2", "--clock", self.clock, "--seed", "1", "--yes")
        command = [sys.executable, "-m", "runner", "run", "--run", str(self.folder), *selection, *options]
        environment = {**os.environ, "DOCKER_HOST": f"unix://{self.host.socket}"}
        environment |= {"LD_PRELOAD": str(self.shim), "CLOCK_OFFSET": str(self.offset), "PYTHONFAULTHANDLER": "1"}
        with (output or self.folder.with_name(f"{self.folder.name}.txt")).open("ab") as printed:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )

    def _end(self, process: "subprocess.Popen[bytes]") -> int | None:
        """Wait for the end of a command. Returns its exit code; None when it took too long and was killed."""
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._abort(process)
            return None

    def _printed(self, most: int = 1500) -> str:
        return self.folder.with_name(f"{self.folder.name}.txt").read_text(errors="replace")[-most:]

    def _mourn(self) -> None:
        """Note the containers and volumes of a runner that has just died."""
        now = time.monotonic()
        for name in self._names():
            self._dead.setdefault(name, now)

    def _left(self) -> dict[str, float]:
        """The remaining containers, volumes and processes of dead runners, with the time of their death."""
        left = self._names()
        gone = [name for name in self._dead if name not in left]
        for name in gone:
            self.tally.peak("s until nothing was left", time.monotonic() - self._dead.pop(name))
        return dict(self._dead)

    def _names(self) -> set[str]:
        """Containers and volumes of this run, as texts of runner and name, and its processes."""
        return self._engine_names() | {f"process {pid}" for pid in self._processes()}

    def _processes(self) -> list[int]:
        """The runners of this run and their children, also those without a parent: they inherit a variable."""
        variable = f"CLOCK_OFFSET={self.offset}".encode()
        pids = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - {os.getpid()}
        return [pid for pid in pids if variable in proc_file(pid, "environ").split(b"\0")]

    def _engine_names(self) -> set[str]:
        engine = self.host.engine()
        filters = {"label": f"{LABEL_RUN}={self.folder.name}"}
        try:
            containers = engine.api.containers(all=True, filters=filters)
            volumes = engine.api.volumes(filters=filters)["Volumes"] or []
            lost = self._lost_now({container["Id"] for container in containers if _has_no_process(engine, container)})
        except (docker.errors.DockerException, OSError):
            return {name for name in self._dead if not name.startswith("process ")}
        finally:
            engine.close()
        # The watchdog and the volumes stay as long as the lost container stays.
        waiting = {container["Labels"][LABEL_LANES] for container in containers if container["Id"] in lost}
        left = {
            f"{container['Labels'][LABEL_LANES]} {container['Names'][0]}": container["Status"]
            for container in containers
            if container["Id"] not in lost
            and not (container["Labels"][LABEL_ROLE] == WATCHDOG_ROLE and container["Labels"][LABEL_LANES] in waiting)
        }
        self._states |= left
        names = {volume["Name"]: volume["Labels"][LABEL_LANES] for volume in volumes}
        return set(left) | {f"{lanes} {name}" for name, lanes in names.items() if lanes not in waiting}

    def _lost_now(self, without_process: set[str]) -> set[str]:
        """The containers whose process ended some time ago, while dockerd still calls them running."""
        now = time.monotonic()
        self._without = {name: self._without.get(name, now) for name in without_process}
        lost = {name for name, since in self._without.items() if now - since > _UNNOTICED_S}
        for _ in lost - self._lost:
            self.tally.kinds["(a container that dockerd lost)"] += 1
        self._lost |= lost
        return lost

    def _look(self, attack: str) -> None:
        """Check that no stored result is gone or changed."""
        after = {
            str(path.parent.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.folder.glob("*_*/*/*/result.json")
        }
        for place, digest in self._stored.items():
            if place not in after:
                self._add(attack, Verdict.LOST, "result", f"{place} is gone")
            elif after[place] != digest:
                self._add(attack, Verdict.LOST, "result", f"{place} was run again, or changed")
        self._stored = after

    def _check_results(self, attack: str) -> None:
        try:
            run = RunFolder.open(self.folder)
        except Exception as error:
            self._add(attack, Verdict.LOST, "run", f"it can't be opened: {error!r}")
            return
        results, bad = run.results(), []
        for job in run.run.order:
            if job not in results:
                self._add(attack, Verdict.LOST, "result", f"{job} has none")
            elif results[job].outcome is not Outcome.SUCCEEDED:
                bad.append(results[job])
        # The other cases of a pair are skipped after its handshake has failed.
        failed = {(result.server, result.client) for result in bad if result.case == FIRST_CASE}
        bad = [
            result
            for result in bad
            if result.outcome is not Outcome.SKIPPED or (result.server, result.client) not in failed
        ]
        blamed = [result for result in bad if result.outcome is Outcome.FAILED and result.findings[0].role]
        for result in (*(result for result in bad if result not in blamed), *blamed[self._blamed :]):
            why = result.findings[0]
            text = f"{result.job}: {result.outcome}, {why.code}: {why.actual} {result.disturbed}"
            busy = os.getloadavg()[1] > (os.cpu_count() or 1)  # the run's own two lanes take less
            disturbed = busy and (why.code, why.role) == ("disturbed", "")
            self._add(attack, Verdict.DISTURBED if disturbed else Verdict.LOST, "outcome", text)
        if extra := [str(path) for path in self.folder.glob(".partial/*")]:
            self._add(attack, Verdict.LOST, "litter", ", ".join(extra))


def _has_no_process(engine: docker.DockerClient, container: dict[str, Any]) -> bool:
    """Whether a container that dockerd calls running, or is removing, has no process. After a death of containerd,
    dockerd 20.10 may never notice the end of a process. Then it can't remove the container until its own restart."""
    if container["State"] == "removing":
        return True
    if container["State"] != "running":
        return False
    try:
        pid = int(engine.api.inspect_container(container["Id"])["State"]["Pid"])
    except docker.errors.NotFound:
        return False
    return pid > 0 and not Path(f"/proc/{pid}").exists()
