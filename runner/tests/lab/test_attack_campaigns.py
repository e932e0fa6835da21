"""The checks of the attack campaigns notice attacks that succeed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.attack import images as campaign
from lab.attack import kills
from lab.attack.verdicts import Finding as Loss
from lab.attack.verdicts import Tally, Verdict
from lab.run_folders import rare_run
from runner.model.result import Finding, Invariant, Outcome, Result
from runner.model.run import Job
from runner.store.runs import RunFolder

_IMAGE = Path(campaign.__file__).parent / "image"


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[int]:
    # Popen returns before the kernel has filled in /proc/PID/environ of the new program. Its first byte comes later.
    process = subprocess.Popen(
        ["/bin/sh", "-c", "echo; read -r _"],
        env={"CLOCK_OFFSET": str(tmp_path / "run0.clock")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_of_a_dead_runner_is_an_orphan_whatever_its_command_line(tmp_path: Path, orphan: int) -> None:
    run = kills._Run(
        host=None,  # type: ignore[arg-type]
        folder=tmp_path / "run0",
        clock="real",
        targets=(),
        seed=1,
        tally=Tally(),
        progress=lambda _: None,
        shim=tmp_path,
    )
    assert run._processes() == [orphan]
    assert replace(run, folder=tmp_path / "run1")._processes() == []


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        ("lambda: LIBC.getpid()", True),
        ("lambda: LIBC.syscall(321, 0, 0, 1 << 20)", os.geteuid() == 0),  # bpf(2) with a size that is too large
        ("lambda: LIBC.close(-1)", True),  # EBADF: the kernel allowed the call, but its argument is wrong
        ("lambda: LIBC.kill(1, 0) if os.setuid(65534) is None else 0", False),
    ],
)
def test_an_action_counts_unless_the_kernel_denies_it(action: str, allowed: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("the denied action needs another user")
    script = f"import os, sys; from rights import *; sys.exit(is_allowed({action}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=_IMAGE, check=False)
    assert bool(done.returncode) is allowed


def _result(**fields: object) -> Result:
    job = Job(server="honest", client="client-control", case="handshake", iteration=1)
    return replace(Result.of(job, Outcome.SUCCEEDED), **fields)  # type: ignore[arg-type]


def _losses(folder: RunFolder, hostile: Result, *, load: float = 0.5) -> dict[str, Verdict]:
    after = _result()
    place = folder.path / after.job.path
    place.mkdir(parents=True, exist_ok=True)
    (place / "result.json").touch()
    trial = campaign.Trial("client", hostile, after, took=1.0, load=load, peaks={})
    return {kind: verdict for verdict, kind, _ in trial.problems(folder, {"usual-violation"})}


def _blame(code: str, role: str) -> Finding:
    return Finding(code=code, requirement="x", expected="x", actual="x", role=role)


def test_only_a_violation_of_the_honest_role_is_a_loss(tmp_path: Path) -> None:
    folder = rare_run(tmp_path / "run")
    assert _losses(folder, _result(violations=(_blame("new", "server"),))) == {"blame": Verdict.LOST}
    assert _losses(folder, _result(violations=(_blame("new", "client"), _blame("usual-violation", "server")))) == {}


def test_forged_packets_that_are_not_reported_are_a_loss(tmp_path: Path) -> None:
    folder = rare_run(tmp_path / "run")
    job = Job(server="honest", client="client-forge-initial-close", case="handshake", iteration=1)
    silent = replace(_result(), client=job.client)
    reported = Invariant(name="client_side.spoofed_packets", holds=False, expected="0", actual="800")
    (folder.path / job.path).mkdir(parents=True)
    (folder.path / job.path / "result.json").touch()
    assert _losses(folder, silent) == {"unreported": Verdict.LOST}
    assert _losses(folder, replace(silent, invariants=(reported,))) == {}


def test_a_job_that_other_load_disturbed_is_no_loss_on_a_busy_host_alone(tmp_path: Path) -> None:
    folder = rare_run(tmp_path / "run")
    disturbed = _result(outcome=Outcome.ERROR, findings=(_blame("disturbed", ""),))
    assert _losses(folder, disturbed) == {"blame": Verdict.LOST}
    assert _losses(folder, disturbed, load=5.0) == {"blame": Verdict.DISTURBED}
    others = _result(outcome=Outcome.ERROR, findings=(_blame("disturbed", "server"),))
    assert _losses(folder, others, load=5.0) == {"blame": Verdict.LOST}
    assert _losses(folder, _result(outcome=Outcome.ERROR, findings=(_blame("no-truth", ""),)), load=5.0) == {
        "blame": Verdict.LOST
    }


def test_the_worst_verdict_on_an_attack_counts() -> None:
    tally = Tally(tried=1)
    for verdict in (Verdict.DISTURBED, Verdict.LOST, Verdict.DISTURBED):
        tally.add(Loss(attack="one", verdict=verdict, what="x", text="x"))
    assert [tally.count(verdict) for verdict in Verdict] == [0, 0, 1, 0]
    tally.forget("one")
    assert (tally.count(Verdict.HELD), tally.findings) == (1, [])


def test_images_that_attack_by_their_configuration_are_behaviours_of_both_roles() -> None:
    assert {("client", "image-no-entrypoint"), ("server", "image-no-entrypoint")} <= set(campaign.behaviours())
    assert campaign.behaviours()[:2] == [("client", "control"), ("server", "control")]
