"""Images to a host that lacks them: pulled there where a registry has them, else what it lacks of them, over SSH.

An archive of `docker save` may lack the layers that the other engine has: `docker load` looks each one up by its chain
of layers first, and opens its file only when it isn't there (moby, image/tarexport/load.go).
"""

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any

import docker
from docker.errors import DockerException, ImageNotFound
from docker.models.images import Image
from requests.exceptions import RequestException

from runner.collect import Blocks
from runner.engine.client import BoundedDockerClient
from runner.errors import HostRefusedError, SetupError
from runner.remote.engine import RemoteEngine

Report = Callable[[str, int, int], None]  # image, bytes sent so far, bytes in all; as they go to the host
Layers = tuple[str, ...]  # of an image, lowest first: the digest of each one's tar (OCI image spec: DiffID)
_CALL_SECONDS = 3600
_TRIES = 3  # of which each may wait a minute for a host that is away
_BLOCK = 1 << 20
_SENT_AT_ONCE = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS
_COMPRESSION = 6  # the usual level: links are slower than processors
_CLASSIC = "overlay2"  # Docker's own store of layers; containerd's, "overlayfs", wants every layer in the archive
_FAILURES = (DockerException, RequestException, OSError)


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """What a host lacks of an image: a compressed archive of `size` bytes with `lacking` of the image's layers."""

    image: str
    file: IO[bytes]
    size: int
    lacking: int
    layers: Layers


class Shipping:
    """The way of this host's images to another host. What has arrived is there for the images after it."""

    def __init__(self, engine: RemoteEngine, local: docker.DockerClient) -> None:
        self._engine = engine
        self._local = local
        self._there: set[Layers] | None = None  # chains of layers that the host has; None: not asked yet

    def missing(self, images: Iterable[str]) -> list[str]:
        """The images of which the host doesn't have the very one of this host, by content. Raises SetupError when it
        has another processor than they are made for."""
        with closing(_client(self._engine)) as remote:
            lacking = [image for image in dict.fromkeys(images) if not self._has(remote, image)]
            there = remote.version()["Arch"]
        for image in lacking:
            if (made_for := self._local.images.get(image).attrs["Architecture"]) != there:
                raise SetupError(
                    f"{image} is made for {made_for}, and {self._engine.name} is {there}: use a host with a processor "
                    "like this one's."
                )
        return lacking

    def _has(self, remote: docker.DockerClient, image: str) -> bool:
        """Whether the host has it; one that is there under another name gets this one."""
        wanted = self._local.images.get(image)
        try:
            if _content(remote.images.get(image)) == _content(wanted):
                return True
        except ImageNotFound:
            pass
        return _tag(remote, image, wanted.id or "")

    def pull(self, image: str) -> bool:
        """Have the host pull the very image from its registry. False when there is none, or no way to it from there."""
        wanted = self._local.images.get(image)
        with closing(_client(self._engine)) as remote:
            for digest in wanted.attrs.get("RepoDigests") or ():
                try:
                    remote.images.pull(digest)
                except (DockerException, OSError):
                    continue
                if _tag(remote, image, wanted.id or ""):
                    return True
        return False

    @contextmanager
    def packed(self, image: str) -> Iterator[Parcel]:
        """What the host lacks of an image, in a file while the context lasts. Raises SetupError when there is no room
        for it."""
        there = self._chains()
        layers = _layers(self._local.images.get(image).attrs)
        known = max(n for n in range(len(layers) + 1) if n == 0 or layers[:n] in there)
        present = frozenset(layers[:known]) - frozenset(layers[known:])
        with TemporaryFile() as file:
            try:
                # By its full name: a bare one means all tags of the repository.
                _pack(self._local.api.get_image(":".join(_name(image)), chunk_size=_BLOCK), file, present)
            except (*_FAILURES, tarfile.TarError) as error:
                raise SetupError(
                    f"{image} can't be packed for {self._engine.name} ({error}): look at this host's free disk, "
                    "TMPDIR and Docker's own, then run again."
                ) from error
            lacking = sum(layer not in present for layer in layers)
            yield Parcel(image=image, file=file, size=file.tell(), lacking=lacking, layers=layers)

    def _chains(self) -> set[Layers]:
        if self._there is None:
            self._there = set()
            with closing(_client(self._engine)) as remote:
                if remote.info()["Driver"] == _CLASSIC:
                    for one in remote.api.images(quiet=True):
                        self._note(_layers(remote.api.inspect_image(one)))  # type: ignore[no-untyped-call]
        return self._there

    def _note(self, layers: Layers) -> None:
        if self._there is not None:
            self._there |= {layers[:n] for n in range(1, len(layers) + 1)}

    def send(self, parcel: Parcel, *, report: Report) -> None:
        """Send a parcel, from its beginning when SSH dropped. Raises SetupError when the image can't be had there."""
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
                    f"{parcel.image} can't be sent to {self._engine.name} ({why}): look at its free disk, then run "
                    "again: what has arrived is not sent again."
                ) from error
        self._note(parcel.layers)

    def _load(self, parcel: Parcel, report: Report, *, again: bool) -> None:
        """One try. Raises SetupError when another image than ours came out of it."""
        with closing(_client(self._engine)) as remote:
            if again and self._has(remote, parcel.image):
                return  # only the answer was lost
            for step in remote.api.load_image(_sending(parcel, report)):  # type: ignore[no-untyped-call]
                if why := step.get("error"):
                    raise DockerException(why)
            if not self._has(remote, parcel.image):
                raise SetupError(
                    f"{self._engine.name} made another image of {parcel.image}: its engine is not compatible."
                )


