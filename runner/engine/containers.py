"""The engine calls that lanes need, and nothing else of the engine. Thread-safe; every failure is a LaneError."""

import io
import queue
import re
import shutil
import socket
import struct
import tarfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.types import Mount
from docker.utils import kwargs_from_env
from docker.utils.socket import frames_iter
from requests.exceptions import RequestException

from runner.engine.client import BoundedApi
from runner.engine.priority import cgroup_parent
from runner.errors import LaneError

LABEL_OWNER, LABEL_RUN, LABEL_ROLE, LABEL_LANES = "bentpipe.owner", "bentpipe.run", "bentpipe.role", "bentpipe.lanes"
WATCHDOG_ROLE = "watchdog"  # of the containers that remove what a dead runner left
_CALL_SECONDS = 60
_BLOCK = 1 << 20
_FRAME = struct.Struct(">B3xI")
# What Docker says for a storage without quotas: overlay2 has them on xfs mounted with pquota alone.
_NO_QUOTAS = re.compile(r"storage-opt|pquota", re.IGNORECASE)
_LARGEST_LOG = 32 << 20  # bytes; twice what an endpoint may print


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume and where a container sees it."""

    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """What a container is made of. `host` goes to the engine as its HostConfig, in the words of docker-py."""

    image: str
    role: str
    command: tuple[str, ...] | None = None
    entrypoint: tuple[str, ...] | None = None  # None: the image's
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    hostname: str | None = None
    stdin: bool = False  # whether `follow` can write to it; it ends when that stream does
    user: str | None = None  # None: the image's
    root_quota: int | None = None  # bytes that it may write to its root file system, where the engine can see to that
    ports: tuple[tuple[int, str], ...] = ()  # that `port_bindings` in `host` publishes, such as (443, "udp")


@dataclass(frozen=True, kw_only=True)
class State:
    """The engine's record of a container. Times in seconds since 1970; None: not yet."""

    pid: int
    exit_code: int | None
    oom_killed: bool
    started: float | None
    ended: float | None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """CPU time of a container so far, and for how long its CPU limit held it back. Seconds."""

    cpu: float
    throttled: float


