"""The judge's process: limits, and an end whenever the runner ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.judge.process import SPARE, AnalysisLimitError, JudgeLimits, Judges, StoppedError
from runner.paths import ROOT
from runner.units import MIB

LIMITS = JudgeLimits(cpu_s=20.0, wall_s=60.0, memory=512 * MIB)


def _descriptors() -> list[str]:
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except OSError:
            continue
    return links


def _spin() -> None:
    while True:
        pass


def _grow() -> int:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(4096)) * 4096)


def _fill(size: int) -> int:
    import pyarrow as pa  # noqa: PLC0415 - the judge's process

    return pa.array([1]).nbytes and len(bytes(size))


def _refuse() -> None:
    raise UsageError("no")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_once(marker: Path) -> int:
    if not marker.exists():
        marker.touch()
        _die()
    return 7


def test_a_call_whose_process_somebody_killed_is_made_again(tmp_path: Path) -> None:
    with Judges(1) as judges:
        assert judges.call(LIMITS, _die_once, tmp_path / "marker") == 7
        idle = judges.call(LIMITS, os.getpid)
        os.kill(idle, signal.SIGKILL)
        assert judges.call(LIMITS, os.getpid) != idle


def test_calls_return_and_raise_in_one_process() -> None:
    with Judges(1) as judges:
        first = judges.call(LIMITS, os.getpid)
        with pytest.raises(UsageError, match="no"):
            judges.call(LIMITS, _refuse)
        assert judges.call(LIMITS, os.getpid) == first != os.getpid()


def test_a_call_may_use_the_memory_of_its_limits() -> None:
    """Arrow's allocator reserves 1 GiB of it, if it may."""
    with Judges(1) as judges:
        assert judges.call(JudgeLimits(), _fill, 1000 * MIB) == 1000 * MIB


@pytest.mark.parametrize(
    ("function", "arguments", "limits", "spent"),
    [
        (_spin, (), JudgeLimits(cpu_s=0.5, wall_s=60.0), "CPU"),
        (time.sleep, (60,), JudgeLimits(cpu_s=20.0, wall_s=0.5), "wall"),
        (_grow, (), JudgeLimits(cpu_s=20.0, wall_s=60.0, memory=200 * MIB), "memory"),
        (_die, (), LIMITS, ""),
    ],
)
def test_a_call_beyond_its_limits_costs_itself_alone(
    function: object, arguments: tuple[object, ...], limits: JudgeLimits, spent: str
) -> None:
    with Judges(1) as judges:
        with pytest.raises(AnalysisLimitError) as raised:
            judges.call(limits, function, *arguments)  # type: ignore[arg-type]
        cost = raised.value.cost
        over = {"CPU": cost.cpu_s > limits.cpu_s, "wall": cost.wall_s > limits.wall_s, "memory": cost.memory > MIB}
        assert over.get(spent, True)
        # The kernel's limit holds even when the runner polls late. It doesn't count the program's code.
        assert cost.memory < limits.memory + SPARE + 100 * MIB
        assert judges.call(LIMITS, sum, (1, 2)) == 3


def _meet(mine: Path, other: Path) -> bool:
    """Whether a call that creates `other` runs at the same time."""
    mine.touch()
    end = time.monotonic() + LIMITS.wall_s / 2
    while not other.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return other.exists()


def test_several_judges_work_at_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with Judges(2) as judges, ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(judges.call, LIMITS, _meet, *files) for files in ((first, second), (second, first))]
        assert all(call.result() for call in calls)


def test_a_stop_ends_a_call_at_once() -> None:
    stop = threading.Event()
    with Judges(1, stopped=stop.is_set) as judges:
        judges.call(LIMITS, int)
        threading.Timer(0.5, stop.set).start()
        began = time.monotonic()
        with pytest.raises(StoppedError):
            judges.call(LIMITS, _spin)
        assert time.monotonic() - began < 10


def test_leaving_the_context_ends_the_calls_of_other_threads() -> None:
    raised: list[BaseException] = []

    def call() -> None:
        try:
            judges.call(LIMITS, _spin)
        except (StoppedError, AnalysisLimitError) as error:
            raised.append(error)

    with Judges(1) as judges:
        judges.call(LIMITS, int)
        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(0.5)
    thread.join(10)
    assert not thread.is_alive()
    assert len(raised) == 1


def test_it_inherits_no_file_of_the_runner(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file, Judges(1) as judges:
        os.set_inheritable(file.fileno(), True)
        assert str(path) in _descriptors()
        assert str(path) not in judges.call(LIMITS, _descriptors)


_RUNNER = """
import sys, threading
from runner.judge.process import Judges
from runner.tests.judge.test_process import LIMITS, _spin
import os
with Judges(1) as judges:
    print(judges.call(LIMITS, os.getpid), flush=True)
    judges.call(LIMITS, _spin)
"""


def test_it_ends_when_the_runner_alone_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER], stdout=subprocess.PIPE, env=environment, text=True
    ) as runner:
        assert runner.stdout is not None
        judge = int(runner.stdout.readline())
        time.sleep(0.5)
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
    deadline = time.monotonic() + 10
    while _runs(judge) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(judge)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
