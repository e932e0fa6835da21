"""The whole site, drawn from recordings of real pairs and from what is rare."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from lab.run_folders import STACKS, rare_run, recorded_run, variants_run
from runner.errors import UsageError
from runner.model.result import Outcome
from runner.site import render
from runner.site.writer import single
from runner.store.runs import RunFolder
from runner.tests.site.runs import plotted, two_protocols_run

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """What a test wants to know of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.inline: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == [], f"{path}: {self.open} never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "a":
            self.links.append(known.get("href") or "")
        self.loaded += [known[name] or "" for name in ("src",) if name in known]
        if tag == "link":
            self.loaded.append(known.get("href") or "")
        if "id" in known:
            self.ids.append(known["id"] or "")
        if tag == "script" and "src" not in known:
            self.inline.append(known.get("type") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunFolder]:
    logs = tmp_path_factory.mktemp("tree") / "logs"
    return recorded_run(logs / "recorded"), rare_run(logs / "rare & old")


@pytest.fixture(scope="module")
def site(runs: tuple[RunFolder, RunFolder]) -> Path:
    target = runs[0].path.parents[1] / "web" / "site"
    render([runs[1], runs[0]], target)
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    outcome = [path for path in site.rglob("*.html") if "artifacts" not in path.parts]
    return {path: Page(path) for path in outcome}


def test_there_is_a_page_for_each_run_and_each_cell(site: Path, pages: dict[Path, Page]) -> None:
    places = ("implementations", "scenarios", "figures", "downloads", "rules")
    assert {path.relative_to(site).as_posix() for path in pages if path.name == "index.html"} == {
        "index.html",
        *(f"latest/{stack}/index.html" for stack in STACKS),
        *(f"{run}/index.html" for run in ("recorded", "rare & old")),
        *(f"{run}/{place}/index.html" for run in ("recorded", "rare & old") for place in places),
        # where the public runner's page looks for cells whose stacks it has to call otherwise
        *(f"rare & old/{pair}/{case}/index.html" for pair in ("alpha_b", "b_alpha") for case in ("hs", "sat")),
    }
    assert sum(path.name == "goodput.html" and path.parent.name != "scenarios" for path in pages) == 3
    assert "recorded" in pages[site / "index.html"].text  # the newest run comes first


