"""Nights stage by stage, with the real commands of bentpipe; what needs no lane."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from runner.cli import host_commands
from runner.cli.group import main
from runner.compare.history import history
from runner.errors import SetupError, UsageError
from runner.files import locked_folder
from runner.model.result import Finding, Outcome, Result
from runner.model.run import NightRecord, NightState, Stage
from runner.nights.night import (
    Keep,
    Night,
    NightWork,
    Recipient,
    cron_line,
    install,
    keep_within,
    load_night,
    load_records,
    night_folder,
    publish,
    save_record,
    service,
    size_of,
    tell,
    timer,
)
from runner.paths import ROOT
from runner.plan.catalog import Catalog
from runner.site import render
from runner.store.runs import RunFolder, find_runs
from runner.tests.campaign.recorded import execute, recorded_run
from runner.tests.nights.test_plan import RUN, written

BAD = {"name": "bad", "options": "--case no-such-case"}


def work_of(path: Path, logs: Path, messages: list[str]) -> NightWork:
    return NightWork(night=load_night(path), logs=logs, site=logs / "site", say=messages.append)


def test_a_stage_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    """A real `run` refuses an unknown case with exit code 2, and a real `render` has nothing to draw."""
    messages: list[str] = []
    work = work_of(written(tmp_path, runs=[BAD]), tmp_path, messages)
    record = work.run()
    states = {stage.name: stage.state for stage in record.stages}
    assert states["run bad"] is NightState.FAILED
    assert states["keep"] is NightState.DONE
    message = next(stage.message for stage in record.stages if stage.name == "run bad")
    assert message.startswith("exit code 2: ")
    assert record.news == ("bad did not run.",)
    assert load_records(night_folder(tmp_path, "night")) == [record]


def test_a_night_without_time_left_begins_no_run(tmp_path: Path) -> None:
    path = written(tmp_path, longest=60)
    folder = night_folder(tmp_path, "night")
    began = time.time() - 61
    save_record(folder, NightRecord(stamp="2026-11-23T0100", began_unix_s=began))
    record = work_of(path, tmp_path, []).run()
    assert record.began_unix_s == began, "a night that died goes on"
    assert {stage.name: stage.state for stage in record.stages}["run sat"] is NightState.LEFT_OUT


def test_a_stage_that_is_done_is_not_repeated(tmp_path: Path) -> None:
    path = written(tmp_path, runs=[BAD])
    folder = night_folder(tmp_path, "night")
    done = Stage(name="run bad", state=NightState.DONE, seconds=1.0)
    save_record(folder, NightRecord(stamp="2026-11-23T0100", began_unix_s=time.time() - 5, stages=(done,)))
    record = work_of(path, tmp_path, []).run()
    assert record.stages[0] == done
    assert "no-such-case" not in (folder / "2026-11-23T0100.log").read_text()


def test_two_nights_never_overlap(tmp_path: Path) -> None:
    path = written(tmp_path)
    code = "import sys, time; from pathlib import Path; from runner.files import locked_folder\n"
    code += "with locked_folder(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code, str(night_folder(tmp_path, "night"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="two nights never overlap"):
            work_of(path, tmp_path, []).run()
        holder.kill()
    work_of(path, tmp_path, [])


def test_a_killed_night_takes_its_command_along(tmp_path: Path) -> None:
    """The command of a night that is killed ends within seconds, and the next call goes on."""
    path = written(tmp_path, runs=[{"name": "wait", "options": "--pause 00:00-23:59 --case handshake"}])
    code = (
        "import sys; from pathlib import Path; from runner.nights.night import NightWork; "
        "from runner.nights.night import load_night; logs = Path(sys.argv[2]); "
        "work = NightWork(night=load_night(Path(sys.argv[1])), logs=logs, site=logs / 'site', say=print); "
        "work._command(['serve', '--site', sys.argv[2], '--port', sys.argv[3]], logs / 'log', None)"
    )
    (tmp_path / "index.html").touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # A shell ignores Ctrl-C for background commands.
    as_in_the_background = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    command = [*as_in_the_background, sys.executable, "-c", code, str(path), str(tmp_path), port]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as night:
        child = _child_of(night.pid)
        night.send_signal(signal.SIGKILL)
        night.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{child}").exists()


def _child_of(parent: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for child in map(int, listed):
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if b"serve" in command and not command[0].endswith(b"setpriv"):
                return child
        time.sleep(0.05)
    raise AssertionError("the command did not begin")


def test_thirty_nights_stay_within_their_disk(tmp_path: Path, catalog: Catalog) -> None:
    """Recorded jobs, one run a night: captures go first, the oldest first, and every number stays."""
    recorded = RunFolder.create(tmp_path / "recorded", recorded_run(tmp_path / "recorded", catalog, iterations=2))
    execute(recorded, catalog)
    budget = 6 * size_of([recorded.path])
    keep = Keep(captures=20, evidence=25, runs=28, disk=budget)
    nights: list[list[Path]] = []
    for number in range(30):
        path = tmp_path / "logs" / f"r-{number:02}"
        shutil.copytree(recorded.path, path)
        nights.insert(0, [path])
        keep_within(nights, keep)
        assert size_of(folder for night in nights for folder in night if folder.is_dir()) <= budget
    kept = [path for night in nights for path in night if path.is_dir()]
    assert len(kept) == 28, "whole runs go after 28 nights"
    assert [len(RunFolder.open(path).results()) for path in kept] == [2] * 28
    captures = [any(path.glob("*/*/*/sim/*.pcap*")) for path in kept]
    assert captures[0]
    assert captures == sorted(captures, reverse=True), "the oldest lose their captures first"
    assert not any(result.captures_kept for result in RunFolder.open(kept[-1]).results().values())
    assert [folder.path for folder in find_runs(tmp_path / "logs")]


def test_thirty_nights_have_the_history_and_the_feeds_that_their_results_say(tmp_path: Path, catalog: Catalog) -> None:
    """Recorded jobs, 30 nights, evidence removed as the budget asks. In nights 10 to 12 the server is made to fail."""
    recorded = RunFolder.create(tmp_path / "recorded", recorded_run(tmp_path / "recorded", catalog, iterations=2))
    execute(recorded, catalog)
    keep = Keep(captures=2, evidence=4, runs=None, disk=None)
    nights: list[list[Path]] = []
    for number in range(30):
        path = tmp_path / "logs" / f"r-{number:02}"
        shutil.copytree(recorded.path, path)
        folder = RunFolder.open(path)
        began = folder.run.started_unix_s + 86_400 * number
        folder.save_run(replace(folder.run, name=path.name, started_unix_s=began))
        for result in folder.results().values():
            folder.save_result(_broken(result) if 10 <= number <= 12 else result)
        nights.insert(0, [path])
        keep_within(nights, keep)
        if number in (11, 29):
            render(find_runs(tmp_path / "logs"), tmp_path / "site")
    server = recorded.run.order[0].server
    (trend,) = history(find_runs(tmp_path / "logs")).trends
    assert (trend.flips, str(trend.attempts), len(trend.medians)) == (2, "54/60", 27)
    atom = "{http://www.w3.org/2005/Atom}"
    of_stack = ElementTree.parse(tmp_path / "site/latest" / server / "atom.xml").iter(f"{atom}title")
    assert [title.text for title in of_stack][1:] == [
        f"{server}: green, red before, r-13",
        f"{server}: red, green before, r-10",
        f"{server}: green, r-00",
    ]
    of_all = ElementTree.parse(tmp_path / "site/atom.xml").getroot().findall(f"{atom}entry")
    assert len(of_all) == len({entry.findtext(f"{atom}id") for entry in of_all}) == 30
    assert f"{server}: red" not in (tmp_path / "site/index.html").read_text()


def _broken(result: Result) -> Result:
    finding = Finding(code="server-exit", requirement="r", expected="e", actual="none", role="server")
    return replace(result, outcome=Outcome.FAILED, findings=(finding,), sample=None)


def test_a_run_that_somebody_works_on_keeps_everything(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "r", recorded_run(tmp_path / "r", catalog, iterations=1))
    execute(folder, catalog)
    with locked_folder(folder.path):
        keep_within([[folder.path]], Keep(captures=1, evidence=1, runs=None, disk=1))
    assert any(folder.path.glob("*/*/*/sim/*.pcap*"))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "made"
    (site / "static").mkdir(parents=True)
    (site / "index.html").write_text("<p>tonight")
    (site / ".bentpipe-site").touch()
    (site / "static" / "style.css").write_text("p{}")
    return site


def test_a_folder_is_replaced_as_a_whole(site: Path, tmp_path: Path) -> None:
    target = tmp_path / "www"
    publish(site, str(target), work=tmp_path)
    (site / "static" / "style.css").unlink()
    publish(site, str(target), work=tmp_path)
    assert sorted(path.name for path in target.rglob("*")) == [".bentpipe-site", "index.html", "static"]


def test_a_folder_of_somebody_else_is_left_alone(site: Path, tmp_path: Path) -> None:
    target = tmp_path / "home"
    target.mkdir()
    (target / "thesis.tex").touch()
    with pytest.raises(SetupError, match="contains other files"):
        publish(site, str(target), work=tmp_path)
    assert (target / "thesis.tex").exists()


def test_a_branch_gets_one_commit(site: Path, tmp_path: Path) -> None:
    bare = tmp_path / "pages.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    for _ in range(2):
        publish(site, f"git+{bare}#gh-pages", work=tmp_path)
    git = ["git", "-C", str(bare)]
    assert subprocess.check_output([*git, "rev-list", "--count", "gh-pages"]).strip() == b"1"
    assert b"index.html" in subprocess.check_output([*git, "ls-tree", "--name-only", "gh-pages"])
    with pytest.raises(SetupError, match="names no branch"):
        publish(site, f"git+{bare}", work=tmp_path)
    with pytest.raises(SetupError, match="can't be published"):
        publish(site, f"git+{tmp_path}/nowhere#gh-pages", work=tmp_path)


@contextmanager
def webhook() -> Iterator[tuple[str, list[dict[str, object]]]]:
    got: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", got
        server.shutdown()
        thread.join()


def test_a_webhook_gets_the_news(tmp_path: Path) -> None:
    with webhook() as (url, got):
        path = written(tmp_path, runs=[BAD], tell=[{"webhook": url}])
        work_of(path, tmp_path, []).run()
    assert got[0]["lines"] == ["bad did not run."]


def test_a_webhook_that_is_away_is_a_failed_stage(tmp_path: Path) -> None:
    path = written(tmp_path, runs=[BAD], tell=[{"webhook": "http://127.0.0.1:1/"}])
    record = work_of(path, tmp_path, []).run()
    assert record.stages[-1].name == "tell 1"
    assert "can't be reached" in record.stages[-1].message
    assert record.ended_unix_s is not None


def test_mail_goes_through_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/mail\n")
    program.chmod(0o755)
    recipient = Recipient(webhook=None, mail="a@example.org", when="always")
    monkeypatch.setattr("runner.nights.night._SENDMAIL", str(program))
    tell(recipient, title="bentpipe night", lines=["sat: can be trusted"])
    mail = (tmp_path / "mail").read_text()
    assert "To: a@example.org" in mail
    assert "sat: can be trusted" in mail
    monkeypatch.setattr("runner.nights.night._SENDMAIL", str(tmp_path / "none"))
    with pytest.raises(SetupError, match="this host has no"):
        tell(recipient, title="bentpipe night", lines=[])


def a_night(tmp_path: Path) -> tuple[Night, Path]:
    path = written(tmp_path, at="01:30")
    return load_night(path), path


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    night, path = a_night(tmp_path)
    units = install(night, path, tmp_path)
    assert "OnCalendar=*-*-* 01:30:00" in timer(night)
    assert f'--file "{path}"' in service(night, path)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    checked = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, check=False
    )
    text = [line for line in checked.stderr.splitlines() if "bentpipe" in line]
    assert not text


def test_cron_has_a_line(tmp_path: Path) -> None:
    night, path = a_night(tmp_path)
    assert cron_line(night, path).startswith(f"30 1 * * * cd {ROOT} && {ROOT}/bentpipe night run --file ")


def test_units_that_can_t_be_written_get_a_sentence(tmp_path: Path) -> None:
    night, path = a_night(tmp_path)
    with pytest.raises(SetupError, match="--cron"):
        install(night, path, Path("/proc/none"))


def test_before_the_first_night_the_status_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has made the folder logs/ yet."""
    monkeypatch.setattr(host_commands, "LOGS", tmp_path / "logs")
    done = CliRunner().invoke(main, ["night", "status", "--file", str(written(tmp_path))], catch_exceptions=False)
    assert done.exit_code == 0


@pytest.mark.parametrize("command", [["status"], ["install", "--cron"], ["run"]])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--cas sat", "No such option '--cas'"),
        ("--case satt", "there is no case 'satt'"),
        ("--lanes one", "'one' is neither 'auto' nor a number"),
    ],
)
def test_a_misspelled_option_of_a_run_is_told_before_the_night(
    tmp_path: Path, command: list[str], options: str, sentence: str
) -> None:
    path = written(tmp_path, runs=[RUN | {"options": options}])
    done = CliRunner().invoke(main, ["night", *command, "--file", str(path)])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"{path}, run '{RUN['name']}', options: ")
    assert sentence in str(done.exception)
