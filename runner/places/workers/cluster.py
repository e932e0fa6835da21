"""Configures Dask with encrypted and authenticated connections only, and invites workers."""

import hashlib
import json
import logging
import os
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.errors import SetupError, UsageError
from runner.files import read_regular
from runner.inputs.inputs import mutual_keys
from runner.paths import SOURCE

# Invitations of workers: the certificates of one campaign, and a line of text that brings them to another host.

PORT = 8786
_MEMBER = "member"
_UNTIL = "until"  # seconds since 1970
_FILES = ("ca.pem", f"{_MEMBER}.pem", f"{_MEMBER}.key", _UNTIL)
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
    With it, a member can run any program as the user of any other member.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, *, days: float) -> "Invitation":
        """Make a new certificate authority and one certificate. The authority's key is not kept, so no other
        certificate can be made later."""
        files = {
            name: content.decode() for name, content in mutual_keys([_MEMBER], validity=timedelta(days=days)).items()
        }
        return cls._store(folder, {**files, _UNTIL: f"{datetime.now().timestamp() + days * 86_400:.0f}"})

    @classmethod
    def accept(cls, folder: Path, token: str) -> "Invitation":
        """Store the certificates of an invitation. `token`: the line of text. Raises UsageError when it is
        not complete."""
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

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def certificate(self) -> str:
        return str(self.folder / f"{_MEMBER}.pem")

    @property
    def key(self) -> str:
        return str(self.folder / f"{_MEMBER}.key")


def invitation_folder(logs: Path, address: Address) -> Path:
    """The folder in which this host keeps the invitation to the scheduler at `address`."""
    return logs / ".workers" / f"{address.host.replace(':', '-')}-{address.port}"


def accepted(logs: Path, address: Address, token: str | None) -> Invitation:
    """The invitation to `address`, from `token` or from an earlier call. Raises UsageError when there is no invitation,
    or when it has expired."""
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


def use_dask(*, verbose: bool = False) -> None:
    """Configure Dask for this process. Raises SetupError when Dask is not installed."""
    try:
        import dask  # noqa: PLC0415 - optional: a run on one host doesn't need it
        import distributed  # noqa: F401, PLC0415
    except ImportError as error:
        raise SetupError(
            "Workers need Dask, which is not installed: run `.venv/bin/pip install -r requirements-workers.txt`."
        ) from error
    dask.config.set(_SETTINGS)
    if not verbose:
        for name in ("distributed", "tornado", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def security(invitation: Invitation) -> Any:
    """Mutual TLS with the certificates of `invitation`."""
    from distributed import Security  # noqa: PLC0415

    files = {"key": invitation.key, "cert": invitation.certificate}
    roles = {f"tls_{role}_{item}": path for role in ("scheduler", "worker", "client") for item, path in files.items()}
    return Security(tls_ca_file=invitation.ca, require_encryption=True, **roles)


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
