"""A killed runner leaves no lock, whatever it has started; a living one keeps its own."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.files import locked_folder
from runner.paths import ROOT
from runner.store.runs import RunFolder

# It forks a child that outlives it with a copy of every descriptor, as a judge or a pool of processes once did.
_RUNNER = """
import os, sys, time
from pathlib import Path
from runner.files import locked_folder
with locked_folder(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        time.sleep(60)
    print(child, flush=True)
    time.sleep(60)
"""


def test_a_runner_that_is_killed_alone_leaves_no_lock(tmp_path: Path) -> None:
    child = 0
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _RUNNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as runner:
            assert runner.stdout is not None
            child = int(runner.stdout.readline())
            with pytest.raises(UsageError, match=rf"process {runner.pid} on \S+\) works"), locked_folder(tmp_path):
                pass
            runner.kill()
            runner.wait()
            runner.stdout.close()
        began = time.monotonic()
        with locked_folder(tmp_path):
            assert time.monotonic() - began < 10
        os.kill(child, 0)  # raises if the child has ended; then the test would prove nothing
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def test_one_process_holds_a_folder_once(tmp_path: Path) -> None:
    refused: list[UsageError] = []

    def attempt() -> None:
        try:
            with locked_folder(tmp_path / "." / "run"):
                pass
        except UsageError as error:
            refused.append(error)

    with locked_folder(tmp_path / "run"):
        for _ in range(2):  # a refused attempt must not release the lock
            thread = threading.Thread(target=attempt)
            thread.start()
            thread.join()
        code = "import sys\nfrom pathlib import Path\nfrom runner.files import locked_folder\n"
        code += "with locked_folder(Path(sys.argv[1])): pass"
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert f"process {os.getpid()} on" in other.stderr
    assert len(refused) == 2
    with locked_folder(tmp_path / "run"):
        pass


def test_results_without_their_run_json_are_not_taken_for_a_new_run(tmp_path: Path) -> None:
    """`run --run NAME` began the whole matrix in such a folder, over its results."""
    assert RunFolder.stored(tmp_path) is None
    job = tmp_path / "quinn_aioquic" / "retry" / "1"
    job.mkdir(parents=True)
    (job / "result.json").touch()
    with pytest.raises(UsageError, match=r"has results, but no run\.json: restore it"):
        RunFolder.stored(tmp_path)
