"""Real lanes: what endpoints see, what the evidence says, that lanes don't meet and that nothing stays behind."""

import io
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import docker
import pytest

from runner.engine import containers
from runner.engine.containers import LABEL_LANES, LABEL_OWNER, ContainerSpec
from runner.engine.engine import Owner
from runner.errors import LaneError
from runner.images.images import SIMULATOR
from runner.model.link import CLIENT, GATEWAY, GROUND, SATELLITE, SERVER, TERMINAL
from runner.model.result import Artifacts
from runner.model.stack import Role
from runner.places import experiment
from runner.places.experiment import usage_of
from runner.places.lane_job import EndpointSpec, network_script
from runner.places.lanes.lanes import Lanes
from runner.places.supervised import TOOLS
from runner.store.runs import load_evidence
from runner.tests.lanes.conftest import Ask, containers_of, made_by, running
from runner.tests.waiting import wait_until

pytestmark = pytest.mark.docker


def test_a_job_leaves_files_captures_and_truth(lanes: Lanes, ask: Ask) -> None:
    job = ask()
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert evidence.server_ready is True
    assert (evidence.client.exit_code, evidence.server.exit_code) == (0, 0)
    assert evidence.server.stopped_by_us and not evidence.client.stopped_by_us
    assert [file.equal for file in evidence.files] == [True, True]
    assert evidence.capture_drops == 0
    assert 0.04 < evidence.transfer_s < job.timeout, "two round trips of TCP at 20 ms, at least"
    artifacts = Artifacts(job.folder)
    truth = json.loads(artifacts.link_truth.read_bytes())
    assert truth["seed"] == job.seed
    sent = sum(file.size for file in job.files)
    assert truth["forward"]["bytes_out"] > sent
    for capture in (artifacts.client_capture, artifacts.server_capture):
        assert capture.stat().st_size > sent
        assert capture.read_bytes()[:4] == bytes.fromhex("4d3cb2a1"), "pcap with nanoseconds"
    assert load_evidence(artifacts) == evidence
    assert "== client ==" in artifacts.output_log.read_text()


def test_ipv6_crosses_the_link_like_ipv4(lanes: Lanes, ask: Ask) -> None:
    job = ask(client="fetch6")
    evidence = lanes.run(job)
    assert evidence.client.exit_code == 0
    assert [file.equal for file in evidence.files] == [True, True]
    capture = Artifacts(job.folder).client_capture.read_bytes()
    assert bytes.fromhex("fd00cafecafe00000000000000000100") in capture


@pytest.mark.parametrize(
    "roles",
    [
        (CLIENT, SATELLITE, SERVER),
        (CLIENT, TERMINAL, SATELLITE, GATEWAY, SERVER),
        (CLIENT, TERMINAL, SATELLITE, GATEWAY, GROUND, SERVER),
    ],
)
def test_a_lane_that_is_wired_carries_packets(engine: docker.DockerClient, roles: tuple[str, ...]) -> None:
    """Linux may see a carrier a second late: what is sent until then is lost, and Chromium drops what it loads."""
    wiring = engine.containers.run(
        TOOLS,
        entrypoint=["sleep", "60"],
        detach=True,
        network_mode="none",
        cap_add=["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"],
        security_opt=["apparmor=unconfined"],
    )

    def run(*command: str) -> str:
        exit_code, output = wiring.exec_run(list(command))
        assert exit_code == 0 and isinstance(output, bytes)
        return output.decode()

    try:
        spaces = "for _ in $(seq $0); do unshare -n sleep 60 > /dev/null 2>&1 & echo $!; done"
        pids = run("sh", "-c", spaces, str(len(roles))).split()
        apart = "for pid; do ! [ /proc/$pid/ns/net -ef /proc/self/ns/net ] || exit 1; done"
        wait_until(lambda: wiring.exec_run(["sh", "-c", apart, "apart", *pids])[0] == 0)
        run("sh", "-c", network_script(dict(zip(roles, map(int, pids), strict=True)), pairwise(roles), {}))
        look = "for pid; do nsenter --net=/proc/$pid/ns/net ip -brief link show type veth; done"
        ends = run("sh", "-c", look, "look", *pids).splitlines()
        assert [end.split()[1] for end in ends] == ["UP"] * 2 * (len(roles) - 1)
    finally:
        wiring.remove(force=True)


def test_a_lane_that_waits_for_its_job_stays_fit(lanes: Lanes, engine: docker.DockerClient, ask: Ask) -> None:
    """While it waits it asks the simulator's port again and again; TCP must never connect it to itself."""
    lanes.run(ask())
    wait_until(lambda: bool(running(engine, run="tests", role="sim-holder")))  # the next lane is prepared
    time.sleep(1)  # it asks in this time; on a slow host less often
    waiting = [entry["Id"] for entry in running(engine, run="tests", role="sim-holder")]
    assert waiting
    for container in waiting:
        made = engine.api.exec_create(container, "cat /proc/sys/net/ipv4/ip_local_reserved_ports")
        assert engine.api.exec_start(made["Id"]).strip() == b"57832"
    evidence = lanes.run(ask())
    assert evidence.error == {}


