"""What the judge may spend on one job. Strangers' captures must cost a job, not the night."""

from dataclasses import dataclass

from runner.model.artifacts import Artifacts
from runner.units import MIB, format_size


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one job. Seconds of CPU time and of wall time, bytes of resident memory."""

    cpu_s: float = 60.0
    wall_s: float = 600.0
    memory: int = 1024 * MIB

    @property
    def sentence(self) -> str:
        return f"at most {self.cpu_s:.0f} s of CPU time, {self.wall_s:.0f} s, and {format_size(self.memory)} of memory"

    @classmethod
    def of(cls, artifacts: Artifacts) -> "Limits":
        """Those of a job, which grow with its captures: an honest one takes a tenth of them."""
        mebibytes = captured(artifacts) / MIB
        return cls(cpu_s=cls.cpu_s + 2 * mebibytes, wall_s=cls.wall_s + 10 * mebibytes)


def captured(artifacts: Artifacts) -> int:
    """Bytes of the job's captures."""
    return sum(capture.stat().st_size for capture in artifacts.captures if capture.is_file())


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What was spent until the judge ended, or was ended."""

    cpu_s: float
    wall_s: float
    memory: int

    @property
    def sentence(self) -> str:
        return f"{self.cpu_s:.1f} s of CPU time, {self.wall_s:.1f} s, and {format_size(self.memory)} of memory"

    def exceeds(self, limits: Limits) -> bool:
        return self.cpu_s > limits.cpu_s or self.wall_s > limits.wall_s or self.memory > limits.memory
