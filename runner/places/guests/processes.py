"""The processes of guests, the disks and images that they need, and the memory of this host."""

import io
import itertools
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from runner.engine.containers import ContainerSpec, Engine, Output
from runner.errors import LaneError, SetupError
from runner.files import own_folder
from runner.images.pulling import SavedImages
from runner.places.supervised import confined
from runner.store import collect
from runner.store.collect import extract_file
from runner.store.runs import write_atomically
from runner.units import MIB, format_size

# Runs guest/run-guest: in a container for each guest, or as a confined process of this user.

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
_CPU_GRACE = 10  # CPU seconds between SIGXCPU and SIGKILL
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
    def _stream(
        self, part: str, files: Files, disks: Sequence[Path], seconds: float, cpu_s: int | None
    ) -> Generator[bytes, None, None]:
        """Start a part of run-guest, send `files` to it and yield the archive that it prints. Closing the generator
        ends the program. Each of its processes gets SIGXCPU after `cpu_s` seconds of CPU time. Raises LaneError when
        the program ends before its archive does, or after `seconds`."""

    @abstractmethod
    def close(self) -> None:
        """End all guests. Afterwards no guest can begin."""

    def run(
        self,
        part: str,
        files: Files,
        result: Path,
        *,
        budget: int,
        seconds: float,
        disks: Sequence[Path] = (),
        cpu_s: int | None = None,
    ) -> dict[str, Any]:
        """Run a part of run-guest, `guest` or `disk`, to its end. `files`: its input. `result`: a folder for the files
        that it returns, made here; they may come from a hostile guest. `budget`: most bytes of these files. `cpu_s`:
        most CPU seconds of one of its processes, of which the guest's kernel is one; None: no limit. Returns the JSON
        object of the program's own report. Raises LaneError."""
        result.mkdir(mode=0o700)
        with closing(self._stream(part, files, disks, seconds, cpu_s)) as blocks:
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

    def _spec(self, part: str, disks: Sequence[Path], cpu_s: int | None) -> ContainerSpec:
        user, scratch = unused_user(self._ids), part == "disk"
        return ContainerSpec(
            image=IMAGE,
            role=part,
            # Disks may be larger than this host's memory: they are made in the container's own file system.
            command=("/guest/run-guest", part, "/guest/kernel", "/var/tmp" if scratch else "/tmp"),
            foreign=True,
            stdin=True,
            host=confined(
                _MEMORY,
                pids=_PROCESSES,
                network_mode="none",
                read_only=not scratch,
                tmpfs={} if scratch else {"/tmp": f"exec,nosuid,nodev,size={_FILES}"},
                binds=[f"{disk}:{DISKS}/{disk.name}:ro" for disk in disks],
                ulimits=[] if cpu_s is None else [{"Name": "cpu", "Soft": cpu_s, "Hard": cpu_s + _CPU_GRACE}],
            ),
            user=f"{user}:{user}",
        )

    def _stream(
        self, part: str, files: Files, disks: Sequence[Path], seconds: float, cpu_s: int | None
    ) -> Generator[bytes, None, None]:
        messages = Output()
        with self._lock:
            if self._closed:
                raise _failure(messages, late=False, closed=True)
            name = f"{self._name}-{part}-{next(self._numbers)}"
            container = self._engine.create(name, self._spec(part, disks, cpu_s))
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

    def _command(self, part: str, visible: Sequence[Path] = (), cpu_s: int | None = None) -> list[str]:
        program, kernel = self._tools / "run-guest", self._tools / "kernel"
        command = [sys.executable, "-ISB", str(program), part, str(kernel), "--confined", *map(str, visible)]
        if cpu_s is None:
            return command
        limits = f'ulimit -S -t {cpu_s} && ulimit -H -t {cpu_s + _CPU_GRACE} && exec "$0" "$@"'
        return ["/bin/sh", "-c", limits, *command]

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

    def _stream(
        self, part: str, files: Files, disks: Sequence[Path], seconds: float, cpu_s: int | None
    ) -> Generator[bytes, None, None]:
        messages = Output()
        with self._lock:
            if self._closed:
                raise _failure(messages, late=False, closed=True)
            process = subprocess.Popen(
                self._command(part, disks, cpu_s),
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


# Turns images into disks that a guest mounts: one EROFS file for each image, with the image's owners and modes.

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LARGEST = 64 << 30  # bytes of a disk
_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk, and how the image's first process is started. `user` and `group` are numbers."""

    path: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str = "/"
    user: int = 0
    group: int = 0


class Images(Protocol):
    """A source of images: an engine, or archives (`SavedImages`)."""

    def image_id(self, image: str) -> str:
        """The id of an image, `sha256:…`. Raises an error for a missing image."""
        ...

    def image_config(self, image: str) -> Mapping[str, Any]:
        """User, Env, Entrypoint, Cmd, WorkingDir, as `docker image inspect` shows them."""
        ...

    def write_root(self, image: str, path: Path) -> None:
        """Write the image's root folder as a tar file. Raises LaneError."""
        ...


class ImageDisks:
    """The images of an engine. `name`: the beginning of the names of containers that are made to export images."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self.image_id = engine.image_id
        self.image_config = engine.image_config

    def write_root(self, image: str, path: Path) -> None:
        """Write the image's root folder as a tar file. Raises LaneError."""
        made = self._engine.create(f"{self._name}-{path.stem[:12]}", _exported(image))
        try:
            with path.open("wb") as file:
                for block in self._engine.export(made):
                    file.write(block)
        finally:
            self._engine.remove(made)

    def text(self, image: str, path: str, place: Path) -> str:
        """The text of a small file of an image, which is copied to `place`. Raises LaneError."""
        made = self._engine.create(f"{self._name}-{place.name}", _exported(image))
        try:
            extract_file(self._engine.archive(made, path), place, budget=MIB)
        finally:
            self._engine.remove(made)
        return place.read_text(errors="replace")


class Disks:
    """Disks of images in one folder of this host, which only this user may write. Thread-safe."""

    def __init__(self, images: Images, launcher: Launcher, folder: Path) -> None:
        """`folder` is made if necessary. Raises SetupError when it belongs to somebody else."""
        self._images = images
        self._launcher = launcher
        self._folder = own_folder(folder)
        self._lock = threading.Lock()
        self._known: dict[str, Disk] = {}

    @property
    def folder(self) -> Path:
        return self._folder

    def of(self, image: str, role: str) -> Disk:
        """The disk of the image of `role`, made at its first use. Raises LaneError when it can't be made, and
        `<role>-not-started` when the image's user is not in the image."""
        image_id = self._images.image_id(image).removeprefix("sha256:")
        with self._lock:
            if image_id not in self._known:
                path = self._folder / f"{image_id}.erofs"
                about = path.with_suffix(".json")
                if not (path.is_file() and about.is_file()):
                    self._make(image, path, about)
                self._known[image_id] = disk_of(path, json.loads(about.read_text()), role)
            return self._known[image_id]

    def _make(self, image: str, path: Path, about: Path) -> None:
        archive, result = path.with_suffix(".tar"), path.with_suffix(".part")
        shutil.rmtree(result, ignore_errors=True)
        try:
            self._images.write_root(image, archive)
            names = _names(archive)
            files = [("root.tar", archive)]
            made = self._launcher.run("disk", files, result, budget=_LARGEST, seconds=_SECONDS)
            disk = result / "out" / "disk"
            if made.get("exit_code") != 0 or not disk.is_file():
                printed = (result / "console").read_text(errors="replace") if (result / "console").is_file() else ""
                raise LaneError("no-disk", f"The disk of {image} can't be made.", printed=printed)
            disk.chmod(0o644)  # the users of guests read it
            disk.replace(path)
        finally:
            archive.unlink(missing_ok=True)
            shutil.rmtree(result, ignore_errors=True)
        write_atomically(about, json.dumps({"config": self._images.image_config(image), **names}).encode())


def _exported(image: str) -> ContainerSpec:
    return ContainerSpec(image=image, role="disk", command=("none",), host={"network_mode": "none"})


def _names(archive: Path) -> dict[str, str]:
    """The texts of /etc/passwd and /etc/group of an exported image; empty for a missing file."""
    texts = {"passwd": "", "group": ""}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./").removeprefix("etc/")
            if name in texts and member.name.endswith(f"etc/{name}") and (source := tar.extractfile(member)):
                texts[name] = source.read(1 << 20).decode(errors="replace")
    return texts


def disk_of(path: Path, about: Mapping[str, Any], role: str) -> Disk:
    """The disk at `path`. `about`: the image's config, and its texts of /etc/passwd and /etc/group. Raises LaneError
    `<role>-not-started` when the image's user is not in them."""
    config = about["config"]
    try:
        user, group, home = owner(config.get("User") or "", about["passwd"], about["group"])
    except LookupError as error:
        raise LaneError(f"{role}-not-started", error.args[0]) from error
    declared = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    return Disk(
        path=path,
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        environment={"PATH": _PATH, "HOME": home, **declared},
        folder=config.get("WorkingDir") or "/",
        user=user,
        group=group,
    )


def owner(declared: str, passwd: str, groups: str) -> tuple[int, int, str]:
    """User, group and home of an image's USER (`name`, `name:group` or numbers), by the engine's rules. Raises
    LookupError for a name that the image doesn't have.
    """
    name, _, group = declared.partition(":")
    entries = [fields for line in passwd.splitlines() if len(fields := line.split(":")) >= 6]
    fields_of_user = next((entry for entry in entries if name in (entry[0], entry[2])), None) if name else None
    if not name:
        fields_of_user = next((entry for entry in entries if entry[2] == "0"), None)
    if name and fields_of_user is None and not name.isdigit():
        raise LookupError(f"The image's user '{name}' is not in its /etc/passwd.")
    user = int(fields_of_user[2]) if fields_of_user else int(name or 0)
    number = int(fields_of_user[3]) if fields_of_user else 0
    if group:
        number = _group(group, groups)
    return user, number, fields_of_user[5] if fields_of_user else "/root" if user == 0 else "/"


def _group(name: str, groups: str) -> int:
    entries: Sequence[Sequence[str]] = [line.split(":") for line in groups.splitlines()]
    fields_of_group = next((entry for entry in entries if len(entry) >= 3 and name in (entry[0], entry[2])), None)
    if fields_of_group is None and not name.isdigit():
        raise LookupError(f"The image's group '{name}' is not in its /etc/group.")
    return int(fields_of_group[2]) if fields_of_group else int(name)


# Virtual time without Docker and without root: images from archives, guests as processes of this user.

_TOOLS = "guest"  # folder in the image bentpipe/guest with the kernel and its programs


def open_launcher(images: SavedImages, scratch: Path) -> ProcessLauncher:
    """A launcher with the kernel of the image bentpipe/guest, which is unpacked into `scratch` once.

    Raises SetupError when this host can't confine guests, UsageError when the archives don't have the image.
    """
    tools = scratch / f"kernel-{images.image_id(IMAGE).removeprefix('sha256:')}"
    require_exec(scratch)
    if not (tools / "version").is_file():
        _unpack(images, tools)
    launcher = ProcessLauncher(tools)
    launcher.require_confinement()
    return launcher


def _unpack(images: SavedImages, tools: Path) -> None:
    archive, unfinished = tools.with_suffix(".tar"), tools.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        images.write_root(IMAGE, archive)
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                if parts[:1] == (_TOOLS,) and ".." not in parts and (content := tar.extractfile(member)):
                    path = unfinished.joinpath(*parts[1:])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
                    path.chmod(member.mode & 0o755)
        unfinished.rename(tools)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)


def require_exec(folder: Path) -> None:
    """Raise SetupError when the file system of `folder` does not let programs run."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise SetupError(
            f"--rootless: {folder} is on a file system where no program can run (noexec), but the guests' kernel must "
            "run there: move the checkout, or mount that file system with exec."
        )


# Checks that this host has enough memory for guests.

LEAST = 512 * MIB  # bytes of one guest for a transfer of 10 MiB between two stacks, with their disks in the page cache


def require_memory(lanes: int, meminfo: Path = Path("/proc/meminfo")) -> None:
    """Raise SetupError when less than `LEAST` is available for each of `lanes` guests."""
    available = available_memory(meminfo)
    if available is not None and available < lanes * LEAST:
        raise SetupError(
            f"--clock virtual: {lanes} guests at once need {format_size(lanes * LEAST)} of memory, and "
            f"{format_size(available)} are available: end other programs, or use a smaller --lanes."
        )


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that programs can still get without swapping; None when the kernel does not report it."""
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None
