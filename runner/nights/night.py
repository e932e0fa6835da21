"""Runs the matrix every night, as night.json describes."""

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Annotated, Literal
from urllib.error import URLError
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter

from runner.compare import compare, report
from runner.compare.compare import run_means
from runner.compare.conditions import trust
from runner.compare.report import change_lines
from runner.errors import BentpipeError, InUseError, SetupError, UsageError, first_line
from runner.files import locked_folder, read_regular, remove_tree
from runner.model.run import Job, NightRecord, NightState, Stage, name_problem, run_name, run_stage
from runner.paths import COMMAND, HOME, SOURCE
from runner.plan.catalog import FileModel, read_as
from runner.store.runs import RunFolder, parse, to_json, write_atomically
from runner.units import format_count, format_size

# Reads and validates night.json.

NIGHT = HOME / "night.json"
NIGHT_SCHEMA = 1
_EXAMPLE = "night.example.json"
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_OWN = ("--run", "--yes", "-y", "--repeat-runs", "--reuse")  # options of `run` that only the night sets
_SCHEMES = ("http", "https")
_LOCAL = ("file", "local")  # a folder of this host is checked before it is replaced
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)

Seconds = Annotated[int, Field(gt=0, le=7 * 86_400, description="seconds")]
Nights = Annotated[int, Field(ge=1, le=10_000, description="nights")]


class NightRun(FileModel):
    """One run of each night. `options`: the options of `./bentpipe run`, as on its command line. `only_changed`: cells
    whose images, case and link have not changed take over the results of the night before and don't run again. `on`:
    the scheduler of workers."""

    name: str
    options: str
    only_changed: bool = False
    on: str | None = Field(default=None, description="tls://HOST:PORT, the scheduler of workers")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments for `./bentpipe run`. Raises ValueError for an open quotation."""
        return (*shlex.split(self.options), *(("--on", self.on) if self.on else ()))


class NightImages(FileModel):
    """Images to make current before the runs: names as for `./bentpipe build`."""

    build: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()


class Keep(FileModel):
    """How long evidence is kept. Results and `run.json` stay as long as the run. `captures`: nights for which captures
    are kept. `evidence`: nights for which all other files of jobs are kept. `runs`: nights after which a run is
    deleted; None: never. `disk`: bytes that the runs of all nights together may take; None: no limit."""

    captures: Nights = 14
    evidence: Nights = 60
    runs: Nights | None = None
    disk: Annotated[int, Field(gt=0, description="bytes")] | None = None


class Recipient(FileModel):
    """A recipient of news: the URL of a webhook, or a mail address. `when`: always, or only when something changed."""

    webhook: str | None = None
    mail: str | None = None
    when: Literal["changed", "always"] = "changed"


class Night(FileModel):
    """The plan of each night, which begins `at`; running jobs are ended after `longest` seconds."""

    schema_: int = Field(alias="schema", ge=1, le=NIGHT_SCHEMA)
    name: str = "night"
    at: str = Field(default="01:00", description="HH:MM, local time")
    longest: Seconds = 8 * 3600
    before: NightImages = NightImages()
    runs: list[NightRun] = Field(min_length=1)
    keep: Keep = Keep()
    publish: tuple[str, ...] = ()
    tell: tuple[Recipient, ...] = ()

    def run_name(self, run: NightRun, stamp: str) -> str:
        """The folder of a run of the night that began at `stamp`."""
        return run_name(self.name, run.name, stamp)


def target_problem(target: str) -> str:
    """The reason why a site can't be published to `target`; empty when it can."""
    if not target or target.startswith("-"):
        return "is an option, or empty: write a folder, HOST:PATH or a URL"
    scheme = target.partition("://")[0].lower()
    if "::" in target or scheme in _LOCAL:
        return "hides what it writes: write a folder of this host as a path, such as /var/www/bentpipe"
    return ""


