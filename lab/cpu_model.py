"""Calibrates the CPU model of virtual time against lanes: `python -m lab.cpu_model`.

Runs the same downloads in lanes and in guests (`--cpu-model measured`), then fits non-negative factors by least
squares:

    CPU s in a lane = syscall_s · system calls + fault_s · page faults + factor · (user CPU s − trap_s · entries)

The counts on the right side come from the guest. `trap_s` is the shortest stay in user code in any guest. Each stack is
held out once: a model is fitted to the other stacks, and the command prints its error for the held-out stack. The
command records the median of these errors. `./bentpipe run --clock virtual --cpu-model calibrated` uses the result. The
host should be idle, because other load makes CPU times longer.

`--lanes RUN --guests RUN` uses two stored runs instead of new runs.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from scipy.optimize import nnls

from runner.campaign.campaign import run_matrix
from runner.errors import BentpipeError
from runner.model.result import EndpointRecord
from runner.model.run import VIRTUAL, host_cpu
from runner.model.stack import Role
from runner.plan import jobs
from runner.plan.jobs import CpuModel
from runner.plan.options import MEASURED, MatrixOptions
from runner.store.runs import NamedRuns, RunFolder, load_evidence, run_path

STACKS = ("quinn", "quic-go", "aioquic")
LINK = "rate=50M/50M,delay=10ms,queue=1bdp"
SIZE = 100_000_000  # bytes: 16 s at 50 Mbit/s, many times longer than the 2 s between readings of a lane's CPU time
_LEAST_CPU = 0.2  # s in a lane; shorter times are not precise enough


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one endpoint in one job, in a lane and in a guest. Times in seconds."""

    stack: str
    role: str
    lane_cpu: float
    syscalls: float
    faults: float
    guest_cpu: float  # in user code, the cost of entering it included

    def terms(self, trap: float) -> tuple[float, float, float]:
        """The three terms of the model."""
        user = self.guest_cpu - trap * (self.syscalls + self.faults)
        return self.syscalls, self.faults, max(0.0, user)


def works(lanes: RunFolder, guests: RunFolder) -> Iterator[Work]:
    """The work of the endpoints that used enough CPU time in a lane, for all jobs that both runs have."""
    for job in sorted(lanes.results().keys() & guests.results().keys(), key=str):
        real, virtual = load_evidence(lanes.artifacts(job)), load_evidence(guests.artifacts(job))
        if real is None or virtual is None or virtual.guest is None:
            continue
        endpoints: tuple[tuple[Role, str, EndpointRecord], ...] = (
            (Role.CLIENT, job.client, real.client),
            (Role.SERVER, job.server, real.server),
        )
        for role, stack, endpoint in endpoints:
            counted = virtual.guest.work.get(role.value)
            if counted and endpoint.cpu_s >= _LEAST_CPU:
                yield Work(
                    stack=stack,
                    role=role.value,
                    lane_cpu=endpoint.cpu_s,
                    syscalls=counted["syscalls"],
                    faults=counted["faults"],
                    guest_cpu=counted["cpu_s"],
                )


def fit(measured: Sequence[Work], trap: float) -> tuple[float, float, float]:
    """Seconds per system call, seconds per page fault, and the factor of user time. No number is negative; of all such
    numbers, these have the smallest relative errors by least squares."""
    rows = np.array([[term / work.lane_cpu for term in work.terms(trap)] for work in measured])
    syscall, fault, factor = nnls(rows, np.ones(len(measured)))[0]
    return float(syscall), float(fault), float(factor)


def predicted(work: Work, numbers: tuple[float, float, float], trap: float) -> float:
    """The CPU time in a lane that the model predicts, in seconds."""
    return sum(number * term for number, term in zip(numbers, work.terms(trap), strict=True))


