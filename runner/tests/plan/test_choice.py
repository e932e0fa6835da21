"""Names of cases, middleboxes, links, sizes and losses → the jobs of a new run, and of a stored run."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.images.setup import Ready
from runner.inputs import inputs as reference_page
from runner.inputs.inputs import load, served
from runner.model.run import Run
from runner.model.stack import Box
from runner.paths import ROOT
from runner.plan import jobs
from runner.plan.catalog import load_catalog
from runner.plan.choice import CaseVariant, Selection, choose
from runner.plan.jobs import declared_unsupported
from runner.plan.options import MatrixOptions
from runner.store.runs import RunFolder, extend_run
from testcases.links import LINKS, LOSS_SWEEP

CATALOG = load_catalog()


def _choose(**options: object) -> Selection:
    return choose(MatrixOptions(**options), CATALOG, None)  # type: ignore[arg-type]


def _cases(**options: object) -> list[str]:
    return list(_choose(cases=("download",), **options).cases)


def _run(choice: Selection, path: Path) -> Run:
    return jobs.new_run(path, choice, seed=1)


def test_the_default_is_every_stack_without_a_middlebox_over_each_cases_own_link() -> None:
    selection = _choose()
    assert selection.vias == ("",)
    assert {"quinn", "quic-go"} <= set(selection.clients)
    assert not {"origin", "downloader", "browser"} & {*selection.clients, *selection.servers}
    assert not any("@" in name or name.startswith(("page", "download", "astra")) for name in selection.cases)


def test_a_case_brings_its_kind_of_client_and_server() -> None:
    selection = _choose(cases=("page,sat",))
    assert {"browser", "quinn"} <= set(selection.clients) and "downloader" not in selection.clients
    assert set(_choose(clients=("browser",)).cases) == {"page", "page-h2", "page-h3", "page-origins"}


def test_a_browser_is_not_asked_what_stacks_are_asked(tmp_path: Path) -> None:
    choice = _choose(cases=("page,sat",), servers=("quinn,origin",), clients=("quinn,browser",), iterations=1)
    assert {(job.client, job.server, job.case) for job in _run(choice, tmp_path / "run").order} == {
        ("quinn", "quinn", "sat"),
        ("browser", "origin", "page"),
    }


def test_every_axis_is_crossed_and_defaults_leave_no_trace(tmp_path: Path) -> None:
    choice = _choose(
        servers=("quic-go",), clients=("quinn",), vias=("none,openvpn",), cases=("handshake,sat",), links=("sat",)
    )
    cells = {job.cell for job in _run(replace(choice), tmp_path / "run").order}
    assert cells == {f"quic-go_quinn{via}/{case}" for via in ("", "+openvpn") for case in ("handshake@sat", "sat")}


def test_a_link_without_a_case_is_asked_for_goodput() -> None:
    assert list(_choose(links=("sat,leo",)).cases) == ["goodput@sat", "goodput@leo"]
    assert _cases(links=("geo",), sizes=("5000",)) == ["download-5kB"]  # `geo` is the own link of these cases


def test_sizes_and_losses_make_cases() -> None:
    assert _cases(sizes=("250000",), losses=("0,0.01",)) == ["download-250kB", "download-250kB@geo+loss=0.01"]
    assert list(_choose(cases=("goodput",), losses=("0.01",)).cases) == ["goodput@default+loss=0.01"]


def test_a_larger_file_has_more_time() -> None:
    records = _choose(cases=("goodput",), sizes=("5000000,104857600",)).cases
    assert [record.timeout for record in records.values()] == [60, 600]


def test_the_sweeps_are_those_of_the_paper() -> None:
    sizes = _cases(sizes=("all",))
    assert len(sizes) == 39 and sizes[0] == "download-500kB" and sizes[-1] == "download-10000kB"
    assert len(LOSS_SWEEP) == 28 and (LOSS_SWEEP[0], LOSS_SWEEP[-1]) == (1e-9, 1.0)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"sizes": ("1234567,1234568",)}, ["download-1234567B", "download-1234568B"]),
        ({"sizes": ("1e9,250000.0",)}, ["download-1000000kB", "download-250kB"]),
        (
            {"sizes": ("5000",), "losses": ("0.1000001,0.1,1e-09,1",)},
            [f"download-5kB@geo+loss={loss}" for loss in ("0.1000001", "0.1", "1e-09", "1")],
        ),
    ],
)
def test_names_of_cases_are_not_rounded(options: dict[str, tuple[str, ...]], names: list[str]) -> None:
    assert _cases(**options) == names


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1000, 10**9), min_size=1, max_size=4, unique=True),
    losses=st.lists(st.floats(0, 1, exclude_min=True), min_size=1, max_size=4, unique=True),
)
def test_no_two_cases_share_a_name(sizes: list[int], losses: list[float]) -> None:
    cases = _cases(sizes=tuple(str(value) for value in sizes), losses=tuple(repr(value) for value in losses))
    assert len(cases) == len(sizes) * len(losses)


def test_loss_is_of_both_directions_of_the_satellite_alone() -> None:
    (case,) = _choose(cases=("page",), losses=("0.05",)).cases.values()
    satellite, ground = case.link.segments
    assert (satellite.forward.loss, satellite.return_.loss) == (0.05, 0.05)
    assert (ground.forward.loss, ground.return_.loss) == (0.0, 0.0)


def test_a_warm_case_has_a_name_and_time_of_its_own() -> None:
    cold, warm = (next(iter(_choose(cases=("page",), warm=warm).cases.values())) for warm in (False, True))
    assert (cold.name, warm.name) == ("page", "page+warm")
    assert warm.timeout == 2 * cold.timeout
    environments = [load(case, 1).environment for case in (cold, warm)]
    assert ["WARM" in environment for environment in environments] == [False, True]
    assert environments[0]["TIMEOUT"] == environments[1]["TIMEOUT"]


def test_loads_of_two_browsers_do_not_share_a_run(tmp_path: Path) -> None:
    choice = _choose(cases=("page",))
    first, second = (
        Ready(ids={"browser": browser}).recorded_in(jobs.new_run(tmp_path / "run", choice, seed=1))
        for browser in ("sha256:1", "sha256:2")
    )
    folder = RunFolder.create(tmp_path / "run", first)
    assert extend_run(folder, first).implementations["browser"].image == "bentpipe/browser"
    with pytest.raises(UsageError, match="The image of browser has changed"):
        extend_run(folder, second)
    assert "browser" not in _run(_choose(cases=("download",)), tmp_path / "b").implementations


@pytest.mark.parametrize(
    ("vias", "variant", "names"),
    [
        ("plain,pep-split", "pep-split:IW=30,CCA=bbr", ("plain", "pep-split", "pep-split+cca=bbr+iw=30")),
        (
            "qpep",
            "qpep:ACK_RATIO=1/10,MAX_ACK_DELAY=8s",
            ("qpep", *(f"qpep+ack-ratio={ratio}+max-ack-delay=8s" for ratio in (1, 10))),
        ),
        ("qpep", "qpep:IW=010/10/20,keep_alive=0", ("qpep", "qpep+iw=10+keep-alive=0", "qpep+iw=20+keep-alive=0")),
        ("none,qpep,plain", "qpep:IW=3", ("", "plain", "qpep", "qpep+iw=3")),
    ],
)
def test_a_variant_stands_beside_its_middlebox(vias: str, variant: str, names: tuple[str, ...]) -> None:
    assert _choose(cases=("download",), vias=(vias,), variants=(variant,)).vias == names


def test_a_name_of_a_stack_and_of_a_middlebox_means_the_selected_one() -> None:
    stack = _choose(servers=("qpep",), clients=("quinn",), cases=("sat",), variants=("qpep:IW=10",))
    assert (stack.servers, stack.vias) == (("qpep", "qpep+iw=10"), ("",))
    with pytest.raises(UsageError, match="qpep is selected as a stack and with --via: run them in two calls"):
        _choose(servers=("qpep",), clients=("quinn",), cases=("sat",), vias=("qpep",), variants=("qpep:IW=10",))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"vias": ("opnvpn",)}, "--via: there is no middlebox 'opnvpn'. Did you mean openvpn?"),
        ({"cases": ("pages",)}, "--case: there is no case 'pages'. Did you mean page?"),
        ({"links": ("geos",)}, "--link: there is no link 'geos'. Did you mean geo?"),
        ({"losses": ("2",)}, "--loss: '2' is not a number from 0 to 1"),
        ({"losses": ("0,all",)}, "--loss 0,all: write `all` without other values."),
        ({"losses": ("",)}, "--loss has no value: write --loss 0,0.001,0.01, or all."),
        ({"sizes": ("",)}, "--size has no value: write --size 500000,2000000 (bytes), or all."),
        ({"sizes": ("500000", "all")}, "--size 500000,all: write `all` without other values."),
        ({"sizes": ("5000",), "cases": ("page,page-h2",)}, "--size is for measurements of one file, not for page"),
        ({"sizes": ("5000",), "cases": ("handshake",)}, "--size is for measurements of one file, not for handshake"),
        ({"warm": True, "cases": ("sat",)}, "--warm is for downloads and page loads, not for sat"),
        ({"vias": ("",)}, "--via names no middlebox. Choices: none, plain, "),
        ({"links": ("",)}, "--link names no link. Choices: default, "),
        ({"links": ("leo",), "cases": ("satloss",)}, "--case satloss: it tests its own link"),
        ({"losses": ("0.1",), "cases": ("blackhole",)}, "--case blackhole: it tests its own link"),
        (
            {"links": ("leo",), "cases": ("astra",)},
            "--case astra runs over a real link: name a link of links.json with --link",
        ),
        ({"sizes": ("ten",)}, "--size: 'ten' is not a number"),
        ({"sizes": ("1000.5",)}, "--size 1000.5: write a whole number of bytes."),
        ({"sizes": ("10",)}, "a transfer has at least 1000 bytes"),
        ({"cases": ("page",), "clients": ("quinn",)}, "--case page: it needs a client of another kind: add --client"),
        ({"cases": ("sat",), "servers": ("origin",)}, "--case sat: it needs a server of another kind: add --server"),
        ({"variants": ("plain:CCA=bbr",)}, "plain has no knob 'CCA'. Choices: none."),
        ({"variants": ("openvpn",), "vias": ("openvpn",)}, "write NAME:KNOB=VALUE,… such as pep-split:CCA=bbr,IW=100."),
        ({"variants": ("qpap:IW=3",)}, "there is no stack 'qpap'."),
        ({"variants": ("qpep:IWX=3",)}, "qpep has no knob 'IWX'. Did you mean IW? Choices: CCA, IW, FLOWS, "),
        ({"variants": ("qpep:CCA=vegas",)}, "--variant qpep:CCA=vegas: CCA is bbr or cubic or newreno, not 'vegas'."),
        ({"variants": ("qpep:IW=abc",)}, "IW is a number of packets, 1 to 10000, not 'abc'."),
        ({"variants": ("qpep:IW=10,IW=20",)}, "IW is given twice."),
        ({"variants": ("qpep:IW",)}, "IW has no value: write NAME:KNOB=VALUE,… such as pep-split:CCA=bbr,IW=100."),
        ({"variants": ("qpep:IW=1/",)}, "--variant qpep:IW=: IW has no value"),
        ({"variants": ("qpep:MAX_ACK_DELAY=20s",)}, "MAX_ACK_DELAY is a time, 1ms to 16383ms, not '20s'."),
        ({"variants": ("qpep:PACKET_SIZE=1500",)}, "PACKET_SIZE is 0 or a number of bytes, 1200 to 1452, not '1500'."),
        ({"variants": ("qpep:ZERO_RTT=yes",)}, "ZERO_RTT is true or false, not 'yes'."),
        ({"vias": ("plain",), "variants": ("pep-split:IW=3",)}, "pep-split is not selected: add it to --via"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        _choose(**{"cases": ("download",), "vias": ("qpep,plain",), **options})


@pytest.mark.parametrize(
    ("via", "case", "reason"),
    [
        ("pep-split", "download-h3", "pep-split carries tcp only, and h3 runs over udp"),
        ("quic-pep", "download", "quic-pep carries udp only, and http/1.1 runs over tcp"),
        ("quic-pep", "zerortt", "quic-pep declares no support of 'zerortt'"),
        ("quic-pep", "repeat-zerortt", "quic-pep declares no support of 'zerortt'"),
        ("quic-pep", "repeat-resumption", None),
        ("openvpn", "download-h3", None),
        ("none", "download", None),
    ],
)
def test_what_a_middlebox_does_not_carry_is_unsupported(
    tmp_path: Path, via: str, case: str, reason: str | None
) -> None:
    choice = _choose(cases=(case,), vias=(via,), iterations=1)
    job, *_ = _run(choice, tmp_path / "run").order
    assert declared_unsupported(choice.catalog, job) == reason


def test_quic_is_carried_by_what_carries_udp(tmp_path: Path) -> None:
    choice = _choose(servers=("quic-go",), clients=("quinn",), cases=("sat",), vias=("quic-pep,qpep",), iterations=1)
    refused = {job.via for job in _run(choice, tmp_path / "run").order if declared_unsupported(choice.catalog, job)}
    assert refused == {"qpep"}
    assert CATALOG.middleboxes["pep-split-gateway"].boxes == (Box.GATEWAY,)


def test_a_middlebox_that_carries_nothing_of_a_selection_says_what_it_carries() -> None:
    assert _choose(cases=("download",), vias=("plain,quic-pep",)).doubts == (
        "quic-pep carries udp only: add a case such as --case ackloss,amplificationlimit,astra.",
    )
    assert _choose(cases=("download,download-h3",), vias=("plain,quic-pep",)).doubts == ()


def test_the_reference_page_has_the_sizes_of_keplers() -> None:
    made = reference_page.objects(7)
    assert {name: len(data) for name, data in made.items()} == reference_page.names(7)
    assert (len(made), sum(map(len, made.values()))) == (75, 815_804)
    assert made != reference_page.objects(8)
    document = next(iter(made.values()))
    assert all(name.encode() in document for name in list(made)[1:])


def test_a_page_of_several_origins_asks_each_for_its_share() -> None:
    (case,) = _choose(cases=("page-origins",)).cases.values()
    document = served(case, 7)[0].content().decode()
    assert len(document) == reference_page.DOCUMENT
    requested = re.findall(r'(?:src|href)="(?:https://server4:(\d+)/)?[0-9a-f]{8}-', document)
    assert len(requested) == 74
    assert set(requested) == {"", *(str(port) for port in range(8441, 8452))}
    assert max(requested.count(port) for port in requested) == 7


def test_a_changing_link_changes_both_ways_at_once() -> None:
    link = LINKS["leo-changing"]
    times = [change.time for change in link.satellite.forward.impairments.changes]
    assert times == [change.time for change in link.satellite.return_.impairments.changes]
    delays = {change.delay for change in link.satellite.forward.impairments.changes}
    assert min(delays) == 0.025 and max(delays) == 0.14


TEXT = "rate=50M/5M,delay=300ms,loss=0.1%"


def test_a_link_can_be_written_beside_names() -> None:
    records = _choose(cases=("goodput",), links=("sat,geo", TEXT, "name=alpine,rate=1M,delay=5ms")).cases
    assert list(records) == ["goodput@sat", "goodput@geo", "goodput@50M-5M-300ms-loss0.001", "goodput@alpine"]
    forward = records["goodput@50M-5M-300ms-loss0.001"].forward
    assert (forward.data_rate, forward.delay, forward.loss, forward.queue_packets) == (50_000_000, 0.3, 0.001, 2500)


def test_a_written_link_is_refused_for_a_case_about_its_own() -> None:
    with pytest.raises(UsageError, match="it tests its own link"):
        _choose(cases=("handshakeloss",), links=(TEXT,))
    with pytest.raises(UsageError, match="a declared link has this name"):
        _choose(cases=("goodput",), links=("name=sat,rate=1M,delay=5ms",))


def test_links_of_a_file_are_chosen_by_name(tmp_path: Path) -> None:
    example = ROOT / "emulated-links.example.json"
    shutil.copy(example, tmp_path / "emulated-links.json")
    records = _choose(cases=("handshake",), links=("small",), links_file=tmp_path / "links.json").cases
    assert records["handshake@small"].link.rtt == pytest.approx(0.65)
    (tmp_path / "emulated-links.json").write_text(example.read_text().replace('"small"', '"sat"'))
    with pytest.raises(UsageError, match="that is the name of a built-in link"):
        _choose(cases=("handshake",), links=("sat",), links_file=tmp_path / "links.json")


def test_a_stored_run_keeps_the_links_that_were_written(tmp_path: Path) -> None:
    text = f"name=alpine,{TEXT}"
    stored = _run(_choose(cases=("goodput",), links=(text,)), tmp_path)
    again = choose(MatrixOptions(iterations=20), CATALOG, stored)
    assert again.cases["goodput@alpine"].link == stored.cases["goodput@alpine"].link
    with pytest.raises(UsageError, match="the run has another link of this name"):
        choose(MatrixOptions(links=("name=alpine,rate=1M,delay=5ms",)), CATALOG, stored)


def test_every_declared_link_becomes_a_record_with_its_name() -> None:
    assert {name: link.name for name, link in LINKS.items()} == {name: name for name in LINKS}


def test_a_flow_beside_makes_another_question_and_none_leaves_no_trace(tmp_path: Path) -> None:
    chosen = _choose(cases=("goodput,crosstraffic",), besides=("none,tcp-bbr,picoquic",), links=("sat",))
    names = ("goodput@sat", "goodput+tcp-bbr@sat", "goodput+picoquic@sat")
    others = ("crosstraffic@sat", "crosstraffic+tcp-bbr@sat", "crosstraffic+picoquic@sat")
    assert set(chosen.cases) == {*names, *others}
    assert [chosen.cases[name].beside for name in names] == ["", "tcp-bbr", "picoquic"]
    assert [chosen.cases[name].beside for name in others] == ["tcp-cubic", "tcp-bbr", "picoquic"]
    assert chosen.cases["goodput+tcp-bbr@sat"].title == "goodput+tcp-bbr"
    assert chosen.cases["crosstraffic@sat"].title == "crosstraffic"
    assert _choose(cases=("goodput",), besides=("none",)).cases == _choose(cases=("goodput",)).cases
    run = _run(chosen, tmp_path / "night")
    assert {"nginx+h1", "curl+h1", "picoquic"} <= set(run.implementations)
    assert {CaseVariant.of(record) for record in run.cases.values()} == {
        CaseVariant(declared=case, link="sat", beside=beside)
        for case in ("goodput", "crosstraffic")
        for beside in ("", "tcp-bbr", "picoquic")
    }
    again = choose(MatrixOptions(cases=("goodput",), besides=("tcp-reno",)), CATALOG, run)
    assert "goodput+tcp-reno@sat" in again.cases


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"cases": ("handshake",), "besides": ("tcp-bbr",)},
            "--beside is for measurements of stacks, not for handshake",
        ),
        ({"cases": ("crosstraffic",), "vias": ("openvpn",)}, "the second flow would also cross the middlebox"),
        ({"cases": ("goodput",), "besides": ("nginx",)}, "--beside: there is no flow 'nginx'"),
        ({"cases": ("goodput",), "besides": ("tcp-cubik",)}, "Did you mean tcp-cubic?"),
    ],
)
def test_what_no_flow_beside_can_be_is_one_sentence(options: dict[str, tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        _choose(servers=("quinn",), clients=("quinn",), **options)


@pytest.mark.parametrize(
    ("options", "description"),
    [
        (
            {"cases": ("goodput",)},
            "10 MiB on the public runner's link: 10 Mbit/s both ways, 30 ms RTT.",
        ),
        (
            {"cases": ("goodput",), "sizes": ("2000000",), "links": ("geo",)},
            "2 MB over the link geo: 20 Mbit/s forward, 5 Mbit/s return, 580 ms RTT, no loss.",
        ),
        (
            {"cases": ("goodput",), "links": ("satloss",)},
            "10 MiB over the link satloss: 20 Mbit/s forward, 2 Mbit/s return, 600 ms RTT, 1 % loss.",
        ),
        (
            {"cases": ("goodput",), "sizes": ("1048576",), "losses": ("0.02",), "besides": ("tcp-cubic",)},
            "1 MiB over the link default+loss=0.02: 10 Mbit/s both ways, 30 ms RTT, 2 % loss, beside tcp-cubic.",
        ),
        (
            {"cases": ("upload",), "links": ("geo",)},
            "The client sends 10 MiB over the link geo: 20 Mbit/s forward, 5 Mbit/s return, 580 ms RTT, no loss.",
        ),
        (
            {"cases": ("handshake",), "links": ("sat",)},
            "One handshake completes over QUIC version 1, without Retry, and a 1 KiB file arrives. "
            "Over the link sat: 20 Mbit/s forward, 2 Mbit/s return, 600 ms RTT, no loss.",
        ),
        (
            {"cases": ("download",), "sizes": ("500000",), "warm": True},
            "curl downloads one file over HTTP/1.1 without TLS: the time from its SYN to the last byte. "
            "It loads everything twice, and only the second time counts. The file has 500 kB.",
        ),
    ],
)
def test_a_description_says_what_runs(options: dict[str, object], description: str) -> None:
    (record,) = _choose(**options).cases.values()
    assert record.description == description


def test_without_a_name_no_case_has_a_flow_beside() -> None:
    assert not any(record.beside for record in _choose().cases.values())
