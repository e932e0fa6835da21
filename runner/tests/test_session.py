"""A run that goes on or grows, over paths; test_run.py and test_matrix.py have those over pairs."""

from pathlib import Path

import pytest
from rich.console import Console

from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Result
from runner.path_matrix import path_run
from runner.paths.selection import PathOptions, PathSelection, load_path_catalog, select_paths
from runner.session import MatrixOptions, run_remaining
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
