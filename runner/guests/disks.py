"""Turns images into disks that a guest mounts: one EROFS file for each image, with the image's owners and modes."""

import json
import shutil
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.collect import extract_file
from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.files.folder_lock import own_folder
from runner.guests.launcher import Launcher
from runner.store import write_atomically
from runner.units import MIB

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LARGEST = 64 << 30  # bytes of a disk
_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk, and how the image's first process is started. `user` and `group` are numbers."""

    path: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str = "/"
    user: int = 0
    group: int = 0


class Images(Protocol):
    """A source of images: an engine, or archives (saved_images.py)."""

    def image_id(self, image: str) -> str:
        """The id of an image, `sha256:…`. Raises an error for a missing image."""
        ...

    def image_config(self, image: str) -> Mapping[str, Any]:
        """User, Env, Entrypoint, Cmd, WorkingDir, as `docker image inspect` shows them."""
        ...

    def write_root(self, image: str, path: Path) -> None:
        """Write the image's root folder as a tar file. Raises LaneError."""
        ...


class EngineImages:
    """The images of an engine. `name`: the beginning of the names of containers that are made to export images."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self.image_id = engine.image_id
        self.image_config = engine.image_config

    def write_root(self, image: str, path: Path) -> None:
        """Write the image's root folder as a tar file. Raises LaneError."""
        made = self._engine.create(f"{self._name}-{path.stem[:12]}", _exported(image))
        try:
            with path.open("wb") as file:
                for block in self._engine.export(made):
                    file.write(block)
        finally:
            self._engine.remove(made)

    def text(self, image: str, path: str, place: Path) -> str:
        """The text of a small file of an image, which is copied to `place`. Raises LaneError."""
        made = self._engine.create(f"{self._name}-{place.name}", _exported(image))
        try:
            extract_file(self._engine.archive(made, path), place, budget=MIB)
        finally:
            self._engine.remove(made)
        return place.read_text(errors="replace")


class Disks:
    """Disks of images in one folder of this host, which only this user may write. Thread-safe."""

    def __init__(self, images: Images, launcher: Launcher, folder: Path) -> None:
        """`folder` is made if necessary. Raises SetupError when it belongs to somebody else."""
        self._images = images
        self._launcher = launcher
        self._folder = own_folder(folder)
        self._lock = threading.Lock()
        self._known: dict[str, Disk] = {}

    @property
    def folder(self) -> Path:
        return self._folder

    def of(self, image: str) -> Disk:
        """The disk of an image, made at its first use. Raises LaneError when it can't be made."""
        image_id = self._images.image_id(image).removeprefix("sha256:")
        with self._lock:
            if image_id not in self._known:
                path = self._folder / f"{image_id}.erofs"
                about = path.with_suffix(".json")
                if not (path.is_file() and about.is_file()):
                    self._make(image, path, about)
                self._known[image_id] = _disk(path, json.loads(about.read_text()))
            return self._known[image_id]

    def _make(self, image: str, path: Path, about: Path) -> None:
        archive, result = path.with_suffix(".tar"), path.with_suffix(".part")
        shutil.rmtree(result, ignore_errors=True)
        try:
            self._images.write_root(image, archive)
            names = _names(archive)
            files = [("root.tar", archive)]
            made = self._launcher.run("disk", files, result, budget=_LARGEST, seconds=_SECONDS)
            disk = result / "out" / "disk"
            if made.get("exit_code") != 0 or not disk.is_file():
                printed = (result / "console").read_text(errors="replace") if (result / "console").is_file() else ""
                raise LaneError("no-disk", f"The disk of {image} can't be made.", printed=printed)
            disk.chmod(0o644)  # the users of guests read it
            disk.replace(path)
        finally:
            archive.unlink(missing_ok=True)
            shutil.rmtree(result, ignore_errors=True)
        write_atomically(about, json.dumps({"config": self._images.image_config(image), **names}).encode())


def _exported(image: str) -> ContainerSpec:
    return ContainerSpec(image=image, role="disk", command=("none",), host={"network_mode": "none"})


def _names(archive: Path) -> dict[str, str]:
    """The texts of /etc/passwd and /etc/group of an exported image; empty for a missing file."""
    texts = {"passwd": "", "group": ""}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./").removeprefix("etc/")
            if name in texts and member.name.endswith(f"etc/{name}") and (source := tar.extractfile(member)):
                texts[name] = source.read(1 << 20).decode(errors="replace")
    return texts


def _disk(path: Path, about: Mapping[str, Any]) -> Disk:
    config = about["config"]
    user, group, home = owner(config.get("User") or "", about["passwd"], about["group"])
    declared = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    return Disk(
        path=path,
        command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        environment={"PATH": _PATH, "HOME": home, **declared},
        folder=config.get("WorkingDir") or "/",
        user=user,
        group=group,
    )


def owner(declared: str, passwd: str, groups: str) -> tuple[int, int, str]:
    """User, group and home of an image's USER (`name`, `name:group` or numbers), by the engine's rules. Raises
    LaneError for a name that the image doesn't have.
    """
    name, _, group = declared.partition(":")
    entries = [fields for line in passwd.splitlines() if len(fields := line.split(":")) >= 6]
    fields_of_user = next((entry for entry in entries if name in (entry[0], entry[2])), None) if name else None
    if not name:
        fields_of_user = next((entry for entry in entries if entry[2] == "0"), None)
    if name and fields_of_user is None and not name.isdigit():
        raise LaneError("client-not-started", f"The image's user '{name}' is not in its /etc/passwd.")
    user = int(fields_of_user[2]) if fields_of_user else int(name or 0)
    number = int(fields_of_user[3]) if fields_of_user else 0
    if group:
        number = _group(group, groups)
    return user, number, fields_of_user[5] if fields_of_user else "/root" if user == 0 else "/"


def _group(name: str, groups: str) -> int:
    entries: Sequence[Sequence[str]] = [line.split(":") for line in groups.splitlines()]
    fields_of_group = next((entry for entry in entries if len(entry) >= 3 and name in (entry[0], entry[2])), None)
    if fields_of_group is None and not name.isdigit():
        raise LaneError("client-not-started", f"The image's group '{name}' is not in its /etc/group.")
    return int(fields_of_group[2]) if fields_of_group else int(name)
