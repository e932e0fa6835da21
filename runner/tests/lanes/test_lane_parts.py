"""The parts of a lane that need no engine: arguments, wiring, kept output, owners."""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.containers import HEAD, TAIL, ContainerState, Engine, Output
from runner.engine.engine import Owner
from runner.images.images import SIMULATOR
from runner.model.link import (
    CLIENT,
    GATEWAY,
    SATELLITE,
    SERVER,
    TERMINAL,
    LinkParameters,
    LinkRecord,
    Outage,
    PathImpairments,
    SegmentRecord,
    Topology,
)
from runner.model.stack import BesideRole, Middlebox, Role
from runner.paths import ROOT
from runner.places.experiment import Endpoint
from runner.places.lane_job import EndpointLimits, EndpointSpec, lane_job, link_document, network_script
from runner.places.supervised import Notifier, Watched
from runner.plan.catalog import Catalog
from runner.plan.jobs import new_run
from runner.tests.records import select

FORWARD = LinkParameters(data_rate=20_000_000, delay=0.3, queue_packets=125, loss=0.01)
RETURN = LinkParameters(data_rate=2_000_000, delay=0.3, queue_packets=25, loss=0.0)
SEGMENT = SegmentRecord(forward=FORWARD, return_=RETURN)


def test_the_document_of_the_link() -> None:
    impairments = PathImpairments(outage=Outage(start=1.0, duration=2.0))
    document = link_document(replace(SEGMENT, impairments=impairments), seed=42, flood=10**9)
    assert document["left"] == {"interface": "eth0", "foreign": ("193.167.100.0/24", "fd00:cafe:cafe:100::/64")}
    forward, return_ = document["forward"], document["return"]
    assert (forward["data_rate"], forward["delay"], forward["queue_packets"], forward["loss"]) == (20e6, 0.3, 125, 0.01)
    assert (return_["data_rate"], return_["queue_packets"], return_["loss"]) == (2e6, 25, 0)
    assert document["impairments"]["outage"] == {"start": 1.0, "duration": 2.0}
    assert (document["seed"], document["flood"], document["loss_protocol"]) == (42, 10**9, "udp")


@given(st.floats(0, 1), st.floats(0, 10))
def test_numbers_keep_their_value(loss: float, delay: float) -> None:
    link = LinkParameters(data_rate=1, delay=delay, queue_packets=1, loss=loss)
    document = json.loads(json.dumps(link_document(SegmentRecord(forward=link, return_=link), seed=0)))
    assert (document["forward"]["loss"], document["return"]["delay"]) == (loss, delay)


@pytest.mark.docker
def test_the_simulator_knows_the_same_fields() -> None:
    command = ("docker", "run", "--rm", "--network", "none", SIMULATOR, "--help")
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    theirs = json.loads(usage[usage.index("\n{") :])
    ours = link_document(SEGMENT, seed=1)
    assert field_names(theirs) == field_names(ours)


def field_names(value: object) -> object:
    """Names without values: a document's shape."""
    return {name: field_names(inner) for name, inner in value.items()} if isinstance(value, dict) else None


ONE = LinkRecord.single("one", FORWARD, RETURN)
TWO = LinkRecord(name="two", segments=ONE.segments * 2)
BOX = Middlebox(name="box", image="box", url="", version="")


def test_the_wiring_is_valid_shell() -> None:
    script = network_script({CLIENT: 11, SATELLITE: 22, SERVER: 33}, Topology(link=ONE).hops, {})
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert len(set(re.findall(r" index (\d+)", script))) == 4, "no end has the number of its other end"
    left, right = re.findall(r"ip link add .*", script)
    assert "netns 11 address 02:bb:00:00:00:01" in left and "netns 22 address 02:bb:00:00:00:02" in left
    assert "netns 33 address 02:bb:00:00:00:02" in right and "netns 22 address 02:bb:00:00:00:01" in right


