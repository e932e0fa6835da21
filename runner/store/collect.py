"""Copies container folders (as tar) into the job's folder, and compares downloaded files with served files.

Endpoint images may be hostile: an archive may contain links, devices, sparse files of terabytes, and any name.
"""

import hashlib
import io
import shutil
import tarfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from runner.errors import LaneError
from runner.files import shown_name
from runner.model.result import FileRecord
from runner.units import MIB

COPY_BUDGET = 512 * MIB  # bytes of one folder that are copied out
COPY_MEMBERS = 4096  # members of one archive that are read: files, folders, links
_PAGE = 4096  # bytes
DEPTH = 8  # folders below each other
_LONGEST_NAME = (DEPTH + 2) * 256  # characters with all folders: a file name has at most 255 bytes
_LONGEST_HEADER = 64 * 1024  # bytes of a header that announces the next header
_HEADERS_OF_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_KINDS = {
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.FIFOTYPE: "pipe",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
}
_OTHER_KIND = "not a regular file"
_LISTED = 50  # names in a record; a hostile image may make millions
_BLOCK = 1 << 20
_MERGED_LINES = 100


@dataclass(kw_only=True)
class Extraction:
    """The files copied out of one folder. Sizes in bytes; names are relative to the folder."""

    files: int = 0
    size: int = 0
    occupied: int = 0  # bytes of memory that the files take in a tmpfs
    skipped: list[str] = field(default_factory=list)  # names, each with the reason in brackets

    def skip(self, name: str, why: str) -> None:
        """Record a file that was not copied, and the reason. After 50 records, one last record says `and more`."""
        if len(self.skipped) < _LISTED:
            self.skipped.append(f"{shown_name(name)} ({why})")
        elif len(self.skipped) == _LISTED:
            self.skipped.append("and more")


class Blocks(io.RawIOBase):
    """A file object that reads from an iterator of blocks."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size:
            if not self._rest:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._rest = memoryview(block)
            part = self._rest[:size] if size > 0 else self._rest
            self._rest = self._rest[len(part) :]
            parts.append(bytes(part))
            size -= len(part) if size > 0 else 0
        return b"".join(parts)


class _Member(tarfile.TarInfo):
    """A member whose header has a size limit: a header may contain a name of any size and announce another header."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS_OF_HEADERS and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} B")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return] # tarfile's own way to be extended


