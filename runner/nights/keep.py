"""Frees disk space: the oldest run loses its captures first, then its other evidence. Results stay as long as the
run."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runner.errors import UsageError
from runner.files.safe_files import beneath, remove_tree
from runner.model.job import Job
from runner.nights.plan import Keep
from runner.store import RunFolder

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
