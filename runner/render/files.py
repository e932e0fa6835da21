"""Offers the files of a job as downloads: copies of small files, symbolic links to larger files."""

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from runner.errors import UsageError
from runner.files.safe_files import beneath
from runner.model.artifacts import Artifacts
from runner.model.names import name_problem

LARGEST_COPY = 256 * 1024  # most bytes of a file that is copied
_MOST_QLOGS = 4
_WITH_SECRETS = ".pcapng"
_MOST_LINKS = 256  # largest number of links to files of one folder
_QLOGS = (".qlog", ".sqlog", ".qlog.gz", ".sqlog.gz", ".json")
_TABLES_FOLDER, _TABLES = "tables", (".parquet",)
_LINKS = "artifacts"  # the folder of links beside the copies


@dataclass(frozen=True, kw_only=True)
class Download:
    """One link of the page. `href` is relative to the job's folder in the site. `size` is in bytes; None for a folder.

    `name`, if set, is the file name under which a browser saves the file; it contains the job.
    """

    label: str
    href: str
    size: int | None
    name: str = ""
    qlog: bool = False  # True for a qlog of one connection, which qvis can draw


def publish(artifacts: Artifacts, *, staging: Path, final: Path) -> list[Download]:
    """Put the job's small files, and links to its larger files, into `staging`. Return the downloads.

    `final` is the place of `staging` in the finished site; symbolic links are relative to `final`. When links can't be
    made, only the small files are offered. The job's folder may come from an untrusted person. So only files with a
    known name and type are offered, and no symbolic link inside the folder is followed.
    """
    staging.mkdir(parents=True, exist_ok=True)
    links = _Links(artifacts.folder, staging / _LINKS, final / _LINKS)
    made = {staging}
    downloads = []
    for label, path in _files(artifacts):
        inside = path.relative_to(artifacts.folder)
        about = _status(artifacts.folder, inside)
        if about is None:
            continue
        name = "-".join((*artifacts.folder.parts[-3:], path.name)) if path.suffix == _WITH_SECRETS else ""
        if stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST_COPY:
            place = staging / inside
            if place.parent not in made:
                place.parent.mkdir(parents=True, exist_ok=True)
                made.add(place.parent)
            _put(path, place, about.st_mode)
            downloads.append(Download(label=label, href=quote(inside.as_posix()), size=about.st_size, name=name))
        elif stat.S_ISREG(about.st_mode) and links.add(inside):
            href = quote(f"{_LINKS}/{inside.as_posix()}")
            downloads.append(Download(label=label, href=href, size=about.st_size, name=name))
        elif stat.S_ISDIR(about.st_mode):
            downloads += _folder(label, path, inside, links)
    if links.count:
        downloads.append(Download(label="larger files", href=f"{_LINKS}/", size=None))
    return downloads


def _status(folder: Path, inside: Path) -> os.stat_result | None:
    """The status of the file or folder. None when it is missing, or when its path in `folder` has a symbolic link."""
    try:
        return beneath(folder, inside).lstat()
    except (OSError, UsageError):
        return None


def _folder(label: str, path: Path, inside: Path, links: "_Links") -> Iterator[Download]:
    """Downloads for the qlogs or tables in a folder, or one download for the whole folder when it has too many files
    for a list."""
    suffixes = _TABLES if path.parent.name == _TABLES_FOLDER else _QLOGS
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_file(follow_symlinks=False))
    except OSError:
        return
    names = [name for name in names if name.endswith(suffixes) and name_problem(name) is None][:_MOST_LINKS]
    linked = [name for name in names if links.add(inside / name)]
    for name in linked if len(linked) <= _MOST_QLOGS else ():
        href = quote(f"{_LINKS}/{(inside / name).as_posix()}")
        yield Download(label=label, href=href, size=(path / name).lstat().st_size, qlog=suffixes is _QLOGS)
    if len(linked) > _MOST_QLOGS:
        yield Download(label=label, href=quote(f"{_LINKS}/{inside.as_posix()}/"), size=None)


class _Links:
    """Makes symbolic links to files of a job's folder. The links are made below `staging`, which later becomes
    `final`."""

    def __init__(self, folder: Path, staging: Path, final: Path) -> None:
        self.count = 0
        self._staging = staging
        self._way = os.path.relpath(folder.resolve(), final.resolve())
        self._made: set[Path] = set()

    def add(self, inside: Path) -> bool:
        """Make a link to a file of the job. Return False when the file system refuses the link."""
        place = self._staging / inside
        try:
            if place.parent not in self._made:
                place.parent.mkdir(parents=True, exist_ok=True)
                self._made.add(place.parent)
            place.symlink_to(Path(*[".."] * (len(inside.parts) - 1), self._way, inside))
        except OSError:
            return False
        self.count += 1
        return True


def _put(path: Path, place: Path, mode: int) -> None:
    """Make a hard link when everybody may read the file and the file system allows hard links, else a copy.

    A hard link copies no data. It is safe, because bentpipe replaces files of a job and never changes them in place.
    """
    try:
        if mode & stat.S_IROTH:
            os.link(path, place)
            return
    except OSError:
        pass
    shutil.copyfile(path, place)


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
