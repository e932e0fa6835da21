"""A run that goes on or grows, over paths; test_run.py and test_matrix.py have those over pairs."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from runner.campaign.path_matrix import choose, path_run
from runner.campaign.session import MatrixOptions, run_remaining
from runner.config.path_selection import PathOptions, PathSelection, load_path_catalog, more_paths, select_paths
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Result
from runner.store import RunFolder

DOWNLOAD = PathOptions(paths=("plain",), workloads=("goodput",), sizes=("500000",), iterations=1)
PAGE = PathOptions(paths=("openvpn",), workloads=("page",), iterations=1)


def _left(path: Path, selection: PathSelection, *, wider: bool, seed: int | None = 3) -> set[tuple[str, str]]:
    """The path and the case of each job that this call would run."""
    left: set[tuple[str, str]] = set()

    def note(folder: RunFolder, todo: tuple[Job, ...]) -> dict[Job, Result]:  # noqa: ARG001 - nothing is run
        left.update((job.client, job.case) for job in todo)
        return {}

    options = MatrixOptions(seed=seed)
    wanted = path_run(path, selection, options, ids={})
    run_remaining(path, wanted, options, wider=wider, execute=note, out=Console(quiet=True))
    return left


def test_a_run_that_goes_on_gets_no_job_that_nobody_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "night"
    catalog = load_path_catalog()
    first = _left(path, select_paths(catalog, DOWNLOAD), wider=True)
    second = _left(path, select_paths(catalog, PAGE), wider=True)
    assert (first, second) == ({("plain", "goodput-500kB-geo")}, {("openvpn", "page-geo")})
    run = RunFolder.open(path).run
    assert set(run.paths) == {"plain", "openvpn"}
    all_of_it = PathSelection(paths=run.paths, cases=run.cases)
    assert _left(path, all_of_it, wider=False) == first | second
    assert len(_left(path, all_of_it, wider=True)) == 4


def test_a_run_keeps_its_seed(tmp_path: Path) -> None:
    selection = select_paths(load_path_catalog(), DOWNLOAD)
    _left(tmp_path / "night", selection, wider=True)
    with pytest.raises(UsageError, match="began with seed 3, and keeps it"):
        _left(tmp_path / "night", selection, wider=True, seed=4)


BEGUN = PathOptions(
    paths=("plain", "qpep"),
    workloads=("goodput", "page"),
    sizes=("500000",),
    losses=("0,0.01",),
    variants=("qpep:IW=20",),
    iterations=2,
)
HAS = {"goodput-500kB-geo", "goodput-500kB-geo+loss=0.01", "page-geo", "page-geo+loss=0.01"}


def _asked(path: Path, asked: PathOptions, **options: float) -> set[tuple[str, str, int]]:
    """Path, case and iteration of each job that `run --run` of these options would run; nothing is ever done."""
    left: set[tuple[str, str, int]] = set()

    def note(folder: RunFolder, todo: tuple[Job, ...]) -> dict[Job, Result]:  # noqa: ARG001 - nothing is run
        left.update((job.client, job.case, job.iteration) for job in todo)
        return {}

    typed = MatrixOptions(seed=3, **options)  # type: ignore[arg-type]
    selection, scale = choose(typed, asked, path, Console(quiet=True))
    wanted = path_run(path, selection, replace(typed, timeout_scale=scale), ids={})
    run_remaining(path, wanted, typed, wider=asked.wider, execute=note, out=Console(quiet=True))
    return left


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    _asked(tmp_path / "night", BEGUN)
    return tmp_path / "night"


@pytest.mark.parametrize(
    ("asked", "cases"),
    [
        (PathOptions(), HAS),
        (PathOptions(losses=("0.05",)), {"goodput-500kB-geo+loss=0.05", "page-geo+loss=0.05"}),
        (PathOptions(links=("leo",)), {one.replace("geo", "leo") for one in HAS}),
        (PathOptions(sizes=("250000",)), {one.replace("500kB", "250kB") for one in HAS}),
        (PathOptions(warm=True), {one.replace("-geo", "+warm-geo") for one in HAS}),
        (PathOptions(workloads=("goodput",)), {one for one in HAS if "goodput" in one}),
        (
            PathOptions(workloads=("goodput",), links=("leo",), losses=("0",), warm=True),
            {"goodput-500kB+warm-leo"},
        ),
    ],
    ids=["nothing", "loss", "link", "size", "warm", "workload", "much"],
)
def test_what_is_not_named_is_what_the_run_has(begun: Path, asked: PathOptions, cases: set[str]) -> None:
    paths = {"plain", "qpep", "qpep+iw=20"}
    wanted = {(path, case, iteration) for path in paths for case in cases for iteration in (1, 2)}
    assert _asked(begun, asked) == wanted
    assert set(RunFolder.open(begun).run.cases) == HAS | cases


def test_a_variant_alone_is_asked_what_its_path_was(begun: Path) -> None:
    before = _asked(begun, PathOptions())
    after = _asked(begun, PathOptions(variants=("qpep:CCA=newreno",)))
    assert after - before == {("qpep+cca=newreno", case, iteration) for case in HAS for iteration in (1, 2)}
    with pytest.raises(UsageError, match="pep-split is not selected: add it to --path"):
        _asked(begun, PathOptions(variants=("pep-split:IW=5",)))


def test_a_path_that_is_named_stands_alone(begun: Path) -> None:
    assert {job[:2] for job in _asked(begun, PathOptions(paths=("openvpn",)))} == {("openvpn", case) for case in HAS}


def test_a_workload_that_is_new_to_a_run_begins_with_its_own_size_over_the_links_of_the_run(begun: Path) -> None:
    _asked(begun, PathOptions(warm=True))
    asked = _asked(begun, PathOptions(paths=("qpep",), workloads=("h2",)))
    assert {job[1] for job in asked} == {"h2-2000kB-geo", "h2-2000kB-geo+loss=0.01"}
    assert max(job[2] for job in asked) == 10


def test_more_iterations_are_for_all_that_the_run_has_and_stay(begun: Path) -> None:
    first = _asked(begun, PathOptions())
    more = _asked(begun, PathOptions(iterations=3))
    assert {job for job in more if job[2] <= 2} == first
    assert _asked(begun, PathOptions()) == more
    assert max(job[2] for job in _asked(begun, PathOptions(links=("leo",)))) == 3


def test_a_run_of_pages_has_no_sizes(tmp_path: Path) -> None:
    _asked(tmp_path / "night", PAGE)
    with pytest.raises(UsageError, match="--size is of downloads, not of page: leave it out"):
        _asked(tmp_path / "night", PathOptions(sizes=("5000",)))


def test_a_run_keeps_the_scale_of_its_time_outs(tmp_path: Path) -> None:
    path = tmp_path / "night"
    _asked(path, DOWNLOAD, timeout_scale=1.1)
    for options in ({}, {"timeout_scale": 1.1}):
        _asked(path, PathOptions(links=("leo",)), **options)
        _asked(path, DOWNLOAD, **options)
    cases = RunFolder.open(path).run.cases
    assert cases["goodput-500kB-leo"].timeout == cases["goodput-500kB-geo"].timeout == 80 * 1.1
    with pytest.raises(UsageError, match=r"--timeout-scale 3: night began with 1.1, and keeps it"):
        _asked(path, PathOptions(), timeout_scale=3)


def test_a_run_goes_on_when_a_workload_of_it_is_gone(begun: Path) -> None:
    catalog, run = load_path_catalog(), RunFolder.open(begun).run
    without = replace(catalog, workloads={name: one for name, one in catalog.workloads.items() if name != "page"})
    assert more_paths(without, PathOptions(), run).cases == run.cases
    with pytest.raises(UsageError, match="--workload: there is no workload 'page'"):
        more_paths(without, PathOptions(links=("leo",)), run)
