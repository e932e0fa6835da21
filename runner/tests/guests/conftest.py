"""Fixtures with guests, in which the untrusted endpoint image of the lanes' tests runs."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import docker
import pytest

from runner.images.images import ImageState, images_of, states
from runner.places.guests.guests import GuestHost, Setting
from runner.places.guests.processes import IMAGE
from runner.plan.jobs import EPOCH
from runner.tests.lanes.conftest import ask, containers_of, engine, stranger

__all__ = ["ask", "engine", "stranger"]


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all guests of these tests: a disk takes seconds to make, and stays in there."""
    return tmp_path_factory.mktemp("guests")


@pytest.fixture(scope="session")
def lanes(engine: docker.DockerClient, scratch: Path) -> Iterator[GuestHost]:
    """Guests in the place of lanes, because both have the same tests of hostile images."""
    (image,) = (image for image in images_of((), guests=True) if image.tag == IMAGE)
    if (built := states(engine, [image])[IMAGE]) is not ImageState.CURRENT:
        pytest.skip(f"the image {IMAGE} is {built.value}: `./bentpipe test` builds it")
    with GuestHost.open("tests", Setting(epoch=EPOCH, spin_cpu_s=12.0), lanes=2, scratch=scratch) as host:
        yield host


_CALLS_OF_CLIENT = 48  # offset in the state that a guest shares with its host, see `STATE` in guest/run-guest


def kernels(run: str) -> set[int]:
    """Kernels of the guests of `run`: others of this host are left alone."""
    pids = set()
    ours = [container["Id"] for container in containers_of(docker.from_env(), run=run, role="guest")]
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(b"kernel\0"):
                groups = (entry / "cgroup").read_text()
                pids |= {int(entry.name) for container in ours if container in groups}
    return pids


def runs_client(kernel: int) -> bool:
    """True when the client in this kernel's guest has made system calls."""
    return any(_state(kernel)[_CALLS_OF_CLIENT:][:8])


def is_booting(kernel: int) -> bool:
    """True when virtual time has begun in this kernel's guest."""
    return any(_state(kernel)[:8])


def _state(kernel: int) -> bytes:
    """The state that this kernel's guest shares with its host; empty before the guest has one."""
    try:
        return Path(f"/proc/{kernel}/cwd/state").read_bytes()
    except OSError:
        return b""
