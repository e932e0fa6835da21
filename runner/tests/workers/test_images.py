"""Images that the runner sends: exactly the same image arrives, and only missing layers are sent."""

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import docker
import pytest

from runner.engine import engine
from runner.errors import SetupError
from runner.images import pulling as archives
from runner.images.pulling import WantedImage, bring
from runner.places.supervised import TOOLS
from runner.places.workers import workers
from runner.places.workers.workers import WorkerHost

pytestmark = pytest.mark.docker

NAME = "bentpipe-test/worker-image:1"


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    with closing(engine.client()) as made:
        yield made
        if made.images.list(name=NAME):
            made.images.remove(NAME, force=True)


def test_an_image_is_sent_without_the_layers_that_are_there(client: docker.DockerClient) -> None:
    text = f"FROM {TOOLS}\nRUN head -c 1000000 /dev/urandom > /sent\nENV SENT=yes\n"
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=NAME, rm=True, forcerm=True)
    wanted = WantedImage.of(client, NAME)
    sent = 0

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as on a worker that uses this engine. The image is removed from the engine before its archive
        is loaded."""
        nonlocal sent
        if archives.lacking in arguments:
            return [wanted]
        if archives.chains in arguments:
            return {chain for chain in archives.chains(client) if chain != wanted.layers}
        if function is workers.append:
            sent += len(arguments[1])
        if function is workers.load:
            client.images.remove(NAME, force=True)
            assert archives.lacking(client, [wanted]) == [wanted]
        return function(*arguments)

    bring(client, [wanted], WorkerHost("worker", call), say=lambda _: None)
    assert archives.lacking(client, [wanted]) == []
    assert 1_000_000 < sent < 1_500_000  # the layers of the base image have hundreds of megabytes


def test_what_does_not_become_the_image_is_said(client: docker.DockerClient) -> None:
    text = f"FROM {TOOLS}\nLABEL worker=image\nENV SENT=yes\n"
    made, _ = client.images.build(fileobj=io.BytesIO(text.encode()), tag=NAME, rm=True, forcerm=True)
    wanted = replace(WantedImage.of(client, NAME), id="sha256:" + "0" * 64, content=(made.id,))
    host = WorkerHost("worker", lambda function, *arguments: function(*arguments))
    with pytest.raises(SetupError, match=f"the engine there made another image of {NAME}"):
        bring(client, [wanted], host, say=lambda _: None)
