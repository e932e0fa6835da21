"""What the pages of a run tell: sentences, stacks, scenarios, comparisons, figures."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pytest
from rich.console import Console

from lab.run_folders import case, measured, rare_run, recorded_run, run, variants_run, vias_run
from runner.compare.rankings import Share
from runner.model.link import LinkChange, LinkImpairments, LinkParameters, SegmentRecord
from runner.model.result import Diagnosis, DirectionTruth, Finding, LinkTruth, Outcome, PublicVerdict, Result
from runner.model.run import Job, Kind
from runner.paths import ROOT
from runner.site import charts, headlines, render
from runner.site.charts import Axis, Mark, Strip
from runner.site.pages import Page, comparing, figures, implementations, modules, navigation, overview, scenarios
from runner.site.view import RunView
from runner.store.runs import RunFolder
from runner.terminal.printing import show_result
from runner.tests.site.runs import plotted
from runner.tests.site.test_series_drawing import stored
from runner.units import UNPRINTABLE

STACKS = ("a", "b", "c")


def measured_run(path: Path, *, factor: float = 1.0, started: float = 1.8e9) -> RunFolder:
    """3 × 3 stacks in two measurements with 3 iterations; the server decides: a is twice as fast as b, b as c."""
    order = tuple(
        Job(server=server, client=client, case=name, iteration=iteration)
        for server in STACKS
        for client in STACKS
        for name in ("sat", "fast")
        for iteration in (1, 2, 3)
    )
    cases = {name: case(name, iterations=3) for name in ("sat", "fast")}
    folder = RunFolder.create(path, run(path.name, cases, order, started=started))
    for job in order:
        share = (
            0.8 / 2 ** STACKS.index(job.server) * factor * (1 + 0.01 * job.iteration + 0.02 * STACKS.index(job.client))
        )
        sample = measured(20e6 * share, ttlb=1 / share)
        folder.save_result(
            replace(
                Result.of(job, Outcome.SUCCEEDED),
                sample=sample,
                limits={"link": share, "congestion window": 1 - share},
                started_unix_s=started + job.iteration,
            )
        )
    return folder


def view_of(*folders: RunFolder) -> RunView:
    """Of the first one."""
    return next(view for view in RunView.all(folders) if view.path == folders[0].path)


def test_a_run_is_told_in_five_sentences_with_its_numbers(tmp_path: Path) -> None:
    view = view_of(measured_run(tmp_path / "run"))
    scope, speed, who, limits, wrong = headlines.sentences(view, view.decided)
    assert "3\u00a0servers × 3\u00a0clients" in scope
    assert "from 1.18 s (c → a) to 4.90 s" in speed.replace("\u202f", " ")
    assert "the server causes 9" in who or "the server causes 100" in who
    assert "the server's congestion window" in limits
    assert wrong == "No job failed by the fault of a stack."


def test_slow_transfers_without_a_diagnosis_are_counted(tmp_path: Path) -> None:
    folder = measured_run(tmp_path / "run")
    for number, result in enumerate(sorted(folder.results().values(), key=lambda result: str(result.job))[:3]):
        sample = replace(result.sample, efficiency_of_bound=0.84 if number else 0.86)  # type: ignore[type-var]
        known = (Diagnosis(code="bursts", sentence="Bursts.", start=0.0, end=1.0, share=1.0, section=""),)
        folder.save_result(replace(result, sample=sample, diagnoses=known if number == 2 else ()))
    view = view_of(folder)
    sentences = " ".join(headlines.sentences(view, view.decided)).replace("\u202f", " ").replace("\u00a0", " ")
    assert "Without a diagnosis: 1 of the 2 transfers below 85 % of the slow-start bound, such as a → a in" in sentences


def test_what_an_interval_does_not_carry_is_not_said(tmp_path: Path) -> None:
    view = view_of(measured_run(tmp_path / "run"))
    known = view.decided[0].shares
    assert known is not None
    wide = replace(known, server=Share(share=0.51, low=0.0, high=0.98), client=Share(share=0.49, low=0.0, high=0.9))
    _, _, who, *_ = headlines.sentences(view, [replace(view.decided[0], shares=wide)])
    assert "does not show whether the server or the client decides" in who
    assert "0 to 98" in who


def test_with_one_iteration_of_each_pair_nobody_is_told_to_decide_as_a_pair(tmp_path: Path) -> None:
    view = view_of(measured_run(tmp_path / "run"))
    known = view.decided[0].shares
    assert known is not None
    none, whole = Share(share=0.0, low=0.0, high=0.5), Share(share=1.0, low=0.6, high=1.0)
    once = replace(known, server=none, client=none, pair=whole, residual=None)
    _, _, who, *_ = headlines.sentences(view, [replace(view.decided[0], shares=once)])
    assert "does not show whether the server or the client decides" in who
    assert "more iterations would show" in who


def test_failures_are_told_by_cause(tmp_path: Path) -> None:
    view = view_of(rare_run(tmp_path / "rare"))
    *_, wrong = headlines.sentences(view, view.decided)
    assert "failed, by cause: timeout" in wrong
    groups = overview.failures(view.table.values())
    assert [(group.code, group.share) for group in groups] == [("timeout", 1), ("unsupported", 0)]


def test_nothing_run_yet_is_said(tmp_path: Path) -> None:
    order = (Job(server="a", client="b", case="sat", iteration=1),)
    folder = RunFolder.create(tmp_path / "run", run("run", {"sat": case("sat")}, order))
    view = view_of(folder)
    assert headlines.sentences(view, view.decided)[-1] == "No job has succeeded yet."
    for module in modules(folder.run):
        list(module.pages(view))


def test_ranks_of_a_stack_in_both_roles(tmp_path: Path) -> None:
    view = view_of(measured_run(tmp_path / "run"))
    sat = next(one for one in implementations.in_cases(view, "b") if one.case == "sat")
    assert (sat.places["server"].rank, sat.ranked["server"]) == (2, 3)
    assert sat.attempts["client"].attempts == 9
    assert sat.efficiency["server"].median == pytest.approx(0.4 * 1.04, rel=1e-6)


def test_a_scenario_sums_the_link_s_truth_and_orders_its_stacks(tmp_path: Path) -> None:
    view = view_of(recorded_run(tmp_path / "run"))
    (page,) = [one for one in scenarios.pages(view) if one.path == "scenarios/goodput.html"]
    assert page.context["truth"]["jobs"] == 3  # type: ignore[union-attr]
    empty = [one for one in scenarios.pages(view) if one.path == "scenarios/transfer.html"]
    assert len(empty) == 1


def test_the_scoreboard_holds_the_paths_of_the_draft_against_its_targets(tmp_path: Path) -> None:
    name = "goodput@ietf-small"
    asked = case(name, iterations=3)
    cases = {name: replace(asked, link=replace(asked.link, name="ietf-small"), file_sizes=(10_000_000,))}
    twice = {"client": "zerortt", "server": "zerortt"}
    cases["again"] = replace(cases[name], name="again", file_sizes=(10_000_000, 10_000_000), wire_names=twice)
    order = tuple(Job(server="a", client="a", case=name, iteration=number) for number in (1, 2, 3))
    repeat = Job(server="a", client="a", case="again", iteration=1)
    folder = RunFolder.create(tmp_path / "run", run("run", cases, (*order, repeat)))
    sample = replace(measured(8e6), first_2_mb=99.0, repeat_2_mb=1.5)
    folder.save_result(replace(Result.of(repeat, Outcome.SUCCEEDED), sample=sample))
    for job in order:
        sample = replace(measured(8e6), first_2_mb=2.0 + job.iteration / 10, first_10_mb=None)
        result = replace(Result.of(job, Outcome.SUCCEEDED), sample=sample, limits={"congestion window": 1.0})
        folder.save_result(result)
    (page,) = [one for one in scenarios.pages(view_of(folder)) if one.path == scenarios.SCOREBOARD]
    assert isinstance(page, Page)
    ((client, server, _, (path,)),) = page.context["rows"]
    first, second, third = path.times
    assert (client, server, third) == ("a", "a", None)
    assert first.time and (first.time.median, first.met) == (2.2, True)
    assert (second.time, second.met) == (None, False), "no transfer came so far"
    assert path.reason == "congestion window 100%"
    ((*pair, ((_, ((again, before), (ten, _)), _),)),) = page.context["repeats"]
    assert (pair, again.median, before.median, ten) == (["a", "a", "zerortt"], 1.5, 99.0, None)
    pages = [one.path for one in scenarios.pages(view_of(measured_run(tmp_path / "other")))]
    assert scenarios.SCOREBOARD not in pages


def test_the_scoreboard_holds_an_upload_against_targets_of_its_own(tmp_path: Path) -> None:
    name = "upload@ietf-small"
    asked = case(name, iterations=1)
    link = replace(asked.link, name="ietf-small")
    cases = {name: replace(asked, link=link, file_sizes=(10_000_000,), upload=True)}
    (job,) = order = (Job(server="a", client="a", case=name, iteration=1),)
    folder = RunFolder.create(tmp_path / "run", run("run", cases, order))
    sample = replace(measured(8e6), first_2_mb=9.0, first_10_mb=51.0)
    folder.save_result(replace(Result.of(job, Outcome.SUCCEEDED), sample=sample))
    (page,) = [one for one in scenarios.pages(view_of(folder)) if one.path == scenarios.SCOREBOARD]
    assert isinstance(page, Page)
    assert page.context["paths"] == [("ietf-small, upload", (10, 50, 420))]
    assert page.context["links"] == {"ietf-small": link}
    ((_, _, _, (path,)),) = page.context["rows"]
    assert [reached.met for reached in path.times[:2]] == [True, False]


def test_a_link_over_time_shows_its_handovers() -> None:
    changes = (LinkChange(0.0, 0.02, 8_000_000), LinkChange(4.0, 0.02, 8_000_000, 1.0, handover=True))
    way = LinkParameters(data_rate=9_000_000, delay=0.03, queue_packets=9, loss=0.0)
    assert not charts.sky(SegmentRecord(forward=way, return_=way), end=9.0, title="steady")
    moving = replace(way, impairments=LinkImpairments(changes=(*changes, LinkChange(4.5, 0.05, 2_000_000))))
    drawn = charts.sky(SegmentRecord(forward=moving, return_=way), end=9.0, title="moving")
    assert drawn.count("<title>handover, 4.00 to 4.50 s</title>") == 3
    assert drawn.count("loss (%)") == 1


def test_a_case_that_moves_little_tells_of_no_goodput(tmp_path: Path) -> None:
    pages = scenarios.pages(view_of(recorded_run(tmp_path / "run")))
    text = {page.path: page.context for page in pages if isinstance(page, Page)}
    short, long = text["scenarios/handshake.html"], text["scenarios/goodput.html"]
    assert [metric.key for metric, _ in short["numbers"]] == ["handshake_time", "ttlb"]
    assert (bool(short["by_server"]), bool(long["by_server"])) == (False, True)
    listed = {row["case"].name: row["efficiency"] for row in text["scenarios/index.html"]["rows"]}
    assert (listed["handshake"] is None, listed["goodput"] is None) == (True, False)


def test_the_run_before_is_the_newest_of_the_same_plan(tmp_path: Path) -> None:
    newest = measured_run(tmp_path / "c", factor=0.5, started=1.8e9)
    same = measured_run(tmp_path / "b", started=1.7e9)
    older = measured_run(tmp_path / "a", started=1.6e9)
    other = rare_run(tmp_path / "rare")
    elsewhere = RunFolder.create(tmp_path / "e", replace(same.run, host={"name": "other"}, started_unix_s=1.75e9))
    view = view_of(newest, same, older, other, elsewhere)
    assert view.previous is not None
    assert view.previous.name == "b"
    assert [one.name for one in view.alike] == ["a", "b", "c"]
    assert view.alike[0].previous is None
    assert view.changes is not None
    assert comparing.pages(view)


def test_figures_have_all_numbers_of_the_thesis_and_say_what_is_missing(tmp_path: Path) -> None:
    view = view_of(measured_run(tmp_path / "run"))
    *_, page = list(figures.pages(view))
    numbers = [item["number"] for item in page.context["figures"]]  # type: ignore[union-attr]
    assert numbers == [f"5.{number}" for number in range(1, 25)]
    template = (ROOT / "web/templates/figures.html").read_text(encoding="utf-8")
    texts = dict(re.findall(r'^  "([0-9.]+)": \("[^"]+", "([^"]+)"\),$', template, re.MULTILINE))
    assert list(texts) == numbers


def test_variants_stand_beside_their_stack(tmp_path: Path) -> None:
    view = view_of(variants_run(tmp_path / "run"))
    (page,) = comparing.pages(view)
    (family,) = page.context["variants"]  # type: ignore[union-attr]
    assert (family["stack"], family["role"]) == ("quinn", "server")
    assert [name for name, _ in family["rows"]] == ["quinn", "quinn+iw=32"]


def test_every_module_has_a_place_of_its_own(tmp_path: Path) -> None:
    for folder in (rare_run(tmp_path / "pairs"), vias_run(tmp_path / "paths")):
        orders = [one.NAV for one in modules(folder.run) if hasattr(one, "NAV")]
        assert len({order for order, _, _ in orders}) == len(orders)
        assert navigation(folder.run)[0] == ("Overview", "index.html")
    assert [words for words, _ in navigation(folder.run)] == ["Overview", "Middleboxes", "Downloads"]


def test_charts_of_nothing_are_nothing() -> None:
    axis = Axis(label="x")
    assert charts.strips([Strip(label="a", marks=[])], axis, title="t") == ""
    assert charts.scatter([], axis, axis, title="t") == ""
    assert charts.lines([], axis, axis, title="t") == ""
    assert charts.curves([("a", [])], axis, axis, title="t") == ""
    assert charts.heat(["a"], ["b"], {}, title="t") == ""


def test_charts_escape_names_and_stay_inside() -> None:
    marks = [Mark(x=value, title="<b>", href="a?b&c") for value in (1.0, 2.0, 99.0)]
    svg = charts.strips([Strip(label="<i>", marks=marks)], Axis(label="x", end=50.0), title='"<t>"')
    assert "<i>" not in svg
    assert "<b>" not in svg
    assert 'aria-label="&#34;&lt;t&gt;&#34;"' in svg
    assert 'role="group"' in svg
    assert 'role="img"' in charts.strips([Strip(label="a", marks=[Mark(x=1)])], Axis(label="x"), title="t")


def test_curves_are_told_apart_and_their_names_stay_inside() -> None:
    names = [f"tcp-over-quic-quinn+iw={number}" for number in range(charts.GROUPS + 1)]
    svg = charts.curves(
        [(name, [(0.0, 0.0), (1.0, 1.0)]) for name in names], Axis(label="x"), Axis(label="y"), title="t"
    )
    assert len(set(re.findall(r'class="(series g\d dash\d)"', svg))) == len(names)
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>tcp-', svg)
    assert len(set(places)) == len(names)
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    assert all(float(x) + 7 * len(names[0]) < width and float(y) < height for x, y in places)


def test_shapes_of_groups_differ() -> None:
    assert len({charts.shape_path(0, 0, group) for group in range(charts.GROUPS)}) == charts.GROUPS


def test_the_overview_counts_the_outcomes_of_each_case(tmp_path: Path) -> None:
    order = tuple(
        Job(server=server, client="a", case="handshake", iteration=1) for server in ("a", "b", "c", "d", "e", "f")
    )
    folder = RunFolder.create(tmp_path / "run", run("run", {"handshake": case("handshake", Kind.TEST_CASE)}, order))
    outcomes = (Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.FAILED, Outcome.ERROR)
    broken = Finding(code="13.2.3-x", requirement="", expected="", actual="", role="server")
    for job, outcome in zip(order, outcomes, strict=True):
        folder.save_result(replace(Result.of(job, outcome), violations=(broken,) if job.server == "a" else ()))
    context = overview.context(view_of(folder))
    ((counted, counts),) = context["test_counts"]
    marks = {server: cell.broken_rules for server, ((cell,),) in context["test_rows"]}
    assert marks == {"a": ("server 13.2.3-x",)} | dict.fromkeys(("b", "c", "d", "e", "f"), ())
    assert counted.name == "handshake"
    shown = [(name, number) for name, _, number in counts if number]
    assert shown == [("succeeded", 3), ("failed", 2), ("error", 1), ("broken", 1)]


def test_a_pair_tells_its_notes_and_what_the_public_runner_would_have_said(tmp_path: Path) -> None:
    job = Job(server="a", client="b", case="quick", iteration=1)
    folder = RunFolder.create(tmp_path / "run", run("run", {"quick": case("quick", Kind.TEST_CASE)}, (job,)))
    note = Finding(code="stream-limit-high", requirement="At most 1000.", expected="1000", actual="5000", role="server")
    public = PublicVerdict(outcome=Outcome.FAILED, why="the first stream limit is <b>5000</b>")
    folder.save_result(replace(Result.of(job, Outcome.SUCCEEDED), notes=(note,), public=public))
    render([folder], tmp_path / "site")
    page = next(path for path in (tmp_path / "site").rglob("*.html") if 'id="notes"' in path.read_text()).read_text()
    assert "stream-limit-high" in page
    assert re.search(r'<details id="public" open>.*verdict: different', page)
    assert "iteration 1: <b>failed</b>, here <b>succeeded</b>" in page
    assert "&lt;b&gt;5000" in page


HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\x9b31m\x00\x85\r\u202egnp.exe\u2066\u200f\u2028\ufeff\ud800 \\u001b \\\\u202e "
    "</script><script>alert(1)</script> <img src=x onerror=alert(1)> " + "x" * 5_000
)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_texts_of_endpoints_are_shown_without_what_they_command(tmp_path: Path, *, ascii_only: bool) -> None:
    jobs = tuple(Job(server="a", client="b", case="quick", iteration=number) for number in (1, 2))
    folder = RunFolder.create(tmp_path / "run", run("run", {"quick": case("quick", iterations=2)}, jobs))
    finding = Finding(code="rfc9000-10.2-x", requirement=HOSTILE, expected=HOSTILE, actual=HOSTILE, role="client")
    for job, outcome in zip(jobs, (Outcome.SUCCEEDED, Outcome.FAILED), strict=True):
        ended = Result.of(job, outcome) if outcome is Outcome.SUCCEEDED else Result.of(job, outcome, finding)
        folder.save_result(replace(ended, violations=(finding,), notes=(finding,)))
        drawn = stored(tmp_path / "series.json", limits=[[0, 1, HOSTILE.replace("\ud800", "")]])
        text = json.dumps(json.loads(drawn.read_text()), ensure_ascii=ascii_only)
        folder.artifacts(job).series.write_text(text, encoding="utf-8")
    render([folder], tmp_path / "site")
    names = (".html", ".xml", "series.js")
    written = [path for path in (tmp_path / "site").rglob("*") if path.name.endswith(names)]
    pages = {path: path.read_bytes().decode() for path in written}
    pages = {path: plotted(text) if path.suffix == ".js" else text for path, text in pages.items()}
    assert len([path for path in pages if path.name == "series.js"]) == 2
    scripts = [text for path, text in pages.items() if path.suffix == ".js"]
    for text in pages.values():
        assert not UNPRINTABLE.search(text)
        if text.startswith("<!"):
            assert "<script>alert" not in text
            assert "<img src=x" not in text
            scripts += re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text)
    texts = [json.dumps(json.loads(script), ensure_ascii=False) for script in scripts]
    assert not any(re.search(r"(?<!\\)(\\\\)*\\(u|b|f|r)|[\u202e\x9b\x85\u2028]", text) for text in texts)
    assert any("gnp.exe" in text and "\\\\u001b" in text for text in texts)


def test_broken_rules_stand_in_a_table_by_stack_and_on_the_pair_s_page(tmp_path: Path) -> None:
    job = Job(server="a", client="b", case="quick", iteration=1)
    over_link = replace(job, link="geo")
    cases = {
        "quick": case("quick", Kind.TEST_CASE),
        "quick@geo": case("quick@geo", case="quick"),
    }
    folder = RunFolder.create(tmp_path / "run", run("run", cases, (job, over_link)))
    broken = Finding(
        code="rfc9000-12.3-number-reused",
        requirement="A packet number is used once.",
        expected="the rule is kept",
        actual="number <7>",
        role="client",
        section="RFC 9000 §12.3",
        packets=(3, 9),
        vantage="client",
    )
    for each in (job, over_link):
        folder.save_result(replace(Result.of(each, Outcome.SUCCEEDED), violations=(broken,)))
    render([folder], tmp_path / "site")
    table = (tmp_path / "site" / "run" / "rules" / "index.html").read_text()
    assert re.search(r"<td>b</td><td>client</td><td>2</td>", table)
    assert "The peer discards the packet." in table
    hrefs = set(re.findall(r'href="../(a_b/[^"]+)"', table))
    assert len(hrefs) == 2
    for href in hrefs:
        assert (tmp_path / "site" / "run" / unquote(href)).is_file()
    assert "number &lt;7&gt;; packets 3, 9, in the capture of the client" in table
    assert "rfc9000-12.3-number-reused" in (tmp_path / "site" / "run" / "a_b" / "quick.html").read_text()


def test_the_overview_marks_where_the_public_runner_would_have_said_otherwise(tmp_path: Path) -> None:
    jobs = [Job(server=server, client="a", case="handshake", iteration=1) for server in ("a", "b", "c")]
    folder = RunFolder.create(
        tmp_path / "run", run("run", {"handshake": case("handshake", Kind.TEST_CASE)}, tuple(jobs))
    )
    text = (None, PublicVerdict(outcome=Outcome.SUCCEEDED), PublicVerdict(outcome=Outcome.FAILED, why="no file"))
    for job, public in zip(jobs, text, strict=True):
        folder.save_result(replace(Result.of(job, Outcome.SUCCEEDED), public=public))
    context = overview.context(view_of(folder))
    assert context["public_differs"] == 1
    assert {server: cell.public for server, ((cell,),) in context["test_rows"]} == {"a": None, "b": None, "c": text[2]}


@pytest.mark.parametrize(
    ("clock", "clocks", "told"),
    [
        ("real", {}, None),
        ("virtual", {}, "virtual: computing takes no time"),
        (
            "auto",
            {"sat": "real", "fast": "virtual"},
            "virtual for fast; real for sat. In virtual time computing takes no time",
        ),
    ],
)
def test_the_clock_of_a_run_is_on_its_page(
    tmp_path: Path, clock: str, clocks: dict[str, str], told: str | None
) -> None:
    folder = measured_run(tmp_path / "timed")
    folder.save_run(replace(folder.run, clock=clock, clocks=clocks))
    render([RunFolder.open(folder.path)], tmp_path / "site")
    page = next((tmp_path / "site").rglob("timed/index.html"), tmp_path / "site" / "index.html").read_text()
    facts = re.search(r"<dt>clock</dt><dd>(.*?)</dd>", page)
    assert (facts is None) is (told is None)
    assert told is None or (facts is not None and facts[1].startswith(told))


@pytest.mark.parametrize(("clock", "speed"), [("real", None), ("virtual", 42.5)])
def test_a_result_tells_its_clock_and_only_in_real_time_how_late_the_simulator_was(
    tmp_path: Path, clock: Literal["real", "virtual"], speed: float | None
) -> None:
    folder = measured_run(tmp_path / "timed")
    way = DirectionTruth(
        packets_in=9,
        packets_out=9,
        bytes_in=9000,
        bytes_out=9000,
        dropped_queue=0,
        dropped_loss=0,
        queue_max_packets=1,
        queue_mean_packets=0.1,
    )
    truth = LinkTruth(seed=1, forward=way, return_=way, lateness_p99=0.001, lateness_max=0.002)
    for result in folder.results().values():
        folder.save_result(replace(result, clock=clock, guest_speed=speed, truth=truth))
    render([RunFolder.open(folder.path)], tmp_path / "site")
    pages = [path.read_text() for path in (tmp_path / "site").rglob("*.html")]
    of_pair = next(page for page in pages if f"Clock: {clock}." in page)
    of_case = next(page for page in pages if "The simulator recorded these counts" in page)
    late = ["ateness was " in page for page in (of_pair, of_case)]
    fast = ["42.5 guest seconds per host second" in page for page in (of_pair, of_case)]
    assert (late, fast) == ([clock == "real"] * 2, [clock == "virtual"] * 2)
    console = Console(record=True, width=200)
    job = Job(server="a", client="b", case="sat", iteration=1)
    show_result(console, folder.results()[job], None, None, folder.artifacts(job))
    text = console.export_text()
    assert f"clock: {clock}" in text
    assert ("lateness p99 1.00 ms" in text, "42.5 guest seconds" in text) == (clock == "real", clock == "virtual")
