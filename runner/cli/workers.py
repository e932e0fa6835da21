"""Commands of workers: worker invite, worker tls://…, worker accept."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import click
from rich.markup import escape

from runner.cli.base import out, yes_option
from runner.cli.group import main
from runner.errors import InUseError, UsageError
from runner.files.folder_lock import locked_folder
from runner.images import doctor, setup
from runner.plan.runs import LOGS
from runner.workers.cluster import schedule, use_dask
from runner.workers.host import Deployments, OwnLanes
from runner.workers.invitation import PORT, Address, Invitation, accepted, invitation_folder
from runner.workers.session import take_part


class _WorkerGroup(click.Group):
    """Makes `worker tls://…` a short form of `worker join tls://…`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command's name, `join`, before an address."""
        is_join = any("://" in argument for argument in args) and args[0] not in self.commands
        return super().parse_args(ctx, ["join", *args] if is_join else args)


@main.group(cls=_WorkerGroup)
def worker() -> None:
    """Run jobs on many hosts (docs/workers.md).

    Call `worker invite` on the host where you start runs, and `worker tls://HOST:PORT` on each worker host.
    """


@worker.command("invite")
@click.option("--host", metavar="NAME", help="Name or address of this host, as workers reach it. [its host name]")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="TCP port to open.")
@click.option(
    "--days", default=2.0, show_default=True, type=click.FloatRange(0.01, 30), help="Days until the invitation ends."
)
@click.option("--new", is_flag=True, help="Make new certificates, which end earlier invitations.")
def invite(host: str | None, port: int, days: float, new: bool) -> None:
    """Invite workers, and run the scheduler until Ctrl-C.

    The command prints a line to paste on each worker host. A person who has this line can run any program as the user
    of each worker and of the runner. Treat the line like a password.
    """
    use_dask()
    address = Address.parse(f"tls://{host or socket.getfqdn()}:{port}")
    kept = Invitation(invitation_folder(LOGS, address))
    invitation = kept if kept.valid and not new else Invitation.make(kept.folder, days=days)

    def ready() -> None:
        out.print(
            f"Workers may take part in {address} until {invitation.until:%Y-%m-%d %H:%M}. On each of them:\n",
            soft_wrap=True,
        )
        out.print(f"    echo {invitation.token} | ./bentpipe worker {address}\n", soft_wrap=True, markup=False)
        out.print(f"Then, on this host: ./bentpipe run --on {address} …", soft_wrap=True)

    try:
        asyncio.run(schedule(address, invitation, ready=ready))
    except KeyboardInterrupt:
        out.print("The scheduler has ended. The same command starts it again with the same invitation.")


@worker.command("accept")
@click.argument("address")
def accept(address: str) -> None:
    """Read an invitation from the standard input and store it.

    The invitation is in the line that `worker invite` printed. Afterwards `run --on ADDRESS` works on this host.
    """
    at = Address.parse(address)
    accepted(LOGS, at, _token())
    out.print(f"This host may take part in {at}.")


@worker.command("join")
@click.argument("address")
@click.option("--lanes", type=click.IntRange(1, 64), help="Number of jobs at the same time. [one for each core]")
@yes_option
def join(address: str, lanes: int | None, yes: bool) -> None:
    """Run jobs of the scheduler at ADDRESS until Ctrl-C.

    ADDRESS is tls://HOST:PORT. `worker tls://HOST:PORT` is a short form of `worker join tls://HOST:PORT`.

    The first call reads the invitation from the standard input. Later calls use the stored invitation.
    """
    at = Address.parse(address)
    invitation = accepted(LOGS, at, _token())
    use_dask()
    number = lanes or len(os.sched_getaffinity(0))
    setup.require(doctor.examine_host())
    setup.connect(assume_yes=yes, console=out)

    def say(sentence: str) -> None:
        out.print(escape(sentence), soft_wrap=True)

    scratch = LOGS / ".workers" / "guests"  # disks of guests; only one process may use this folder

    def open_host() -> AbstractContextManager[Deployments]:
        return OwnLanes.open(lanes=number, scratch=scratch, say=say)

    # Slurm and systemd end a worker by SIGTERM. The handler raises an exception, so that the worker can remove its
    # containers first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _alone(scratch):
            take_part(at, invitation, open_host, lanes=number, say=say)
    except KeyboardInterrupt:
        out.print("This worker and its running jobs have ended.")


@contextmanager
def _alone(scratch: Path) -> Iterator[None]:
    """Be the only worker of this checkout. Raises UsageError when another worker of this checkout runs."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_folder(scratch))
        except InUseError as error:
            raise UsageError(
                "Another worker of this checkout is running: end it, or start it with more --lanes."
            ) from error
        yield


def _token() -> str | None:
    """The invitation on the standard input. None when the standard input is a terminal or has no invitation."""
    if sys.stdin.isatty():
        return None
    return sys.stdin.readline().strip() or None
