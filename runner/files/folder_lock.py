"""Locks a folder for one runner. The kernel releases the lock when the runner's process ends in any way.

It is a record lock (fcntl(2), F_SETLK), which children don't inherit. With flock(2), a forked child of a killed runner
would keep the folder locked.
"""

import fcntl
import os
import shutil
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from runner.errors import InUseError, SetupError, UsageError

LOCK_NAME = ".lock"
# Folders that this process has locked. The kernel would grant a record lock to the same process twice, and releases the
# lock when the process closes any descriptor of the file. So a folder in this set is refused before its lock file is
# opened.
_held: set[Path] = set()
_changing_held = threading.Lock()


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process. A missing folder is created.

    Raises InUseError when a living process has the lock; the message names the process and its host. Raises UsageError
    when the folder can't be written.
    """
    place = folder.resolve()
    with _changing_held:
        if place in _held:
            raise _refusal(folder, f"process {os.getpid()}, this one")
        file = _open_lock(folder)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # EACCES or EAGAIN, depending on the file system
            file.seek(0)
            owner = file.read(200).strip()
            file.close()
            raise _refusal(folder, owner or "an unknown process") from error
        _held.add(place)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
    finally:
        with _changing_held:
            file.close()
            _held.discard(place)


def own_folder(folder: Path) -> Path:
    """Make `folder` if it is missing, and keep other users from writing to it. Raises SetupError when it is a link or
    belongs to somebody else: this process would then work where a stranger can plant links."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise SetupError(
            f"{folder} must be a folder of this process's user ({os.geteuid()}): remove it, or set TMPDIR to another "
            "folder."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        folder.chmod(0o755)
    return folder


def remove_abandoned(scratch: Path) -> None:
    """Remove the folders `scratch/bentpipe-*` whose processes were killed: their lock files are not locked any more."""
    for lock in scratch.glob(f"bentpipe-*/{LOCK_NAME}"):
        with suppress(UsageError), locked_folder(lock.parent):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _refusal(folder: Path, owner: str) -> InUseError:
    return InUseError(f"Another runner ({owner}) works on {folder}: wait for it, or choose another --run.")


def _open_lock(folder: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(folder / LOCK_NAME, flags, 0o644)
    except OSError as error:
        why = f"its {LOCK_NAME} is no file" if (folder / LOCK_NAME).is_symlink() else error.strerror
        raise UsageError(f"The run folder {folder} can't be written: {why}.") from error
    return os.fdopen(descriptor, "a+", errors="replace")
