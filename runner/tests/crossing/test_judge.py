"""Folders of jobs made by hand, good and bad, and their verdicts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.inputs.inputs import load, secret, served
from runner.judge.judges import judge_job
from runner.model.result import Artifacts, EndpointRecord, Evidence, FileRecord, Outcome, Result
from runner.model.run import Job
from runner.model.stack import Box, Middlebox
from runner.plan.catalog import load_catalog
from runner.plan.choice import choose
from runner.plan.options import MatrixOptions
from runner.store.runs import save_evidence
from runner.tests.crossing.captures import (
    CLIENT,
    CLIENT6,
    GATEWAY,
    SERVER,
    SERVER6,
    TERMINAL,
    Sent,
    connection,
    write_capture,
)

SEED = 3
OPTIONS = MatrixOptions(cases=("download,download-ipv6,page,download-h3",), sizes=("5000",))
LOSSY = "download-5kB@geo+loss=0.5"
ASKED = (OPTIONS, replace(OPTIONS, warm=True), replace(OPTIONS, losses=("0.5",)))
CASES = {name: case for options in ASKED for name, case in choose(options, load_catalog(), None).cases.items()}
CASE = CASES["download-5kB"]
FILE = served(CASE, SEED)[0]
REQUEST = f"GET /{FILE.name} HTTP/1.1\r\nHost: server4\r\nAuthorization: Bearer {secret(SEED)}\r\n\r\n".encode()
AT_CLIENT, ELSEWHERE, BEHIND = (1000, 2000), (3000, 4000), (5000, 6000)  # initial sequence numbers

PLAIN = Middlebox(name="plain", image="x", url="", version="")
VPN = replace(PLAIN, name="vpn", encrypts=True)
PEP = replace(PLAIN, name="pep", splits=(Box.TERMINAL, Box.GATEWAY))
INTEGRATED = replace(PLAIN, name="integrated", splits=(Box.GATEWAY,), boxes=(Box.GATEWAY,))


def _bare(
    initials: tuple[int, int] = AT_CLIENT, ends: tuple[str, str] = (CLIENT, SERVER), port: int = 40000
) -> list[Sent]:
    return connection(*ends, initials=initials, request=REQUEST, response=FILE.content(), port=port)


def _sealed() -> list[Sent]:
    """The same packets in a tunnel, with every byte changed."""
    return [
        Sent(source=TERMINAL, destination=GATEWAY, ports=(5000, 5000), payload=bytes(0xA5 ^ byte for byte in item.ip()))
        for item in _bare()
    ]


def _truth() -> str:
    way = dict.fromkeys(("packets_in", "bytes_in", "packets_out", "bytes_out", "dropped_queue", "dropped_loss"), 0)
    way |= {"queue_max_packets": 0, "queue_mean_packets": 0, "send_errors": 0}
    late = {"p99": 0.0, "max": 0.0}
    side = {"kernel_drops": 0, "too_long": 0, "checksum_missing": 0}
    document = {"seed": 1, "forward": way, "return": way, "lateness_s": late, "receive_lateness_s": late}
    return json.dumps(document | {"sockets": {"left": side, "right": side}, "clock_step_s": 0.0})


Make = Callable[..., Result]


@pytest.fixture
def judged(tmp_path: Path) -> Make:
    def make(
        entry: Middlebox,
        *,
        lan: list[Sent] | None = None,
        link: list[Sent] | None = None,
        behind: tuple[int, int] = AT_CLIENT,
        at_server: list[Sent] | None = None,
        case: str = CASE.name,
        ends: tuple[str, str] = (CLIENT, SERVER),
        measured: object = None,
        began: float | None = None,
        **changes: object,
    ) -> Result:
        record = CASES[case]
        artifacts = Artifacts(tmp_path)
        job = Job(
            server="origin", client=record.client, via=entry.name, case=record.case, link=record.link_name, iteration=1
        )
        write_capture(tmp_path / "client" / "client.pcap", _bare(ends=ends) if lan is None else lan)
        write_capture(tmp_path / "sim" / "left.pcap", _bare(ends=ends) if link is None else link)
        write_capture(tmp_path / "server" / "server.pcap", _bare(behind, ends) if at_server is None else at_server)
        artifacts.ground_truth.parent.mkdir(exist_ok=True)
        for truth in (artifacts.link_truth, artifacts.ground_truth):
            truth.write_text(_truth())
        (tmp_path / "client" / "workload.json").write_text(json.dumps(measured or {"time_total": 0.7}))
        if began is not None:
            (tmp_path / "client" / "began").write_text(f"{began}\n")
        expected = load(record, SEED).expected
        evidence = Evidence(
            started_unix_s=1.8e9,
            wall_s=5.0,
            transfer_s=1.0,
            stages_s={},
            client=EndpointRecord(image="x", image_id="x", exit_code=0),
            server=EndpointRecord(image="x", image_id="x", exit_code=0, stopped_by_us=True),
            server_ready=True,
            files=tuple(FileRecord(name=one.name, size=one.size, received=one.size, equal=True) for one in expected),
            capture_drops=0,
            via=entry,
            content_seed=SEED,
        )
        save_evidence(artifacts, replace(evidence, **changes))  # type: ignore[arg-type]
        return judge_job(job, artifacts, None, record)

    return make


def _codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


def test_a_plain_crossing_is_measured(judged: Make) -> None:
    result = judged(PLAIN)
    assert result.outcome is Outcome.SUCCEEDED, result.findings
    assert result.sample is not None and result.crossing is not None
    assert result.sample.ttlb == pytest.approx(0.7)  # time of the eighth packet; there is a packet every 0.1 s
    assert result.sample.throughput == pytest.approx(8 * 5000 / 0.7)
    assert result.sample.goodput is None
    assert (result.crossing.whole, len(result.crossing.visible)) == (1, 7)
    assert [one.holds for one in result.invariants] == [True]


@pytest.mark.parametrize(
    ("case", "ends", "code"),
    [
        ("download-ipv6-5kB", (CLIENT6, SERVER6), None),
        ("download-ipv6-5kB", (CLIENT, SERVER), "bypassed"),
        (CASE.name, (CLIENT6, SERVER6), "bypassed"),
    ],
)
def test_ipv6_counts_where_ipv6_was_asked_for(judged: Make, case: str, ends: tuple[str, str], code: str | None) -> None:
    result = judged(PLAIN, case=case, ends=ends)
    assert _codes(result) == ([code] if code else [])
    if code is None:
        assert result.crossing is not None
        hidden = [sight.what for sight in result.crossing.sights if not sight.visible]
        assert (result.crossing.whole, hidden) == (1, ["server name"])  # the URL contains the name server4


@pytest.mark.parametrize(("began", "throughput"), [(0.75, 8 * 5000 / 0.7), (0.0, 8 * 5000 / 1.5), (None, None)])
def test_of_a_warm_case_the_second_round_counts(judged: Make, began: float | None, throughput: float | None) -> None:
    both = [*_bare(), *_bare(ELSEWHERE, port=40001)]
    seconds = {"time_total": 8 * 5000 / throughput} if throughput else {}
    result = judged(
        VPN,
        case="download-5kB+warm",
        lan=both,
        link=_sealed(),
        at_server=both,
        began=began,
        measured=seconds | {"num_connects": 1},
    )
    assert result.sample is not None and result.crossing is not None
    assert result.sample.throughput == (None if throughput is None else pytest.approx(throughput))
    assert result.crossing.connections == 2


@pytest.mark.parametrize("kept", [2, 4])
def test_a_load_whose_packets_are_not_on_record_is_not_judged(judged: Make, kept: int) -> None:
    """The file arrived, but the client's capture lacks its packets."""
    result = judged(VPN, lan=_bare()[:kept], link=_sealed(), measured={"time_total": 0.1 * (kept - 1)})
    assert (result.outcome, _codes(result)) == (Outcome.ERROR, ["disturbed"])
    assert "received 5000 B of files" in result.findings[0].actual


