"""The clock of a run, and the virtual time that the CPU work of endpoints takes in a guest: no time, or a time that was
calibrated with lanes of this host."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from runner.errors import UsageError
from runner.files import read_regular
from runner.model.deployment import REAL, VIRTUAL, best_clock
from runner.model.run import CaseRecord, Job, Run
from runner.model.stack import Implementation, Role
from runner.plan.jobs import LOGS
from runner.plan.options import AUTO, CALIBRATED, MEASURED, NO_CPU_MODEL
from runner.store.runs import RunFolder
from runner.units import format_count, format_duration

CALIBRATE = ".venv/bin/python -m lab.cpu_model"
_MEASURE_ONLY = "0,0,0,0"


@dataclass(frozen=True, kw_only=True)
class CpuModel:
    """The virtual time in seconds that the CPU work of an endpoint takes: `syscall_s` for each system call, `fault_s`
    for each page fault, and `factor` for each second of the host's CPU time in user code. Before the CPU time is
    multiplied, `trap_s` is subtracted for each entry into user code, because this time is the cost of the guest's
    kernel itself.

    `host`: the CPU's name. `error`: the median relative error for stacks that were not used in the calibration.
    """

    syscall_s: float
    fault_s: float
    factor: float
    trap_s: float
    host: str
    stacks: tuple[str, ...]
    error: float
    made_unix_s: int

    @property
    def charge(self) -> str:
        """The text that the guest's kernel reads (guest/kernel/guest.h)."""
        numbers = (self.syscall_s * 1e9, self.fault_s * 1e9, self.factor * 100, self.trap_s * 1e9)
        return ",".join(str(round(number)) for number in numbers)

    def save(self, path: Path) -> None:
        """Write the model to `path`. An older model is replaced."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "CpuModel":
        """The model of an earlier calibration. Raises UsageError when there is none, or when it was made on another
        CPU."""
        try:
            model = TypeAdapter(cls).validate_json(read_regular(path))
        except FileNotFoundError:
            raise UsageError(
                f"--cpu-model {CALIBRATED}: this host is not calibrated yet; run `{CALIBRATE}` first "
                f"(about {format_duration(20 * 60)} on an idle host)."
            ) from None
        except (OSError, ValidationError) as error:
            raise UsageError(f"{path} can't be read as a CPU model: run `{CALIBRATE}` again.") from error
        if model.host != host_cpu():
            raise UsageError(
                f"{path} was calibrated on '{model.host}', and this CPU is '{host_cpu()}': run `{CALIBRATE}` again."
            )
        return model


def host_cpu() -> str:
    """The name of this host's CPU."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def charge_of(mode: str, path: Path) -> str:
    """The charge for the guest in this mode. `path`: the file of the calibration. Raises UsageError as `CpuModel.load`
    does."""
    if mode == CALIBRATED:
        return CpuModel.load(path).charge
    return _MEASURE_ONLY if mode == MEASURED else ""


# The clock of a run: real, virtual, or a clock for each case.

_BUSY = 1.5  # processes that run or wait, per core: at twice this load, a matrix took twice as long as on an idle host
CPU_MODEL = LOGS / ".guests" / "cpu-model.json"
"""The result of the last calibration of this host."""

EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z; every guest starts at this time, so that equal seeds give equal packets


def chosen(option: str | None, stored: RunFolder | None) -> str:
    """The clock of `--clock`; without it the clock of the stored run; without both the real clock. Raises UsageError
    when the stored run has another clock than `option`."""
    if stored is None:
        return option or REAL
    clock = stored.run.clock
    if option not in (None, clock):
        raise UsageError(
            f"{stored.path} began with --clock {clock}, and its numbers can't be pooled with those of another clock: "
            "start a new --run."
        )
    return clock


def charge(clock: str, cpu_model: str | None, stored: RunFolder | None) -> str:
    """The CPU charge of a run's guests (`CpuModel.charge`); empty when CPU work takes no time.

    Without `cpu_model`, a stored run keeps its charge. Raises UsageError when a CPU model is chosen in real
    time, or when it can't be loaded.
    """
    if clock == REAL:
        if cpu_model not in (None, NO_CPU_MODEL):
            raise UsageError(f"--cpu-model {cpu_model}: this option is for virtual time; add --clock virtual.")
        return ""
    if cpu_model is None and stored is not None:
        return stored.run.guest.get("charge", "")
    return charge_of(cpu_model or NO_CPU_MODEL, CPU_MODEL)


def with_clock(
    run: Run, clock: str, *, cpu_charge: str = "", stacks: Mapping[str, Implementation] = MappingProxyType({})
) -> Run:
    """Return `run` with this clock; for `auto`, with a clock for each case, and real time for cells of stacks whose
    verdicts differ in virtual time. `stacks`: the stacks by name."""
    if clock == REAL:
        return run
    clocks = {}
    if clock == AUTO:
        clocks = {name: _best_clock(case) for name, case in run.cases.items()}
        real = {(name, role) for name, stack in stacks.items() for role in stack.real_time}
        for cell, (job, *_) in run.cells.items():
            if clocks[job.case_link] == VIRTUAL and real & {(job.server, Role.SERVER), (job.client, Role.CLIENT)}:
                clocks[cell] = REAL
    return replace(run, clock=clock, clocks=clocks, guest={"epoch": str(EPOCH), "charge": cpu_charge})


def _best_clock(case: CaseRecord) -> str:
    """The clock that `auto` chooses for a case. Second flows need real time, because guests can't run them."""
    return REAL if case.beside else best_clock(case)


def busy() -> str:
    """A sentence when other work of this host will disturb jobs in real time, with the clock that avoids this; empty
    on an idle host."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= _BUSY * cores:
        return ""
    return (
        f"This host is busy: its load is {load:.0f} on {format_count(cores, 'core')}. Disturbed jobs run again, up to "
        "3 times, which takes longer. Load does not matter in virtual time (--clock virtual; run: also --clock auto)."
    )


def parts(run: Run, todo: Sequence[Job]) -> Iterator[tuple[str, tuple[Job, ...]]]:
    """The jobs of each clock. Virtual time comes first: its jobs are cheap, and the handshakes are among them."""
    for clock in (VIRTUAL, REAL):
        if jobs := tuple(job for job in todo if run.clock_of(job.case_link, job.cell) == clock):
            yield clock, jobs
