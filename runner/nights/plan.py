"""Reads and validates night.json. The result is a frozen `Night`."""

import re
import shlex
from dataclasses import dataclass
from datetime import time
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from runner.config.catalog import Whole, read_as
from runner.errors import UsageError
from runner.model.names import name_problem
from runner.model.night import run_name
from runner.paths import ROOT

NIGHT = ROOT / "night.json"
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
