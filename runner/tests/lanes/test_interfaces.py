"""The watch of the endpoints' interfaces: it notes what an endpoint changes, and nothing else."""

import subprocess
import threading

import docker
import pytest

from runner.judge.execution import load_truth
from runner.model.result import Artifacts, EndpointRecord, InterfaceChange, InterfaceChangeKind
from runner.places.lanes.lane import parse_changes
from runner.places.lanes.lanes import Lanes
from runner.tests.lanes.conftest import Ask, running
from runner.tests.waiting import wait_until


def kinds(record: EndpointRecord) -> list[str]:
    return [change.kind.value for change in record.interface_changes]


def test_only_changes_of_the_jobs_own_interface_count() -> None:
    lines = ["watching", "10 5.0 on", "10 6.0 deleted", "12 7.0 on", "12 9.5 mtu 68", "junk", "14 9.6 off"]
    changed = InterfaceChange(kind=InterfaceChangeKind.MTU, value="68", time=2.5)
    assert parse_changes(lines, "12", 7.0) == (changed,)


@pytest.mark.docker
def test_an_honest_endpoint_changes_nothing(lanes: Lanes, ask: Ask) -> None:
    for name in ("first", "second"):  # the second job has the same lane with new cables
        evidence = lanes.run(ask(name=name))
        assert evidence.error == {}
        assert (evidence.client.interface_changes, evidence.server.interface_changes) == ((), ())


@pytest.mark.docker
def test_an_endpoint_that_makes_its_mtu_small_is_noted(lanes: Lanes, ask: Ask) -> None:
    """The job once ran three times and ended as `disturbed`, which blames nobody."""
    job = ask(client="small-mtu")
    evidence = lanes.run(job)
    assert evidence.error == {}
    changes = evidence.client.interface_changes
    assert [change.value for change in changes if change.kind is InterfaceChangeKind.MTU] == ["68", "1500"]
    assert 0 < changes[0].time < evidence.wall_s
    assert evidence.server.interface_changes == ()
    truth = load_truth(Artifacts(job.folder).link_truth)
    assert truth is not None and truth.send_errors > 0


@pytest.mark.docker
@pytest.mark.parametrize(("behaviour", "noted"), [("link-off", "off"), ("delete-link", "deleted"), ("flap", "overrun")])
def test_an_endpoint_that_takes_its_interface_away_is_noted(lanes: Lanes, ask: Ask, behaviour: str, noted: str) -> None:
    evidence = lanes.run(ask(client=behaviour))
    assert noted in kinds(evidence.client)
    assert len(evidence.client.interface_changes) <= 100
    assert evidence.server.interface_changes == ()
    assert lanes.run(ask(name="next")).error == {}


@pytest.mark.docker
def test_an_endpoint_is_not_accused_when_the_simulator_vanishes(
    lanes: Lanes, ask: Ask, engine: docker.DockerClient
) -> None:
    """With the namespace of the simulator, the kernel deletes the endpoints' interfaces."""
    evidence = []
    job = threading.Thread(target=lambda: evidence.append(lanes.run(ask(client="hang"))))
    job.start()
    wait_until(lambda: bool(running(engine, run="tests", role="client")))
    [client] = running(engine, run="tests", role="client")
    lane = client["Names"][0].removesuffix("-client")
    subprocess.run(["docker", "kill", f"{lane}-sim-holder", f"{lane}-sim"], check=True, capture_output=True)
    job.join()
    assert evidence[0].error
    assert (evidence[0].client.interface_changes, evidence[0].server.interface_changes) == ((), ())