def test_a_tunnel_that_hides_everything_succeeds(judged: Make) -> None:
    result = judged(VPN, link=_sealed())
    assert (result.outcome, result.crossing and result.crossing.visible) == (Outcome.SUCCEEDED, ())


def test_what_a_proxy_sends_to_the_client_again_need_not_have_crossed(judged: Make) -> None:
    again = [packet for packet in _bare() for _ in range(3)]
    assert judged(VPN, lan=again, link=_sealed(), measured={"time_total": 2.1}).outcome is Outcome.SUCCEEDED


def test_a_tunnel_that_shows_a_secret_has_failed(judged: Make) -> None:
    leak = Sent(source=TERMINAL, destination=GATEWAY, ports=(5000, 5001), payload=b"debug: " + REQUEST)
    result = judged(VPN, link=[*_sealed(), leak])
    assert result.outcome is Outcome.FAILED
    assert set(_codes(result)) == {"leak"}
    assert result.findings[0].packets == (len(_sealed()) + 1,)


def test_traffic_beside_the_tunnel_is_an_error(judged: Make) -> None:
    result = judged(VPN)
    assert (result.outcome, set(_codes(result))) == (Outcome.ERROR, {"bypassed"})


@pytest.mark.parametrize(
    ("entry", "link", "behind"),
    [(PEP, ELSEWHERE, BEHIND), (INTEGRATED, AT_CLIENT, BEHIND)],
    ids=["distributed", "integrated"],
)
def test_a_proxy_is_known_by_sequence_numbers(
    judged: Make, entry: Middlebox, link: tuple[int, int], behind: tuple[int, int]
) -> None:
    assert judged(entry, link=_bare(link), behind=behind).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    ("entry", "link", "behind"),
    [
        (PEP, AT_CLIENT, AT_CLIENT),  # both boxes fail open
        (PEP, AT_CLIENT, BEHIND),  # the terminal box fails open
        (PEP, ELSEWHERE, ELSEWHERE),  # the gateway box fails open
        (INTEGRATED, AT_CLIENT, AT_CLIENT),
        (PLAIN, AT_CLIENT, BEHIND),  # connections were split although no box may split them
    ],
)
def test_a_proxy_that_is_not_where_it_should_be_is_an_error(
    judged: Make, entry: Middlebox, link: tuple[int, int], behind: tuple[int, int]
) -> None:
    result = judged(entry, link=_bare(link), behind=behind)
    assert (result.outcome, set(_codes(result))) == (Outcome.ERROR, {"bypassed"})


