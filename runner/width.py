"""How many lanes are open: a number, or `auto`, which starts with few and watches the simulator's lateness."""

import os
import threading
from dataclasses import dataclass, field

from runner.errors import UsageError
from runner.model.result import LinkTruth, Result

_LANES_PER_CORE = 4  # link-notes.md, section 3: 4–5 links of 20/2 Mbit/s a core, endpoints included
_CALM = 0.5e-3  # seconds of lateness (p99) below which one more lane is tried
# Share of the time in which some task waited for a CPU. One lane has 0.1 (benchmarks/line.py, 2 cores); from about 0.4
# on, more lanes begin to slow down stacks that need much of a core.
_UNCROWDED, _CROWDED = 0.3, 0.4
_LANE_LIMIT = 64


@dataclass
class Width:
    """The number of open lanes, `now`, between 1 and `most`. Thread-safe."""

    now: int
    most: int
    adaptive: bool = False
    _calm: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> "Width":
        """`auto` or a number from 1 to 64. Raises UsageError for anything else."""
        if text == "auto":
            cores = os.cpu_count() or 1
            return cls(now=max(1, cores), most=_LANES_PER_CORE * cores, adaptive=True)
        if not text.isdigit() or not 1 <= int(text) <= _LANE_LIMIT:
            raise UsageError(f"--lanes: '{text}' is neither 'auto' nor a number from 1 to {_LANE_LIMIT}.")
        return cls(now=int(text), most=int(text))

    def learn(self, result: Result) -> None:
        """Open a lane after as many calm jobs as there are lanes; close one after a disturbed or crowded job."""
        if not self.adaptive:
            return
        pressure = result.cpu_pressure or 0.0
        with self._lock:
            if pressure > _CROWDED or any(finding.code == "disturbed" for finding in result.findings):
                self.now, self._calm = max(1, self.now - 1), 0
            elif pressure < _UNCROWDED and result.truth is not None and _lateness(result.truth) < _CALM:
                self._calm += 1
                if self._calm >= self.now and self.now < self.most:
                    self.now, self._calm = self.now + 1, 0


def _lateness(truth: LinkTruth) -> float:
    return max(truth.lateness_p99, truth.receive_lateness_p99)
