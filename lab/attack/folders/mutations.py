"""Mutates a run folder: changes files by their format, and replaces files and folders by links, pipes, devices and odd
names."""

import os
import shutil
import socket
import stat
import subprocess
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from lab.attack.folders import binaries, documents
from lab.attack.folders.documents import ALARM

CANARY = Path("/srv/canary")  # a separate file system that no command should touch
_TARGETS = (
    *(f"{CANARY}/secret", f"{CANARY}/precious", f"{CANARY}/run/quinn_quinn/handshake/1", "/etc/shadow", "/etc", "/"),
    *("/proc/self/environ", "/proc/1/maps", "/dev/zero", "/dev/random", "/dev/stdin", ".", "..", "loop", "missing"),
    *("../../../../../../../srv/canary/secret", "../../../good/run.json", "../../../good/quinn_quinn"),
)
_DEVICES = ((1, 5), (1, 7), (1, 8), (1, 3), (5, 0))  # zero, full, random, null, tty (Linux: devices.txt)
_LARGEST = 64 << 20  # bytes; larger files, which an earlier change made, are not changed again
_ODD_NAMES = (
    b"\xff\xfe\x80",
    b"a\nb",
    b"\x1b[31m",
    b"x" * 255,
    b" ",
    b"%2e%2e%2f",
    b"-rf",
    b"<b>&\"'",
    b"\xe2\x80\xaeexe",
)


def mutate(rng: Random, folder: Path) -> list[str]:
    """Make a few changes to the run in `folder`. Returns a line for each change, with its kind and its place."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.lstat().st_size < _LARGEST
        ]
        if not files:
            break
        path = _chosen(rng, files)
        kind = rng.choices(("content", "entry", "tree"), (80, 14, 6))[0]
        change: Callable[[Random, Path, Path], str]
        change = {"content": _content, "entry": _entry, "tree": _tree}[kind]
        with suppress(OSError, ValueError, EOFError, zlib.error):  # an earlier change may have broken the file
            done.append(f"{change(rng, path, folder)}: {path.relative_to(folder)}")
    return done


def _chosen(rng: Random, files: list[Path]) -> Path:
    """Choose a file. The documents that every command reads are chosen more often than other files."""
    documents_ = [path for path in files if path.name in ("run.json", "result.json", "evidence.json", "series.json")]
    return rng.choice(documents_ if documents_ and rng.random() < 0.65 else files)


def _content(rng: Random, path: Path, folder: Path) -> str:  # noqa: ARG001 - all changes have the same parameters
    data = path.read_bytes()
    if path.suffix == ".pcap" and rng.randrange(3) == 0:
        binaries.seal_again(rng, path.parents[1])
        return "frames"
    if path.suffix == ".json":
        kind, made = "document", documents.mutated(rng, data, path.name)
    elif path.suffix == ".parquet":
        kind, made = "table", binaries.table(rng, data)
    elif path.suffix in (".pcap", ".pcapng"):
        kind, made = "capture", binaries.capture(rng, data)
    elif path.name == "keys.log":
        kind, made = "key log", binaries.key_log(rng, data)
    else:
        kind, made = "log", binaries.log(rng, path, data)
    path.unlink()  # the file may be read-only
    path.write_bytes(made)
    return kind


def _entry(rng: Random, path: Path, folder: Path) -> str:
    """Replace a file or its folder by an object of another kind."""
    if rng.randrange(4) == 0 and path.parent != folder:
        path = path.parent
    away = path.with_name(f"{path.name}.away")
    path.rename(away)
    if rng.randrange(3):
        shutil.rmtree(away) if away.is_dir() else away.unlink()
    kind = rng.randrange(9)
    if kind <= 3:
        path.symlink_to(rng.choice(_TARGETS))
        return "symbolic link"
    if kind == 4:
        os.mkfifo(path)
        return "pipe"
    if kind == 5:
        mode = rng.choice((stat.S_IFCHR, stat.S_IFBLK if rng.randrange(4) == 0 else stat.S_IFCHR)) | 0o666
        os.mknod(path, mode, os.makedev(*rng.choice(_DEVICES)))
        return "device"
    if kind == 6:
        path.mkdir()
        (path / "inside").write_bytes(b"{}")
        return "folder"
    if kind == 7:
        with path.open("wb") as file:
            file.truncate(rng.choice((10 << 20, 1 << 30, 1 << 40)))
        return "sparse file"
    _bind_socket(path)
    return "socket"


def _plant_pages(rng: Random, folder: Path) -> None:
    """Files that a browser would run, with names that a site may contain."""
    for name in rng.sample(("evil.html", "evil.svg", "evil.js", "evil.xhtml", "index.html", "series.js", "a.qlog"), 3):
        (folder / name).write_text(f"<html><body>{ALARM}</body></html>\n")


def _copy(source: Path, target: Path) -> None:
    """Copy a folder exactly: pipes are copied as pipes, and sparse files stay sparse."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=False, capture_output=True)


def _bind_socket(path: Path) -> None:
    """Make a socket at `path`, from within its folder, because the whole path may be too long for a socket's
    address."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _tree(rng: Random, path: Path, folder: Path) -> str:
    """Make many files and folders, with odd names, large numbers or great depth."""
    kind = rng.randrange(8)
    above = os.fsencode(path.parent)
    if kind == 0:
        Path(os.fsdecode(above + b"/" + rng.choice(_ODD_NAMES))).write_bytes(path.read_bytes())
        return "odd name"
    if kind == 1:
        job = next((above for above in path.parents if above.parent.parent.parent == folder), None)
        if job is not None:
            place = job.parent / rng.choice(("0", "-1", "01", "99999999999999999999", "x", "²"))
            _copy(job, place)
        return "another iteration"
    if kind == 2:
        odd = Path(os.fsdecode(os.fsencode(folder) + b"/" + rng.choice(_ODD_NAMES) + b"_b"))
        _copy(folder / path.relative_to(folder).parts[0], odd) if path.parent != folder else odd.mkdir()
        return "odd pair"
    if kind == 3:
        deep = path.parent
        for _ in range(rng.choice((14, 300))):
            deep = deep / "d"
        with suppress(OSError):
            deep.mkdir(parents=True)
        return "depth"
    if kind == 4:
        for index in range(rng.choice((300, 3000))):
            (path.parent / f"f{index}.qlog").touch()
        _plant_pages(rng, path.parent)
        return "many files"
    if kind == 5:
        path.unlink()
        return "missing file"
    if kind == 6:
        path.chmod(0)
        return "no rights"
    path.write_bytes(b"")
    return "empty file"
