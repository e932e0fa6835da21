"""Images that the runner sends: exactly the same image arrives, and only missing layers are sent."""

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import docker
import pytest

from runner.engine import engine
from runner.errors import SetupError
from runner.images import images as archives
from runner.places.supervised import TOOLS
from runner.places.workers import workers
from runner.places.workers.workers import Wanted, bring

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
    made, _ = client.images.build(fileobj=io.BytesIO(text.encode()), tag=NAME, rm=True, forcerm=True)
    required = Wanted(name=NAME, content=archives.content(made), digest="")
    layers = archives.layers(made.attrs)
    sent = 0

    def ask(function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function as on a worker that uses this engine. The image is removed from the engine before its archive
        is loaded."""
        nonlocal sent
        if function is workers.lacking:
            return [required]
        if function is workers.chains:
            return [chain for chain in workers.chains() if chain != layers]
        if function is workers.append:
            sent += len(arguments[1])
        if function is workers.load:
            client.images.remove(NAME, force=True)
            assert workers.lacking((required,)) == [required]
        return function(*arguments)

    bring([required], ask, say=lambda _: None)
    assert workers.lacking((required,)) == []
    assert 1_000_000 < sent < 1_500_000  # the layers of the base image have hundreds of megabytes


def test_what_does_not_become_the_image_is_said(client: docker.DockerClient) -> None:
    text = f"FROM {TOOLS}\nLABEL worker=image\nENV SENT=yes\n"
    made, _ = client.images.build(fileobj=io.BytesIO(text.encode()), tag=NAME, rm=True, forcerm=True)
    required = Wanted(name=NAME, content=(*archives.content(made)[:2], ["other"]), digest="")
    with pytest.raises(SetupError, match="its archive contained another image"):
        bring([required], lambda function, *arguments: function(*arguments), say=lambda _: None)