@pytest.mark.parametrize("link", [ONE, TWO])
def test_the_wiring_with_routers_is_valid_shell_and_names_a_controller_for_every_route(link: LinkRecord) -> None:
    topology = Topology(link=link, middlebox=BOX)
    nodes = (*topology.nodes, *topology.segments)
    pids = {role: number for number, role in enumerate(nodes, start=100)}
    script = network_script(pids, topology.hops, {GATEWAY: "bbr"})
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0
    assert script.count("ip link add") == len(nodes) - 1
    routes = re.findall(r"route add (\S+) via (\S+) congctl (\S+)", script)
    assert len(routes) == script.count("route add")
    assert {controller for _, via, controller in routes if via in ("10.55.100.2", "10.66.0.2")} == {"bbr"}
    assert {controller for _, via, controller in routes if via in ("10.55.0.2", "193.167.0.2")} == {"cubic"}


def test_with_middleboxes_losses_take_every_packet() -> None:
    document = link_document(SEGMENT, seed=1, lose_all=True)
    assert document["loss_protocol"] == "any"


def test_small_output_is_kept_as_it_is() -> None:
    output = Output()
    for part in (b"one\n", b"tw", b"o\n", b"\xff\n"):
        output.feed(part)
    assert output.content() == b"one\ntwo\n\xff\n"
    assert output.last_lines(2) == "two\n\N{REPLACEMENT CHARACTER}"
    assert (output.total, output.left_out) == (10, 0)


@given(st.lists(st.integers(1, 200_000), max_size=40))
def test_of_much_output_beginning_and_end_are_kept(sizes: list[int]) -> None:
    output, everything = Output(), b""
    for number, size in enumerate(sizes):
        part = bytes([number % 251]) * size
        output.feed(part)
        everything += part
    kept = output.content()
    assert output.total == len(everything)
    assert len(kept) <= HEAD + TAIL + 200_000 + 100
    assert kept[:HEAD] == everything[:HEAD]
    assert everything.endswith(kept[-TAIL:] if output.left_out else kept)
    assert (output.left_out > 0) == (b"bytes left out" in kept)


def test_this_process_lives_and_others_of_its_number_do_not() -> None:
    me = Owner.current()
    assert me.pid == os.getpid()
    assert Owner.parse(str(me)) == me
    assert not me.is_dead()
    assert replace(me, start=me.start - 1).is_dead(), "its process id was used again"
    assert replace(me, boot="another").is_dead()
    assert not replace(me, machine="another", pid=1).is_dead(), "hands off what another machine made"


def test_a_process_that_has_ended_is_dead() -> None:
    code = "from runner.engine.engine import Owner; print(Owner.current())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    owner = Owner.parse(printed.strip())
    assert owner is not None
    assert owner.is_dead()


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace with another name needs root")
def test_a_copy_of_this_machine_with_another_name_is_another_machine() -> None:
    """Copies of a virtual machine have one machine-id: one of them swept the living containers of another."""
    code = "from runner.engine.engine import Owner; print(Owner.current())"
    there = ["unshare", "--uts", "sh", "-c", 'hostname copied && exec "$@"', "sh", sys.executable, "-c", code]
    printed = subprocess.run(there, capture_output=True, text=True, check=True).stdout
    owner = Owner.parse(printed.strip())
    assert owner is not None and owner.boot == Owner.current().boot
    assert owner.machine != Owner.current().machine
    assert not owner.is_dead(), "its process can't be seen from here"


@pytest.mark.parametrize("text", ["", "a:b", "a:b:c:d", "a:b:1:2:3"])
def test_a_label_of_another_form_names_nobody(text: str) -> None:
    assert Owner.parse(text) is None


@pytest.mark.parametrize("link", [ONE, TWO])
def test_the_wiring_with_a_flow_beside_is_valid_shell_and_joins_both_its_ends_to_the_routers(link: LinkRecord) -> None:
    topology = Topology(link=link, beside=True)
    nodes = (*topology.nodes, *topology.segments)
    pids = {role: number for number, role in enumerate(nodes, start=100)}
    script = network_script(pids, topology.hops, {})
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0
    assert script.count("ip link add") == len(nodes) - 1
    ends = re.findall(r"add (\S+) index \d+ netns (\d+) .* peer name (\S+) index \d+ netns (\d+)", script)
    joined = {(pids[BesideRole.CLIENT], pids[TERMINAL]), (pids[GATEWAY], pids[BesideRole.SERVER])}
    assert joined <= {(int(near), int(far)) for _, near, _, far in ends}
    addresses = re.findall(r"address add (\S+) dev", script)
    macs = re.findall(r"(02:bb:\S+)", script)
    assert len(addresses) == len(set(addresses)), "no address twice"
    assert len(macs) - len(set(macs)) == 2 * len(link.segments), "only a simulator bears the MAC of its neighbour"


