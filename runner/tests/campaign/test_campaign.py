"""The whole line on recorded jobs: kill -9 at any moment, Ctrl-C, retries of disturbed jobs, retention, pauses."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.campaign.campaign import MAX_ATTEMPTS, Campaign
from runner.errors import LaneError, SetupError
from runner.judge.process import JudgeLimits
from runner.model.result import Outcome, Progress, Result
from runner.model.run import Job, Retention
from runner.paths import ROOT
from runner.places.place import Concurrency
from runner.plan import jobs
from runner.plan.catalog import Catalog
from runner.plan.jobs import handshake_of, remaining
from runner.store.runs import RunFolder
from runner.tests.campaign.recorded import execute, recorded_run
from runner.tests.records import RECORDINGS, select
from runner.tests.replay import Replay


def test_the_line_from_recordings_to_results(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog))
    results, events = execute(folder, catalog)
    assert len(results) == 6
    assert {result.outcome for result in results.values()} == {Outcome.SUCCEEDED}
    assert folder.results() == dict(sorted(results.items()))
    assert min(result.cpu_s for result in results.values()) > 0.01, "that of the judge"
    assert [event.done for event in events if event.event == "finished"] == list(range(1, 7))
    assert events[-1].seconds_left == 0.0
    for job in folder.run.order:
        assert json.loads(folder.artifacts(job).series.read_text())["schema"] == 1
    assert not (folder.path / ".partial").exists()


def test_a_job_that_takes_the_judge_too_long_is_an_error_of_its_own(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=2))
    limits = iter([JudgeLimits(cpu_s=0.0, wall_s=60.0), JudgeLimits()])
    monkeypatch.setattr("runner.judge.process.JudgeLimits.of", lambda _: next(limits))
    results, _ = execute(folder, catalog, lanes="1")
    first, second = results.values()
    assert (first.outcome, first.findings[0].code, first.attempts) == (Outcome.ERROR, "analysis-limit", 1)
    assert "s of CPU time" in first.findings[0].actual
    assert second.outcome is Outcome.SUCCEEDED


class Disturbed(Replay):
    """A lane whose simulator was late in the first `times` attempts of every job."""

    def __init__(self, times: int) -> None:
        super().__init__(RECORDINGS)
        self.times = times

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        super().run(job, folder, attempt=attempt)
        if attempt <= self.times:
            truth = json.loads((folder / "sim/truth.json").read_text())
            truth["lateness_s"]["p99"] = 0.5
            (folder / "sim/truth.json").write_text(json.dumps(truth))


def test_a_disturbed_job_is_run_again_and_says_so(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=1))
    results, events = execute(folder, catalog, Disturbed(1))
    (result,) = results.values()
    assert (result.outcome, result.attempts) == (Outcome.SUCCEEDED, 2)
    assert "late" in result.disturbed[0]
    assert [event.event for event in events].count("retried") == 1


class Refused(Replay):
    """A lane that starts a program, of which the host refuses to run the file."""

    def __init__(self, program: Path) -> None:
        super().__init__(RECORDINGS)
        self.program = program

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        super().run(job, folder, attempt=attempt)
        subprocess.run([self.program], check=True)


@pytest.mark.parametrize(
    ("where", "message"), [("tools", "The host refuses .*tools/sim"), ("run", "/run can't be written")]
)
def test_the_message_names_the_file_that_the_host_refuses(
    tmp_path: Path, catalog: Catalog, where: str, message: str
) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=1))
    program = tmp_path / where / "sim"
    program.parent.mkdir(exist_ok=True)
    program.write_text("not executable")
    with pytest.raises(SetupError, match=rf"{message}.* \(Permission denied\)"):
        execute(folder, catalog, Refused(program))


class Stumbling(Replay):
    """A lane whose capture ended early in the first attempt, and whose tool had printed several lines."""

    printed = "tcpdump: listening on eth0, link-type EN10MB\ntcpdump: eth0: Network is down\n12 packets captured\n"

    def run(self, job: Job, folder: Path, *, attempt: int) -> None:
        if attempt == 1:
            raise LaneError("captures-died", "A capture ended before its time.", printed=self.printed)
        super().run(job, folder, attempt=attempt)


def test_the_reason_of_a_retry_is_one_line_and_the_log_has_the_rest(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=1))
    results, events = execute(folder, catalog, Stumbling(RECORDINGS))
    ((job, result),) = results.items()
    sentence = "A capture ended before its time: tcpdump: eth0: Network is down"
    assert result.disturbed == (sentence,)
    assert [event.message for event in events if event.event == "retried"] == [sentence]
    assert Stumbling.printed in folder.artifacts(job).attempts_log.read_text()


def test_a_job_that_stays_disturbed_is_an_error_never_a_number(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=1))
    results, _ = execute(folder, catalog, Disturbed(99))
    (result,) = results.values()
    assert (result.outcome, result.attempts) == (Outcome.ERROR, MAX_ATTEMPTS)
    assert result.findings[0].code == "disturbed"


def test_a_failed_handshake_skips_the_pairs_other_cases(tmp_path: Path, catalog: Catalog) -> None:
    selection = select(catalog, servers=("quinn",), clients=("quinn", "aioquic"), cases=("handshake",), iterations=None)
    run = jobs.new_run(tmp_path / "run", selection, seed=1)
    lossy = replace(catalog.cases["goodput"].record(), name="lossy", file_sizes=(102400,))
    more = Job(server="quinn", client="quinn", case="lossy", iteration=1)
    folder = RunFolder.create(
        tmp_path / "run", replace(run, cases={**run.cases, "lossy": lossy}, order=(*run.order, more))
    )

    class Wrong(Replay):
        def run(self, job: Job, folder: Path, *, attempt: int) -> None:
            super().run(replace(job, client="quinn"), folder, attempt=attempt)
            evidence = json.loads((folder / "evidence.json").read_text())
            evidence["client"]["exit_code"] = 1
            for file in evidence["files"]:
                file["equal"] = False
            (folder / "evidence.json").write_text(json.dumps(evidence))

    work = Campaign(
        folder=folder,
        cases={"handshake": catalog.cases["handshake"], "lossy": catalog.cases["goodput"]},
        todo=folder.run.order,
        verdicts_without_run={},
        deployment=Wrong(RECORDINGS),
        width=Concurrency.parse("1"),
        retention=Retention("all"),
    )
    results = work.execute()
    assert results[handshake_of(more)].findings[0].code == "client-exit"
    assert results[more].outcome is Outcome.SKIPPED
    assert results[more].findings[0].actual == "client-exit: exit code 1"
    assert folder.results()[more] == results[more]


def test_a_lane_that_breaks_costs_one_job(tmp_path: Path, catalog: Catalog) -> None:
    class Breaking(Replay):
        def run(self, job: Job, folder: Path, *, attempt: int) -> None:
            if job.iteration == 2 or (job.iteration == 3 and attempt == 1):
                raise LaneError("engine", "The engine went away.")
            super().run(job, folder, attempt=attempt)

    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=3))
    results, _ = execute(folder, catalog, Breaking(RECORDINGS))
    outcomes = {job.iteration: result.outcome for job, result in results.items()}
    assert outcomes == {1: Outcome.SUCCEEDED, 2: Outcome.ERROR, 3: Outcome.SUCCEEDED}
    assert {job.iteration: result.attempts for job, result in results.items()} == {1: 1, 2: MAX_ATTEMPTS, 3: 2}
    again = remaining(folder.run.order, folder.results(), frozenset({Outcome.ERROR}))
    assert [job.iteration for job in again] == [2]


def test_a_job_during_which_the_engine_went_away_is_not_done(tmp_path: Path, catalog: Catalog) -> None:
    """14 of 16 jobs once became stored errors within seconds of a restart of Docker."""

    class Lost(Replay):
        def run(self, job: Job, folder: Path, *, attempt: int) -> None:
            if job.iteration == 3:
                raise SetupError("The Docker Engine went away while jobs ran.")
            super().run(job, folder, attempt=attempt)

    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=5))
    with pytest.raises(SetupError, match="went away"):
        execute(folder, catalog, Lost(RECORDINGS), lanes="1")
    assert [job.iteration for job in folder.results()] == [1, 2]
    assert not (folder.path / ".partial").exists()
    execute(folder, catalog, lanes="1")
    assert {result.outcome for result in folder.results().values()} == {Outcome.SUCCEEDED}


@pytest.mark.parametrize(("policy", "kept"), [("all", 3), ("median", 1), ("failed", 0), ("none", 0)])
def test_captures_are_kept_by_policy(tmp_path: Path, catalog: Catalog, policy: str, kept: int) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=3))
    execute(folder, catalog, retention=policy)
    assert not list(folder.path.glob("*/*/*/sim/*.pcap"))
    captures = list(folder.path.glob("*/*/*/sim/left.pcapng"))
    assert len(captures) == kept
    assert sum(result.captures_kept for result in folder.results().values()) == kept
    assert len(list(folder.path.glob("*/*/*/tables/client/*.parquet"))) >= 3


_CHILD = """
import sys
from pathlib import Path
from runner.plan.catalog import load_catalog
from runner.tests.replay import Replay
from runner.store.runs import RunFolder
from runner.tests.records import RECORDINGS
from runner.tests.campaign.recorded import execute
folder = RunFolder.open(Path(sys.argv[1]))
with folder.locked():
    execute(folder, load_catalog(), Replay(RECORDINGS, seconds_per_job=0.05))
