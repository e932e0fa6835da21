"""Runs guest/run-guest: in a container for each guest, or as a confined process of this user."""

import io
import itertools
import json
import os
import pwd
import secrets
import signal
import subprocess
import sys
import tarfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from runner import collect
from runner.engine.containers import ContainerSpec, Engine
from runner.engine.output import Output
from runner.errors import LaneError, SetupError
from runner.units import MIB

IMAGE = "bentpipe/guest"
DISKS = "/disks"  # the folder with disks in a guest's container
LATE = 600.0  # seconds: a guest gives a sign of life every 20 s, which a busy host may delay
_MEMORY = 4608 * MIB  # most bytes of one guest and of its files
_FILES = 4096 * MIB
_PROCESSES = 8192
_LARGEST_JSON = 64 * 1024  # bytes
_MEMBERS = 64  # files of a result
_RESULT = "ended"
_STDOUT = 1
_BLOCK = 1 << 20
_LINES = 5  # lines of a guest's own messages in an error
_UNUSED = range(0x70000000, 0x7F000000)  # user ids that neither distributions nor systemd give away
_MAPPED = range(20_000, 60_000)  # in a container with a user namespace, these are ids of the namespace

Files = Iterable[tuple[str, bytes | Path]]  # with their names; a name that ends with `/` is a folder


class Launcher(ABC):
    """Starts guests, and programs that make disks of images. Thread-safe."""

    kernel: str  # version of the guests' kernel

    @abstractmethod
    def folder_of_disks(self, folder: Path) -> str:
        """The path under which guests see the disks of `folder`."""

    @abstractmethod
    def _stream(self, part: str, files: Files, disks: Sequence[Path], seconds: float) -> Generator[bytes, None, None]:
        """Start a part of run-guest, send `files` to it and yield the archive that it prints. Closing the generator
        ends the program. Raises LaneError when the program ends before its archive does, or after `seconds`."""

    @abstractmethod
    def close(self) -> None:
        """End all guests. Afterwards no guest can begin."""

    def run(
        self, part: str, files: Files, result: Path, *, budget: int, seconds: float, disks: Sequence[Path] = ()
    ) -> dict[str, Any]:
        """Run a part of run-guest, `guest` or `disk`, to its end. `files`: its input. `result`: a folder for the files
        that it returns, made here; they may come from a hostile guest. `budget`: most bytes of these files. Returns the
        JSON object of the program's own report. Raises LaneError."""
        result.mkdir(mode=0o700)
        with closing(self._stream(part, files, disks, seconds)) as blocks:
            collect.extract(blocks, result, budget=budget, members=_MEMBERS)
        try:
            with (result / _RESULT).open("rb") as file:
                ended = json.loads(file.read(_LARGEST_JSON))
        except (OSError, ValueError, RecursionError):
            ended = None
        if not isinstance(ended, dict):
            raise LaneError("guest-died", "The guest did not report how it ended.")
        return ended


def pack(files: Files) -> Iterator[bytes]:
    """Yields a tar file of `files`, in blocks."""
    sent = 0
    for name, content in files:
        member = tarfile.TarInfo(name.rstrip("/"))
        member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
        member.size = content.stat().st_size if isinstance(content, Path) else len(content)
        yield member.tobuf(tarfile.PAX_FORMAT)
        with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as source:
            while block := source.read(_BLOCK):
                yield block
        padding = -member.size % tarfile.BLOCKSIZE
        yield bytes(padding)
        sent += len(member.tobuf(tarfile.PAX_FORMAT)) + member.size + padding
    sent += 2 * tarfile.BLOCKSIZE
    yield bytes(2 * tarfile.BLOCKSIZE + -sent % tarfile.RECORDSIZE)  # the receiver reads whole records


