"""Images to a host that lacks them: pulled there where a registry has them, else sent over SSH, only when missing."""

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import docker
from docker.errors import DockerException, ImageNotFound
from requests.exceptions import RequestException

from runner.deploy.remote.engine import RemoteEngine
from runner.errors import SetupError

Report = Callable[[str, int, int], None]  # image, bytes sent so far, bytes in all; of the uncompressed archive
_CALL_SECONDS = 3600
_BLOCK = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS


def missing(engine: RemoteEngine, local: docker.DockerClient, images: Iterable[str]) -> list[str]:
    """The images of which the host doesn't have the very one of this host, by content."""
    lacking = []
    with closing(_client(engine)) as remote:
        for image in dict.fromkeys(images):
            wanted = local.images.get(image).id
            try:
                found = remote.images.get(image).id
            except ImageNotFound:
                found = None
            if found != wanted and not _tag(remote, image, wanted or ""):
                lacking.append(image)
    return lacking


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


def ship(engine: RemoteEngine, local: docker.DockerClient, image: str, *, report: Report) -> None:
    """Bring one image to the host. Raises SetupError when it can't be had there."""
    wanted = local.images.get(image)
    with closing(_client(engine)) as remote:
        for digest in wanted.attrs.get("RepoDigests") or ():
            try:
                remote.images.pull(digest)
            except (DockerException, OSError):
                continue  # no way to the registry from there: it is sent
            if _tag(remote, image, wanted.id or ""):
                return
        size = int(wanted.attrs.get("Size", 0))
        try:
            for step in remote.api.load_image(_archive(local, image, size, report)):  # type: ignore[no-untyped-call]
                if why := step.get("error"):
                    raise DockerException(why)
            arrived = remote.images.get(image).id
        except (DockerException, RequestException, OSError) as error:
            failure = engine.tunnel.failure or getattr(error, "explanation", None) or error
            raise SetupError(
                f"{image} can't be sent to {engine.name} ({failure}): look at its free disk, then run again."
            ) from error
    if arrived != wanted.id:
        raise SetupError(f"{engine.name} made another image of {image} ({arrived}): its engine is not compatible.")


def _archive(local: docker.DockerClient, image: str, size: int, report: Report) -> Iterator[bytes]:
    """`docker save`, compressed on the way: links are slower than processors."""
    pack = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    sent = 0
    for block in local.api.get_image(image, chunk_size=_BLOCK):
        sent += len(block)
        report(image, min(sent, size), size)
        if packed := pack.compress(block):
            yield packed
    yield pack.flush()


def _client(engine: RemoteEngine) -> docker.DockerClient:
    return docker.DockerClient(engine.tunnel.url, version="auto", timeout=_CALL_SECONDS)
