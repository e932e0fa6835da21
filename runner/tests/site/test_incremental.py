"""Only what changed is drawn again, and the outcome is that of a drawing from nothing."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lab.run_folders import rare_run, recorded_run
from runner.errors import UsageError
from runner.model.run import Job
from runner.site import render
from runner.store.runs import RunFolder
from runner.tests.site.runs import two_protocols_run

JOB = Job(server="quinn", client="quinn", case="goodput", iteration=1)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    return [recorded_run(tmp_path / "logs" / "recorded"), rare_run(tmp_path / "logs" / "rare")]


def state(site: Path) -> dict[str, int]:
    """When each file was written; links aside."""
    outcome = {}
    for folder, folders, files in os.walk(site):
        folders[:] = [name for name in folders if not (Path(folder) / name).is_symlink()]
        for name in files:
            path = Path(folder) / name
            outcome[path.relative_to(site).as_posix()] = path.stat().st_mtime_ns
    return outcome


def content(site: Path) -> dict[str, bytes]:
    return {name: (site / name).read_bytes() for name in state(site)}


def test_nothing_is_drawn_twice(runs: list[RunFolder], tmp_path: Path) -> None:
    render(runs, tmp_path / "site")
    before = state(tmp_path / "site")
    render(runs, tmp_path / "site")
    after = state(tmp_path / "site")
    assert {name for name in after if after[name] != before.get(name)} == {".bentpipe-site"}
    assert after.keys() == before.keys()


def test_a_changed_job_draws_its_cell_and_its_run(runs: list[RunFolder], tmp_path: Path) -> None:
    render(runs, tmp_path / "site")
    before = state(tmp_path / "site")
    result = runs[0].result(JOB)
    assert result is not None
    runs[0].save_result(replace(result, wall_s=result.wall_s + 100))
    render(runs, tmp_path / "site")
    after = state(tmp_path / "site")
    changed = {name for name in after if after[name] != before.get(name)}
    assert "recorded/quinn_quinn/goodput.html" in changed
    assert "recorded/downloads/run.json.gz" in changed
    assert not [name for name in changed if name.startswith(("rare/", "static/plotly", "recorded/aioquic_aioquic"))]
    render(runs, tmp_path / "anew")
    assert content(tmp_path / "anew") == content(tmp_path / "site")


def test_what_is_no_longer_there_goes(runs: list[RunFolder], tmp_path: Path) -> None:
    site = tmp_path / "site"
    render(runs, site)
    shutil.rmtree(runs[0].path / "quinn_quinn" / "goodput")
    runs[0].save_run(replace(runs[0].run, order=tuple(job for job in runs[0].run.order if job != JOB)))
    (site / "recorded" / "quinn_quinn" / "stale.html").write_text("old")
    (site / "stale").mkdir()
    render(runs[:1], site)
    assert not (site / "rare").exists()
    assert not (site / "stale").exists()
    assert not (site / "recorded" / "quinn_quinn" / "stale.html").exists()
    assert not (site / "recorded" / "quinn_quinn" / "goodput").exists()
    assert not (site / "recorded" / "quinn_quinn" / "goodput.html").exists()
    assert (site / "recorded" / "quinn_quinn" / "handshake.html").exists()
    render(runs[:1], tmp_path / "anew")
    assert content(tmp_path / "anew") == content(site)


def test_a_new_run_reads_no_results_but_its_own_and_those_of_the_one_before(tmp_path: Path) -> None:
    nights = [two_protocols_run(tmp_path / "logs" / f"night-{number}") for number in range(4)]
    for number, night in enumerate(nights):
        night.save_run(replace(night.run, started_unix_s=1.8e9 + 86400 * number))
    render(nights[:3], tmp_path / "site")
    for path in nights[0].path.glob("*/*/*/result.json"):
        about = path.stat()
        path.write_bytes(b"{" * about.st_size)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    render(nights, tmp_path / "site")
    history = (tmp_path / "site/night-3/implementations/s.html").read_text().partition("<h2>History")[2]
    assert [f"night-{number}, sat: 0.80" in history for number in range(4)] == [True] * 4
    assert "night-0, s: 10.00" in (tmp_path / "site/night-3/figures/index.html").read_text()
    with pytest.raises(UsageError):
        render(nights, tmp_path / "anew")


def test_an_interrupted_drawing_is_begun_anew(
    runs: list[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    render(runs, site)
    result = runs[0].result(JOB)
    assert result is not None
    runs[0].save_result(replace(result, wall_s=1000.0))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("runner.site.writer.Writer.tidy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            render(runs, site)
    runs[0].save_result(result)
    render(runs, site)
    render(runs, tmp_path / "anew")
    assert content(tmp_path / "anew") == content(site)


def test_the_front_page_is_about_the_newest_runs_whichever_those_are(runs: list[RunFolder], tmp_path: Path) -> None:
    site = tmp_path / "site"
    newest, older = sorted(runs, key=lambda folder: -folder.run.started_unix_s)
    for some in ([newest, older], [older], [newest, older]):
        render(some, site)
        assert f'href="{some[0].name}/index.html"' in (site / "index.html").read_text()
        anew = tmp_path / f"anew-{len(some)}"
        render(some, anew)
        assert content(anew) == content(site)


def test_a_killed_drawing_leaves_nothing_for_ever(runs: list[RunFolder], tmp_path: Path) -> None:
    dead, living, foreign = (tmp_path / name for name in (".site.4194305.tmp", ".site.1.tmp", ".site.mine.tmp"))
    for folder in (dead, living, foreign):
        folder.mkdir()
        (folder / "index.html").write_text("half")
    render(runs[:1], tmp_path / "site")
    assert not dead.exists(), "no process has a number above the kernel's limit"
    assert living.exists()
    assert foreign.exists()
