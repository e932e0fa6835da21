"""The check that TCP flows share evenly: even shares pass; uneven shares and wide intervals don't."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.records import select
from lab.sharing import MeanShare, main
from runner.model.result import Outcome, Result, Sample
from runner.plan import jobs
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder


def test_the_interval_is_students() -> None:
    share = MeanShare.of([0.4, 0.5, 0.6, 0.45, 0.55])
    assert share.mean == pytest.approx(0.5)
    assert share.half_width == pytest.approx(2.7764 * 0.0790569 / 5**0.5, rel=1e-4)  # t with 4 degrees of freedom


@pytest.mark.parametrize(
    ("shares", "code"),
    [
        ((0.48, 0.55, 0.47, 0.52, 0.5), 0),
        ((0.61, 0.63, 0.6, 0.66, 0.62), 1),
        ((0.1, 0.9, 0.2, 0.8, 0.5), 1),
        ((0.5, 0.49, 0.51, 0.5), 1),
    ],
)
def test_only_even_shares_in_enough_iterations_pass(
    tmp_path: Path, catalog: Catalog, capsys: pytest.CaptureFixture[str], shares: tuple[float, ...], code: int
) -> None:
    path = tmp_path / "run"
    chosen = select(
        catalog, servers=("nginx+h1",), clients=("curl+h1",), cases=("crosstraffic",), iterations=len(shares)
    )
    run = jobs.new_run(path, catalog, chosen, seed=1, shuffled=False, image_ids={}, timeout_scale=1.0)
    folder = RunFolder.create(path, run)
    for job, share in zip(run.order, shares, strict=True):
        fairness = 1 / (2 * (share**2 + (1 - share) ** 2))
        sample = Sample(file_size=1, fairness=fairness, bottleneck_share=share, beside_goodput=4e6)
        result = replace(Result.of(job, Outcome.SUCCEEDED), sample=sample, protocol="http/1.1")
        (folder.path / job.path).mkdir(parents=True)
        folder.save_result(result)
    assert json.loads((folder.path / run.order[0].path / "result.json").read_text())["sample"]["fairness"]
    assert main([str(path)]) == code
    assert ("even" in capsys.readouterr().out.lower()) is True


def test_a_run_without_such_a_cell_does_not_pass(tmp_path: Path, catalog: Catalog) -> None:
    chosen = select(catalog, servers=("quinn",), clients=("quinn",), cases=("goodput",), iterations=1)
    run = jobs.new_run(tmp_path / "run", catalog, chosen, seed=1, shuffled=False, image_ids={}, timeout_scale=1.0)
    RunFolder.create(tmp_path / "run", run)
    assert main([str(tmp_path / "run")]) == 1
    assert main([str(tmp_path / "nothing")]) == 2
