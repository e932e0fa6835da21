"""Images that hang, die, flood or cheat: each leaves evidence that says what it did, and no exception."""

import io
import resource
from dataclasses import replace

import docker
import pytest

from runner.judge.execution import load_truth
from runner.model.result import Artifacts
from runner.model.stack import Role
from runner.places.experiment import SERVER_GRACE_SECONDS, SERVER_READY_SECONDS
from runner.places.lane_job import EndpointLimits
from runner.places.lanes.lanes import Lanes
from runner.tests.lanes.conftest import Ask
from runner.units import MIB

pytestmark = pytest.mark.docker


def test_a_client_that_hangs_is_timed_out(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="hang", timeout=1.5))
    assert evidence.error == {}
    assert evidence.client.timed_out
    assert evidence.client.exit_code == 137
    assert 1.4 < evidence.transfer_s < 30, "it would hang for ever"
    assert evidence.server.exit_code == 0


def test_a_client_that_exits_at_once(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="exit"))
    assert evidence.error == {}
    assert evidence.client.exit_code == 3
    assert not evidence.client.timed_out
    assert [file.received for file in evidence.files] == [None, None]


def test_an_unsupported_case_is_seen_as_such(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="unheard-of"))
    assert (evidence.client.exit_code, evidence.server.exit_code) == (127, 0)


def test_a_server_that_exits_at_once_gets_no_client(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(server="exit"))
    assert evidence.error == {}
    assert evidence.server.exit_code == 4
    assert not evidence.server.stopped_by_us
    assert evidence.server_ready is False
    assert evidence.client.started is None
    assert evidence.stages_s["server ready"] < SERVER_READY_SECONDS, "nobody waits for a server that has ended"


def test_a_server_that_never_answers(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(server="mute"))
    assert evidence.error == {}
    assert evidence.server_ready is False
    assert SERVER_READY_SECONDS <= evidence.stages_s["server ready"] < 3 * SERVER_READY_SECONDS
    assert evidence.client.started is None


def test_a_server_that_dies_takes_its_client_along(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(server="die", client="hang"))
    assert evidence.error == {}
    assert evidence.server.exit_code == 5
    assert not evidence.server.stopped_by_us
    assert evidence.client.stopped_by_us and not evidence.client.timed_out


def test_a_server_that_ignores_sigterm_is_killed_after_ten_seconds(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(server="ignore-term"))
    assert evidence.error == {}
    assert evidence.server.stopped_by_us
    assert evidence.server.exit_code == 137
    assert SERVER_GRACE_SECONDS <= evidence.stages_s["server stop"] < 3 * SERVER_GRACE_SECONDS
    assert all(file.equal for file in evidence.files)


def test_a_flood_of_output_is_cut_short(lanes: Lanes, ask: Ask) -> None:
    job = ask(client="flood-output")
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert evidence.client.output_flooded and not evidence.client.timed_out
    assert evidence.client.exit_code == 137
    log = job.folder / "client" / "output.log"
    assert log.stat().st_size < 2 * MIB
    assert "bytes left out" in log.read_text()


def test_a_flood_of_packets_ends_its_job(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="flood-link"))
    assert evidence.error == {}
    assert evidence.flooded
    assert evidence.client.stopped_by_us and not evidence.client.timed_out, "nobody waits for its time-out"


@pytest.mark.parametrize("server", ["flood", "flood-at-the-end"])
def test_a_server_that_floods_before_or_after_the_transfer_ends_at_once(lanes: Lanes, ask: Ask, server: str) -> None:
    """It once had ten seconds before and ten after the transfer, in which its packets filled the captures."""
    job = ask(server=server)
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert evidence.flooded
    assert evidence.server.stopped_by_us
    assert evidence.stages_s["server ready"] + evidence.stages_s["server stop"] < SERVER_GRACE_SECONDS
    captures = (Artifacts(job.folder).client_capture, Artifacts(job.folder).server_capture)
    assert all(capture.stat().st_size < 512 * MIB for capture in captures)


def test_a_gigabyte_of_logs_ends_at_the_quota(lanes: Lanes, ask: Ask) -> None:
    job = ask(client="flood-logs", limits=EndpointLimits(logs=16 * MIB))
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert evidence.client.volumes_full == ("/logs",)
    assert not evidence.client.oom_killed, "what is in the volumes does not count against its memory"
    assert all(file.equal for file in evidence.files)
    assert (job.folder / "client" / "big").stat().st_size <= 16 * MIB


def test_a_gigabyte_of_downloads_ends_at_the_quota(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="flood-downloads"))
    assert evidence.error == {}
    assert evidence.client.volumes_full == ("/downloads",)
    assert evidence.extra_files == ("big",)


def test_links_pipes_and_sparse_files_stay_where_they_are(lanes: Lanes, ask: Ask) -> None:
    job = ask(client="hide")
    evidence = lanes.run(job)
    assert evidence.error == {}
    skipped = " ".join(evidence.client.skipped_files)
    assert "keys.log (symbolic link)" in skipped
    assert "pipe (pipe)" in skipped
    assert not (job.folder / "client" / "keys.log").exists()
    assert sum(path.stat().st_size for path in job.folder.rglob("*") if path.is_file()) < 10 * MIB


