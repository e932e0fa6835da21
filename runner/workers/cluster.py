"""Configures Dask: encrypted and authenticated connections only, no dashboard, and lost hosts are noticed in time."""

import hashlib
import logging
from functools import cache
from pathlib import Path
from typing import Any

from runner.errors import SetupError
from runner.paths import ROOT
from runner.workers.invitation import Address, Invitation

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
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc" and "tests" not in path.parts:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