def load_night(path: Path = NIGHT) -> Night:
    """Load the plan. Raises UsageError with the file, the field and the expected value."""
    night = read_as(Night, path, missing=f"is missing: copy {_EXAMPLE} to it and describe your runs (docs/nights.md)")
    for name in (night.name, *(run.name for run in night.runs)):
        if problem := name_problem(name):
            raise UsageError(f"{path}: '{name}' can't be a name: {problem}.")
    if not _UNIT.fullmatch(night.name):
        raise UsageError(
            f"{path}: '{night.name}' can't be the name of a night, after which systemd's units are called: use "
            "letters, digits, '.', '-' and '_'."
        )
    for field, texts in (("before.build", night.before.build), ("before.pull", night.before.pull)):
        if options := [text for text in texts if text.startswith("-")]:
            raise UsageError(f"{path}, field '{field}': '{options[0]}' is an option: write names of stacks.")
    for target in night.publish:
        if problem := target_problem(target):
            raise UsageError(f"{path}, field 'publish': '{target}' {problem}.")
    names = [run.name for run in night.runs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{path}: two runs are called '{min(repeated)}': give one of them another name.")
    if not _TIME.fullmatch(night.at):
        raise UsageError(f"{path}, field 'at' is \"{night.at}\": write a time of day such as 01:30.")
    for run in night.runs:
        _require_arguments(path, run)
    for number, recipient in enumerate(night.tell, 1):
        _require_recipient(f"{path}, field 'tell', entry {number}", recipient)
    return night


def _require_arguments(path: Path, run: NightRun) -> None:
    try:
        names = [argument.partition("=")[0] for argument in shlex.split(run.options)]
    except ValueError as error:
        raise UsageError(f"{path}, run '{run.name}': options: {error}: close the quotation.") from error
    if own := [name for name in names if name in _OWN]:
        raise UsageError(f"{path}, run '{run.name}': the night sets {own[0]} itself: leave it out.")


def _require_recipient(where: str, recipient: Recipient) -> None:
    url, mail = recipient.webhook, recipient.mail
    if (url is None) == (mail is None):
        raise UsageError(f"{where}: name either a webhook or a mail address.")
    if url is not None and urlsplit(url).scheme not in _SCHEMES:
        raise UsageError(f"{where}: '{url}' is not a URL: write https://HOST/….")
    if mail is not None and ("@" not in mail or any(map(str.isspace, mail))):
        raise UsageError(f"{where}: '{mail}' is not a mail address.")


# Files that start the night every day: a systemd service and timer, or a line of crontab(5).

SYSTEMD = Path("/etc/systemd/system")


def unit_names(night: Night) -> tuple[str, str]:
    """The names of service and timer."""
    return f"bentpipe-{night.name}.service", f"bentpipe-{night.name}.timer"


def service(night: Night, path: Path) -> str:
    """The service. Lanes need root's rights over namespaces and Docker; all other rights are taken away.
    `KillMode=mixed` sends SIGTERM only to the process of the night, which then ends its run. Remaining processes are
    killed afterwards."""
    return f"""[Unit]
Description=bentpipe: the night {night.name}
After=network-online.target docker.service
Wants=network-online.target

[Service]
Type=oneshot
User={getpass.getuser()}
WorkingDirectory={_specifiers(HOME)}
ExecStart={_quoted(COMMAND, command=True)} night run --file {_quoted(path.resolve(), command=True)}
TimeoutStartSec={night.longest + 7200}
KillMode=mixed
TimeoutStopSec=400
Nice=5
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={_quoted(HOME)} /var/log /run
ProtectHome=read-only
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
"""


def _specifiers(path: Path) -> str:
    return str(path).replace("%", "%%")


def _quoted(path: Path, *, command: bool = False) -> str:
    """A word of a unit file (systemd.syntax, Quoting). `command`: in ExecStart, `$` would begin a variable."""
    text = _specifiers(path).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + (text.replace("$", "$$") if command else text) + '"'


def timer(night: Night) -> str:
    """The timer. When the host was off at the time of a night, `Persistent` starts the night later."""
    return f"""[Unit]
Description=bentpipe: begins the night {night.name}

[Timer]
OnCalendar=*-*-* {night.at}:00
Persistent=true

[Install]
WantedBy=timers.target
"""


def cron_line(night: Night, path: Path) -> str:
    """The line for `crontab -e`."""
    home, program, file = (shlex.quote(str(name)) for name in (HOME, COMMAND, path.resolve()))
    command = f"cd {home} && {program} night run --file {file}"
    hour, minute = map(int, night.at.split(":"))
    return f"{minute} {hour} * * * {command} >/dev/null 2>&1".replace("%", r"\%")


def install(night: Night, path: Path, folder: Path) -> tuple[Path, Path]:
    """Write service and timer into `folder`. Raises SetupError when they can't be written."""
    places = tuple(folder / name for name in unit_names(night))
    try:
        for place, text in zip(places, (service(night, path), timer(night)), strict=True):
            write_atomically(place, text.encode())
    except OSError as error:
        raise SetupError(
            f"{folder} can't be written ({error.strerror}): use sudo, or --to FOLDER, or --cron."
        ) from error
    return places[0], places[1]


# Publishes the site: to a folder, by rsync, to a branch of a git repository, or to any fsspec URL.

_GIT = "git+"
_MARKER = ".bentpipe-site"  # as in runner/site/view.py
_LONGEST_TRANSFER = 1800  # most seconds of one transfer
_AUTHOR = ("-c", "user.name=bentpipe", "-c", "user.email=bentpipe@localhost")


def publish(site: Path, target: str, *, work: Path) -> None:
    """Copy the finished site to `target`. `target`: a folder (`/var/www/bentpipe`); `HOST:PATH` for rsync;
    `git+URL#BRANCH`: the branch gets one commit, which replaces the last commit; any other URL goes to fsspec
    (`s3://BUCKET/PATH`). `work`: a folder for temporary files. Raises SetupError with one sentence."""
    if target.startswith(_GIT):
        _to_branch(site, target.removeprefix(_GIT), work)
    elif "://" in target:
        _to_url(site, target)
    elif ":" in target.partition("/")[0]:
        _run(["rsync", "-a", "--delete", "--copy-links", "--", f"{site}/", target], target)
    else:
        _to_folder(site, Path(target))


def _to_folder(site: Path, target: Path) -> None:
    """Copy the site next to the old site, then exchange both folders: a reader never sees half of a site."""
    fresh, old = target.with_name(target.name + ".new"), target.with_name(target.name + ".old")
    for place in (target, fresh, old):
        if place.exists() and not (place / _MARKER).is_file() and (not place.is_dir() or any(place.iterdir())):
            raise SetupError(f"{place} contains other files than a site of bentpipe: publish to another folder.")
    try:
        for place in (fresh, old):
            if place.is_symlink():
                place.unlink()
            elif place.is_dir():
                shutil.rmtree(place)
        fresh.mkdir()
        (fresh / _MARKER).touch()  # first, so that the next night may remove half of a site
        shutil.copytree(site, fresh, symlinks=False, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, shutil.Error) as error:
        raise SetupError(f"The site can't be published to {target}: {first_line(error)}.") from error


def _to_branch(site: Path, target: str, work: Path) -> None:
    """Push one commit without history by force: the history of all nights would fill the repository."""
    url, _, branch = target.partition("#")
    if not branch:
        raise SetupError(f"publish: '{_GIT}{target}' names no branch: write {_GIT}URL#BRANCH.")
    copy = work / "branch"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(site, copy, symlinks=False, ignore_dangling_symlinks=True)
    (copy / ".nojekyll").touch()
    try:
        for command in (
            ["git", "init", "-q", "-b", branch],
            ["git", "add", "-A"],
            ["git", *_AUTHOR, "commit", "-q", "-m", "site"],
            ["git", "push", "-q", "--force", "--", url, branch],
        ):
            _run(command, url, folder=copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _to_url(site: Path, target: str) -> None:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - optional: most users publish to a folder
    except ImportError as error:
        raise SetupError(
            f"publish: {target} needs fsspec: run .venv/bin/pip install fsspec (and s3fs, adlfs …)."
        ) from error
    try:
        system, path = url_to_fs(target)
        system.put(f"{site}/", f"{path.rstrip('/')}/", recursive=True)
    except Exception as error:  # each kind of file system raises its own errors
        raise SetupError(f"The site can't be published to {target}: {first_line(error)}.") from error


def _run(command: list[str], target: str, *, folder: Path | None = None) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_LONGEST_TRANSFER)
    except FileNotFoundError as error:
        raise SetupError(f"publish: {command[0]} is not installed, and {target} needs it.") from error
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"publish: {command[0]} to {target} took more than {_LONGEST_TRANSFER} s.") from error
    except subprocess.CalledProcessError as error:
        why = (error.stderr or error.stdout).strip().splitlines() or [f"exit code {error.returncode}"]
        raise SetupError(f"The site can't be published to {target}: {why[-1]}") from error


