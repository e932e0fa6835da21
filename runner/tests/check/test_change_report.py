"""The report of two builds: verdict, summary, JUnit, JSON."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from runner.check.candidate import CellPlace, Problem
from runner.check.change import Change, ChangeReport
from runner.check.check import Verdict
from runner.model.stack import Role
from runner.plan import jobs
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder
from runner.tests.check.test_change import results
from runner.tests.records import select


def place(case: str, peer: str, role: Role = Role.SERVER) -> CellPlace:
    return CellPlace(case, role, peer)


def change(at: CellPlace, base: str, head: str) -> Change:
    def side(letters: str) -> tuple[object, ...]:
        mine, other = ("me", at.peer) if at.role is Role.SERVER else (at.peer, "me")
        return tuple(replace(one, server=mine, client=other, case=at.case) for one in results(letters))

    return Change(place=at, base=side(base), head=side(head))  # type: ignore[arg-type]


def report(tmp_path: Path, *changes: Change, problems: tuple[Problem, ...] = ()) -> ChangeReport:
    catalog = load_catalog()
    selection = select(catalog, servers=("quinn",), clients=("quinn",), cases=("handshake",))
    folders = {}
    for side in ("base", "head"):
        run = jobs.new_run(tmp_path / side, selection, seed=1)
        folders[side] = RunFolder.create(tmp_path / side, run)
    return ChangeReport(
        name="me",
        images={"base": "me:1", "head": "me:2"},
        image_ids={"base": "sha256:aa", "head": "sha256:bb"},
        problems=problems,
        changes={one.place: one for one in changes},
        folders=folders,
        path=tmp_path,
        clock="virtual",
        jobs=2,
        equal=1,
        seconds=3.0,
    )


SAME = change(place("handshake", "quinn"), "F", "F")
WORSE = change(place("retry", "quinn"), "SSSSS", "OOOOO")
OPEN = change(place("transfer", "quinn"), "S", "D")
FLAKY = change(place("ecn", "quinn"), "SSSSS", "FSSSS")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ((SAME, OPEN, FLAKY), Verdict.PASSED),
        ((SAME, WORSE), Verdict.FAILED),
        ((OPEN,), Verdict.INCONCLUSIVE),
        ((), Verdict.INCONCLUSIVE),
    ],
)
def test_only_what_got_worse_fails_the_check(tmp_path: Path, changes: tuple[Change, ...], verdict: Verdict) -> None:
    assert report(tmp_path, *changes).verdict is verdict


def test_a_breach_of_the_contract_that_head_has_alone_fails_the_check(tmp_path: Path) -> None:
    problem = Problem(code="not-root", what="It runs as 'me'.", fix="Remove USER.")
    made = report(tmp_path, SAME, problems=(problem,))
    assert made.verdict is Verdict.FAILED
    assert "not-root" in made.markdown()
    assert b'failures="1"' in made.junit()


def test_the_summary_has_cause_and_link_of_each_changed_cell(tmp_path: Path) -> None:
    made = replace(report(tmp_path, SAME, WORSE, OPEN, FLAKY), url="https://example.org/run/")
    text = made.markdown()
    assert "1 cell of 4 got worse" in text
    (row,) = (line for line in text.splitlines() if "🔴" in line)
    assert "`no-retry`" in row
    assert "| 5/5 | 0/5 |" in row
    assert "https://example.org/run/site/head/me_quinn/retry.html" in row
    assert "handshake as server with quinn" in text, "what fails with base too is named"
    assert made.title() == "me: 1 cell of 4 got worse"


def test_peers_that_show_the_same_share_a_row(tmp_path: Path) -> None:
    changes = [change(place("retry", f"peer{n}"), "SSSSS", "OOOOO") for n in range(12)]
    rows = [line for line in report(tmp_path, *changes).markdown().splitlines() if "🔴" in line]
    assert len(rows) == 1
    assert "and 4 more" in rows[0]
    assert "| 60/60 | 0/60 |" in rows[0]


def test_junit_and_json_tell_every_cell(tmp_path: Path) -> None:
    made = report(tmp_path, SAME, WORSE, OPEN, FLAKY)
    made.write()
    suites = {suite.get("name"): suite for suite in Xml.parse(tmp_path / "junit.xml").getroot()}
    server = suites["server"]
    assert (server.get("tests"), server.get("failures"), server.get("skipped")) == ("4", "1", "3")
    cells = json.loads((tmp_path / "changes.json").read_text())["cells"]
    assert [cell["state"] for cell in cells] == ["same", "worse", "open", "unconfirmed"]
    assert cells[1]["head"] == ["no-retry"] * 5
