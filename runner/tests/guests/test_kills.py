"""A runner that is killed while it has guests: neither its container nor its folder stays."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from runner.errors import LaneError
from runner.guests.deployment import GuestHost
from runner.guests.experiment import Setting
from runner.guests.house import IMAGE
from runner.paths import ROOT
from runner.tests.lanes.conftest import made_by

pytestmark = pytest.mark.docker

RUN = "tests-killed-guests"
SETTING = Setting(epoch=1_700_000_000)
_RUNNER = """
import sys, time
from pathlib import Path
from runner.tests.guests.test_kills import RUN, SETTING
from runner.errors import LaneError
from runner.guests.deployment import GuestHost
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
    deadline = time.monotonic() + 30
    while made_by(client, RUN):
        assert time.monotonic() < deadline, made_by(client, RUN)
        time.sleep(0.1)
    assert list(tmp_path.glob("bentpipe-*")), "its folder is left"
    with GuestHost.open(RUN, SETTING, lanes=1, scratch=tmp_path):
        assert len(list(tmp_path.glob("bentpipe-*"))) == 1, "that of the living one"
    assert list(tmp_path.glob("bentpipe-*")) == []


def test_a_house_that_is_killed_gets_a_successor(client: docker.DockerClient, tmp_path: Path) -> None:
    with GuestHost.open(RUN, SETTING, lanes=1, scratch=tmp_path) as host:
        house = host._house
        houses = [each for each in client.containers.list(ignore_removed=True) if str(each.name).endswith("-house")]
        (container,) = (each for each in houses if RUN in str(each.labels))
        container.kill()
        with pytest.raises(LaneError) as caught:
            house.execute(["true"])
        assert caught.value.code == "holder-died"
        assert house.execute(["cat", "/guest/version"])[1].strip() == house.kernel


def test_a_job_that_has_just_begun_when_the_run_is_stopped_gets_no_new_house(
    client: docker.DockerClient, tmp_path: Path
) -> None:
    with GuestHost.open(RUN, SETTING, lanes=1, scratch=tmp_path) as host:
        house = host._house
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(house.execute, ["sleep", "60"])
            time.sleep(1.0)
            host.stop()
            with pytest.raises(LaneError):
                running.result(timeout=30)
        with pytest.raises(LaneError) as caught:
            house.execute(["true"])
        assert caught.value.code == "stopped"
        houses = client.containers.list(all=True, filters={"label": f"bentpipe.run={RUN}"}, ignore_removed=True)
        assert not [each for each in houses if str(each.name).endswith("-house")]
