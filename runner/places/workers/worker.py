"""A worker (`./bentpipe worker tls://…`): its invitation and connection, the orders that it runs, the folders that
it returns."""

import asyncio
import hashlib
import io
import json
import logging
import os
import secrets
import shutil
import socket
import tarfile
import tempfile
import threading
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from runner.errors import LaneError, SetupError, UsageError, first_line
from runner.files import locked_folder, own_folder, read_regular, remove_abandoned
from runner.inputs.inputs import mutual_keys
from runner.model.result import Artifacts
from runner.model.run import VIRTUAL, Job, Run, host_cpu, host_facts
from runner.paths import SOURCE
from runner.places.guests.guests import Setting
from runner.places.lane_job import Deployment
from runner.places.place import Concurrency, GuestPlace, HostPlace, LanePlace
from runner.store import runs
from runner.store.collect import extract
from runner.units import MIB, format_count, format_size

# Invitations of workers: the certificates of one campaign, and a line of text that brings them to another host.

PORT = 8786
_MEMBER = "member"
_UNTIL = "until"  # seconds since 1970
_CA, _CERTIFICATE, _KEY = "ca.pem", f"{_MEMBER}.pem", f"{_MEMBER}.key"
_FILES = (_CA, _CERTIFICATE, _KEY, _UNTIL)
_LONGEST = 16 * 1024  # characters of an invitation


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a scheduler: `tls://HOST:PORT`."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `tls://HOST[:PORT]`. Raises UsageError for any other text."""
        try:
            parts = urlsplit(text)
            port = parts.port or PORT
        except ValueError as error:
            raise UsageError(f"{text}: {error}: write tls://HOST:{PORT}.") from error
        if parts.scheme != "tls" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise UsageError(f"{text} is no address of a scheduler: write tls://HOST:{PORT}.")
        return cls(host=parts.hostname, port=port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{host}:{self.port}"


class Invitation:
    """The certificates of one campaign, in a folder that only its user may read. All members have the same certificate.
    With it, a member can run any program as the user of any other member."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, *, days: float) -> "Invitation":
        """Make a new authority and one certificate. The authority's key isn't kept, so there is no other one."""
        files = {
            name: content.decode() for name, content in mutual_keys([_MEMBER], validity=timedelta(days=days)).items()
        }
        return cls._store(folder, {**files, _UNTIL: f"{datetime.now().timestamp() + days * 86_400:.0f}"})

    @classmethod
    def accept(cls, folder: Path, token: str) -> "Invitation":
        """Store the certificates of the line of text `token`. Raises UsageError when it is not complete."""
        try:
            packed = urlsafe_b64decode(token.strip().encode())
            text = zlib.decompressobj().decompress(packed, _LONGEST)
            files = json.loads(text)
            entries = {name: str(files[name]) for name in _FILES}
            float(entries[_UNTIL])
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise UsageError(
                "The invitation is not complete: paste the line that `./bentpipe worker invite` printed."
            ) from error
        return cls._store(folder, entries)

    @classmethod
    def _store(cls, folder: Path, files: dict[str, str]) -> "Invitation":
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name, content in files.items():
            temporary = folder / f".{name}.new"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
            temporary.replace(folder / name)
        return cls(folder)

    @property
    def complete(self) -> bool:
        """True when all files of the invitation exist."""
        return all((self.folder / name).is_file() for name in _FILES)

    @property
    def until(self) -> datetime:
        """The time at which the certificates expire, in local time."""
        return datetime.fromtimestamp(float(read_regular(self.folder / _UNTIL, limit=_LONGEST)))

    @property
    def valid(self) -> bool:
        """True when the invitation is complete and has not expired."""
        return self.complete and datetime.now() < self.until

    @property
    def token(self) -> str:
        """The whole invitation as one word, to be pasted on another host."""
        files = {name: read_regular(self.folder / name, limit=_LONGEST).decode() for name in _FILES}
        return urlsafe_b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode()


def invitation_folder(logs: Path, address: Address) -> Path:
    """The folder in which this host keeps the invitation to the scheduler at `address`."""
    return logs / ".workers" / f"{address.host.replace(':', '-')}-{address.port}"


def accepted(logs: Path, address: Address, token: str | None) -> Invitation:
    """The invitation to `address`, from `token` or an earlier call. Raises UsageError when none is valid."""
    folder = invitation_folder(logs, address)
    kept = Invitation.accept(folder, token) if token else Invitation(folder)
    if kept.complete and not kept.valid:
        raise UsageError(
            f"The invitation to {address} ended at {kept.until:%Y-%m-%d %H:%M}: run `./bentpipe worker invite` again, "
            "and paste the new line."
        )
    if not kept.complete:
        raise UsageError(
            f"This host has no invitation to {address}: paste the line that `./bentpipe worker invite` printed there."
        )
    return kept


# Configures Dask: encrypted and authenticated connections only, no dashboard, and lost hosts are noticed in time.

LANE = "lane"  # the Dask resource of which each job takes 1
_LOCAL = "127.0.0.1:0"  # Dask's own HTTP server can't be left out: it listens on this host only
_SETTINGS = {
    "distributed.comm.compression": False,  # archives are compressed
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "20s",  # time after which a peer behind a cut network counts as lost
    "distributed.scheduler.worker-ttl": "300s",  # a busy host must not count as lost
    "distributed.scheduler.allowed-failures": 0,  # the runner sends lost jobs again, not Dask
    "distributed.scheduler.work-stealing": False,  # the runner chooses the worker, not Dask
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.diagnostics.nvml": False,
    "distributed.admin.tick.limit": "60s",
}


def use_dask() -> None:
    """Configure Dask for this process. Raises SetupError when Dask is not installed."""
    try:
        import dask  # noqa: PLC0415 - optional: a run on one host doesn't need it
        import distributed  # noqa: F401, PLC0415
    except ImportError as error:
        raise SetupError(
            "Workers need Dask, which is not installed: run `.venv/bin/pip install -r requirements-workers.txt`."
        ) from error
    dask.config.set(_SETTINGS)
    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def security(invitation: Invitation) -> Any:
    """Mutual TLS with the certificates of `invitation`."""
    from distributed import Security  # noqa: PLC0415

    ca, certificate, key = (str(invitation.folder / name) for name in (_CA, _CERTIFICATE, _KEY))
    files = {"key": key, "cert": certificate}
    roles = {f"tls_{role}_{item}": path for role in ("scheduler", "worker", "client") for item, path in files.items()}
    return Security(tls_ca_file=ca, require_encryption=True, **roles)


async def schedule(address: Address, invitation: Invitation, *, ready: Any = lambda: None) -> None:
    """Run the scheduler on all addresses of this host until it is cancelled. Raises SetupError."""
    from distributed import Scheduler  # noqa: PLC0415

    try:
        async with Scheduler(
            host="",
            port=address.port,
            protocol="tls",
            security=security(invitation),
            dashboard=False,
            dashboard_address=_LOCAL,
        ) as scheduler:
            ready()
            await scheduler.finished()
    except (OSError, RuntimeError) as error:  # Dask's RuntimeError hides why the port can't be opened
        why = error.__cause__ or error
        raise SetupError(f"Port {address.port} can't be opened ({why}): choose another port with --port.") from error


def worker(address: Address, invitation: Invitation, *, lanes: int, name: str, folder: Path) -> Any:
    """A worker with `lanes` lanes, as an async context manager. `folder`: the folder for Dask's files."""
    from distributed import Worker  # noqa: PLC0415

    return Worker(
        str(address),
        nthreads=lanes + 1,  # one thread more, for images and queries
        resources={LANE: lanes},
        name=name,
        security=security(invitation),
        memory_limit=0,
        local_directory=str(folder),
        dashboard=False,
        dashboard_address=_LOCAL,
    )


@cache
def source_digest() -> str:
    """A digest of this checkout's source. A runner and its workers must have the same source."""
    digest = hashlib.sha256()
    for folder in ("runner", "testcases"):
        for path in sorted((SOURCE / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc" and not {"tests", "shipped"} & {*path.parts}:
                digest.update(f"{path.relative_to(SOURCE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# Orders for workers, and archives in which workers return the folders of jobs. A worker may be faulty or hostile: its
# archive is unpacked with the same care as the archives of containers, and it is used only when it is complete.

LARGEST = 1024 * MIB  # most bytes of an archive
_LARGEST_FOLDER = 2048 * MIB  # most bytes of all files of a job
_MOST_FILES = 16 * 1024
_TOP = "job"
_CODEC = "zstd"
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job for a worker. `run` has only the parts that this job needs. `store`: the folder for the archive (an
    fsspec URL); empty: the archive goes through the scheduler."""

    run: Run
    job: Job
    attempt: int
    key: str  # the identity of the job and its attempt, in all runs
    store: str = ""


@dataclass(frozen=True, kw_only=True)
class OrderResult:
    """The result of an order, with its `archive` or its `place` in the shared folder. `error`: the harness's."""

    host: dict[str, str]
    archive: bytes = b""
    place: str = ""
    size: int = 0
    sha256: str = ""
    error: dict[str, str] | None = None


def part_of(run: Run, job: Job) -> Run:
    """The parts of the run that `job` needs: kilobytes of a run that may have megabytes."""
    names = (job.server, job.client, job.via, *run.case(job).beside_stacks)
    return replace(
        run,
        order=(job,),
        clients=(job.client,),
        servers=(job.server,),
        vias=(job.via,),
        cases={job.case_link: run.case(job)},
        implementations={name: entry for name, entry in run.elsewhere.implementations.items() if name in names},
        middleboxes={name: box for name, box in run.middleboxes.items() if name == job.via},
        protocols={cell: name for cell, name in run.protocols.items() if cell == job.cell},
        clocks={job.case_link: run.clock_of(job.case_link, job.cell)},
        old_folders={},
    )


def pack(folder: Path) -> bytes:
    """The files of a job's folder as one compressed archive. Raises LaneError when it is larger than a GiB."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    buffer = pa.BufferOutputStream()
    with (
        pa.CompressedOutputStream(buffer, _CODEC) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, f"{_TOP}/{path.relative_to(folder)}", recursive=False)
    content: bytes = buffer.getvalue().to_pybytes()
    if len(content) > LARGEST:
        raise LaneError("archive-broken", f"The files of the job take {format_size(len(content))} in an archive.")
    return content


def unpack(archive: BinaryIO, order_result: OrderResult, folder: Path) -> None:
    """Fill the empty `folder`. Raises LaneError unless the archive is complete and has only a job's files."""
    content = archive.read(LARGEST + 1)
    if len(content) != order_result.size or hashlib.sha256(content).hexdigest() != order_result.sha256:
        sentence = f"The archive of a worker has {len(content)} B; its size or checksum differs from the announced one."
        raise LaneError("archive-broken", sentence)
    try:
        extraction = extract(_blocks(content), folder, budget=_LARGEST_FOLDER, members=_MOST_FILES)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of this host's disk
        raise LaneError("archive-broken", f"The archive of a worker can't be read: {error}") from error
    if extraction.skipped:
        raise LaneError("archive-broken", f"The archive of a worker contains {extraction.skipped[0]}.")
    if runs.load_evidence(Artifacts(folder)) is None:
        raise LaneError("archive-broken", "The archive of a worker has no evidence.json that can be read.")


def _blocks(content: bytes) -> Iterator[bytes]:
    import pyarrow as pa  # noqa: PLC0415 - slow to import

    with pa.CompressedInputStream(pa.BufferReader(content), _CODEC) as stream:
        while block := stream.read(_BLOCK):
            yield block


# Keeps archives in a folder that runner and workers share: any URL of fsspec (a folder, S3, SFTP).


def file_system(url: str) -> tuple[Any, str]:
    """The file system and the folder of a URL. Raises SetupError for a URL that can't be used."""
    from fsspec.core import url_to_fs  # noqa: PLC0415 - optional

    try:
        system, folder = url_to_fs(url)
        system.makedirs(folder, exist_ok=True)
    except Exception as error:  # each kind of file system raises its own errors
        raise SetupError(f"--store {url} can't be used ({first_line(error)}): name a URL that fsspec opens.") from error
    return system, folder.rstrip("/")


def put(url: str, name: str, content: bytes) -> str:
    """Write an archive under `name`, completely or not at all. Returns its place. Raises LaneError."""
    try:
        system, folder = file_system(url)
        place = f"{folder}/{name}-{secrets.token_hex(4)}"
        system.pipe_file(f"{place}.part", content)
        system.mv(f"{place}.part", f"{place}.tar.zst")
    except Exception as error:
        raise LaneError("worker-failed", f"The archive can't be written to {url}: {first_line(error)}") from error
    return f"{place}.tar.zst"


def take(url: str, place: str) -> BinaryIO:
    """Read an archive that a worker wrote, and remove it. Raises LaneError when it is missing."""
    try:
        system, folder = file_system(url)
        if not place.startswith(f"{folder}/") or ".." in place:
            raise ValueError(f"{place} is not in {folder}")
        with system.open(place, "rb") as file:
            content: bytes = file.read(LARGEST + 1)
        with suppress(Exception):  # leftovers are removed when the run is resumed
            system.rm_file(place)
    except Exception as error:
        raise LaneError("archive-broken", f"The archive of a worker can't be read: {first_line(error)}") from error
    return io.BytesIO(content)


def clean(url: str, prefix: str) -> None:
    """Remove archives of earlier calls of a run."""
    system, folder = file_system(url)
    with suppress(Exception):
        for place in system.glob(f"{folder}/{prefix}*"):
            system.rm_file(place)


# The part of a worker that runs orders on this host and packs the jobs' folders.

_OWNER = "worker"  # label of containers, instead of a run's name


class OwnPlaces:
    """Lanes and guests of this host. They are opened for the first job that needs them, because the runner must bring
    the images first. Construct with `open`."""

    images = True

    def __init__(self, stack: ExitStack, *, lanes: int, scratch: Path, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._width = Concurrency.fixed(lanes)
        self._scratch = scratch
        self._say = say
        self._places: dict[Setting | None, HostPlace] = {}  # guests by their setting; None: lanes
        self._lock = threading.Lock()
        self._stopped = False

    @classmethod
    @contextmanager
    def open(cls, *, lanes: int, scratch: Path, say: Callable[[str], None]) -> Iterator["OwnPlaces"]:
        """Run up to `lanes` jobs at once. Removes leftovers of killed workers first, and all of its own at the end."""
        with ExitStack() as stack:
            yield cls(stack, lanes=lanes, scratch=scratch, say=say)

    def deployment(self, run: Run, job: Job) -> Deployment:
        """Lanes or guests, by the clock of the job's case. Raises LaneError or SetupError when they can't open."""
        setting = Setting.of(run) if run.clock_of(job.case_link, job.cell) == VIRTUAL else None
        with self._lock:
            if self._stopped:
                raise LaneError("stopped", "The worker was stopped before the job began.")
            if setting not in self._places:
                place = GuestPlace(scratch=self._scratch, say=self._say) if setting else LanePlace(say=self._say)
                self._stack.enter_context(place.open(replace(run, name=_OWNER), self._width))
                self._places[setting] = place
            return self._places[setting].deployment(run)

    def stop(self) -> None:
        """Make running jobs end soon, and start no more jobs."""
        with self._lock:
            self._stopped = True
            for place in self._places.values():
                place.stop()


class Deployments(Protocol):
    """Gives each job its deployment: `OwnPlaces`, or a replay of recorded jobs. `images`: True when jobs need
    images of this host's engine."""

    images: bool

    def deployment(self, run: Run, job: Job) -> Deployment:
        """The deployment that runs `job`."""

    def stop(self) -> None:
        """Make running jobs end soon."""


class Host:
    """Runs the orders of one worker. Thread-safe."""

    def __init__(self, name: str, deployments: Deployments, scratch: Path, *, say: Callable[[str], None]) -> None:
        self.facts = {**host_facts(), "cpu": host_cpu(), "worker": name}
        self.say = say
        self.running: set[str] = set()  # keys of the running orders
        self._deployments = deployments
        self._scratch = scratch
        self.images = deployments.images
        self._stopped = threading.Event()

    def execute(self, order: Order) -> OrderResult:
        """Run one job. Errors are in the result."""
        folder = Path(tempfile.mkdtemp(prefix="job-", dir=self._scratch))
        self.running.add(order.key)
        try:
            self._run(order, folder)
            return self._packed(order, folder)
        except LaneError as error:
            return OrderResult(host=self.facts, error=error.record())
        except Exception as error:  # a bug of bentpipe must end only one job, not the worker
            return OrderResult(
                host=self.facts, error={"code": "worker-failed", "message": f"{type(error).__name__}: {error}"}
            )
        finally:
            self.running.discard(order.key)
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, order: Order, folder: Path) -> None:
        self._deployments.deployment(order.run, order.job).run(order.job, folder, attempt=order.attempt)
        evidence = runs.load_evidence(Artifacts(folder))
        if evidence is None:
            raise LaneError("worker-failed", "The job left no evidence.json.")
        if self._stopped.is_set():
            raise LaneError("stopped", "The worker was stopped while the job ran.")
        runs.save_evidence(Artifacts(folder), replace(evidence, host=self.facts))

    def _packed(self, order: Order, folder: Path) -> OrderResult:
        content = pack(folder)
        order_result = OrderResult(host=self.facts, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        if order.store:
            return replace(order_result, place=put(order.store, archive_name(order.key), content))
        return replace(order_result, archive=content)

    def stop(self) -> None:
        """Make running jobs end soon, because no runner waits for them any more."""
        self._stopped.set()
        self._deployments.stop()


def archive_name(key: str) -> str:
    """The name of an order's archive in a shared folder: the name of the run, then a digest of the rest of the key."""
    run, _, job = key.partition("/")
    return f"{run}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"


def this_host() -> Host:
    """The host of the worker whose thread calls this function."""
    from distributed import get_worker  # noqa: PLC0415 - an extra

    host: Host = get_worker().bentpipe
    return host


# A runner calls the functions below on a worker. Only their names are sent, because both have the same source.


def run_order(order: Order) -> OrderResult:
    """Run a job on the worker."""
    return this_host().execute(order)


def introduce() -> dict[str, str]:
    """The facts of the worker, the digest of its source, and whether its jobs need images."""
    host = this_host()
    return {**host.facts, "source": source_digest(), "images": "needed" if host.images else ""}


def tell(sentence: str) -> None:
    """Print a sentence at the worker's terminal."""
    this_host().say(sentence)


# `./bentpipe worker tls://…`: takes part until Ctrl-C, even when the scheduler or a runner ends.

_LOOK = 1.0  # seconds between checks whether a runner still waits for the running jobs
_UNWANTED = 3  # consecutive checks without a waiting runner, after which the jobs end
_PAUSE = 5.0  # seconds until the next try to connect
OpenHost = Callable[[], AbstractContextManager[Deployments]]


def take_part(
    address: Address, invitation: Invitation, open_host: OpenHost, *, lanes: int, say: Callable[[str], None]
) -> None:
    """Run jobs of the scheduler at `address` for ever, with `lanes` lanes of the host that `open_host` opens. When the
    connection is lost, the session ends: its running jobs are ended and removed. Then another session begins."""
    while True:
        began = time.monotonic()
        try:
            why = asyncio.run(_session(address, invitation, open_host, lanes=lanes, say=say))
        except (TimeoutError, OSError) as error:
            why = f"{address} can't be reached ({first_line(error)})"
        say(f"{why}. The next try begins in {_PAUSE:.0f} s; Ctrl-C ends this worker.")
        time.sleep(_PAUSE if time.monotonic() - began < 10 * _PAUSE else 1.0)


async def _session(
    address: Address, invitation: Invitation, open_host: OpenHost, *, lanes: int, say: Callable[[str], None]
) -> str:
    """Run one session. Returns the reason of its end."""
    name = f"{socket.gethostname()}-{secrets.token_hex(2)}"
    scratch = own_folder(Path(tempfile.gettempdir()) / f"bentpipe-workers-{os.geteuid()}")
    remove_abandoned(scratch)
    folder = scratch / f"bentpipe-{name}"
    with ExitStack() as stack:
        stack.enter_context(locked_folder(folder))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        host = Host(name, stack.enter_context(open_host()), folder, say=say)
        stack.callback(host.stop)
        member = worker(address, invitation, lanes=lanes, name=name, folder=folder)
        member.bentpipe = host
        async with member:
            say(f"{name} takes part in {address} with {format_count(lanes, 'lane')}.")
            return await _work(member, host, address)


async def _work(member: Any, host: Host, address: Address) -> str:
    """Work until the connection is lost, or no runner waits for the running jobs. Returns why it ended."""
    looks = 0
    while member.status.name == "running":
        await asyncio.sleep(_LOOK)
        running = set(host.running)
        looks = looks + 1 if running and not any(_is_awaited(member, key) for key in running) else 0
        if looks >= _UNWANTED:
            host.stop()
            await member.close(reason="no runner waits for the running jobs")
            return "The runner has ended, so its running jobs were ended"
    host.stop()
    return f"The connection to {address} is lost, so the running jobs were ended"


def _is_awaited(member: Any, key: str) -> bool:
    """True when a runner still waits for the order `key`."""
    task = member.state.tasks.get(key)
    return task is not None and task.state not in ("cancelled", "released", "forgotten")
