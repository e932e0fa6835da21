"""Fetches published images, and finds stacks that can't run because their image is missing."""

import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import docker
from docker.errors import DockerException
from docker.utils import parse_repository_tag
from urllib3.exceptions import HTTPError

from runner.engine import engine
from runner.errors import BentpipeError, SetupError
from runner.images import images
from runner.images.images import Event, Held, State
from runner.model.implementation import Implementation
from runner.units import format_size

SILENCE_SECONDS = 60.0
DOCKER_HUB = "docker.io"

# The engine's errors when it can't reach a registry at all.
_AWAY = re.compile(r"dial tcp|no such host|connection refused|timeout|proxyconnect|unreachable|nothing for|EOF$")
_REQUEST = re.compile(r'^Get "[^"]*": ')  # the engine puts the request before the reason
_LAYER_DONE = ("Pull complete", "Already exists")


def absent(stacks: Iterable[Implementation]) -> dict[str, str]:
    """A sentence for each stack whose published image is missing, by name of the stack. Starts no engine. When no
    engine runs, every image counts as missing. Raises SilentEngineError."""
    published = [stack for stack in stacks if stack.build is None]
    try:
        client = engine.client() if published else None
    except engine.SilentEngineError:
        raise
    except SetupError:
        client = None
    missing = [stack for stack in published if client is None or images.held(client, stack.image) is None]
    return {stack.name: _fix(stack) for stack in missing}


def require(client: docker.DockerClient, stacks: Iterable[Implementation]) -> dict[str, Held]:
    """The published images of `stacks`, by name. Raises SetupError for an image that is missing or can't run here."""
    published = {}
    for stack in stacks:
        if stack.build is None:
            image = images.held(client, stack.image)
            if image is None:
                raise SetupError(_fix(stack))
            if sentence := _other_machine(client, stack.image, image):
                raise SetupError(sentence)
            published[stack.name] = image
    return published


