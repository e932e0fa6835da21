"""Guests whose kernel is hostile: it stands for an image that has taken over its guest. It writes what it wants into
its folder and into the report, and neither reaches nor misleads the runner."""

import errno
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import LaneError, SetupError
from runner.files import own_folder
from runner.images.pulling import SavedImages
from runner.places.guests.guests import GuestExperiment, Setting, read_ended, read_report
from runner.places.guests.processes import Disks, Files, ProcessLauncher, unused_user
from runner.places.lane_job import EndpointSpec
from runner.tests.guests.test_description import job
from runner.tests.guests.test_saved_images import packed, save

GUEST = Path(__file__).parents[3] / "guest"
SHELL = tuple(path for path in map(Path, ("/usr", "/bin", "/lib", "/lib64")) if path.exists())
CANARY = "the runner's own file"
PLANTS = """#!/bin/sh
for name in report sim/truth.json sim/left.pcap sim/console.log client.output client-logs.tar server.udp ../console; do
    rm -f out/$name; ln -s {canary} out/$name
done
ln -s {folder} out/ground
mkfifo out/server.output out/sim/right.pcap
mkdir out/client-downloads.tar
truncate -s 1T out/huge
cat {canary} && echo reached
cat /proc/*/environ
ls /root /home /etc && echo reached
exit 0
"""
ARCHIVE = """#!/usr/bin/python3
import io, sys, tarfile
sys.stdin.buffer.read()
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    def add(name, kind=tarfile.REGTYPE, target="", content=b"planted"):
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, target, len(content) if kind == tarfile.REGTYPE else 0
        tar.addfile(member, io.BytesIO(content))
    add("result/out", tarfile.SYMTYPE, {folder!r})
    add("result/out/report")
    add("result/console", tarfile.LNKTYPE, {canary!r})
    add("result/ended", tarfile.SYMTYPE, {canary!r})
    add("result/../../outside")
    add("/result/absolute")
    add("result/device", tarfile.CHRTYPE)
    {more}
"""

OLD_CLOCK = """
import ctypes, os, sys
from importlib.machinery import SourceFileLoader
from types import SimpleNamespace
guest = SourceFileLoader("guest", sys.argv[1]).load_module()
if len(sys.argv) > 2:
    filter = ctypes.create_string_buffer(guest.FILTER)
    libc = ctypes.CDLL(None, use_errno=True)
    guest.Guest.limit(SimpleNamespace(settings={"cpu": 0}, libc=libc, filter=filter))
assert os.getpid() > 0
print(ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(0xFFFFFFFFFF600400)(None))
"""


class WithShell(ProcessLauncher):
    """Guests that also see this host's programs, so that a script can take the place of their kernel."""

    def _stream(
        self, part: str, files: Files, disks: Sequence[Path], seconds: float, cpu_s: int | None
    ) -> Generator[bytes, None, None]:
        return super()._stream(part, files, (*disks, *SHELL), seconds, cpu_s)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "private" / "canary"
    path.parent.mkdir()
    path.write_text(CANARY)
    return path


