"""Names of paths, workloads, links, sizes and losses → cases."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.campaign.path_matrix import path_run
from runner.campaign.session import MatrixOptions
from runner.config.catalog import load_paths
from runner.config.path_material import material, served
from runner.config.path_selection import PathOptions, load_path_catalog, refusal, select_paths, uncarried
from runner.errors import UsageError
from runner.model.path import Side
from runner.plan.runs import extend_run
from runner.store import RunFolder
from testcases import reference_page
from testcases.pathlinks import LINKS, LOSS_SWEEP


def _select(**options: tuple[str, ...]) -> tuple[list[str], list[str]]:
    selection = select_paths(load_path_catalog(), PathOptions(**options))  # type: ignore[arg-type]
    return list(selection.paths), list(selection.cases)


def test_the_default_is_every_path_over_a_small_selection() -> None:
    paths, cases = _select()
    assert paths == list(load_paths())
    assert cases == ["goodput-500kB-geo", "goodput-2000kB-geo", "goodput-10000kB-geo", "page-geo"]


def test_sizes_and_losses_make_cases() -> None:
    paths, cases = _select(paths=("plain",), workloads=("goodput",), sizes=("250000",), losses=("0,0.01",))
    assert (paths, cases) == (["plain"], ["goodput-250kB-geo", "goodput-250kB-geo+loss=0.01"])


def test_the_sweeps_are_those_of_the_paper() -> None:
    _, sizes = _select(workloads=("goodput",), sizes=("all",))
    assert len(sizes) == 39 and sizes[0] == "goodput-500kB-geo" and sizes[-1] == "goodput-10000kB-geo"
    assert len(LOSS_SWEEP) == 28 and (LOSS_SWEEP[0], LOSS_SWEEP[-1]) == (1e-9, 1.0)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"sizes": ("1234567,1234568",)}, ["goodput-1234567B-geo", "goodput-1234568B-geo"]),
        ({"sizes": ("1e9,250000.0",)}, ["goodput-1000000kB-geo", "goodput-250kB-geo"]),
        (
            {"sizes": ("5000",), "losses": ("0.1000001,0.1,1e-09,1",)},
            [f"goodput-5kB-geo+loss={loss}" for loss in ("0.1000001", "0.1", "1e-09", "1")],
        ),
    ],
)
def test_names_of_cases_are_not_rounded(options: dict[str, tuple[str, ...]], names: list[str]) -> None:
    assert _select(paths=("plain",), workloads=("goodput",), **options)[1] == names


def test_names_of_the_sweep_are_those_of_stored_runs() -> None:
    _, cases = _select(paths=("plain",), workloads=("goodput",), sizes=("5000",), losses=("all",))
    assert cases == ["goodput-5kB-geo", *(f"goodput-5kB-geo+loss={loss:g}" for loss in LOSS_SWEEP)]


@given(
    sizes=st.lists(st.integers(1000, 10**9), min_size=1, max_size=4, unique=True),
    losses=st.lists(st.floats(0, 1, exclude_min=True), min_size=1, max_size=4, unique=True),
)
def test_no_two_cases_share_a_name(sizes: list[int], losses: list[float]) -> None:
    _, cases = _select(
        workloads=("goodput",), sizes=tuple(str(one) for one in sizes), losses=tuple(repr(one) for one in losses)
    )
    assert len(cases) == len(sizes) * len(losses)


def test_loss_is_of_both_directions_of_the_satellite_alone() -> None:
    case = next(
        iter(select_paths(load_path_catalog(), PathOptions(workloads=("page",), losses=("0.05",))).cases.values())
    )
    assert case.workload is not None
    assert (case.forward.loss, case.return_.loss) == (0.05, 0.05)
    assert (case.workload.ground_forward.loss, case.workload.ground_return.loss) == (0.0, 0.0)


def test_a_warm_case_has_a_name_and_time_of_its_own() -> None:
    cold, warm = (
        next(iter(select_paths(load_path_catalog(), PathOptions(workloads=("page",), warm=warm)).cases.values()))
        for warm in (False, True)
    )
    assert (cold.name, warm.name) == ("page-geo", "page+warm-geo")
    assert warm.timeout == 2 * cold.timeout
    environments = [material(case, 1).client for case in (cold, warm)]
    assert ["WARM" in one for one in environments] == [False, True]
    assert environments[0]["TIMEOUT"] == environments[1]["TIMEOUT"]


def test_loads_of_two_browsers_do_not_share_a_run(tmp_path: Path) -> None:
    selection = select_paths(load_path_catalog(), PathOptions(paths=("plain",), workloads=("page",)))
    first, second = (
        path_run(tmp_path / "run", selection, MatrixOptions(seed=1), ids={"bentpipe/browser": browser})
        for browser in ("sha256:1", "sha256:2")
    )
    folder = RunFolder.create(tmp_path / "run", first)
    assert extend_run(folder, first).implementations["browser"].image == "bentpipe/browser"
    with pytest.raises(UsageError, match="The image of browser has changed"):
        extend_run(folder, second)
    downloads = select_paths(load_path_catalog(), PathOptions(paths=("plain",), workloads=("goodput",)))
    assert "browser" not in path_run(tmp_path / "b", downloads, MatrixOptions(seed=1), ids={}).implementations


def test_a_variant_stands_beside_its_path() -> None:
    paths, _ = _select(paths=("plain", "pep-split"), variants=("pep-split:IW=30,CCA=bbr",))
    assert paths == ["plain", "pep-split", "pep-split+cca=bbr+iw=30"]


def test_values_between_slashes_are_a_variant_each() -> None:
    paths, _ = _select(paths=("qpep",), variants=("qpep:ACK_RATIO=1/10,MAX_ACK_DELAY=8s",))
    assert paths == ["qpep", *(f"qpep+ack-ratio={ratio}+max-ack-delay=8s" for ratio in (1, 10))]


def test_a_variant_has_one_name_however_its_number_is_written() -> None:
    paths, _ = _select(paths=("qpep",), variants=("qpep:IW=010/10/20,keep_alive=0",))
    assert paths == ["qpep", "qpep+iw=10+keep-alive=0", "qpep+iw=20+keep-alive=0"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"paths": ("opnvpn",)}, "--path: there is no path 'opnvpn'. Did you mean openvpn?"),
        ({"workloads": ("pages",)}, "--workload: there is no workload 'pages'. Did you mean page?"),
        ({"links": ("geos",)}, "--link: there is no link 'geos'. Did you mean geo?"),
        ({"losses": ("2",)}, "--loss: '2' is no number from 0 to 1"),
        ({"losses": ("0,all",)}, "--loss 0,all: all stands alone."),
        ({"losses": ("",)}, "--loss has no value: write --loss 0,0.001,0.01, or all."),
        ({"sizes": ("",)}, "--size has no value: write --size 500000,2000000 (bytes), or all."),
        ({"sizes": ("500000", "all")}, "--size 500000,all: all stands alone."),
        (
            {"sizes": ("5000",), "workloads": ("page,page-h2",)},
            "--size is of downloads, not of page, page-h2: leave it",
        ),
        ({"paths": ("",)}, "--path names no path. Choices: plain, "),
        ({"workloads": (",",)}, "--workload names no workload. Choices: goodput, "),
        ({"links": ("",)}, "--link names no link. Choices: geo, leo, leo-changing."),
        ({"sizes": ("ten",)}, "--size: 'ten' is no number"),
        ({"sizes": ("1000.5",)}, "--size 1000.5: write a whole number of bytes."),
        ({"sizes": ("10",)}, "a transfer has at least 1000 bytes"),
        ({"variants": ("plain:CCA=bbr",)}, "plain has no knob 'CCA'. Choices: none."),
        ({"variants": ("qpep",)}, "write PATH:NAME=VALUE,… such as pep-split:CCA=bbr,IW=100."),
        ({"variants": ("qpap:IW=3",)}, "there is no path 'qpap'. Choices: plain, "),
        ({"variants": ("qpep:IWX=3",)}, "qpep has no knob 'IWX'. Did you mean IW? Choices: CCA, IW, FLOWS, "),
        ({"variants": ("qpep:CCA=vegas",)}, "--variant qpep:CCA=vegas: CCA is bbr or cubic or newreno, not 'vegas'."),
        ({"variants": ("pep-split:CCA=a b",)}, "CCA is bbr or cubic or reno, not 'a b'."),
        ({"variants": ("qpep:IW=abc",)}, "IW is a number of packets, 1 to 10000, not 'abc'."),
        ({"variants": ("qpep:IW=10,IW=20",)}, "IW is given twice."),
        ({"variants": ("qpep:IW",)}, "IW has no value: write PATH:NAME=VALUE,… such as pep-split:CCA=bbr,IW=100."),
        ({"variants": ("qpep:IW=1/",)}, "--variant qpep:IW=: IW has no value"),
        ({"variants": ("qpep:MAX_ACK_DELAY=20s",)}, "MAX_ACK_DELAY is a time, 1ms to 16383ms, not '20s'."),
        ({"variants": ("qpep:PACKET_SIZE=1500",)}, "PACKET_SIZE is 0 or a number of bytes, 1200 to 1452, not '1500'."),
        ({"variants": ("qpep:ZERO_RTT=yes",)}, "ZERO_RTT is true or false, not 'yes'."),
        ({"paths": ("plain",), "variants": ("pep-split:IW=3",)}, "pep-split is not selected"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        _select(**options)


def test_what_a_path_does_not_carry_is_refused() -> None:
    catalog = load_path_catalog()
    h3 = next(iter(select_paths(catalog, PathOptions(workloads=("h3",))).cases.values()))
    assert refusal(catalog.paths["pep-split"], h3) == "pep-split carries tcp only, and h3 is udp"
    assert refusal(catalog.paths["openvpn"], h3) is None
    assert catalog.paths["pep-split-gateway"].sides == (Side.GATEWAY,)


def test_a_path_that_carries_nothing_of_a_selection_says_what_it_carries() -> None:
    catalog = load_path_catalog()

    def said(**options: tuple[str, ...]) -> list[str]:
        return uncarried(catalog, select_paths(catalog, PathOptions(**options)))  # type: ignore[arg-type]

    sentence = "quic-pep carries udp only: add --workload h3,page-h3"
    assert said() == [sentence]
    assert said(paths=("quic-pep",), variants=("quic-pep:IW=20",)) == [sentence]
    assert said(paths=("plain,quic-pep",), workloads=("goodput,h3",)) == []
    assert said(paths=("pep-split",), workloads=("h3",)) == [
        "pep-split carries tcp only: add --workload goodput,goodput-ipv6,h1,h2,page,page-h2,page-origins"
    ]


def test_the_reference_page_has_the_sizes_of_keplers() -> None:
    made = reference_page.objects(7)
    assert {name: len(data) for name, data in made.items()} == reference_page.names(7)
    assert (len(made), sum(map(len, made.values()))) == (75, 815_804)
    assert made != reference_page.objects(8)
    document = next(iter(made.values()))
    assert all(name.encode() in document for name in list(made)[1:])


def test_a_page_of_several_origins_asks_each_for_its_share() -> None:
    paths = select_paths(load_path_catalog(), PathOptions(workloads=("page-origins",), links=("geo",)))
    (case,) = paths.cases.values()
    document = served(case, 7)[0].content().decode()
    assert len(document) == reference_page.DOCUMENT
    asked = re.findall(r'(?:src|href)="(?:https://server4:(\d+)/)?[0-9a-f]{8}-', document)
    assert len(asked) == 74
    assert set(asked) == {"", *(str(port) for port in range(8441, 8452))}
    assert max(asked.count(port) for port in asked) == 7


def test_a_changing_link_changes_both_ways_at_once() -> None:
    satellite = LINKS["leo-changing"].satellite
    times = [change.time for change in satellite.forward.impairments.changes]
    assert times == [change.time for change in satellite.return_.impairments.changes]
    delays = {change.delay for change in satellite.forward.impairments.changes}
    assert min(delays) == 0.025 and max(delays) == 0.14
