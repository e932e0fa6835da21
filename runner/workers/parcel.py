"""Orders for workers, and archives in which workers return the folders of jobs. A worker may be faulty or hostile: its
archive is unpacked with the same care as the archives of containers, and it is used only when it is complete.
"""

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from runner import store
from runner.collect import extract
from runner.errors import LaneError
from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.run import Run
from runner.units import MIB, format_size

LARGEST = 1024 * MIB  # most bytes of an archive
_LARGEST_FOLDER = 2048 * MIB  # most bytes of all files of a job
_MOST_FILES = 16 * 1024
_TOP = "job"
_CODEC = "zstd"
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job for a worker. `run` has only the parts that this job needs. `store`: the folder for the archive (an
    fsspec URL); empty: the archive goes through the scheduler."""

    run: Run
    job: Job
    attempt: int
    key: str  # the identity of the job and its attempt, in all runs
    store: str = ""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """The result of an order. `place`: the archive's place in the shared folder; then `archive` is empty. `error`: an
    error of the harness."""

    host: dict[str, str]
    archive: bytes = b""
    place: str = ""
    size: int = 0
    sha256: str = ""
    error: dict[str, str] | None = None


def part_of(run: Run, job: Job) -> Run:
    """The parts of the run that `job` needs: kilobytes of a run that may have megabytes."""
    names = (job.server, job.client, job.via, *run.case(job).beside_stacks)
    return replace(
        run,
        order=(job,),
        clients=(job.client,),
        servers=(job.server,),
        vias=(job.via,),
        cases={job.case_link: run.case(job)},
        implementations={name: entry for name, entry in run.implementations.items() if name in names},
        middleboxes={name: box for name, box in run.middleboxes.items() if name == job.via},
        protocols={cell: name for cell, name in run.protocols.items() if cell == job.cell},
        clocks={job.case_link: run.clock_of(job.case_link)},
        old_folders={},
    )


def pack(folder: Path) -> bytes:
    """The files of a job's folder as one compressed archive. Raises LaneError when it is larger than a GiB."""
    buffer = pa.BufferOutputStream()
    with (
        pa.CompressedOutputStream(buffer, _CODEC) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, f"{_TOP}/{path.relative_to(folder)}", recursive=False)
    content: bytes = buffer.getvalue().to_pybytes()
    if len(content) > LARGEST:
        raise LaneError("archive-broken", f"The files of the job take {format_size(len(content))} in an archive.")
    return content


def unpack(archive: BinaryIO, parcel: Parcel, folder: Path) -> None:
    """Fill the empty `folder` from an archive. Raises LaneError unless the archive is complete and contains only files
    that a job may have."""
    content = archive.read(LARGEST + 1)
    if len(content) != parcel.size or hashlib.sha256(content).hexdigest() != parcel.sha256:
        sentence = f"The archive of a worker has {len(content)} B; its size or checksum differs from the announced one."
        raise LaneError("archive-broken", sentence)
    try:
        extraction = extract(_blocks(content), folder, budget=_LARGEST_FOLDER, members=_MOST_FILES)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of this host's disk
        raise LaneError("archive-broken", f"The archive of a worker can't be read: {error}") from error
    if extraction.skipped:
        raise LaneError("archive-broken", f"The archive of a worker contains {extraction.skipped[0]}.")
    if store.load_evidence(Artifacts(folder)) is None:
        raise LaneError("archive-broken", "The archive of a worker has no evidence.json that can be read.")


def _blocks(content: bytes) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(content), _CODEC) as stream:
        while block := stream.read(_BLOCK):
            yield block
