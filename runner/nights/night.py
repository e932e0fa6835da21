"""One night, stage by stage: images, runs, disk, site, publication, news. The result of every stage is stored."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from runner.compare import compare, report
from runner.compare.compare import run_means
from runner.compare.conditions import trust
from runner.compare.report import change_lines
from runner.errors import BentpipeError, InUseError, SetupError, UsageError
from runner.files import beneath, locked_folder, read_regular, remove_tree
from runner.model.run import Job, NightRecord, NightState, Stage, run_stage
from runner.nights.plan import Keep, Night, NightRun, publish, tell
from runner.paths import SOURCE
from runner.store.runs import RunFolder, parse, to_json, write_atomically
from runner.units import format_count, format_size

# Records of nights on disk. They are written after every stage, so that a killed night can be resumed.

_FOLDER = ".nights"
_RECORD: TypeAdapter[NightRecord] = TypeAdapter(NightRecord)


def night_folder(logs: Path, name: str) -> Path:
    """The folder of records and logs of the night `name`."""
    return logs / _FOLDER / name


def save_record(folder: Path, record: NightRecord) -> None:
    """Write the record. When the process is killed meanwhile, either the old or the new record exists."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{record.stamp}.json", to_json(record, _RECORD))


def load_records(folder: Path) -> list[NightRecord]:
    """The records in this folder, the newest first. Raises UsageError for a record that can't be read."""
    records = []
    for path in folder.glob("*.json"):
        try:
            records.append(_RECORD.validate_python(parse(read_regular(path))))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} can't be read: move it away. A night that was not finished then begins again."
            ) from error
    return sorted(records, key=lambda record: -record.began_unix_s)


def newest_records(logs: Path) -> dict[str, NightRecord]:
    """The newest record of each night, by the night's name; nights without records are left out. Raises UsageError as
    `load_records` does."""
    nights = {path.name: load_records(path) for path in sorted((logs / _FOLDER).glob("*/"))}
    return {name: records[0] for name, records in nights.items() if records}


# Frees disk space: the oldest run loses its captures first, then its other evidence. Results stay as long as the
# run.

