"""The number of open lanes: fixed, or `auto`, which starts with few lanes and follows the simulator's lateness."""

import os
import threading
from dataclasses import dataclass, field

from runner.errors import UsageError
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import LinkTruth, Result
from runner.model.run import Kind

_LANES_PER_CORE = 4  # measured: one core carries 4 to 5 links of 20/2 Mbit/s with their endpoints
# A verdict tolerates more disturbance than a number (disturbance.py): each kind of job has its own number of lanes.
_FIRST_PER_CORE = {Kind.MEASUREMENT: 1, Kind.TEST_CASE: 4}
_CALM = {Kind.MEASUREMENT: 0.5e-3, Kind.TEST_CASE: 5e-3}  # s of lateness (p99) below which one more lane is tried
# One more lane is tried while tasks wait for a CPU in less than this share of the time. The share is 0.15 to 0.35 with
# one lane, 0.4 to 0.67 with two lanes and 0.8 with three lanes (goodput of nine pairs, 2 cores).
_UNCROWDED = 0.4
_LANE_LIMIT = 64
_WAITING_PER_LANE = 1  # a job that mostly waits lasts 1 minute and takes 3 s of CPU time, most of it for containers


@dataclass
class Width:
    """The number of open lanes for jobs of each kind, between 1 and `most`. Thread-safe."""

    most: int
    _open: dict[Kind, int]
    adaptive: bool = False
    _loners: set[str] = field(default_factory=set)  # stacks that had to wait for a CPU although few lanes were open
    _calm: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> "Width":
        """`auto` or a number from 1 to 64. Raises UsageError for anything else."""
        if text == "auto":
            most = _LANES_PER_CORE * (os.cpu_count() or 1)
            return cls(most=most, _open={kind: _first(kind) for kind in Kind}, adaptive=True)
        if not text.isdigit() or not 1 <= int(text) <= _LANE_LIMIT:
            raise UsageError(f"--lanes: '{text}' is neither 'auto' nor a number from 1 to {_LANE_LIMIT}.")
        return cls.fixed(int(text))

    @classmethod
    def fixed(cls, number: int) -> "Width":
        """Exactly `number` lanes for every job."""
        return cls(most=number, _open=dict.fromkeys(Kind, number))

    @property
    def waiting(self) -> int:
        """How many jobs that mostly wait may run at the same time as other jobs; 0 when `--lanes` is a number."""
        return _WAITING_PER_LANE * self.most if self.adaptive else 0

    @property
    def all(self) -> int:
        """The highest number of jobs that run at the same time, of all kinds together."""
        return self.most + self.waiting

    def of(self, kind: Kind) -> int:
        """How many jobs may run at the same time when one of them is of `kind`."""
        return self._open[kind]

    def alone(self, job: Job, kind: Kind) -> bool:
        """True when the job must run alone: a measurement of a stack that was disturbed although few lanes were
        open."""
        return kind is Kind.MEASUREMENT and not self._loners.isdisjoint((job.server, job.client))

    def learn(self, result: Result, kind: Kind) -> None:
        """Open a lane after as many calm jobs as there are open lanes. Close a lane after a disturbed job. But when a
        stack had to wait for a CPU although few lanes were open, this stack runs alone from now on, and other stacks
        keep their lanes."""
        if not self.adaptive:
            return
        disturbed = next((finding for finding in result.findings if finding.code == "disturbed"), None)
        with self._lock:
            now = self._open[kind]
            if disturbed is not None and disturbed.role and now <= _first(kind):
                self._loners.add(result.server if disturbed.role == Role.SERVER.value else result.client)
            elif disturbed is not None:
                self._open[kind], self._calm[kind] = max(1, now - 1), 0
            elif _is_calm(result, kind):
                self._calm[kind] += 1
                if self._calm[kind] >= now and now < self.most:
                    self._open[kind], self._calm[kind] = now + 1, 0


def _first(kind: Kind) -> int:
    """The number of open lanes for jobs of `kind` at the start."""
    return _FIRST_PER_CORE[kind] * (os.cpu_count() or 1)


def _is_calm(result: Result, kind: Kind) -> bool:
    """True when the job was so calm that one more lane may be tried."""
    if result.truth is None or _lateness(result.truth) >= _CALM[kind]:
        return False
    return kind is Kind.TEST_CASE or (result.cpu_pressure or 0.0) < _UNCROWDED


def _lateness(truth: LinkTruth) -> float:
    return max(truth.lateness_p99, truth.receive_lateness_p99)
