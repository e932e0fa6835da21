"""The engine calls that lanes need, with clients that limit answers in size, form and time; the output of containers.
Thread-safe; every failure is a LaneError."""

import ctypes
import io
import os
import queue
import re
import select
import shutil
import socket
import struct
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool
from docker.types import Mount
from docker.utils import kwargs_from_env
from docker.utils.socket import frames_iter
from requests import PreparedRequest, Response
from requests.exceptions import ConnectionError as BrokenConnectionError
from requests.exceptions import InvalidJSONError, RequestException
from urllib3.exceptions import HTTPError

from runner.errors import LaneError
from runner.units import MIB, format_size

# Docker clients that limit answers in size, form and time: the engine of another host is not trusted.

LARGEST_ANSWER = 16 * MIB  # most bytes of an answer that is not a stream; a list of 1000 containers has 5 MiB
LONGEST_ANSWER = 60.0  # most seconds from the first byte of such an answer to its last byte
_BLOCK = 1 << 16
_LARGEST_HEAD = 1 << 16  # bytes of status line and headers
_PAUSE_SECONDS = 0.01  # between two checks of a head that has not arrived completely


class _TimedConnection(UnixHTTPConnection):
    """Limits the time of an answer's head. A time-out of the socket starts again with each byte."""

    def getresponse(self) -> Any:
        """Like the method of http.client. Raises ConnectionAbortedError."""
        self._await_head()
        return super().getresponse()

    def _await_head(self) -> None:
        assert self.sock is not None, "a request has been sent"
        head = self.sock.recv(_LARGEST_HEAD, socket.MSG_PEEK)  # waits as long as the call may take
        hung_up = select.poll()
        hung_up.register(self.sock, select.POLLRDHUP)
        deadline = time.monotonic() + LONGEST_ANSWER
        while head and b"\r\n\r\n" not in head and not hung_up.poll(0):
            if len(head) == _LARGEST_HEAD:
                raise ConnectionAbortedError("the head of the answer is too long")
            if time.monotonic() > deadline:
                raise ConnectionAbortedError("the answer takes too long")
            time.sleep(_PAUSE_SECONDS)
            head = self.sock.recv(_LARGEST_HEAD, socket.MSG_PEEK)


class _TimedPool(UnixHTTPConnectionPool):
    timeout: Any  # seconds; docker-py stores a number where urllib3 has an object

    def _new_conn(self) -> Any:
        return _TimedConnection(self.base_url, self.socket_path, self.timeout)