_KEPT = {"result.json"}  # files of a job's folder that stay as long as the run


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The removed bytes, and the number of runs that lost their captures, their other evidence, or everything."""

    size: int = 0
    captures: int = 0
    evidence: int = 0
    runs: int = 0


def keep_within(nights: list[list[Path]], keep: Keep) -> Freed:
    """Remove evidence that `keep` doesn't allow. `nights`: folders of runs by night, the newest night first. A run that
    another process uses stays unchanged.
    """
    freed = Freed()
    for age, folders in enumerate(nights):
        for path in folders:
            if keep.runs is not None and age >= keep.runs:
                freed = _add(freed, "runs", _locked(path, _remove_run))
            elif age >= keep.evidence:
                freed = _add(freed, "evidence", _locked(path, _remove_evidence))
            elif age >= keep.captures:
                freed = _add(freed, "captures", _locked(path, _remove_captures))
    if keep.disk is None:
        return freed
    oldest_first = [path for folders in reversed(nights) for path in folders if path.is_dir()]
    left = size_of(oldest_first)
    for path in oldest_first:
        for kind, remove in (("captures", _remove_captures), ("evidence", _remove_evidence)):
            if left <= keep.disk:
                return freed
            size = _locked(path, remove)
            freed, left = _add(freed, kind, size), left - size
    return freed


def size_of(folders: Iterable[Path]) -> int:
    """Bytes on disk of all files in these folders. A symbolic link counts by its own size."""
    return sum(entry.lstat().st_blocks * 512 for folder in folders for entry in folder.rglob("*") if not entry.is_dir())


def _add(freed: Freed, kind: str, size: int) -> Freed:
    if not size:
        return freed
    return replace(freed, size=freed.size + size, **{kind: getattr(freed, kind) + 1})


def _locked(path: Path, remove: Callable[[RunFolder], None]) -> int:
    """Call `remove` on the run at `path`, and return the freed bytes; 0 when there is no run, or another process uses
    it."""
    try:
        folder = RunFolder.open(path, lambda _: None)
        with folder.locked():
            before = size_of([path])
            remove(folder)
            return before - (size_of([path]) if path.is_dir() else 0)
    except UsageError:
        return 0


def _jobs(folder: RunFolder) -> Iterator[Job]:
    for job in folder.results():
        with suppress(UsageError):  # a folder with symbolic links is not changed: bentpipe makes no links
            folder.own(job)
            yield job


def _remove_captures(folder: RunFolder) -> None:
    for job in _jobs(folder):
        result = folder.result(job)
        if result is not None and result.captures_kept:
            folder.save_result(replace(result, captures_kept=False))
        artifacts = folder.artifacts(job)
        for capture in artifacts.captures:
            beneath(artifacts.folder, capture.relative_to(artifacts.folder)).unlink(missing_ok=True)


def _remove_evidence(folder: RunFolder) -> None:
    _remove_captures(folder)
    for job in _jobs(folder):
        for entry in folder.artifacts(job).folder.iterdir():
            if entry.name not in _KEPT:
                remove_tree(folder.path, folder.run.folder(job) / entry.name)


def _remove_run(folder: RunFolder) -> None:
    remove_tree(folder.path.parent, folder.path.name)


# The news of a night, at most ten lines for each run: whether its results can be trusted, and changes since the night
# before.

_MOST = 10  # the most lines for one run
_MOST_RUNS = 20  # most earlier runs from which the deviation between runs is estimated


@dataclass(frozen=True, kw_only=True)
class News:
    """The news of one run in at most ten lines. `changed`: something got worse, better or otherwise different."""

    lines: tuple[str, ...]
    changed: bool = False


def news(folder: RunFolder, earlier: list[RunFolder]) -> News:
    """The news of one run. `earlier`: the same run of earlier nights, the newest first."""
    trusted = trust(len(folder.run.order), folder.results().values())
    lines = [f"{folder.name} {trusted.sentence}."]
    if not earlier:
        return News(lines=(*lines, "There is no earlier night to compare with."), changed=not trusted.trusted)
    try:
        others = [run_means(other) for other in earlier[1:_MOST_RUNS]]
        comparison = compare(earlier[0], folder, others=others)
    except UsageError as error:
        return News(lines=(*lines, str(error)), changed=True)
    changes = [line.sentence for line in change_lines(comparison, earlier[0], folder)]
    lines.append(report.sentence(comparison))
    room = _MOST - len(lines)
    left = len(changes) - room + 1
    lines += changes if len(changes) <= room else [*changes[: room - 1], f"and {left} more lines of changes"]
    return News(lines=tuple(lines), changed=bool(changes) or not trusted.trusted)


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
                state, message = NightState.FAILED, str(error)
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
                stage = Stage(name=f"tell {number}", state=NightState.FAILED, seconds=0.0, message=str(error))
                record = record.with_stage(stage)
        record = replace(record, ended_unix_s=self.clock())
        save_record(folder, record)
        return record

    def _stages(
        self, record: NightRecord, folder: Path, log: Path
    ) -> Iterator[tuple[str, Callable[[], tuple[NightState, str]]]]:
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

    def _run(self, run: NightRun, stamp: str, log: Path, end: float) -> tuple[NightState, str]:
        if self.clock() >= end:
            return NightState.LEFT_OUT, "no time was left"
        name = str(self.logs / self.night.run_name(run, stamp))
        earlier = next(iter(self._earlier(run, stamp)), None) if run.only_changed else None
        reuse = [] if earlier is None else ["--reuse", str(earlier.path)]
        return self._command(["run", "--run", name, *run.arguments, *reuse, "--yes"], log, end)

    def _earlier(self, run: NightRun, stamp: str) -> list[RunFolder]:
        """The same run in earlier nights, the newest night first."""
        records = load_records(night_folder(self.logs, self.night.name))
        stamps = [record.stamp for record in records if record.stamp < stamp]
        return [folder for earlier in stamps if (folder := self._open(run, earlier)) is not None]

    def _command(self, arguments: list[str], log: Path, end: float | None) -> tuple[NightState, str]:
        """Run a command of bentpipe until it ends, or until the night's time is over."""
        with log.open("ab") as output:
            output.write(f"\n== {' '.join(arguments)}\n".encode())
            output.flush()
            process = subprocess.Popen(
                [*_DIES_WITH_US, sys.executable, "-P", "-m", "runner", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "dumb"},
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
            return NightState.STOPPED, f"the night's {self.night.longest:g} s are over"
        if code == 0:
            return NightState.DONE, ""
        return NightState.FAILED, f"exit code {code}: {_last_line(log)}"

    def _keep(self) -> tuple[NightState, str]:
        freed = keep_within(self._folders(), self.night.keep)
        if not freed.size:
            return NightState.DONE, ""
        return NightState.DONE, (
            f"freed {format_size(freed.size)}: captures of {format_count(freed.captures, 'run')}, other evidence of "
            f"{format_count(freed.evidence, 'run')}, {format_count(freed.runs, 'whole run')}"
        )

    def _publish(self, target: str, folder: Path) -> tuple[NightState, str]:
        publish(self.site, target, work=folder)
        return NightState.DONE, ""

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
