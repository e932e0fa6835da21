"""Runs on disk: `run.json`, and one `result.json` per job. A kill at any moment loses at most one job.

A run folder is self-contained; runs merge by copying job folders. `result.json` has a schema number, and results with
an older schema are migrated when they are read. This module knows no test case. So old results load even when their
case was removed from bentpipe.
"""

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from runner.errors import UsageError
from runner.files import beneath, foreign_entry, locked_folder, not_json, read_regular, without_collection, wrong_field
from runner.model.result import DEFINITIONS, RESULT_SCHEMA, Artifacts, Evidence, JobVerdict, Result, Sample
from runner.model.run import (
    RUN_SCHEMA,
    VIRTUAL,
    CaseRecord,
    ClientKind,
    Job,
    PaceGroup,
    Run,
    core_seconds,
    estimate,
    host_facts,
    iteration_problem,
    name_problem,
)
from runner.paths import LOGS

# Converts documents of an older schema into documents of the next schema. Pure.
#
# Schema 1 had pairs and paths. Schema 2 has server × client × via × link. Schema 3 (results and evidence) renames a
# code. In schema 4 (results) the role of a finding is always an endpoint at fault.

Document = dict[str, Any]

_OWN_LINK = "geo"  # the link of cases that were workloads over paths
_CASES = {  # workload → case
    "goodput": "download",
    "goodput-ipv6": "download-ipv6",
    "h1": "download-h1",
    "h2": "download-h2",
    "h3": "download-h3",
}
_CODES_2 = {"path-not-ready": "box-not-ready"}
_OBSERVED_3 = frozenset({"client-exit", "timeout", "wrong-alpn"})
_ORIGIN, _DOWNLOADER, _BROWSER = "origin", "downloader", "browser"


def run_1(document: Document) -> Document:
    """Convert `run.json`. Paths become middleboxes, workloads become cases, and the jobs keep their folders."""
    named = {old: _case_1(case) for old, case in document["cases"].items()}
    migrated = {**document, "schema": 2, "cases": {case["name"]: case for case in named.values()}}
    paths = migrated.pop("paths", {})
    if not paths:
        return migrated
    migrated["vias"] = document["clients"]
    kinds = {case["client"] for case in named.values()}
    migrated["clients"] = [kind for kind in (_DOWNLOADER, _BROWSER) if kind in kinds]
    migrated["middleboxes"] = {name: _middlebox(entry) for name, entry in paths.items()}
    origin = document["implementations"].get(_ORIGIN)
    if origin is not None and _DOWNLOADER in kinds:  # the same image was client and server
        migrated["implementations"] = {**document["implementations"], _DOWNLOADER: {**origin, "name": _DOWNLOADER}}
    cells = {
        f"{_ORIGIN}_{via}/{old}": f"{_ORIGIN}_{case['client']}+{via}/{case['name']}"
        for via in document["clients"]
        for old, case in named.items()
    }
    migrated["old_folders"] = {new: old for old, new in cells.items()}
    migrated["order"] = [_job(job, cells) for job in document["order"]]
    return migrated


def result_1(document: Document, old_folders: Mapping[str, str]) -> Document:
    """Convert `result.json` of a run with these `Run.old_folders`. Raises KeyError for no cell of the run."""
    if old_folders:
        document = _job(document, {old: new for new, old in old_folders.items()})
    if document.get("crossing"):
        crossing = dict(document["crossing"])
        document = {**document, "page": crossing.pop("page", None), "crossing": crossing}
    return {**document, "schema": 2}


def result_2(document: Document) -> Document:
    """Convert `result.json`: findings get their present codes."""
    findings = [_code_2(finding) for finding in document.get("findings", [])]
    return {**document, "schema": 3, "findings": findings}


def result_3(document: Document) -> Document:
    """Convert `result.json`: findings that only say at which endpoint a failure was observed name no role."""
    findings = [
        {**finding, "role": ""} if finding["code"] in _OBSERVED_3 else finding
        for finding in document.get("findings", [])
    ]
    return {**document, "schema": 4, "findings": findings}


def _code_2(fields: Document) -> Document:
    """A finding, or an error of the harness, with its present code."""
    return {**fields, "code": _CODES_2.get(fields["code"], fields["code"])}


def evidence_1(document: Document) -> Document:
    """Convert `evidence.json`: sides become boxes, and the path becomes a middlebox."""
    migrated = {**document, "schema": 2}
    migrated["boxes"] = migrated.pop("sides", {})
    path = migrated.pop("path", None)
    if path:
        migrated |= {"via": _middlebox(path["entry"]), "content_seed": path["seed"]}
    return migrated