def held_out(measured: Sequence[Work], trap: float) -> dict[tuple[str, str], float]:
    """By stack and role: the relative error of a model that is fitted to the other stacks."""
    errors = {}
    for stack in dict.fromkeys(work.stack for work in measured):
        others = [work for work in measured if work.stack != stack]
        if len(others) < 3:
            continue
        numbers = fit(others, trap)
        for role in Role:
            mine = [work for work in measured if (work.stack, work.role) == (stack, role.value)]
            if mine:
                errors[stack, role.value] = median(predicted(work, numbers, trap) / work.lane_cpu - 1 for work in mine)
    return errors


def _trap(guests: RunFolder) -> float:
    """The shortest stay in user code in any guest, in seconds."""
    records = [load_evidence(guests.artifacts(job)) for job in guests.results()]
    shortest = [evidence.guest.least_s for evidence in records if evidence is not None and evidence.guest is not None]
    return min((seconds for seconds in shortest if seconds > 0), default=0.0)


def _run(options: MatrixOptions, out: Console) -> RunFolder:
    runs = NamedRuns.open(options.name)
    run_matrix(options, runs, out=out, err=Console(stderr=True))
    return RunFolder.open(runs.path)


def main() -> None:
    """Calibrate, print the errors, write the model."""
    parser = argparse.ArgumentParser(prog="python -m lab.cpu_model", description=__doc__)
    parser.add_argument("--stack", action="append", help=f"stacks to run; default {', '.join(STACKS)}")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--lanes", help="a stored run in real time")
    parser.add_argument("--guests", help="a stored run in virtual time with --cpu-model measured")
    parser.add_argument("--write", type=Path, default=jobs.CPU_MODEL)
    arguments = parser.parse_args()
    if bool(arguments.lanes) != bool(arguments.guests):
        parser.exit(2, "--lanes and --guests: name both runs, or neither.\n")
    out = Console(highlight=False)
    stacks = tuple(arguments.stack or STACKS)
    options = MatrixOptions(
        servers=stacks,
        clients=stacks,
        cases=("goodput",),
        links=(LINK,),
        sizes=(str(SIZE),),
        iterations=arguments.iterations,
        keep_captures="none",
        yes=True,
    )
    name = f"cpu-model-{int(time.time())}"
    try:
        if arguments.lanes:
            lanes, guests = (RunFolder.open(run_path(run)) for run in (arguments.lanes, arguments.guests))
        else:
            lanes = _run(MatrixOptions(**{**vars(options), "name": f"{name}-lanes"}), out)
            virtual = {"name": f"{name}-guests", "clock": VIRTUAL, "cpu_model": MEASURED, "lanes": "auto"}
            guests = _run(MatrixOptions(**{**vars(options), **virtual}), out)
    except BentpipeError as error:
        parser.exit(2, f"{error}\n")
    measured, trap = list(works(lanes, guests)), _trap(guests)
    if len({work.stack for work in measured}) < 2:
        parser.exit(3, "Too few jobs succeeded in both clocks: at least two stacks are needed.\n")
    numbers, errors = fit(measured, trap), held_out(measured, trap)
    for (stack, role), deviation in sorted(errors.items()):
        out.print(f"{stack:12} {role:6} held out: {deviation:+.0%} of its CPU time in a lane")
    model = CpuModel(
        syscall_s=numbers[0],
        fault_s=numbers[1],
        factor=numbers[2],
        trap_s=trap,
        host=host_cpu(),
        stacks=tuple(sorted({work.stack for work in measured})),
        error=median(map(abs, errors.values())) if errors else float("nan"),
        made_unix_s=int(time.time()),
    )
    out.print(
        f"{numbers[0] * 1e6:.2f} µs per system call, {numbers[1] * 1e6:.2f} µs per page fault, {numbers[2]:.2f} × user "
        f"time (less {trap * 1e6:.2f} µs per entry); median error of held-out stacks {model.error:.0%}, "
        f"n = {len(measured)}"
    )
    model.save(arguments.write)
    out.print(f"written: {arguments.write}")


if __name__ == "__main__":
    main()
