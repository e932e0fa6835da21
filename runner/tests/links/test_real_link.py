"""Jobs between this host and another one, over SSH."""

import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from lab.testbed.hosts import Host, shifted_clock
from runner.errors import BudgetError, SetupError
from runner.images.images import SIMULATOR
from runner.images.pulling import WantedImage, lacking
from runner.model.link import LINK_DOWN, LinkParameters
from runner.model.result import Outcome
from runner.model.stack import Role
from runner.places.links.hosts import RemoteEngine
from runner.places.links.reach import clock
from runner.places.links.real_links import LinkHost
from runner.places.supervised import SCRIPTS, TOOLS
from runner.plan.catalog import Catalog
from runner.plan.link_traces import parse_probes
from runner.tests.links.jobs import FORWARD_RATE, RETURN_RATE, STACK, link_to, working
from runner.tests.links.satellite import INTERFACE, Satellite

pytestmark = pytest.mark.docker

DELAY, LOSS = 0.3, 0.01


@pytest.fixture(autouse=True, scope="module")
def images() -> None:
    try:
        for image in ("bentpipe/tools", SIMULATOR, f"bentpipe/{STACK}"):
            docker.from_env().images.get(image)
    except (DockerException, ImageNotFound) as error:
        pytest.skip(f"no engine with the images: {error}")


def _parameters(data_rate: int, loss: float = 0.0) -> LinkParameters:
    return LinkParameters(data_rate=data_rate, delay=DELAY, queue_packets=125, loss=loss)


def test_a_job_leaves_the_same_files_and_nothing_on_the_host_and_one_beyond_the_budget_is_not_begun(
    remote_host: Host, catalog: Catalog, tmp_path: Path
) -> None:
    with suppress(ImageNotFound):  # the image may be left from an earlier test
        remote_host.engine().images.remove(f"bentpipe/{STACK}", force=True)
    poor = replace(link_to(remote_host), budget_day=5_000_000)
    with working(catalog, tmp_path, poor, cases=("handshake", "transfer")) as work:
        assert any(f"bentpipe/{STACK} is missing there" in line for line in work.said)
        assert any(f"{remote_host.our_address} over mgmt0: chosen" in line for line in work.said)
        there = work.links._links["roof"].engines[Role.CLIENT]
        assert isinstance(there, RemoteEngine)
        wanted = [WantedImage.of(docker.from_env(), name) for name in (TOOLS, f"bentpipe/{STACK}")]
        assert LinkHost(there).ask(lacking, wanted) == []  # nothing is sent twice
        small, large = work.run.order
        result, evidence = work.do(small)
        assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())
        observed = evidence.real_link
        assert observed is not None
        assert (observed.server_address, observed.interface, observed.translated) == (
            remote_host.our_address,
            "mgmt0",
            False,
        )
        assert observed.clock is not None
        assert abs(observed.clock.offset) < max(observed.clock.bound, 0.005)  # both hosts use the clock of this machine
        assert observed.before is not None
        assert observed.before.sent >= 12
        assert observed.volume > 2000
        folder = tmp_path / "handshake@roof" / "1"
        for name in ("sim/left.pcap", "sim/right.pcap", "client/keys.log", "server/output.log", "tables/client"):
            assert (folder / name).exists(), name
        assert not any(
            secret in (folder / "evidence.json").read_text() for secret in ("ssh-ed25519", "PRIVATE", 'key"')
        )
        with pytest.raises(BudgetError, match="for this day"):
            work.do(large)
    assert remote_host.containers() == []


