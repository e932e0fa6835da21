"""The scripts of the page, run by Chromium: plots draw, filters follow the URL, the console stays empty."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runner.render import render
from runner.tests.render.folders import rare_run, recorded_run, two_protocols_run

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=8000",
    "--dump-dom",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    render([recorded_run(tree / "recorded"), rare_run(tree / "rare"), two_protocols_run(tree / "both")], tree / "site")
    return tree / "site"


def browse(page: Path, profile: Path, fragment: str = "") -> tuple[str, list[str]]:
    """The document after its scripts ran, and what they said on the console."""
    command = (CHROMIUM or "", *FLAGS, f"--user-data-dir={profile}", f"{page.as_uri()}{fragment}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr)


def test_the_plots_draw(site: Path, tmp_path: Path) -> None:
    dom, console = browse(site / "recorded/quinn_quinn/goodput.html", tmp_path)
    assert console == []
    assert 'class="plot drawn js-plotly-plot"' in dom
    assert {"xy", "xy2", "xy3"} <= set(re.findall(r'class="subplot (\w+)"', dom))
    for name in ("received, client side", "sent, server side", "slow-start bound", "forward, goodput"):
        assert f">{name}<" in dom
    assert dom.count('class="trace scatter') >= 7
    assert ">TTFB 0.0" in dom
    assert "WebGL" not in dom


def visible(dom: str, attribute: str) -> list[str]:
    """Names in the head of the first matrix that the filters left."""
    head = dom[dom.index('<table class="cells"') :]
    cells = re.findall(rf"<th [^>]*{attribute}=\"([^\"]*)\"([^>]*)>", head[: head.index("</thead>")])
    return [name for name, rest in cells if "hidden" not in re.sub(r"data-hidden-\w+", "", rest)]


def test_the_url_decides_what_the_matrix_shows(site: Path, tmp_path: Path) -> None:
    page = site / "recorded/index.html"
    dom, console = browse(page, tmp_path)
    assert console == []
    assert len(visible(dom, "data-client")) > 1
    dom, console = browse(page, tmp_path, "#show=goodput&clients=quinn&servers=quinn")
    assert console == []
    assert visible(dom, "data-client") == ["quinn"]
    assert "1 of 3" in dom
    mean = re.search(r'data-mean="all"><b>([\d.]+)\u202fMbit/s', dom)
    numbers = re.findall(r"<b>([\d.]+)<small>\u202fMbit/s", dom)
    assert mean is not None
    assert numbers == [mean[1]]


def test_protocols_have_means_of_their_own_whatever_is_shown(site: Path, tmp_path: Path) -> None:
    dom, console = browse(site / "both/index.html", tmp_path, "#show=goodput&clients=old,web")
    assert console == []
    mean = dom[dom.index('data-mean="all">') :]
    assert re.findall(r"[\d.]+\u202fMbit/s", mean[: mean.index("</td>")]) == ["10.0\u202fMbit/s", "4.00\u202fMbit/s"]


def test_names_that_look_like_markup_run_nothing(site: Path, tmp_path: Path) -> None:
    dom, console = browse(site / "rare/index.html", tmp_path, "#show=ttlb")
    assert console == []
    assert "1.40<small>" in dom
    _, console = browse(site / "rare/alpha_alpha/sat.html", tmp_path)
    assert console == []
