"""`./bentpipe worker tls://…`: takes part until Ctrl-C, even when the scheduler or a runner ends."""

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from runner.errors import first_line
from runner.files.folder_lock import locked_folder, own_folder, remove_abandoned
from runner.workers.cluster import worker
from runner.workers.host import Deployments, Host
from runner.workers.invitation import Address, Invitation

_LOOK = 1.0  # seconds between checks whether a runner still waits for the running jobs
_UNWANTED = 3  # consecutive checks without a waiting runner, after which the jobs end
_PAUSE = 5.0  # seconds until the next try to connect
OpenHost = Callable[[], AbstractContextManager[Deployments]]


def take_part(
    address: Address, invitation: Invitation, open_host: OpenHost, *, lanes: int, say: Callable[[str], None]
) -> None:
    """Run jobs of the scheduler at `address` for ever, with `lanes` lanes of the host that `open_host` opens. When the
    connection is lost, the session ends: its running jobs are ended and removed. Then another session begins.
    """
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
    with locked_folder(folder):
        try:
            return await _in_session(address, invitation, open_host, name, folder, lanes=lanes, say=say)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


async def _in_session(
    address: Address,
    invitation: Invitation,
    open_host: OpenHost,
    name: str,
    folder: Path,
    *,
    lanes: int,
    say: Callable[[str], None],
) -> str:
    with open_host() as deployments:
        host = Host(name, deployments, folder, say=say)
        member = worker(address, invitation, lanes=lanes, name=name, folder=folder)
        member.bentpipe = host
        try:
            async with member:
                say(f"{name} takes part in {address} with {lanes} {'lane' if lanes == 1 else 'lanes'}.")
                return await _work(member, host, address)
        finally:
            host.stop()


async def _work(member: Any, host: Host, address: Address) -> str:
    """Work until the connection is lost, or until no runner waits for the running jobs. Returns the reason of the
    end."""
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