# Sends the news to people: a webhook gets JSON, a mail address gets text through this host's sendmail.

_SENDMAIL = "/usr/sbin/sendmail"
_LONGEST_REQUEST = 60  # most seconds for one request


def tell(recipient: Recipient, *, title: str, lines: Sequence[str]) -> None:
    """Send `title` and `lines`. Raises SetupError with one sentence."""
    if recipient.webhook is not None:
        _post(recipient.webhook, title, lines)
    elif recipient.mail is not None:
        _mail(recipient.mail, title, lines)


def _post(url: str, title: str, lines: Sequence[str]) -> None:
    """Post JSON to a webhook. Slack, Mattermost and others show `text`; `title` and `lines` are for programs."""
    body = json.dumps({"text": "\n".join((title, *lines)), "title": title, "lines": list(lines)}).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_LONGEST_REQUEST):  # night.json allows only http and https
            pass
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise SetupError(f"The webhook {url} can't be reached: {reason}.") from error


def _mail(address: str, title: str, lines: Sequence[str]) -> None:
    message = EmailMessage()
    message["To"], message["Subject"] = address, title
    message.set_content("\n".join(lines) + "\n")
    try:
        subprocess.run(
            [_SENDMAIL, "-t", "-i"], input=message.as_bytes(), check=True, capture_output=True, timeout=_LONGEST_REQUEST
        )
    except FileNotFoundError as error:
        raise SetupError(f"Mail to {address} can't be sent: this host has no {_SENDMAIL}.") from error
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"Mail to {address} can't be sent: sendmail failed.") from error


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
    """The newest record of each night that has one, by its name. Raises UsageError as `load_records` does."""
    nights = {path.name: load_records(path) for path in sorted((logs / _FOLDER).glob("*/"))}
    return {name: records[0] for name, records in nights.items() if records}


