"""Runs that were made with schema 1 (pairs, paths, real links) are read, judged, drawn and compared as before."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from runner.compare import compare
from runner.compare.history import history
from runner.judge.judges import judge_job
from runner.model.result import Outcome
from runner.model.run import Job
from runner.plan.catalog import declaration, load_catalog
from runner.site import render
from runner.store.runs import RunFolder, load_evidence
from runner.tests.records import RECORDINGS

OLD = RECORDINGS / "schema_1"
RUNS = ("pairs", "pairs-with-variant", "paths", "paths-with-pages", "real", "real-own")
JUDGED = [path.parent.parent for path in sorted(OLD.glob("*/*_*/*/*/sim/left.pcap*"))]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies: a judge writes tables beside the captures."""
    copy = tmp_path_factory.mktemp("old") / "runs"
    shutil.copytree(OLD, copy)
    return copy


def _raw(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document


@pytest.mark.parametrize("name", RUNS)
def test_every_job_is_found_with_what_was_said_of_it(old: Path, name: str) -> None:
    folder = RunFolder.open(old / name)
    raw = {path.parent: _raw(path) for path in (old / name).glob("*_*/*/*/result.json")}
    assert raw and {document["schema"] for document in raw.values()} == {1}
    results = folder.results()
    assert {folder.artifacts(job).folder for job in results} == set(raw)
    for job, result in results.items():
        before = raw[folder.artifacts(job).folder]
        assert (result.outcome.value, result.iteration) == (before["outcome"], before["iteration"])
        assert (result.sample and result.sample.ttlb) == (before["sample"] and before["sample"]["ttlb"])
        assert folder.run.case(job).file_sizes
        assert load_evidence(folder.artifacts(job)) is not None or result.outcome is Outcome.UNSUPPORTED


def test_a_path_is_the_via_and_a_workload_the_case(old: Path) -> None:
    jobs = set(RunFolder.open(old / "paths").results())
    lossy = {"case": "download-5kB", "link": "geo+loss=0.01", "iteration": 1}
    assert Job(server="origin", client="downloader", via="qpep+iw=32", **lossy) in jobs  # type: ignore[arg-type]
    assert Job(server="origin", client="downloader", via="plain", case="download-5kB+warm", iteration=1) in jobs
    (page, *_) = sorted(RunFolder.open(old / "paths-with-pages").results())
    assert (page.client, page.case, page.link) == ("browser", "page", "leo")
    run = RunFolder.open(old / "paths").run
    assert (run.clients, run.servers) == (("downloader",), ("origin",))
    assert run.middleboxes["qpep"].encrypts and run.middleboxes["qpep+iw=32"].variant_of == "qpep"
    link = run.cases["download-5kB"].link
    assert ([one.name for one in link.segments], link.rtt) == (["satellite", "ground"], 0.58)


def test_a_case_keeps_its_real_link(old: Path) -> None:
    run = RunFolder.open(old / "real").run
    records = [record.real_link for record in run.cases.values()]
    assert [one.name for one in records if one is not None] == ["lab", "lab"]
    assert all("@" not in job.case_link for job in run.order)


@pytest.mark.parametrize("where", JUDGED, ids=lambda path: path.relative_to(OLD).as_posix())
def test_a_job_is_judged_as_it_was(old: Path, where: Path) -> None:
    name, *rest = where.relative_to(OLD).parts
    folder = RunFolder.open(old / name)
    job = next(job for job in folder.results() if folder.artifacts(job).folder == old / name / Path(*rest))
    record = folder.run.case(job)
    case = declaration(load_catalog().cases, record)
    judged = judge_job(job, folder.artifacts(job), case, record)
    before = _raw(where / "result.json")
    assert judged.outcome.value == before["outcome"], judged.findings
    assert [one.code for one in judged.findings] == [one["code"] for one in before["findings"]]
    assert judged.sample is not None and judged.sample.ttlb == pytest.approx(before["sample"]["ttlb"])
    if before["crossing"] is not None:
        assert judged.crossing is not None
        assert judged.crossing.outer_bytes == before["crossing"]["outer_bytes"]
        assert judged.crossing.visible == tuple(
            sight["what"] for sight in before["crossing"]["sights"] if sight["visible"]
        )
    folder.save_result(judged)
    assert folder.result(job) == judged


def test_they_are_drawn_and_compared(old: Path, tmp_path: Path) -> None:
    folders = [RunFolder.open(old / name) for name in RUNS]
    render(folders, tmp_path / "site")
    for name in RUNS:
        assert (tmp_path / "site" / name / "index.html").is_file()
    assert "download-5kB" in (tmp_path / "site" / "paths" / "vias.html").read_text()
    for name in ("pairs", "paths", "real"):
        comparison = compare(RunFolder.open(old / name), RunFolder.open(old / name))
        assert all(one.before is one.after for one in comparison.verdicts)
    assert history(folders[:2]).trends