def evidence_2(document: Document) -> Document:
    """Convert `evidence.json`: the error of the harness gets its present code."""
    error = document.get("error")
    return {**document, "schema": 3, "error": _code_2(error) if error else {}}


def _job(fields: Document, cells: Mapping[str, str]) -> Document:
    """The document with the axes of schema 2. `cells`: the new name of each cell, by its old name."""
    pair, case_link = cells[f"{fields['server']}_{fields['client']}/{fields['case']}"].split("/")
    client, _, via = pair.removeprefix(f"{_ORIGIN}_").partition("+")
    case, _, link = case_link.partition("@")
    return {**fields, "client": client, "via": via, "case": case, "link": link}


def _middlebox(path: Document) -> Document:
    middlebox = dict(path)
    if "sides" in middlebox:
        middlebox["boxes"] = middlebox.pop("sides")
    return middlebox


def _case_1(case: Document) -> Document:
    """A case with its link as one field. A case that was a workload gets a new name, without its own default link."""
    record = dict(case)
    real, workload = record.pop("real_link", None), record.pop("workload", None)
    segment = {name: record.pop(name) for name in ("forward", "return_", "impairments") if name in record}
    link: Document = {"name": record.pop("scenario"), "segments": [segment], "real": real}
    record |= {"case": case["name"], "link": link}
    if workload is None:
        return record
    name, default_link = str(workload["name"]), workload["link"] == _OWN_LINK
    question = _CASES.get(name, name) + case["abbreviation"].removeprefix(name)
    ground = {"name": "ground", "forward": workload["ground_forward"], "return_": workload["ground_return"]}
    link |= {"name": workload["link"], "note": workload.get("note", "")}
    link["segments"] = [{**segment, "name": "satellite"}, ground]
    label = question if default_link else f"{question}@{workload['link']}"
    return record | {
        "name": label,
        "case": question,
        "declared": _CASES.get(name, name),
        "abbreviation": label,
        "client": _BROWSER if workload["page"] else _DOWNLOADER,
        "alpn": workload["protocol"],
        "encrypted": workload["encrypted"],
        "origins": workload.get("origins", 1),
        "warm": workload.get("warm", False),
    }


_Stored = TypeVar("_Stored", bound=JobVerdict)
_RUN = TypeAdapter(Run)
_RESULT = TypeAdapter(Result)
_VERDICT = TypeAdapter(JobVerdict)
_EVIDENCE = TypeAdapter(Evidence)

