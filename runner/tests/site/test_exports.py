"""What other programs read: the public runner's format, our JSON, CSV, Parquet, badges, the feed, standalone SVG."""

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from lab.run_folders import case, measured, rare_run, recorded_run, run
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.site import render
from runner.site.exports import as_csv, badge, run_document_schema
from runner.store.runs import RunFolder

ATOM = "{http://www.w3.org/2005/Atom}"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("logs")
    later = recorded_run(logs / "recorded")
    earlier = RunFolder.create(logs / "earlier", replace(later.run, started_unix_s=later.run.started_unix_s - 1))
    for job, result in later.results().items():
        bad = job.case == "handshake" and job.server == "quinn"
        earlier.save_result(replace(result, outcome=Outcome.FAILED) if bad else result)
    render([later, earlier, rare_run(logs / "rare")], logs / "site")
    return logs / "site"


def test_all_files_of_the_downloads_can_be_read(site: Path) -> None:
    folder = site / "recorded" / "downloads"
    document = json.loads(gzip.decompress((folder / "run.json.gz").read_bytes()))
    assert (
        set(document) == {"schema", "run", "cells", "results"} == set(json.loads(run_document_schema())["properties"])
    )
    rows = list(csv.DictReader(io.StringIO((folder / "jobs.csv").read_text())))
    assert len(rows) == len(document["results"]) == pq.read_table(folder / "jobs.parquet").num_rows
    by_name = {(row["server"], row["client"], row["case"]): row for row in rows}
    for result in document["results"]:
        row = by_name[result["server"], result["client"], result["case"]]
        if result["sample"] and result["sample"]["goodput"]:
            assert float(row["goodput"]) == result["sample"]["goodput"]
    cells = list(csv.DictReader(io.StringIO((folder / "cells.csv").read_text())))
    assert {row["metric"] for row in cells} >= {"goodput", "efficiency", "ttlb"}


def test_two_modes_are_in_our_json_and_in_the_tables(tmp_path: Path) -> None:
    times = (4.1, 8.2, 8.0, 4.0, 8.1, 4.05, 8.3, 8.2)
    jobs = tuple(Job(server="s", client=name, case="sat", iteration=n) for name in ("two", "one") for n in range(1, 9))
    folder = RunFolder.create(tmp_path / "run", run("run", {"sat": case("sat", iterations=8)}, jobs))
    for job in jobs:
        time = times[job.iteration - 1] if job.client == "two" else 8 + job.iteration / 1e6
        result = Result(
            server=job.server, client=job.client, case=job.case, iteration=job.iteration, outcome=Outcome.SUCCEEDED
        )
        folder.save_result(replace(result, sample=measured(8e6, ttlb=time)))
    render([folder], tmp_path / "site")
    downloads = tmp_path / "site/run/downloads"
    document = json.loads(gzip.decompress((downloads / "run.json.gz").read_bytes()))
    outcome = {item["client"]: item["modes"] for item in document["cells"]}
    assert outcome["one"] is None
    assert (outcome["two"]["lower"], outcome["two"]["lower_median"]) == (3, 4.05)
    assert (outcome["two"]["upper"], outcome["two"]["upper_median"]) == (5, 8.2)
    schema = json.loads((downloads / "run.schema.json").read_text())["$defs"]
    assert set(schema["CellRecord"]["properties"]) == set(document["cells"][0])
    assert set(schema["Modes"]["properties"]) == set(outcome["two"])
    (row,) = (
        item
        for item in pq.read_table(downloads / "cells.parquet").to_pylist()
        if (item["client"], item["metric"]) == ("two", "ttlb")
    )
    assert (row["lower_n"], row["upper_median"]) == (3, 8.2)
    page = (tmp_path / "site/run/index.html").read_text()
    assert page.count(">two modes<") == 2  # in the cell, and in the text that explains the cells


def test_half_a_character_spoils_no_file(tmp_path: Path) -> None:
    folder = rare_run(tmp_path / "rare")
    for result in folder.results().values():
        folder.save_result(replace(result, findings=tuple(replace(one, actual="\ud800") for one in result.findings)))
    render([folder], tmp_path / "site")
    document = json.loads(gzip.decompress((tmp_path / "site/rare/downloads/run.json.gz").read_bytes()))
    assert any(one["actual"] == "\ud800" for result in document["results"] for one in result["findings"])


def test_without_rows_a_table_is_empty() -> None:
    assert as_csv([]) == b""


def test_a_spreadsheet_takes_no_text_of_an_endpoint_for_a_formula() -> None:
    rows: list[dict[str, object]] = [{"finding": '=HYPERLINK("evil")', "shift": -1.5}, {"finding": "@sum", "shift": 2}]
    assert as_csv(rows).decode().splitlines() == ["finding,shift", '"\'=HYPERLINK(""evil"")",-1.5', "'@sum,2"]


def test_the_feed_has_an_entry_per_run_and_what_changed(site: Path) -> None:
    feed = ElementTree.parse(site / "atom.xml").getroot()
    entries = feed.findall(f"{ATOM}entry")
    assert len(entries) == 3
    ids = [entry.findtext(f"{ATOM}id") for entry in entries]
    assert len(set(ids)) == 3
    first = entries[0]
    assert first.findtext(f"{ATOM}title") == "recorded: 1 better"
    assert "earlier → recorded" in (first.findtext(f"{ATOM}summary") or "")
    link = first.find(f"{ATOM}link")
    assert link is not None
    assert (site / link.get("href", "")).is_file()
    assert json.loads((site / "logs.json").read_text())[-1] == "recorded"


def test_badges_say_the_same_in_words_and_colour() -> None:
    root = ElementTree.fromstring(badge("a <b> server", '"1" of 2', good=False))
    assert root.get("aria-label") == 'a <b> server: "1" of 2'
    assert [text.text for text in root.iter(f"{SVG}text")] == ["a <b> server", '"1" of 2']
    assert badge("a", "b", good=True) != badge("a", "b", good=False)


def test_there_are_badges_of_the_run_and_of_the_newest(site: Path) -> None:
    assert (site / "recorded/badges/quinn-server-tests.svg").is_file()
    assert (site / "badges/quinn-server-tests.svg").read_bytes() == (
        site / "recorded/badges/quinn-server-tests.svg"
    ).read_bytes()


def test_figures_stand_alone(site: Path) -> None:
    drawn = list((site / "recorded/figures").glob("*.svg"))
    assert {path.stem.split("-")[1] for path in drawn} >= {"1", "2", "3", "4", "7"}
    for path in drawn:
        text = path.read_text()
        ElementTree.fromstring(text)
        assert "var(" not in text, path
        assert "light-dark" not in text, path
        assert "<a " not in text, path
    rows = list(csv.DictReader(io.StringIO((site / "recorded/figures/5-7.csv").read_text())))
    assert {row["vantage"] for row in rows} == {"client", "server"}
    tables = {path.stem: path for path in (site / "recorded/figures").glob("*.csv")}
    assert tables
    for name, path in tables.items():
        table = pq.read_table(path.with_suffix(".parquet"))
        assert table.num_rows == len(list(csv.DictReader(io.StringIO(path.read_text())))), name
