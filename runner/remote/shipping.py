"""Brings images to a host that lacks them: the host pulls them from a registry, or gets the missing layers over SSH.

An archive may leave out layers that the other engine has: `docker load` first looks for each layer in the engine, by
the chain of this layer and all lower layers, and opens the layer's file only when the engine doesn't have it (moby,
image/tarexport/load.go).
"""

import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from runner.engine.client import BoundedDockerClient
from runner.errors import HostRefusedError, SetupError
from runner.images import archives
from runner.images.archives import Layers
from runner.remote.engine import RemoteEngine

Report = Callable[[str, int, int], None]  # called with the image, the bytes sent so far and all bytes to send
_CALL_SECONDS = 3600
_TRIES = 3  # tries, each of which may wait a minute for the host
_SENT_AT_ONCE = 1 << 16
_FAILURES = (DockerException, RequestException, OSError)


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """The part of an image that a host lacks: a compressed archive of `size` bytes with `lacking` of the image's
    layers."""

    image: str
    file: IO[bytes]
    size: int
    lacking: int
    layers: Layers


class Shipping:
    """Brings this host's images to another host. Layers that have arrived are not sent again."""

    def __init__(self, engine: RemoteEngine, local: docker.DockerClient) -> None:
        self._engine = engine
        self._local = local
        self._there: set[Layers] | None = None  # chains of layers that the host has; None: not yet known

    def missing(self, images: Iterable[str]) -> list[str]:
        """The images that the host does not have with the same content. Raises SetupError when they are for another
        processor."""
        with closing(_client(self._engine)) as remote:
            lacking = [image for image in dict.fromkeys(images) if not self._has(remote, image)]
            there = remote.version()["Arch"]
        for image in lacking:
            if (made_for := self._local.images.get(image).attrs["Architecture"]) != there:
                raise SetupError(
                    f"{image} is made for {made_for}, and {self._engine.name} is {there}: use a host with the "
                    "same kind of processor as this host."
                )
        return lacking

    def _has(self, remote: docker.DockerClient, image: str) -> bool:
        """True when the host has the image. When the host has it under another name, it is tagged."""
        local = self._local.images.get(image)
        try:
            if archives.content(remote.images.get(image)) == archives.content(local):
                return True
        except ImageNotFound:
            pass
        return archives.tag(remote, image, local.id or "")

    def pull(self, image: str) -> bool:
        """Let the host pull exactly this image from its registry. Returns False when the image has no registry, or when
        the pull fails."""
        local = self._local.images.get(image)
        with closing(_client(self._engine)) as remote:
            for digest in local.attrs.get("RepoDigests") or ():
                try:
                    remote.images.pull(digest)
                except (DockerException, OSError):
                    continue
                if archives.tag(remote, image, local.id or ""):
                    return True
        return False

    @contextmanager
    def packed(self, image: str) -> Iterator[Parcel]:
        """The part of an image that the host lacks, in a temporary file. Raises SetupError when the disk has no space
        for it."""
        layers = archives.layers(self._local.images.get(image).attrs)
        present = archives.present(layers, self._chains())
        with TemporaryFile() as file:
            try:
                archives.pack(self._local, image, file, present)
            except (*_FAILURES, tarfile.TarError) as error:
                raise SetupError(
                    f"{image} can't be packed for {self._engine.name} ({error}): make space on this host, in "
                    "TMPDIR and in Docker's data folder, then run again."
                ) from error
            lacking = sum(layer not in present for layer in layers)
            yield Parcel(image=image, file=file, size=file.tell(), lacking=lacking, layers=layers)

    def _chains(self) -> set[Layers]:
        if self._there is None:
            with closing(_client(self._engine)) as remote:
                self._there = archives.chains(remote)
        return self._there

    def _note(self, layers: Layers) -> None:
        if self._there is not None:
            self._there |= archives.prefixes(layers)

    def send(self, parcel: Parcel, *, report: Report) -> None:
        """Send a parcel, and begin again when the SSH connection was lost. Raises SetupError when the host can't get
        the image."""
        connection = self._engine.tunnel.connection
        for left in reversed(range(_TRIES)):
            connects = connection.connects
            try:
                self._load(parcel, report, again=left < _TRIES - 1)
                break
            except _FAILURES as error:
                failure = self._engine.tunnel.failure
                dropped = not connection.alive or connection.connects != connects
                if left and dropped and not isinstance(failure, HostRefusedError):
                    continue
                why = failure or getattr(error, "explanation", None) or error
                raise SetupError(
                    f"{parcel.image} can't be sent to {self._engine.name} ({why}): make space on it, then run "
                    "again; layers that have arrived are not sent again."
                ) from error
        self._note(parcel.layers)

    def _load(self, parcel: Parcel, report: Report, *, again: bool) -> None:
        """Try once to send a parcel. Raises SetupError when the host then has an image with other content."""
        with closing(_client(self._engine)) as remote:
            if again and self._has(remote, parcel.image):
                return  # the image has arrived and only the answer was lost
            for step in remote.api.load_image(_sending(parcel, report)):  # type: ignore[no-untyped-call]
                if why := step.get("error"):
                    raise DockerException(why)
            if not self._has(remote, parcel.image):
                raise SetupError(
                    f"{self._engine.name} made another image of {parcel.image}: its engine is not compatible."
                )


def _sending(parcel: Parcel, report: Report) -> Iterator[bytes]:
    parcel.file.seek(0)
    sent = 0
    while block := parcel.file.read(_SENT_AT_ONCE):
        yield block
        sent += len(block)
        report(parcel.image, sent, parcel.size)


def _client(engine: RemoteEngine) -> docker.DockerClient:
    return BoundedDockerClient(engine.tunnel.url, version="auto", timeout=_CALL_SECONDS)
