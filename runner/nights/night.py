"""One night, stage by stage: images, runs, disk, site, publication, news. The result of every stage is stored."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from runner.errors import BentpipeError, InUseError, SetupError, UsageError
from runner.files.folder_lock import locked_folder
from runner.model.night import NightRecord, Stage, State, run_stage
from runner.nights.keep import keep_within
from runner.nights.news import News, news
from runner.nights.plan import Night, NightRun
from runner.nights.publish import publish
from runner.nights.record import load_records, night_folder, save_record
from runner.nights.tell import tell
from runner.paths import ROOT
from runner.store import RunFolder
from runner.units import format_count, format_size

_RESUMABLE = 24 * 3600  # seconds after its beginning in which a killed night can be resumed
_PATIENCE = 180  # seconds that a run has to store its jobs after Ctrl-C
# setpriv(1) of util-linux: the command gets SIGTERM when the night's own process is killed. A shell starts background
# commands with SIGINT ignored, and the command would inherit this.
_DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")


@dataclass
class NightWork:
    """The work of one night. `logs`: the folder of runs; `say` is called with a sentence for each stage."""

    night: Night
    logs: Path
    site: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time

    def run(self) -> NightRecord:
        """Begin a night, or resume a killed night. Raises UsageError when another process runs it."""
        folder = night_folder(self.logs, self.night.name)
        try:
            with locked_folder(folder):
                return self._work(folder, self._record(folder))
        except InUseError as error:
            raise UsageError(f"A night of {self.night.name} is running: two nights never overlap.") from error

    def _record(self, folder: Path) -> NightRecord:
        """The record of a night that was killed within a day, or a new record."""
        now = self.clock()
        for record in load_records(folder)[:1]:
            if record.ended_unix_s is None and now - record.began_unix_s < _RESUMABLE:
                self.say(f"Night {record.stamp} continues after {len(record.stages)} stages.")
                return record
        return NightRecord(stamp=f"{datetime.fromtimestamp(now):%Y-%m-%dT%H%M}", began_unix_s=now)

    def _work(self, folder: Path, record: NightRecord) -> NightRecord:
        save_record(folder, record)
        log = folder / f"{record.stamp}.log"
        for name, work in self._stages(record, folder, log):
            if record.has(name):
                continue
            began = self.clock()
            try:
                state, message = work()
            except (BentpipeError, OSError) as error:
                state, message = State.FAILED, str(error)
            stage = Stage(name=name, state=state, seconds=self.clock() - began, message=message)
            self.say(f"{name}: {stage.state.value}{': ' + message if message else ''}")
            record = record.with_stage(stage)
            save_record(folder, record)
        news_of_runs = self._news(record)
        record = replace(record, news=tuple(line for run_news in news_of_runs for line in run_news.lines))
        for number, recipient in enumerate(self.night.recipients, 1):
            if not recipient.always and not any(run_news.changed for run_news in news_of_runs):
                continue
            try:
                tell(recipient, title=f"bentpipe {self.night.name} {record.stamp}", lines=record.news)
            except SetupError as error:
                self.say(str(error))
                stage = Stage(name=f"tell {number}", state=State.FAILED, seconds=0.0, message=str(error))
                record = record.with_stage(stage)
        record = replace(record, ended_unix_s=self.clock())
        save_record(folder, record)
        return record

    def _stages(
        self, record: NightRecord, folder: Path, log: Path
    ) -> Iterator[tuple[str, Callable[[], tuple[State, str]]]]:
        end = record.began_unix_s + self.night.longest
        if self.night.build:
            yield "build", lambda: self._command(["build", *self.night.build, "--yes"], log, end)
        if self.night.pull:
            yield "pull", lambda: self._command(["build", "--pull", *self.night.pull, "--yes"], log, end)
        for run in self.night.runs:
            yield run_stage(run.name), lambda run=run: self._run(run, record.stamp, log, end)  # type: ignore[misc]
        yield "keep", self._keep
        yield "render", lambda: self._command(["render", "--out", str(self.site)], log, None)
        for target in self.night.publish:
            yield f"publish {target}", lambda target=target: self._publish(target, folder)  # type: ignore[misc]

    def _run(self, run: NightRun, stamp: str, log: Path, end: float) -> tuple[State, str]:
        if self.clock() >= end:
            return State.LEFT_OUT, "no time was left"
        name = str(self.logs / self.night.run_name(run, stamp))
        earlier = next(iter(self._earlier(run, stamp)), None) if run.only_changed else None
        reuse = [] if earlier is None else ["--reuse", str(earlier.path)]
        return self._command(["run", "--run", name, *run.arguments, *reuse, "--yes"], log, end)

    def _earlier(self, run: NightRun, stamp: str) -> list[RunFolder]:
        """The same run in earlier nights, the newest night first."""
        records = load_records(night_folder(self.logs, self.night.name))
        stamps = [record.stamp for record in records if record.stamp < stamp]
        return [folder for earlier in stamps if (folder := self._open(run, earlier)) is not None]

    def _command(self, arguments: list[str], log: Path, end: float | None) -> tuple[State, str]:
        """Run a command of bentpipe until it ends, or until the night's time is over."""
        with log.open("ab") as output:
            output.write(f"\n== {' '.join(arguments)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                [*_DIES_WITH_US, sys.executable, "-P", "-m", "runner", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"},
                start_new_session=True,
            )
            stopped = False
            try:
                code = process.wait(None if end is None else max(0.0, end - self.clock()))
            except subprocess.TimeoutExpired:
                stopped, code = True, _end(process)
            except BaseException:
                _end(process)
                raise
        if stopped:
            return State.STOPPED, f"the night's {self.night.longest:g} s are over"
        if code == 0:
            return State.DONE, ""
        return State.FAILED, f"exit code {code}: {_last_line(log)}"

    def _keep(self) -> tuple[State, str]:
        freed = keep_within(self._folders(), self.night.keep)
        if not freed.size:
            return State.DONE, ""
        return State.DONE, (
            f"freed {format_size(freed.size)}: captures of {format_count(freed.captures, 'run')}, other evidence of "
            f"{format_count(freed.evidence, 'run')}, {format_count(freed.runs, 'whole run')}"
        )

    def _publish(self, target: str, folder: Path) -> tuple[State, str]:
        publish(self.site, target, work=folder)
        return State.DONE, ""

    def _folders(self) -> list[list[Path]]:
        """Folders of the runs of all nights, the newest night first."""
        records = load_records(night_folder(self.logs, self.night.name))
        return [[self.logs / self.night.run_name(run, record.stamp) for run in self.night.runs] for record in records]

    def _news(self, record: NightRecord) -> list[News]:
        """The news of each run of this night."""
        news_of_runs = []
        for run in self.night.runs:
            tonight = self._open(run, record.stamp)
            if tonight is None:
                news_of_runs.append(News(lines=(f"{run.name} did not run.",), changed=True))
                continue
            news_of_runs.append(news(tonight, self._earlier(run, record.stamp)))
        return news_of_runs

    def _open(self, run: NightRun, stamp: str) -> RunFolder | None:
        try:
            return RunFolder.open(self.logs / self.night.run_name(run, stamp), lambda _: None)
        except UsageError:
            return None


def _end(process: "subprocess.Popen[bytes]") -> int:
    """End the command in the same way as Ctrl-C, so that it stores its jobs. Kill it when it does not end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        try:
            return process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    return process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
