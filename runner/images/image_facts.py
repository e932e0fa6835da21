"""Facts about an image before it runs: platform, user, entry point, and the contract's files in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound, NotFound
from docker.models.containers import Container

from runner.errors import SetupError, UsageError
from runner.images.images import OWN_PREFIX

# Files of the public runner's base image; the scripts of endpoints call the first two.
CONTRACT_FILES = ("/setup.sh", "/wait-for-it.sh", "/run_endpoint.sh")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}  # the engine's names of machines → the names in images
URL_LABELS = ("org.opencontainers.image.source", "org.opencontainers.image.url")
VERSION_LABEL = "org.opencontainers.image.version"


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


def image_facts(client: docker.DockerClient, image: str) -> ImageFacts:
    """Read the facts about an image. The engine pulls the image when it doesn't have it.

    Raises UsageError for an image that the engine doesn't have and can't pull.
    """
    attributes = _inspect(client, image)
    config: dict[str, Any] = attributes.get("Config") or {}
    labels: dict[str, str] = config.get("Labels") or {}
    info = client.info()
    machine = str(info["Architecture"])
    return ImageFacts(
        image=image,
        image_id=attributes["Id"],
        platform=f"{attributes['Os']}/{attributes['Architecture']}",
        host_platform=f"{info['OSType']}/{_MACHINES.get(machine, machine)}",
        user=config.get("User") or "",
        starts=bool(config.get("Entrypoint") or config.get("Cmd")),
        files=_files(client, image),
        url=next((labels[name] for name in URL_LABELS if labels.get(name)), ""),
        version=labels.get(VERSION_LABEL, ""),
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
        raise UsageError(f"The engine has no image '{image}'; bentpipe builds it: run `./bentpipe build`.")
    try:
        return client.images.pull(image, tag=None if ":" in image.rpartition("/")[2] else "latest").attrs
    except DockerException as error:
        reason = getattr(error, "explanation", None) or error
        raise UsageError(
            f"The engine has no image '{image}', and it can't be pulled ({reason}): build it, `docker load` it, "
            "or fix its name."
        ) from error


def _files(client: docker.DockerClient, image: str) -> frozenset[str]:
    with _container(client, image) as container:
        return frozenset(path for path in CONTRACT_FILES if _has(container, path))


@contextmanager
def _container(client: docker.DockerClient, image: str) -> Iterator[Container]:
    """A container that is never started: only its files are read."""
    try:
        container = client.containers.create(image, command="-", network_disabled=True)
    except DockerException as error:
        raise SetupError(f"The engine can't make a container of {image}: {error}.") from error
    try:
        yield container
    finally:
        container.remove(force=True, v=True)


def _has(container: Container, path: str) -> bool:
    try:
        container.get_archive(path)
    except NotFound:
        return False
    return True
