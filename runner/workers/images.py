"""Brings the images of a run to a worker's engine: the worker pulls them by their digests, or the runner sends them."""

import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound

from runner.engine import engine
from runner.errors import SetupError, first_line
from runner.guests.launcher import IMAGE as GUEST
from runner.images import archives
from runner.images.images import SIMULATOR
from runner.lanes.holders import TOOLS
from runner.model.estimate import VIRTUAL
from runner.model.run import Run
from runner.units import format_size

_BLOCK = 4 << 20  # most bytes of one message
Ask = Callable[..., Any]  # calls a function on the worker


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An image that a worker must have. `digest`: its name in a registry; empty: the runner built it."""

    name: str
    content: tuple[Any, ...]
    digest: str


def required_images(run: Run) -> tuple[Wanted, ...]:
    """The images that jobs of `run` need, as this host's engine has them. Raises SetupError for a missing image."""
    digests = {entry.image: entry.image_digest for entry in run.implementations.values()}
    names = [TOOLS, SIMULATOR, *digests, *(box.image for box in run.middleboxes.values())]
    if VIRTUAL in (run.clock, *run.clocks.values()):
        names.append(GUEST)
    with closing(engine.client()) as client:
        return tuple(_required_image(client, name, digests.get(name, "")) for name in dict.fromkeys(names))


def _required_image(client: docker.DockerClient, name: str, digest: str) -> Wanted:
    try:
        return Wanted(name=name, content=archives.content(client.images.get(name)), digest=digest)
    except ImageNotFound as error:
        raise SetupError(f"{name} no longer exists on this host: run `./bentpipe build`.") from error


def bring(required: Iterable[Wanted], ask: Ask, *, say: Callable[[str], None]) -> None:
    """Bring the required images that a worker lacks. `ask(function, …)` calls a function on the worker. Raises
    SetupError."""
    required = tuple(required)
    for image in ask(lacking, required):
        if image.digest and ask(pull, image):
            continue
        with closing(engine.client()) as client, tempfile.TemporaryFile() as file:
            of = archives.layers(client.images.get(image.name).attrs)
            archives.pack(client, image.name, file, archives.present(of, set(ask(chains))))
            say(f"sending {image.name}, {format_size(file.tell())}")
            place = ask(begin)
            file.seek(0)
            while block := file.read(_BLOCK):
                ask(append, place, block)
        if why := ask(load, place, image):
            raise SetupError(f"{image.name} is not available there: {why}")


# The runner calls the functions below on the worker.


def lacking(required: tuple[Wanted, ...]) -> list[Wanted]:
    """The images that this host's engine does not have."""
    with closing(engine.client()) as client:
        return [image for image in required if not _has(client, image)]


def _has(client: docker.DockerClient, image: Wanted) -> bool:
    try:
        return archives.content(client.images.get(image.name)) == image.content
    except ImageNotFound:
        return False


def pull(image: Wanted) -> bool:
    """Pull exactly this image from its registry. Returns False when this fails."""
    repository, _, digest = image.digest.partition("@")
    try:
        with closing(engine.client()) as client:
            pulled = client.images.pull(f"{repository}@{digest}")
            archives.tag(client, image.name, pulled.id or "")
            return _has(client, image)
    except (DockerException, OSError):
        return False


def chains() -> list[archives.Layers]:
    """The chains of layers of this host's engine, which don't have to be sent."""
    with closing(engine.client()) as client:
        return list(archives.chains(client))


def begin() -> str:
    """Make a file for an archive. Returns its path."""
    with tempfile.NamedTemporaryFile(prefix="bentpipe-image-", delete=False) as file:
        return file.name


def append(place: str, block: bytes) -> None:
    """Append a block to an archive."""
    with Path(place).open("ab") as file:
        file.write(block)


def load(place: str, image: Wanted) -> str:
    """Load the archive into the engine. Returns the reason of a failure; empty after a success."""
    try:
        with closing(engine.client()) as client, Path(place).open("rb") as file:
            client.images.load(file)
            return "" if _has(client, image) else "its archive contained another image"
    except (DockerException, OSError) as error:
        return first_line(error)
    finally:
        Path(place).unlink(missing_ok=True)
