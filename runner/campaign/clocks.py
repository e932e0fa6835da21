"""Which clock a run has, and what follows from it."""

import os
from dataclasses import replace
from pathlib import Path

from runner.campaign.width import Width
from runner.model.run import Run
from runner.store import RunFolder

REAL, VIRTUAL = "real", "virtual"
EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z: every guest begins then, so that equal seeds give equal packets


def chosen(asked: str | None, path: Path) -> str:
    """The clock that was asked for, else that of the run at `path`, else the real one."""
    if asked is None and (path / "run.json").is_file():
        return RunFolder.open(path).run.clock
    return asked or REAL


def width(lanes: str) -> Width:
    """Guests at once: as many as there are cores for `auto`. A guest is the work of one core and is never late."""
    if lanes == "auto":
        return Width.fixed(len(os.sched_getaffinity(0)))
    return Width.parse(lanes)


def on(run: Run, clock: str) -> Run:
    """The record of a run that begins, with its clock."""
    if clock == REAL:
        return run
    return replace(run, clock=clock, guest={"epoch": str(EPOCH), "charge": ""})