# schema number → function that migrates a document with this schema to the next schema
Migrations = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]
RUN_MIGRATIONS: Migrations = {1: run_1}
EVIDENCE_MIGRATIONS: Migrations = {1: evidence_1, 2: evidence_2}
_CURRENT = {"run": RUN_SCHEMA, "result": RESULT_SCHEMA}
_LARGEST_FLOAT = 1e16
_LATEST = 253_402_300_800  # s since 1970: the year 10000; Python's dates end before it
_LARGEST_NUMBER = 2**63  # tables, numpy and other programs read integers of 64 bits
# Texts of numbers that bentpipe never writes. A file without them needs no check of every number, which is slow. The
# pattern is slow, too. A copy of the file, in which every digit is a 0 and every character before a number is a space,
# has one of the marks wherever the pattern could match: only such a file is searched for the pattern.
_ODD_NUMBER = re.compile(rb"NaN|Infinity|(?<![\w.])[0-9][0-9.]*[eE]\+?[0-9]{2}|(?<![.0-9])[0-9]{18}")
_ODD_MARKS = (b"NaN", b"Infinity", b"0e00", b"0e+00", b" " + b"0" * 18)
_ZEROS = bytes.maketrans(b"123456789E\t\n\r:,[-", b"000000000e       ")


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` contains either the old content or all of the new content, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:  # never through a symbolic link
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:  # such as a full disk, where what was written takes room that others need
        error.filename, error.filename2 = str(path), str(temporary)  # the user knows only the first
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def parse(text: bytes) -> Any:
    """JSON as Python values; twice as fast as `json` for long lists of numbers. Raises ValueError. NaN, infinite
    numbers, numbers beyond 64 bits and very deep nesting are refused."""
    document = from_json(text, allow_inf_nan=False)
    if _odd_number(text):
        check_numbers(document)
    return document


def check_numbers(document: object) -> None:
    """Raises ValueError when a parsed JSON document contains a number that no file of bentpipe can have."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, float) and not abs(value) < _LARGEST_FLOAT:  # also true for NaN
            raise ValueError("a number is infinite, or larger than any measurement")
        elif isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
            raise ValueError("a number doesn't fit into 64 bits")


def to_json(value: object, adapter: TypeAdapter[Any]) -> bytes:
    """`value` as JSON with sorted keys and one field per line, so that diff can compare two results."""
    document = adapter.dump_python(value, mode="json")
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _odd_number(text: bytes) -> bool:
    marked = b" " + text.translate(_ZEROS)
    return any(mark in marked for mark in _ODD_MARKS) and _ODD_NUMBER.search(text) is not None


def _stamp(path: Path) -> tuple[int, int] | None:
    """Differs for each file that was written to `path`; None without a file."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


def _load(path: Path | str, kind: str, adapter: TypeAdapter[Any], steps: Migrations) -> Any:
    try:
        text = read_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    fix = "choose another --run" if kind == "run" else "delete it and run again"
    return _read_document(text, str(path), kind, adapter, steps, fix=f"Restore it, or {fix}.")


def _read_document(text: bytes, path: str, kind: str, adapter: TypeAdapter[Any], steps: Migrations, *, fix: str) -> Any:
    """The value in a JSON document. `path` names the document in errors, which end with `fix`. Raises UsageError."""
    try:
        # The usual file: `to_json` wrote it, and its numbers are plain.
        if f'\n "schema": {_CURRENT[kind]},\n'.encode() in text and not _odd_number(text):
            with suppress(ValueError):  # the code below accepts lone surrogates of endpoints, and reports errors
                return adapter.validate_json(text)  # takes a third of the time
        document = _parse_all(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {not_json(error)}. {fix}") from error
    if not isinstance(document, dict) or type(document.get("schema")) is not int:
        raise UsageError(f"{path} has no schema number: it isn't a {kind} file of bentpipe. {fix}")
    schema, current = document["schema"], _CURRENT[kind]
    if schema > current:
        raise UsageError(f"{path} has schema {schema}, this bentpipe reads up to {current}: use a newer bentpipe.")
    while (number := document["schema"]) < current:
        if number not in steps:
            raise UsageError(
                f"{path} has schema {number}, this bentpipe reads schema {min(steps, default=current)} and later."
            )
        try:
            document = steps[number](document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            field = f"the field {error}" if isinstance(error, KeyError) else "a field"
            raise UsageError(
                f"{path} has schema {number}, but {field} of this schema is missing or has another form. {fix}"
            ) from error
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        raise UsageError(f"{path}, {wrong_field(error.errors(), _form(adapter))} {fix}") from error


@cache
def _form(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    return adapter.json_schema()  # takes half a second; a run may have thousands of damaged results


def _parse_all(text: bytes) -> Any:
    """Like `parse`, but also accepts lone surrogates that an endpoint wrote, which the faster parser refuses."""
    try:
        return parse(text)
    except ValueError:
        try:
            document = json.loads(text)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        check_numbers(document)
        return document


def _check_run(path: str, run: Run) -> None:
    """Raises UsageError when a name can't be a folder name, or when parts of the document contradict each other."""
    named: list[tuple[str, str]] = [("name", run.name)]
    named += [(f"clients[{index}]", name) for index, name in enumerate(run.clients)]
    named += [(f"servers[{index}]", name) for index, name in enumerate(run.servers)]
    for field, entries in (("cases", run.cases), ("implementations", run.implementations)):
        for key, entry in entries.items():
            named.append((f"{field}.{key}", key))
            if entry.name != key:
                raise UsageError(f"{path}, field '{field}.{key}.name': expected '{key}', found {_quoted(entry.name)}.")
    if not 0 <= run.started_unix_s < _LATEST:
        raise UsageError(f"{path}, field 'started_unix_s': {run.started_unix_s:g} is no time of a run.")
    for field, name in named:
        if problem := name_problem(name):
            raise UsageError(f"{path}, field {_quoted(field)}: {_quoted(name)} can't be a name: {problem}.")
    for name, case in run.cases.items():
        if not {"client", "server"} <= case.wire_names.keys():
            raise UsageError(
                f"{path}, field 'cases.{name}.wire_names': expected a name for the client and for the server."
            )
        if problem := case.link.problem:
            raise UsageError(f"{path}, field 'cases.{name}.link.segments': {problem}.")
    for name in (*run.vias, *(job.via for job in run.order)):
        if name and name not in run.middleboxes:
            raise UsageError(f"{path}, field 'middleboxes': {_quoted(name)} is missing, but a via or a job names it.")
    for index, job in enumerate(run.order):
        if problem := _job_problem(job):
            raise UsageError(f"{path}, field 'order[{index}]': {problem}.")
        if job.case_link not in run.cases:
            raise UsageError(f"{path}, field 'order[{index}].case': {_quoted(job.case_link)} is not in 'cases'.")


def _check_result(path: str, result: JobVerdict) -> Job:
    """The job of a result. Raises UsageError when a result contains a name, a time or a number that no job can have."""
    job = result.job
    if problem := _job_problem(job):
        raise UsageError(f"{path}: {problem}.")
    if not (result.started_unix_s >= 0 and result.wall_s >= 0 and result.started_unix_s + result.wall_s < _LATEST):
        raise UsageError(f"{path}, field 'started_unix_s': {result.started_unix_s:g} is no time of a job.")
    if problem := _sample_problem(result.sample):
        raise UsageError(f"{path}, field 'sample.{problem}': it must be more than 0.")
    return job


def run_line(run: Run) -> bytes:
    """A run as one line of JSON, without the line's end."""
    return json.dumps(_RUN.dump_python(run, mode="json"), sort_keys=True, allow_nan=False).encode()


def result_line(result: Result) -> bytes:
    """A result as one line of JSON, without the line's end."""
    return json.dumps(_RESULT.dump_python(result, mode="json"), sort_keys=True, allow_nan=False).encode()


_COPY = "Export the run again, and copy the file."


def read_run(text: bytes, where: str) -> Run:
    """The run in one line of a file of results. `where` names the line in errors. Raises UsageError."""
    run: Run = _read_document(text, where, "run", _RUN, {}, fix=_COPY)
    _check_run(where, run)
    return run


def read_result(text: bytes, where: str) -> Result:
    """The result in one line of a file of results. `where` names the line in errors. Raises UsageError."""
    result: Result = _read_document(text, where, "result", _RESULT, {}, fix=_COPY)
    _check_result(where, result)
    return result


def _job_problem(job: Job) -> str | None:
    for what in ("server", "client", "via", "case", "link"):
        name = getattr(job, what)
        if (name or what not in ("via", "link")) and (problem := name_problem(name)):
            return f"the {what} {_quoted(name)} can't be a name: {problem}"
    return iteration_problem(job.iteration)


def _sample_problem(sample: Sample | None) -> str | None:
    """The first number that is not positive, which rankings take the logarithm of; None when there is none."""
    if sample is None:
        return None
    numbers = {"ttlb": sample.ttlb, "goodput": sample.goodput, "throughput": sample.throughput}
    return next((name for name, value in numbers.items() if value is not None and value <= 0), None)


def _quoted(text: str) -> str:
    shown = text if len(text) <= 80 else f"{text[:80]}…"
    return f"'{shown}'" if shown.isprintable() else ascii(shown)


def schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the files that bentpipe writes, by file name."""
    adapters: dict[str, TypeAdapter[Any]] = {"run.json": _RUN, "result.json": _RESULT, "evidence.json": _EVIDENCE}
    return {name: adapter.json_schema() for name, adapter in adapters.items()}


class RunFolder:
    """One run on disk. Construct with `create` or `open`. The path of a job's folder identifies the job: a
    `result.json` that names another job is refused. Paths through symbolic links are refused, too. A result that can't
    be read is left out, and `skip` is called with a sentence about it. Without `skip`, such a result is an error."""

    def __init__(self, path: Path, run: Run, skip: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.run = run
        self.skip = skip
        self._stamp: tuple[int, int] | None = None  # of the `run.json` that was read

    @classmethod
    def create(cls, path: Path, run: Run) -> "RunFolder":
        """Write `run.json`. Raises UsageError when the folder already contains a run, or can't be written."""
        if (path / "run.json").exists():
            raise UsageError(
                f"{path} already contains a run: resume it with `--run {path.name}`, or choose another name."
            )
        folder = cls(path, run)
        try:
            folder.save_run(run)
        except OSError as error:
            raise UsageError(f"The run folder {path} can't be written: {error.strerror}.") from error
        return folder

    @classmethod
    def open(cls, path: Path, skip: Callable[[str], None] | None = None) -> "RunFolder":
        """Open a stored run. Raises UsageError when `path` contains no run, or when the run can't be read."""
        path = path if name_problem(path.name) is None else path.resolve()
        stamp = _stamp(path / "run.json")
        if problem := name_problem(path.name):
            raise UsageError(f"{_quoted(str(path))} can't contain a run, because {problem}: rename the folder.")
        try:
            run = _load(path / "run.json", "run", _RUN, RUN_MIGRATIONS)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{path} contains no run: there is no run.json in it.") from error
        _check_run(str(path / "run.json"), run)
        folder = cls(path, run, skip)
        folder._stamp = stamp
        return folder

    @classmethod
    def stored(cls, path: Path) -> "RunFolder | None":
        """The run in the folder `path`; None when there is none yet. Raises UsageError when it can't be read, or when
        it has lost its `run.json`: the command would begin a run of the whole matrix over the results."""
        if (path / "run.json").is_file():
            return cls.open(path)
        if any(path.glob("*/*/*/result.json")):
            raise UsageError(f"{path} has results, but no run.json: restore it, or choose another --run.")
        return None

    def refreshed(self) -> "RunFolder":
        """This folder, or a new object when somebody has replaced `run.json` since it was read."""
        return self if self._stamp == _stamp(self.path / "run.json") else RunFolder.open(self.path, self.skip)

    @property
    def name(self) -> str:
        return self.path.name

    def save_run(self, run: Run) -> None:
        """Replace `run.json`, for example to add image digests of new stacks or more jobs."""
        write_atomically(self.path / "run.json", to_json(run, _RUN))
        self.run = run

    def artifacts(self, job: Job) -> Artifacts:
        """The job's files, whether they exist or not."""
        return Artifacts(self.path / self.run.folder(job))

    def result(self, job: Job) -> Result | None:
        """The stored result; None when the job isn't done. Raises UsageError when the result can't be read."""
        try:
            return self.result_in(self.run.folder(job))
        except FileNotFoundError:
            return None

    def result_in(self, folder: Path) -> Result:
        """The result in this folder of the run. Raises FileNotFoundError, and UsageError when it can't be read."""
        return self._read(f"{folder}/result.json", _RESULT)[1]

    def results(self) -> dict[Job, Result]:
        """Every stored result, also of jobs that are not planned. Sorted by job."""
        return self._read_all(_RESULT)

    def verdicts(self) -> dict[Job, JobVerdict]:
        """As `results`, without their other parts, which are not checked either."""
        return self._read_all(_VERDICT)

    def _read_all(self, adapter: TypeAdapter[_Stored]) -> dict[Job, _Stored]:
        results = {}
        with without_collection():
            for relative, linked in self._result_files():
                try:
                    job, result = self._read(relative, adapter, linked=linked)
                except FileNotFoundError:  # the job isn't done
                    continue
                except UsageError as error:
                    if self.skip is None:
                        raise
                    self.skip(str(error))
                    continue
                results[job] = result
            return dict(sorted(results.items()))

    def _result_files(self) -> Iterator[tuple[str, bool]]:
        """The place of each `result.json`, relative to the run's folder, and whether symbolic links lead to it."""
        for pair in _folders(self.path):
            for case in _folders(pair) if "_" in pair.name else ():
                for iteration in _folders(case):
                    linked = pair.is_symlink() or case.is_symlink() or iteration.is_symlink()
                    yield f"{pair.name}/{case.name}/{iteration.name}/result.json", linked

    def _read(self, relative: str, adapter: TypeAdapter[_Stored], *, linked: bool = True) -> tuple[Job, _Stored]:
        """The result in the file `relative` and the job of its folder. `linked`: a symbolic link may lead to the file.
        Raises FileNotFoundError, UsageError."""
        path = str(beneath(self.path, relative)) if linked else f"{self.path}/{relative}"
        steps = {
            1: lambda document: result_1(document, self.run.old_folders),
            2: result_2,
            3: result_3,
        }
        result: _Stored = _load(path, "result", adapter, steps)
        job = _check_result(path, result)
        if f"{self.run.folder_name(job)}/result.json" != relative:
            raise UsageError(
                f"{path} is for the job {_quoted(str(job))}, but its folder belongs to another job: move or delete it."
            )
        return job, self._completed(result)

    def _completed(self, result: _Stored) -> _Stored:
        """The result. Its sample gets the numbers that older definitions lacked, if they follow from stored numbers."""
        case, sample = self.run.cases.get(result.job.case_link), result.sample
        if case is None or sample is None or sample.definitions >= DEFINITIONS:
            return result
        if case.client is not ClientKind.STACK:  # older definitions called their throughput goodput
            sample = replace(sample, definitions=DEFINITIONS, goodput=None, efficiency=None)
            return replace(result, sample=sample if case.page else sample.completed(case.forward.data_rate))
        return replace(result, sample=sample.completed(case.forward.data_rate))

    def save_result(self, result: Result) -> None:
        """Write `result.json`; with it, the job is done. Raises UsageError when the job's path leads out of the run."""
        job = result.job
        if problem := _job_problem(job):
            raise UsageError(f"{self.path}: {problem}.")
        document = to_json(result, _RESULT)
        write_atomically(beneath(self.path, self.run.folder(job) / "result.json"), document)

    def remove_captures(self, result: Result) -> None:
        """Remove the captures of a job; its result says that they are not kept."""
        if result.captures_kept:
            self.save_result(replace(result, captures_kept=False))
        artifacts = self.artifacts(result.job)
        for capture in artifacts.captures:
            beneath(artifacts.folder, capture.relative_to(artifacts.folder)).unlink(missing_ok=True)

    def own(self, job: Job) -> Artifacts:
        """Like `artifacts`. Raises UsageError when the job's folder contains anything but files and folders."""
        artifacts = Artifacts(beneath(self.path, self.run.folder(job)))
        if problem := foreign_entry(artifacts.folder):
            raise UsageError(
                f"{artifacts.folder}: {problem}; bentpipe never makes this, so it does not change the job."
            )
        return artifacts

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder for one runner. Raises UsageError when another runner has locked it."""
        return locked_folder(self.path)


@dataclass(frozen=True, kw_only=True)
class NamedRuns:
    """The runs that a call names. `path`: the folder of the run to begin, resume or extend. `stored`: this run as it is
    now; None when there is none yet. `source`: the run whose results are reused, and its name in the call."""

    path: Path
    stored: RunFolder | None
    source: RunFolder | None = None
    source_name: str = ""

    @classmethod
    def open(cls, name: str | None, reuse: str | None = None) -> "NamedRuns":
        """Open the runs of `--run` and `--reuse`. Raises UsageError as `RunFolder.stored` and `RunFolder.open` do."""
        path = run_path(name)
        stored, source = RunFolder.stored(path), None if reuse is None else RunFolder.open(run_path(reuse))
        return cls(path=path, stored=stored, source=source, source_name=reuse or "")

    @contextmanager
    def opened(
        self, new_run: Run, *, seed: int | None = None, widens: bool = True
    ) -> Iterator[tuple[RunFolder, tuple[Job, ...]]]:
        """Make, resume or extend the run, and lock its folder meanwhile. Yields the folder, and the jobs of `new_run`
        in the order of the run. Raises UsageError. `seed`: the seed that the run must have. `widens`: a stored run gets
        the jobs of `new_run` that it lacks."""
        path = self.path
        with RunFolder(path, new_run).locked():
            # Under the lock: another call may have made or extended the run meanwhile.
            folder = RunFolder.stored(path) if self.stored is None else self.stored.refreshed()
            if folder is None:
                folder = RunFolder.create(path, new_run)
            elif seed not in (None, folder.run.seed):
                raise UsageError(f"--seed {seed}: {path} began with seed {folder.run.seed}, and keeps it.")
            else:
                new_run = new_run if widens else no_wider(folder.run, new_run)
                extended = extend_run(folder, new_run)
                if extended != folder.run:
                    folder.save_run(extended)
            selected = set(new_run.order)
            yield folder, tuple(job for job in folder.run.order if job in selected)


def no_wider(stored: Run, selected: Run) -> Run:
    """`selected` without the jobs that the stored run lacks. A job of a new variant stays when the stored run has this
    job for the variant's stack or middlebox."""

    known = set(stored.order)
    base = {  # by name: each variant that the stored run lacks
        name: entry.variant_of for name, entry in selected.implementations.items() if name not in stored.implementations
    }

    def of_base(job: Job) -> Job:
        server, client, via = (base.get(name, name) for name in (job.server, job.client, job.via))
        return replace(job, server=server, client=client, via=via)

    new = [job for job in selected.order if base and not base.keys().isdisjoint((job.server, job.client, job.via))]
    added = {job for job in new if of_base(job) in known}
    return replace(selected, order=tuple(job for job in selected.order if job in known or job in added))


def extend_run(folder: RunFolder, selected: Run) -> Run:
    """The stored run with what `selected` adds. Raises UsageError when a part that both have is different."""
    stored = folder.run
    for name, case in selected.cases.items():
        if name in stored.cases and replace(case, iterations=0) != replace(stored.cases[name], iterations=0):
            raise UsageError(
                f"The case '{name}' has other parameters now than when {folder.path} began: start a new --run."
            )
    for name, entry in selected.implementations.items():
        before = stored.implementations.get(name)
        if before is not None and before.image_id != entry.image_id:
            raise UsageError(
                f"The image of {name} has changed since {folder.path} began "
                f"({before.image_id[:19]} → {entry.image_id[:19]}): start a new --run, or restore the image."
            )
    if stored.guest != selected.guest:
        raise UsageError(f"{folder.path} began with another CPU model: start a new --run, or leave out --cpu-model.")
    known = set(stored.order)
    for job in selected.order:
        if job in known and stored.protocol(job) != selected.protocol(job):
            raise UsageError(
                f"{job.client} and {job.server} would use {selected.protocol(job)} now, and used "
                f"{stored.protocol(job)} when {folder.path} began: start a new --run."
            )
    return replace(
        stored,
        clients=_union(stored.clients, selected.clients),
        servers=_union(stored.servers, selected.servers),
        cases={**selected.cases, **stored.cases},
        implementations={**stored.implementations, **selected.implementations},
        order=stored.order + tuple(job for job in selected.order if job not in known),
        protocols={**stored.protocols, **selected.protocols},
        vias=_union(stored.vias, selected.vias),
        middleboxes={**selected.middleboxes, **stored.middleboxes},
        clocks={  # a cell that the run has keeps its clock, so that no summary mixes both clocks
            **{name: clock for name, clock in selected.clocks.items() if name not in stored.cells},
            **stored.clocks,
        },
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _folders(path: "Path | os.DirEntry[str]") -> list["os.DirEntry[str]"]:
    """The folders in a folder, also behind symbolic links; none when the folder may not be read."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except (FileNotFoundError, PermissionError):
        return []


def load_evidence(artifacts: Artifacts) -> Evidence | None:
    """The job's evidence; None when it is missing or can't be read (the judge then reports that)."""
    try:
        document = _parse_all(read_regular(artifacts.evidence))
        while (step := EVIDENCE_MIGRATIONS.get(document["schema"])) is not None:
            document = step(document)
        evidence: Evidence = _EVIDENCE.validate_python(document)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return evidence if not evidence.error or {"code", "message"} <= evidence.error.keys() else None


def save_evidence(artifacts: Artifacts, evidence: Evidence) -> None:
    """Write `evidence.json`, the last file that the deployment of a job writes."""
    write_atomically(artifacts.evidence, to_json(evidence, _EVIDENCE))


_MEASURED = 12  # latest stored jobs of a stack in a role whose logs are measured
_LARGE = 100_000  # bytes of files from which on a stack's logs grow with the files
_USUAL, _USUAL_PER_BYTE = 100_000, 0.1  # bytes of an endpoint's logs that `estimate` counts, per job and per file byte


def own_logs(logs: Path, jobs: Iterable[Job], cases: Mapping[str, CaseRecord]) -> int:
    """The bytes of logs that the stacks of `jobs` will write beyond the usual, by their latest jobs below `logs`. A
    stack may write debug logs of many bytes for each packet. A stack without a stored job counts 0."""
    known: dict[tuple[str, str], tuple[float, float]] = {}
    total = 0.0
    for job in jobs:
        for role, stack in (("server", job.server), ("client", job.client)):
            if (stack, role) not in known:
                known[stack, role] = _log_sizes(logs, stack, role)
            base, per_byte = known[stack, role]
            size = sum(cases[job.case_link].file_sizes)
            total += max(0.0, base - _USUAL + (per_byte - _USUAL_PER_BYTE) * size)
    return round(total)


def _log_sizes(logs: Path, stack: str, role: str) -> tuple[float, float]:
    """Bytes of logs of a job with small files, and bytes of logs per byte of large files."""
    pattern = f"*/{stack}_*/*/*" if role == "server" else f"*/*_{stack}/*/*"
    folders = sorted(logs.glob(f"{pattern}/{role}"), key=lambda folder: folder.stat().st_mtime)[-_MEASURED:]
    written = [sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) for folder in folders]
    evidences = [load_evidence(Artifacts(folder.parent)) for folder in folders]
    files = [sum(file.size for file in evidence.files) if evidence is not None else 0 for evidence in evidences]
    base = float(min(written, default=0))
    rates = [(size - base) / whole for size, whole in zip(written, files, strict=True) if whole >= _LARGE]
    return base, sum(rates) / len(rates) if rates else 0.0


_PACED_LEAST = 3  # jobs that give their group a pace of its own
_PACED_MOST = 5  # jobs of a case and a server whose results are read


def guest_pace(logs: Path) -> dict[PaceGroup, float]:
    """The CPU time of jobs in virtual time on this host divided by their estimate, by case, by whether they have a
    middlebox, and by server; under an empty name, that of all cases or servers. Each comes from the newest run below
    `logs` that has enough of such jobs. Empty without such a run. The jobs' wall time would depend on the load of the
    host during that run."""
    host = host_facts()["name"]
    paces: dict[PaceGroup, float] = {}
    for folder in find_runs(logs, lambda _: None):
        run = folder.run
        if run.clock != VIRTUAL or run.host.get("name") != host:
            continue
        ended: dict[PaceGroup, list[Job]] = defaultdict(list)
        for job in run.order:
            group = job.case_link, bool(job.via), job.server
            if group not in paces and folder.artifacts(job).result.is_file():
                ended[group].append(job)
        took: dict[PaceGroup, list[tuple[float, float]]] = defaultdict(list)
        for (case, boxed, server), jobs in ended.items():
            for job in jobs[:: math.ceil(len(jobs) / _PACED_MOST)]:  # of all clients: the first ones may be fast
                try:
                    spent = float(_parse_all(read_regular(folder.artifacts(job).result))["cpu_s"])
                except (OSError, ValueError, KeyError, TypeError, UsageError):
                    continue
                if spent > 0:
                    pair = core_seconds(spent), estimate((job,), run.cases).guest_seconds
                    for group in ((case, boxed, server), (case, boxed, ""), ("", boxed, server), ("", boxed, "")):
                        took[group].append(pair)
        for group, pairs in took.items():
            if group not in paces and len(pairs) >= _PACED_LEAST:
                paces[group] = sum(spent for spent, _ in pairs) / sum(usual for _, usual in pairs)
    return paces


def find_runs(logs: Path, skip: Callable[[str], None] | None = None) -> list[RunFolder]:
    """The runs below `logs`, newest first. An unreadable run is an error; with `skip`, it is reported and left out."""
    folders = []
    for path in logs.glob("[!.]*/"):  # "*/run.json" would silently leave out a folder that refuses this user
        if os.access(path, os.X_OK) and not (path / "run.json").exists():
            continue
        try:
            folders.append(RunFolder.open(path, skip))
        except UsageError as error:
            if skip is None:
                raise
            skip(str(error))
    return sorted(folders, key=lambda folder: folder.run.started_unix_s, reverse=True)


def run_path(name: str | None) -> Path:
    """The folder of `--run NAME|DIR`. A name is that of a folder in logs/; the default is date and time."""
    if name is None:
        return LOGS / datetime.now().strftime("%Y-%m-%dT%H%M%S")
    return Path(name) if "/" in name or Path(name).is_dir() else LOGS / name


def stored_result(name: str | Path) -> tuple[RunFolder, Result]:
    """The result of the job `RUN/SERVER_CLIENT/CASE/ITERATION` of a run in logs/, or the job in a folder. Raises
    UsageError, also when its result can't be read."""
    path = Path(name) if Path(name).is_dir() else LOGS / name
    if not (path / "result.json").is_file():
        if (path / "evidence.json").is_file() and path.absolute().parent.name.startswith("hostile-"):
            raise UsageError(
                f"{path} has many flights of the hostile peer: hostile.md in {path.absolute().parents[2]} has the "
                "command that shows the packets of each that failed."
            )
        finished = min(path.glob("*/*/*/result.json"), default=None)  # the user wrote only the name of a run
        example = finished.parent.relative_to(path.parent) if finished else "demo/quinn_aioquic/sat/1"
        raise UsageError(
            f"There is no finished job in {path}: write RUN/SERVER_CLIENT/CASE/ITERATION, such as {example}."
        )
    here = path.absolute()
    beneath(here.parents[2], Path(*here.parts[-3:]))  # a symbolic link in a run may lead to a place outside the run
    folder = RunFolder.open(here.parents[2])
    return folder, folder.result_in(Path(*here.parts[-3:]))
