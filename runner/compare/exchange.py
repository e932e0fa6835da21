"""Results without their evidence: one compressed file with the plan and every result of a run.

The file is text in XZ format. Its first line is the run, each other line is a result, all in the terms of `run.json`
and `result.json`. A file may come from anywhere, so its lines are read one by one, up to limits, and validated like
files of a run folder.
"""

import lzma
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from runner.compare.conditions import differences
from runner.errors import UsageError
from runner.files import open_regular
from runner.model.result import Outcome, Result
from runner.model.run import Job, Run
from runner.store.runs import RunFolder, read_result, read_run, result_line, run_line
from runner.units import MIB

_LONGEST_LINE = 64 * MIB  # bytes: the limit of run.json
_MOST_MEMORY = 256 * MIB  # bytes; XZ's default preset needs 9 MiB to unpack
_BLOCK = 1 << 16  # bytes
_XZ = b"\xfd7zXZ\0"  # the first bytes of a compressed file
_NO_RESULTS = "{} is no file of results: ./bentpipe export RUN --results FILE makes one."


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The number of results in a file: new in the run folder, already there, and those that replaced an error."""

    new: int
    known: int
    replaced: int
    without_evidence: int  # results in the run folder whose packets are not on this host


def export_results(folder: RunFolder, target: Path) -> int:
    """Write the plan and all results of a run to `target`. Returns the number of results. Raises UsageError."""
    results = folder.results()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with lzma.open(part, "xb", preset=6) as file:
            file.write(run_line(folder.run) + b"\n")
            for result in results.values():
                file.write(result_line(result) + b"\n")
        part.replace(target)
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return len(results)


def import_results(path: Path, target: Path) -> Imported:
    """Make the run folder `target` from a file of results, or merge the file into it.

    Raises UsageError, before anything is written, when the file can't be read, or contradicts the run in the folder:
    another seed, case or link, another image of a stack, or another decided result of a job.
    """
    lines = _lines(path)
    run = read_run(next(lines, b""), f"{path}, line 1")
    fresh = not (target / "run.json").exists()
    folder = None if fresh else RunFolder.open(target)
    merged = replace(run, name=target.name) if folder is None else _merged_run(folder.run, run, path)
    stored = {} if folder is None else folder.results()
    new, replaced, known = _sorted_results(lines, path, merged, stored)
    folder = RunFolder.create(target, merged) if folder is None else folder
    with folder.locked():
        folder.save_run(merged)
        for result in (*new, *replaced):
            folder.save_result(result)
    jobs = {*stored, *(result.job for result in new)}
    missing = sum(not folder.artifacts(job).evidence.is_file() for job in jobs)
    return Imported(new=len(new), known=known, replaced=len(replaced), without_evidence=missing)


_NOT_JUDGED = (Outcome.ERROR, Outcome.SKIPPED)


def _sorted_results(
    lines: Iterator[bytes], path: Path, run: Run, stored: Mapping[Job, Result]
) -> tuple[list[Result], list[Result], int]:
    """The results of a file that are new, those that replace an error or a skipped job, and the number of the
    others."""
    new: dict[Job, Result] = {}
    replaced, known, planned = [], 0, set(run.order)
    for number, line in enumerate(lines, 2):
        where = f"{path}, line {number}"
        result = read_result(line, where)
        job, old = result.job, stored.get(result.job)
        if job not in planned:
            raise UsageError(f"{where}: the job {job} is not in the plan of the run.")
        if job in new:
            raise UsageError(f"{where}: the job {job} has a second result.")
        if old is None:
            new[job] = result
        elif old.outcome in _NOT_JUDGED and result.outcome not in _NOT_JUDGED:
            replaced.append(result)
        elif result.outcome not in _NOT_JUDGED and (old.outcome, old.sample) != (result.outcome, result.sample):
            raise UsageError(
                f"{where}: the job {job} is {old.outcome.value} in this run and {result.outcome.value} in the file, "
                "or has other numbers. Import the file under another name: --run NAME."
            )
        else:
            known += 1
    return list(new.values()), replaced, known


def _merged_run(old: Run, new: Run, path: Path) -> Run:
    """The plan of both runs. Raises UsageError when their conditions differ."""
    differing = [sentence for topic, every in differences(old, new).items() if topic != "host" for sentence in every]
    if old.seed != new.seed:
        differing.append(f"Seed {old.seed} in the run, {new.seed} in the file.")
    for name in old.implementations.keys() & new.implementations.keys():
        mine, theirs = old.implementations[name], new.implementations[name]
        if (mine.image_id, mine.version) != (theirs.image_id, theirs.version):
            images = [f"{record.version} {record.image_id.removeprefix('sha256:')[:12]}" for record in (mine, theirs)]
            differing.append(f"{name}: image {images[0]} in the run, {images[1]} in the file.")
    if differing:
        raise UsageError(
            f"{path} can't be merged into the run {old.name}: {' '.join(differing)} Import it under another name: "
            "--run NAME."
        )
    merged: dict[str, Any] = {
        name: tuple(dict.fromkeys((*getattr(old, name), *getattr(new, name))))
        for name in ("clients", "servers", "vias", "order")
    }
    for name in ("cases", "implementations", "middleboxes", "protocols", "clocks"):
        # New names come after those of the run, whose entries are kept.
        merged[name] = {**getattr(old, name), **getattr(new, name), **getattr(old, name)}
    return replace(old, **merged)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a compressed file. Raises UsageError when it is not such a file, is damaged, or has a line that is
    longer than any of bentpipe's."""
    with ExitStack() as opened:
        try:
            file = opened.enter_context(os.fdopen(open_regular(path), "rb"))
            head = file.peek(len(_XZ))[: len(_XZ)]
        except OSError as error:
            raise UsageError(f"{path} can't be read: {error.strerror}.") from error
        if not head or not _XZ.startswith(head):
            raise UsageError(_NO_RESULTS.format(path))
        line = bytearray()
        for block in _unpacked(file, path):
            start = 0
            while (end := block.find(b"\n", start)) >= 0:
                yield bytes(line) + block[start:end]
                line.clear()
                start = end + 1
            line += block[start:]
            if len(line) > _LONGEST_LINE:
                raise UsageError(f"{path} has a line of more than {_LONGEST_LINE:,} B: it is no file of results.")
        if line:
            raise UsageError(f"{path} ends within a line: copy it again.")


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The unpacked content in blocks of bounded size."""
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
    try:
        while not decompressor.eof:
            packed = file.read(_BLOCK) if decompressor.needs_input else b""
            if decompressor.needs_input and not packed:
                raise UsageError(f"{path} is cut off: copy it again.")
            yield decompressor.decompress(packed, _BLOCK)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    except (lzma.LZMAError, EOFError) as error:
        raise UsageError(f"{path} is damaged: export the run again, and copy the file.") from error
