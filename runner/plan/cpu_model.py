"""The virtual time that CPU work of endpoints takes in a guest: no time, or a time that was calibrated with lanes of
this host."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from runner.errors import UsageError
from runner.files import read_regular
from runner.plan.options import CALIBRATED, MEASURED, NO_CPU_MODEL
from runner.units import format_duration

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


def mode_of(charge: str) -> str:
    """The mode to which a recorded charge belongs."""
    return {"": NO_CPU_MODEL, _MEASURE_ONLY: MEASURED}.get(charge, CALIBRATED)
