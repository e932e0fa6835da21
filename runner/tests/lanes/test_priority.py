"""CPU weights: images that are not trusted get less CPU time than the harness's own containers."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import docker
import pytest
from docker.errors import NotFound

from runner.engine.containers import FOREIGN, OWN, PROCESSES, set_weights
from runner.places.lanes.lanes import Lanes
from runner.tests.lanes.conftest import Ask, containers_of


@pytest.mark.parametrize(("folder", "name", "process"), [("cpu", "cpu.shares", 1024), (".", "cpu.weight", 100)])
def test_on_each_cpu_untrusted_images_have_the_weight_of_a_few_processes(
    tmp_path: Path, folder: str, name: str, process: int
) -> None:
    groups = tmp_path / folder
    (groups / OWN).mkdir(parents=True)
    assert set_weights(tmp_path)
    foreign = int((groups / FOREIGN / name).read_text())
    assert foreign == PROCESSES * process * (os.cpu_count() or 1)
    assert int((groups / OWN / name).read_text()) > foreign


def test_weights_that_may_not_be_set_are_no_error(tmp_path: Path) -> None:
    assert not set_weights(tmp_path)


@pytest.mark.docker
def test_endpoints_are_not_in_the_cgroup_with_the_highest_weight(
    lanes: Lanes, ask: Ask, engine: docker.DockerClient
) -> None:
    """A client that computed on all cores once left the runner no CPU time: a job of 20 s took 566 s."""
    if engine.info()["CgroupDriver"] != "cgroupfs":
        pytest.skip("systemd manages the cgroups")
    parents: dict[str, str] = {}
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lanes.run, ask(client="hang", timeout=4))
        while not job.done():
            for container in containers_of(engine, run="tests"):
                with suppress(NotFound):
                    about = engine.api.inspect_container(container["Id"])
                    parents[container["Labels"]["bentpipe.role"]] = about["HostConfig"]["CgroupParent"]
            time.sleep(0.1)
        job.result()
    assert parents["client"] == parents["server"] == f"/{FOREIGN}"
    assert parents["sim"] == parents["client-holder"] == parents["plumber"] == f"/{OWN}"
