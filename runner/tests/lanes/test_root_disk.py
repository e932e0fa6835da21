"""Images that fill the disk of the engine: their job ends, they are to blame, and the next job has room."""

import io
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from runner.engine.containers import may_bound
from runner.errors import SetupError
from runner.judge.execution import limit_findings
from runner.model.result import Artifacts
from runner.places.lane_job import EndpointLimits
from runner.places.lanes import lanes as lanes_module
from runner.places.lanes.lanes import Lanes
from runner.tests.lanes.conftest import Ask
from runner.units import MIB

pytestmark = pytest.mark.docker

SMALL = EndpointLimits(root=64 * MIB, declared=16 * MIB)


@pytest.mark.parametrize("behaviour", ["fill-root", "fill-many"])
def test_a_client_that_fills_its_root_file_system_is_ended_and_blamed(lanes: Lanes, ask: Ask, behaviour: str) -> None:
    job = ask(client=behaviour, limits=SMALL)
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert not evidence.client.timed_out, "nobody waits for its time-out"
    assert evidence.client.exit_code in (1, 137), "refused by the kernel, or ended by the watch"
    assert evidence.client.volumes_full == ("/ (64 MiB)",)
    assert evidence.server.volumes_full == ()
    first = next(limit_findings(evidence, Artifacts(job.folder)))
    assert (first.code, first.role, first.actual) == ("volume-full", "client", "/ (64 MiB) is full")
    honest = lanes.run(ask(name="next"))
    assert honest.error == {}
    assert all(file.equal for file in honest.files)


@pytest.mark.skipif(not may_bound(Path("/var/lib/docker")), reason="needs root beside overlay2")
def test_a_client_that_reserves_disk_space_gets_no_more_than_its_limit(lanes: Lanes, ask: Ask) -> None:
    """No watch is fast enough for fallocate(2)."""
    job = ask(client="reserve-root", limits=SMALL)
    evidence = lanes.run(job)
    printed = (job.folder / "client" / "output.log").read_text()
    assert evidence.error == {}
    assert evidence.client.volumes_full == ("/ (64 MiB)",)
    assert "root file system: 65536 KiB" in printed
    assert printed.count("No space left on device") >= 1


def test_a_server_that_fills_its_root_file_system_is_ended_and_blamed(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="hang", server="fill-root", limits=SMALL))
    assert evidence.error == {}
    assert evidence.server.volumes_full == ("/ (64 MiB)",)
    assert evidence.client.volumes_full == ()
    assert not evidence.client.timed_out


def test_a_volume_that_an_image_declares_is_bounded_memory(
    lanes: Lanes, engine: docker.DockerClient, ask: Ask, stranger: str
) -> None:
    """The engine would make it on its disk, where no limit of the container counts."""
    dockerfile = f"FROM {stranger}\nVOLUME /declared /logs\n"
    image, _ = engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag="bentpipe-test/declaring", rm=True)
    job = ask(client="fill-declared", limits=SMALL)
    evidence = lanes.run(replace(job, client=replace(job.client, image=str(image.id))))
    printed = (job.folder / "client" / "output.log").read_text()
    assert evidence.error == {}
    assert "No space left on device" in printed, evidence.client
    assert "tmpfs" in printed
    assert "16777216 bytes" in printed, printed
    assert all(file.equal for file in evidence.files)


def test_a_root_that_an_image_declares_read_only_cannot_be_filled(
    lanes: Lanes, engine: docker.DockerClient, ask: Ask, stranger: str
) -> None:
    dockerfile = f"FROM {stranger}\nLABEL bentpipe.read-only-root=true\n"
    image, _ = engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag="bentpipe-test/read-only", rm=True)
    job = ask(client="fill-root", limits=SMALL)
    evidence = lanes.run(replace(job, client=replace(job.client, image=str(image.id))))
    assert evidence.error == {}
    assert evidence.client.volumes_full == ()
    assert "Read-only file system" in (job.folder / "client" / "output.log").read_text()
    honest = ask(name="honest", limits=SMALL)
    evidence = lanes.run(replace(honest, client=replace(honest.client, image=str(image.id))))
    assert evidence.error == {}
    assert all(file.equal for file in evidence.files)


def test_an_honest_job_is_left_alone(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="die-slowly", limits=SMALL))
    assert evidence.error == {}
    assert evidence.client.volumes_full == ()
    assert all(file.equal for file in evidence.files)


def test_a_full_disk_of_the_engine_pauses_the_run(
    engine: docker.DockerClient, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []

    def say(sentence: str) -> None:
        messages.append(sentence)
        monkeypatch.setattr(lanes_module, "_LEAST_FREE", MIB)  # as if a user had freed disk space

    with Lanes.open("full-disk", lanes=1, client=engine, say=say) as lanes:
        monkeypatch.setattr(lanes_module, "_LEAST_FREE", 1 << 60)
        assert lanes.run(ask()).error == {}
    assert len(messages) == 1
    assert "are free on the disk of the Docker Engine. Make space there" in messages[0]


def test_a_job_that_failed_on_a_full_disk_is_not_done(
    engine: docker.DockerClient, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes_module, "_SPENT", 1 << 60)
    monkeypatch.setattr(lanes_module, "_MOST_LOSSES", 2)
    with Lanes.open("spent-disk", lanes=1, client=engine) as lanes:
        assert lanes.run(ask()).error == {}, "a job that succeeds has had room"
        with pytest.raises(SetupError, match="no disk left"):
            lanes.run(ask(client="exit", name="failing"))
