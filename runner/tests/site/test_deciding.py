"""Who decides: what goes into the numbers, and that the page has them with their n and formulas."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.run_folders import case, measured, run
from runner.model.result import Outcome, Result
from runner.model.run import Job, Run
from runner.site import render
from runner.site.view import Cells, agreements, cells, decisions
from runner.store.runs import RunFolder

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
            sample=measured(goodput),
        )
    planned = run("r", cases, order)
    stacks = {
        name: replace(entry, congestion_control="bbr" if name == "c" else "cubic")
        for name, entry in planned.implementations.items()
    }
    return replace(planned, implementations=stacks), results


def drawn(planned: Run, results: dict[Job, Result]) -> Cells:
    return cells(planned, results)


def test_the_server_decides_where_clients_are_all_alike() -> None:
    planned, results = table()
    outcome = decisions(planned, drawn(planned, results))
    assert [one.case.name for one in outcome] == ["sat", "satloss"]
    first = outcome[0]
    assert [round(part.share, 6) for _, _, part in first.parts] == [1, 0, 0, 0]
    assert [(place.name, place.rank, place.summary.n) for place in first.servers] == [
        ("c", 1, 3),
        ("b", 2, 3),
        ("a", 3, 3),
    ]
    assert {place.rank for place in first.clients} == {1}
    assert [(name, one.n, one.median) for name, one in first.controllers] == [
        ("bbr", 3, 2.0),
        ("cubic", 6, pytest.approx(6.0)),
    ]


def test_a_middlebox_enters_no_ranking_beside_direct_cells() -> None:
    planned, results = table()
    slower = {}
    for job, result in results.items():
        through = replace(job, via="openvpn")
        assert result.sample is not None and result.sample.ttlb is not None
        sample = replace(result.sample, ttlb=10 * result.sample.ttlb)
        slower[through] = replace(result, via="openvpn", sample=sample)
    direct = decisions(planned, drawn(planned, results))
    assert [one.servers for one in decisions(planned, drawn(planned, results | slower))] == [
        one.servers for one in direct
    ]
    (sat, _) = decisions(planned, drawn(planned, slower))
    assert [place.name for place in sat.servers] == ["c", "b", "a"], "a run through one middlebox alone is ranked"


def test_cells_of_two_protocols_never_meet() -> None:
    planned, results = table(web="c")
    outcome = {(one.case.name, one.label): one for one in decisions(planned, drawn(planned, results))}
    assert [place.name for place in outcome["sat", ""].clients] == ["a", "b"]
    assert [place.name for place in outcome["sat", "h3"].clients] == ["c"]
    assert outcome["sat", "h3"].shares is None
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
    assert (
        f"The shares come from {6 * iterations}\u00a0iterations in 6\u00a0cells: 3\u00a0servers × 2\u00a0clients."
        in section
    )
    assert "are too few" in section
    assert "<b>100<small>%</small></b>" in section
    assert "Henderson" in section
    assert "Bonett and Wright" in section
    assert "+1.00" in section


def test_a_run_without_measurements_has_no_such_section(tmp_path: Path) -> None:
    planned, _ = table()
    folder = RunFolder.create(tmp_path / "r", planned)
    render([folder], tmp_path / "site")
    assert 'id="deciding"' not in (tmp_path / "site" / "r" / "index.html").read_text()


def test_one_iteration_ranks_nobody_and_says_so(tmp_path: Path) -> None:
    for iterations, ranked in ((1, False), (2, True)):
        planned, results = table(iterations)
        (first, _) = decisions(planned, drawn(planned, results))
        assert (first.why_not == "") is ranked
        folder = RunFolder.create(tmp_path / str(iterations) / "r", planned)
        for result in results.values():
            folder.save_result(result)
        render([folder], tmp_path / str(iterations) / "site")
        page = (tmp_path / str(iterations) / "site" / "r" / "index.html").read_text()
        assert ("Not ranked: servers, only 1 iteration of each pair; clients, only" in page) is not ranked
        badges = [path.read_text() for path in (tmp_path / str(iterations)).glob("site/r/badges/*-server-sat.svg")]
        assert len(badges) == 3
        assert all(("not ranked" in badge) is not ranked for badge in badges)


def early(result: Result) -> Result:
    """Server b is as the issue has it: its first 1-RTT packet comes 0.6 s before the request does."""
    assert result.sample is not None and result.sample.ttlb is not None
    begin = {"a": 1.2, "b": 0.6, "c": 1.2}[result.server]
    interval = {"a": 10.0, "b": 10.2, "c": 20.0}[result.server]
    sample = replace(
        result.sample,
        first_server_1rtt=begin,
        last_server_1rtt=begin + interval,
        ttlb=begin + interval,
        goodput=8e6 / interval,
    )
    return replace(result, sample=sample)


def test_where_goodput_ranks_otherwise_the_page_says_so_and_why() -> None:
    planned, results = table(3)
    (first, _) = decisions(planned, drawn(planned, {job: early(one) for job, one in results.items()}))
    assert [place.name for place in first.servers] == ["b", "a", "c"]
    assert first.other_orders == [
        "By goodput the order of the servers is different: a, b, c. a has 0.80\u202fMbit/s and b 0.78\u202fMbit/s, "
        "although b delivers earlier: goodput counts only from the server's first 1-RTT packet on, which comes after "
        "1.20 s with a and after 0.60 s with b."
    ]
    (plain, _) = decisions(planned, drawn(planned, results))
    assert plain.other_orders == []


def test_a_tail_behind_the_last_new_byte_is_told_as_the_reason() -> None:
    planned, results = table(3)

    def late(result: Result) -> Result:
        assert result.sample is not None
        ttlb, tail = {"a": (10.0, 2.0), "b": (11.0, 0.0), "c": (20.0, 0.0)}[result.server]
        times = replace(result.sample, first_server_1rtt=1.0, last_server_1rtt=ttlb + tail, ttlb=ttlb)
        return replace(result, sample=replace(times, goodput=8e6 / (ttlb + tail - 1)))

    (first, _) = decisions(planned, drawn(planned, {job: late(one) for job, one in results.items()}))
    (sentence,) = first.other_orders
    assert sentence.startswith("By goodput the order of the servers is different: b, a, c.")
    assert "comes 2.00 s after the last new byte with a and 0.00 s after it with b." in sentence
