"""Reads night.json, installs the timer of the night, publishes the site, and sends the news."""

import getpass
import json
import re
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import time
from email.message import EmailMessage
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.error import URLError
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from runner.errors import SetupError, UsageError, first_line
from runner.model.run import name_problem, run_name
from runner.paths import COMMAND, HOME
from runner.plan.catalog import Whole, read_as
from runner.store.runs import write_atomically

# Reads and validates night.json. The result is a frozen `Night`.

NIGHT = HOME / "night.json"
NIGHT_SCHEMA = 1
_EXAMPLE = "night.example.json"
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_OWN = ("--run", "--yes", "-y", "--repeat-runs", "--reuse")  # options of `run` that only the night sets
_SCHEMES = ("http", "https")
_LOCAL = ("file", "local")  # a folder of this host is checked before it is replaced
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)

Seconds = Annotated[Whole, Field(gt=0, le=7 * 86_400, description="seconds")]
Nights = Annotated[Whole, Field(ge=1, le=10_000, description="nights")]


class _Run(BaseModel):
    """One run of each night. `options`: the options of `./bentpipe run`, as on its command line. `only_changed`: cells
    whose images, case and link have not changed take over the results of the night before and don't run again. `on`:
    the scheduler of workers."""

    model_config = ConfigDict(extra="forbid")
    name: str
    options: str
    only_changed: bool = False
    on: str | None = Field(default=None, description="tls://HOST:PORT, the scheduler of workers")


class _Before(BaseModel):
    """Images to make current before the runs: names as for `./bentpipe build`."""

    model_config = ConfigDict(extra="forbid")
    build: list[str] = []
    pull: list[str] = []


class _Keep(BaseModel):
    """How long evidence is kept. Results and `run.json` stay as long as the run.

    `captures`: nights for which captures are kept. `evidence`: nights for which all other files of jobs are kept.
    `runs`: nights after which a run is deleted; None: never. `disk`: bytes that the runs of all nights together may
    take.
    """

    model_config = ConfigDict(extra="forbid")
    captures: Nights = 14
    evidence: Nights = 60
    runs: Nights | None = None
    disk: Annotated[Whole, Field(gt=0, description="bytes")] | None = None


class _Tell(BaseModel):
    """A recipient of news: the URL of a webhook, or a mail address. `when`: always, or only when something changed."""

    model_config = ConfigDict(extra="forbid")
    webhook: str | None = None
    mail: str | None = None
    when: Literal["changed", "always"] = "changed"


class _File(BaseModel):
    """night.json."""

    model_config = ConfigDict(extra="forbid")
    schema_: Whole = Field(alias="schema", ge=1, le=NIGHT_SCHEMA)
    name: str = "night"
    at: str = Field(default="01:00", description="HH:MM, local time")
    longest: Seconds = 8 * 3600
    before: _Before = _Before()
    runs: list[_Run] = Field(min_length=1)
    keep: _Keep = _Keep()
    publish: list[str] = []
    tell: list[_Tell] = []


@dataclass(frozen=True, kw_only=True)
class NightRun:
    """One run of each night, with its arguments for `./bentpipe run`."""

    name: str
    arguments: tuple[str, ...]
    only_changed: bool = False  # cells without a change take over the results of the night before


@dataclass(frozen=True, kw_only=True)
class Keep:
    """The numbers of nights for which captures, other evidence and whole runs are kept, and the most bytes of all runs
    together (`disk`). None: no limit."""

    captures: int
    evidence: int
    runs: int | None
    disk: int | None


@dataclass(frozen=True, kw_only=True)
class Recipient:
    """A recipient of news: the URL of a webhook, or a mail address. `always`: also when nothing changed."""

    webhook: str | None
    mail: str | None
    always: bool


@dataclass(frozen=True, kw_only=True)
class Night:
    """The plan of each night. `at`: local time of the beginning; `longest`: seconds after which running jobs are
    ended."""

    name: str
    at: time
    longest: float
    build: tuple[str, ...]
    pull: tuple[str, ...]
    runs: tuple[NightRun, ...]
    keep: Keep
    publish: tuple[str, ...]
    recipients: tuple[Recipient, ...]

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


def night_schema() -> dict[str, Any]:
    """The JSON Schema of night.json."""
    return _File.model_json_schema(by_alias=True)


