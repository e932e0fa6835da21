"""Packs images as archives for another engine, without the layers that the other engine has. `docker load` accepts such
an archive: it first looks for each layer in the engine, by the chain of this layer and all lower layers, and opens the
layer's file only when the engine doesn't have it (moby, image/tarexport/load.go).
"""

import hashlib
import tarfile
import zlib
from collections.abc import Collection, Iterable
from typing import IO, Any

import docker
from docker.errors import ImageNotFound
from docker.models.images import Image

from runner.collect import Blocks

Layers = tuple[str, ...]  # an image's layers, lowest first: the digest of each tar (OCI image spec: DiffID)
_BLOCK = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS
_COMPRESSION = 6  # the default level, because the connection is slower than the processor
_CLASSIC = "overlay2"  # Docker's own store of layers. containerd's store, "overlayfs", needs every layer in the archive


def chains(client: docker.DockerClient) -> set[Layers]:
    """The chains of layers that an engine has, and that an archive for this engine may leave out."""
    if client.info()["Driver"] != _CLASSIC:
        return set()
    images = client.api.images(quiet=True)
    return {chain for image in images for chain in prefixes(layers(client.api.inspect_image(image)))}  # type: ignore[no-untyped-call]


def prefixes(of: Layers) -> set[Layers]:
    """Every chain of an image with these layers: its lowest layer, its two lowest layers, and so on."""
    return {of[:count] for count in range(1, len(of) + 1)}


def present(of: Layers, there: Collection[Layers]) -> frozenset[str]:
    """The layers that an archive may leave out for an engine that has the chains `there`."""
    known = max(count for count in range(len(of) + 1) if count == 0 or of[:count] in there)
    return frozenset(of[:known]) - frozenset(of[known:])


def pack(client: docker.DockerClient, image: str, into: IO[bytes], present: frozenset[str]) -> None:
    """Write a compressed archive of an image, without the layers whose digests are in `present`."""
    # The name must have a tag: without a tag it means all tags of the repository.
    _pack(client.api.get_image(":".join(_name(image)), chunk_size=_BLOCK), into, present)


def _pack(archive: Iterable[bytes], into: IO[bytes], present: frozenset[str]) -> None:
    """Compress an archive, without the files whose digests are in `present`."""
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


def layers(inspected: dict[str, Any]) -> Layers:
    """The layers of an image, from the engine's description of the image."""
    return tuple(inspected["RootFS"].get("Layers") or ())


def content(image: Image) -> tuple[Any, ...]:
    """The content that identifies an image: its layers, its environment and how it starts. The id is not sufficient:
    different kinds of engines give the same image different ids."""
    config = image.attrs["Config"] or {}
    start = [config.get(name) or None for name in ("Entrypoint", "Cmd", "WorkingDir", "User")]
    return layers(image.attrs), sorted(config.get("Env") or ()), start


def tag(remote: docker.DockerClient, image: str, source: str) -> bool:
    """Tag the image `source` of the remote engine as `image`. False when the engine doesn't have `source`."""
    try:
        remote.images.get(source).tag(*_name(image))
    except ImageNotFound:
        return False
    return True


def _name(image: str) -> tuple[str, str]:
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")
