"""Middleboxes at the ends of a real link: whole jobs between this host and another one, over SSH, judged."""

from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from lab.testbed.hosts import Host
from runner.images.setup import Ready
from runner.judge.judges import judge_job
from runner.model.result import Artifacts
from runner.places.links.real_links import RealLinks
from runner.places.supervised import TOOLS
from runner.plan.catalog import Catalog
from runner.plan.choice import choose
from runner.plan.jobs import new_run
from runner.plan.options import MatrixOptions
from runner.store.runs import load_evidence
from runner.tests.links.sky import LINK, write_links

pytestmark = pytest.mark.docker

WORKLOAD = "bentpipe/workload"
BOXES = {"plain": "bentpipe/middlebox-plain", "openvpn": "bentpipe/middlebox-openvpn", "qpep": "bentpipe/qpep"}


@pytest.mark.slow
def test_downloads_cross_as_each_middlebox_carries_them(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    try:
        local = docker.from_env()
        ids = {image: str(local.images.get(image).id) for image in (WORKLOAD, *BOXES.values())}
    except (DockerException, ImageNotFound) as error:
        pytest.skip(f"no engine with the images: {error}")
    remote_host.load(TOOLS, *ids)
    links = write_links(
        tmp_path / "links.json",
        remote_host,
        interface="mgmt0",
        forward_rate=20_000_000,
        return_rate=2_000_000,
        udp_port=24453,
    )
    choice = choose(
        MatrixOptions(
            servers=("origin",),
            clients=("downloader",),
            vias=("none", *BOXES),
            cases=("download",),
            sizes=("500000",),
            links=(LINK,),
            links_file=links,
            iterations=1,
        ),
        catalog,
        None,
    )
    images = Ready(ids=dict.fromkeys(("origin", "downloader"), ids[WORKLOAD]))
    run = images.recorded_in(new_run(tmp_path / "run", choice, seed=3))
    results = {}
    with RealLinks.open(run, choice.real, ledger=tmp_path / "volume.json", say=print, report=lambda *_: None) as opened:
        for job in run.order:
            folder = tmp_path / "run" / job.path
            folder.mkdir(parents=True)
            opened.run(job, folder, attempt=1)
            artifacts = Artifacts(folder)
            result = judge_job(job, artifacts, choice.catalog.cases[job.case], run.case(job))
            evidence = load_evidence(artifacts)
            assert evidence is not None and not evidence.error and all(file.equal for file in evidence.files), evidence
            assert {finding.code for finding in result.findings} <= {"disturbed"}, result.findings  # by other tests
            results[job.via] = result
    assert all(crossed.real_link is not None and crossed.real_link.volume > 500_000 for crossed in results.values())
    crossings = {via: result.crossing for via, result in results.items() if via}
    assert all(crossing is not None for crossing in crossings.values())
    whole = {via: crossing.whole for via, crossing in crossings.items() if crossing is not None}
    assert whole == {"plain": 1, "openvpn": 1, "qpep": 0}
    assert {crossing.visible for via, crossing in crossings.items() if crossing and via != "plain"} == {()}
    assert crossings["plain"] is not None and "content" in crossings["plain"].visible
    outer = [crossing.outer_bytes for crossing in crossings.values() if crossing is not None]
    assert min(outer) > 500_000, "the traffic is between the two hosts"
    assert remote_host.containers() == []
