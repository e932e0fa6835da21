"""Virtual time without Docker and without root: images from archives, guests as processes of this user."""

import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from runner.errors import SetupError
from runner.guests.house import IMAGE, ProcessHouse
from runner.guests.saved_images import SavedImages

_TOOLS = "guest"  # folder in the image bentpipe/guest with the kernel and its programs
_TMPFS = "tmpfs"


def open_house(images: SavedImages, scratch: Path) -> ProcessHouse:
    """A house with the kernel of the image bentpipe/guest, which is unpacked into `scratch` once.

    Raises SetupError when this host has no suitable folder, UsageError when the archives don't have the image.
    """
    tools = scratch / f"kernel-{images.image_id(IMAGE).removeprefix('sha256:')}"
    require_exec(scratch)
    if not (tools / "version").is_file():
        _unpack(images, tools)
    return ProcessHouse(tools, temporary_folder())


def _unpack(images: SavedImages, tools: Path) -> None:
    archive, unfinished = tools.with_suffix(".tar"), tools.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        images.write_root(IMAGE, archive)
        with tarfile.open(archive) as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                if parts[:1] == (_TOOLS,) and ".." not in parts and (content := tar.extractfile(member)):
                    path = unfinished.joinpath(*parts[1:])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
                    path.chmod(member.mode & 0o755)
        unfinished.rename(tools)
    finally:
        archive.unlink(missing_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)


def require_exec(folder: Path) -> None:
    """Raise SetupError when the file system of `folder` does not let programs run."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise SetupError(
            f"--rootless: {folder} is on a file system where no program can run (noexec), but the guests' kernel must "
            "run there: move the checkout, or mount that file system with exec."
        )


def temporary_folder(mounts: Path = Path("/proc/mounts"), folders: Iterable[Path] | None = None) -> Path:
    """A folder in memory (tmpfs) where this user may write and run programs; TMPDIR when that is set.

    Raises SetupError when there is no such folder.
    """
    chosen = os.environ.get("TMPDIR")
    places = [Path(chosen)] if chosen else folders
    if places is None:
        places = [Path("/dev/shm"), *map(Path, filter(None, [os.environ.get("XDG_RUNTIME_DIR")])), Path("/tmp")]
    in_memory = {fields[1] for line in mounts.read_text().splitlines() if (fields := line.split())[2] == _TMPFS}
    for place in places:
        usable = os.access(place, os.W_OK | os.X_OK) and not os.statvfs(place).f_flag & os.ST_NOEXEC
        if usable and (chosen or _mount_point(place) in in_memory):
            return place
    named = ", ".join(map(str, places))
    raise SetupError(
        "--rootless: guests need a folder in memory (tmpfs) where you may write and run programs. None of these is "
        f"usable: {named}. Mount /dev/shm with exec (`mount -o remount,exec /dev/shm`), or set TMPDIR to such a folder."
    )


def _mount_point(folder: Path) -> str:
    place = folder.resolve()
    while not place.is_mount():
        place = place.parent
    return str(place)
