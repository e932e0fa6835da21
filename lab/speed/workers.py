"""The speed of workers: `.venv/bin/python -m lab.speed.workers waiting|overhead|simulated`.

Scheduler and workers are processes of this host that play recorded jobs. All code between them is the code of real
runs.
"""

import heapq
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import click

from lab.attack.processes import cpu_s
from lab.workers.recorded import Processes, processes, recorded_run, run_on
from runner.model.deployment import Silent
from runner.model.run import Job, Run
from runner.places.workers.cluster import use_dask
from runner.places.workers.workers import Member, Roster, Workers

_RECORDINGS = Path("runner/tests/recordings")
_PATIENCE = 180.0  # seconds within which all workers must have joined


@click.group()
def main() -> None:
    """Benchmarks of workers."""
    use_dask()


@contextmanager
def _workers(campaign: Processes, run: Run, number: int) -> Iterator[Workers]:
    """The workers, after `number` of them have joined."""
    with Workers.open(run, campaign.address, campaign.invitation, say=lambda _: None) as workers:
        deadline = time.monotonic() + _PATIENCE
        while len(workers.members) < number:
            if time.monotonic() > deadline:
                raise click.ClickException(f"{len(workers.members)} of {number} workers joined: {campaign.folder}")
            time.sleep(0.2)
        yield workers


@main.command()
@click.option("--workers", default=4, show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Duration of each job.")
@click.option("--jobs", default=8, show_default=True, help="Jobs for each worker.")
def waiting(workers: int, seconds: float, jobs: int) -> None:
    """Compare many workers with one worker, on jobs that mostly wait. The runner judges and stores the jobs."""
    rates = {}
    for number in (1, workers):
        with tempfile.TemporaryDirectory() as name, processes(Path(name)) as campaign:
            campaign.start("schedule")
            for _ in range(number):
                campaign.start("work", "--recording", str(_RECORDINGS), "--seconds", str(seconds))
            folder = recorded_run(Path(name) / "run", jobs * number)
            with _workers(campaign, folder.run, number) as opened:
                began = time.monotonic()
                run_on(opened, folder, Silent())
                took = time.monotonic() - began
            done = len(folder.results())
            rates[number] = done / took
            click.echo(f"{number} workers: {done} jobs of {seconds:g} s in {took:.1f} s")
    click.echo(f"efficiency {rates[workers] / rates[1] / workers:.3f}")


@main.command()
@click.option("--workers", default=4, show_default=True)
@click.option("--processes", "count", default=4, show_default=True, help="Processes of the workers.")
@click.option("--lanes", default=2, show_default=True)
@click.option("--jobs", default=400, show_default=True)
def overhead(workers: int, count: int, lanes: int, jobs: int) -> None:
    """Measure the overhead of a job that itself takes no time: from the runner's order to the unpacked folder."""
    with tempfile.TemporaryDirectory() as name, processes(Path(name)) as campaign:
        scheduler = campaign.start("schedule")
        for _ in range(count):
            share = str(workers // count)
            campaign.start("work", "--recording", str(_RECORDINGS), "--lanes", str(lanes), "--count", share)
        folder = recorded_run(Path(name) / "run", jobs)
        target = Path(name) / "jobs"
        with _workers(campaign, folder.run, workers // count * count) as opened:
            alone = [
                _timed(opened, job, target / f"alone-{number}") for number, job in enumerate(folder.run.order[:50])
            ]
            began, cpu = time.monotonic(), (time.process_time(), cpu_s(scheduler.pid))
            with ThreadPoolExecutor(min(256, opened.window)) as pool:
                list(pool.map(lambda job: _timed(opened, job, target / str(job.iteration)), folder.run.order))
            took = time.monotonic() - began
            runner_cpu, scheduler_cpu = time.process_time() - cpu[0], cpu_s(scheduler.pid) - cpu[1]
    click.echo(f"one job at a time: median {1e3 * median(alone):.0f} ms, p90 {1e3 * quantiles(alone, n=10)[-1]:.0f} ms")
    click.echo(f"{jobs} jobs on {workers} workers: {1e3 * took / jobs:.1f} ms a job, {jobs / took:.0f} jobs a second")
    click.echo(
        f"CPU time a job: runner {1e3 * runner_cpu / jobs:.1f} ms, scheduler {1e3 * scheduler_cpu / jobs:.1f} ms"
    )
    click.echo(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _timed(workers: Workers, job: Job, folder: Path) -> float:
    folder.mkdir(parents=True)
    began = time.monotonic()
    workers.run(job, folder, attempt=1)
    return time.monotonic() - began


@main.command()
@click.option("--workers", default=100, show_default=True)
@click.option("--lanes", default=4, show_default=True)
@click.option("--jobs", default=100_000, show_default=True)
@click.option("--runs", type=click.Path(path_type=Path, exists=True), help="Folder of runs whose durations are drawn.")
@click.option("--transport", default=0.05, show_default=True, help="Seconds between the end of a job and its result.")
def simulated(workers: int, lanes: int, jobs: int, runs: Path | None, transport: float) -> None:
    """Measure how well the runner chooses workers for jobs, in simulated time and with durations of stored results."""
    durations = _durations(runs)
    chance, roster, now = random.Random(1), Roster(), 0.0
    roster.clock = lambda: now
    for number in range(workers):
        roster.admit(Member(address=str(number), name=str(number), host=f"host-{number // 2}", lanes=lanes))
    free = {member.address: [0.0] * lanes for member in roster.members.values()}
    ends: list[tuple[float, int, Member]] = []
    worked = spent = 0.0
    order = itertools.count()
    for number in range(jobs):
        job = Job(server="quinn", client="quinn", case=f"case{number % 400}", iteration=1 + number // 400)
        while True:
            began = time.perf_counter()
            member = roster.place(job)
            spent += time.perf_counter() - began
            if member is not None:
                break
            now, _, done = heapq.heappop(ends)
            roster.give_back(done)
        seconds = chance.choice(durations)
        worked += seconds
        start = max(now, heapq.heappop(free[member.address]))
        heapq.heappush(free[member.address], start + seconds)
        heapq.heappush(ends, (start + seconds + transport, next(order), member))
    whole = max(end for end, _, _ in ends)
    click.echo(f"{len(durations)} recorded durations, median {median(durations):.1f} s")
    click.echo(
        f"{jobs} jobs on {workers} × {lanes} lanes: {whole:.0f} s, lanes busy {worked / whole / workers / lanes:.4f}"
    )
    click.echo(
        f"choosing workers: {spent:.1f} s, {1e6 * spent / jobs:.0f} µs a job; {jobs / whole:.1f} jobs a second "
        f"end, and workers for {jobs / spent:.0f} can be chosen"
    )


def _durations(runs: Path | None) -> list[float]:
    """Durations in seconds of all jobs below `runs`; without `runs`, of the recordings of the tests."""
    places = runs.rglob("result.json") if runs else _RECORDINGS.rglob("evidence.json")
    walls = [json.loads(path.read_bytes())["wall_s"] for path in places]
    return [wall for wall in walls if wall > 0]


if __name__ == "__main__":
    main()
