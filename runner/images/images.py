"""The images of this project and published images: names, states, facts, builds."""

import hashlib
import json
import queue
import re
import stat
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache, partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import DockerException, ImageNotFound, NotFound
from docker.utils import exclude_paths
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from urllib3.exceptions import HTTPError

from runner.engine import engine
from runner.engine.containers import LABEL_OWNER
from runner.engine.engine import Owner
from runner.errors import SetupError, UsageError
from runner.model.stack import Implementation
from runner.paths import HOME, ROOT
from runner.store.runs import write_atomically
from runner.units import format_duration

# The images of this project and published images: their names, parents, files and states.

OWN_PREFIX = "bentpipe/"
SOURCE_LABEL = "bentpipe.source"

# The tag is the version of the simulator's document and of a seed's losses, because checkouts of different ages may use
# the same engine.
SIMULATOR = "bentpipe/sim:5"
_ALWAYS = {"bentpipe/endpoint": "implementations/_endpoint", SIMULATOR: "sim", "bentpipe/tools": "sim/tools"}
GUEST = {"bentpipe/guest": "guest"}  # only virtual time needs it; building its kernel takes minutes
# Images with a tag, such as the base image, are not built here.
_BUILDER = re.compile(rf"^{OWN_PREFIX}[a-z0-9][a-z0-9._-]*$")

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


class ImageState(StrEnum):
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
    the number of reused steps."""

    tag: str
    state: ImageState
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
    Dockerfile, and for an image of this project that no folder builds."""
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
    own = [path.parent for path in root.glob("implementations/*/Dockerfile")]
    own += [
        root / folder for folder in (*_ALWAYS.values(), *GUEST.values()) if (root / folder / "Dockerfile").is_file()
    ]
    return frozenset().union(*(Image(tag="", context=folder).parents() for folder in own))


def short(tag: str) -> str:
    """The tag without `:latest`, which Docker adds to a name without a tag."""
    return tag.removesuffix(":latest")


def states(client: docker.DockerClient, images: Sequence[Image]) -> dict[str, ImageState]:
    """The state of each image: missing, stale or current; parents come first. An image on a stale parent is stale."""
    by_tag = {image.tag: image for image in images}
    parents = {tag: image.parents() & by_tag.keys() for tag, image in by_tag.items()}
    states: dict[str, ImageState] = {}
    find = cache(partial(held, client))  # each question to the engine takes milliseconds, and images share parents
    for tag in TopologicalSorter(parents).static_order():
        states[tag] = _state(find, by_tag[tag])
        if states[tag] is ImageState.CURRENT and any(
            states[parent] is not ImageState.CURRENT for parent in parents[tag]
        ):
            states[tag] = ImageState.STALE
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


def absent(stacks: Iterable[Implementation], options: str = "") -> dict[str, str]:
    """A sentence for each stack whose published image is missing, by name of the stack. Starts no engine. When no
    engine runs, every image counts as missing. `options`: options of bentpipe that tell it these stacks, with a space
    at their end.
    Raises SilentEngineError."""
    published = [stack for stack in stacks if stack.build is None]
    here = sizes(stack.image for stack in published) or {}
    return {stack.name: _not_pulled(stack, options) for stack in published if stack.image not in here}


def sizes(tags: Iterable[str]) -> dict[str, int] | None:
    """Sizes of the images on this host, in bytes by tag. None when no engine runs. Raises SilentEngineError."""
    try:
        client = engine.client()
    except engine.SilentEngineError:
        raise
    except SetupError:
        return None
    images = {tag: held(client, tag) for tag in tags}
    return {tag: image.size for tag, image in images.items() if image is not None}


def require_published(client: docker.DockerClient, stacks: Iterable[Implementation]) -> dict[str, Held]:
    """The published images of `stacks`, by name. Raises SetupError for an image that is missing or can't run here."""
    published = {}
    for stack in stacks:
        if stack.build is None:
            image = held(client, stack.image)
            if image is None:
                raise SetupError(_not_pulled(stack))
            if sentence := other_machine(client, stack.image, image):
                raise SetupError(sentence)
            published[stack.name] = image
    return published


def _not_pulled(stack: Implementation, options: str = "") -> str:
    note = f" {stack.note}" if stack.withdrawn else ""
    command = f"./bentpipe {options}build --pull {stack.name}"
    return f"The image of {stack.name} ({stack.image}) is not pulled: run `{command}`.{note}"