@pytest.mark.parametrize(
    ("litter", "holders_stay"),
    [
        ("fetch", True),
        ("litter-files", True),
        ("litter-mode", False),
        ("litter-hosts", True),
        ("litter-rules", False),
        ("litter-routes", False),
        ("litter-filters", False),
    ],
)
def test_the_next_job_finds_a_lane_as_new(
    engine: docker.DockerClient, ask: Ask, litter: str, holders_stay: bool
) -> None:
    def look(lanes: Lanes, name: str) -> tuple[list[str], set[str]]:
        job = ask(client="look", name=name)
        assert lanes.run(job).error == {}
        keepers = [container["Id"] for container in containers_of(engine, run="litter", role="client-holder")]
        printed = (job.folder / "client" / "output.log").read_text()
        lines = re.sub(r"^\d+: eth0@if\d+", "eth0", printed, flags=re.MULTILINE).splitlines()  # the cable is another
        return sorted(lines), set(keepers)  # sorted, because the command prints to two streams

    with Lanes.open("litter", lanes=1, client=engine) as lanes:
        before, old = look(lanes, "before")
        evidence = lanes.run(ask(client=litter))
        assert (evidence.error, evidence.client.exit_code) == ({}, 0)
        after, new = look(lanes, "after")
    assert any("server4" in line for line in before)
    assert after == before
    assert (new == old) is holders_stay


def test_the_network_is_that_of_the_contract(lanes: Lanes, ask: Ask) -> None:
    job = ask(client="print-network")
    evidence = lanes.run(job)
    printed = (job.folder / "client" / "output.log").read_text()
    assert "193.167.0.100 fd00:cafe:cafe::100" in printed
    assert "193.167.0.0/16 via 193.167.0.2 dev eth0" in printed
    assert "fd00:cafe:cafe::/48 via fd00:cafe:cafe::2 dev eth0" in printed
    for offload in ("tx-checksumming", "generic-segmentation-offload", "tcp-segmentation-offload"):
        assert f"{offload}: off" in printed
    for address in ("193.167.100.100", "fd00:cafe:cafe:100::100", "193.167.0.2"):
        assert address in printed
    assert "not permitted" not in printed, "stock images may change routes and offloads"
    assert "/certs/new': Read-only file system" in printed
    assert [file.received for file in evidence.files] == [None, None]


def test_an_endpoint_reaches_nothing_but_the_other(lanes: Lanes, ask: Ask) -> None:
    job = ask(client="escape", timeout=12)
    evidence = lanes.run(job)
    printed = (job.folder / "client" / "output.log").read_text()
    assert not evidence.client.timed_out
    assert "Network is unreachable" in printed
    assert "reached" not in printed
    assert "docker.sock': No such file" in printed


def test_two_lanes_with_the_same_addresses_do_not_meet(lanes: Lanes, ask: Ask) -> None:
    jobs = [ask(client="die-slowly", name=f"job{number}") for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lanes.run, jobs)
    for evidence in (first, second):
        assert evidence.error == {}
        assert all(file.equal for file in evidence.files)
    assert first.client.started is not None and second.client.started is not None
    later = abs(first.client.started - second.client.started)
    assert later < min(first.transfer_s, second.transfer_s), "both ran at the same time"
    counts = [json.loads(Artifacts(job.folder).link_truth.read_bytes())["forward"]["packets_out"] for job in jobs]
    assert max(counts) < 1.5 * min(counts), "each simulator carries its own transfer"


@pytest.mark.parametrize("role", list(Role))
def test_an_unknown_case_gives_127(lanes: Lanes, stranger: str, role: Role) -> None:
    answer = lanes.probe(stranger, role)
    assert (answer.problem, answer.exit_code) == ("", 127)


def test_an_image_that_accepts_every_case_is_not_compliant(lanes: Lanes) -> None:
    answer = lanes.probe("bentpipe/tools", Role.CLIENT)
    assert answer.problem.startswith("it exited with 0 instead of 127")


def test_an_image_that_hangs_over_an_unknown_case_is_not_compliant(lanes: Lanes, engine: docker.DockerClient) -> None:
    dockerfile = io.BytesIO(b'FROM bentpipe/tools\nENTRYPOINT ["sleep", "infinity"]\n')
    image, _ = engine.images.build(fileobj=dockerfile, tag="bentpipe-test/hanging", rm=True)
    answer = lanes.probe(str(image.id), Role.SERVER, timeout=1.0)
    assert answer.exit_code is None
    assert answer.problem.startswith("it still ran after 1 s")
    assert 1 <= answer.seconds < 30


def test_stop_ends_a_running_job_soon(engine: docker.DockerClient, ask: Ask) -> None:
    with Lanes.open("tests", lanes=1, client=engine) as opened:
        timer = threading.Timer(3, opened.stop)
        timer.start()
        began = time.monotonic()
        evidence = opened.run(ask(client="hang", timeout=60))
        assert time.monotonic() - began < 30
    assert evidence.error["code"] == "stopped"


