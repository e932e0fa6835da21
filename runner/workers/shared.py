"""Keeps archives in a folder that runner and workers share: any URL of fsspec (a folder, S3, SFTP)."""

import io
import secrets
from contextlib import suppress
from typing import Any, BinaryIO

from runner.errors import LaneError, SetupError, first_line
from runner.workers.parcel import LARGEST


def file_system(url: str) -> tuple[Any, str]:
    """The file system and the folder of a URL. Raises SetupError for a URL that can't be used."""
    from fsspec.core import url_to_fs  # noqa: PLC0415 - optional

    try:
        system, folder = url_to_fs(url)
        system.makedirs(folder, exist_ok=True)
    except Exception as error:  # each kind of file system raises its own errors
        raise SetupError(f"--store {url} can't be used ({first_line(error)}): name a URL that fsspec opens.") from error
    return system, folder.rstrip("/")


def put(url: str, name: str, content: bytes) -> str:
    """Write an archive under `name`, completely or not at all. Returns its place. Raises LaneError."""
    try:
        system, folder = file_system(url)
        place = f"{folder}/{name}-{secrets.token_hex(4)}"
        system.pipe_file(f"{place}.part", content)
        system.mv(f"{place}.part", f"{place}.tar.zst")
    except Exception as error:
        raise LaneError("worker-failed", f"The archive can't be written to {url}: {first_line(error)}") from error
    return f"{place}.tar.zst"


def take(url: str, place: str) -> BinaryIO:
    """Read an archive that a worker wrote, and remove it. Raises LaneError when it is missing."""
    try:
        system, folder = file_system(url)
        if not place.startswith(f"{folder}/") or ".." in place:
            raise ValueError(f"{place} is not in {folder}")
        with system.open(place, "rb") as file:
            content: bytes = file.read(LARGEST + 1)
        with suppress(Exception):  # leftovers are removed when the run is resumed
            system.rm_file(place)
    except Exception as error:
        raise LaneError("archive-broken", f"The archive of a worker can't be read: {first_line(error)}") from error
    return io.BytesIO(content)


def clean(url: str, prefix: str) -> None:
    """Remove archives of earlier calls of a run."""
    system, folder = file_system(url)
    with suppress(Exception):
        for place in system.glob(f"{folder}/{prefix}*"):
            system.rm_file(place)
