"""The files of a job as downloads: small ones are copied, the rest is reached through a link to the job's folder."""

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from runner.model.artifacts import Artifacts

LARGEST_COPY = 256 * 1024  # bytes
_MOST_QLOGS = 4
_WITH_SECRETS = ".pcapng"
_LINK = "artifacts"  # the symbolic link beside the copies


@dataclass(frozen=True, kw_only=True)
class Download:
    """One link of the page. `href` is relative to the job's folder of the site; `size` in bytes, None for a folder.

    `name`, where there is one, says of which job the saved file is.
    """

    label: str
    href: str
    size: int | None
    name: str = ""
    qlog: bool = False  # of one connection at one endpoint: qvis draws it


def publish(artifacts: Artifacts, *, staging: Path, final: Path) -> list[Download]:
    """Put the job's small files into `staging`, and a link to its folder; returns what can be downloaded.

    `final` is where `staging` will be when the site is done: the symbolic link is relative to it. Where none can be
    made, only the small files are offered.
    """
    staging.mkdir(parents=True, exist_ok=True)
    linked = _link(artifacts.folder, staging, final)
    made = {staging}
    downloads = []
    for label, path in _files(artifacts):
        try:
            about = path.lstat()
        except OSError:
            continue
        inside = path.relative_to(artifacts.folder)
        name = "-".join((*artifacts.folder.parts[-3:], path.name)) if path.suffix == _WITH_SECRETS else ""
        if stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST_COPY:
            place = staging / inside
            if place.parent not in made:
                place.parent.mkdir(parents=True, exist_ok=True)
                made.add(place.parent)
            _put(path, place, about.st_mode)
            downloads.append(Download(label=label, href=quote(inside.as_posix()), size=about.st_size, name=name))
        elif linked and stat.S_ISREG(about.st_mode):
            href = quote(f"{_LINK}/{inside.as_posix()}")
            downloads.append(Download(label=label, href=href, size=about.st_size, name=name))
        elif linked and stat.S_ISDIR(about.st_mode):
            downloads += _folder(label, path, f"{_LINK}/{inside.as_posix()}")
    if linked:
        downloads.append(Download(label="all files", href=f"{_LINK}/", size=None))
    return downloads


def _folder(label: str, path: Path, inside: str) -> Iterator[Download]:
    """The qlog files of an endpoint; of more connections than one wants to see, their folder."""
    names = sorted(one.name for one in path.iterdir())
    for name in names if len(names) <= _MOST_QLOGS else ():
        file = path / name
        if file.is_file() and not file.is_symlink():
            yield Download(label=label, href=quote(f"{inside}/{name}"), size=file.stat().st_size, qlog=True)
    if len(names) > _MOST_QLOGS:
        yield Download(label=label, href=quote(f"{inside}/"), size=None)


def _put(path: Path, place: Path, mode: int) -> None:
    """As a second name of the same file where everybody may read it and that is possible, else as a copy.

    Nothing is written then; and bentpipe replaces files of a job whole, never in place.
    """
    try:
        if mode & stat.S_IROTH:
            os.link(path, place)
            return
    except OSError:
        pass
    shutil.copyfile(path, place)


def _link(folder: Path, staging: Path, final: Path) -> bool:
    try:
        (staging / _LINK).symlink_to(os.path.relpath(folder.resolve(), final.resolve()), target_is_directory=True)
    except OSError:
        return False
    return True


def _files(artifacts: Artifacts) -> list[tuple[str, Path]]:
    folder = artifacts.folder
    return [
        ("result", artifacts.result),
        ("evidence", artifacts.evidence),
        *(
            (f"capture{' with secrets' if path.suffix == _WITH_SECRETS else ''}, {side} side", path)
            for side, path in (("client", artifacts.client_capture), ("server", artifacts.server_capture))
        ),
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
