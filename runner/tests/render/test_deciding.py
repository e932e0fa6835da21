"""Who decides: what goes into the numbers, and that the page has them with their n and formulas."""

from dataclasses import replace
from pathlib import Path

import pytest

from runner.model.job import Job
from runner.model.result import Outcome, Result, Sample
from runner.model.run import Run
from runner.render import render
from runner.render.cells import Cells, cells
from runner.render.deciding import agreements, decisions
from runner.store import RunFolder
from runner.tests.render.folders import case, run

STACKS = ("a", "b", "c")


def table(iterations: int = 3, *, spoiled: str = "", web: str = "") -> tuple[Run, dict[Job, Result]]:
    """Goodput doubles from server to server; `spoiled` servers are errors with a number, `web` clients speak h3."""
    cases = {name: case(name, iterations=iterations) for name in ("sat", "satloss")}
    order = tuple(
        Job(server=server, client=client, case=name, iteration=number)
        for server in STACKS
        for client in STACKS
        for name in cases
        for number in range(1, iterations + 1)
    )
    results = {}
    for job in order:
        goodput = 2.0 ** STACKS.index(job.server) * (1e6 if job.client not in web else 9e6)
        results[job] = replace(
            Result.of(job, Outcome.ERROR if job.server in spoiled else Outcome.SUCCEEDED),
            protocol="h3" if job.client in web else "hq-interop",
            sample=Sample(file_size=1, goodput=goodput, efficiency=goodput / 2e7),
        )
    planned = run("r", cases, order)
    stacks = {
        name: replace(one, congestion_control="bbr" if name == "c" else "cubic")
        for name, one in planned.implementations.items()
    }
    return replace(planned, implementations=stacks), results


def drawn(planned: Run, results: dict[Job, Result]) -> Cells:
    return cells(planned, results)


def test_the_server_decides_where_clients_are_all_alike() -> None:
    planned, results = table()
    found = decisions(planned, drawn(planned, results))
    assert [one.case.name for one in found] == ["sat", "satloss"]
    first = found[0]
    assert [round(part.share, 6) for _, _, part in first.parts] == [1, 0, 0, 0]
    assert [(place.name, place.rank, place.summary.n) for place in first.servers] == [
        ("c", 1, 3),
        ("b", 2, 3),
        ("a", 3, 3),
    ]
    assert {place.rank for place in first.clients} == {1}
    assert [(name, one.n, one.median) for name, one in first.controllers] == [("bbr", 3, 4e6), ("cubic", 6, 1.5e6)]


def test_cells_of_two_protocols_never_meet() -> None:
    planned, results = table(web="c")
    found = {(one.case.name, one.label): one for one in decisions(planned, drawn(planned, results))}
    assert [place.name for place in found["sat", ""].clients] == ["a", "b"]
    assert [place.name for place in found["sat", "h3"].clients] == ["c"]
    assert found["sat", "h3"].shares is None
    assert {(one.label, one.correlation.n) for one in agreements(planned, drawn(planned, results))} == {
        ("", 6),
        ("h3", 3),
    }


def test_what_the_harness_spoiled_is_in_no_ranking() -> None:
    planned, results = table(spoiled="c")
    first = decisions(planned, drawn(planned, results))[0]
    assert [place.name for place in first.servers] == ["b", "a"]
    assert first.shares is not None
    assert (first.shares.servers, first.shares.cells, first.shares.values) == (2, 6, 18)


def test_one_iteration_is_admitted() -> None:
    planned, results = table(iterations=1)
    first = decisions(planned, drawn(planned, results))[0]
    assert [words for _, words, _ in first.parts] == ["server", "client", "pair or iteration"]


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_page_says_numbers_n_and_formulas(tmp_path: Path, iterations: int) -> None:
    planned, results = table(iterations, web="c")
    folder = RunFolder.create(tmp_path / "r", planned)
    for result in results.values():
        folder.save_result(result)
    render([folder], tmp_path / "site")
    page = (tmp_path / "site" / "r" / "index.html").read_text()
    section = page[page.index('id="deciding"') : page.index('id="stacks"')]
    assert f"n = {6 * iterations}\u00a0iterations of 6\u00a0cells: 3\u00a0servers × 2\u00a0clients." in section
    assert "can't tell" in section
    assert "<b>100<small>%</small></b>" in section
    assert "Henderson" in section
    assert "Bonett and Wright" in section
    assert "+1.00" in section


def test_a_run_without_measurements_has_no_such_section(tmp_path: Path) -> None:
    planned, _ = table()
    folder = RunFolder.create(tmp_path / "r", planned)
    render([folder], tmp_path / "site")
    assert 'id="deciding"' not in (tmp_path / "site" / "r" / "index.html").read_text()
