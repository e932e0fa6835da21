"""Which clock a run has, and what follows from it."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.campaign.width import Width
from runner.model.estimate import REAL, VIRTUAL, best_clock
from runner.model.job import Job
from runner.model.run import CaseRecord, ClientKind, Run
from runner.store import RunFolder

__all__ = ["AUTO", "EPOCH", "REAL", "VIRTUAL", "chosen", "on", "parts", "width"]
AUTO = "auto"
EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z: every guest begins then, so that equal seeds give equal packets


def chosen(asked: str | None, path: Path) -> str:
    """The clock that was asked for, else that of the run at `path`, else the real one."""
    if asked is None and (path / "run.json").is_file():
        return RunFolder.open(path).run.clock
    return asked or REAL


def width(lanes: str, clock: str) -> Width:
    """Jobs at once. Of guests `auto` means as many as there are cores: one is the work of one core, and never late."""
    if lanes == "auto" and clock == VIRTUAL:
        return Width.fixed(len(os.sched_getaffinity(0)))
    return Width.parse(lanes)


def on(run: Run, clock: str) -> Run:
    """The record of a run that begins, with its clock, or that of each case."""
    if clock == REAL:
        return run
    clocks = {name: _best_clock(run, case) for name, case in run.cases.items()} if clock == AUTO else {}
    return replace(run, clock=clock, clocks=clocks, guest={"epoch": str(EPOCH), "charge": ""})


def _best_clock(run: Run, case: CaseRecord) -> str:
    """Real time for what a guest does not have: middleboxes, links of two segments, browsers."""
    in_guest = case.client is ClientKind.STACK and len(case.link.segments) == 1 and not any(run.vias)
    return best_clock(case) if in_guest else REAL


def parts(run: Run, todo: Sequence[Job]) -> Iterator[tuple[str, tuple[Job, ...]]]:
    """The jobs of each clock; those in virtual time first, for these are cheap, and the handshakes are among them."""
    for clock in (VIRTUAL, REAL):
        if jobs := tuple(job for job in todo if run.clock_of(job.case_link) == clock):
            yield clock, jobs