def other_machine(client: docker.DockerClient, tag: str, image: Held) -> str:
    """The sentence for an image that the engine's machine can't run; empty when it can run the image."""
    version = client.version()
    here = f"{version['Os']}/{version['Arch']}"
    if image.machine == here:
        return ""
    return (
        f"The image {tag} is built for {image.machine} and this engine runs {here}: ask the image's project for an "
        f"image for {here}."
    )


def source_hash(context: IO[bytes], parent_ids: Mapping[str, str]) -> str:
    """SHA-256 of a build context (as tar) and the parents' ids. An image with the same hash is not built again."""
    digest = hashlib.sha256()
    while block := context.read(1 << 20):
        digest.update(block)
    context.seek(0)
    for tag, image_id in sorted(parent_ids.items()):
        digest.update(f"\0{tag}={image_id}".encode())
    return digest.hexdigest()


@contextmanager
def context_tar(folder: Path) -> Iterator[IO[bytes]]:
    """The files of a build context as a tar. It depends only on their names, contents and executable bits. Leaves out
    READMEs and files that the folder's .dockerignore names. It contains no owner and no time, and the umask has no
    effect, so that two checkouts make the same images."""
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


def parent_ids(find: Callable[[str], Held | None], image: Image) -> dict[str, str]:
    """The ids of an image's parents that this project builds; empty for a missing parent. Published parents are left
    out: the engine has no id for them before the first build pulls them. `find`: as `held`, of one engine."""
    parents = {tag: find(tag) for tag in image.parents() if tag.startswith(OWN_PREFIX)}
    return {tag: facts.id if facts else "" for tag, facts in parents.items()}


def _state(find: Callable[[str], Held | None], image: Image) -> ImageState:
    """The state of an image: missing, stale or current, from its own files and the ids of its parents."""
    present = find(image.tag)
    if present is None:
        return ImageState.MISSING
    with context_tar(image.context) as context:
        expected = source_hash(context, parent_ids(find, image))
    return ImageState.CURRENT if present.source == expected else ImageState.STALE


# Builds images: parents first, two at the same time, and only images that changed. When one image fails, the others
# are still built.

LOG_LINES = 15

_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the engine colours standard error
_REUSED = " ---> Using cache"
# Errors of apt-get. The engine passes on each write separately, so `E: ` may be a separate line.
_GONE = re.compile(r"Version '(?P<version>[^']+)' for '(?P<package>[^']+)' was not found")
_UNKNOWN = re.compile(r"Unable to locate package (?P<package>\S+)")
_KERNEL_SOURCE = "linux-source-"
_BUILDER_TALK = (" --->", "Removing intermediate container ")


def build(
    client: docker.DockerClient, required: Sequence[Image], *, report: Callable[[Event], None], parallel: int = 2
) -> dict[str, str]:
    """Build every image that is missing or stale, up to `parallel` images at the same time. Returns tag → ID. `report`
    is called from the threads that build. When an image fails, all images that don't start from it are still built;
    then SetupError names the failed images and the reasons. The engine cancels builds when this process ends."""
    by_tag = {image.tag: image for image in required}
    order = TopologicalSorter({tag: image.parents() & by_tag.keys() for tag, image in by_tag.items()})
    order.prepare()
    ended: queue.Queue[tuple[str, Exception | None]] = queue.Queue()

    def work(image: Image) -> None:
        try:
            _make(client, image, report)
        except Exception as error:
            report(Event(tag=image.tag, state=ImageState.FAILED, text=str(error)))
            ended.put((image.tag, error))
        else:
            ended.put((image.tag, None))

    failures: dict[str, Exception] = {}
    made: set[str] = set()
    waiting, running = deque(sorted(order.get_ready())), 0
    while waiting or running:
        while waiting and running < parallel:
            threading.Thread(target=work, args=(by_tag[waiting.popleft()],), daemon=True).start()
            running += 1
        tag, error = ended.get()
        running -= 1
        if error is None:
            made.add(tag)
            order.done(tag)
            waiting.extend(sorted(order.get_ready()))
        else:
            failures[tag] = error
    if failures:
        skipped = sorted(by_tag.keys() - made - failures.keys())
        for tag in skipped:
            report(Event(tag=tag, state=ImageState.SKIPPED))
        raise _as_error(failures, skipped)
    return image_ids(client, by_tag)


