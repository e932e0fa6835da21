"""A run that goes on or grows: options that are left out keep what the run has."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.plan import jobs
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.choice import choose
from runner.plan.options import MatrixOptions
from runner.store.runs import NamedRuns, RunFolder

CATALOG = load_catalog()
DOWNLOAD = MatrixOptions(vias=("plain",), cases=("download",), sizes=("500000",), iterations=1)
PAGE = MatrixOptions(vias=("openvpn",), cases=("page",), iterations=1)
BEGUN = MatrixOptions(
    vias=("plain", "qpep"),
    cases=("download", "page"),
    sizes=("500000",),
    losses=("0,0.01",),
    variants=("qpep:IW=20",),
    iterations=2,
)
HAS = {"download-500kB", "download-500kB@geo+loss=0.01", "page", "page@geo+loss=0.01"}
LEO = {label.replace("@geo", "").split("+")[0] + "@leo" + label.partition("@geo")[2] for label in HAS}


def _asked(path: Path, options: MatrixOptions, catalog: Catalog = CATALOG) -> set[tuple[str, str, int]]:
    """Middlebox, case and iteration of each job that these options would run; nothing is ever done."""
    options = replace(options, seed=options.seed or 3)
    runs = NamedRuns.open(str(path))
    choice = choose(options, catalog, runs.stored.run if runs.stored else None)
    new_run = jobs.new_run(path, choice, seed=options.seed)
    with runs.opened(new_run, seed=options.seed, widens=options.selects) as (_, selected):
        return {(job.via, job.case_link, job.iteration) for job in selected}


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    _asked(tmp_path / "night", BEGUN)
    return tmp_path / "night"


def test_a_run_that_goes_on_gets_no_job_that_nobody_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "night"
    first, second = _asked(path, DOWNLOAD), _asked(path, PAGE)
    assert (first, second) == ({("plain", "download-500kB", 1)}, {("openvpn", "page", 1)})
    assert set(RunFolder.open(path).run.middleboxes) == {"plain", "openvpn"}
    assert _asked(path, MatrixOptions()) == first | second
    assert len(_asked(path, MatrixOptions(vias=("plain,openvpn",)))) == 4


def test_a_run_keeps_its_seed(tmp_path: Path) -> None:
    _asked(tmp_path / "night", DOWNLOAD)
    with pytest.raises(UsageError, match="began with seed 3, and keeps it"):
        _asked(tmp_path / "night", replace(DOWNLOAD, seed=4))


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (MatrixOptions(), HAS),
        (MatrixOptions(losses=("0.05",)), {"download-500kB@geo+loss=0.05", "page@geo+loss=0.05"}),
        (MatrixOptions(links=("leo",)), LEO),
        (MatrixOptions(sizes=("250000",)), {name.replace("500kB", "250kB") for name in HAS}),
        (
            MatrixOptions(warm=True),
            {name.replace("500kB", "500kB+warm").replace("page", "page+warm") for name in HAS},
        ),
        (MatrixOptions(cases=("download",)), {name for name in HAS if "download" in name}),
        (
            MatrixOptions(cases=("download",), links=("leo",), losses=("0",), warm=True),
            {"download-500kB+warm@leo"},
        ),
    ],
    ids=["nothing", "loss", "link", "size", "warm", "case", "much"],
)
def test_what_is_not_named_is_what_the_run_has(begun: Path, options: MatrixOptions, cases: set[str]) -> None:
    vias = {"plain", "qpep", "qpep+iw=20"}
    assert _asked(begun, options) == {(via, case, iteration) for via in vias for case in cases for iteration in (1, 2)}
    assert set(RunFolder.open(begun).run.cases) == HAS | cases


def test_a_variant_alone_is_asked_what_its_middlebox_was(begun: Path) -> None:
    before = _asked(begun, MatrixOptions())
    after = _asked(begun, MatrixOptions(variants=("qpep:CCA=newreno",)))
    assert after - before == {("qpep+cca=newreno", case, iteration) for case in HAS for iteration in (1, 2)}
    with pytest.raises(UsageError, match="pep-split is not selected: add it to --via"):
        _asked(begun, MatrixOptions(variants=("pep-split:IW=5",)))


def test_a_middlebox_that_is_named_stands_alone(begun: Path) -> None:
    requested = {job[:2] for job in _asked(begun, MatrixOptions(vias=("openvpn",)))}
    assert requested == {("openvpn", case) for case in HAS}


def test_a_case_that_is_new_to_a_run_begins_with_its_own_size_over_the_links_of_the_run(begun: Path) -> None:
    _asked(begun, MatrixOptions(warm=True))
    requested = _asked(begun, MatrixOptions(vias=("qpep",), cases=("download-h2",)))
    assert {job[1] for job in requested} == {"download-h2-2000kB", "download-h2-2000kB@geo+loss=0.01"}
    assert max(job[2] for job in requested) == 10


def test_stacks_join_a_run_of_downloads(begun: Path) -> None:
    _asked(begun, MatrixOptions(cases=("goodput",), links=("leo",), clients=("quinn",), servers=("quinn",)))
    run = RunFolder.open(begun).run
    assert {"quinn", "downloader", "browser"} == set(run.clients)
    assert {job.via for job in run.order if job.client == "quinn"} == {"plain", "qpep", "qpep+iw=20"}


def test_more_iterations_are_for_all_that_the_run_has_and_stay(begun: Path) -> None:
    first = _asked(begun, MatrixOptions())
    more = _asked(begun, MatrixOptions(iterations=3))
    assert {job for job in more if job[2] <= 2} == first
    assert _asked(begun, MatrixOptions()) == more
    assert max(job[2] for job in _asked(begun, MatrixOptions(links=("leo",)))) == 3


def test_a_run_of_pages_has_no_sizes(tmp_path: Path) -> None:
    _asked(tmp_path / "night", PAGE)
    with pytest.raises(UsageError, match="--size is for measurements of one file, not for page: leave it out"):
        _asked(tmp_path / "night", MatrixOptions(sizes=("5000",)))


def test_a_run_keeps_the_scale_of_its_time_outs(tmp_path: Path) -> None:
    path = tmp_path / "night"
    _asked(path, replace(DOWNLOAD, timeout_scale=1.1))
    for scale in (1.0, 1.1):
        _asked(path, MatrixOptions(links=("leo",), timeout_scale=scale))
        _asked(path, replace(DOWNLOAD, timeout_scale=scale))
    cases = RunFolder.open(path).run.cases
    assert cases["download-500kB"].timeout == 80 * 1.1
    with pytest.raises(UsageError, match=r"--timeout-scale 3: the run began with 1.1, and keeps it"):
        _asked(path, MatrixOptions(timeout_scale=3))


def test_a_run_goes_on_when_a_case_of_it_is_gone(begun: Path) -> None:
    without = replace(CATALOG, cases={name: entry for name, entry in CATALOG.cases.items() if name != "page"})
    assert {case for _, case, _ in _asked(begun, MatrixOptions(), without)} == {
        "download-500kB",
        "download-500kB@geo+loss=0.01",
    }
    with pytest.raises(UsageError, match="--case: there is no case 'page'"):
        _asked(begun, MatrixOptions(cases=("page",)), without)
