"""The public runner's `result.json`: the fields that its page reads, in a form that its selectors can take."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lab.run_folders import rare_run, recorded_run, variants_run, vias_run
from runner.model.result import Outcome
from runner.site import render
from runner.site.exports import public_result
from runner.site.view import RunView
from runner.store.runs import RunFolder
from runner.tests.site.runs import two_protocols_run

PLAIN = re.compile(r"[A-Za-z0-9_-]+")  # characters that a class selector accepts without an escape


def view_of(folder: RunFolder) -> RunView:
    return RunView.all([folder])[0]


def test_the_public_format_goes_by_client_then_server(tmp_path: Path) -> None:
    document = json.loads(public_result(view_of(rare_run(tmp_path / "rare"))))
    assert (
        len(document["results"]) == len(document["measurements"]) == len(document["servers"]) * len(document["clients"])
    )
    assert (document["servers"], document["clients"]) == (["alpha", "b"], ["alpha", "b"])  # `b` is <b>&"'
    # alpha → alpha: one of three iterations succeeded, so the cell failed; its number stays in the details
    assert document["measurements"][0] == [
        {"abbr": "SAT", "name": "sat", "result": "failed", "details": "8000 (± 0) kbps"}
    ]
    # client alpha, server evil: unsupported; client evil, server evil: never run
    assert document["measurements"][1][0]["result"] == "unsupported"
    assert document["measurements"][3] == []
    assert document["results"][2] == [{"abbr": "HS", "name": "hs", "result": "failed"}]
    assert set(document["tests"]) == {"SAT", "HS"}
    assert document["tests"]["SAT"]["theoretical_max_value"] == 20_000


def test_what_the_harness_spoiled_is_not_told_to_the_public_runner_s_page(tmp_path: Path) -> None:
    folder = two_protocols_run(tmp_path / "run")
    for result in folder.results().values():
        folder.save_result(replace(result, outcome=Outcome.ERROR))
    assert json.loads(public_result(view_of(folder)))["measurements"] == [[], [], []]


@pytest.mark.parametrize("make", [vias_run, rare_run, recorded_run, two_protocols_run, variants_run])
def test_every_name_can_stand_in_a_selector_and_every_pair_is_there(tmp_path: Path, make: object) -> None:
    folder: RunFolder = make(tmp_path / "run")  # type: ignore[operator]
    document = json.loads(public_result(view_of(folder)))
    names = {*document["servers"], *document["clients"]}
    assert all(PLAIN.fullmatch(name) and name == name.lower() for name in names)
    assert (len(document["servers"]), len(document["clients"])) == (
        len(folder.run.servers),
        len(view_of(folder).clients),
    )
    assert len(set(document["servers"])) == len(document["servers"])
    assert set(document["urls"]) <= names
    letters = list(document["tests"])
    assert len({letter.lower() for letter in letters}) == len(letters) == len(folder.run.cases)
    assert all(map(PLAIN.fullmatch, letters))
    for key in ("results", "measurements"):
        assert len(document[key]) == len(document["servers"]) * len(document["clients"])
        for item in (item for pair in document[key] for item in pair):
            assert document["tests"][item["abbr"]]["name"] == item["name"]
            assert item["result"] in ("succeeded", "failed", "unsupported")
            if item["result"] == "succeeded" and item.get("details"):
                assert re.fullmatch(r"\d+ \(± \d+\) kbps", item["details"])


def test_a_variant_s_cell_is_found_under_its_plain_name(tmp_path: Path) -> None:
    render([variants_run(tmp_path / "run")], tmp_path / "site")
    document = json.loads((tmp_path / "site/latest/result.json").read_text())
    assert document["servers"] == ["quinn", "quinn-iw-32", "quic-go-iw-10"]
    for place, server in enumerate(document["servers"]):
        (item,) = document["measurements"][place]
        folder = tmp_path / "site" / document["log_dir"] / f"{server}_c" / item["name"]
        assert folder.is_dir()
        if server != "quinn":
            (href,) = re.findall(r'url=([^"]+)', (folder / "index.html").read_text())
            assert (folder / href.replace("%2B", "+").replace("%3D", "=")).is_file()


def test_workloads_over_several_links_have_letters_of_their_own(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "run")
    cases = dict(folder.run.cases)
    first = next(iter(cases.values()))
    cases["again"] = replace(first, name="again", case="again", link=replace(first.link, name="leo"))
    folder.save_run(replace(folder.run, cases=cases))
    tests = json.loads(public_result(view_of(folder)))["tests"]
    assert {first.name, "again"} <= set(tests)
    assert len({one["name"] for one in tests.values()}) == len(cases)
