"""The page of middleboxes, from results alone."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from lab.run_folders import VIAS, vias_run
from runner.model.result import Outcome
from runner.site import render
from runner.site.pages import vias
from runner.site.pages.vias import rows_of
from runner.site.view import RunView
from runner.store.runs import RunFolder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    render([vias_run(folder / "night")], folder / "site")
    return folder / "site" / "night"


@pytest.fixture(scope="module")
def page(site: Path) -> str:
    return (site / "vias.html").read_text()


def _rows(page: str, section: str) -> list[list[str]]:
    inside = page.split(f'id="{section}"')[1].split("</section>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", inside, re.DOTALL)
    match = (re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.DOTALL) for row in rows)
    return [[" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in row] for row in match]


def test_the_winner_stands_with_its_margin(page: str) -> None:
    header, *rows = _rows(page, "downloads")
    assert header == ["case", "link", *VIAS, "ahead", "margin"]
    small = next(row for row in rows if row[0].startswith("download-500kB"))
    assert small[5] == "pep-split"
    assert small[6] == "25 % 24 to 25 before plain, q 0.029"
    assert small[4].startswith("▲ 3.18") and small[4].endswith("4/4")


def test_what_is_not_carried_is_said(page: str) -> None:
    h3 = next(row for row in _rows(page, "downloads") if row[0].startswith("download-h3"))
    assert h3[4] == "not carried"


def test_a_load_that_failed_counts_as_an_attempt(page: str) -> None:
    row = next(row for row in _rows(page, "pages") if row[0].startswith("page"))
    assert row[2].endswith("3/4")
    assert "A curve ends below 1" in page
    assert next(row[3].split()[-1] for row in _rows(page, "pages") if row[0] == "plain") == "3"


def test_every_path_stands_against_the_others_by_time(page: str) -> None:
    tables = page.split('id="against"')[1].split("</section>", maxsplit=1)[0].split("<details")[1:]
    assert [re.findall(r"against <b>(.*?)</b>", table) for table in tables] == [["plain"], ["openvpn"], ["pep-split"]]
    header, *rows = _rows(f'id="x"{tables[0]}</section>', "x")
    assert header == ["case", "link", "openvpn", "pep-split"]
    small = next(row for row in rows if row[0] == "download-500kB")
    assert small[3].startswith("−25 % −")
    assert re.search(r"% [−+]\d+ to [−+]\d+$", small[2])


def test_what_a_spoiled_job_showed_says_nothing_of_the_middlebox(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "run")
    leaking = next(one for one in folder.results().values() if one.via == "openvpn" and one.crossing is not None)
    sights = tuple(replace(one, visible=True) for one in leaking.crossing.sights)  # type: ignore[union-attr]
    shown = replace(leaking, crossing=replace(leaking.crossing, sights=sights))  # type: ignore[type-var]
    for outcome, sees in ((Outcome.ERROR, "○ nothing"), (Outcome.FAILED, "● 2 of 2 kinds of data")):
        folder.save_result(replace(shown, outcome=outcome))
        render([folder], tmp_path / "site")
        last = _rows((tmp_path / "site/run/vias.html").read_text(), "downloads")[-1]
        assert (last[0], last[3]) == ("an eavesdropper sees", sees)


def test_who_lost_every_load_has_a_curve_at_zero(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "run")
    for result in folder.results().values():
        if result.via == "plain" and result.outcome is Outcome.SUCCEEDED:
            folder.save_result(replace(result, outcome=Outcome.FAILED))
    render([folder], tmp_path / "site")
    lost = (tmp_path / "site/run/vias.html").read_text()
    chart = lost.split("Distribution of the page load time")[1].split("</figure>", maxsplit=1)[0]
    assert ">plain</text>" in chart
    assert "mostly failed" in lost and all(row[5] != "plain" for row in _rows(lost, "downloads")[1:-1])


def test_what_the_harness_spoiled_is_no_load_that_was_lost(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "run")
    for result in folder.results().values():
        if result.outcome is Outcome.FAILED:
            folder.save_result(replace(result, outcome=Outcome.ERROR))
    render([folder], tmp_path / "site")
    spoiled = (tmp_path / "site/run/vias.html").read_text()
    assert next(row[2] for row in _rows(spoiled, "pages") if row[0].startswith("page")).endswith("3/3 ?")


def test_a_sweep_of_losses_is_one_link_and_in_order(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "run", losses=("0,0.1,0.00001,0.02",))
    assert _sentences(folder)[1].startswith("Middleboxes with the shortest median time: over geo, pep-split in ")
    render([folder], tmp_path / "site")
    rows = _rows((tmp_path / "site/run/index.html").read_text(), "winners")[1:]
    assert list(dict.fromkeys(row[0] for row in rows)) == [
        "geo",
        *(f"geo+loss={loss}" for loss in ("1e-05", 0.02, 0.1)),
    ]


def test_the_eavesdropper_stands_beside_the_numbers(page: str) -> None:
    last = next(row for row in _rows(page, "downloads") if row[0] == "an eavesdropper sees")
    assert last[2:5] == ["● 2 of 2 kinds of data", "○ nothing", "● 2 of 2 kinds of data"]
    assert ["openvpn", "in the clear", "○ hidden", "○ hidden", "12"] in _rows(page, "eavesdropper")


def test_goodput_by_size_has_a_line_for_each_middlebox(page: str) -> None:
    sizes = page.split('id="sizes"')[1].split("</section>", maxsplit=1)[0]
    assert sizes.count('class="series g') >= 3
    assert all(f">{path}</text>" in sizes for path in VIAS)


def test_a_sweep_of_one_parameter_is_a_curve(tmp_path: Path) -> None:
    swept = ("pep-split:IW=30/1/100,CCA=bbr", "pep-split:IW=10/32")
    render([vias_run(tmp_path / "night", variants=swept)], tmp_path / "site")
    page = (tmp_path / "site/night/vias.html").read_text()
    drawn = page.split('id="parameters"')[1].split("</section>", maxsplit=1)[0]
    captions = re.findall("<figcaption>(.*?):", drawn)
    assert captions == ["pep-split by IW, CCA=bbr"] * 2  # downloads, page loads. Two values of IW give no curve
    for packets in (1, 30, 100):
        assert f"pep-split+cca=bbr+iw={packets}: median" in drawn
    assert "page load time (s)" in drawn
    assert 'id="parameters"' not in (_page(tmp_path / "other", ())), "no sweep, no chart"


def _page(tree: Path, losses: tuple[str, ...]) -> str:
    render([vias_run(tree / "night", losses=losses)], tree / "site")
    return (tree / "site/night/vias.html").read_text()


def test_losses_over_decades_stand_apart(tmp_path: Path) -> None:
    drawn = _page(tmp_path, ("0,0.000001,0.01",)).split('id="losses"')[1].split("</section>", maxsplit=1)[0]
    ticks = re.findall(r'text-anchor="middle">([0-9.e-]+)<', drawn.split("</svg>")[0])
    assert ticks == ["0", "0.0001", "0.001", "0.01", "0.1", "1"]


def _sentences(folder: RunFolder) -> list[str]:
    (view,) = RunView.all([folder])
    return [" ".join(one.replace("\u202f", " ").split()) for one in vias.sentences(view, rows_of(view))]


def test_the_overview_says_the_run_in_sentences_about_middleboxes(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "night")
    assert _sentences(folder) == [
        "1 server × 2 clients × 3 vias, 5 measurements: 51 of 60 jobs succeeded, 1 failed, 8 unsupported.",
        "Middleboxes with the shortest median time: over geo, pep-split in 3 and plain in 2 of 5 rows; "
        "5 of 5 leads are more than chance.",
        "The greatest margin that is more than chance: pep-split in download-500kB, 3.18 s, 25 % less time than plain, "
        "95 % interval 24 to 25.",
        "Kinds of private data that an eavesdropper on the satellite link sees: none with openvpn, 2 of 2 with plain "
        "and 2 of 2 with pep-split.",
        "1 job failed, by cause: unknown (1); all via plain.",
    ]


def test_with_three_iterations_nobody_is_said_to_win(tmp_path: Path) -> None:
    folder = vias_run(tmp_path / "night", iterations=3)
    text = _sentences(folder)
    assert text[1].endswith("4 iterations of each middlebox would show whether this is more than chance.")
    assert not any("greatest margin" in one for one in text)
    render([folder], tmp_path / "site")
    rows = _rows((tmp_path / "site/night/index.html").read_text(), "winners")
    assert rows[1][5:] == ["25 %", "? too few iterations: n 3 and 3, 4 of each are needed"]


def test_the_overview_leads_to_the_middleboxes(site: Path) -> None:
    page = (site / "index.html").read_text()
    text = re.sub(r"<[^>]+>", " ", page)
    for word in ("what decides", "Implementations", "Scenarios", "Compare"):
        assert word not in text
    assert 'href="vias.html"' in page
    matrix = page.split('id="page"')[1].split("</section>", maxsplit=1)[0]
    assert re.findall(r'<th scope="col" data-via="([^"]+)"', matrix) == ["plain", "openvpn", "pep-split"]
    assert re.findall(r'<tr data-link="([^"]+)"', matrix) == ["geo"]
    assert "openvpn" not in page.split('id="stacks"')[1].split("</section>", maxsplit=1)[0]
    assert "openvpn" in page.split('id="middleboxes"')[1].split("</section>", maxsplit=1)[0]
    assert [row[:3] for row in _rows(page, "winners")[1:2]] == [["geo", "download-500kB", "pep-split"]]
    assert not (site / "implementations").exists()
    assert not (site / "compare.html").exists()


def test_a_middlebox_in_a_case_has_a_page_of_its_own(site: Path) -> None:
    page = (site / "origin_browser+openvpn/page.html").read_text()
    header, first, *_ = _rows(page, "iterations")
    assert header[2:4] == ["Page Load Time s", "Response Start s"]
    assert first[2:6] == ["4.55", "1.00", "2.00", "75"]
    assert first[-1] == "nothing"


def test_links_of_the_pages_lead_somewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        for href in re.findall(r'href="([^"#:]+)', path.read_text()):
            if "artifacts" not in href:
                assert (path.parent / unquote(href)).exists(), f"{path.relative_to(site)}: {href}"


def test_what_changed_since_the_run_before_is_told_of_middleboxes(tmp_path: Path) -> None:
    before, after = (vias_run(tmp_path / name, iterations=8, started=at) for name, at in (("a", 2e9), ("b", 1e9)))
    for result in after.results().values():
        if result.via == "openvpn" and result.outcome is Outcome.SUCCEEDED:
            after.save_result(replace(result, outcome=Outcome.FAILED))
    assert RunView.all([before, after])[0].changes is not None
    render([before, after], tmp_path / "site")
    page = (tmp_path / "site/a/index.html").read_text()
    changes = page.split('id="changes"')[1].split("</section>")[0]
    assert "▲ better" in changes
    assert "+openvpn → origin</a>" in changes