def test_an_address_that_does_not_answer(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    wrong = replace(link_to(remote_host), server_addresses=("192.0.2.77",))
    with (
        pytest.raises(SetupError, match=r"reaches no address .*192\.0\.2\.77"),
        working(catalog, tmp_path, wrong, cases=("handshake",)),
    ):
        pass
    assert remote_host.containers() == []


@pytest.mark.slow
def test_a_satellite_link_is_measured_and_the_clocks_are_found(
    remote_host: Host, catalog: Catalog, tmp_path: Path
) -> None:
    satellite = Satellite(remote_host, None, remote_host.number)
    try:
        satellite.open(_parameters(FORWARD_RATE, LOSS), _parameters(RETURN_RATE, LOSS), seed=5)
        sky = replace(link_to(remote_host, name="sky", interface=INTERFACE), udp_port=4443, probe_port=4444)
        with working(catalog, tmp_path, sky, cases=("transfer",), timeout=30.0) as work:
            result, evidence = work.do(work.run.order[0])
            codes = {finding.code for finding in result.findings}
            assert codes <= {"timeout"}, result.findings  # NewReno takes minutes for 10 MiB at 1 % and 600 ms
            observed = evidence.real_link
            assert observed is not None
            assert observed.clock is not None
            assert observed.before is not None
            assert observed.before.rtt_min == pytest.approx(2 * DELAY, rel=0.02)
            assert abs(observed.clock.offset) < 0.005
            assert result.sample is not None
            assert result.sample.one_way_delay_median == pytest.approx(DELAY, abs=0.1)
            satellite.stop()
            began = time.monotonic()
            job = next(job for job in work.run.order if job.case == "transfer" and job.iteration == 1)
            (tmp_path / "transfer@sky" / "1").rename(tmp_path / "done")
            down, _ = work.do(job)
            assert (down.outcome, down.findings[0].code) == (Outcome.ERROR, LINK_DOWN)
            assert time.monotonic() - began < 90
    finally:
        satellite.close()
    assert remote_host.containers() == []


@pytest.mark.slow
def test_a_clock_that_is_known_to_be_ahead_is_found(remote_host: Host) -> None:
    """600 ms of RTT and 1 % loss on our link; libfaketime sets the clock that the probe on the host reads.

    Namespaces share the kernel's wall clock (a time namespace moves the monotonic one alone), and it is the kernel that
    stamps captured packets: only a process can have a clock of its own here. So this is of the probes on the wire, and
    `test_two_clocks.py` of joining the captures by what they found.
    """
    library = shifted_clock()
    if library is None:
        pytest.skip("libfaketime can't be downloaded")
    ahead, drift, seconds, token, port = 37.25, 500e-6, 40.0, "5a" * 16, 4446
    satellite = Satellite(remote_host, None, remote_host.number)
    answering = subprocess.Popen([sys.executable, SCRIPTS / "capture_and_probe.py", "answer", "120", token, str(port)])
    try:
        satellite.open(_parameters(FORWARD_RATE, LOSS), _parameters(RETURN_RATE, LOSS), seed=5)
        asking = (token, str(port), INTERFACE, "443", satellite.server_address, "0.2")
        client = remote_host.engine().containers.run(
            TOOLS,
            ["/usr/bin/python3", "-ISB", "/monitor/monitor.py", "client", "120", *asking],
            environment={
                "LD_PRELOAD": "/clock.so",
                "FAKETIME": f"+{ahead}s x{1 + drift}",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            },
            volumes=[f"{SCRIPTS}/capture_and_probe.py:/monitor/monitor.py:ro", f"{library}:/clock.so:ro"],
            network_mode="host",
            detach=True,
        )
        began = time.time()
        time.sleep(seconds)
        written = client.exec_run(["cat", "/monitor/probes.txt"]).output
    finally:
        answering.terminate()
        answering.wait()
        satellite.close()
        for item in remote_host.engine().containers.list(ignore_removed=True):
            item.remove(force=True)
    assert isinstance(written, bytes)
    estimate = clock(parse_probes(written.decode()))
    assert estimate is not None
    for moment in (0.0, seconds):
        assert estimate.ahead(began + moment) == pytest.approx(ahead + drift * moment, abs=0.005)


def test_a_port_that_is_taken_is_no_failure_of_the_server(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    taken = replace(link_to(remote_host), udp_port=4433, probe_port=4434)
    with (
        working(catalog, tmp_path, taken, cases=("handshake",)) as work,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        other.bind(("0.0.0.0", 4433))
        result, _ = work.do(work.run.order[0])
        assert (result.outcome, result.findings[0].code) == (Outcome.ERROR, "side-failed")
        assert "UDP port 4433 is in use" in result.findings[0].actual
