"""Images as disks that a guest mounts: one EROFS file for each, made once, with owners and modes as in the image."""

import json
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.guests.house import House
from runner.store import write_atomically

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UUID = "00000000-0000-4000-8000-000000000000"  # a disk is a function of its image


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk and how the image's first process is started. `user` and `group` as numbers."""

    path: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str = "/"
    user: int = 0
    group: int = 0


class Disks:
    """Disks of an engine's images in one folder of this host. Thread-safe."""

    def __init__(self, engine: Engine, house: House, folder: Path) -> None:
        self._engine = engine
        self._house = house
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Disk] = {}

    @property
    def folder(self) -> Path:
        return self._folder

    def of(self, image: str) -> Disk:
        """The disk of an image, made when there is none. Raises LaneError when it can't be made."""
        image_id = self._engine.image_id(image).removeprefix("sha256:")
        with self._lock:
            if image_id not in self._known:
                path = self._folder / f"{image_id}.erofs"
                about = path.with_suffix(".json")
                if not (path.is_file() and about.is_file()):
                    self._make(image, path, about)
                self._known[image_id] = _disk(path, json.loads(about.read_text()))
            return self._known[image_id]

    def _make(self, image: str, path: Path, about: Path) -> None:
        archive = path.with_suffix(".tar")
        made = self._engine.create(f"{self._house.name}-{path.stem[:12]}", _exported(image))
        try:
            with archive.open("wb") as file:
                for block in self._engine.export(made):
                    file.write(block)
            names = _names(archive)
            unfinished = path.with_suffix(".part")
            unfinished.unlink(missing_ok=True)
            command = ["mkfs.erofs", "--quiet", f"-U{_UUID}", "--tar=f", str(unfinished), str(archive)]
            code, said = self._house.execute(command)
            if code != 0:
                raise LaneError("no-disk", f"The disk of {image} can't be made: {said.strip()[-300:]}")
            unfinished.replace(path)
        finally:
            archive.unlink(missing_ok=True)
            self._engine.remove(made)
        write_atomically(about, json.dumps({"config": self._engine.image_config(image), **names}).encode())


def _exported(image: str) -> ContainerSpec:
    return ContainerSpec(image=image, role="disk", command=("none",), host={"network_mode": "none"})


def _names(archive: Path) -> dict[str, str]:
    """/etc/passwd and /etc/group of an exported image; empty where it has none."""
    found = {"passwd": "", "group": ""}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./").removeprefix("etc/")
            if name in found and member.name.endswith(f"etc/{name}") and (source := tar.extractfile(member)):
                found[name] = source.read(1 << 20).decode(errors="replace")
    return found


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
    """User, group and home of an image's USER, `name`, `name:group` or numbers, as the engine reads it.

    Raises LaneError for a name that the image doesn't know.
    """
    name, _, group = declared.partition(":")
    entries = [fields for line in passwd.splitlines() if len(fields := line.split(":")) >= 6]
    found = next((entry for entry in entries if name in (entry[0], entry[2])), None) if name else None
    if not name:
        found = next((entry for entry in entries if entry[2] == "0"), None)
    if name and found is None and not name.isdigit():
        raise LaneError("client-not-started", f"The image's user '{name}' is not in its /etc/passwd.")
    user = int(found[2]) if found else int(name or 0)
    number = int(found[3]) if found else 0
    if group:
        number = _group(group, groups)
    return user, number, found[5] if found else "/root" if user == 0 else "/"


def _group(name: str, groups: str) -> int:
    entries: Sequence[Sequence[str]] = [line.split(":") for line in groups.splitlines()]
    found = next((entry for entry in entries if len(entry) >= 3 and name in (entry[0], entry[2])), None)
    if found is None and not name.isdigit():
        raise LaneError("client-not-started", f"The image's group '{name}' is not in its /etc/group.")
    return int(found[2]) if found else int(name)