class _TimedAdapter(UnixHTTPAdapter):
    """Makes `_TimedConnection` objects for the engine's socket."""

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:  # noqa: ARG002 - as requests calls it
        with self.pools.lock:
            pool: Any = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _TimedPool(
                    str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
            return pool


class BoundedApi(docker.APIClient):
    """docker-py's client with limits. The original client reads answers of any length and follows redirects."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.max_redirects = 0  # a Docker Engine never redirects

    def mount(self, prefix: str | bytes, adapter: Any) -> None:
        """Like requests.Session.mount, which docker-py calls before its first request."""
        if isinstance(adapter, UnixHTTPAdapter):
            most = adapter.pools._maxsize
            adapter = _TimedAdapter(adapter.socket_path, adapter.timeout, most, adapter.max_pool_size)
        super().mount(prefix, adapter)

    def send(self, request: PreparedRequest, **options: Any) -> Response:
        """Like requests.Session.send. Raises DockerException for an answer above the limits; streams have no limit."""
        if options.get("stream"):
            return super().send(request, **options)
        response = super().send(request, **{**options, "stream": True})
        body: Any = response
        body._content, body._content_consumed = _read_body(response), True
        return response


class BoundedDockerClient(docker.DockerClient):
    """docker-py's object interface over `BoundedApi`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.api = BoundedApi(*arguments, **options)


def _read_body(response: Response) -> bytes:
    content, began = bytearray(), 0.0
    try:
        while block := response.raw.read1(_BLOCK, decode_content=True):
            began = began or time.monotonic()
            content += block
            if len(content) > LARGEST_ANSWER:
                raise DockerException(f"its answer has more than {format_size(LARGEST_ANSWER)}")
            if time.monotonic() > began + LONGEST_ANSWER:
                raise DockerException(f"its answer took more than {LONGEST_ANSWER:.0f} s")
    except HTTPError as error:  # requests does the same when it reads a body
        response.close()
        raise BrokenConnectionError(error) from error
    except BaseException:
        response.close()
        raise
    response.raw.release_conn()
    return bytes(content)


# Checks the form of a Docker Engine's answers and limits the time to read them: an engine of another host is not
# trusted.

_LARGE_BLOCK = 1 << 20
_FRAME = struct.Struct(">B3xI")
_IDENTIFIER = re.compile(r"(sha256:)?[\w.-]{1,128}")
_LONGEST_REASON = 200  # characters
# The errors that docker-py and this package raise for an answer of another form. The first one comes from requests.
_NOT_AN_ENGINES = (
    InvalidJSONError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def understood(action: str) -> Iterator[None]:
    """Raises LaneError `not-an-engine` when an answer does not have the form of a Docker Engine's answer."""
    try:
        yield
    except _NOT_AN_ENGINES as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        raise LaneError(
            "not-an-engine", f"The engine could not {action}: its answer is not that of a Docker Engine ({why})."
        ) from error


def identifier(described: Mapping[str, Any]) -> str:
    """The engine's identifier of an object. Raises ValueError when the text can't be an identifier."""
    identifier = described["Id"]
    if not isinstance(identifier, str) or not _IDENTIFIER.fullmatch(identifier):
        raise ValueError(f"{str(identifier)[:40]!r} is not an identifier")
    return identifier


class Timed:
    """Reads from `read`; raises TimeoutError when `seconds` have passed, even if bytes still come slowly. `read(n)`
    returns 1 to n bytes. `waits`: the socket from which `read` reads, whose time-out is set; None without a socket."""

    def __init__(self, read: Callable[[int], bytes | None], seconds: float, waits: socket.socket | None = None) -> None:
        self._read, self._waits = read, waits
        self._deadline = time.monotonic() + seconds

    def read(self, size: int) -> bytes:
        """Return `size` bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer takes too long")
            if self._waits is not None:
                self._waits.settimeout(left)
            part = self._read(size - len(data))
            if not part:
                break
            data += part
        return data


def unframed(source: Timed, limit: int) -> bytes:
    """At most `limit` bytes of a stream of frames: kind, length, content (Docker Engine API, ContainerAttach)."""
    output = bytearray()
    while len(output) < limit and len(head := source.read(_FRAME.size)) == _FRAME.size:
        left = _FRAME.unpack(head)[1]
        while left and len(output) < limit and (part := source.read(min(left, limit - len(output), _LARGE_BLOCK))):
            output += part
            left -= len(part)
    return bytes(output)


def unix(text: str) -> float | None:
    """The engine's time as seconds since 1970; None for the year 1, an event that did not happen."""
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.year > 1 else None


# A container's output, read while it runs. Its beginning and its end are kept, and all bytes are counted.

HEAD = 512 * 1024  # bytes kept from the beginning
TAIL = 512 * 1024  # bytes kept from the end


class Output:
    """Takes output as bytes and returns it as text. Not thread-safe: callers that share an object need a lock."""

    def __init__(self) -> None:
        self.total = 0  # bytes that were printed
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def feed(self, data: bytes) -> None:
        """Add output."""
        self.total += len(data)
        room = HEAD - len(self._head)
        self._head += data[:room]
        if len(data) > room:
            self._tail.append(data[room:])
            self._tail_size += len(data) - room
            while self._tail_size - len(self._tail[0]) >= TAIL:
                self._tail_size -= len(self._tail.popleft())

    @property
    def left_out(self) -> int:
        """Bytes between the beginning and the end that are not kept."""
        return self.total - len(self._head) - self._tail_size

    def content(self) -> bytes:
        """The kept output, with a line in place of the part that is left out."""
        gap = f"\n[bentpipe: {self.left_out} bytes left out]\n".encode() if self.left_out else b""
        return bytes(self._head) + gap + b"".join(self._tail)

    def text(self) -> str:
        """`content` as text; bytes that aren't UTF-8 are replaced."""
        return self.content().decode(errors="replace")

    def last_lines(self, count: int) -> str:
        """The last `count` lines."""
        return "\n".join(self.text().splitlines()[-count:])


# A connection to a container's output and stdin.


class Stream:
    """A container's output, and its stdin if it has one. Thread-safe: one thread iterates, others write."""

    def __init__(self, api: docker.APIClient, stream: Any) -> None:
        self._api = api
        self._stream = stream
        self._socket: socket.socket = stream._sock  # docker-py returns a file that is open for reading only
        self._writing = threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yields pairs: 1 for stdout or 2 for stderr, and the printed bytes."""
        try:
            yield from frames_iter(self._stream, tty=False)  # type: ignore[no-untyped-call]
        except (DockerException, OSError, ValueError):
            return  # the end of this stream doesn't prove that the container ended: the caller reads its state
        finally:
            self.close()

    def close(self) -> None:
        """End reading and writing; the container reads the end of its stdin."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # otherwise docker-py's response keeps the socket open
        self._stream.close()
        self._api.close()

    def write(self, data: bytes) -> None:
        """Write to stdin. Raises LaneError when nothing reads stdin any more."""
        try:
            with self._writing:
                self._socket.sendall(data)
        except OSError as error:
            raise LaneError("engine-silent", f"The engine could not write to a container: {error}") from error


# Puts the upper layer of a container on a tmpfs, when the engine's storage has no quotas for root file systems.
# overlay2 keeps the files that a container writes in LAYER/diff, and needs LAYER/work on the same mount (overlayfs.rst
# of the kernel). Before the container starts, a tmpfs of limited size is mounted on LAYER and gets a copy of the
# engine's files: two small files and two empty folders. The engine unmounts the tmpfs when it removes the container.
# The runner must be root and share its mounts with the engine. Otherwise nothing is mounted, and the runner must
# measure what the container writes.

_ENTRIES = {"diff", "link", "lower", "work"}
_ALMOST_FULL = 64 * 1024  # bytes; with less space left, the file system counts as full
_BYTES_PER_INODE = 4096  # bytes per inode, so that empty files count, too
_LEAST_INODES = 1024
_MNT_DETACH = 2
_SELINUX = Path("/sys/fs/selinux/enforce")  # with SELinux, a container may only use files with its label
_LIBC = ctypes.CDLL(None, use_errno=True)


class BoundedLayer:
    """The tmpfs of one container, mounted until the engine removes the container."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def is_used(self) -> bool:
        """True when the engine uses the tmpfs; known after the start of the container. The engine then has the folder
        `merged` in the tmpfs, where it mounts the root file system."""
        with suppress(OSError):
            return (self._folder / "merged").is_dir() or any((self._folder / "diff").iterdir())
        return False

    @property
    def is_full(self) -> bool:
        """True when the container can't write more bytes, or can't make more files."""
        try:
            left = os.statvfs(self._folder)
        except OSError:
            return False
        return self.is_used and (left.f_bavail * left.f_frsize < _ALMOST_FULL or left.f_favail == 0)

    def release(self) -> None:
        """Unmount the tmpfs."""
        _LIBC.umount2(os.fsencode(self._folder), _MNT_DETACH)


def may_bound(disk: Path | None) -> bool:
    """True when this process can limit overlay2 layers in the folder `disk`; None: it is on another host."""
    return os.geteuid() == 0 and disk is not None and (disk / "overlay2").is_dir() and not _SELINUX.exists()


def bound_layer(upper: Path, size: int) -> BoundedLayer | None:
    """Limit the root file system of a container that was never started to `size` bytes. `upper`: its UpperDir. Returns
    None when the engine stores its layers in another way, or when this process may not mount."""
    folder = upper.parent
    try:
        if {path.name for path in folder.iterdir()} != _ENTRIES or any(upper.iterdir()):
            return None
        below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        if not _mount(folder, size):
            return None
        try:
            _copy(Path(f"/proc/self/fd/{below}"), folder)
        except OSError:
            BoundedLayer(folder).release()
            return None
        return BoundedLayer(folder)
    finally:
        os.close(below)


def _mount(folder: Path, size: int) -> bool:
    about = folder.stat()
    inodes = max(_LEAST_INODES, size // _BYTES_PER_INODE)
    owner = f"mode={about.st_mode & 0o7777:o},uid={about.st_uid},gid={about.st_gid}"
    options = f"size={size},nr_inodes={inodes},{owner}"
    return bool(_LIBC.mount(b"bentpipe", os.fsencode(folder), b"tmpfs", 0, options.encode()) == 0)


def _copy(source: Path, target: Path) -> None:
    """Copy files and folders with their owners and rights."""
    for path in source.iterdir():
        copy = target / path.name
        if path.is_dir():
            copy.mkdir()
            _copy(path, copy)
        else:
            shutil.copyfile(path, copy)
        about = path.stat()
        os.chown(copy, about.st_uid, about.st_gid)
        copy.chmod(about.st_mode & 0o7777)


# CPU weights of the containers of lanes, in comparison with other work of this host.
#
# The weight of a container counts only inside its parent cgroup. Docker's own cgroup has the weight of a single
# process. In that cgroup, a container that starts in another lane delays a simulator (sim/README.md, Measured).
# Therefore containers of lanes are in two other cgroups. The harness's own containers (simulators, captures, holders)
# have the highest possible weight, because they must never wait for a CPU. Containers of images that are not trusted
# have on each CPU the weight of a few processes. They get most of the CPU time, but when they compute on all CPUs, the
# engine and the runner still get enough CPU time to end them.

OWN, FOREIGN = "bentpipe", "bentpipe-images"
"""Names of the cgroups of the harness's own containers, and of containers of images that are not trusted."""

PROCESSES = 8
"""Weight of all untrusted containers on one CPU, in processes of nice 0."""

_ROOT = Path("/sys/fs/cgroup")
# cgroup v1 and v2: folder of the groups, name of a weight, weight of one process, the highest possible weight.
_VERSIONS = (("cpu", "cpu.shares", 1024, 262144), (".", "cpu.weight", 100, 10000))


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


# The engine calls that lanes need. Thread-safe; every failure is a LaneError.

LABEL_OWNER, LABEL_RUN, LABEL_ROLE, LABEL_LANES = "bentpipe.owner", "bentpipe.run", "bentpipe.role", "bentpipe.lanes"
WATCHDOG_ROLE = "watchdog"  # role of the containers that remove the leftovers of a dead runner
_NO_EXIT_EVENT = "did not receive an exit event"
_KILL_SECONDS = 60.0  # the longest time in which SIGKILL is repeated
_CALL_SECONDS = 60  # the longest wait for the next byte of an answer
# Docker's error for a storage without quotas. With overlay2, only xfs mounted with pquota has them.
_NO_QUOTAS = re.compile(r"storage-opt|pquota", re.IGNORECASE)
_LARGEST_LOG = 32 << 20  # bytes; twice what an endpoint may print


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume, and its path in a container. `file`: the container gets only this file of the volume, at `path`."""

    name: str
    path: str
    read_only: bool = False
    file: str = ""


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """The description of a container to be created. `host` is the engine's HostConfig with docker-py's names.

    With `network_mode` none, the container is outside of the engine's network code (libnetwork): in Docker Engine
    20.10, two containers of one network that end at the same time can deadlock there, and then no call of any user is
    answered (moby issue 46661). Such a container has a network namespace with only a loopback interface, and the engine
    writes no /etc/hosts and no /etc/resolv.conf.
    """

    image: str
    role: str
    command: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None  # None: the entrypoint of the image
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    hostname: str | None = None
    stdin: bool = False  # True: the stream of `follow` can write to stdin; the container ends with this stream
    user: str | None = None  # None: the user of the image
    foreign: bool = False  # True: the image is not trusted, so it gets less CPU time than our own containers
    root_quota: int | None = None  # most bytes written to the root file system, if the engine has quotas
    ports: tuple[tuple[int, str], ...] = ()  # the ports that `port_bindings` in `host` publishes, such as (443, "udp")


@dataclass(frozen=True, kw_only=True)
class ContainerState:
    """The engine's record of a container. Times in seconds since 1970; None: this has not happened."""

    pid: int
    exit_code: int | None
    oom_killed: bool
    started: float | None
    ended: float | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """CPU time of a container so far, and the time for which its CPU limit stopped it. Seconds."""

    cpu: float
    throttled: float


class Engine:
    """Containers and volumes of one owner and run. Each call borrows a client: docker-py is not thread-safe."""

    longest_look = 5.0  # most seconds between two measurements of a container's root file system

    def __init__(
        self,
        client: docker.DockerClient,
        labels: Mapping[str, str],
        *,
        url: str | None = None,
        call_seconds: int = _CALL_SECONDS,
    ) -> None:
        """`url`: the address of the engine of `client`; None: the environment variables name it. `call_seconds`: the
        longest wait for the next byte of an answer, and for the end of a command. Raises LaneError `not-an-engine`."""
        self._call_seconds = call_seconds
        self._where = {"base_url": url} if url is not None else kwargs_from_env()
        self._version = client.api.api_version
        self._labels = dict(labels)
        with understood("describe itself"):
            info = client.info()
            # Images of strangers have a parent of their own. Where systemd manages cgroups, a parent must be a slice.
            own_parents = info.get("CgroupDriver") == "cgroupfs"
            self._cgroups = {
                foreign: f"/{name}" if own_parents else None for foreign, name in enumerate((OWN, FOREIGN))
            }
            self._disk = Path(str(info.get("DockerRootDir", ""))) if url is None else None
            self.security = tuple(map(str, info.get("SecurityOptions") or ()))
            self._is_overlay = str(info.get("Driver", "")).startswith("overlay")
        self._has_quotas = True  # True until the engine reports that root file systems can't have quotas
        self._idle: queue.LifoQueue[docker.APIClient] = queue.LifoQueue()
        self._images: dict[str, str] = {}
        self._inspected: dict[str, dict[str, Any]] = {}
        self._folders: dict[str, str] = {}  # name of a volume → its folder on the engine's host

    @contextmanager
    def _call(self, action: str) -> Iterator[docker.APIClient]:
        try:
            api = self._idle.get_nowait()
        except queue.Empty:
            # One connection is sufficient: by default, a client would keep a connection open for every URL.
            api = BoundedApi(version=self._version, timeout=self._call_seconds, num_pools=1, **self._where)
        try:
            with understood(action):
                yield api
        except (DockerException, RequestException, HTTPError, OSError) as error:
            reason = getattr(error, "explanation", None) or error
            # The image may have caused a refused call, but it never causes an engine that doesn't answer.
            code = "engine" if isinstance(error, APIError) else "engine-silent"
            raise LaneError(code, f"The engine could not {action}: {reason}") from error
        finally:
            self._idle.put(api)

    def close(self) -> None:
        """Close idle connections."""
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def free_disk(self) -> int | None:
        """Free bytes of the file system with the engine's containers; None when this process can't see it."""
        try:
            return shutil.disk_usage(self._disk).free if self._disk is not None else None
        except OSError:
            return None

    def create(self, name: str, spec: ContainerSpec) -> str:
        """Create a container without starting it, from the image that `spec.image` named when this object first used
        the name. Returns the id of the container. `spec.root_quota` has no effect when the engine's storage has no
        quotas."""
        quota = spec.root_quota if self._has_quotas else None
        if quota is not None and not self._is_overlay:
            quota += int(self._inspect_image(spec.image).get("Size") or 0)  # btrfs and zfs count the image, too
        try:
            return self._create(name, spec, {"storage_opt": {"size": str(quota)}} if quota is not None else {})
        except LaneError as error:
            if quota is None or not _NO_QUOTAS.search(str(error)):
                raise
            self._has_quotas = False
        return self._create(name, spec, {})

    def _create(self, name: str, spec: ContainerSpec, storage: Mapping[str, Any]) -> str:
        image = self.image_id(spec.image)
        mounts = [self._mount(volume) for volume in spec.volumes]
        with self._call(f"make the container {spec.role} of {spec.image}") as api:
            made: dict[str, str] = api.create_container(
                image,
                command=list(spec.command) if spec.command is not None else None,
                entrypoint=list(spec.entrypoint) if spec.entrypoint is not None else None,
                name=name,
                environment=dict(spec.environment),
                hostname=spec.hostname,
                user=spec.user,
                stdin_open=spec.stdin,
                network_disabled=spec.host.get("network_mode") == "none",
                ports=list(spec.ports) or None,
                labels=self._labels | {LABEL_ROLE: spec.role},
                host_config=api.create_host_config(
                    mounts=mounts, cgroup_parent=self._cgroups[spec.foreign], **storage, **spec.host
                ),
            )
            return identifier(made)

    def _mount(self, volume: Volume) -> Mount:
        if not volume.file:
            # no_copy: an image must not fill the volumes with its own files.
            return Mount(volume.path, volume.name, type="volume", read_only=volume.read_only, no_copy=True)
        if volume.name not in self._folders:
            with self._call("inspect a volume") as api:
                self._folders[volume.name] = str(api.inspect_volume(volume.name)["Mountpoint"])
        source = f"{self._folders[volume.name]}/{volume.file}"
        return Mount(volume.path, source, type="bind", read_only=volume.read_only)

    def start(self, container: str) -> None:
        """Start a container; returns when its first process runs."""
        with self._call("start a container") as api:
            api.start(container)

    def signal(self, container: str, name: str) -> bool:
        """Send a signal to the first process. Returns False when the container has ended. SIGKILL is repeated for a
        while, because dockerd gives up after 12 s, and a container with thousands of processes needs longer to end."""
        deadline = time.monotonic() + (_KILL_SECONDS if name == "SIGKILL" else 0.0)
        while True:
            try:
                with self._call(f"send {name}") as api:
                    api.kill(container, name)
            except LaneError as error:
                if self.state(container).exit_code is not None:
                    return False
                if _NO_EXIT_EVENT not in str(error) or time.monotonic() > deadline:
                    raise
            else:
                return True

    def state(self, container: str) -> ContainerState:
        """The engine's present record of a container."""
        with self._call("inspect a container") as api:
            state: dict[str, Any] = api.inspect_container(container)["State"]
            ended = state["Status"] in ("exited", "dead")
            return ContainerState(
                pid=int(state["Pid"]),
                exit_code=int(state["ExitCode"]) if ended else None,
                oom_killed=bool(state["OOMKilled"]),
                started=unix(state["StartedAt"]),
                ended=unix(state["FinishedAt"]) if ended else None,
            )

    def bound_layer(self, container: str, size: int) -> BoundedLayer | None:
        """Limit the root of a container that has not started to `size` bytes; None when this is impossible."""
        if self._has_quotas or not may_bound(self._disk):
            return None
        with self._call("inspect a container") as api:
            upper = (api.inspect_container(container)["GraphDriver"].get("Data") or {}).get("UpperDir")
        return bound_layer(Path(upper), size) if upper else None

    def layer_size(self, container: str) -> int:
        """Bytes that a container has written to its root file system, as the engine counts them."""
        with self._call("measure a root file system") as api:
            client: Any = api  # docker-py has no parameter for `size`
            answer = client._get(client._url("/containers/{0}/json", container), params={"size": 1})
            return int(client._result(answer, json=True).get("SizeRw") or 0)

    def usage(self, container: str) -> Usage:
        """CPU time of a running container; zeros when it has ended. Raises LaneError when it ends during the call."""
        with self._call("measure a container") as api:
            cpu = api.stats(container, stream=False, one_shot=True).get("cpu_stats", {})
            return Usage(
                cpu=cpu.get("cpu_usage", {}).get("total_usage", 0) / 1e9,
                throttled=cpu.get("throttling_data", {}).get("throttled_time", 0) / 1e9,
            )

    def follow(self, container: str, *, stdin: bool = False) -> Stream:
        """Attach to a container before its start. The stream yields its output until it ends."""
        params = {"stdin": int(stdin), "stdout": 1, "stderr": 1, "stream": 1}
        with self._call("attach to a container"):
            # The stream has its own client, so that no other call shares its connection.
            client = BoundedApi(version=self._version, timeout=self._call_seconds, num_pools=1, **self._where)
            return Stream(client, client.attach_socket(container, params=params))

    def wait(self, container: str) -> None:
        """Wait, without limit, until a container has ended."""
        with self._call("wait for a container") as api:
            api.wait(container, timeout=None)

    def printed(self, container: str) -> str:
        """The container's output that its log driver has kept, 32 MiB at most."""
        params = {"stdout": 1, "stderr": 1, "follow": 0, "timestamps": 0, "tail": "all"}
        with self._call("read a log") as api:
            # `api.logs` would read a frame of any size that the engine announces.
            client: Any = api
            answer = client._get(client._url("/containers/{0}/logs", container), params=params, stream=True)
            with closing(answer):
                client._raise_for_status(answer)
                return unframed(Timed(answer.raw.read1, self._call_seconds), _LARGEST_LOG).decode(errors="replace")

    def execute(self, container: str, command: list[str]) -> tuple[int, str]:
        """Run a command in a running container. Returns its exit code and its output, 32 MiB at most. Raises LaneError
        when the command runs for more than `call_seconds`."""
        with self._call("run a command in a container") as api:
            made = api.exec_create(container, command)
            stream: Any = api.exec_start(made["Id"], socket=True)
            with closing(stream):
                output = unframed(Timed(stream.read, self._call_seconds, stream._sock), _LARGEST_LOG)
            return int(api.exec_inspect(made["Id"])["ExitCode"]), output.decode(errors="replace")

    def archive(self, container: str, path: str, *, limit: int | None = None) -> Generator[bytes, None, None]:  # noqa: ARG002
        """A folder or file of a container as tar, in blocks. `limit`: most bytes, only for engines of other hosts."""
        with self._call(f"read {path}") as api:
            blocks, _ = api.get_archive(container, path, chunk_size=_LARGE_BLOCK)
            yield from blocks

    def export(self, container: str) -> Iterator[bytes]:
        """The whole file system of a container as tar, in blocks."""
        with self._call("export a container") as api:
            yield from api.export(container, chunk_size=_LARGE_BLOCK)

    def image_config(self, image: str) -> dict[str, Any]:
        """The configuration of the image's first process, with the engine's names."""
        with understood(f"describe the image {image}"):
            return dict(self._inspect_image(image)["Config"] or {})

    def _inspect_image(self, image: str) -> dict[str, Any]:
        if image not in self._inspected:
            with self._call(f"look at the image {image}") as api:
                inspected = dict(api.inspect_image(self.image_id(image)))  # type: ignore[no-untyped-call]
            self._inspected[image] = inspected
        return self._inspected[image]

    def put(self, container: str, path: str, files: Mapping[str, bytes], *, mode: int = 0o444) -> None:
        """Write files that everyone may read into a folder of a container, which needn't run. Folders are made."""
        with io.BytesIO() as archive:
            with tarfile.open(fileobj=archive, mode="w") as tar:
                for name, content in files.items():
                    entry = tarfile.TarInfo(name)
                    entry.size, entry.mode = len(content), mode
                    tar.addfile(entry, io.BytesIO(content))
            archive.seek(0)
            with self._call(f"write files to {path}") as api:
                api.put_archive(container, path, archive)

    def remove(self, container: str) -> None:
        """Kill and remove a container with its anonymous volumes. A missing container is no error."""
        with self._call("remove a container") as api, _gone_is_fine():
            api.remove_container(container, force=True, v=True)

    def create_volume(self, name: str, *, role: str, quota: int | None = None) -> None:
        """Create a volume. With `quota` in bytes it is a tmpfs of that size, whose files exist while it is mounted."""
        options = None
        if quota is not None:
            # One inode for each 4 KiB, so that empty files count, too.
            inodes = max(1024, quota // 4096)
            limits = f"size={quota},nr_inodes={inodes},mode=1777,nodev,nosuid"
            options = {"type": "tmpfs", "device": "tmpfs", "o": limits}
        with self._call("make a volume") as api:
            api.create_volume(name, driver="local", driver_opts=options, labels=self._labels | {LABEL_ROLE: role})

    def remove_volume(self, name: str) -> None:
        """Remove a volume. A missing volume is no error."""
        with self._call("remove a volume") as api, _gone_is_fine():
            api.remove_volume(name, force=True)

    def image_id(self, image: str) -> str:
        """The content-addressed id of an image, `sha256:…`. For this object the id never changes: a run must keep its
        image, even when a build in another terminal moves the tag."""
        if image not in self._images:
            with self._call(f"find the image {image}") as api:
                self._images[image] = identifier(api.inspect_image(image))  # type: ignore[no-untyped-call]
        return self._images[image]

    def labelled_containers(self) -> list[tuple[str, dict[str, str]]]:
        """Id and labels of every container of any bentpipe process, running or stopped."""
        with self._call("list containers") as api:
            containers = api.containers(all=True, filters={"label": LABEL_OWNER})
            return [(identifier(container), dict(container["Labels"])) for container in containers]

    def watched(self) -> frozenset[str]:
        """The values of `LABEL_LANES` whose runner has a running watchdog."""
        filters = {"label": f"{LABEL_ROLE}={WATCHDOG_ROLE}", "status": "running"}
        with self._call("list watchdogs") as api:
            containers = api.containers(filters=filters)
            return frozenset(container["Labels"].get(LABEL_LANES, "") for container in containers)

    def labelled_volumes(self) -> list[tuple[str, dict[str, str]]]:
        """Name and labels of every volume of any bentpipe process."""
        with self._call("list volumes") as api:
            volumes = api.volumes(filters={"label": LABEL_OWNER})["Volumes"] or []
            return [(str(volume["Name"]), dict(volume["Labels"])) for volume in volumes]


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except NotFound:
        return
    except APIError as error:
        if "is already in progress" not in str(error.explanation):  # the watchdog or a busy engine removes it
            raise
