"""Guests that hang, die, panic, take too long or run out of memory get different errors, and the run continues."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from runner.model.result import Evidence, another_attempt_helps
from runner.places.guests.guests import GuestHost, Setting
from runner.places.lane_job import EndpointLimits, LaneJob
from runner.plan.jobs import EPOCH
from runner.tests.guests.conftest import is_booting, kernels, runs_client
from runner.tests.lanes.conftest import Ask
from runner.tests.waiting import wait_until
from runner.units import MIB

pytestmark = pytest.mark.docker

RUN = "guard-of-guests"

RunWith = Callable[[Setting, LaneJob], Evidence]


@pytest.fixture
def run_with(lanes: GuestHost, scratch: Path) -> RunWith:
    """Runs a job in a guest with limits of its own; `lanes` says whether there are guests."""
    del lanes

    def run(setting: Setting, job: LaneJob) -> Evidence:
        with GuestHost.open(RUN, setting, lanes=1, scratch=scratch) as host:
            return host.run(job)

    return run


def at_kernels(do: Callable[[int], None], *, when: Callable[[int], bool] = runs_client) -> None:
    """Do something to the next kernel of a guest, as soon as `when` holds for it: by default, when its client runs."""
    before = kernels(RUN)

    def send() -> None:
        wait_until(lambda: any(map(when, kernels(RUN) - before)), pause=0.01)
        for pid in kernels(RUN) - before:
            with suppress(ProcessLookupError):
                do(pid)

    threading.Thread(target=send, daemon=True).start()


def take_memory(pid: int) -> None:
    """Leave the guest no memory but what it has, as when the host has none left."""
    os.kill(pid, signal.SIGSTOP)
    usage = os.statvfs(f"/proc/{pid}/cwd/")
    size = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
    enter = ["nsenter", f"--target={pid}", "--mount"]
    subprocess.run([*enter, "mount", "-o", f"remount,size={size}", "/tmp"], check=True)
    os.kill(pid, signal.SIGCONT)


def test_a_client_out_of_memory_says_so(run_with: RunWith, ask: Ask) -> None:
    # To fill the memory takes seconds of CPU, a page fault for each page, and no virtual time.
    job = ask(client="out-of-memory", timeout=10, limits=EndpointLimits(memory=64 * MIB, logs=16 * MIB))
    evidence = run_with(Setting(epoch=EPOCH), job)
    assert evidence.error == {}
    assert evidence.client.oom_killed
    assert evidence.client.exit_code == 137


def test_a_guest_that_does_nothing_hangs(run_with: RunWith, ask: Ask) -> None:
    # A client that only sleeps would reach its timeout within milliseconds, perhaps before the kernel is stopped.
    at_kernels(lambda pid: os.kill(pid, signal.SIGSTOP))
    evidence = run_with(Setting(epoch=EPOCH, silence_s=3.0), ask(client="poll-clock", timeout=1000))
    assert evidence.error["code"] == "guest-hangs"
    assert another_attempt_helps(evidence.error["code"])


def test_a_kernel_that_is_killed_died(run_with: RunWith, ask: Ask) -> None:
    at_kernels(lambda pid: os.kill(pid, signal.SIGKILL))
    evidence = run_with(Setting(epoch=EPOCH), ask(client="burn", timeout=1000))
    assert evidence.error["code"] == "guest-died"
    assert another_attempt_helps(evidence.error["code"])


@pytest.mark.parametrize("when", [is_booting, runs_client])
def test_a_kernel_without_memory_is_no_panic_of_its_own(
    run_with: RunWith, ask: Ask, when: Callable[[int], bool]
) -> None:
    """The moment decides whether the kernel prints a panic over SIGBUS, or SIGBUS ends it without a word."""
    at_kernels(take_memory, when=when)
    evidence = run_with(Setting(epoch=EPOCH, spin_cpu_s=10.0), ask(client="out-of-memory", timeout=1000))
    assert evidence.error["code"] == "guest-memory"
    assert another_attempt_helps(evidence.error["code"])


def test_a_kernel_that_faults_panics(run_with: RunWith, ask: Ask) -> None:
    """SIGSEGV is what a fault of the kernel itself raises."""
    at_kernels(lambda pid: os.kill(pid, signal.SIGSEGV))
    evidence = run_with(Setting(epoch=EPOCH, spin_cpu_s=10.0), ask(client="burn", timeout=1000))
    assert evidence.error["code"] == "guest-panic"
    assert another_attempt_helps(evidence.error["code"])


def test_a_guest_that_takes_too_long_is_late(run_with: RunWith, ask: Ask) -> None:
    evidence = run_with(Setting(epoch=EPOCH, host_s=2.0), ask(client="burn", timeout=1000))
    assert evidence.error["code"] == "guest-late"
    assert another_attempt_helps(evidence.error["code"])


@pytest.mark.parametrize("client", ["flood-link", "poll-clock"])
def test_a_guest_that_uses_too_much_cpu_time_ends(run_with: RunWith, ask: Ask, client: str) -> None:
    """One of these keeps the guest's kernel busy, the other one only itself; the guest's clock advances."""
    setting = Setting(epoch=EPOCH, kernel_cpu_s=1.0, kernel_cpu_s_per_mib=0.0)
    evidence = run_with(setting, ask(client=client, timeout=1000))
    assert evidence.error["code"] == "cpu-limit"
    assert evidence.guest is not None and evidence.guest.cpu_s < 5.0
    assert not another_attempt_helps("cpu-limit")


def test_a_spin_would_end_alike() -> None:
    assert not another_attempt_helps("spins")