def load_night(path: Path = NIGHT) -> Night:
    """Load the plan. Raises UsageError with the file, the field and the expected value."""
    file = read_as(_File, path, missing=f"is missing: copy {_EXAMPLE} to it and describe your runs (docs/nights.md)")
    for name in (file.name, *(run.name for run in file.runs)):
        if problem := name_problem(name):
            raise UsageError(f"{path}: '{name}' can't be a name: {problem}.")
    if not _UNIT.fullmatch(file.name):
        raise UsageError(
            f"{path}: '{file.name}' can't be the name of a night, after which systemd's units are called: use letters, "
            "digits, '.', '-' and '_'."
        )
    for field, texts in (("before.build", file.before.build), ("before.pull", file.before.pull)):
        if options := [text for text in texts if text.startswith("-")]:
            raise UsageError(f"{path}, field '{field}': '{options[0]}' is an option: write names of stacks.")
    for target in file.publish:
        if problem := target_problem(target):
            raise UsageError(f"{path}, field 'publish': '{target}' {problem}.")
    names = [run.name for run in file.runs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{path}: two runs are called '{min(repeated)}': give one of them another name.")
    if not _TIME.fullmatch(file.at):
        raise UsageError(f"{path}, field 'at' is \"{file.at}\": write a time of day such as 01:30.")
    return Night(
        name=file.name,
        at=time.fromisoformat(file.at),
        longest=float(file.longest),
        build=tuple(file.before.build),
        pull=tuple(file.before.pull),
        runs=tuple(
            NightRun(name=run.name, arguments=_arguments(path, run), only_changed=run.only_changed) for run in file.runs
        ),
        keep=Keep(**file.keep.model_dump()),
        publish=tuple(file.publish),
        recipients=tuple(_recipient(path, number, entry) for number, entry in enumerate(file.tell, 1)),
    )


def _arguments(path: Path, run: _Run) -> tuple[str, ...]:
    try:
        arguments = shlex.split(run.options)
    except ValueError as error:
        raise UsageError(f"{path}, run '{run.name}': options: {error}: close the quotation.") from error
    for argument in arguments:
        if argument.partition("=")[0] in _OWN:
            raise UsageError(
                f"{path}, run '{run.name}': the night sets {argument.partition('=')[0]} itself: leave it out."
            )
    return (*arguments, "--on", run.on) if run.on else tuple(arguments)


def _recipient(path: Path, number: int, entry: _Tell) -> Recipient:
    if (entry.webhook is None) == (entry.mail is None):
        raise UsageError(f"{path}, field 'tell', entry {number}: name either a webhook or a mail address.")
    if entry.webhook is not None and urlsplit(entry.webhook).scheme not in _SCHEMES:
        raise UsageError(f"{path}, field 'tell', entry {number}: '{entry.webhook}' is not a URL: write https://HOST/….")
    if entry.mail is not None and ("@" not in entry.mail or any(map(str.isspace, entry.mail))):
        raise UsageError(f"{path}, field 'tell', entry {number}: '{entry.mail}' is not a mail address.")
    return Recipient(webhook=entry.webhook, mail=entry.mail, always=entry.when == "always")


# Files that start the night every day: a systemd service and timer, or a line of crontab(5).

SYSTEMD = Path("/etc/systemd/system")


def unit_names(night: Night) -> tuple[str, str]:
    """The names of service and timer."""
    return f"bentpipe-{night.name}.service", f"bentpipe-{night.name}.timer"


def service(night: Night, path: Path) -> str:
    """The service. Lanes need root's rights over namespaces and Docker; all other rights are taken away.
    `KillMode=mixed` sends SIGTERM only to the process of the night, which then ends its run. Remaining processes are
    killed afterwards.
    """
    return f"""[Unit]
Description=bentpipe: the night {night.name}
After=network-online.target docker.service
Wants=network-online.target

[Service]
Type=oneshot
User={getpass.getuser()}
WorkingDirectory={_specifiers(HOME)}
ExecStart={_quoted(COMMAND, command=True)} night run --file {_quoted(path.resolve(), command=True)}
TimeoutStartSec={int(night.longest) + 7200}
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
    """A word of a unit file (systemd.syntax, Quoting), in which systemd replaces nothing. `command`: for ExecStart, in
    which `$` begins the name of a variable."""
    text = _specifiers(path).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + (text.replace("$", "$$") if command else text) + '"'


def timer(night: Night) -> str:
    """The timer. When the host was off at the time of a night, `Persistent` starts the night later."""
    return f"""[Unit]
Description=bentpipe: begins the night {night.name}

[Timer]
OnCalendar=*-*-* {night.at:%H:%M}:00
Persistent=true

[Install]
WantedBy=timers.target
"""


def cron_line(night: Night, path: Path) -> str:
    """The line for `crontab -e`."""
    home, program, file = (shlex.quote(str(name)) for name in (HOME, COMMAND, path.resolve()))
    command = f"cd {home} && {program} night run --file {file}"
    return f"{night.at.minute} {night.at.hour} * * * {command} >/dev/null 2>&1".replace("%", r"\%")


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
    """Copy the finished site to `target`.

    `target`: a folder (`/var/www/bentpipe`); `HOST:PATH` for rsync; `git+URL#BRANCH`: the branch gets one commit,
    which replaces the last commit; any other URL goes to fsspec (`s3://BUCKET/PATH`). `work`: a folder for temporary
    files.
    Raises SetupError with one sentence.
    """
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