def tools(tmp_path: Path, kernel: str, program: str | None = None) -> Path:
    """A folder like /guest of the image, with a kernel and a run-guest of one's own."""
    folder = tmp_path / "tools"
    folder.mkdir()
    program = (GUEST / "run-guest").read_text() if program is None else program
    for name, text in {"kernel": kernel, "run-guest": program, "version": "7"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for parent in (folder, *folder.parents[:4]):
        if parent.stat().st_uid == os.geteuid() and str(parent) != "/":
            parent.chmod(parent.stat().st_mode | 0o055)
    return folder


def disks(tmp_path: Path, launcher: ProcessLauncher) -> Disks:
    """Disks of one image that exist already."""
    images = SavedImages.open(save(tmp_path / "images.tar", [packed([])]))
    folder = tmp_path / "images"
    folder.mkdir()
    path = folder / f"{images.image_id('example/one').removeprefix('sha256:')}.erofs"
    path.write_bytes(b"")
    path.with_suffix(".json").write_text(json.dumps({"config": {}, "passwd": "", "group": ""}))

    class OneImage(SavedImages):
        def image_id(self, image: str) -> str:  # noqa: ARG002
            return images.image_id("example/one")

    return Disks(OneImage({}, tmp_path), launcher, folder)


def test_what_a_guest_plants_leads_nowhere(tmp_path: Path, canary: Path) -> None:
    launcher = WithShell(tools(tmp_path, PLANTS.format(canary=canary, folder=canary.parent)))
    spec = EndpointSpec(image="example/one", environment={})
    request = replace(job(), folder=tmp_path / "job", client=spec, server=spec)
    request.folder.mkdir()
    work = tmp_path / "work"
    try:
        launcher.require_confinement()
    except SetupError as error:
        pytest.skip(str(error))
    GuestExperiment(request, launcher, disks(tmp_path, launcher), Setting(epoch=0), work, cpu=0).run()
    assert canary.read_text() == CANARY
    assert sorted(path.name for path in canary.parent.iterdir()) == ["canary"]
    assert not work.exists()
    left = [path for path in request.folder.rglob("*") if not path.is_dir()]
    assert left and all(path.is_file() and not path.is_symlink() for path in left)
    text = "".join(path.read_text(errors="replace") for path in left)
    assert CANARY not in text and "reached" not in text
    assert not any(f"{name}=" in text for name in ("HOME=/root", "VIRTUAL_ENV", "PYTHONPATH"))


@pytest.mark.parametrize(
    "more",
    [
        "",
        "member = tarfile.TarInfo('result/huge'); member.size = 1 << 40; tar.addfile(member)",
        "[add(f'result/{number}') for number in range(100_000)]",
        "tar.fileobj.write(b'\\xff' * (1 << 20))",
    ],
)
def test_an_archive_that_a_guest_made_itself(tmp_path: Path, canary: Path, more: str) -> None:
    program = ARCHIVE.format(folder=str(canary.parent), canary=str(canary), more=more)
    launcher = ProcessLauncher(tools(tmp_path, "", program))
    with pytest.raises(LaneError) as caught:
        launcher.run("guest", [("job", b"")], tmp_path / "result", budget=1 << 20, seconds=60)
    assert caught.value.code == "guest-died"
    assert canary.read_text() == CANARY and not (tmp_path / "outside").exists()
    assert [path.name for path in canary.parent.iterdir()] == ["canary"]
    assert not any(path.is_symlink() for path in (tmp_path / "result").rglob("*"))


def test_a_guest_that_prints_nothing_is_ended(tmp_path: Path) -> None:
    launcher = ProcessLauncher(tools(tmp_path, "", "import time\ntime.sleep(600)\n"))
    with pytest.raises(LaneError) as caught:
        launcher.run("guest", [("job", b"")], tmp_path / "result", budget=1 << 20, seconds=0.1)
    assert caught.value.code == "guest-late"
    launcher.close()
    with pytest.raises(LaneError) as caught:
        launcher.run("guest", [], tmp_path / "other", budget=1 << 20, seconds=60)
    assert caught.value.code == "stopped"


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"how": 7, "host_s": "x", "cpu_s": [], "virtual_s": float("nan"), "spinner": [], "work": 3, "least_s": None},
        {
            "how": "\x1b[2J" * 999,
            "host_s": 1e300,
            "spinner": {"name": {}, "role": "\n"},
            "work": {"client": 1, "x": {}},
        },
        {"work": {"client": {"syscalls": float("inf"), "faults": True}}, "spinner": {"cpu_s": 10**400}},
    ],
)
def test_the_report_of_a_hostile_guest_has_numbers_and_printable_texts(about: dict[str, object]) -> None:
    ended = read_ended(about)
    numbers = [ended.host_s, ended.cpu_s, ended.virtual_s, ended.spin_s, *ended.work.get("client", {}).values()]
    assert all(abs(number) < 1e15 for number in numbers)
    assert ended.how.isprintable() and ended.spinner.isprintable()
    assert set(ended.work) <= {"client", "server"}


def test_broken_lines_of_a_report_are_left_out() -> None:
    lines = (
        *("began nan", "done inf", "transfer -", "oom_kills x", "memory_left 1e999", "dropped a", "stage", ""),
        *("process client", "process server started=1", "error EVIL - x", "error ../../x - y"),
        "error late - a\x1b[2Jb",
    )
    report = read_report("\n".join(lines))
    assert (report.began, report.done, report.processes) == (0.0, None, {})
    assert report.error == {"code": "late", "message": "'a\\x1b[2Jb'"}


def test_a_guest_runs_as_nobody_else_does(tmp_path: Path) -> None:
    subordinate = tmp_path / "subuid"
    subordinate.write_text("someone:100:900\nbroken\n")
    ids = {unused_user(range(999, 1002), [subordinate, tmp_path / "missing"]) for _ in range(50)}
    assert 999 not in ids
    assert not ids & {account.pw_uid for account in pwd.getpwall()}


def test_a_folder_in_which_a_stranger_may_plant_links_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert own_folder(open_to_all).stat().st_mode & 0o022 == 0
    (tmp_path / "link").symlink_to(open_to_all)
    with pytest.raises(SetupError, match="remove it"):
        own_folder(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(open_to_all, 4242, 4242)
        with pytest.raises(SetupError, match="remove it"):
            own_folder(open_to_all)


def test_the_processes_of_a_guest_do_not_get_the_hosts_clock_from_vsyscall() -> None:
    def clock(*limited: str) -> int:
        command = [sys.executable, "-c", OLD_CLOCK, str(GUEST / "run-guest"), *limited]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(done.stdout) if done.returncode == 0 else 0

    if clock() <= 0:
        pytest.skip("this host's kernel has no vsyscall")
    assert clock("limited") == -errno.ENOSYS
