"""Measures how long the stages of a job take, and how busy this host's CPUs are meanwhile."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.lanes import pressure

_STEAL = 7  # position, from 0, in the numbers after `cpu` in /proc/stat (proc_stat(5))
_WITHOUT_GUEST = 8  # number of values to add: user and nice already include the guest times


class Stages:
    """A stopwatch with named stages, in seconds. The times of a stage that is measured twice are added."""

    def __init__(self) -> None:
        self.began_unix = time.time()
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()
        self._steal, self._total = _cpu_times()
        self._pressure = pressure.of_host()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time inside the context."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def wall(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def steal(self) -> float:
        """Fraction of this host's CPU time since the beginning that the hypervisor took (steal); 0 when the kernel
        doesn't report it."""
        steal, total = _cpu_times()
        return (steal - self._steal) / (total - self._total) if total > self._total else 0.0

    def pressure(self) -> float | None:
        """Share of the time since the beginning in which some runnable task waited for a CPU (PSI); None when the
        kernel doesn't report it."""
        now = pressure.of_host()
        if now is None or self._pressure is None:
            return None
        return (now - self._pressure) / self.wall()


def _cpu_times() -> tuple[int, int]:
    """Stolen and all clock ticks of all cores since the boot."""
    try:
        numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:
        return 0, 0
    return (numbers[_STEAL] if len(numbers) > _STEAL else 0), sum(numbers[:_WITHOUT_GUEST])