def _pack(archive: Iterable[bytes], into: IO[bytes], present: frozenset[str]) -> None:
    """Compress an archive, without the files whose digests are in `present`: each is taken back once it is known."""
    pack = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, _GZIP)
    with tarfile.open(fileobj=Blocks(archive), mode="r|", bufsize=_BLOCK) as tar:
        for member in tar:
            before, state, digest = into.tell(), pack.copy(), hashlib.sha256()
            into.write(pack.compress(member.tobuf()))
            content = tar.extractfile(member) if member.isreg() else None
            while content is not None and (block := content.read(_BLOCK)):
                digest.update(block)
                into.write(pack.compress(block))
            if f"sha256:{digest.hexdigest()}" in present:
                pack = state
                into.seek(before)
                into.truncate()
            elif content is not None:
                into.write(pack.compress(bytes(-member.size % tarfile.BLOCKSIZE)))
    into.write(pack.compress(bytes(2 * tarfile.BLOCKSIZE)) + pack.flush())


def _sending(parcel: Parcel, report: Report) -> Iterator[bytes]:
    parcel.file.seek(0)
    sent = 0
    while block := parcel.file.read(_SENT_AT_ONCE):
        yield block
        sent += len(block)
        report(parcel.image, sent, parcel.size)


def _layers(inspected: dict[str, Any]) -> Layers:
    return tuple(inspected["RootFS"].get("Layers") or ())


def _content(image: Image) -> tuple[Any, ...]:
    """What makes an image this one: its files, and how it starts. Engines of different kinds give it different ids."""
    config = image.attrs["Config"] or {}
    start = [config.get(name) or None for name in ("Entrypoint", "Cmd", "WorkingDir", "User")]
    return _layers(image.attrs), sorted(config.get("Env") or ()), start


def _tag(remote: docker.DockerClient, image: str, wanted: str) -> bool:
    """Give an image that is there under another name its own. False when it isn't there."""
    try:
        remote.images.get(wanted).tag(*_name(image))
    except ImageNotFound:
        return False
    return True


def _name(image: str) -> tuple[str, str]:
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")


def _client(engine: RemoteEngine) -> docker.DockerClient:
    return BoundedDockerClient(engine.tunnel.url, version="auto", timeout=_CALL_SECONDS)
