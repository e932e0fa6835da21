"""Builds images: parents first, two at the same time, and only images that changed. When one image fails, the others
are still built."""

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import IO, Any

import docker
from docker.errors import DockerException
from urllib3.exceptions import HTTPError

from runner.engine.containers import LABEL_OWNER
from runner.engine.owner import Owner
from runner.errors import SetupError
from runner.images import images
from runner.images.images import Event, Image, State

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
    """Build every image that is missing or stale, up to `parallel` images at the same time. Returns tag → ID.

    `report` is called from the threads that build. When an image fails, all images that don't start from it are
    still built; then SetupError names the failed images and the reasons. The engine cancels builds when this process
    ends.
    """
    by_tag = {image.tag: image for image in required}
    order = TopologicalSorter({tag: image.parents() & by_tag.keys() for tag, image in by_tag.items()})
    order.prepare()
    ended: queue.Queue[tuple[str, Exception | None]] = queue.Queue()

    def work(image: Image) -> None:
        try:
            _make(client, image, report)
        except Exception as error:
            report(Event(tag=image.tag, state=State.FAILED, text=str(error)))
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
            report(Event(tag=tag, state=State.SKIPPED))
        raise _as_error(failures, skipped)
    return images.image_ids(client, by_tag)


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
    before = images.held(client, image.tag)
    if images.state(client, image) is State.CURRENT:
        report(Event(tag=image.tag, state=State.CURRENT))
        return
    if before is not None and not before.source:
        raise SetupError(
            f"The image {image.tag} is here, and bentpipe did not build it: give the image of your stack another name, "
            f"or remove this one (`docker rmi {image.tag}`)."
        )
    report(Event(tag=image.tag, state=State.WORKING))
    begin = time.monotonic()
    with images.context_tar(image.context) as context:
        label = images.source_hash(context, images.parent_ids(client, image))
        last, reused = _build(client, image.tag, context, label, report)
    took = time.monotonic() - begin
    if before is not None and images.image_ids(client, [image.tag])[image.tag] != before.id:
        _remove_untagged(client, before.id)
    report(Event(tag=image.tag, state=State.BUILT, steps=last.steps, reused=reused, seconds=took))


def _build(
    client: docker.DockerClient, tag: str, context: IO[bytes], label: str, report: Callable[[Event], None]
) -> tuple[Event, int]:
    """Build one image with the engine's own builder. Returns the last step, and the number of reused steps.
    Raises SetupError with the failed step and the last lines of its output.
    """
    lines: deque[str] = deque(maxlen=LOG_LINES)
    at, reused = Event(tag=tag, state=State.WORKING), 0
    labels = {images.SOURCE_LABEL: label}
    events: Iterator[dict[str, Any]] = client.api.build(
        fileobj=context, custom_context=True, tag=tag, labels=labels, rm=True, forcerm=True, decode=True
    )
    for event in events:
        for line in event.get("stream", "").splitlines():
            if step := _STEP.match(line):
                at = Event(tag=tag, state=State.WORKING, step=int(step[1]), steps=int(step[2]), text=step[3])
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
    """True when another process has lanes: it still needs the images that it had at its start, even those that no
    container uses."""
    containers = client.api.containers(filters={"label": LABEL_OWNER})
    return any(container["Labels"][LABEL_OWNER] != str(Owner.current()) for container in containers)


def _remove_untagged(client: docker.DockerClient, image_id: str) -> None:
    """Remove the old version of a rebuilt image, unless it has a tag or another process may need it."""
    try:
        if not client.images.get(image_id).tags and not _has_other_lanes(client):
            client.images.remove(image_id)
    except DockerException:
        return