def _each(blocks: Iterable[bytes]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The members of an archive in order; none is kept in memory. Raises tarfile.TarError for a broken archive."""
    try:
        with tarfile.open(fileobj=Blocks(blocks), mode="r|", bufsize=_BLOCK, tarinfo=_Member) as archive:
            for member in archive:
                archive.members.clear()  # type: ignore[attr-defined] # otherwise tarfile keeps every member
                yield archive, member
    except (ValueError, OverflowError, RecursionError) as error:
        raise tarfile.ReadError(f"a broken header ({type(error).__name__})") from error
    finally:
        if isinstance(blocks, Generator):
            blocks.close()  # tarfile's objects form cycles, which would keep the sender running


def _members(blocks: Iterable[bytes]) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, PurePosixPath]]:
    """The members below the archive's only top folder, with their names relative to it."""
    for archive, member in _each(blocks):
        if len(member.name) > _LONGEST_NAME:
            raise tarfile.ReadError(f"a name of {len(member.name)} characters")
        name = PurePosixPath(member.name)
        if len(name.parts) > 1:
            yield archive, member, PurePosixPath(*name.parts[1:])


def extract(
    blocks: Iterable[bytes],
    target: Path,
    *,
    reserved: frozenset[str] = frozenset(),
    budget: int = COPY_BUDGET,
    members: int = COPY_MEMBERS,
) -> Extraction:
    """Copy the regular files of a folder's archive to `target`, an existing folder of bentpipe. A file is skipped when
    its name is in `reserved` or when a file with this name exists. Reading ends after `budget` bytes or `members`
    members."""
    done = Extraction()
    taken = set(reserved)
    try:
        for count, (archive, member, name) in enumerate(_members(blocks)):
            if count >= members:
                done.skip(str(name), f"more than {members} files")
                break
            if member.isdir():
                continue
            problem = _problem(member, name, taken)
            if problem is None and member.size > budget - done.size:
                # The rest of the archive lies behind this member, and reading past the member may take forever.
                done.skip(str(name), f"{member.size} bytes are over the budget")
                break
            if problem is None:
                problem = _write(archive, member, target / name)
            if problem is not None:
                done.skip(str(name), problem)
                continue
            taken.add(str(name))
            done.files += 1
            done.size += member.size
            done.occupied += occupied(member.size)
    except tarfile.TarError as error:
        done.skip("the rest", f"the archive is broken: {error}")
    return done


def extract_file(blocks: Iterable[bytes], target: Path, *, budget: int) -> None:
    """Copy the first regular file of an archive, at most `budget` bytes, to `target`. Raises LaneError without one."""
    try:
        for count, (archive, member) in enumerate(_each(blocks)):
            if count >= COPY_MEMBERS or member.size > budget:
                break  # the rest may be endless
            source = archive.extractfile(member) if member.isreg() else None
            if source is None:
                continue
            with target.open("wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)
            return
    except tarfile.TarError as error:
        raise LaneError("archive-broken", f"The archive of {target.name} is broken: {error}") from error
    raise LaneError("archive-broken", f"The archive of {target.name} contains no file of at most {budget} B.")


def _problem(member: tarfile.TarInfo, name: PurePosixPath, taken: set[str]) -> str | None:
    if not member.isreg():
        return _KINDS.get(member.type, _OTHER_KIND)
    if ".." in name.parts or len(name.parts) > DEPTH or not str(name).isprintable():
        return "its name is not allowed"
    if str(name) in taken:
        return "there is such a file already"
    return None


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> str | None:
    """Write one member. Returns None, or the reason why it was not written. A full disk raises OSError. bentpipe makes
    no link below the target, so no path below the target leads out of it."""
    source = archive.extractfile(member)
    if source is None:
        return "not a regular file"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            shutil.copyfileobj(source, file, _BLOCK)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return "there is such a file already"
    return None


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A file that was served: its size in bytes and the SHA-256 of its content."""

    size: int
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """/downloads: the requested files, the names of others, and the bytes of memory that all of them take."""

    files: tuple[FileRecord, ...]
    extra: tuple[str, ...]
    occupied: int


def occupied(size: int) -> int:
    """Bytes of memory that a file of `size` bytes takes in a tmpfs."""
    return -(-size // _PAGE) * _PAGE


def compare(blocks: Iterable[bytes], expected: Mapping[str, Expected], *, budget: int) -> Downloads:
    """Compare the archive of /downloads with the served files. No file of the archive is kept. Links are never
    followed. Reading ends after `budget` bytes of files or COPY_MEMBERS members, and later files count as missing. Only
    sparse files or thousands of extra files can cause that. Raises LaneError when the archive is broken."""
    received: dict[str, tuple[int, bool]] = {}
    extra: list[str] = []
    size = 0
    try:
        for count, (archive, member, name) in enumerate(_members(blocks)):
            if count >= COPY_MEMBERS:
                break
            wanted = expected.get(str(name))
            if wanted is not None and member.isreg():
                equal = member.size == wanted.size and _digest(archive, member) == wanted.digest
                received[str(name)] = (member.size, equal)
            elif len(extra) < _LISTED:
                extra.append(_described(member, name))
            size += occupied(member.size)
            if size > budget:
                break
    except tarfile.TarError as error:
        raise LaneError("archive-broken", f"The archive of /downloads is broken: {error}") from error
    records = tuple(
        FileRecord(
            name=name,
            size=wanted.size,
            received=received[name][0] if name in received else None,
            equal=name in received and received[name][1],
        )
        for name, wanted in expected.items()
    )
    return Downloads(files=records, extra=tuple(extra), occupied=size)


def _described(member: tarfile.TarInfo, name: PurePosixPath) -> str:
    suffix = "/" if member.isdir() else "" if member.isreg() else f" ({_KINDS.get(member.type, _OTHER_KIND)})"
    return shown_name(name) + suffix


def _digest(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    source: Any = archive.extractfile(member)
    return hashlib.file_digest(source, "sha256").digest()


def merge_outputs(outputs: Sequence[tuple[str, str]]) -> str:
    """One text with the last lines of several containers, each part below the name of its container."""
    return "".join(
        f"== {name} ==\n" + "".join(f"{line}\n" for line in text.splitlines()[-_MERGED_LINES:])
        for name, text in outputs
    )
