"""The examination on this very host, and its sentences where a real condition makes a check fail."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.errors import SetupError
from runner.images import setup
from runner.images import setup as doctor
from runner.images import setup as kernel
from runner.images.images import SIMULATOR, ImageState
from runner.model.run import Check
from runner.paths import ROOT
from runner.plan.catalog import load_catalog


def test_this_host_can_run_jobs() -> None:
    """When this fails, no job can run either, and the fix says why."""
    setup.require(doctor.examine_host())


def test_every_check_has_a_name_of_its_own_and_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_TRIAL_SECONDS", 600.0)  # on a busy host the kernel is not tried, in one check
    checks = doctor.examine_host()
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.fix.endswith(".") for check in checks)
    assert {"Python", "machine", "veth", "packet sockets", "IPv6", "memory", "cores"} <= {c.name for c in checks}


@pytest.mark.parametrize(
    ("system", "architecture", "ok"),
    [("Linux", "x86_64", True), ("Linux", "aarch64", False), ("Darwin", "arm64", False), ("Linux", "AMD64", True)],
)
def test_other_machines_are_refused_in_one_sentence(system: str, architecture: str, ok: bool) -> None:
    check = doctor.machine(system, architecture)
    assert check.ok is ok
    if not ok:
        with pytest.raises(SetupError, match=f"{system} on {architecture}. bentpipe runs only on Linux on x86_64"):
            setup.require([check])


def test_full_disk_is_told_with_what_is_needed(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert doctor.disk("disk", tmp_path, 1).ok
    check = doctor.disk("disk", tmp_path, free * 2 + doctor.GIB)
    assert not check.ok
    assert str(tmp_path) in check.what


@pytest.mark.parametrize(
    ("driver", "mount", "result"),
    [
        ("overlay2", "1 0 8:1 / {} rw shared:1 - xfs /dev/a rw,attr2,prjquota", "have quotas"),
        ("overlay2", "1 0 8:1 / {} rw shared:1 - xfs /dev/a rw,attr2,noquota", "have no quota"),
        ("overlay2", "1 0 8:1 / {} rw shared:1 - ext4 /dev/a rw,prjquota", "have no quota"),
        ("overlayfs", "1 0 8:1 / {} rw shared:1 - ext4 /dev/a rw", "have no quota"),
        ("zfs", "1 0 8:1 / {} rw shared:1 - zfs tank rw", "have quotas"),
    ],
)
def test_what_bounds_root_file_systems_is_told(tmp_path: Path, driver: str, mount: str, result: str) -> None:
    others = "2 0 8:2 / / rw shared:1 - xfs /dev/b rw,prjquota\n3 0 8:3 / /other rw shared:1 - xfs /dev/c rw,pquota\n"
    check = doctor.root_file_systems(driver, tmp_path, others + mount.format(tmp_path))
    assert check.what.startswith(result)
    assert check.ok is (result == "have quotas")
    assert not check.blocks


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_an_engine_beside_which_root_runs_has_root_file_systems_in_memory(tmp_path: Path) -> None:
    (tmp_path / "overlay2").mkdir()
    check = doctor.root_file_systems("overlay2", tmp_path, "2 0 8:2 / / rw - ext4 /dev/b rw\n")
    assert (check.ok, check.what) == (True, "are in memory of limited size")


def test_advice_does_not_block() -> None:
    advice = Check(name="cores", ok=False, what="1", fix="Give the machine 2 cores.", blocks=False)
    setup.require([advice])
    with pytest.raises(SetupError, match=r"veth: Operation not supported\. Run `sudo modprobe veth`\."):
        setup.require(
            [advice, Check(name="veth", ok=False, what="Operation not supported", fix="Run `sudo modprobe veth`.")]
        )


def _examine_kernel(*prefix: str) -> list[Check]:
    code = (
        "import dataclasses, json; from runner.images.setup import examine_kernel;"
        "print(json.dumps([dataclasses.asdict(c) for c in examine_kernel()]))"
    )
    done = subprocess.run([*prefix, sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Check(**fields) for fields in json.loads(done.stdout)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to drop")
def test_root_without_the_right_to_make_namespaces_is_told() -> None:
    (check,) = _examine_kernel("setpriv", "--bounding-set=-sys_admin")
    assert not check.ok
    assert check.name == "network namespaces"
    assert "Operation not permitted" in check.what


def test_a_host_that_is_too_busy_for_the_trial_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_TRIAL_SECONDS", 0.001)
    (check,) = kernel.examine_kernel()
    assert check.ok
    assert "busy" in check.what


def test_kernel_trial_leaves_nothing_behind() -> None:
    before = {path.name for path in Path("/sys/class/net").iterdir()}
    kernel.examine_kernel()
    assert {path.name for path in Path("/sys/class/net").iterdir()} - before <= set()


@pytest.mark.docker
def test_examines_engine_and_images_after_set_up() -> None:
    checks = {check.name: check for check in doctor.examine(load_catalog().implementations)}
    assert checks["Docker Engine"].ok
    assert checks["images of this project"].ok, checks["images of this project"].what
    assert "pulled" in checks["published images"].what


def test_images_are_one_line_and_stacks_that_nobody_built_are_no_fault() -> None:
    every_run_needs = dict.fromkeys(
        ("bentpipe/base:trixie", "bentpipe/endpoint", SIMULATOR, "bentpipe/tools"), ImageState.CURRENT
    )
    stacks = {f"bentpipe/stack{number}": ImageState.MISSING for number in range(20)}
    check = doctor.own_images(every_run_needs | stacks | {"bentpipe/quinn": ImageState.STALE})
    assert check.ok
    assert check.what == (
        "4 of 25 up to date; built from older files: quinn; "
        "missing: stack0, stack1, stack2, stack3, stack4, stack5 and 14 more"
    )
    check = doctor.own_images(every_run_needs | {SIMULATOR: ImageState.STALE})
    assert not check.ok
    assert check.what == "3 of 4 up to date; built from older files: sim:5"


def test_engine_that_is_away_is_told_and_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    checks = {check.name: check for check in doctor.examine(load_catalog().implementations)}
    assert not checks["Docker Engine"].ok
    assert "fix DOCKER_HOST" in checks["Docker Engine"].fix
    assert not any(name.startswith("images ") for name in checks)