def _as_error(failures: Mapping[str, Exception], skipped: Sequence[str]) -> Exception:
    """One error for all failed images; an unexpected exception is raised unchanged."""
    sentences = []
    for tag, error in failures.items():
        if isinstance(error, SetupError):
            sentences.append(str(error))
        elif isinstance(error, DockerException | HTTPError | OSError):
            sentences.append(f"The image {tag} can't be made: {error}.")
        else:
            return error
    if len(failures) > 1:
        sentences.append(f"{len(failures)} images failed: {', '.join(failures)}.")
    if skipped:
        sentences.append(f"Not built, because they are based on a failed image: {', '.join(skipped)}.")
    return SetupError("\n".join(sentences))


def _make(client: docker.DockerClient, image: Image, report: Callable[[Event], None]) -> None:
    find = cache(partial(held, client))
    before = find(image.tag)
    if _state(find, image) is ImageState.CURRENT:
        report(Event(tag=image.tag, state=ImageState.CURRENT))
        return
    if before is not None and not before.source:
        raise SetupError(
            f"The image {image.tag} is here, and bentpipe did not build it: give the image of your stack another name, "
            f"or remove this one (`docker rmi {image.tag}`)."
        )
    report(Event(tag=image.tag, state=ImageState.WORKING))
    begin = time.monotonic()
    with context_tar(image.context) as context:
        label = source_hash(context, parent_ids(find, image))
        last, reused = _build(client, image.tag, context, label, report)
    took = time.monotonic() - begin
    if before is not None and image_ids(client, [image.tag])[image.tag] != before.id:
        _remove_untagged(client, before.id)
    report(Event(tag=image.tag, state=ImageState.BUILT, steps=last.steps, reused=reused, seconds=took))


def _build(
    client: docker.DockerClient, tag: str, context: IO[bytes], label: str, report: Callable[[Event], None]
) -> tuple[Event, int]:
    """Build one image with the engine's own builder. Returns the last step, and the number of reused steps.
    Raises SetupError with the failed step and the last lines of its output."""
    lines: deque[str] = deque(maxlen=LOG_LINES)
    at, reused = Event(tag=tag, state=ImageState.WORKING), 0
    labels = {SOURCE_LABEL: label}
    events: Iterator[dict[str, Any]] = client.api.build(
        fileobj=context, custom_context=True, tag=tag, labels=labels, rm=True, forcerm=True, decode=True
    )
    for event in events:
        for line in event.get("stream", "").splitlines():
            if step := _STEP.match(line):
                at = Event(tag=tag, state=ImageState.WORKING, step=int(step[1]), steps=int(step[2]), text=step[3])
                report(at)
            elif line == _REUSED:
                reused += 1
            elif (plain := _COLOUR.sub("", line).rstrip()) and not line.startswith(_BUILDER_TALK):
                lines.append(plain)
        if "error" in event:
            where = f"step {at.step} of {at.steps} (`{at.text}`)" if at.step else "the Dockerfile"
            code = event.get("errorDetail", {}).get("code")
            how = f"failed with exit code {code}" if code else f"failed: {event['error']}"
            log = "\n".join(("Its last lines:", *lines)) if lines else "It printed nothing."
            raise SetupError(f"The image {tag} doesn't build: {where} {how}. {_fix(lines)}{log}")
    return at, reused


def _fix(lines: Iterable[str]) -> str:
    """The fix for a step that printed these lines, with a blank at the end; empty when no fix is known."""
    for line in lines:
        if gone := _GONE.search(line):
            package, version = gone["package"], gone["version"]
            return (
                f"Debian's mirror has another {package} than {version} now: put the version that `apt-cache policy "
                f"{package}` names there into the Dockerfile, or build from a mirror that keeps old packages. "
            )
        if (unknown := _UNKNOWN.search(line)) and unknown["package"].startswith(_KERNEL_SOURCE):
            return (
                f"The mirror has no {unknown['package']}, the kernel source of virtual time: use a mirror that has "
                "trixie-backports, or put what `apt-cache search linux-source` names into guest/Dockerfile. "
            )
    return ""


def _has_other_lanes(client: docker.DockerClient) -> bool:
    """True when another process has lanes: it may still need images that no container uses."""
    containers = client.api.containers(filters={"label": LABEL_OWNER})
    return any(container["Labels"][LABEL_OWNER] != str(Owner.current()) for container in containers)


def _remove_untagged(client: docker.DockerClient, image_id: str) -> None:
    """Remove the old version of a rebuilt image, unless it has a tag or another process may need it."""
    try:
        if not client.images.get(image_id).tags and not _has_other_lanes(client):
            client.images.remove(image_id)
    except DockerException:
        return


# How long images took to build on this host, for estimates of the time left.

