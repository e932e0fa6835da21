"""Fixtures with lanes of this host's engine, and with an untrusted endpoint image."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from runner.images.images import SIMULATOR
from runner.inputs import inputs
from runner.model.link import LinkParameters, LinkRecord, Topology
from runner.model.run import Job
from runner.model.stack import Role
from runner.places.lane_job import EndpointLimits, EndpointSpec, LaneJob
from runner.places.lanes.lanes import Lanes

STRANGER = "bentpipe-test/stranger"
LINK = LinkParameters(data_rate=50_000_000, delay=0.01, queue_packets=100, loss=0.0)
SIZES = (30_000, 5)

Ask = Callable[..., LaneJob]


def containers_of(engine: docker.DockerClient, **labels: str) -> list[dict[str, Any]]:
    """Containers with these labels, from the engine's own list. docker-py's list fails when a container vanishes."""
    filters = [f"bentpipe.{name}={value}" for name, value in labels.items()]
    containers: list[dict[str, Any]] = engine.api.containers(all=True, filters={"label": filters})
    return containers


def running(engine: docker.DockerClient, **labels: str) -> list[dict[str, Any]]:
    """The containers of `containers_of` that run."""
    return [container for container in containers_of(engine, **labels) if container["State"] == "running"]


def made_by(engine: docker.DockerClient, run: str) -> list[str]:
    """Names of containers and volumes of a run."""
    volumes = engine.volumes.list(filters={"label": f"bentpipe.run={run}"})
    return [str(volume.id) for volume in volumes] + [
        container["Names"][0] for container in containers_of(engine, run=run)
    ]


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    """The engine, with the images that a lane needs."""
    try:
        client = docker.from_env()
        for image in ("bentpipe/tools", SIMULATOR, "bentpipe/endpoint"):
            client.images.get(image)
    except (DockerException, ImageNotFound) as error:
        pytest.skip(f"no engine with the images: {error}")
    return client


@pytest.fixture(scope="session")
def stranger(engine: docker.DockerClient) -> str:
    """The untrusted endpoint image. TESTCASE names its behaviour."""
    engine.images.build(path=str(Path(__file__).with_name("stranger")), tag=STRANGER, rm=True)
    return STRANGER


@pytest.fixture(scope="session")
def lanes(engine: docker.DockerClient) -> Iterator[Lanes]:
    with Lanes.open("tests", lanes=2, client=engine) as opened:
        yield opened


@pytest.fixture
def ask(stranger: str, tmp_path: Path) -> Ask:
    """A function that makes a job in which client and server are the untrusted image."""

    def make(
        *,
        client: str = "fetch",
        server: str = "fetch",
        timeout: float = 60.0,
        limits: EndpointLimits | None = None,
        name: str = "job",
    ) -> LaneJob:
        files = inputs.served_files(11, SIZES)
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        urls = inputs.request_urls(files)
        return LaneJob(
            job=Job(server="stranger", client="stranger", case="fetch", iteration=1),
            folder=folder,
            client=EndpointSpec(
                image=stranger, environment=inputs.environment(Role.CLIENT, testcase=client, requests=urls)
            ),
            server=EndpointSpec(image=stranger, environment=inputs.environment(Role.SERVER, testcase=server)),
            topology=Topology(link=LinkRecord.single("test", LINK, LINK)),
            seed=3,
            timeout=timeout,
            files=files,
            limits=limits or EndpointLimits(),
        )

    return make