class Stream:
    """A container's output, and its stdin if it has one. Thread-safe: one thread iterates while others write."""

    def __init__(self, api: docker.APIClient, stream: Any) -> None:
        self._api = api
        self._stream = stream
        self._socket: socket.socket = stream._sock  # what docker-py gives is open for reading alone
        self._writing = threading.Lock()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """1 for stdout or 2 for stderr, and what was printed there."""
        try:
            yield from frames_iter(self._stream, tty=False)  # type: ignore[no-untyped-call]
        except (DockerException, OSError, ValueError):
            return  # the end of this stream proves nothing: whoever follows asks for the state
        finally:
            self.close()

    def close(self) -> None:
        """End reading and writing; a container that reads this as its stdin sees the end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a response of docker-py's keeps it open otherwise
        self._stream.close()
        self._api.close()

    def write(self, data: bytes) -> None:
        """Write to stdin. Raises LaneError when nothing reads it."""
        try:
            with self._writing:
                self._socket.sendall(data)
        except OSError as error:
            raise LaneError("engine-silent", f"The engine could not write to a container: {error}") from error


class Engine:
    """Containers and volumes with the labels of one owner and run.

    docker-py's client is not made for several threads, so each call borrows a client of its own.
    """

    def __init__(self, client: docker.DockerClient, labels: Mapping[str, str], *, url: str | None = None) -> None:
        """`url`: where the engine of `client` listens; None: the environment names it."""
        self._where = {"base_url": url} if url is not None else kwargs_from_env()
        self._version = client.api.api_version
        self._labels = dict(labels)
        info = client.info()
        self._cgroup_parent = cgroup_parent(info)
        self._disk = Path(str(info.get("DockerRootDir", ""))) if url is None else None
        self._is_overlay = str(info.get("Driver", "")).startswith("overlay")
        self._has_quotas = True  # of root file systems, as long as the engine didn't say that it hasn't
        self._idle: queue.LifoQueue[docker.APIClient] = queue.LifoQueue()
        self._images: dict[str, str] = {}
        self._inspected: dict[str, dict[str, Any]] = {}

    @contextmanager
    def _call(self, what: str) -> Iterator[docker.APIClient]:
        try:
            api = self._idle.get_nowait()
        except queue.Empty:
            # One connection at a time suffices: a stock client would keep one open for every URL.
            api = BoundedApi(version=self._version, timeout=_CALL_SECONDS, num_pools=1, **self._where)
        try:
            yield api
        except (DockerException, RequestException, OSError) as error:
            reason = getattr(error, "explanation", None) or error
            # What the engine refuses may be the image's fault; that it doesn't answer never is.
            code = "engine" if isinstance(error, APIError) else "engine-silent"
            raise LaneError(code, f"The engine could not {what}: {reason}") from error
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
        """Free bytes where the engine keeps containers; None when that can't be seen from here."""
        try:
            return shutil.disk_usage(self._disk).free if self._disk is not None else None
        except OSError:
            return None

    def create(self, name: str, spec: ContainerSpec) -> str:
        """Make a container, not started, from the image that the tag meant at its first use. Returns its id.

        `spec.root_quota` is left out where the engine's storage has no quotas.
        """
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
        # no_copy: an image must not fill the volumes with files of its own.
        mounts = [
            Mount(volume.path, volume.name, type="volume", read_only=volume.read_only, no_copy=True)
            for volume in spec.volumes
        ]
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
                ports=list(spec.ports) or None,
                labels=self._labels | {LABEL_ROLE: spec.role},
                host_config=api.create_host_config(
                    mounts=mounts, cgroup_parent=self._cgroup_parent, **storage, **spec.host
                ),
            )
        return made["Id"]

    def start(self, container: str) -> None:
        """Start a container; returns when its first process runs."""
        with self._call("start a container") as api:
            api.start(container)

    def signal(self, container: str, name: str) -> bool:
        """Send a signal to the first process. False when the container runs no more."""
        try:
            with self._call(f"send {name}") as api:
                api.kill(container, name)
        except LaneError:
            if self.state(container).exit_code is None:
                raise
            return False
        return True

    def state(self, container: str) -> State:
        """The engine's present record of a container."""
        with self._call("inspect a container") as api:
            state: dict[str, Any] = api.inspect_container(container)["State"]
        ended = state["Status"] in ("exited", "dead")
        return State(
            pid=state["Pid"],
            exit_code=state["ExitCode"] if ended else None,
            oom_killed=state["OOMKilled"],
            started=_unix(state["StartedAt"]),
            ended=_unix(state["FinishedAt"]) if ended else None,
        )

    def layer_size(self, container: str) -> int:
        """Bytes that a container has written to its root file system, as the engine counts them in its files."""
        with self._call("measure a root file system") as api:
            own: Any = api  # docker-py has no parameter for it
            answer = own._get(own._url("/containers/{0}/json", container), params={"size": 1})
            return int(own._result(answer, json=True).get("SizeRw") or 0)

    def usage(self, container: str) -> Usage:
        """CPU time of a running container; zeros when it runs no more. Raises LaneError when it ends meanwhile."""
        with self._call("measure a container") as api:
            cpu = api.stats(container, stream=False, one_shot=True).get("cpu_stats", {})
        return Usage(
            cpu=cpu.get("cpu_usage", {}).get("total_usage", 0) / 1e9,
            throttled=cpu.get("throttling_data", {}).get("throttled_time", 0) / 1e9,
        )

    def follow(self, container: str, *, stdin: bool = False) -> Stream:
        """Attach now; then iterate over what the container prints until it ends. Attach before the start."""
        params = {"stdin": int(stdin), "stdout": 1, "stderr": 1, "stream": 1}
        with self._call("attach to a container"):
            # The stream has a client of its own, so that no other call shares its connection.
            own = BoundedApi(version=self._version, timeout=_CALL_SECONDS, num_pools=1, **self._where)
            return Stream(own, own.attach_socket(container, params=params))

    def wait(self, container: str) -> None:
        """Wait, without limit, until a container has ended."""
        with self._call("wait for a container") as api:
            api.wait(container, timeout=None)

    def printed(self, container: str) -> str:
        """What a container has printed, as far as its log driver keeps it; 32 MiB at most, whatever is sent."""
        params = {"stdout": 1, "stderr": 1, "follow": 0, "timestamps": 0, "tail": "all"}
        with self._call("read a log") as api:
            # Not `api.logs`, which reads a frame of any size that the engine announces.
            own: Any = api
            answer = own._get(own._url("/containers/{0}/logs", container), params=params, stream=True)
            with closing(answer):
                own._raise_for_status(answer)
                return _unframed(answer.raw, _LARGEST_LOG).decode(errors="replace")

    def execute(self, container: str, command: list[str]) -> tuple[int, str]:
        """Run a command in a running container. Returns exit code and what it printed, 32 MiB at most."""
        with self._call("run a command in a container") as api:
            made = api.exec_create(container, command)
            with io.BufferedReader(api.exec_start(made["Id"], socket=True)) as answer:  # type: ignore[type-var]
                output = _unframed(answer, _LARGEST_LOG)
            exit_code: int = api.exec_inspect(made["Id"])["ExitCode"]
        return exit_code, output.decode(errors="replace")

    def archive(self, container: str, path: str, *, limit: int | None = None) -> Generator[bytes, None, None]:  # noqa: ARG002
        """A folder or file of a container as tar, in blocks. `limit`, in bytes, is for engines of other hosts."""
        with self._call(f"read {path}") as api:
            blocks, _ = api.get_archive(container, path, chunk_size=_BLOCK)
            yield from blocks

    def export(self, container: str) -> Iterator[bytes]:
        """The whole file system of a container as tar, in blocks."""
        with self._call("export a container") as api:
            yield from api.export(container, chunk_size=_BLOCK)

    def image_config(self, image: str) -> dict[str, Any]:
        """The image's first process, in the engine's words."""
        config: dict[str, Any] = self._inspect_image(image)["Config"] or {}
        return config

    def _inspect_image(self, image: str) -> dict[str, Any]:
        if image not in self._inspected:
            with self._call(f"look at the image {image}") as api:
                found: dict[str, Any] = api.inspect_image(self.image_id(image))  # type: ignore[no-untyped-call]
            self._inspected[image] = found
        return self._inspected[image]

    def put(self, container: str, path: str, files: Mapping[str, bytes], *, mode: int = 0o444) -> None:
        """Write files, readable by everyone, into a folder of a container, which needn't run; folders are made."""
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
        """Kill and remove a container with its nameless volumes; nothing happens when it is gone."""
        with self._call("remove a container") as api, _gone_is_fine():
            api.remove_container(container, force=True, v=True)

    def create_volume(self, name: str, *, role: str, quota: int | None = None) -> None:
        """Make a volume. With `quota`, in bytes, it lies in memory, takes no more, and lasts while it is mounted."""
        options = None
        if quota is not None:
            # One inode for 4 KiB on average: files without content are to count too.
            inodes = max(1024, quota // 4096)
            limits = f"size={quota},nr_inodes={inodes},mode=1777,nodev,nosuid"
            options = {"type": "tmpfs", "device": "tmpfs", "o": limits}
        with self._call("make a volume") as api:
            api.create_volume(name, driver="local", driver_opts=options, labels=self._labels | {LABEL_ROLE: role})

    def remove_volume(self, name: str) -> None:
        """Remove a volume; nothing happens when it is gone."""
        with self._call("remove a volume") as api, _gone_is_fine():
            api.remove_volume(name, force=True)

    def image_id(self, image: str) -> str:
        """The content-addressed id of an image, `sha256:…`: the same for as long as this object lives.

        A build in another terminal moves the tag, and a run must not go on with another image.
        """
        if image not in self._images:
            with self._call(f"find the image {image}") as api:
                self._images[image] = api.inspect_image(image)["Id"]  # type: ignore[no-untyped-call]
        return self._images[image]

    def labelled_containers(self) -> list[tuple[str, dict[str, str]]]:
        """Id and labels of every container that some bentpipe made, running or not."""
        with self._call("list containers") as api:
            found = api.containers(all=True, filters={"label": LABEL_OWNER})
        return [(container["Id"], container["Labels"]) for container in found]

    def watched(self) -> frozenset[str]:
        """The values of `LABEL_LANES` of the runners over which a watchdog runs."""
        wanted = {"label": f"{LABEL_ROLE}={WATCHDOG_ROLE}", "status": "running"}
        with self._call("list watchdogs") as api:
            found = api.containers(filters=wanted)
        return frozenset(container["Labels"].get(LABEL_LANES, "") for container in found)

    def labelled_volumes(self) -> list[tuple[str, dict[str, str]]]:
        """Name and labels of every volume that some bentpipe made."""
        with self._call("list volumes") as api:
            found = api.volumes(filters={"label": LABEL_OWNER})["Volumes"] or []
        return [(volume["Name"], volume["Labels"]) for volume in found]


def _unframed(source: Any, limit: int) -> bytes:
    """The first `limit` bytes of a stream of frames: kind, length, content (Docker Engine API, ContainerAttach)."""
    output = bytearray()
    while len(output) < limit and len(head := source.read(_FRAME.size)) == _FRAME.size:
        left = _FRAME.unpack(head)[1]
        while left and len(output) < limit and (part := source.read(min(left, limit - len(output), _BLOCK))):
            output += part
            left -= len(part)
    return bytes(output)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except NotFound:
        return


def _unix(text: str) -> float | None:
    """Seconds since 1970 of the engine's time, which is the year 1 for what did not happen yet."""
    moment = datetime.fromisoformat(text)
    return moment.timestamp() if moment.year > 1 else None
