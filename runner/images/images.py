"""The images of this project and published images: their names, parents, files and states."""

import hashlib
import re
import stat
import tarfile
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import IO

import docker
from docker.errors import ImageNotFound
from docker.utils import exclude_paths

from runner.errors import SetupError, UsageError
from runner.model.implementation import Implementation
from runner.paths import ROOT

OWN_PREFIX = "bentpipe/"
SOURCE_LABEL = "bentpipe.source"

# The tag is the version of the simulator's document and of a seed's losses, because checkouts of different ages may use
# the same engine.
SIMULATOR = "bentpipe/sim:3"
_ALWAYS = {"bentpipe/endpoint": "implementations/_endpoint", SIMULATOR: "sim", "bentpipe/tools": "sim/tools"}
GUEST = {"bentpipe/guest": "guest"}  # only virtual time needs it; building its kernel takes minutes
_BUILDER = re.compile(
    rf"^{OWN_PREFIX}[a-z0-9][a-z0-9._-]*$"
)  # images with another tag, such as the base image, are not built here

# Files that are left out of all images: remains of work in a checkout, and READMEs, so that a change of a README
# rebuilds no image.
_JUNK = (
    "**/README.md",
    "**/.git",
    "**/__pycache__",
    "**/.mypy_cache",
    "**/.ruff_cache",
    "**/node_modules",
    "**/target",
)
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
_COPY_FROM = re.compile(r"^\s*COPY\s+.*--from=(\S+)", re.IGNORECASE | re.MULTILINE)
_ARGUMENT = re.compile(r"^\s*ARG\s+(\w+)=(\S+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that is built, by its tag. `context` is the folder with its Dockerfile."""

    tag: str
    context: Path

    def parents(self) -> frozenset[str]:
        """The tags of images from which the Dockerfile starts or copies, without the Dockerfile's own stages."""
        text = (self.context / "Dockerfile").read_text()
        arguments = dict(_ARGUMENT.findall(text))
        stages = {stage for _, stage in _FROM.findall(text)}
        named = [tag for tag, _ in _FROM.findall(text)] + _COPY_FROM.findall(text)
        tags = {re.sub(r"\$\{?(\w+)\}?", lambda match: arguments.get(match[1], match[0]), tag) for tag in named}
        return frozenset(short(tag) for tag in tags if tag not in stages and not tag.isdigit() and tag != "scratch")


class State(StrEnum):
    """The state of an image, in words."""

    MISSING = "missing"
    STALE = "built from older files"  # also: built on an older parent
    CURRENT = "up to date"
    WORKING = "at work"
    BUILT = "built"
    PULLED = "pulled"
    FAILED = "failed"
    SKIPPED = "not built"  # its parent image failed


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change of an image's state, or a step of its build: number `step` (from 1) of `steps`, with the instruction as
    `text`. For a failure, `text` is the reason. For a built image, `seconds` is the duration of the build, and `reused`
    the number of reused steps.
    """

    tag: str
    state: State
    step: int = 0
    steps: int = 0
    text: str = ""
    seconds: float = 0.0
    reused: int = 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """An image that the engine has. `size` in bytes, including layers that other images have, too."""

    id: str
    size: int
    machine: str  # `linux/amd64`
    source: str  # hash of its sources, empty for a pulled image
    digest: str  # `NAME@sha256:…`, the name in its registry; empty for an image that was built


def held(client: docker.DockerClient, tag: str) -> Held | None:
    """The engine's record of an image; None when the engine doesn't have it."""
    try:
        image = client.images.get(tag)
    except ImageNotFound:
        return None
    facts = image.attrs
    digests = facts.get("RepoDigests") or [""]
    return Held(
        id=image.id or "",
        size=int(facts.get("Size", 0)),
        machine=f"{facts.get('Os', '')}/{facts.get('Architecture', '')}",
        source=image.labels.get(SOURCE_LABEL, ""),
        digest=digests[0],
    )


def images_of(implementations: Iterable[Implementation], root: Path = ROOT, *, guests: bool = False) -> list[Image]:
    """The images to build: images that every run needs, images of the stacks, and the images from which these start or
    copy; with `guests`, also the image of virtual time. The folder implementations/NAME, or implementations/_NAME,
    builds the image bentpipe/NAME. Stacks without a folder are left out. Raises SetupError for a folder without
    Dockerfile, and for an image of this project that no folder builds.
    """
    folders = _ALWAYS | (GUEST if guests else {})
    images = {tag: Image(tag=tag, context=root / folder) for tag, folder in folders.items()}
    for stack in implementations:
        if stack.build is not None:
            image = Image(tag=short(stack.image), context=root / stack.build)
            if image.tag in _parents(root) and not image.tag.startswith(OWN_PREFIX):
                raise UsageError(
                    f"The stack {stack.name} may not build {image.tag}: images of bentpipe start from it. Give it "
                    "another name."
                )
            images[image.tag] = image
    waiting = deque(images.values())
    while waiting:
        image = waiting.popleft()
        if not (image.context / "Dockerfile").is_file():
            raise SetupError(f"The image {image.tag} can't be built: {image.context} has no Dockerfile.")
        for name in ("Dockerfile", ".dockerignore"):
            if not (image.context / name).resolve().is_relative_to(image.context.resolve()):
                raise UsageError(
                    f"The image {image.tag} can't be built: {image.context / name} leads out of its folder."
                )
        for tag in sorted(parent for parent in image.parents() if _BUILDER.match(parent) and parent not in images):
            name, stacks = tag.removeprefix(OWN_PREFIX), root / "implementations"
            folder = stacks / (name if (stacks / name).is_dir() else f"_{name}")
            if not folder.is_dir():
                raise SetupError(f"The image {image.tag} starts from {tag}, and there is no {folder} to make it.")
            images[tag] = Image(tag=tag, context=folder)
            waiting.append(images[tag])
    return list(images.values())


@cache
def _parents(root: Path) -> frozenset[str]:
    """The images from which the images of this project start or copy."""
    folders = [path.parent for path in root.glob("implementations/*/Dockerfile")]
    folders += [root / folder for folder in (*_ALWAYS.values(), *GUEST.values())]
    return frozenset().union(*(Image(tag="", context=folder).parents() for folder in folders))


def short(tag: str) -> str:
    """The tag without `:latest`, which Docker adds to a name without a tag."""
    return tag.removesuffix(":latest")


def states(client: docker.DockerClient, images: Sequence[Image]) -> dict[str, State]:
    """The state of each image: missing, stale or current; parents come first. An image on a stale parent is stale."""
    by_tag = {image.tag: image for image in images}
    parents = {tag: image.parents() & by_tag.keys() for tag, image in by_tag.items()}
    states: dict[str, State] = {}
    for tag in TopologicalSorter(parents).static_order():
        states[tag] = state(client, by_tag[tag])
        if states[tag] is State.CURRENT and any(states[parent] is not State.CURRENT for parent in parents[tag]):
            states[tag] = State.STALE
    return states


def image_ids(client: docker.DockerClient, tags: Iterable[str]) -> dict[str, str]:
    """The content-addressed id (`sha256:…`) of each tag. Raises SetupError for a missing image."""
    ids = {}
    for tag in tags:
        image = held(client, tag)
        if image is None:
            raise SetupError(f"The image {tag} is missing: run `./bentpipe build`.")
        ids[tag] = image.id
    return ids


def source_hash(context: IO[bytes], parent_ids: Mapping[str, str]) -> str:
    """SHA-256 of a build context (as tar) and the ids of the parent images. An image whose hash is unchanged is not
    built again."""
    digest = hashlib.sha256()
    while block := context.read(1 << 20):
        digest.update(block)
    context.seek(0)
    for tag, image_id in sorted(parent_ids.items()):
        digest.update(f"\0{tag}={image_id}".encode())
    return digest.hexdigest()


@contextmanager
def context_tar(folder: Path) -> Iterator[IO[bytes]]:
    """The files of a build context as a tar. It depends only on their names, contents and executable bits.

    Leaves out READMEs and files that the folder's .dockerignore names. It contains no owner and no time, and the umask
    has no effect, so that two checkouts make the same images.
    """
    ignore = folder / ".dockerignore"
    lines = ignore.read_text().splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    with tempfile.TemporaryFile(prefix="bentpipe-context-") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in sorted(exclude_paths(str(folder), [*_JUNK, *patterns])):
                _add(archive, folder, name)
        file.seek(0)
        yield file


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    entry = archive.gettarinfo(str(path), arcname=name)
    if entry is None:  # sockets have no entry in a tar
        return
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.isdir() or entry.mode & stat.S_IXUSR else 0o644
    if entry.isreg():
        with path.open("rb") as content:
            archive.addfile(entry, content)
    elif entry.isdir() or entry.issym():
        archive.addfile(entry)


def parent_ids(client: docker.DockerClient, image: Image) -> dict[str, str]:
    """The ids of an image's parents that this project builds; empty for a missing parent. Published parents are left
    out: the engine has no id for them before the first build pulls them.
    """
    parents = {tag: held(client, tag) for tag in image.parents() if tag.startswith(OWN_PREFIX)}
    return {tag: facts.id if facts else "" for tag, facts in parents.items()}


def state(client: docker.DockerClient, image: Image) -> State:
    """The state of an image: missing, stale or current, from its own files and the ids of its parents."""
    present = held(client, image.tag)
    if present is None:
        return State.MISSING
    with context_tar(image.context) as context:
        expected = source_hash(context, parent_ids(client, image))
    return State.CURRENT if present.source == expected else State.STALE
