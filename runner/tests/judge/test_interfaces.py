"""An endpoint that spoils its own interface is blamed the first time; an honest endpoint never is."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from runner.decode.columns import CLIENT, SERVER
from runner.judge.execution import transient
from runner.model.result import Artifacts, Outcome
from runner.plan.catalog import Catalog
from runner.tests.decode.rewrite import read, write_pcap
from runner.tests.judge.test_analyse import Recorded, codes, edit, judge
from runner.tests.records import RECORDINGS

RECORDING = "quinn_quinn/handshake"
SMALL = {"kind": "mtu", "value": "68", "time": 0.1}
OFF = {"kind": "off", "value": "", "time": 0.1}
ADDRESS = {"kind": "address", "value": "193.167.100.100", "time": 0.1}


def edit_truth(artifacts: Artifacts, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(artifacts.link_truth.read_text())
    change(document)
    artifacts.link_truth.write_text(json.dumps(document))


def let_sends_fail(truth: dict[str, Any]) -> None:
    truth["forward"]["send_errors"] = 7


def with_changes(artifacts: Artifacts, role: str, *changes: dict[str, Any]) -> None:
    edit(artifacts, lambda evidence: evidence[role].update(interface_changes=list(changes)))


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("change", [SMALL, OFF, {"kind": "overrun", "value": "", "time": 0.1}])
def test_who_keeps_the_simulator_from_sending_is_blamed(
    catalog: Catalog, recorded: Recorded, role: str, change: dict[str, Any]
) -> None:
    artifacts = recorded(RECORDING)
    edit_truth(artifacts, let_sends_fail)
    with_changes(artifacts, role, change)
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result), result.findings[0].role) == (Outcome.FAILED, {"interface-changed"}, role)
    assert transient(result) is None, "it gets no other attempt"


def test_failed_sends_without_a_change_blame_nobody(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded(RECORDING)
    edit_truth(artifacts, let_sends_fail)
    with_changes(artifacts, "client", {"kind": "mac", "value": "02:00:00:00:00:99", "time": 0.1})
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result), result.findings[0].role) == (Outcome.ERROR, {"disturbed"}, "")


@pytest.mark.parametrize(("way", "role"), [("forward", "client"), ("return", "server")])
def test_in_a_guest_failed_sends_blame_the_receiver(catalog: Catalog, recorded: Recorded, way: str, role: str) -> None:
    """The attack `small-mtu` in a guest, where nobody watches the interfaces."""
    artifacts = recorded(RECORDING)
    edit_truth(artifacts, lambda truth: truth[way].update(send_errors=7))
    guest = json.loads((RECORDINGS / "lies/server-acks-unsent/1/evidence.json").read_text())["guest"]
    edit(artifacts, lambda evidence: evidence.update(guest=guest))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result), result.findings[0].role) == (Outcome.FAILED, {"interface-changed"}, role)


@pytest.mark.parametrize(("role", "own"), [("client", CLIENT), ("server", SERVER)])
def test_in_a_guest_an_endpoint_that_records_nothing_of_its_peer_is_blamed(
    catalog: Catalog, recorded: Recorded, role: str, own: int
) -> None:
    """The attack `link-down-first` in a guest: the link delivers packets to an interface that is off."""
    artifacts = recorded(RECORDING)
    path = artifacts.client_capture if role == "client" else artifacts.server_capture
    write_pcap(path, [record for record in read(path) if record.from_client() is (own == CLIENT)])
    guest = json.loads((RECORDINGS / "lies/server-acks-unsent/1/evidence.json").read_text())["guest"]
    edit(artifacts, lambda evidence: evidence.update(guest=guest))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result), result.findings[0].role) == (Outcome.FAILED, {"interface-changed"}, role)


@pytest.mark.parametrize(("change", "blamed"), [(OFF, "server"), (ADDRESS, ""), (OFF | {"time": 1e6}, "")])
def test_who_switches_its_interface_off_is_blamed_for_what_its_capture_lacks(
    catalog: Catalog, recorded: Recorded, change: dict[str, Any], blamed: str
) -> None:
    """The attack `flap-link` of a server: the link delivers packets while its interface is off."""
    artifacts = recorded(RECORDING)
    mine = [record for record in read(artifacts.server_capture) if not record.from_client()]
    write_pcap(artifacts.server_capture, [*read(artifacts.server_capture)[:1], *mine])
    with_changes(artifacts, "server", change)
    result = judge(catalog, artifacts, "handshake")
    assert (codes(result), result.findings[0].role) == ({"interface-changed" if blamed else "disturbed"}, blamed)


@pytest.mark.parametrize("change", [SMALL, OFF, ADDRESS, SMALL | {"value": ""}, SMALL | {"value": 5000 * "9"}])
def test_a_change_without_harm_is_no_failure(catalog: Catalog, recorded: Recorded, change: dict[str, Any]) -> None:
    artifacts = recorded(RECORDING)
    with_changes(artifacts, "server", change)
    assert judge(catalog, artifacts, "handshake").outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        (OFF, "server"),
        (ADDRESS, "server"),
        (ADDRESS | {"value": "fd00:cafe:cafe:100::100"}, "client"),  # the case needs only IPv4
        (SMALL | {"value": "1400"}, "client"),
        (OFF | {"time": 1e6}, "client"),  # after the transfer
    ],
)
def test_a_client_that_waits_for_a_deaf_server_is_not_blamed(
    catalog: Catalog, recorded: Recorded, change: dict[str, Any], blamed: str
) -> None:
    artifacts = recorded(RECORDING)
    edit(artifacts, lambda evidence: evidence["client"].update(timed_out=True, exit_code=137))
    with_changes(artifacts, "server", change)
    result = judge(catalog, artifacts, "handshake")
    assert result.outcome is Outcome.FAILED
    assert result.findings[0].role == blamed
    assert "timeout" in codes(result)


@pytest.mark.parametrize(("side", "role"), [("left", "client"), ("right", "server")])
@pytest.mark.parametrize("counter", ["too_long", "checksum_missing"])
def test_who_sends_frames_that_no_link_carries_is_blamed(
    catalog: Catalog, recorded: Recorded, side: str, role: str, counter: str
) -> None:
    artifacts = recorded(RECORDING)
    edit_truth(artifacts, lambda truth: truth["sockets"][side].update({counter: 3}))
    result = judge(catalog, artifacts, "handshake")
    assert (result.outcome, codes(result), result.findings[0].role) == (Outcome.FAILED, {"malformed-frames"}, role)


def test_a_link_that_died_with_an_interface_blames_who_switched_it_off(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded(RECORDING)
    edit(artifacts, lambda evidence: evidence.update(error={"code": "captures-died", "message": "A capture ended."}))
    assert codes(judge(catalog, artifacts, "handshake")) == {"captures-died"}
    with_changes(artifacts, "client", OFF)
    assert codes(judge(catalog, artifacts, "handshake")) == {"interface-changed"}


def test_packets_that_did_not_enter_the_link_are_the_senders_fault(catalog: Catalog, recorded: Recorded) -> None:
    """The server's packets are in the capture at its end. So the link seemed to have lost them, and the client that
    waited for them was blamed."""
    artifacts = recorded(RECORDING)
    edit(artifacts, lambda evidence: evidence["client"].update(timed_out=True, exit_code=137))
    assert judge(catalog, artifacts, "handshake").findings[0].role == "client"
    edit_truth(artifacts, lambda truth: truth["forward"].update(packets_in=1, packets_out=1))
    result = judge(catalog, artifacts, "handshake")
    assert (result.findings[0].code, result.findings[0].role) == ("misaddressed-frames", "server")


def test_packets_that_did_not_enter_the_link_are_no_failure_when_all_is_well(
    catalog: Catalog, recorded: Recorded
) -> None:
    artifacts = recorded(RECORDING)
    edit_truth(artifacts, lambda truth: truth["forward"].update(packets_in=1, packets_out=1))
    assert judge(catalog, artifacts, "handshake").outcome is not Outcome.FAILED