"""


def test_killed_at_any_moment_it_resumes_and_loses_nothing(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "run"
    folder = RunFolder.create(path, recorded_run(path, catalog, iterations=12))
    chance = random.Random(5)
    kept: dict[Job, Result] = {}
    for attempt in range(6):
        child = subprocess.Popen([sys.executable, "-c", _CHILD, str(path)], cwd=ROOT, start_new_session=True)
        time.sleep(1.0 + 1.5 * chance.random())
        # In turn: the runner alone, as the kernel does without memory, and the runner with all of its processes.
        (os.kill if attempt % 2 else os.killpg)(child.pid, signal.SIGKILL)
        child.wait()
        done = folder.results()
        assert all(done[job] == result for job, result in kept.items()), "a stored result was lost or changed"
        kept = done
    with folder.locked():
        execute(folder, catalog)
    assert len(folder.results()) == 12
    assert {result.outcome for result in folder.results().values()} == {Outcome.SUCCEEDED}


def test_stopping_leaves_running_jobs_undone(tmp_path: Path, catalog: Catalog) -> None:
    folder = RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=6))

    class Stopping:
        def report(self, progress: Progress) -> None:
            if progress.event == "finished":
                work.stop()

    work = Campaign(
        folder=folder,
        cases={"lossy": catalog.cases["goodput"]},
        todo=folder.run.order,
        verdicts_without_run={},
        deployment=Replay(RECORDINGS, seconds_per_job=0.5),
        width=Concurrency.parse("1"),
        retention=Retention.ALL,
        observer=Stopping(),
    )
    results = work.execute()
    assert len(results) == 1
    assert list(folder.results()) == list(results)


_CHILD_CTRL_C = """
import signal, sys, threading
from pathlib import Path
from runner.campaign.campaign import Campaign
from runner.model.run import Retention
from runner.campaign.campaign import stopping
from runner.places.place import Concurrency
from runner.plan.catalog import load_catalog
from runner.tests.replay import Replay
from runner.store.runs import RunFolder
from runner.tests.records import RECORDINGS

folder = RunFolder.open(Path(sys.argv[1]))
work = Campaign(
    folder=folder,
    cases={"lossy": load_catalog().cases["goodput"]},
    todo=folder.run.order,
    verdicts_without_run={},
    deployment=Replay(RECORDINGS, seconds_per_job=60),
    width=Concurrency.parse("1"),
    retention=Retention.ALL,
)

def interrupt(frame, event, argument):
    waits = frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "wait"
    if waits and work._stop._cond._lock.locked():
        sys.settrace(None)
        signal.raise_signal(signal.SIGINT)
    return interrupt

with stopping(work):
    threading.Timer(3.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    sys.settrace(interrupt)
    assert work.execute() == {}
"""


def test_ctrl_c_ends_a_campaign_also_when_its_thread_holds_a_lock(tmp_path: Path, catalog: Catalog) -> None:
    RunFolder.create(tmp_path / "run", recorded_run(tmp_path / "run", catalog, iterations=2))
    command = [sys.executable, "-c", _CHILD_CTRL_C, str(tmp_path / "run")]
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)
