"""Reads images from archives of `docker save`, for users who may not use an engine."""

import gzip
import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from runner.errors import LaneError, UsageError

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"  # OCI image specification, "Whiteouts"
_LARGEST_JSON = 16 << 20  # bytes
_ARCHITECTURE = "amd64"


@dataclass(frozen=True, kw_only=True)
class SavedImage:
    """An image in an archive. `config` is as `docker image inspect` shows it. `layers`: names of the archive's members,
    the lowest layer first."""

    archive: Path
    id: str  # `sha256:…`
    config: Mapping[str, Any]
    layers: tuple[str, ...]


class SavedImages:
    """The images of archives, by tag. A source of disks (disks.py)."""

    def __init__(self, images: Mapping[str, SavedImage], origin: Path) -> None:
        self._images = images
        self._origin = origin

    @classmethod
    def open(cls, origin: Path) -> "SavedImages":
        """`origin`: an archive, or a folder with `*.tar`. Raises UsageError for files that `docker save` has not
        written."""
        if not origin.exists():
            raise UsageError(
                f"--rootless: there is no {origin}; a user with Docker makes it with "
                f"`docker save -o {origin} IMAGE…` (docs/virtual-time.md)."
            )
        archives = sorted(origin.glob("*.tar")) if origin.is_dir() else [origin]
        if not archives:
            raise UsageError(f"--rootless {origin}: expected at least one archive (*.tar) of `docker save` in there.")
        images: dict[str, SavedImage] = {}
        for archive in archives:
            images |= _read(archive)
        return cls(images, origin)

    def __contains__(self, image: str) -> bool:
        """True when an archive has the image."""
        return _tag(image) in self._images

    def missing(self, image: str) -> str:
        """A sentence that says how to get a missing image."""
        return (
            f"--rootless {self._origin}: no archive there has the image {image}; a user with Docker can write it "
            f"with `docker save -o FILE.tar {image}`."
        )

    def image_id(self, image: str) -> str:
        """The id of an image. Raises UsageError when no archive has it."""
        return self._find(image).id

    def image_config(self, image: str) -> Mapping[str, Any]:
        """The image's configuration: User, Env, Entrypoint, Cmd, WorkingDir."""
        return self._find(image).config

    def files(self, image: str) -> frozenset[str]:
        """The absolute paths of all files and folders in the image. Raises LaneError for a broken archive."""
        image_saved = self._find(image)
        try:
            with tarfile.open(image_saved.archive) as archive:
                return frozenset(_shown(archive, image_saved.layers))
        except (tarfile.TarError, OSError, KeyError, EOFError) as error:
            raise LaneError("no-disk", f"{image_saved.archive} is broken: {error}") from error

    def write_root(self, image: str, path: Path) -> None:
        """Write the image's root folder as a tar file. Raises LaneError for a broken archive."""
        image_saved = self._find(image)
        try:
            with (
                tarfile.open(image_saved.archive) as archive,
                tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as root,
            ):
                _merge(archive, image_saved.layers, root)
        except (tarfile.TarError, OSError, KeyError, EOFError) as error:
            raise LaneError("no-disk", f"{image_saved.archive} is broken: {error}") from error

    def _find(self, image: str) -> SavedImage:
        if image not in self:
            raise UsageError(self.missing(image))
        return self._images[_tag(image)]


def _tag(image: str) -> str:
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def _read(archive: Path) -> dict[str, SavedImage]:
    images: dict[str, SavedImage] = {}
    try:
        with tarfile.open(archive) as tar:
            for entry in json.loads(_content(tar, "manifest.json")):
                text = _content(tar, entry["Config"])
                about = json.loads(text)
                if about.get("architecture") != _ARCHITECTURE:
                    raise UsageError(
                        f"--rootless {archive}: {entry['RepoTags']} is for {about.get('architecture')}; guests run "
                        f"images for {_ARCHITECTURE}."
                    )
                image = SavedImage(
                    archive=archive,
                    id=f"sha256:{hashlib.sha256(text).hexdigest()}",
                    config=about.get("config") or {},
                    layers=tuple(entry["Layers"]),
                )
                images |= dict.fromkeys(entry.get("RepoTags") or (), image)
    except (tarfile.TarError, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"--rootless {archive}: expected an archive that `docker save` wrote ({error}).") from None
    return images


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file.read(_LARGEST_JSON)


@contextmanager
def _layer(archive: tarfile.TarFile, name: str) -> Iterator[tarfile.TarFile]:
    """A layer, which may be compressed with gzip."""
    file: IO[bytes] | None = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    with tarfile.open(fileobj=gzip.GzipFile(fileobj=file) if packed else file) as layer:
        yield layer


def _merge(archive: tarfile.TarFile, layers: Sequence[str], root: tarfile.TarFile) -> None:
    """Merge the layers into the tar file `root`."""
    shown = _shown(archive, layers)
    for number, name in enumerate(layers):
        with _layer(archive, name) as layer:
            for member in layer:
                if _is_of(shown, member.name, number):
                    _copy(layer, member, root, linked=_is_of(shown, member.linkname, number))


def _shown(archive: tarfile.TarFile, layers: Sequence[str]) -> dict[str, "_Entry"]:
    """The visible entries by path: files of an upper layer hide files of lower layers."""
    shown: dict[str, _Entry] = {}
    for number, name in enumerate(layers):
        with _layer(archive, name) as layer:
            added: dict[str, _Entry] = {}
            for member in layer:
                path = _path(member.name)
                folder, _, base = path.rpartition("/")
                if base == _OPAQUE:
                    _hide_below(shown, folder)
                elif base.startswith(_WHITEOUT):
                    _hide(shown, f"{folder}/{base.removeprefix(_WHITEOUT)}")
                else:
                    if not member.isdir():
                        _hide(shown, path)
                    added[path] = _Entry(layer=number, folder=member.isdir())
            shown |= added
    return shown


@dataclass(frozen=True, kw_only=True)
class _Entry:
    layer: int  # number of the layer whose entry is visible
    folder: bool


def _path(name: str) -> str:
    return str(PurePosixPath("/") / name)


def _is_of(shown: Mapping[str, _Entry], name: str, layer: int) -> bool:
    entry = shown.get(_path(name))
    return entry is not None and entry.layer == layer


def _hide(shown: dict[str, _Entry], path: str) -> None:
    """Remove the entries of lower layers at `path`."""
    entry = shown.pop(path, None)
    if entry is not None and entry.folder:
        _hide_below(shown, path)


def _hide_below(shown: dict[str, _Entry], folder: str) -> None:
    for name in [name for name in shown if name.startswith(f"{folder}/")]:
        del shown[name]


def _copy(layer: tarfile.TarFile, member: tarfile.TarInfo, root: tarfile.TarFile, *, linked: bool) -> None:
    """Add a member of a layer. `linked`: the target of the hard link is visible, too. For another hard link, the
    content of its target is added."""
    if member.islnk() and not linked:
        target = layer.getmember(member.linkname)
        root.addfile(target.replace(name=member.name), layer.extractfile(target))
    else:
        root.addfile(member, layer.extractfile(member) if member.isreg() else None)
