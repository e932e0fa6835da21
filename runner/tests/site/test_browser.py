"""The site in Chromium: silent console, plots, filters by URL and keyboard, no scripts, axe-core."""

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from lab.run_folders import rare_run, recorded_run, variants_run, vias_run
from runner.site import render
from runner.store.runs import RunFolder
from runner.tests.site.runs import two_protocols_run, wide_run

CHROMIUM = shutil.which("chromium")
AXE = "axe-core@4.14.1"
SERIOUS = ("serious", "critical")
NARROW = "\u202f"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    recorded = recorded_run(tree / "recorded")
    earlier = RunFolder.create(tree / "earlier", replace(recorded.run, started_unix_s=recorded.run.started_unix_s - 1))
    for result in recorded.results().values():
        earlier.save_result(result)
    others = [rare_run(tree / "rare"), two_protocols_run(tree / "both"), variants_run(tree / "variants")]
    others += [vias_run(tree / "paths", started=1.6e9), wide_run(tree / "wide")]
    render([recorded, earlier, *others], tree / "site")
    return tree / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        outcome = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield outcome
        outcome.close()


class Tab:
    """A page with what it said on the console, and what it asked of the network."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.page: Page = browser.new_page(**options)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: Path, fragment: str = "") -> Page:
        # A fragment alone would not load the page again.
        self.page.goto("about:blank")
        self.page.goto(f"{path.as_uri()}{fragment}")
        return self.page


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    outcome = Tab(browser, viewport={"width": 1400, "height": 900})
    yield outcome
    assert outcome.said == []
    assert [url for url in outcome.asked if not url.startswith(("file:", "blob:", "data:", "about:"))] == []
    outcome.page.close()


def every_page(site: Path) -> list[Path]:
    """One page of each kind of each run."""
    pages = [site / "index.html", site / "runs.html", site / "latest/quinn/index.html"]
    for run in ("recorded", "rare", "both", "variants", "wide"):
        pages += [
            site / run / f"{name}/index.html" for name in ("figures", "downloads", "scenarios", "implementations")
        ]
        pages += [site / run / "index.html", site / run / "compare.html"]
        pages += sorted((site / run / "implementations").glob("*.html"))[:2]
        pages += sorted((site / run / "scenarios").glob("*.html"))[:2]
    pages += [site / "paths" / name for name in ("index.html", "vias.html", "downloads/index.html")]
    cells = ("recorded/quinn_quinn/goodput.html", "rare/alpha_alpha/sat.html", "paths/origin_browser+plain/page.html")
    return [*pages, *(site / cell for cell in cells)]


def test_every_page_opens_without_a_word_and_fits_a_phone(site: Path, tab: Tab) -> None:
    collected: list[str] = []
    for path in every_page(site):
        page = tab.open(path)
        for width in (1400, 360):
            page.set_viewport_size({"width": width, "height": 800})
            wide = page.evaluate("document.documentElement.scrollWidth")
            collected += [f"{path.relative_to(site)} is {wide} wide on {width}"] if wide > width else []
        assert tab.said == [], path
    assert collected == []


def test_every_page_opens_over_http(site: Path, browser: Browser) -> None:
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab = Tab(browser)
        for path in every_page(site):
            answer = tab.page.goto(f"http://127.0.0.1:{server.server_port}/{path.relative_to(site).as_posix()}")
            assert answer is not None
            assert answer.ok, path
        assert tab.said == []
        server.shutdown()
        tab.page.close()


def test_a_qlog_opens_in_qvis_over_http_and_not_from_a_file(site: Path, browser: Browser, tab: Tab) -> None:
    name = "recorded/quinn_quinn/goodput.html"
    assert tab.open(site / name).locator("a[href*=qvis]").count() == 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        over_http = Tab(browser)
        over_http.page.goto(f"http://127.0.0.1:{server.server_port}/{name}")
        for link in over_http.page.locator("a[href*=qvis]").all():
            address = parse_qs(urlsplit(link.get_attribute("href") or "").query)["file"][0]
            assert over_http.page.request.get(address).ok
        assert over_http.page.locator("a[href*=qvis]").count() == over_http.page.locator("a[data-qlog]").count() == 1
        server.shutdown()
        over_http.page.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_the_plots_draw(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/quinn_quinn/goodput.html")
    page.wait_for_selector(".plot.drawn.js-plotly-plot .legend")
    legend = page.locator(".legendtext").all_text_contents()
    drawn = ("received, client side", "sent, server side", "slow-start bound", "forward, goodput")
    for name in (*drawn, "in flight", "RTT", "queueing delay", "packet number", "packet size"):
        assert name in legend
    assert page.locator(".subplot").count() == 8
    page.locator(".nsewdrag").first.hover()


def test_the_legend_of_a_narrow_plot_is_read_whole(site: Path, tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 400, "height": 800})
    page = tab.open(site / "recorded/quinn_quinn/goodput.html")
    page.wait_for_selector(".plot.drawn.js-plotly-plot .legend")
    assert "received, clientside" in page.locator(".legendtext").all_text_contents()  # the label has two lines
    assert page.evaluate(_OUTSIDE, ["#plot", ".legendtext"]) == []
    assert page.evaluate(_COVERED, ".legendtext") == []


_OUTSIDE = """([around, inside]) => {
  const found = [];
  for (const place of document.querySelectorAll(around)) {
    const room = place.getBoundingClientRect();
    for (const one of place.querySelectorAll(inside)) {
      const box = one.getBoundingClientRect();
      const beyond = [room.left - box.left, box.right - room.right, room.top - box.top, box.bottom - room.bottom];
      if (Math.max(...beyond) > 0.5) found.push(`${place.textContent.trim()}: ${one.textContent}`);
    }
  }
  return found;
}"""
_COVERED = """(chosen) => {
  const boxes = [...document.querySelectorAll(chosen)].map((one) => [one.textContent, one.getBoundingClientRect()]);
  const across = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left);
  const down = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
  const pairs = boxes.flatMap(([text, box], index) => boxes.slice(index + 1).map((other) => [text, box, ...other]));
  return pairs.filter(([, a, , b]) => across(a, b) > 0.5 && down(a, b) > 2).map(([one, , other]) => `${one}, ${other}`);
}"""


@pytest.mark.parametrize("fragment", ["", "#show=goodput", "#show=efficiency"])
def test_cells_of_a_wide_matrix_hold_what_they_say(site: Path, tab: Tab, fragment: str) -> None:
    page = tab.open(site / "wide/index.html", fragment)
    page.wait_for_function("document.querySelectorAll('.wide .cells .spark').length === 5")
    assert page.locator(".wide .cells tbody td[data-client]").count() == 7
    assert page.locator(".wide .cells .cell-notes > span").all_inner_texts() == ["server: IW is not 10", "two modes"]
    assert page.evaluate(_OUTSIDE, [".wide .cells tbody td[data-client]", "*"]) == []
    assert page.evaluate(_COVERED, ".cells td b, .cells .second, .cells .tried, .cells .cell-notes, .cells a > i") == []


def test_the_congestion_window_is_drawn_as_the_qlog_tells_it_or_said_to_be_untold(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/quinn_quinn/goodput.html")
    page.wait_for_selector(".plot.drawn.js-plotly-plot .legend")
    window = page.evaluate("document.getElementById('plot').data.find((one) => one.name === 'congestion window').y")
    text = [one for one in window if one is not None]
    assert (text[0], text[-1]) == (12000 / 1024, 18000 / 1024)
    assert page.locator("#window").text_content() == ""
    page = tab.open(site / "recorded/aioquic_aioquic/goodput.html")
    page.wait_for_selector(".plot.drawn.js-plotly-plot .legend")
    assert "congestion window" not in page.locator(".legendtext").all_text_contents()
    assert page.locator("#window").inner_text().strip() == "No qlog of this server has its congestion window."


def test_a_deep_link_zooms_all_plots_to_the_moment_and_names_the_packet(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/quinn_quinn/goodput.html", "#iteration=1&at=0.5")
    page.wait_for_selector(".plot.drawn.js-plotly-plot .legend")
    low, high = page.evaluate("document.getElementById('plot').layout.xaxis.range")
    assert low < 0.5 < high < low + 0.5
    assert page.evaluate("document.getElementById('plot').data.every((one) => !one.xaxis || one.xaxis === 'x')")
    item = page.evaluate("document.getElementById('plot').data.find((one) => one.name === 'packet number')")
    assert item["customdata"][3][0] == item["y"][3]
    assert "packet %{customdata[0]}" in item["hovertemplate"]


def numbers(page: Page) -> list[str]:
    return [text.replace(NARROW, " ") for text in page.locator("#goodput td a > b:visible").all_inner_texts()]


def test_the_url_decides_what_the_matrix_shows(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/index.html")
    assert page.locator("#goodput thead th[data-client]:visible").count() > 1
    page = tab.open(site / "recorded/index.html", "#show=goodput&clients=quinn&servers=quinn")
    assert page.locator("#goodput thead th[data-client]:visible").all_inner_texts() == ["quinn"]
    assert page.locator("[data-count=clients]").inner_text() == "1 of 3"
    (number,) = numbers(page)
    assert number.endswith("Mbit/s")
    mean = page.locator("#goodput [data-mean=all]").inner_text()
    assert mean.replace(NARROW, " ") == number
    page.reload()
    assert numbers(page) == [number]


def heads(page: Page, places: str) -> list[str]:
    """The texts of the visible heads of rows or columns of the first matrix."""
    return page.locator(f".matrix:visible >> nth=0 >> {places}:visible").all_inner_texts()


def test_rows_and_columns_are_chosen_in_the_url_and_filters_go_on_working(site: Path, tab: Tab) -> None:
    page = tab.open(site / "paths/index.html", "#rows=via&columns=link&vias=plain,openvpn")
    assert heads(page, "thead th[data-link]") == ["geo"]
    assert heads(page, "tbody th") == ["plain", "openvpn"]
    shown = page.locator(".pivoted .matrix:visible >> nth=0 >> td b").first.inner_text()
    page = tab.open(site / "paths/index.html")
    assert heads(page, "tbody th") == ["geo"]
    assert heads(page, "thead th[data-via]")[:2] == ["plain", "openvpn"]
    assert page.locator(".matrix:visible >> nth=0 >> td b").first.inner_text() == shown
    page.locator("select[name=rows]").select_option("client")
    assert page.url.endswith("#rows=client")
    page.locator("#filters button[type=reset]").click()
    page.wait_for_function("!location.hash.includes('rows')")
    assert heads(page, "tbody th") == ["geo"]


def means(page: Page, places: str) -> list[str]:
    """The visible means of the turned matrix of goodput, or of the matrix itself."""
    return page.locator(places).all_inner_texts()


@pytest.mark.parametrize("chosen", ["show=goodput", "servers=quinn", "show=goodput&of=mean&clients=quinn,aioquic"])
def test_a_turned_matrix_has_the_means_of_the_matrix(site: Path, tab: Tab, chosen: str) -> None:
    page = tab.open(site / "recorded/index.html", f"#{chosen}")
    columns = means(page, "#goodput tfoot [data-mean=column]:visible")
    rows = means(page, "#goodput tbody tr:visible [data-mean=row]")
    every = means(page, "#goodput [data-mean=all]")
    assert columns
    assert {"–"} < {"–", *columns, *rows}
    page = tab.open(site / "recorded/index.html", f"#{chosen}&rows=client&columns=server")
    turned = ".pivoted .matrix[data-case=goodput]"
    assert means(page, f"{turned} tbody tr:visible [data-mean=row]") == columns
    assert means(page, f"{turned} tfoot [data-mean=column]:visible") == rows
    assert means(page, f"{turned} [data-mean=all]") == every


def test_cells_of_different_links_have_no_common_mean(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/index.html", "#rows=link&columns=server")
    turned = ".pivoted .matrix[data-case=goodput] >> nth=0"
    assert page.locator(f"{turned} >> tbody [data-mean=row]").count() == 1
    assert page.locator(f"{turned} >> tfoot").count() == 0
    page = tab.open(site / "recorded/index.html", "#rows=server&columns=link")
    assert page.locator(f"{turned} >> [data-mean=row]").count() == 0
    assert page.locator(f"{turned} >> tfoot [data-mean]").count() == 1


def test_filters_and_switches_write_the_url_and_work_by_keyboard(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/index.html")
    page.locator("input[name=show][value=ttlb]").focus()
    page.keyboard.press("ArrowRight")
    page.locator("input[name=of][value=median]").focus()
    page.keyboard.press("ArrowRight")
    assert page.url.endswith("#show=goodput&of=mean")
    assert page.locator("[data-shown]").first.inner_text() == "mean goodput"
    page.locator("details.menu summary", has_text="clients").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.wait_for_function("location.hash.includes('clients=')")
    page.keyboard.press("Escape")
    assert page.locator("details.menu[open]").count() == 0


def test_rows_beyond_the_screen_are_switched_as_well(site: Path, tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1400, "height": 120})
    page = tab.open(site / "recorded/index.html")
    page.locator("input[name=show][value=ttlb]").focus()
    page.keyboard.press("ArrowRight")
    every = "[...document.querySelectorAll('#goodput td a > b')]"
    assert page.evaluate(f"{every}.length") > 1
    page.wait_for_function(f"{every}.every((one) => one.textContent.endsWith('Mbit/s'))")


def test_protocols_have_means_of_their_own_whatever_is_shown(site: Path, tab: Tab) -> None:
    page = tab.open(site / "both/index.html", "#show=goodput&clients=old,web")
    mean = page.locator("#sat [data-mean=all]").inner_text().replace(NARROW, " ").split("\n")
    assert mean == ["10.0 Mbit/s", "h3 4.00 Mbit/s"]


def test_names_that_look_like_markup_run_nothing(site: Path, tab: Tab) -> None:
    page = tab.open(site / "rare/index.html", "#show=ttlb")
    assert page.locator("#sat td a > b").first.inner_text().replace(NARROW, " ") == "1.40 s"
    page.locator("#filters details", has_text="servers").locator("summary").click()
    page.locator("#filters input[name=servers]").last.uncheck()
    assert page.locator("#sat tbody tr:visible").count() == 1


def test_lines_of_a_megabyte_and_half_characters_are_only_text(tmp_path: Path, tab: Tab) -> None:
    folder = rare_run(tmp_path / "run")
    endless = "<script>alert(1)</script>" * 40_000
    for result in folder.results().values():
        findings = tuple(
            replace(finding, actual=endless, expected="\x1b[31m\x00\ufffe\ud800", log_tail=endless)
            for finding in result.findings
        )
        folder.save_result(replace(result, findings=findings))
    (folder.path / "alpha_alpha/sat/1/output.log").write_bytes(b"\xff\xfe\x80" * 1000 + endless.encode())
    render([folder], tmp_path / "site")
    for path in ("index.html", "run/alpha_alpha/sat.html", "run/scenarios/sat.html", "run/implementations/alpha.html"):
        page = tab.open(tmp_path / "site" / path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1400, path


def test_the_run_selector_leads_to_the_other_runs(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/figures/index.html")
    page.locator(".run-menu summary").click()
    page.locator(".run-menu a", has_text="rare").click()
    assert page.url == (site / "rare/index.html").as_uri()


def test_without_scripts_all_numbers_and_drawings_are_there(site: Path, browser: Browser) -> None:
    tab = Tab(browser, java_script_enabled=False)
    page = tab.open(site / "recorded/index.html")
    assert page.locator("#goodput td a > b:visible").count() > 1
    assert not page.locator("#filters").is_visible()
    page.locator("#run").click()
    assert page.url == (site / "runs.html").as_uri()
    page = tab.open(site / "recorded/compare.html")
    assert page.locator("h2").count() == 3
    page.close()


def test_a_figure_becomes_a_picture(site: Path, tab: Tab) -> None:
    page = tab.open(site / "recorded/figures/index.html")
    with page.expect_download() as waiting:
        page.locator("#f5-2 .png button").first.click()
    saved = Path(waiting.value.path()).read_bytes()
    assert saved.startswith(b"\x89PNG")
    assert len(saved) > 5000


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm: apt-get install npm")
    subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", folder, AXE], check=True, capture_output=True
    )
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_serious_violation(site: Path, tab: Tab, axe: str, colours: str) -> None:
    tab.page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
    collected = []
    for path in every_page(site):
        page = tab.open(path)
        page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
        page.evaluate(axe)
        report = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })")
        collected += [
            f"{path.relative_to(site)}: {item['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for item in report["violations"]
            if item["impact"] in SERIOUS
            for node in item["nodes"][:3]
        ]
    assert collected == []