class _Deadline:
    """Calls `end` when `seconds` have passed, or when `seen` was not called for `LATE` seconds."""

    def __init__(self, end: Any, seconds: float) -> None:
        self.passed = False
        self._end, self._until = end, time.monotonic() + seconds
        self._over = threading.Event()
        self.seen()
        threading.Thread(target=self._watch, name="deadline", daemon=True).start()

    def seen(self) -> None:
        """Record a sign of life."""
        self._silent = time.monotonic() + LATE

    def close(self) -> None:
        """Stop watching."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            if time.monotonic() > min(self._until, self._silent):
                self.passed = True
                self._end()
                return


def _failure(messages: Output, *, late: bool, closed: bool, memory: bool = False) -> LaneError:
    """The error of a program that ended before its archive did."""
    if closed:
        return LaneError("stopped", "The run was stopped while this job ran.")
    if late:
        return LaneError("guest-late", "The guest was still running when its time on this host was over.")
    if memory:
        return LaneError("guest-memory", "This host had no memory left for the guest.")
    return LaneError("guest-died", "The guest ended before its job did.", printed=messages.last_lines(_LINES))


def unused_user(ids: range = _UNUSED, subordinate: Sequence[Path] = (Path("/etc/subuid"), Path("/etc/subgid"))) -> int:
    """A user id that belongs to nobody: no account, no range that users may map into their namespaces."""
    ranges = []
    for path in subordinate:
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
            with suppress(ValueError):
                _, first, count = line.split(":")
                ranges.append(range(int(first), int(first) + int(count)))
    while True:
        user = ids.start + secrets.randbelow(len(ids))
        try:
            pwd.getpwuid(user)
        except KeyError:
            if not any(user in owned for owned in ranges):
                return user


class ContainerLauncher(Launcher):
    """A container for each guest: without network and capabilities, with a user id of its own, and with no folder that
    it shares with anybody. It sees the disks of its job, read-only."""

    def __init__(self, engine: Engine, *, name: str, mapped: bool, kernel: str) -> None:
        """`name`: the beginning of the containers' names. `mapped`: the engine uses a user namespace. `kernel`: the
        version of the guests' kernel."""
        self.kernel = kernel
        self._engine = engine
        self._name = name
        self._ids = _MAPPED if mapped else _UNUSED
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._closed = False

    def folder_of_disks(self, folder: Path) -> str:  # noqa: ARG002 - every container has the same folder
        return DISKS

    def _spec(self, part: str, disks: Sequence[Path]) -> ContainerSpec:
        user, scratch = unused_user(self._ids), part == "disk"
        return ContainerSpec(
            image=IMAGE,
            role=part,
            # Disks may be larger than this host's memory: they are made in the container's own file system.
            command=("/guest/run-guest", part, "/guest/kernel", "/var/tmp" if scratch else "/tmp"),
            foreign=True,
            stdin=True,
            host={
                "network_mode": "none",
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges"],
                "read_only": not scratch,
                "pids_limit": _PROCESSES,
                "mem_limit": _MEMORY,
                "memswap_limit": _MEMORY,
                "tmpfs": {} if scratch else {"/tmp": f"exec,nosuid,nodev,size={_FILES}"},
                "binds": [f"{disk}:{DISKS}/{disk.name}:ro" for disk in disks],
                "log_config": {"Type": "none", "Config": {}},
            },
            user=f"{user}:{user}",
        )

    def _stream(self, part: str, files: Files, disks: Sequence[Path], seconds: float) -> Generator[bytes, None, None]:
        messages = Output()
        with self._lock:
            if self._closed:
                raise _failure(messages, late=False, closed=True)
            container = self._engine.create(f"{self._name}-{part}-{next(self._numbers)}", self._spec(part, disks))
            self._running.add(container)
        try:
            stream = self._engine.follow(container, stdin=True)
            with closing(stream), closing(_Deadline(stream.close, seconds)) as deadline:
                self._engine.start(container)
                with suppress(LaneError):  # a program that has ended: its messages say why
                    for block in pack(files):
                        stream.write(block)
                for source, data in stream:
                    deadline.seen()
                    if source == _STDOUT:
                        yield data
                    else:
                        messages.feed(data)
                if self._closed or deadline.passed:
                    raise _failure(messages, late=deadline.passed, closed=self._closed)
                self._engine.wait(container)
                state = self._engine.state(container)
                if state.exit_code != 0:
                    raise _failure(messages, late=False, closed=self._closed, memory=state.oom_killed)
        finally:
            with self._lock:
                self._running.discard(container)
            with suppress(LaneError):  # the engine's other calls report this error; the run's end removes the container
                self._engine.remove(container)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running = tuple(self._running)
        for container in running:
            self._engine.remove(container)


class ProcessLauncher(Launcher):
    """Confined processes of this user, without an engine and without root.

    `tools`: the folder /guest of the image bentpipe/guest.
    """

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self.kernel = (tools / "version").read_text().strip()

    def _command(self, part: str, visible: Sequence[Path] = ()) -> list[str]:
        program, kernel = self._tools / "run-guest", self._tools / "kernel"
        return [sys.executable, "-ISB", str(program), part, str(kernel), "--confined", *map(str, visible)]

    def require_confinement(self) -> None:
        """Raise SetupError when this host doesn't let this user confine guests."""
        tried = subprocess.run(
            self._command("nothing"), env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if tried.returncode:
            why = tried.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            raise SetupError(
                f"--rootless: {why[0]}, and without confinement an image could do all that you can: let users make "
                "namespaces (`sysctl user.max_user_namespaces`, on Ubuntu "
                "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`), or use Docker."
            )

    def folder_of_disks(self, folder: Path) -> str:
        return str(folder)

    def _stream(self, part: str, files: Files, disks: Sequence[Path], seconds: float) -> Generator[bytes, None, None]:
        messages = Output()
        with self._lock:
            if self._closed:
                raise _failure(messages, late=False, closed=True)
            process = subprocess.Popen(
                self._command(part, disks),
                env={},  # the user's variables may be secret
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self._running.add(process)
        assert process.stdin and process.stdout and process.stderr
        reader = threading.Thread(target=_read_messages, args=(process.stderr, messages), daemon=True)
        deadline = _Deadline(process.kill, seconds)
        try:
            reader.start()
            with suppress(BrokenPipeError):  # a program that has ended: its messages say why
                for block in pack(files):
                    process.stdin.write(block)
                process.stdin.close()
            while data := os.read(process.stdout.fileno(), _BLOCK):
                deadline.seen()
                yield data
            if process.wait() or deadline.passed:
                reader.join(1.0)
                raise _failure(messages, late=deadline.passed, closed=self._closed)
        finally:
            deadline.close()
            process.kill()
            process.wait()
            with self._lock:
                self._running.discard(process)
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.send_signal(signal.SIGKILL)


def _read_messages(file: Any, messages: Output) -> None:
    while data := os.read(file.fileno(), _BLOCK):
        messages.feed(data)
    file.close()