def test_close_leaves_nothing(engine: docker.DockerClient, ask: Ask) -> None:
    with Lanes.open("tests-close", lanes=1, client=engine) as opened:
        opened.run(ask())
        mine = containers_of(engine, run="tests-close")
        assert len({container["Labels"][LABEL_LANES] for container in mine}) == 1
    assert made_by(engine, "tests-close") == []


def test_an_image_that_is_missing_is_a_harness_error(lanes: Lanes, ask: Ask) -> None:
    job = ask()
    evidence = lanes.run(replace(job, client=replace(job.client, image="bentpipe-test/absent")))
    assert evidence.error["code"] == "engine"
    assert "bentpipe-test/absent" in evidence.error["message"]


def test_a_tag_that_moves_does_not_change_the_image_under_a_run(engine: docker.DockerClient) -> None:
    """For example when another checkout builds: a run uses its first images until its end, also those that it has not
    used yet."""
    tag, run = "bentpipe-test/moving", containers.Engine(engine, {LABEL_OWNER: str(Owner.current())})
    before, after = engine.images.get(SIMULATOR), engine.images.get("bentpipe/tools")
    before.tag(tag)
    made = [run.create("bentpipe-test-moving-1", ContainerSpec(image=tag, role="test"))]
    try:
        after.tag(tag)
        made.append(run.create("bentpipe-test-moving-2", ContainerSpec(image=tag, role="test")))
        assert [engine.api.inspect_container(item)["Image"] for item in made] == [before.id, before.id]
        assert containers.Engine(engine, {}).image_id(tag) == after.id
    finally:
        for item in made:
            run.remove(item)
        run.close()
        engine.images.remove(tag)


def test_who_stands_still_for_want_of_a_cpu_is_seen(engine: docker.DockerClient) -> None:
    """Two that always want the same CPU have half of it each; a third one sleeps."""
    if not (Path("/sys/fs/cgroup/cgroup.controllers").exists() or Path("/sys/fs/cgroup/unified").exists()):
        pytest.skip("this kernel has no pressure of groups")
    run, made = containers.Engine(engine, {LABEL_OWNER: str(Owner.current())}), []
    try:
        for number, script in enumerate(("while :; do :; done", "while :; do :; done", "sleep 20")):
            command = ("timeout", "20", "bash", "-c", script)
            spec = ContainerSpec(
                image="bentpipe/tools", role="test", entrypoint=(), command=command, host={"cpuset_cpus": "0"}
            )
            made.append(run.create(f"bentpipe-test-pressure-{number}", spec))
            run.start(made[-1])

        def waited() -> tuple[float, ...]:
            return tuple(experiment.of_container(item) or 0.0 for item in made)

        wait_until(lambda: min(waited()[:2]) > 1.5, 20)
        first, second, sleeping = waited()
        assert sleeping < min(first, second) / 3, "what it waited for was its own start"
    finally:
        for item in made:
            run.remove(item)
        run.close()


def test_cpu_time_is_read_from_the_kernel_as_the_engine_tells_it(engine: docker.DockerClient) -> None:
    run = containers.Engine(engine, {LABEL_OWNER: str(Owner.current())})
    spec = ContainerSpec(
        image="bentpipe/tools",
        role="test",
        entrypoint=(),
        command=("bash", "-c", "while :; do :; done"),
        host={"nano_cpus": 200_000_000},
    )
    container = run.create("bentpipe-test-usage", spec)
    try:
        run.start(container)

        def is_held_back() -> bool:
            usage = usage_of(container)
            return usage is not None and usage.cpu > 0.2 and usage.throttled > 0.2

        wait_until(is_held_back)
        before, text, after = usage_of(container), run.usage(container), usage_of(container)
        assert before is not None and after is not None
        assert before.cpu <= text.cpu <= after.cpu
        assert before.throttled <= text.throttled <= after.throttled
    finally:
        run.remove(container)
        run.close()
    assert usage_of(container) is None


def test_an_engine_that_does_not_answer_is_told_from_one_that_refuses(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    """Nobody accepts on the other end: no image can be blamed for that."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        with pytest.raises(LaneError) as unanswered:
            containers.Engine(engine, {}, url=f"unix://{tmp_path}/silent", call_seconds=1).start("any")
    with pytest.raises(LaneError) as refused:
        containers.Engine(engine, {}).start("bentpipe-test-absent")
    assert (unanswered.value.code, refused.value.code) == ("engine-silent", "engine")


@pytest.mark.parametrize("entry", ["[]", '["/absent"]'])
def test_an_image_that_cannot_be_started(lanes: Lanes, engine: docker.DockerClient, ask: Ask, entry: str) -> None:
    dockerfile = io.BytesIO(f"FROM {SIMULATOR}\nENTRYPOINT {entry}\nCMD []\n".encode())
    image, _ = engine.images.build(fileobj=dockerfile, tag="bentpipe-test/unstartable", rm=True)
    job = ask()
    evidence = lanes.run(replace(job, server=EndpointSpec(image=str(image.id), environment={"TESTCASE": "fetch"})))
    assert evidence.error["code"] == "server-not-started"
    assert evidence.server.started is None
    assert evidence.client.started is None
    assert load_evidence(Artifacts(job.folder)) == evidence