@pytest.mark.parametrize(
    ("behaviour", "received", "extra"),
    [
        ("wrong", 30_000, ()),
        ("short", 29_999, ()),
        ("missing", None, ()),
        ("link", None, ("symbolic link",)),
    ],
)
def test_a_file_that_is_not_what_was_served(
    lanes: Lanes, ask: Ask, behaviour: str, received: int | None, extra: tuple[str, ...]
) -> None:
    evidence = lanes.run(ask(client=behaviour))
    assert evidence.client.exit_code == 0
    first, second = evidence.files
    assert (first.received, first.equal) == (received, False)
    assert second.equal
    assert len(evidence.extra_files) == len(extra)
    assert all(kind in name for kind, name in zip(extra, evidence.extra_files, strict=True))


def test_files_that_nobody_asked_for_are_listed(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="extra"))
    assert all(file.equal for file in evidence.files)
    assert set(evidence.extra_files) == {"more", "folder/", "folder/deep"}


def test_a_client_out_of_memory_says_so(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="out-of-memory", limits=EndpointLimits(memory=64 * MIB, logs=16 * MIB)))
    assert evidence.client.oom_killed
    assert evidence.client.exit_code == 137


def test_a_cpu_limit_that_held_an_endpoint_back_is_measured(lanes: Lanes, ask: Ask) -> None:
    evidence = lanes.run(ask(client="burn", timeout=4.5, limits=EndpointLimits(cpus=0.2)))
    assert evidence.client.timed_out
    assert 0.1 < evidence.client.cpu_s < 0.5 * evidence.transfer_s
    assert evidence.client.throttled_s > 0.5


def test_an_image_cannot_fill_the_volumes_beforehand(
    lanes: Lanes, engine: docker.DockerClient, ask: Ask, stranger: str
) -> None:
    planted = f"FROM {stranger}\nRUN mkdir -p /downloads /logs && touch /downloads/planted /logs/planted\n"
    image, _ = engine.images.build(fileobj=io.BytesIO(planted.encode()), tag="bentpipe-test/planted", rm=True)
    job = ask()
    evidence = lanes.run(replace(job, client=replace(job.client, image=str(image.id))))
    assert evidence.client.exit_code == 0
    assert evidence.extra_files == ()
    assert not (job.folder / "client" / "planted").exists()


def test_folders_that_lie_sixteen_thousand_deep_cost_nobody_memory(lanes: Lanes, ask: Ask) -> None:
    """The keeper's tar once took 15.5 GB for them, and the runner 5.9 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job = ask(client="nest")
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert not evidence.client.timed_out
    assert all(file.equal for file in evidence.files)
    assert evidence.wall_s < 60
    assert all(len(name) < 300 for name in evidence.extra_files)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in KiB
    assert grown < 64 * 1024
    assert lanes.run(ask(name="next")).error == {}, "the lane is fit for the next job"


def test_containers_of_ours_have_limits(lanes: Lanes, ask: Ask, engine: docker.DockerClient) -> None:
    lanes.run(ask())
    lanes_own = {"bentpipe.run": "tests"}.items()
    made = [
        candidate for candidate in engine.containers.list(ignore_removed=True) if lanes_own <= candidate.labels.items()
    ]
    made = [
        candidate for candidate in made if candidate.labels.get("bentpipe.role") != "guest"
    ]  # the container in which guests run; they share its memory
    assert len(made) >= 4
    for container in made:
        host = container.attrs["HostConfig"]
        assert 0 < host["Memory"] <= 2048 * MIB, container.name
        assert host["PidsLimit"], container.name


def test_captures_hold_what_the_link_carries_after_both_endpoints_have_ended(lanes: Lanes, ask: Ask) -> None:
    job = ask(server="say-goodbye")
    assert lanes.run(job).error == {}
    artifacts = Artifacts(job.folder)
    captures = (artifacts.client_capture, artifacts.server_capture)
    left, right = (capture.read_bytes().count(b"goodbye") for capture in captures)
    assert left == right >= 4, "the server's packets, and the answers of the client's kernel"


def test_packets_in_the_others_name_are_counted_and_are_in_no_capture(lanes: Lanes, ask: Ask) -> None:
    """The attack: a CONNECTION_CLOSE in the server's name, sent by the client, for which the server was blamed."""
    job = ask(client="spoof")
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert all(file.equal for file in evidence.files)
    artifacts = Artifacts(job.folder)
    for capture in (artifacts.client_capture, artifacts.server_capture):
        content = capture.read_bytes()
        assert len(content) > 30_000, "it holds the honest packets"
        assert b"FORGED" not in content
    truth = load_truth(artifacts.link_truth)
    assert truth is not None
    assert (truth.spoofed_client, truth.spoofed_server, truth.malformed) == (30, 0, 0)


def test_an_image_without_an_entry_point_is_not_compliant_and_stops_nobody(
    lanes: Lanes, engine: docker.DockerClient
) -> None:
    """It once aborted the run before its first job."""
    image, _ = engine.images.build(fileobj=io.BytesIO(b"FROM scratch\nLABEL none=1\n"), rm=True)
    answer = lanes.probe(str(image.id), Role.CLIENT)
    assert "it can't be started" in answer.problem


@pytest.mark.parametrize(
    "dockerfile", ["FROM scratch\nLABEL none=2\n", 'FROM scratch\nENTRYPOINT ["/x"]\nVOLUME ["/"]\n']
)
def test_an_image_that_the_engine_refuses_is_blamed(
    lanes: Lanes, ask: Ask, engine: docker.DockerClient, dockerfile: str
) -> None:
    image, _ = engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), rm=True)
    job = ask()
    evidence = lanes.run(replace(job, server=replace(job.server, image=str(image.id))))
    assert evidence.error["code"] == "server-not-started"
    assert lanes.run(ask(name="next")).error == {}, "the lane is fit for the next job"
