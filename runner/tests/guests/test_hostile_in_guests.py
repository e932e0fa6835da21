"""Images that hang, die, flood or cheat do so in a guest as in a lane; and what only a guest can do: spin."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.model.result import Evidence
from runner.places.guests.guests import GuestHost
from runner.plan.jobs import EPOCH
from runner.tests.lanes.conftest import Ask
from runner.tests.lanes.test_hostile import (
    test_a_client_that_exits_at_once,
    test_a_client_that_hangs_is_timed_out,
    test_a_file_that_is_not_what_was_served,
    test_a_flood_of_output_is_cut_short,
    test_a_flood_of_packets_ends_its_job,
    test_a_gigabyte_of_downloads_ends_at_the_quota,
    test_a_gigabyte_of_logs_ends_at_the_quota,
    test_a_server_that_dies_takes_its_client_along,
    test_a_server_that_exits_at_once_gets_no_client,
    test_a_server_that_ignores_sigterm_is_killed_after_ten_seconds,
    test_a_server_that_never_answers,
    test_an_image_cannot_fill_the_volumes_beforehand,
    test_an_unsupported_case_is_seen_as_such,
    test_captures_hold_what_the_link_carries_after_both_endpoints_have_ended,
    test_files_that_nobody_asked_for_are_listed,
    test_folders_that_lie_sixteen_thousand_deep_cost_nobody_memory,
    test_links_pipes_and_sparse_files_stay_where_they_are,
    test_packets_in_the_others_name_are_counted_and_are_in_no_capture,
)

# The same tests, with guests in the place of lanes.
__all__ = [
    "test_a_client_that_exits_at_once",
    "test_a_client_that_hangs_is_timed_out",
    "test_a_file_that_is_not_what_was_served",
    "test_a_flood_of_output_is_cut_short",
    "test_a_flood_of_packets_ends_its_job",
    "test_a_gigabyte_of_downloads_ends_at_the_quota",
    "test_a_gigabyte_of_logs_ends_at_the_quota",
    "test_a_server_that_dies_takes_its_client_along",
    "test_a_server_that_exits_at_once_gets_no_client",
    "test_a_server_that_ignores_sigterm_is_killed_after_ten_seconds",
    "test_a_server_that_never_answers",
    "test_an_image_cannot_fill_the_volumes_beforehand",
    "test_an_unsupported_case_is_seen_as_such",
    "test_captures_hold_what_the_link_carries_after_both_endpoints_have_ended",
    "test_files_that_nobody_asked_for_are_listed",
    "test_folders_that_lie_sixteen_thousand_deep_cost_nobody_memory",
    "test_links_pipes_and_sparse_files_stay_where_they_are",
    "test_packets_in_the_others_name_are_counted_and_are_in_no_capture",
]

pytestmark = pytest.mark.docker


def test_a_job_in_virtual_time_leaves_the_evidence_of_a_lane(lanes: GuestHost, ask: Ask) -> None:
    job = ask()
    evidence = lanes.run(job)
    assert evidence.error == {}
    assert all(file.equal for file in evidence.files)
    assert (evidence.client.exit_code, evidence.server.stopped_by_us, evidence.server_ready) == (0, True, True)
    assert evidence.capture_drops == 0
    assert evidence.guest is not None and evidence.guest.virtual_s > evidence.transfer_s > 0
    assert EPOCH <= evidence.started_unix_s < EPOCH + 1
    for name in ("sim/left.pcap", "sim/right.pcap", "sim/truth.json", "client/output.log"):
        assert (job.folder / name).stat().st_size, name


def test_the_same_seed_gives_the_same_packets(lanes: GuestHost, ask: Ask) -> None:
    def hashes(name: str) -> list[str]:
        job = ask(name=name)
        assert lanes.run(job).error == {}
        return [
            hashlib.sha256((job.folder / f"sim/{side}.pcap").read_bytes()).hexdigest() for side in ("left", "right")
        ]

    assert hashes("one") == hashes("other")


@pytest.mark.parametrize("client", ["burn", pytest.param("poll-clock", marks=pytest.mark.slow)])
def test_a_client_that_spins_is_named(lanes: GuestHost, ask: Ask, client: str) -> None:
    evidence = lanes.run(ask(client=client, timeout=5))
    assert evidence.error["code"] == "spins"
    assert "client" in evidence.error["message"], "whose process it is"


def test_an_image_in_a_guest_reaches_nothing_but_its_link(lanes: GuestHost, ask: Ask) -> None:
    job = ask(client="escape", timeout=20)
    assert lanes.run(job).error == {}
    printed = (job.folder / "client" / "output.log").read_text()
    assert "/tmp/memory: Operation not permitted" in printed, "it tried"
    assert "reached" not in printed


def test_guests_that_run_at_once_do_not_reach_each_other(lanes: GuestHost, ask: Ask) -> None:
    """They have the same addresses. One floods its server; the other gets its files from its own server."""
    flooding, honest = ask(name="flooding", client="flood-link", timeout=60), ask(name="honest")
    alone = lanes.run(ask(name="alone"))
    with ThreadPoolExecutor(2) as pool:
        flooded, fetched = pool.map(lanes.run, (flooding, honest))
    assert flooded.flooded
    assert fetched.error == {} and all(file.equal for file in fetched.files)
    assert fetched.guest is not None and alone.guest is not None
    assert fetched.guest.captures == alone.guest.captures


def test_what_an_image_sees_of_its_network_is_as_in_lanes(lanes: GuestHost, ask: Ask) -> None:
    job = ask(client="print-network")
    evidence: Evidence = lanes.run(job)
    assert evidence.error == {}
    lines = (job.folder / "client" / "output.log").read_text().splitlines()
    assert any(line.split()[:2] == ["193.167.0.100", "fd00:cafe:cafe::100"] for line in lines)
    assert "193.167.0.0/16 via 193.167.0.2 dev eth0" in "\n".join(lines)
    assert "tx-checksumming: off" in lines
    assert "generic-segmentation-offload: off" in lines


def test_vector_registers_outlive_what_the_kernel_does(lanes: GuestHost, ask: Ask) -> None:
    """The kernel leaves them in the process while it works, and moves them only when it must."""
    job = ask(client="vectors", timeout=20)
    assert lanes.run(job).error == {}
    assert (job.folder / "client" / "output.log").read_text().splitlines()[-1:] == ["kept"]


def test_a_look_for_events_that_finds_nothing_takes_ten_microseconds(lanes: GuestHost, ask: Ask) -> None:
    """Otherwise a program that waits in this way would look a hundred times more often than on a real host."""
    job = ask(client="poll-nothing", timeout=20)
    assert lanes.run(job).error == {}
    looks = [int(line) for line in (job.folder / "client" / "output.log").read_text().splitlines()[-3:]]
    assert looks == pytest.approx([1950] * 3, rel=0.1), "in 20 ms, with poll, select and epoll"
