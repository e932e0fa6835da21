"""The files of a job as downloads: small ones are copied, the rest is reached through a link to the job's folder."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from runner.model.artifacts import Artifacts

LARGEST_COPY = 256 * 1024  # bytes
_LINK = "artifacts"  # the symbolic link beside the copies


@dataclass(frozen=True, kw_only=True)
class Download:
    """One link of the page. `href` is relative to the job's folder of the site; `size` in bytes, None for a folder."""

    label: str
    href: str
    size: int | None


def publish(artifacts: Artifacts, *, staging: Path, final: Path) -> list[Download]:
    """Copy the job's small files to `staging` and link to its folder from there; returns what can be downloaded.

    `final` is where `staging` will be when the site is done: the symbolic link is relative to it. Where none can be
    made, only the copies are offered.
    """
    staging.mkdir(parents=True, exist_ok=True)
    linked = _link(artifacts.folder, staging, final)
    downloads = []
    for label, path in _files(artifacts):
        if path.is_symlink() or not path.exists():
            continue
        inside = path.relative_to(artifacts.folder)
        if path.is_file() and path.stat().st_size <= LARGEST_COPY:
            (staging / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, staging / inside)
            downloads.append(Download(label=label, href=quote(inside.as_posix()), size=path.stat().st_size))
        elif linked:
            size = path.stat().st_size if path.is_file() else None
            slash = "/" if path.is_dir() else ""
            downloads.append(Download(label=label, href=quote(f"{_LINK}/{inside.as_posix()}{slash}"), size=size))
    if linked:
        downloads.append(Download(label="all files", href=f"{_LINK}/", size=None))
    return downloads


def _link(folder: Path, staging: Path, final: Path) -> bool:
    try:
        (staging / _LINK).symlink_to(os.path.relpath(folder.resolve(), final.resolve()), target_is_directory=True)
    except OSError:
        return False
    return True


def _files(artifacts: Artifacts) -> list[tuple[str, Path]]:
    folder = artifacts.folder
    named = [
        ("result", artifacts.result),
        ("evidence", artifacts.evidence),
        ("capture, client side", artifacts.client_capture),
        ("capture, server side", artifacts.server_capture),
        ("key log, client", folder / "client" / "keys.log"),
        ("key log, server", folder / "server" / "keys.log"),
        ("log of all", artifacts.output_log),
        ("log, client", folder / "client" / "output.log"),
        ("log, server", folder / "server" / "output.log"),
        ("qlog, client", folder / "client" / "qlog"),
        ("qlog, server", folder / "server" / "qlog"),
        ("link truth", artifacts.link_truth),
        ("tables, client side", artifacts.client_tables),
        ("tables, server side", artifacts.server_tables),
        ("series", artifacts.series),
    ]
    return [(label, path) for label, path in named if not path.is_dir() or any(path.iterdir())]
