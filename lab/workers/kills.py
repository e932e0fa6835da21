"""Kills processes and cuts networks at random moments. Tests that no job is lost, no job counts twice, and no process
is left behind.

    sudo .venv/bin/python -m lab.workers.kills --moments 100

Runner and scheduler share a network namespace; each worker has its own. At each moment one of these processes is killed
with SIGKILL, or a worker's cable is pulled. A few seconds later the process starts again, or the cable is plugged in.
Meanwhile runs of recorded jobs follow one another.
"""

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from lab.workers.recorded import Processes, recorded_run
from runner.model.result import Outcome
from runner.store.runs import RunFolder

_HUB, _NETWORK = "bpw-hub", "10.99.0"
_KINDS = ("runner", "scheduler", "worker", "network")
_BACK = (0.5, 5.0)  # seconds until a process starts again; a cable stays unplugged for up to ten times as long
_LEFT_AFTER = 120.0  # seconds after which no process may be left
_STUCK = 300.0  # seconds that the last run may take


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Networks:
    """A namespace with a bridge for runner and scheduler, and a namespace behind a cable for each worker."""

    def __init__(self, workers: int) -> None:
        self._names = [_HUB, *(f"bpw-{number}" for number in range(1, workers + 1))]

    def __enter__(self) -> "Networks":
        self.remove()
        _ip("netns", "add", _HUB)
        _ip("-n", _HUB, "link", "set", "lo", "up")
        _ip("-n", _HUB, "link", "add", "bridge", "type", "bridge")
        _ip("-n", _HUB, "address", "add", f"{_NETWORK}.1/24", "dev", "bridge")
        _ip("-n", _HUB, "link", "set", "bridge", "up")
        for number, name in enumerate(self._names[1:], 1):
            _ip("netns", "add", name)
            _ip("-n", _HUB, "link", "add", f"cable{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", _HUB, "link", "set", f"cable{number}", "master", "bridge", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{_NETWORK}.{number + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove all namespaces."""
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def cable(self, number: int, state: str) -> None:
        """Pull the cable of a worker (`down`), or plug it in again (`up`)."""
        _ip("-n", _HUB, "link", "set", f"cable{number}", state)


@dataclass
class Trial:
    """Processes that are killed and started again, and the runs that they work on."""

    folder: Path
    recording: Path
    workers: int
    jobs: int
    seconds: float
    chance: random.Random
    processes: Processes = field(init=False)
    alive: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    runs: list[Path] = field(default_factory=list)
    moments: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.processes = Processes(self.folder / "processes", 8786, f"{_NETWORK}.1")

    def begin(self, name: str) -> None:
        """Start the runner, the scheduler, or a worker by its number."""
        if name == "runner":
            self.alive[name] = self._start(_HUB, "run", str(self._open_run()))
        elif name == "scheduler":
            self.alive[name] = self._start(_HUB, "schedule")
        else:
            options = ("--recording", str(self.recording), "--seconds", str(self.seconds), "--lanes", "2")
            self.alive[name] = self._start(f"bpw-{name}", "work", *options)

    def _start(self, namespace: str, command: str, *options: str) -> "subprocess.Popen[bytes]":
        return self.processes.start(command, *options, prefix=("ip", "netns", "exec", namespace))

    def _open_run(self) -> Path:
        """The unfinished run, or a new one."""
        if not self.runs or not self.left(self.runs[-1]):
            self.runs.append(self.folder / f"run-{len(self.runs) + 1}")
            recorded_run(self.runs[-1], self.jobs)
        return self.runs[-1]

    @staticmethod
    def left(path: Path) -> int:
        """Jobs of a run without a result."""
        folder = RunFolder.open(path)
        return len(folder.run.order) - len(folder.results())

    def disturb(self, networks: Networks) -> None:
        """Kill a process or pull a cable, once."""
        kind = self.chance.choice(_KINDS)
        back = self.chance.uniform(*_BACK)
        self.moments[kind] += 1
        number = self.chance.randint(1, self.workers)
        if kind == "network":
            networks.cable(number, "down")
            time.sleep(back * self.chance.choice((1, 10)))
            networks.cable(number, "up")
            return
        name = str(number) if kind == "worker" else kind
        process = self.alive[name]
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)  # its children are not killed: they must end by themselves
            process.wait()
        time.sleep(back)
        self.begin(name)

    def keep_running(self) -> None:
        """Start the next run when the last one is done."""
        if self.alive["runner"].poll() is not None:
            self.begin("runner")

    def finish(self) -> float:
        """Finish the last run without disturbance. Returns its duration in seconds."""
        began = time.monotonic()
        while self.left(self.runs[-1]):
            if time.monotonic() - began > _STUCK:
                raise click.ClickException(f"{self.runs[-1]} is stuck: {self.left(self.runs[-1])} jobs are left.")
            if self.alive["runner"].poll() is not None and self.left(self.runs[-1]):
                self.alive["runner"] = self._start(_HUB, "run", str(self.runs[-1]))
            time.sleep(1.0)
        return time.monotonic() - began


def _processes_of(folder: Path) -> list[int]:
    """Processes with a path in `folder` in their arguments or environment, such as judges of workers."""
    left_over = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and int(entry.name) != os.getpid():
            left_over.append(int(entry.name))
    return left_over


@click.command()
@click.option("--moments", default=100, show_default=True)
@click.option("--workers", default=3, show_default=True)
@click.option("--jobs", default=60, show_default=True, help="Jobs of each run.")
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of each job.")
@click.option("--pause", default=6.0, show_default=True, help="Mean seconds between two moments.")
@click.option("--seed", default=1, show_default=True)
@click.option("--recording", type=click.Path(path_type=Path, exists=True), default=Path("runner/tests/recordings"))
def main(moments: int, pause: float, seed: int, recording: Path, **sizes: Any) -> None:
    """Kill processes and cut networks, then count lost jobs and remaining processes."""
    workers: int = sizes["workers"]
    folder = Path(tempfile.mkdtemp(prefix="bentpipe-kills-"))
    os.environ["TMPDIR"] = str(folder)  # for the workers; so `_processes_of` finds processes that they leave behind
    trial = Trial(folder, recording.resolve(), workers, sizes["jobs"], sizes["seconds"], random.Random(seed))
    with Networks(workers) as networks:
        try:
            for name in ("scheduler", *map(str, range(1, workers + 1)), "runner"):
                trial.begin(name)
            while trial.moments.total() < moments:
                time.sleep(trial.chance.expovariate(1 / pause))
                trial.keep_running()
                trial.disturb(networks)
                click.echo(f"{trial.moments.total()}: {dict(trial.moments)}, run {len(trial.runs)}")
            last = trial.finish()
            for process in trial.alive.values():
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
            time.sleep(_LEFT_AFTER)
            left = _processes_of(folder)
        finally:
            trial.processes.close()
    good = _report(trial, left, last)
    raise SystemExit(not good)


def _report(trial: Trial, left: list[int], last: float) -> bool:
    """Print the jobs that were lost or counted twice, and remaining processes. True when there are none."""
    lost = sum(trial.left(path) for path in trial.runs)
    lines = Counter(
        f"{path.name} {line}" for path in trial.runs for line in (path / "finished").read_text().split("\n")
    )
    twice = sum(count > 1 for line, count in lines.items() if not line.endswith(" "))
    results = [result for path in trial.runs for result in RunFolder.open(path).results().values()]
    errors = sum(result.outcome is not Outcome.SUCCEEDED for result in results)
    click.echo(
        f"{trial.moments.total()} moments {dict(trial.moments)}; {len(trial.runs)} runs, {len(results)} results:"
    )
    click.echo(f"{lost} lost, {twice} twice, {errors} not succeeded; {len(left)} processes left")
    click.echo(f"the last run was done {last:.0f} s after the last moment; logs in {trial.folder}")
    return not (lost or twice or errors or left)


if __name__ == "__main__":
    main()
