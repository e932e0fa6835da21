"""Injects each fault of a real link during a transfer: `.venv/bin/python -m lab.faults [--fault NAME]`.

A `./bentpipe run` command with two jobs runs over a satellite link between this host and another host. The other host
is made of namespaces with their own SSH server and Docker Engine (`runner/tests/links`). The fault is injected when
the first job is done and the client of the second job downloads. Three facts are checked: the containers and volumes of
the second job are gone from both hosts within two minutes; the outcome of the second job is right; after the fix, the
same command completes both results. The jobs are test cases, because a busy host would disturb measurements. `--keep
FILE` counts the injections of several calls together.

Needs root and the images of the tests. An injection takes one minute, or two and a half minutes when a watchdog must
wait.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import click
from docker.errors import DockerException
from rich.console import Console
from rich.table import Table

from lab.testbed.hosts import Host
from lab.testbed.jobs import STACK
from lab.testbed.sky import LINK, Sky, sky_over
from runner.model.result import Outcome, Sample
from runner.model.run import Job
from runner.paths import ROOT
from runner.places.links.link_end import CONTRACT_PORT
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder

ALLOWED_SECONDS = 120.0  # from the fault until all containers and volumes of its job must be gone
_COMMAND_SECONDS = 400.0
CASES = _, _BROKEN = ("handshake", "transfer")  # the job before the fault, and the job with the fault
_INTO_TRANSFER = 2.0  # s from the client's start until the fault
_LOOK_SECONDS = 2.0
_DISK = 1_200_000_000  # bytes
_OF_A_JOB = re.compile(r"bentpipe-[0-9a-f]{8}-[0-9a-f]{6}-")
Process = subprocess.Popen[bytes]

out = Console(highlight=False)


def _nothing(_: Host) -> None:
    """Nothing needs a fix."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a real link. `inject` breaks the host, or ends the runner. `fix` is what the host's owner does after
    reading the command's last sentence."""

    text: str
    inject: Callable[[Host, Process], object]
    fix: Callable[[Host], object] = _nothing


def _refuse(host: Host) -> None:
    host.authorize("other_key")
    host.restart_ssh(away=0.0)


FAULTS = {
    "ssh": Fault(text="SSH drops for 3 s", inject=lambda host, _: host.restart_ssh()),
    "reboot": Fault(text="the host restarts", inject=lambda host, _: host.reboot()),
    "docker": Fault(text="its Docker Engine restarts", inject=lambda host, _: host.restart_engine()),
    "disk": Fault(text="its disk is full", inject=lambda host, _: host.fill_disk(), fix=lambda host: host.free_disk()),
    "key": Fault(
        text="it refuses our key", inject=lambda host, _: _refuse(host), fix=lambda host: host.authorize("key")
    ),
    "host-key": Fault(
        text="it has another host key",
        inject=lambda host, _: host.restart_ssh(away=0.0, host_key="other_host_key"),
        fix=lambda host: host.restart_ssh(away=0.0),
    ),
    "sessions": Fault(
        text="MaxSessions is reached",
        inject=lambda host, _: host.restart_ssh(away=0.0, options="MaxSessions 0"),
        fix=lambda host: host.restart_ssh(away=0.0),
    ),
    "runner": Fault(text="the runner is killed", inject=lambda _, runner: os.killpg(runner.pid, signal.SIGKILL)),
}


@dataclass(frozen=True, kw_only=True)
class Injection:
    """The result of one injection. Times are in seconds since the injection. `became`: the outcome that the command
    gave to the job with the fault."""

    fault: str
    became: str
    gone: float | None  # until containers and volumes were gone; None: some were left after ALLOWED_SECONDS
    orphans: tuple[str, ...]
    lost: int  # results that are missing after the fix, or that have changed
    last_line: str  # of the command's output


