"""Fixtures with guests, in which the untrusted endpoint image of the lanes' tests runs."""

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from runner.images.images import ImageState, images_of, state
from runner.places.guests.guests import GuestHost, Setting
from runner.places.guests.processes import IMAGE
from runner.plan.jobs import EPOCH
from runner.tests.lanes.conftest import ask, engine, stranger

__all__ = ["ask", "engine", "stranger"]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all guests of these tests: a disk takes seconds to make, and stays in there."""
    return tmp_path_factory.mktemp("guests")


@pytest.fixture(scope="session")
def lanes(engine: docker.DockerClient, scratch: Path) -> Iterator[GuestHost]:
    """Guests in the place of lanes, because both have the same tests of hostile images."""
    (image,) = (image for image in images_of((), guests=True) if image.tag == IMAGE)
    if (built := state(engine, image)) is not ImageState.CURRENT:
        pytest.skip(f"the image {IMAGE} is {built.value}: `./bentpipe test` builds it")
    with GuestHost.open("tests", Setting(epoch=EPOCH, spin_cpu_s=12.0), lanes=2, scratch=scratch) as host:
        yield host
