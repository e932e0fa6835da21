"""A runner that is killed while it has guests: neither its container nor its folder stays."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

from runner.errors import LaneError
from runner.paths import ROOT
from runner.places.guests.guests import GuestHost, Setting
from runner.places.guests.processes import IMAGE
from runner.tests.guests.conftest import kernels, runs_client
from runner.tests.lanes.conftest import Ask, containers_of, made_by
from runner.tests.waiting import wait_until

pytestmark = pytest.mark.docker

RUN = "tests-killed-guests"
SETTING = Setting(epoch=1_700_000_000)
_RUNNER = """
import sys, time
from pathlib import Path
from runner.tests.guests.test_kills import RUN, SETTING
from runner.errors import LaneError
from runner.places.guests.guests import GuestHost
with GuestHost.open(RUN, SETTING, lanes=1, scratch=Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def client() -> docker.DockerClient:
    try:
        outcome = docker.from_env()
        outcome.images.get(IMAGE)
    except (DockerException, ImageNotFound) as error:
        pytest.skip(f"no engine with {IMAGE}: {error}")
    return outcome


def test_a_killed_runner_leaves_no_guests_and_no_folders(client: docker.DockerClient, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "ready\n"
        runner.kill()
    wait_until(lambda: not made_by(client, RUN), 60)
    assert list(tmp_path.glob("bentpipe-*")), "its folder is left"
    with GuestHost.open(RUN, SETTING, lanes=1, scratch=tmp_path):
        assert len(list(tmp_path.glob("bentpipe-*"))) == 1, "that of the living one"
    assert list(tmp_path.glob("bentpipe-*")) == []


def test_a_guest_whose_container_is_killed_died(client: docker.DockerClient, tmp_path: Path, ask: Ask) -> None:
    with GuestHost.open(RUN, SETTING, lanes=1, scratch=tmp_path) as host, ThreadPoolExecutor(1) as pool:
        running = pool.submit(host.run, ask(client="poll-clock", timeout=1e6))
        guest_of(client).kill()
        with pytest.raises(LaneError) as caught:
            running.result(timeout=60)
        assert caught.value.code == "guest-died"


def test_a_job_that_runs_when_the_run_is_stopped_is_no_failure(
    client: docker.DockerClient, tmp_path: Path, ask: Ask
) -> None:
    with GuestHost.open(RUN, SETTING, lanes=1, scratch=tmp_path) as host, ThreadPoolExecutor(1) as pool:
        running = pool.submit(host.run, ask(client="poll-clock", timeout=1e6))
        guest_of(client)
        host.stop()
        for job in (running, pool.submit(host.run, ask(name="next"))):
            with pytest.raises(LaneError) as caught:
                job.result(timeout=60)
            assert caught.value.code == "stopped"
        assert not [name for name in made_by(client, RUN) if "-guest-" in name]


def guest_of(client: docker.DockerClient) -> Container:
    """The container of the only guest of this run, when the client in the guest runs."""
    wait_until(lambda: any(map(runs_client, kernels(RUN))))
    (guest,) = containers_of(client, run=RUN, role="guest")
    return client.containers.get(guest["Id"])
