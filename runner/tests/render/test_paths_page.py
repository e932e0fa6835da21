"""The page of a run of paths, from results alone."""

import re
from pathlib import Path

import pytest

from runner.matrix import MatrixOptions
from runner.model.job import Job
from runner.model.path import ORIGIN, Crossing, PageLoad, Sight
from runner.model.result import Outcome, Result, Sample
from runner.model.run import Run
from runner.path_matrix import path_run, presets
from runner.paths.selection import PathOptions, load_path_catalog, select_paths
from runner.render import render
from runner.store import RunFolder

PATHS = ("plain", "openvpn", "pep-split")
SECONDS = {"plain": 4.0, "openvpn": 4.2, "pep-split": 3.0}


def _run(tmp_path: Path) -> RunFolder:
    options = PathOptions(paths=PATHS, workloads=("goodput", "page", "h3"), sizes=("500000,2000000",), iterations=4)
    made = path_run(tmp_path / "night", select_paths(load_path_catalog(), options), MatrixOptions(seed=3), ids={})
    folder = RunFolder.create(tmp_path / "night", made)
    for result in presets(made, made.order).values():
        folder.save_result(result)
    for job in made.order:
        if folder.result(job) is None:
            folder.save_result(_result(made, job))
    return folder


def _result(run: Run, job: Job) -> Result:
    case, entry = run.cases[job.case], run.paths[job.client]
    assert case.workload is not None
    size = sum(case.file_sizes)
    took = (SECONDS[job.client] + 0.01 * job.iteration) * (1 + size / 1e7)
    lost = case.workload.page and job.client == "plain" and job.iteration == 4
    page = PageLoad(response_start=1.0, first_contentful_paint=2.0, load=took, completed=75, attempted=75)
    sights = tuple(Sight(what=what, visible=not entry.encrypts, times=3) for what in ("client address", "content"))
    return Result(
        server=ORIGIN,
        client=job.client,
        case=job.case,
        iteration=job.iteration,
        outcome=Outcome.FAILED if lost else Outcome.SUCCEEDED,
        sample=Sample(file_size=size, goodput=None if case.workload.page else 8 * size / took, ttlb=took),
        crossing=Crossing(connections=1, sights=sights, page=page if case.workload.page else None),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("paths")
    render([_run(folder)], folder / "site")
    return (folder / "site" / "night" / "paths.html").read_text()


def _rows(page: str, section: str) -> list[list[str]]:
    inside = page.split(f'id="{section}"')[1].split("</section>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", inside, re.DOTALL)
    found = (re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows)
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in found]


def test_the_winner_stands_with_its_margin(page: str) -> None:
    header, *rows = _rows(page, "downloads")
    assert header == ["workload", "link", *PATHS, "winner", "margin"]
    small = next(row for row in rows if row[0].startswith("goodput-500kB"))
    assert small[5] == "pep-split"
    assert small[6] == "33 % before plain, p 0.029"
    assert small[4].startswith("▲ 1.26") and small[4].endswith("4/4")


def test_what_is_not_carried_is_said(page: str) -> None:
    h3 = next(row for row in _rows(page, "downloads") if row[0].startswith("h3"))
    assert h3[4] == "not carried"


def test_a_load_that_failed_counts_as_an_attempt(page: str) -> None:
    row = next(row for row in _rows(page, "pages") if row[0].startswith("page"))
    assert row[2].endswith("3/4")
    assert "A curve that ends below 1" in page


def test_the_eavesdropper_stands_beside_the_numbers(page: str) -> None:
    last = next(row for row in _rows(page, "downloads") if row[0] == "an eavesdropper sees")
    assert last[2:5] == ["● 2 of 2", "○ nothing", "● 2 of 2"]
    assert ["openvpn", "in the clear", "○ hidden", "○ hidden", "12"] in _rows(page, "eavesdropper")


def test_goodput_by_size_has_a_line_for_each_path(page: str) -> None:
    sizes = page.split('id="sizes"')[1].split("</section>", maxsplit=1)[0]
    assert sizes.count('class="series g') >= 3
    assert all(f">{path}</text>" in sizes for path in PATHS)
