"""Guests that hang, die, panic, take too long or run out of memory: told apart, and never a run that stands still."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from runner.campaign.clocks import EPOCH
from runner.guests.deployment import GuestHost
from runner.guests.experiment import Setting
from runner.lanes.request import LaneJob, Limits
from runner.model.artifacts import Evidence
from runner.model.codes import another_attempt_helps
from runner.tests.lanes.conftest import Ask
from runner.units import MIB

pytestmark = pytest.mark.docker

RunWith = Callable[[Setting, LaneJob], Evidence]


@pytest.fixture
def run_with(lanes: GuestHost, tmp_path_factory: pytest.TempPathFactory) -> RunWith:
    """Runs a job in a guest with limits of its own; `lanes` says whether there are guests."""
    del lanes

    def run(setting: Setting, job: LaneJob) -> Evidence:
        scratch = tmp_path_factory.mktemp("guard")
        scratch.chmod(0o755)
        with GuestHost.open("guard", setting, lanes=1, scratch=scratch) as host:
            return host.run(job)

    return run


def at_kernels(do: Callable[[int], None], *, after: float) -> None:
    """Do something to the guests' kernels of this host that begin from now on, `after` seconds after they are seen."""
    before = set(kernels())

    def send() -> None:
        until = time.monotonic() + 60
        while not (new := set(kernels()) - before) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(after)
        for pid in new:
            with suppress(ProcessLookupError):
                do(pid)

    threading.Thread(target=send, daemon=True).start()


def take_memory(pid: int) -> None:
    """What happens to a kernel when the host has no memory left for it."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if entry.stat().st_size > 64 * MIB:
                os.truncate(entry, 0)


def kernels() -> list[int]:
    """Processes whose program is a guest's kernel."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"/guest/kernel\0"):
                found.append(int(entry.name))
    return found


def test_a_client_out_of_memory_says_so(run_with: RunWith, ask: Ask) -> None:
    # To fill the memory takes seconds of CPU, a page fault for each page, and no virtual time.
    job = ask(client="out-of-memory", timeout=10, limits=Limits(memory=64 * MIB, logs=16 * MIB))
    evidence = run_with(Setting(epoch=EPOCH), job)
    assert evidence.error == {}
    assert evidence.client.oom_killed
    assert evidence.client.exit_code == 137


def test_a_guest_that_does_nothing_hangs(run_with: RunWith, ask: Ask) -> None:
    at_kernels(lambda pid: os.kill(pid, signal.SIGSTOP), after=0.3)
    evidence = run_with(Setting(epoch=EPOCH, silence_s=3.0), ask(client="hang", timeout=1000))
    assert evidence.error["code"] == "guest-hangs"
    assert another_attempt_helps(evidence.error["code"])


def test_a_kernel_that_is_killed_died(run_with: RunWith, ask: Ask) -> None:
    at_kernels(lambda pid: os.kill(pid, signal.SIGKILL), after=0.1)
    evidence = run_with(Setting(epoch=EPOCH), ask(client="burn", timeout=1000))
    assert evidence.error["code"] == "guest-died"
    assert another_attempt_helps(evidence.error["code"])


def test_a_kernel_whose_memory_is_lost_is_our_error(run_with: RunWith, ask: Ask) -> None:
    """The moment decides whether the kernel still prints its panic, or dies by SIGBUS without a word."""
    at_kernels(take_memory, after=0.1)
    evidence = run_with(Setting(epoch=EPOCH, spin_cpu_s=10.0), ask(client="burn", timeout=1000))
    assert evidence.error["code"] in ("guest-panic", "guest-died")
    assert another_attempt_helps(evidence.error["code"])


def test_a_guest_that_takes_too_long_is_late(run_with: RunWith, ask: Ask) -> None:
    evidence = run_with(Setting(epoch=EPOCH, host_s=2.0), ask(client="burn", timeout=1000))
    assert evidence.error["code"] == "guest-late"
    assert another_attempt_helps(evidence.error["code"])


def test_a_spin_would_end_alike() -> None:
    assert not another_attempt_helps("spins")