def test_other_content_than_the_servers_has_failed(judged: Make) -> None:
    file = FileRecord(name=FILE.name, size=5000, received=5000, equal=False)
    assert _codes(judged(PLAIN, files=(file,))) == ["file-differs"]


def test_a_time_out_has_failed(judged: Make) -> None:
    client = EndpointRecord(image="x", image_id="x", exit_code=137, timed_out=True)
    assert _codes(judged(PLAIN, client=client)) == ["timeout"]


def test_a_harness_that_stumbled_is_an_error(judged: Make) -> None:
    result = judged(PLAIN, error={"code": "box-not-ready", "message": "The gateway box ended."})
    assert (result.outcome, _codes(result)) == (Outcome.ERROR, ["box-not-ready"])


def test_two_clocks_that_contradict_each_other_are_an_error(judged: Make) -> None:
    assert _codes(judged(PLAIN, measured={"time_total": 0.9})) == ["client-clock"]


@pytest.mark.parametrize(("case", "outcome"), [(CASE.name, Outcome.ERROR), (LOSSY, Outcome.FAILED)])
def test_a_middlebox_that_a_lossy_link_keeps_from_starting_has_failed(
    judged: Make, case: str, outcome: Outcome
) -> None:
    result = judged(VPN, case=case, error={"code": "box-not-ready", "message": "The gateway was not ready."})
    assert (result.outcome, _codes(result)) == (outcome, ["box-not-ready"])


def test_a_client_to_which_nothing_came_has_failed_whatever_the_middlebox(judged: Make) -> None:
    client, syn = EndpointRecord(image="x", image_id="x", exit_code=28), _bare()[:1]
    for entry, link in ((PLAIN, syn), (VPN, _sealed()[:1]), (PEP, syn)):
        assert _codes(judged(entry, case=LOSSY, lan=syn, link=link, client=client)) == ["client-exit"]


def test_a_request_that_was_lost_is_no_bypass(judged: Make) -> None:
    """The client has answers on one connection, and on another one a request that never came to the server."""
    lost = _bare(ELSEWHERE, port=40001)[:3]
    client = EndpointRecord(image="x", image_id="x", exit_code=28)
    lan, behind = [*_bare(), *lost], [*_bare(), *lost[:2]]
    assert _codes(judged(PLAIN, case=LOSSY, lan=lan, link=lan, at_server=behind, client=client)) == ["client-exit"]


def test_a_disturbed_job_is_no_number(judged: Make) -> None:
    assert _codes(judged(PLAIN, cpu_pressure=0.9)) == ["disturbed"]


@pytest.mark.parametrize(("missing", "outcome"), [(0, Outcome.SUCCEEDED), (1, Outcome.FAILED)])
def test_a_page_needs_all_its_objects(judged: Make, missing: int, outcome: Outcome) -> None:
    objects = [{"status": 200, "end": 5.0}] * (75 - missing)
    measured = {"objects": objects, "responseStart": 1200.0, "firstContentfulPaint": 3100.0, "load": 10_240.5}
    result = judged(PLAIN, case="page", measured=measured)
    assert result.outcome is outcome
    assert result.sample is not None and result.page is not None
    assert (result.sample.ttfb, result.sample.ttlb) == (1.2, 10.2405)
    assert (result.page.completed, result.page.first_contentful_paint) == (75 - missing, 3.1)
