"""The time and memory that the judge may use for one job. A hostile capture must not harm other jobs of the run."""

from dataclasses import dataclass

from runner.model.artifacts import Artifacts
from runner.units import MIB, format_size


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one job: seconds of CPU time and of wall time, bytes of resident memory."""

    cpu_s: float = 60.0
    wall_s: float = 600.0
    memory: int = 1024 * MIB

    @property
    def sentence(self) -> str:
        memory = format_size(self.memory)
        return f"at most {self.cpu_s:.0f} s of CPU time, {self.wall_s:.0f} s of wall time, and {memory} of memory"

    @classmethod
    def of(cls, artifacts: Artifacts) -> "Limits":
        """The limits of a job. They grow with the size of its captures. A normal job needs a tenth of its limits."""
        mebibytes = captured(artifacts) / MIB
        return cls(cpu_s=cls.cpu_s + 2 * mebibytes, wall_s=cls.wall_s + 10 * mebibytes)


def captured(artifacts: Artifacts) -> int:
    """Bytes of the job's captures."""
    return sum(capture.stat().st_size for capture in artifacts.captures if capture.is_file())


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The time and memory that the judge had used when it ended or was killed."""

    cpu_s: float
    wall_s: float
    memory: int

    @property
    def sentence(self) -> str:
        return f"{self.cpu_s:.1f} s of CPU time, {self.wall_s:.1f} s of wall time, {format_size(self.memory)} of memory"

    def exceeds(self, limits: Limits) -> bool:
        return self.cpu_s > limits.cpu_s or self.wall_s > limits.wall_s or self.memory > limits.memory