def test_an_endpoint_that_was_stopped_before_its_stop_stays_stopped() -> None:
    engine: Any = None  # a container that has ended needs no engine
    watched = Watched(engine, "container", Notifier(threading.Event()))
    watched.final = ContainerState(pid=0, exit_code=137, oom_killed=False, started=1.0, ended=2.0)
    endpoint = Endpoint(Role.SERVER, EndpointSpec(image="image"), EndpointLimits())
    endpoint.join(engine, watched)
    endpoint.stopped_by_us = True
    endpoint.stop(grace=0.0)
    assert endpoint.stopped_by_us


# sigwait loses no signal; one that arrives just before pause() would be.
_SAYS_TERM = """import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.write(1, b"%09d" % os.getpid())
while signal.sigwait({signal.SIGTERM}):
    os.write(1, b"TERM")
"""


def _handles_sigterm(pid: int) -> bool:
    (caught,) = re.findall(r"SigCgt:\t(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_signal_to_any_thread_of_hold_reaches_its_command() -> None:
    """The kernel chooses a thread, and rarely the main one while this thread starts a command."""
    command = [sys.executable, "sim/tools/hold", sys.executable, "-c", _SAYS_TERM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hold:
        assert hold.stdin is not None and hold.stdout is not None
        too_late = threading.Timer(10, hold.kill)  # a lost signal must not stop the suite
        too_late.start()
        head = 9  # bytes of a frame before its data
        beside = int(hold.stdout.read(head + 9)[head:])
        try:
            while not _handles_sigterm(hold.pid):
                time.sleep(0.01)
            others = [each.name for each in Path(f"/proc/{hold.pid}/task").iterdir() if int(each.name) != hold.pid]
            assert others
            for thread in others:
                assert ctypes.CDLL(None).tgkill(hold.pid, int(thread), signal.SIGTERM) == 0
                assert hold.stdout.read(head + len("TERM")).endswith(b"TERM")
            hold.stdin.close()
            assert hold.wait() == 0
        finally:
            too_late.cancel()
            os.kill(beside, signal.SIGKILL)  # in a container, it ends with `hold`


@pytest.mark.docker
def test_a_run_keeps_its_image_when_the_name_moves(engine: docker.DockerClient) -> None:
    """The name of the image leads to another image than the one that the run recorded."""
    recorded = engine.images.get(SIMULATOR).id
    assert recorded is not None
    spec = EndpointSpec(image="bentpipe/tools", image_id=recorded)
    endpoint = Endpoint(Role.CLIENT, spec, EndpointLimits())
    endpoint.find(Engine(engine, {}))
    assert endpoint.container((), quota=0, host={}).image == recorded
    assert (endpoint.record(0.0).image, endpoint.record(0.0).image_id) == ("bentpipe/tools", recorded)


def test_jobs_use_the_images_that_their_run_recorded(catalog: Catalog, tmp_path: Path) -> None:
    run = new_run(tmp_path, select(catalog, servers=("quinn",), clients=("aioquic",), cases=("handshake",)))
    entries = {name: replace(entry, image_id=f"sha256:{name}") for name, entry in run.implementations.items()}
    run = replace(run, implementations=entries)
    (job,) = run.order
    here, elsewhere = (lane_job(each, job, tmp_path) for each in (run, run.elsewhere))
    assert (here.client.pinned, here.server.pinned) == ("sha256:aioquic", "sha256:quinn")
    assert (elsewhere.client.pinned, elsewhere.server.pinned) == ("bentpipe/aioquic", "bentpipe/quinn")
