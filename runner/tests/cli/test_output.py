"""Output that can't be written or encoded: at most one sentence, never a traceback."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runner.paths import ROOT
from runner.tests.program import bentpipe

RECORDINGS = ROOT / "runner/tests/recordings/schema_1"
RUN = str(RECORDINGS / "pairs")
COMMANDS = {
    "show": ("show", f"{RUN}/quic-go_quinn/handshake/1"),
    "plan": ("plan", "--client", "quinn", "--server", "quinn"),
    "compare": ("compare", RUN, str(RECORDINGS / "pairs-with-variant")),
    "history": ("history", "--logs", str(RECORDINGS), "--all"),
    "list": ("list",),
    "schema": ("schema", "implementations.json"),
    "help": ("--help",),
    "wrong": ("show", "\u00fc\u2713\u202e"),
}


ELSEWHERE = {"COLUMNS": "200", "DOCKER_HOST": "unix:///nonexistent"}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "wrong"])
def test_a_full_disk_is_one_sentence(name: str) -> None:
    done = bentpipe(*COMMANDS[name], full="out", **ELSEWHERE)
    assert done.returncode == 3, done.stderr
    assert done.stderr == "bentpipe: The output can't be written: No space left on device.\n"


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "no-folder" / "changes.json"
    target.parent.write_text("")
    done = bentpipe(*COMMANDS["compare"], "--json", str(target))
    assert (done.returncode, f"{target} can't be written" in done.stderr.replace("\n", "")) == (2, True)
    assert bentpipe(*COMMANDS["compare"], "--json", "/dev/null").returncode in (0, 1)
    assert Path("/dev/null").is_char_device(), "a device is written, not replaced"
    target = tmp_path / "changes.json"
    target.symlink_to(tmp_path / "elsewhere.json")
    bentpipe(*COMMANDS["compare"], "--json", str(target))
    assert target.is_symlink() and json.loads((tmp_path / "elsewhere.json").read_text())
    assert len(list(tmp_path.iterdir())) == 3, "no temporary file is left"


def test_a_full_disk_for_everything_ends_the_command() -> None:
    assert bentpipe(*COMMANDS["wrong"], full="out err", **ELSEWHERE).returncode in (2, 3)


def test_a_full_disk_is_one_sentence_when_python_ends_too() -> None:
    """In a process of its own: at its end Python writes what is left of the output."""
    command = [sys.executable, "-m", "runner", *COMMANDS["list"]]
    for errors in (subprocess.PIPE, None):
        with Path("/dev/full").open("w") as disk:
            done = subprocess.run(command, cwd=ROOT, stdout=disk, stderr=errors or disk, timeout=120, check=False)
        assert done.returncode == 3
        assert (done.stderr or b"").count(b"\n") == (errors is not None)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("encoding", "errors"), [("ascii", "strict"), ("latin-1", "surrogateescape")])
def test_any_encoding_prints_everything(name: str, encoding: str, errors: str) -> None:
    done = bentpipe(*COMMANDS[name], encoding=encoding, errors=errors, **ELSEWHERE)
    assert "Traceback" not in done.stderr
    assert done.returncode in ((2,) if name == "wrong" else (0, 1)), done.stderr
    assert name == "wrong" or done.stdout


def test_show_names_a_job_of_a_run_whose_name_was_all_that_was_written() -> None:
    ended = bentpipe("show", f"{RUN}")
    assert ended.returncode == 2
    assert re.search(r"CASE/ITERATION, such as [^/ ]+/[^/ ]+_[^/ ]+/[^/ ]+/1\.$", ended.stderr.strip())
    assert "demo/" not in ended.stderr


def test_show_tells_how_to_run_an_error_again(tmp_path: Path) -> None:
    run = tmp_path / "a run"
    shutil.copytree(RECORDINGS / "pairs", run)
    path = run / "quic-go_quinn/handshake/1/result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": "error"}))
    assert f"./bentpipe run --run '{run}' --retry error" in bentpipe("show", str(path.parent)).stdout
    assert "--retry" not in bentpipe(*COMMANDS["show"]).stdout


@pytest.mark.parametrize("typed", ["n\n", "\x04"], ids=["no", "Ctrl-D"])
def test_a_run_that_names_no_stacks_says_its_size_and_asks(typed: str) -> None:
    done = bentpipe("run", "--case", "handshake", "--run", "/nonexistent/run", typed=typed, **ELSEWHERE)
    assert (done.returncode, done.stderr.count("Start them?"), "Traceback" in done.stderr) == (3, 1, False)
    assert re.search(r"^This adds \d{3} jobs of \d+ clients and \d+ servers: about ", done.stdout)
    assert "--client, --case and --iterations select fewer jobs" in done.stdout


def test_a_closed_output_and_a_reader_that_ends_leave_no_traceback() -> None:
    program = f"{sys.executable} -m runner"
    script = f"{program} --help <&- >&-; echo $?; {program} rules | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n3\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", f"{'x' * 300}/a/b/1"),
        ("analyse", "x" * 300),
        ("import", "x" * 300),
        ("export", RUN, "--results", f"/tmp/{'x' * 250}"),
        ("render", RUN, "--out", "x" * 300),
        ("serve", "--site", "x" * 300),
        ("plan", "--links", "x" * 300, "--link", "astra"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_name_that_is_too_long_is_one_sentence(arguments: tuple[str, ...]) -> None:
    done = bentpipe(*arguments, **ELSEWHERE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "xxx" in done.stderr
    assert "File name too long." in done.stderr


@pytest.mark.parametrize("refusing", ["unreadable", "unreadable/run.json", "unreadable/quic-go_quinn/handshake/1"])
def test_a_file_that_refuses_this_user_is_told_with_its_owner(tmp_path: Path, refusing: str) -> None:
    """Also in `history`, which takes every run of a folder and must not say that there is none."""
    without_rights = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    shutil.copytree(RUN, tmp_path / "unreadable")
    place = tmp_path / refusing
    place.chmod(0)
    try:
        for arguments in (
            ("history", "--logs", str(tmp_path)),
            ("export", str(tmp_path / "unreadable"), "--results", "x"),
        ):
            command = [*without_rights, sys.executable, "-m", "runner", *arguments]
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "500"}
            )
            assert "can't be read: Permission denied." in done.stderr
        assert done.returncode == 2
        assert f"{place} belongs to {tmp_path.owner()} ({stat.filemode(place.stat().st_mode)}): change" in done.stderr
    finally:
        place.chmod(0o755)