PATH = HOME / "logs" / "builds.json"


@dataclass(frozen=True, kw_only=True)
class Build:
    """One successful build: its wall-clock seconds, and how many of its steps were reused."""

    seconds: float
    steps: int
    reused: int

    @property
    def full(self) -> bool:
        """True when most steps were done instead of reused: only then does its time predict the next build."""
        return 2 * self.reused <= self.steps


class BuildHistory:
    """The build of each image that reused the fewest steps, by tag, in a file. Events come from many threads."""

    def __init__(self, path: Path = PATH) -> None:
        self._path = path
        self._lock = threading.Lock()

    def builds(self) -> dict[str, Build]:
        """The recorded builds; none when the file is missing or broken."""
        try:
            return {tag: Build(**fields) for tag, fields in json.loads(self._path.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def add(self, event: Event) -> None:
        """Record a build, unless it reused more steps than the recorded one: its time would be too short."""
        if event.state is not ImageState.BUILT:
            return
        build = Build(seconds=round(event.seconds, 1), steps=event.steps, reused=event.reused)
        with self._lock:
            builds = self.builds()
            before = builds.get(event.tag)
            if before is not None and before.reused < build.reused:
                return
            builds[event.tag] = build
            text = json.dumps({tag: asdict(build) for tag, build in sorted(builds.items())}, indent=1)
            with suppress(OSError):  # the checkout belongs to another user: then there are no estimates
                write_atomically(self._path, f"{text}\n".encode())


def time_left(
    builds: Mapping[str, Build], *, waiting: Iterable[str], working: Mapping[str, float], parallel: int
) -> float | None:
    """Seconds until everything is built; None when unknown. `working`: the seconds for which each image has been
    building. It is unknown while an image without a full build is left, or when a build takes longer than its earlier
    build."""
    waiting = list(waiting)
    if not all(tag in builds and builds[tag].full for tag in (*waiting, *working)):
        return None
    rest = [builds[tag].seconds - seconds for tag, seconds in working.items()]
    if any(seconds < 0 for seconds in rest):
        return None
    rest += [builds[tag].seconds for tag in waiting]
    return max([sum(rest) / parallel, *rest], default=0.0)


# Shows builds of images in a terminal: one line for each image and one line for all. Prints only through the
# console.

PARALLEL = 2  # images built at the same time: one build uses the CPUs while the other waits, such as for the network

_ENDS = (ImageState.BUILT, ImageState.PULLED, ImageState.FAILED, ImageState.SKIPPED)


class BuildDisplay:
    """Shows build events: live lines on a terminal, otherwise a line when an image begins and a line when it is done.
    `todo`: the tags to be made. `builds`: earlier builds on this host, from which the time left is estimated."""

    def __init__(
        self,
        console: Console,
        *,
        todo: Collection[str],
        builds: Mapping[str, Build] | None = None,
        verb: str = "building",
    ) -> None:
        self._console = console
        self._verb = verb
        self._builds = builds or {}
        self._left = dict.fromkeys(todo)
        self._number = len(self._left)
        self._lock = threading.Lock()  # events come from the threads that build
        self._started: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[step]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._all = self._progress.add_task(verb, total=None, step="", text="", visible=self._number > 1)

    def __enter__(self) -> "BuildDisplay":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.state is ImageState.WORKING:
                self._working(event)
            elif event.state in _ENDS or event.tag in self._started:
                self._ended(event)
            self._progress.update(self._all, step=self._count(), text=self._time_left())

    def _working(self, event: Event) -> None:
        if event.tag not in self._started:
            self._started[event.tag] = time.monotonic()
            self._tasks[event.tag] = self._progress.add_task(event.tag, total=None, step="", text="")
            if not self._console.is_terminal:
                self._console.print(f"{self._verb} {event.tag}", soft_wrap=True)
        step = f"{event.step}/{event.steps}" if event.steps else ""
        text = escape(event.text[: max(0, self._console.width - 50)])
        self._progress.update(self._tasks[event.tag], step=step, text=text)

    def _ended(self, event: Event) -> None:
        self._left.pop(event.tag, None)
        took = ""
        if event.tag in self._started:
            self._progress.remove_task(self._tasks.pop(event.tag))
            took = f", {format_duration(time.monotonic() - self._started.pop(event.tag))}"
        good = event.state not in (ImageState.FAILED, ImageState.SKIPPED)
        sign = "[green]✓[/green]" if good else "[red]✗[/red]"
        rest = "; ".join(part for part in (self._count(), self._time_left()) if part) if self._number > 1 else ""
        about = f" [dim]({rest})[/dim]" if rest else ""
        self._console.print(f"{sign} {escape(event.tag)} {event.state.value}{took}{about}", soft_wrap=True)
        if event.state is ImageState.FAILED and event.text:  # printed now, because the other images may take an hour
            self._console.print(f"  {escape(event.text.replace(chr(10), f'{chr(10)}  '))}", soft_wrap=True)

    def _count(self) -> str:
        return f"{self._number - len(self._left)} of {self._number}"

    def _time_left(self) -> str:
        """An estimate from full builds; a build that reuses layers takes less time."""
        now = time.monotonic()
        working = {tag: now - begin for tag, begin in self._started.items()}
        waiting = [tag for tag in self._left if tag not in working]
        seconds = time_left(self._builds, waiting=waiting, working=working, parallel=PARALLEL)
        return f"at most about {format_duration(seconds)} left" if seconds else ""


# Facts about an image before it runs: platform, user, entry point, and the contract's files in it.

# Files of the public runner's base image; the scripts of endpoints call the first two.
CONTRACT_FILES = ("/setup.sh", "/wait-for-it.sh", "/run_endpoint.sh")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # the engine's names of machines → the names in images
_URL_LABELS = ("org.opencontainers.image.source", "org.opencontainers.image.url")
_VERSION_LABEL = "org.opencontainers.image.version"


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Facts from the engine's description of an image. Platforms look like `linux/amd64`. `user` is empty for root."""

    image: str
    image_id: str
    platform: str
    host_platform: str
    user: str
    starts: bool  # True: the image has an entry point or a command
    files: frozenset[str]  # the CONTRACT_FILES that the image has
    url: str = ""
    version: str = ""
    size: int = 0  # bytes
    command: tuple[str, ...] = ()  # its first process

    @classmethod
    def of(cls, config: Mapping[str, Any], **facts: Any) -> "ImageFacts":
        """The facts in the image's configuration, and those that aren't in it."""
        labels: dict[str, str] = config.get("Labels") or {}
        return cls(
            user=config.get("User") or "",
            starts=bool(config.get("Entrypoint") or config.get("Cmd")),
            url=next((labels[name] for name in _URL_LABELS if labels.get(name)), ""),
            version=labels.get(_VERSION_LABEL, ""),
            command=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
            **facts,
        )


def image_facts(client: docker.DockerClient, image: str) -> ImageFacts:
    """Read the facts about an image. The engine pulls the image when it doesn't have it. Raises UsageError for an image
    that the engine doesn't have and can't pull."""
    attributes = _inspect(client, image)
    info = client.info()
    machine = str(info["Architecture"])
    return ImageFacts.of(
        attributes.get("Config") or {},
        image=image,
        image_id=attributes["Id"],
        platform=f"{attributes['Os']}/{attributes['Architecture']}",
        host_platform=f"{info['OSType']}/{_MACHINES.get(machine, machine)}",
        files=_contract_files(client, image),
        size=attributes.get("Size", 0),
    )


def _inspect(client: docker.DockerClient, image: str) -> dict[str, Any]:
    try:
        return client.images.get(image).attrs
    except ImageNotFound:
        pass
    except DockerException as error:
        raise UsageError(f"The image '{image}' can't be looked at: {error}.") from error
    if image.startswith(OWN_PREFIX):
        name = image.removeprefix(OWN_PREFIX).partition(":")[0]
        raise UsageError(
            f"The engine has no image '{image}', and no registry has it: run `./bentpipe build {name}`, or correct "
            "the name."
        )
    try:
        return client.images.pull(image, tag=None if ":" in image.rpartition("/")[2] else "latest").attrs
    except DockerException as error:
        reason = getattr(error, "explanation", None) or error
        raise UsageError(
            f"The engine has no image '{image}', and it can't be pulled ({reason}): build it, `docker load` it, "
            "or fix its name."
        ) from error


def _contract_files(client: docker.DockerClient, image: str) -> frozenset[str]:
    """The CONTRACT_FILES in an image, which are read from a container that is never started."""
    try:
        container = client.containers.create(image, command="-", network_disabled=True)
    except DockerException as error:
        raise SetupError(f"The engine can't make a container of {image}: {error}.") from error
    found = set()
    try:
        for path in CONTRACT_FILES:
            with suppress(NotFound):
                container.get_archive(path)
                found.add(path)
    finally:
        container.remove(force=True, v=True)
    return frozenset(found)
