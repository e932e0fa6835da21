"""The clock of a run: real, virtual, or a clock for each case."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.campaign.width import Width
from runner.config.cpu_model import NONE, charge_of
from runner.errors import UsageError
from runner.model.estimate import REAL, VIRTUAL, best_clock
from runner.model.job import Job
from runner.model.run import CaseRecord, Run
from runner.plan.runs import LOGS
from runner.store import RunFolder

__all__ = ["AUTO", "CPU_MODEL", "EPOCH", "REAL", "VIRTUAL", "charge", "chosen", "parts", "width", "with_clock"]
AUTO = "auto"
CPU_MODEL = LOGS / ".guests" / "cpu-model.json"
"""The result of the last calibration of this host."""

EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z; every guest starts at this time, so that equal seeds give equal packets


def chosen(option: str | None, path: Path) -> str:
    """The clock of `--clock`; without it the clock of the stored run at `path`; without both the real clock. Raises
    UsageError when the stored run has another clock than `option`."""
    if not (path / "run.json").is_file():
        return option or REAL
    stored = RunFolder.open(path).run.clock
    if option not in (None, stored):
        raise UsageError(
            f"{path} began with --clock {stored}, and its numbers can't be pooled with those of another clock: start a "
            "new --run."
        )
    return stored


def charge(clock: str, cpu_model: str | None, path: Path) -> str:
    """The CPU charge of a run's guests (`CpuModel.charge`); empty when CPU work takes no time.

    Without `cpu_model`, a stored run at `path` keeps its charge. Raises UsageError when a CPU model is chosen in real
    time, or when it can't be loaded.
    """
    if clock == REAL:
        if cpu_model not in (None, NONE):
            raise UsageError(f"--cpu-model {cpu_model}: this option is for virtual time; add --clock virtual.")
        return ""
    if cpu_model is None and (path / "run.json").is_file():
        return RunFolder.open(path).run.guest.get("charge", "")
    return charge_of(cpu_model or NONE, CPU_MODEL)


def width(lanes: str, clock: str) -> Width:
    """The number of jobs that run at the same time. `auto` means one guest for each core: a guest uses one core."""
    if lanes == "auto" and clock == VIRTUAL:
        return Width.fixed(len(os.sched_getaffinity(0)))
    return Width.parse(lanes)


def with_clock(run: Run, clock: str, *, cpu_charge: str = "") -> Run:
    """Return `run` with this clock; for `auto`, with a clock for each case."""
    if clock == REAL:
        return run
    clocks = {name: _best_clock(case) for name, case in run.cases.items()} if clock == AUTO else {}
    return replace(run, clock=clock, clocks=clocks, guest={"epoch": str(EPOCH), "charge": cpu_charge})


def _best_clock(case: CaseRecord) -> str:
    """The clock that `auto` chooses for a case. Second flows need real time, because guests can't run them."""
    return REAL if case.beside else best_clock(case)


def parts(run: Run, todo: Sequence[Job]) -> Iterator[tuple[str, tuple[Job, ...]]]:
    """The jobs of each clock. Virtual time comes first: its jobs are cheap, and the handshakes are among them."""
    for clock in (VIRTUAL, REAL):
        if jobs := tuple(job for job in todo if run.clock_of(job.case_link) == clock):
            yield clock, jobs
