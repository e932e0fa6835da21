"""Runs on disk: `run.json`, one `result.json` per job, so written that a kill at any instant loses at most one job.

A run folder is self-contained; runs merge by copying job folders. `result.json` carries a schema number; older ones are
migrated when they are read. This module knows no test case, so old results load after a case is gone.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from runner.errors import UsageError
from runner.model.artifacts import Artifacts, Evidence
from runner.model.job import Job
from runner.model.result import RESULT_SCHEMA, Result
from runner.model.run import RUN_SCHEMA, Run
from runner.stats.modes import Modes

_RUN = TypeAdapter(Run)
_RESULT = TypeAdapter(Result)
_EVIDENCE = TypeAdapter(Evidence)

# schema number → function that turns such a document into the next schema
MIGRATIONS: dict[str, dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {"run": {}, "result": {}}
_CURRENT = {"run": RUN_SCHEMA, "result": RESULT_SCHEMA}


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either the old content or all of the new one, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def parse(text: bytes) -> Any:
    """JSON as Python's values; of long lists of numbers in half the time that `json` takes. Raises ValueError."""
    return from_json(text)


def to_json(value: object, adapter: TypeAdapter[Any]) -> bytes:
    """`value` as JSON with sorted keys and one field a line, so that two results can be compared by diff."""
    document = adapter.dump_python(value, mode="json")
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _load(path: Path, kind: str, adapter: TypeAdapter[Any]) -> Any:
    try:
        text = path.read_bytes()
        if f'\n "schema": {_CURRENT[kind]},\n'.encode() in text:  # as `to_json` writes it
            with suppress(ValueError):  # of half a character that an endpoint wrote, and of all that is told below
                return adapter.validate_json(text)  # in a third of the time
        document = json.loads(text)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}): restore it, or delete it and run again.") from error
    if not isinstance(document, dict) or not isinstance(document.get("schema"), int):
        raise UsageError(f"{path} has no schema number: it isn't a {kind} file of bentpipe.")
    schema, current = document["schema"], _CURRENT[kind]
    if schema > current:
        raise UsageError(f"{path} has schema {schema}, this bentpipe reads up to {current}: use a newer bentpipe.")
    while document["schema"] < current:
        document = MIGRATIONS[kind][document["schema"]](document)
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}, field '{where}': {first['msg']}.") from error


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """What can only be said of all iterations of a pair in a case together. `modes` of their goodputs, in bit/s."""

    server: str
    client: str
    case: str
    protocol: str  # ALPN that most of them were asked to speak
    successes: int
    attempts: int
    median_iteration: int | None
    modes: Modes | None  # None: their goodputs don't fall into two groups, or there are fewer than 8


@dataclass(frozen=True, kw_only=True)
class RunDocument:
    """A whole run in one file: what the site offers for download."""

    schema: int = RUN_SCHEMA
    run: Run
    cells: list[CellRecord]
    results: list[Result]


_DOCUMENT = TypeAdapter(RunDocument)


def run_document(folder: "RunFolder", cells: Sequence[CellRecord]) -> bytes:
    """Everything of a run as one JSON document, in the terms of `run.json` and `result.json`."""
    document = RunDocument(run=folder.run, cells=list(cells), results=list(folder.results().values()))
    # In one line, which json writes many times faster; unlike pydantic it takes half a character of an endpoint.
    return json.dumps(_DOCUMENT.dump_python(document, mode="json"), sort_keys=True, allow_nan=False).encode() + b"\n"


def run_document_schema() -> bytes:
    """Its JSON Schema."""
    return json.dumps(_DOCUMENT.json_schema(), indent=1).encode() + b"\n"


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the files that bentpipe writes, by file name."""
    adapters: dict[str, TypeAdapter[Any]] = {"run.json": _RUN, "result.json": _RESULT, "evidence.json": _EVIDENCE}
    return {name: adapter.json_schema() for name, adapter in adapters.items()}


class RunFolder:
    """One run on disk. Construct with `create` or `open`."""

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.run = run

    @classmethod
    def create(cls, path: Path, run: Run) -> "RunFolder":
        """Write `run.json`. Raises UsageError when the folder already holds a run, or can't be written."""
        if (path / "run.json").exists():
            raise UsageError(f"{path} already holds a run: resume it with `--run {path.name}`, or choose another name.")
        folder = cls(path, run)
        try:
            folder.save_run(run)
        except OSError as error:
            raise UsageError(f"The run folder {path} can't be written: {error.strerror}.") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Raises UsageError when `path` holds no run, or one that can't be read."""
        try:
            return cls(path, _load(path / "run.json", "run", _RUN))
        except FileNotFoundError as error:
            raise UsageError(f"{path} holds no run: there is no run.json in it.") from error

    @property
    def name(self) -> str:
        return self.path.name

    def save_run(self, run: Run) -> None:
        """Replace `run.json`: image digests of stacks that joined, a longer plan."""
        write_atomically(self.path / "run.json", to_json(run, _RUN))
        self.run = run

    def artifacts(self, job: Job) -> Artifacts:
        """The job's files; none of them need exist."""
        return Artifacts(self.path / job.path)

    def result(self, job: Job) -> Result | None:
        """The stored result, None when the job isn't done."""
        try:
            result: Result = _load(self.artifacts(job).result, "result", _RESULT)
        except FileNotFoundError:
            return None
        return result

    def results(self) -> dict[Job, Result]:
        """Every stored result, in the order of server, client, case, iteration; whatever the plan says."""
        found = {}
        for path in self.path.glob("*_*/*/*/result.json"):
            result: Result = _load(path, "result", _RESULT)
            job = Job(server=result.server, client=result.client, case=result.case, iteration=result.iteration)
            found[job] = result
        return dict(sorted(found.items()))

    def save_result(self, result: Result) -> None:
        """Make the job done. The last thing that is written of a job."""
        job = Job(server=result.server, client=result.client, case=result.case, iteration=result.iteration)
        write_atomically(self.artifacts(job).result, to_json(result, _RESULT))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one runner. Raises UsageError when another one has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise UsageError(
                    f"Another runner (process {owner}) works on {self.path}: wait for it, or choose another --run."
                ) from error
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def load_evidence(artifacts: Artifacts) -> Evidence | None:
    """The job's evidence, None when it has none or it can't be read (the judge then says so)."""
    try:
        evidence: Evidence = _EVIDENCE.validate_json(artifacts.evidence.read_bytes())
    except (OSError, ValueError):
        return None
    return evidence


def save_evidence(artifacts: Artifacts, evidence: Evidence) -> None:
    """Write `evidence.json`, the last file of a job that deploy and collect leave."""
    write_atomically(artifacts.evidence, to_json(evidence, _EVIDENCE))


def find_runs(logs: Path) -> list[RunFolder]:
    """The runs below `logs`, newest first. A folder whose run.json can't be read is an error, not left out."""
    folders = [RunFolder.open(path.parent) for path in logs.glob("*/run.json")]
    return sorted(folders, key=lambda folder: folder.run.started_unix_s, reverse=True)
