"""The images of this project: built in the order of their Dockerfiles, skipped when nothing in them changed."""

import hashlib
import queue
import re
import stat
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from graphlib import TopologicalSorter
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import DockerException, ImageNotFound
from docker.utils import exclude_paths

from runner.errors import SetupError
from runner.model.implementation import Implementation

ROOT = Path(__file__).resolve().parents[2]
OWN_PREFIX = "bentpipe/"
SOURCE_LABEL = "bentpipe.source"
LOG_LINES = 15

_ALWAYS = {"bentpipe/endpoint": "implementations/_endpoint", "bentpipe/sim": "sim", "bentpipe/tools": "sim/tools"}
_BUILDER = re.compile(rf"^{OWN_PREFIX}[^:]+$")  # with a tag of its own, as the base image has, it comes from elsewhere

# What a checkout gathers by being worked in, for folders without a .dockerignore of their own.
_JUNK = ("**/.git", "**/__pycache__", "**/.mypy_cache", "**/.ruff_cache", "**/node_modules", "**/target")
_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_BUILDER_TALK = (" --->", "Removing intermediate container ")
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
_COPY_FROM = re.compile(r"^\s*COPY\s+.*--from=(\S+)", re.IGNORECASE | re.MULTILINE)
_ARGUMENT = re.compile(r"^\s*ARG\s+(\w+)=(\S+)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image by its tag. `context` is the folder with its Dockerfile; None: a published image that is pulled."""

    tag: str
    context: Path | None

    def parents(self) -> frozenset[str]:
        """The tags that its Dockerfile starts from or copies from, without the stages of its own."""
        if self.context is None:
            return frozenset()
        text = (self.context / "Dockerfile").read_text()
        arguments = dict(_ARGUMENT.findall(text))
        stages = {stage for _, stage in _FROM.findall(text)}
        named = [tag for tag, _ in _FROM.findall(text)] + _COPY_FROM.findall(text)
        tags = {re.sub(r"\$\{?(\w+)\}?", lambda match: arguments.get(match[1], match[0]), tag) for tag in named}
        return frozenset(short(tag) for tag in tags if tag not in stages and not tag.isdigit() and tag != "scratch")


class State(StrEnum):
    """Where an image stands."""

    MISSING = "missing"
    STALE = "stale"  # built from other files, or on another parent
    CURRENT = "current"
    WORKING = "working"
    BUILT = "built"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change of one image's state, or a step of its build: `step` of `steps` and the instruction, from 1."""

    tag: str
    state: State
    step: int = 0
    steps: int = 0
    text: str = ""


def images_of(implementations: Iterable[Implementation], root: Path = ROOT) -> list[Image]:
    """The images that every run needs, those of the stacks, and the builders that these start or copy from.

    The folder implementations/_NAME is the image bentpipe/NAME. Raises SetupError for a folder without Dockerfile, and
    for an image of this project that no folder makes.
    """
    images = {tag: Image(tag=tag, context=root / folder) for tag, folder in _ALWAYS.items()}
    for stack in implementations:
        tag = short(stack.image)
        images[tag] = Image(tag=tag, context=root / stack.build if stack.build is not None else None)
    waiting = deque(images.values())
    while waiting:
        image = waiting.popleft()
        if image.context is not None and not (image.context / "Dockerfile").is_file():
            raise SetupError(f"The image {image.tag} can't be built: {image.context} has no Dockerfile.")
        for tag in sorted(parent for parent in image.parents() if _BUILDER.match(parent) and parent not in images):
            folder = root / "implementations" / f"_{tag.removeprefix(OWN_PREFIX)}"
            if not folder.is_dir():
                raise SetupError(f"The image {image.tag} starts from {tag}, and there is no {folder} to make it.")
            images[tag] = Image(tag=tag, context=folder)
            waiting.append(images[tag])
    return list(images.values())


def short(tag: str) -> str:
    """The tag without `:latest`, which Docker adds where none is written."""
    return tag.removesuffix(":latest")


def build(
    client: docker.DockerClient, images: Sequence[Image], *, report: Callable[[Event], None], parallel: int = 2
) -> dict[str, str]:
    """Make every image that is missing or stale, `parallel` at once where none waits for another. Returns tag → id.

    `report` is called from the threads that build. Raises SetupError with the first failure; what still builds then is
    cancelled by the engine when this process ends.
    """
    by_tag = {image.tag: image for image in images}
    order = TopologicalSorter({tag: image.parents() & by_tag.keys() for tag, image in by_tag.items()})
    order.prepare()
    ended: queue.Queue[tuple[str, BaseException | None]] = queue.Queue()

    def work(image: Image) -> None:
        try:
            _make(client, image, report)
        except Exception as error:
            report(Event(tag=image.tag, state=State.FAILED))
            ended.put((image.tag, error))
        else:
            ended.put((image.tag, None))

    waiting: deque[str] = deque()
    running = 0
    while order.is_active():
        waiting.extend(sorted(order.get_ready()))
        while waiting and running < parallel:
            threading.Thread(target=work, args=(by_tag[waiting.popleft()],), daemon=True).start()
            running += 1
        tag, error = ended.get()
        running -= 1
        if isinstance(error, DockerException | OSError):
            raise SetupError(f"The image {tag} can't be made: {error}.") from error
        if error is not None:
            raise error
        order.done(tag)
    return image_ids(client, by_tag)


def states(client: docker.DockerClient, images: Sequence[Image]) -> dict[str, State]:
    """Whether each image is missing, stale or current, parents first. An image on a stale parent is stale."""
    by_tag = {image.tag: image for image in images}
    parents = {tag: image.parents() & by_tag.keys() for tag, image in by_tag.items()}
    found: dict[str, State] = {}
    for tag in TopologicalSorter(parents).static_order():
        found[tag] = _state(client, by_tag[tag])
        if found[tag] is State.CURRENT and any(found[parent] is not State.CURRENT for parent in parents[tag]):
            found[tag] = State.STALE
    return found


def image_ids(client: docker.DockerClient, tags: Iterable[str]) -> dict[str, str]:
    """The content-addressed id (`sha256:…`) of each tag. Raises SetupError for an image that isn't there."""
    ids = {tag: _id(client, tag) for tag in tags}
    for tag, found in ids.items():
        if not found:
            raise SetupError(f"The image {tag} is missing: run `./bentpipe build`.")
    return ids


def source_hash(context: IO[bytes], parent_ids: Mapping[str, str]) -> str:
    """SHA-256 over a build context (as tar) and the ids of the images below; equal means nothing is to be built."""
    digest = hashlib.sha256()
    while block := context.read(1 << 20):
        digest.update(block)
    context.seek(0)
    for tag, image_id in sorted(parent_ids.items()):
        digest.update(f"\0{tag}={image_id}".encode())
    return digest.hexdigest()


@contextmanager
def context_tar(folder: Path) -> Iterator[IO[bytes]]:
    """The files of a build context as a tar that depends on their names, contents and executable bits alone.

    Leaves out what the folder's .dockerignore names. Without owner, time and umask, two checkouts make the same images.
    """
    ignore = folder / ".dockerignore"
    own = ignore.read_text().splitlines() if ignore.is_file() else []
    patterns = [line.strip() for line in own if line.strip() and not line.startswith("#")]
    with tempfile.TemporaryFile(prefix="bentpipe-context-") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in sorted(exclude_paths(str(folder), [*_JUNK, *patterns])):
                _add(archive, folder, name)
        file.seek(0)
        yield file


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    path = folder / name
    entry = archive.gettarinfo(str(path), arcname=name)
    if entry is None:  # a socket
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


def _id(client: docker.DockerClient, tag: str) -> str:
    try:
        return client.images.get(tag).id or ""
    except ImageNotFound:
        return ""


def _state(client: docker.DockerClient, image: Image) -> State:
    try:
        labels = client.images.get(image.tag).labels
    except ImageNotFound:
        return State.MISSING
    if image.context is None:
        return State.CURRENT
    with context_tar(image.context) as context:
        wanted = source_hash(context, _parent_ids(client, image))
    return State.CURRENT if labels.get(SOURCE_LABEL) == wanted else State.STALE


def _parent_ids(client: docker.DockerClient, image: Image) -> dict[str, str]:
    # A published parent is named by the Dockerfile, and the engine has no id of it before the first build pulls it.
    return {tag: _id(client, tag) for tag in image.parents() if tag.startswith(OWN_PREFIX)}


def _make(client: docker.DockerClient, image: Image, report: Callable[[Event], None]) -> None:
    before = _id(client, image.tag)
    if _state(client, image) is State.CURRENT:
        report(Event(tag=image.tag, state=State.CURRENT))
        return
    report(Event(tag=image.tag, state=State.WORKING))
    if image.context is None:
        _pull(client, image.tag, report)
    else:
        with context_tar(image.context) as context:
            label = source_hash(context, _parent_ids(client, image))
            _build(client, image.tag, context, label, report)
    if before and before != _id(client, image.tag):
        _remove_untagged(client, before)
    report(Event(tag=image.tag, state=State.BUILT))


def _build(
    client: docker.DockerClient, tag: str, context: IO[bytes], label: str, report: Callable[[Event], None]
) -> None:
    """Build one image with the engine's own builder. Raises SetupError with the step and the last lines."""
    lines: deque[str] = deque(maxlen=LOG_LINES)
    at = Event(tag=tag, state=State.WORKING)
    events: Iterator[dict[str, Any]] = client.api.build(
        fileobj=context, custom_context=True, tag=tag, labels={SOURCE_LABEL: label}, rm=True, forcerm=True, decode=True
    )
    for event in events:
        for line in event.get("stream", "").splitlines():
            if step := _STEP.match(line):
                at = Event(tag=tag, state=State.WORKING, step=int(step[1]), steps=int(step[2]), text=step[3])
                report(at)
            elif line.strip() and not line.startswith(_BUILDER_TALK):
                lines.append(line.rstrip())
        if "error" in event:
            where = f"step {at.step} of {at.steps} (`{at.text}`)" if at.step else "the Dockerfile"
            code = event.get("errorDetail", {}).get("code")
            how = f"failed with exit code {code}" if code else f"failed: {event['error']}"
            log = "\n".join(("Its last lines:", *lines)) if lines else "It printed nothing."
            raise SetupError(f"The image {tag} doesn't build: {where} {how}. {log}")


def _pull(client: docker.DockerClient, tag: str, report: Callable[[Event], None]) -> None:
    """Pull a published image; a step of its progress is a layer."""
    repository, _, name = tag.rpartition(":") if ":" in tag.rpartition("/")[2] else (tag, "", "latest")
    layers: dict[str, bool] = {}
    for event in client.api.pull(repository, tag=name, stream=True, decode=True):
        if "error" in event:
            raise SetupError(
                f"The image {tag} can't be pulled: {event['error']}. Load it into the engine, or build it."
            )
        if "id" in event and event.get("status") in ("Pulling fs layer", "Pull complete", "Already exists"):
            layers[event["id"]] = event["status"] != "Pulling fs layer"
            report(
                Event(tag=tag, state=State.WORKING, step=sum(layers.values()), steps=len(layers), text="pulling layers")
            )


def _remove_untagged(client: docker.DockerClient, image_id: str) -> None:
    """Remove what a rebuilt image leaves behind; the engine refuses where another image or a container uses it."""
    try:
        client.images.remove(image_id)
    except DockerException:
        return