def test_every_link_leads_to_a_file(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme == "https" and link in page.links:
                continue
            assert not parts.scheme, f"{path} refers to {link}"
            assert not parts.netloc, f"{path} refers to {link}"
            target = path.parent / unquote(parts.path) if parts.path else path
            assert target.exists(), f"{path}: {link} leads nowhere"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{path}: {link} leads nowhere"


def test_one_file_has_the_pages_of_a_run_and_loads_nothing(
    runs: tuple[RunFolder, RunFolder], site: Path, pages: dict[Path, Page], tmp_path: Path
) -> None:
    for run in runs:
        path = tmp_path / "single.html"
        path.write_bytes(single(site / run.name, run.run))
        page = Page(path)
        assert page.loaded == []
        assert len(page.ids) == len(set(page.ids))
        inside = [unquote(link.removeprefix("#")) for link in page.links if link.startswith("#")]
        assert {"implementations-index", "scenarios-index", "rules-index"} <= set(inside) <= set(page.ids)
        assert {urlsplit(link).scheme for link in page.links if link and not link.startswith("#")} <= {"https"}
        for place in ("index.html", "implementations/index.html", "rules/index.html"):
            headline = pages[site / run.name / place].text.partition("</h1>")[0]
            assert headline.split()[-1] in page.text


def test_nothing_is_loaded_from_outside(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert not [source for source in page.loaded if urlsplit(source).netloc], path
        assert set(page.inline) <= {"application/json"}, path
    for style in (site / "static").glob("*.css"):
        assert "url(" not in style.read_text()
        assert "@import" not in style.read_text()


def test_ids_are_unique(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), path


def test_what_endpoints_wrote_is_text_and_never_markup(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert "<script>alert" not in path.read_text(), path
        assert "<b>&" not in path.read_text(), path
        assert "'undefined" not in page.text, path
    failed = pages[site / "rare & old" / "alpha_alpha" / "sat.html"]
    assert "<script>alert(1)</script>" in failed.text
    assert "</pre><script>alert(2)</script>" in failed.text
    assert "<b>&\"'" in pages[site / "rare & old" / "index.html"].text


def test_cells_say_what_happened(site: Path, pages: dict[Path, Page]) -> None:
    text = re.sub(r"\s+", " ", pages[site / "rare & old" / "index.html"].text)
    assert "1.40 s" in text
    assert "1/3 ✗ ?" in text
    assert "✗ timeout 0/3" in text
    assert "– unsupported" in text
    assert "not run" in text
    assert "queue 125 packets" in text


def test_cells_over_http3_say_so_and_have_means_of_their_own(tmp_path: Path) -> None:
    render([two_protocols_run(tmp_path / "run")], tmp_path / "site")
    html = (tmp_path / "site/run/index.html").read_text()
    assert html.count('data-label="h3"') == 2
    assert html.count('data-label=""') == 1
    text = re.sub(r"\s+", " ", Page(tmp_path / "site/run/index.html").text)
    assert "0.80 sh3 1.50 s" in text.replace(
        "\u202f", " "
    )  # the mean of the row: 0.8 over HTTP/0.9, (2 + 1) / 2 over HTTP/3
    assert "The numbers of such a cell can't be compared with those of cells without the label" in text
    assert "Over HTTP/3" in Page(tmp_path / "site/run/s_web/sat.html").text
    assert "Over HTTP/3" not in Page(tmp_path / "site/run/s_old/sat.html").text.split("Numbers")[0]


def test_variants_say_what_they_ask_and_what_was_not_applied(tmp_path: Path) -> None:
    render([variants_run(tmp_path / "run")], tmp_path / "site")
    page = Page(tmp_path / "site/run/index.html")
    html = (tmp_path / "site/run/index.html").read_text()
    assert '<th scope="row">quinn <small class="parameter">IW=32</small></th>' in html
    cells = html[html.index("<tbody>") : html.index("</tbody>")]
    assert cells.count("server: IW is not 10") == 1
    assert "IW is not 32" not in html
    assert "requested IW=10, first flight 3" in html
    assert "32\u00a0packets (requested)" in page.text
    good, bad = (
        re.sub(r"\s+", " ", Page(tmp_path / f"site/run/{name}_c/goodput.html").text)
        for name in ("quinn+iw=32", "quic-go+iw=10")
    )
    assert "Requested and applied parameters" in good
    assert "✗ not applied" not in good
    assert "✗ not applied server: requested IW=10, first flight 3" in bad


def test_without_http3_the_page_does_not_speak_of_it(site: Path, pages: dict[Path, Page]) -> None:
    assert "numbers of such a cell can't be compared" not in pages[site / "recorded" / "index.html"].text


def test_numbers_of_a_real_pair_are_those_of_its_result(
    site: Path, pages: dict[Path, Page], runs: tuple[RunFolder, RunFolder]
) -> None:
    (sample,) = [one.sample for job, one in runs[0].results().items() if str(job) == "quinn_quinn/goodput/1"]
    assert sample is not None
    assert sample.goodput is not None
    assert sample.ttfb is not None
    for path in (site / "recorded" / "index.html", site / "recorded" / "quinn_quinn" / "goodput.html"):
        assert f"{sample.goodput / 1e6:.2f}" in pages[path].text
    assert f"{sample.ttfb * 1e3:.1f}" in pages[site / "recorded" / "quinn_quinn" / "goodput.html"].text


def test_without_scripts_there_is_a_drawing_of_the_median_iteration(
    site: Path, runs: tuple[RunFolder, RunFolder]
) -> None:
    measured = [item for job, item in runs[0].results().items() if job.case == "goodput"]
    good = [item for item in measured if item.outcome is Outcome.SUCCEEDED]
    assert good
    assert (site / "recorded" / "index.html").read_text().count('<svg class="spark"') == len(good)
    for item in measured:
        html = (site / f"recorded/{item.server}_{item.client}/goodput.html").read_text()
        assert html.count('<svg class="offset"') == 1


def test_series_are_scripts_with_the_job_s_frames(site: Path, runs: tuple[RunFolder, RunFolder]) -> None:
    script = (site / "recorded/quinn_quinn/goodput/1/series.js").read_text()
    assert script.startswith('bentpipe.series(1,"')
    assert json.loads(plotted(script)) == json.loads((runs[0].path / "quinn_quinn/goodput/1/series.json").read_text())


def test_small_files_are_copied_and_larger_ones_are_linked(site: Path, runs: tuple[RunFolder, RunFolder]) -> None:
    folder = site / "recorded/quinn_quinn/goodput/1"
    assert not (folder / "result.json").is_symlink()
    assert (folder / "result.json").read_bytes() == (runs[0].path / "quinn_quinn/goodput/1/result.json").read_bytes()
    (link,) = (folder / "artifacts/tables/client").glob("datagrams.parquet")
    assert not link.readlink().is_absolute()
    assert link.samefile(runs[0].path / "quinn_quinn/goodput/1/tables/client/datagrams.parquet")
    assert not (folder / "artifacts").is_symlink(), "what else lies in a job's folder is no part of the site"


def test_a_link_that_an_endpoint_made_is_not_followed(tmp_path: Path) -> None:
    folder = rare_run(tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    (folder.path / "alpha_alpha/sat/1/output.log").symlink_to(tmp_path / "secret")
    render([folder], tmp_path / "site")
    assert not (tmp_path / "site/run/alpha_alpha/sat/1/output.log").exists()


def test_a_site_is_replaced_whole_and_nothing_else_is(tmp_path: Path, runs: tuple[RunFolder, RunFolder]) -> None:
    target = tmp_path / "site"
    render([runs[1]], target)
    (target / "stale.html").write_text("old")
    render([runs[1]], target)
    assert not (target / "stale.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="not a site of bentpipe"):
        render([runs[1]], tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_two_runs_of_one_name_are_refused(tmp_path: Path, runs: tuple[RunFolder, RunFolder]) -> None:
    with pytest.raises(UsageError, match="recorded"):
        render([runs[0], runs[0]], tmp_path / "site")


def test_a_target_that_cannot_be_written_is_one_sentence(tmp_path: Path, runs: tuple[RunFolder, RunFolder]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        render([runs[1]], tmp_path / "file" / "site")