def pull(
    client: docker.DockerClient,
    stacks: Sequence[Implementation],
    *,
    report: Callable[[Event], None],
    parallel: int = 2,
    silence: float = SILENCE_SECONDS,
) -> None:
    """Fetch the newest images of `stacks`, `parallel` images at the same time. `silence`: seconds for which a registry
    may send nothing. Raises SetupError with a sentence for each failed image, and with one sentence for each registry
    that can't be reached. Fetched images and older images of the same name are not removed.
    """
    names: dict[str, list[str]] = {}
    for stack in stacks:
        names.setdefault(stack.image, []).append(stack.name)
    failed: dict[str, str] = {}
    away: dict[str, str] = {}  # registry → reason; its other images are not tried
    waiting = deque(names)

    def work() -> None:
        while True:
            try:
                tag = waiting.popleft()
            except IndexError:
                return
            host = registry(tag)
            if host in away:
                failed[tag] = away[host]
            elif reason := _attempt(client, tag, report, silence):
                failed[tag] = reason
                report(Event(tag=tag, state=State.FAILED))
                if _AWAY.search(reason):
                    away[host] = reason

    workers = [threading.Thread(target=work, daemon=True) for _ in range(parallel)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise SetupError(_sentences(failed, away, names))


def registry(tag: str) -> str:
    """The host of the registry that a tag names; Docker Hub for a tag without a registry."""
    first, slash, _ = tag.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else DOCKER_HUB


def _fix(stack: Implementation) -> str:
    note = f" {stack.note}" if stack.withdrawn else ""
    return f"The image of {stack.name} ({stack.image}) is not pulled: run `./bentpipe build --pull {stack.name}`.{note}"


def _sentences(failed: Mapping[str, str], away: Mapping[str, str], names: Mapping[str, list[str]]) -> str:
    sentences = []
    for host, reason in away.items():
        lost = [name for tag in failed if registry(tag) == host for name in names[tag]]
        sentences.append(f"The registry {host} can't be reached ({reason}); not pulled: {', '.join(lost)}.")
    sentences += [f"{', '.join(names[tag])}: {why}" for tag, why in failed.items() if registry(tag) not in away]
    return "\n".join(sentences)


def _attempt(client: docker.DockerClient, tag: str, report: Callable[[Event], None], silence: float) -> str:
    """`_pull_image`, with the reason also when the engine fails. Images of this project are never pulled: their names
    could belong to anybody in a registry."""
    if tag.startswith(images.OWN_PREFIX):
        return f"the image {tag} is built by bentpipe, never pulled: run `./bentpipe build`."
    try:
        return _pull_image(client, tag, report, silence)
    except (BentpipeError, DockerException, OSError) as error:
        return f"the image {tag} can't be pulled: {error}"


def _pull_image(client: docker.DockerClient, tag: str, report: Callable[[Event], None], silence: float) -> str:
    """Pull an image. Returns the reason of a failure; empty after a success."""
    before = images.held(client, tag)
    repository, name = parse_repository_tag(tag)
    report(Event(tag=tag, state=State.WORKING))
    layers: dict[str, bool] = {}
    loaded: dict[str, tuple[int, int]] = {}
    for event in _events(client, repository, name or "latest", silence):
        if "error" in event:
            reason = _REQUEST.sub("", " ".join(str(event["error"]).split())).rstrip(".")
            return reason if _AWAY.search(reason) else f"the image {tag} can't be pulled: {reason}."
        layer, status, detail = event.get("id", ""), event.get("status", ""), event.get("progressDetail") or {}
        if status == "Pulling fs layer" or status in _LAYER_DONE:
            layers[layer] = status in _LAYER_DONE
        if status == "Downloading" and "total" in detail:
            loaded[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        report(_progress(tag, layers, loaded))
    image = images.held(client, tag)
    if image is None:
        return f"the image {tag} isn't in the engine after it was pulled: look at the space left on its disk."
    if sentence := _other_machine(client, tag, image):
        if before is not None and before.id != image.id:
            client.api.tag(before.id, repository, name or "latest")
        elif before is None:
            client.images.remove(tag)
        return sentence
    same = before is not None and before.id == image.id
    report(Event(tag=tag, state=State.CURRENT if same else State.PULLED))
    return ""


def _progress(tag: str, layers: Mapping[str, bool], loaded: Mapping[str, tuple[int, int]]) -> Event:
    current, total = (sum(part) for part in zip(*loaded.values(), strict=True)) if loaded else (0, 0)
    text = f"{format_size(current)} of {format_size(total)}" if total else ""
    return Event(tag=tag, state=State.WORKING, step=sum(layers.values()), steps=len(layers), text=text)


def _events(client: docker.DockerClient, repository: str, name: str, silence: float) -> Iterator[dict[str, Any]]:
    """The engine's events during a pull, with an `error` at the end when the pull fails.

    The engine has no time limit for a pull. So a thread reads its events; when no events come, the thread is abandoned.
    """
    heard: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def listen() -> None:
        try:
            for event in client.api.pull(repository, tag=name, stream=True, decode=True):
                heard.put(event)
        except (BentpipeError, DockerException, HTTPError, OSError) as error:
            heard.put({"error": getattr(error, "explanation", None) or error})
        heard.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            event = heard.get(timeout=silence)
        except queue.Empty:
            yield {"error": f"it sent nothing for {silence:g} s"}
            return
        if event is None:
            return
        yield event


def _other_machine(client: docker.DockerClient, tag: str, image: Held) -> str:
    """The sentence for an image that the engine's machine can't run; empty when it can run the image."""
    version = client.version()
    here = f"{version['Os']}/{version['Arch']}"
    if image.machine == here:
        return ""
    return (
        f"The image {tag} is built for {image.machine} and this engine runs {here}: ask the image's project for an "
        f"image for {here}."
    )