class Trial:
    """One injection of a fault, into its own run."""

    def __init__(self, sky: Sky, name: str, log: IO[bytes]) -> None:
        self._sky, self._name, self._log = sky, name, log
        self._fault = FAULTS[name]

    def inject(self) -> Injection:
        """Inject the fault during the transfer, and wait until the run is complete again."""
        options = ("--link", LINK, "--server", STACK, "--client", STACK, "--case", ",".join(CASES))
        with self._running(*options) as runner:
            self._await_transfer(runner)
            before = self._results()
            broken = {name for name in self._sky.things() if _OF_A_JOB.search(name)}
            assert broken, "a job under way has containers"
            began = time.monotonic()
            self._fault.inject(self._sky.host, runner)
            gone = self._wait_until_gone(broken, began)
            orphans = () if gone is not None else tuple(sorted(self._left(broken)))
            code = runner.wait(_COMMAND_SECONDS)
        became, last_line = self._became(code), self._last_line()
        self._fault.fix(self._sky.host)
        with self._running(*options, "--retry", "error", "--retry", "failed") as again:
            again.wait(_COMMAND_SECONDS)
        after = self._results()
        good = sum(outcome is Outcome.SUCCEEDED for outcome, _ in after.values())
        changed = sum(after.get(job) != result for job, result in before.items() if result[0] is Outcome.SUCCEEDED)
        return Injection(
            fault=self._name,
            became=became,
            gone=gone,
            orphans=(*orphans, *sorted(self._sky.things())),
            lost=len(CASES) - good + changed,
            last_line=last_line,
        )

    @contextmanager
    def _running(self, *options: str) -> Iterator[Process]:
        """The running command. It is ended when the context ends."""
        started = subprocess.Popen(
            self._sky.command(*options), cwd=ROOT, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield started
        finally:
            if started.poll() is None:
                started.terminate()
                started.wait(_COMMAND_SECONDS)

    def _await_transfer(self, runner: Process) -> None:
        deadline = time.monotonic() + _COMMAND_SECONDS
        while not self._results() or not any(
            name.endswith("client-endpoint") and state == "running" for name, state in self._sky.host.states()
        ):
            assert runner.poll() is None, f"the command ended before any transfer: {self._last_line()}"
            assert time.monotonic() < deadline, "no transfer began"
            time.sleep(1.0)
        time.sleep(_INTO_TRANSFER)

    def _left(self, broken: set[str]) -> set[str]:
        """The remaining containers and volumes of a job; all of them while a host does not answer."""
        with suppress(DockerException, OSError):
            return broken & self._sky.things()
        return broken

    def _wait_until_gone(self, broken: set[str], began: float) -> float | None:
        while self._left(broken):
            if time.monotonic() - began > ALLOWED_SECONDS:
                return None
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began

    def _became(self, code: int) -> str:
        results = {job.case: result for job, result in RunFolder.open(self._sky.run).results().items()}
        if _BROKEN not in results:
            return f"undone, exit code {code}"
        result = results[_BROKEN]
        codes = "".join(f": {finding.code}" for finding in result.findings[:1])
        again = f" again, after: {result.disturbed[0][:80]}" if result.disturbed else ""
        return f"{result.outcome.value}{codes}{again}"

    def _results(self) -> dict[Job, tuple[Outcome, Sample | None]]:
        """The parts of the results that must not change. The kept captures may change."""
        if not (self._sky.run / "run.json").is_file():
            return {}
        results = RunFolder.open(self._sky.run).results()
        return {job: (result.outcome, result.sample) for job, result in results.items()}

    def _last_line(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


@click.command()
@click.option("--fault", "names", multiple=True, type=click.Choice(list(FAULTS)), help="Repeat for several. [all]")
@click.option("--times", default=5, show_default=True, help="Injections of each fault.")
@click.option("--udp-port", default=CONTRACT_PORT, show_default=True, help="Two commands at once need two ports.")
@click.option(
    "--keep", type=click.Path(dir_okay=False, path_type=Path), help="Append to this file, and count all of it."
)
def main(names: tuple[str, ...], times: int, udp_port: int, keep: Path | None) -> None:
    """Inject faults, count remaining containers and volumes, and lost results."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # so that SIGTERM removes the other host, too
    done: list[Injection] = []
    if keep is not None and keep.is_file():
        done = [Injection(**json.loads(line)) for line in keep.read_text().splitlines()]
    sat = load_catalog().cases["sat"].record()
    for name in names or tuple(FAULTS):
        with tempfile.TemporaryDirectory(prefix="bentpipe-faults-") as folder, Path(folder, "log").open("ab") as log:
            disk = _DISK if name == "disk" else 0
            with sky_over(Path(folder), sat.forward, sat.return_, disk=disk, udp_port=udp_port) as sky:
                for number in range(1, times + 1):
                    run = sky.run.with_name(f"{sky.run.name}-{number}")
                    injection = Trial(replace(sky, run=run), name, log).inject()
                    done.append(injection)
                    if keep is not None:
                        with keep.open("a") as file:
                            file.write(json.dumps(asdict(injection)) + "\n")
                    out.print(
                        f"{name} {number}/{times}: {injection.became}; {_gone(injection)}; "
                        f"{injection.lost} results lost. {injection.last_line}"
                    )
    out.print(_table(done))


def _gone(injection: Injection) -> str:
    return (
        f"gone after {injection.gone:.0f} s" if injection.gone is not None else f"left: {', '.join(injection.orphans)}"
    )


def _table(done: list[Injection]) -> Table:
    table = Table("fault", "times", "the job became", "gone after at most", "orphans", "results lost", box=None)
    for name, fault in FAULTS.items():
        of_fault = [injection for injection in done if injection.fault == name]
        if not of_fault:
            continue
        became = ", ".join(
            f"{count} × {outcome}" for outcome, count in Counter(injection.became for injection in of_fault).items()
        )
        gone = [injection.gone for injection in of_fault]
        table.add_row(
            fault.text,
            str(len(of_fault)),
            became,
            f"{max(seconds for seconds in gone if seconds is not None):.0f} s" if None not in gone else "never",
            str(sum(len(injection.orphans) for injection in of_fault)),
            str(sum(injection.lost for injection in of_fault)),
        )
    return table


if __name__ == "__main__":
    main()
