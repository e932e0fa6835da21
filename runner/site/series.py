"""`series.json` thinned to the resolution of a screen, and the files of a job as downloads."""

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from runner.errors import UsageError
from runner.files import beneath, read_regular
from runner.model.result import Artifacts
from runner.model.run import name_problem
from runner.store.runs import parse

# Reads `series.json` for the pages: decoded, checked, and thinned to the resolution of a screen.

Ints = NDArray[np.int64]
Points = list[tuple[float, float]]

_CURVE_POINTS = 600
_JOINED_FRAMES = 4000
_RATES = ("forward_raw", "forward_goodput", "return_raw")
KINDS = ("new", "retransmission", "spurious")


@dataclass(frozen=True, kw_only=True)
class Frames:
    """STREAM frames of response data at one vantage point, in time order. Times in µs since the origin, sizes in bytes.

    `kind` is an index of KINDS.
    """

    time: Ints
    offset: Ints
    length: Ints
    kind: Ints


@dataclass(frozen=True, kw_only=True)
class Series:
    """The data for the plots of one job. `text`: the content of `series.json`; `document`: the same content, parsed.

    `marks`: seconds since the origin, by name. `ideal` and `slow_start`: points (seconds, bytes). `spark`: points in
    per mille of the time and of the file. `rates`: points (seconds, Mbit/s), by name.
    """

    text: bytes
    document: dict[str, Any]
    file_size: int
    files: tuple[int, ...]
    client: Frames
    server: Frames
    marks: dict[str, float]
    ideal: Points
    slow_start: Points
    spark: Points
    rates: dict[str, Points]
    limits: tuple[tuple[float, float, str], ...] = ()
    """Start in seconds, end in seconds, and limit. Runs of older programs have no limits."""

    @cached_property
    def arrived(self) -> tuple[Ints, Ints]:
        """The client's `curve`."""
        return curve(self.client, self.files)

    @property
    def end(self) -> float:
        """Seconds until the last frame at either vantage point; 0 when there is no frame."""
        last = [int(frames.time[-1]) for frames in (self.client, self.server) if len(frames.time)]
        return max(last, default=0) / 1e6


def load_series(path: Path) -> Series | None:
    """The job's series; None when its file is missing or can't be read."""
    try:
        text = read_regular(path)
        document = parse(text)
        bounds = document["bounds"]
        return Series(
            text=text,
            document=document,
            file_size=int(document["file_size"]),
            files=tuple(int(size) for size in document["files"]),
            client=_frames(document["client"]),
            server=_frames(document["server"]),
            marks={name: float(at) for name, at in document["marks"].items() if at is not None},
            ideal=_points(bounds["ideal"]),
            slow_start=_points(bounds["slow_start"]),
            spark=_points(document["spark"]),
            rates={name: _rate(document["rate"], name) for name in _RATES},
            limits=tuple((float(start), float(end), str(limit)) for start, end, limit in document.get("limits", ())),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, IndexError):
        return None


def _points(pairs: Sequence[Sequence[float]]) -> Points:
    return [(float(x), float(y)) for x, y in pairs]


def _rate(document: dict[str, Any], name: str) -> Points:
    step = float(document["interval_s"])
    return [(step * (index + 0.5), float(value) / 1e6) for index, value in enumerate(document[name])]


def _frames(document: dict[str, list[int]]) -> Frames:
    time, offset, length, kind = (
        np.array(document[name], dtype=np.int64) for name in ("t_us", "offset", "length", "kind")
    )
    if not len(time) == len(offset) == len(length) == len(kind):
        raise ValueError("the columns of a vantage point have different lengths")
    if len(kind) and not 0 <= kind.min() <= kind.max() < len(KINDS):
        raise ValueError(f"kinds of frames are 0 to {len(KINDS) - 1}")
    return Frames(time=np.cumsum(time), offset=np.cumsum(offset), length=length, kind=kind)


def curve(frames: Frames, files: Sequence[int]) -> tuple[Ints, Ints]:
    """The steps of an offset curve, about `_CURVE_POINTS` at most: times in µs, and totals in bytes. The total is the
    sum of the highest offsets that each file has reached so far; data that is missing below them counts as present."""
    gained = np.zeros(len(frames.time), dtype=np.int64)
    begin = 0
    for size in files:
        inside = np.flatnonzero((frames.offset >= begin) & (frames.offset < begin + size))
        reached = np.maximum.accumulate(frames.offset[inside] + frames.length[inside] - begin)
        gained[inside] = np.diff(reached, prepend=0)
        begin += size
    moved = np.flatnonzero(gained)
    if not len(moved):
        return frames.time[:0], gained[:0]
    time, total = frames.time[moved], np.cumsum(gained[moved])
    pixel = max(1, int(time[-1]) // _CURVE_POINTS)
    last = np.flatnonzero(np.append(np.diff(time // pixel) > 0, True))
    return time[last], total[last]


def joined(frames: Frames) -> Frames:
    """Join frames of the same kind when each begins at the end offset of the previous frame and within the same 1/4000
    of the time. This resolution is enough for a whole screen."""
    if len(frames.time) < 2:
        return frames
    pixel = max(1, int(frames.time[-1]) // _JOINED_FRAMES)
    follows = frames.offset[1:] == frames.offset[:-1] + frames.length[:-1]
    follows &= frames.kind[1:] == frames.kind[:-1]
    follows &= frames.time[1:] // pixel == frames.time[:-1] // pixel
    heads = np.flatnonzero(np.append(True, ~follows))
    return Frames(
        time=frames.time[heads],
        offset=frames.offset[heads],
        length=np.add.reduceat(frames.length, heads),
        kind=frames.kind[heads],
    )


def plot_document(series: Series) -> dict[str, Any]:
    """The data that the interactive plot loads for an iteration that is not shown first: `series.json` with joined
    frames."""
    return series.document | {name: _coded(joined(getattr(series, name))) for name in ("client", "server")}


def _coded(frames: Frames) -> dict[str, list[int]]:
    return {
        "t_us": coded(frames.time),
        "offset": coded(frames.offset),
        "length": frames.length.tolist(),
        "kind": frames.kind.tolist(),
    }


def coded(values: Ints) -> list[int]:
    """The values in delta coding: the first value, then the difference of each value from the previous value."""
    differences: list[int] = np.diff(values, prepend=0).tolist()
    return differences


# Offers the files of a job as downloads: copies of small files, symbolic links to larger files.

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
    """Put the job's small files, and links to its larger files, into `staging`. Return the downloads: none when the job
    has only its result, as after an import. The site has the results of all jobs in one file.

    `final` is the place of `staging` in the finished site; symbolic links are relative to `final`. When links can't be
    made, only the small files are offered. The job's folder may come from an untrusted person. So only files with a
    known name and type are offered, and no symbolic link inside the folder is followed.
    """
    known = [(label, path, path.relative_to(artifacts.folder)) for label, path in _files(artifacts)]
    present = [(*file, about) for file in known if (about := _status(artifacts.folder, file[2])) is not None]
    if [path for _, path, *_ in present] == [artifacts.result]:
        return []
    staging.mkdir(parents=True, exist_ok=True)
    links = _Links(artifacts.folder, staging / _LINKS, final / _LINKS)
    made = {staging}
    downloads = []
    for label, path, inside, about in present:
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
