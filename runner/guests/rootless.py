"""Virtual time without Docker and without root: images from archives, guests as processes of this user."""

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from runner.errors import SetupError
from runner.guests.launcher import IMAGE, ProcessLauncher
from runner.guests.saved_images import SavedImages

_TOOLS = "guest"  # folder in the image bentpipe/guest with the kernel and its programs


def open_launcher(images: SavedImages, scratch: Path) -> ProcessLauncher:
    """A launcher with the kernel of the image bentpipe/guest, which is unpacked into `scratch` once.

    Raises SetupError when this host can't confine guests, UsageError when the archives don't have the image.
    """
    tools = scratch / f"kernel-{images.image_id(IMAGE).removeprefix('sha256:')}"
    require_exec(scratch)
    if not (tools / "version").is_file():
        _unpack(images, tools)
    launcher = ProcessLauncher(tools)
    launcher.require_confinement()
    return launcher


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
