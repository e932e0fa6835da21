"""The CPU model: its file, its refusals, its charge in the record of a run, and the fit of the calibration."""

import random
from pathlib import Path

import pytest

from lab.cpu_model import Work, fit, held_out, predicted
from runner.errors import UsageError
from runner.model.run import REAL, VIRTUAL, host_cpu
from runner.plan import jobs
from runner.plan.jobs import CpuModel, charge_of
from runner.plan.options import CALIBRATED, MEASURED, NO_CPU_MODEL
from runner.store.runs import RunFolder
from runner.tests.guests.test_description import run_of

MODEL = CpuModel(
    syscall_s=1.5e-6,
    fault_s=0.5e-6,
    factor=0.9,
    trap_s=4e-6,
    host=host_cpu(),
    stacks=("quinn",),
    error=0.1,
    made_unix_s=0,
)


def test_a_model_survives_its_file_and_gives_the_kernel_four_numbers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cpu-model.json"
    MODEL.save(path)
    assert CpuModel.load(path) == MODEL
    assert charge_of(CALIBRATED, path) == "1500,500,90,4000"


def test_a_missing_a_broken_and_a_foreign_model_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cpu-model.json"
    with pytest.raises(UsageError, match=r"not calibrated yet; run `\.venv/bin/python -m lab\.cpu_model`"):
        charge_of(CALIBRATED, path)
    path.write_text('{"syscall_s": "much"}')
    with pytest.raises(UsageError, match="can't be read as a CPU model"):
        charge_of(CALIBRATED, path)
    CpuModel(**{**vars(MODEL), "host": "another CPU"}).save(path)
    with pytest.raises(UsageError, match="was calibrated on 'another CPU'"):
        charge_of(CALIBRATED, path)


def test_real_time_has_no_cpu_model() -> None:
    with pytest.raises(UsageError, match="add --clock virtual"):
        jobs.guest_of_run(REAL, MEASURED, None)
    assert jobs.guest_of_run(REAL, NO_CPU_MODEL, None) == {}


def test_a_resumed_run_keeps_the_settings_of_its_guests(tmp_path: Path) -> None:
    new = jobs.guest_of_run(VIRTUAL, None, None)
    assert float(new["noise"]) > 0 and new["charge"] == ""
    old = {"epoch": "5", "charge": "1,2,3,4"}  # a run of a version without noise
    folder = RunFolder.create(tmp_path / "run", jobs.with_clock(run_of(REAL), VIRTUAL, guest=old))
    assert jobs.guest_of_run(VIRTUAL, None, folder) == old
    assert jobs.guest_of_run(VIRTUAL, NO_CPU_MODEL, folder) == {"epoch": "5", "charge": ""}


@pytest.mark.parametrize("guest", [{"charge": ""}, {"epoch": "now"}, {"epoch": "5", "noise": "nan"}])
def test_a_run_of_a_stranger_with_unusable_settings_is_one_sentence(tmp_path: Path, guest: dict[str, str]) -> None:
    folder = RunFolder.create(tmp_path / "run", jobs.with_clock(run_of(REAL), VIRTUAL, guest=guest))
    with pytest.raises(UsageError, match="guest needs an epoch"):
        jobs.guest_of_run(VIRTUAL, None, folder)


def test_the_fit_finds_the_numbers_that_made_the_work() -> None:
    chance, trap, true = random.Random(1), 3e-6, (2e-6, 1e-6, 0.8)
    works = []
    for stack in ("a", "b", "c", "d"):
        for role in ("client", "server"):
            calls, faults, user = chance.uniform(1e5, 1e6), chance.uniform(1e3, 1e6), chance.uniform(0.5, 5)
            lane = true[0] * calls + true[1] * faults + true[2] * user
            guest = user + trap * (calls + faults)
            works.append(Work(stack=stack, role=role, lane_cpu=lane, syscalls=calls, faults=faults, guest_cpu=guest))
    assert fit(works, trap) == pytest.approx(true, rel=1e-6)
    assert max(abs(error) for error in held_out(works, trap).values()) < 1e-6
    assert predicted(works[0], true, trap) == pytest.approx(works[0].lane_cpu)


def test_the_fit_has_no_negative_number() -> None:
    works = [
        Work(stack=str(n), role="client", lane_cpu=1.0 - 1e-7 * n, syscalls=n, faults=1e4 * n, guest_cpu=1.0)
        for n in range(1, 8)
    ]
    assert min(fit(works, 0.0)) >= 0


@pytest.mark.parametrize(("load", "told"), [(0.5, False), (2.9, False), (26.0, True)])
def test_a_busy_host_is_told_at_once(monkeypatch: pytest.MonkeyPatch, load: float, *, told: bool) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert ("virtual time" in jobs.busy()) == told
    assert ("New jobs run in virtual time" in jobs.busy("auto")) == told
    assert not jobs.busy("virtual")
