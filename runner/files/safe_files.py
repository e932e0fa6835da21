"""Reads and removes files in untrusted folders: only up to a limit, never through a link, and never outside the folder.

A run folder may come from anywhere: its names, links, pipes and sizes are untrusted input.
"""

import os
import shutil
import stat
from pathlib import Path

from runner.errors import UsageError
from runner.units import MIB

LARGEST_DOCUMENT = 64 * MIB  # bytes of a JSON file or a log; the largest run.json of this project has 3 MiB
_DEEPEST = 12  # folders below a job's folder
_MOST_ENTRIES = 20_000  # files and folders of a job; the runner copies at most 4096 out of each container's folder


class RefusedFileError(OSError):
    """A file that must not be read: a link, a pipe, a device, or a too large file. The message names the reason."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.strerror = why
        self.filename = str(path)

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path) -> int:
    """Open the regular file `path` for reading and return its descriptor. Raises OSError, and RefusedFileError when
    `path` is not a regular file.

    `path` must not be a symbolic link. A pipe without a writer doesn't block the call.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if path.is_symlink():
            raise RefusedFileError(path, "it is a symbolic link") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RefusedFileError(path, "it is not a regular file")
    return descriptor


def read_regular(path: Path, *, limit: int = LARGEST_DOCUMENT) -> bytes:
    """The content of a regular file of at most `limit` bytes. Raises OSError, and RefusedFileError when the file is
    larger or not regular."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise RefusedFileError(path, f"it is larger than {limit:,} B")
    return content


def read_head(path: Path, *, size: int) -> bytes:
    """The first `size` bytes of a regular file; all bytes of a shorter file. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(size)


def foreign_entry(folder: Path) -> str | None:
    """The first entry in a job's folder that bentpipe never writes: a link, a pipe, a device, too many files, too deep
    folders. None when there is no such entry or no folder."""
    if folder.is_symlink():
        return f"{folder.name} is a symbolic link"
    waiting = [(folder, 0)]
    count = 0
    while waiting:
        current, depth = waiting.pop()
        try:
            entries = os.scandir(current)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{current.relative_to(folder.parent)} can't be read ({error.strerror})"
        with entries:
            for entry in entries:
                count += 1
                name = Path(entry.path).relative_to(folder)
                if count > _MOST_ENTRIES:
                    return f"it contains more than {_MOST_ENTRIES:,} files"
                if entry.is_symlink():
                    return f"{_shown(name)} is a symbolic link"
                if entry.is_dir(follow_symlinks=False):
                    if depth == _DEEPEST:
                        return f"{_shown(name)} lies deeper than {_DEEPEST} folders"
                    waiting.append((Path(entry.path), depth + 1))
                elif not entry.is_file(follow_symlinks=False):
                    return f"{_shown(name)} is neither a file nor a folder"
    return None


def beneath(root: Path, relative: Path | str) -> Path:
    """`root / relative`, a path that need not exist. Raises UsageError when `relative` contains `..` or a symbolic link
    or is empty. `root` itself may be a link."""
    place = root
    for part in Path(relative).parts:
        if part in ("..", "/"):
            raise UsageError(f"{_shown(relative)} leads out of {root}: nothing is written or removed there.")
        place = place / part
        if place.is_symlink():
            raise UsageError(f"{place} is a symbolic link, which bentpipe never makes there: remove it.")
    if place == root:
        raise UsageError(f"{_shown(relative)} is {root} itself: nothing is written or removed there.")
    return place


def remove_tree(root: Path, relative: Path | str) -> None:
    """Remove a folder below `root` with its content. A missing folder is no error. Raises UsageError like `beneath`."""
    place = beneath(root, relative)
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        place.unlink(missing_ok=True)


def _shown(name: Path | str) -> str:
    text = str(name)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 200 else f"{text[:200]}…"
