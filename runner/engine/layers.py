"""Puts the upper layer of a container on a tmpfs, when the engine's storage has no quotas for root file systems.
overlay2 keeps the files that a container writes in LAYER/diff, and needs LAYER/work on the same mount (overlayfs.rst of
the kernel). Before the container starts, a tmpfs of limited size is mounted on LAYER and gets a copy of the engine's
files: two small files and two empty folders. The engine unmounts the tmpfs when it removes the container. The runner
must be root and share its mounts with the engine. Otherwise nothing is mounted, and the runner must measure what the
container writes.
"""

import ctypes
import os
import shutil
from contextlib import suppress
from pathlib import Path

_ENTRIES = {"diff", "link", "lower", "work"}
_ALMOST_FULL = 64 * 1024  # bytes; with less space left, the file system counts as full
_BYTES_PER_INODE = 4096  # bytes per inode, so that empty files count, too
_LEAST_INODES = 1024
_MNT_DETACH = 2
_SELINUX = Path("/sys/fs/selinux/enforce")  # with SELinux, a container may only use files with its label
_LIBC = ctypes.CDLL(None, use_errno=True)


class BoundedLayer:
    """The tmpfs of one container, mounted until the engine removes the container."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def is_used(self) -> bool:
        """True when the engine uses the tmpfs; known after the start of the container. The engine then has the folder
        `merged` in the tmpfs, where it mounts the root file system."""
        with suppress(OSError):
            return (self._folder / "merged").is_dir() or any((self._folder / "diff").iterdir())
        return False

    @property
    def is_full(self) -> bool:
        """True when the container can't write more bytes, or can't make more files."""
        try:
            left = os.statvfs(self._folder)
        except OSError:
            return False
        return self.is_used and (left.f_bavail * left.f_frsize < _ALMOST_FULL or left.f_favail == 0)

    def release(self) -> None:
        """Unmount the tmpfs."""
        _LIBC.umount2(os.fsencode(self._folder), _MNT_DETACH)


def may_bound(disk: Path | None) -> bool:
    """True when this process can limit layers in the folder `disk` of an engine with overlay2. `disk` is None when
    the folder is on another host."""
    return os.geteuid() == 0 and disk is not None and (disk / "overlay2").is_dir() and not _SELINUX.exists()


def bound_layer(upper: Path, size: int) -> BoundedLayer | None:
    """Limit the root file system of a container that was never started to `size` bytes. `upper`: its UpperDir. Returns
    None when the engine stores its layers in another way, or when this process may not mount.
    """
    folder = upper.parent
    try:
        if {path.name for path in folder.iterdir()} != _ENTRIES or any(upper.iterdir()):
            return None
        below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        if not _mount(folder, size):
            return None
        try:
            _copy(Path(f"/proc/self/fd/{below}"), folder)
        except OSError:
            BoundedLayer(folder).release()
            return None
        return BoundedLayer(folder)
    finally:
        os.close(below)


def _mount(folder: Path, size: int) -> bool:
    about = folder.stat()
    inodes = max(_LEAST_INODES, size // _BYTES_PER_INODE)
    owner = f"mode={about.st_mode & 0o7777:o},uid={about.st_uid},gid={about.st_gid}"
    options = f"size={size},nr_inodes={inodes},{owner}"
    return bool(_LIBC.mount(b"bentpipe", os.fsencode(folder), b"tmpfs", 0, options.encode()) == 0)


def _copy(source: Path, target: Path) -> None:
    """Copy files and folders with their owners and rights."""
    for path in source.iterdir():
        copy = target / path.name
        if path.is_dir():
            copy.mkdir()
            _copy(path, copy)
        else:
            shutil.copyfile(path, copy)
        about = path.stat()
        os.chown(copy, about.st_uid, about.st_gid)
        copy.chmod(about.st_mode & 0o7777)