# Frees disk space: the oldest run loses its captures first, then its other evidence. Results stay as long as the
# run.

_KEPT = {"result.json"}  # files of a job's folder that stay as long as the run


def keep_within(nights: list[list[Path]], keep: Keep) -> Counter[str]:
    """Remove evidence that `keep` doesn't allow. `nights`: folders of runs by night, the newest night first. A run that
    another process uses stays unchanged. Returns the removed bytes, `size`, and the number of runs that lost their
    `captures`, their other `evidence`, or everything, `runs`."""
    freed: Counter[str] = Counter()

    def free(path: Path, kind: str) -> int:
        size = _locked(path, _REMOVE[kind])
        freed.update({"size": size, kind: int(size > 0)})
        return size

    for age, folders in enumerate(nights):
        for path in folders:
            if keep.runs is not None and age >= keep.runs:
                free(path, "runs")
            elif age >= keep.evidence:
                free(path, "evidence")
            elif age >= keep.captures:
                free(path, "captures")
    if keep.disk is None:
        return freed
    oldest_first = [path for folders in reversed(nights) for path in folders if path.is_dir()]
    left = size_of(oldest_first)
    for path in oldest_first:
        for kind in ("captures", "evidence"):
            if left <= keep.disk:
                return freed
            left -= free(path, kind)
    return freed


def size_of(folders: Iterable[Path]) -> int:
    """Bytes on disk of all files in these folders. A symbolic link counts by its own size."""
    return sum(entry.lstat().st_blocks * 512 for folder in folders for entry in folder.rglob("*") if not entry.is_dir())


def _locked(path: Path, remove: Callable[[RunFolder], None]) -> int:
    """Call `remove` on the run. Returns the freed bytes; 0 when there is no run, or another process uses it."""
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
        if result is not None:
            folder.remove_captures(result)


def _remove_evidence(folder: RunFolder) -> None:
    _remove_captures(folder)
    for job in _jobs(folder):
        for entry in folder.artifacts(job).folder.iterdir():
            if entry.name not in _KEPT:
                remove_tree(folder.path, folder.run.folder(job) / entry.name)


_REMOVE: Mapping[str, Callable[[RunFolder], None]] = {
    "captures": _remove_captures,
    "evidence": _remove_evidence,
    "runs": lambda folder: remove_tree(folder.path.parent, folder.path.name),
}


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


# One night, stage by stage: images, runs, disk, site, publication, news. The result of every stage is stored.

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
                self.say(f"Night {record.stamp} continues after {format_count(len(record.stages), 'stage')}.")
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
        for number, recipient in enumerate(self.night.tell, 1):
            if recipient.when != "always" and not any(run_news.changed for run_news in news_of_runs):
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
        if self.night.before.build:
            yield "build", lambda: self._command(["build", *self.night.before.build, "--yes"], log, end)
        if self.night.before.pull:
            yield "pull", lambda: self._command(["build", "--pull", *self.night.before.pull, "--yes"], log, end)
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
        if not freed["size"]:
            return NightState.DONE, ""
        return NightState.DONE, (
            f"freed {format_size(freed['size'])}: captures of {format_count(freed['captures'], 'run')}, other evidence "
            f"of {format_count(freed['evidence'], 'run')}, {format_count(freed['runs'], 'whole run')}"
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
