import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.site.charts import offset_plot, size_unit, sparkline, ticks
from runner.site.series import Frames, Series, coded, curve, joined, load_series, plot_document

FRAME = st.tuples(st.integers(0, 5000), st.integers(0, 100), st.integers(1, 1200), st.integers(0, 2))


def frames(*rows: tuple[int, int, int, int]) -> Frames:
    """Rows of time step in µs, block, length, kind; each block is 1200 B."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return Frames(time=np.cumsum(columns[0]), offset=1200 * columns[1], length=columns[2], kind=columns[3])


def stored(path: Path, **changes: object) -> Path:
    vantage = {"t_us": [1000, 500, 500], "offset": [0, 1000, 1000], "length": [1000, 1000, 500], "kind": [0, 0, 1]}
    document = {
        "schema": 1,
        "file_size": 2500,
        "files": [2500],
        "client": vantage,
        "server": vantage,
        "lost": {"t_us": [], "offset": []},
        "rate": {"interval_s": 0.1, "forward_raw": [], "forward_goodput": [], "return_raw": []},
        "marks": {"ttfb": 0.001, "ttlb": 0.002, "request": None},
        "bounds": {"ideal": [[0, 0], [0.001, 2500]], "slow_start": []},
        "spark": [[500, 400], [1000, 1000]],
    } | changes
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def series(tmp_path: Path) -> Series:
    outcome_now = load_series(stored(tmp_path / "series.json"))
    assert outcome_now is not None
    return outcome_now


def test_delta_coded_lists_are_decoded(series: Series) -> None:
    assert series.client.time.tolist() == [1000, 1500, 2000]
    assert series.client.offset.tolist() == [0, 1000, 2000]
    assert series.marks == {"ttfb": 0.001, "ttlb": 0.002}
    assert series.end == 0.002
    assert coded(series.client.time) == [1000, 500, 500]


@pytest.mark.parametrize("broken", [{"client": {"t_us": [1]}}, {"bounds": None}, {"files": ["x"]}, {"spark": [[1]]}])
def test_a_series_that_cannot_be_read_is_no_series(tmp_path: Path, broken: dict[str, object]) -> None:
    assert load_series(stored(tmp_path / "series.json", **broken)) is None
    assert load_series(tmp_path / "missing.json") is None


def test_columns_of_different_lengths_are_no_series(tmp_path: Path) -> None:
    vantage = {"t_us": [1, 2], "offset": [0], "length": [1], "kind": [0]}
    assert load_series(stored(tmp_path / "series.json", client=vantage)) is None


def test_the_curve_adds_up_how_far_each_file_had_got() -> None:
    two_files = frames((10, 0, 1200, 0), (10, 3, 1200, 0), (10, 1, 1200, 0), (10, 0, 1200, 2), (10, 4, 600, 0))
    time, total = curve(two_files, [3600, 3600])
    assert time.tolist() == [10, 20, 30, 50]
    assert total.tolist() == [1200, 2400, 3600, 4200]


def test_the_curve_of_a_long_transfer_is_thinned_and_keeps_its_end() -> None:
    long = frames(*((100, block, 1200, 0) for block in range(9000)))
    time, total = curve(long, [9000 * 1200])
    assert len(time) <= 601
    assert (time[-1], total[-1]) == (900_000, 9000 * 1200)
    assert np.all(np.diff(total) > 0)


@given(st.lists(FRAME, max_size=60))
def test_joining_loses_no_byte_of_any_kind(rows: list[tuple[int, int, int, int]]) -> None:
    before = frames(*rows)
    after = joined(before)
    for kind in range(3):
        assert after.length[after.kind == kind].sum() == before.length[before.kind == kind].sum()
    assert np.isin(after.offset, before.offset).all()


def test_joining_makes_a_smooth_transfer_small_and_leaves_retransmissions() -> None:
    rows = [(100, block, 1200, 0) for block in range(40_000)]
    rows[700] = (100, 2, 1200, 1)
    after = joined(frames(*rows))
    assert len(after.time) < 5000
    assert (after.kind == 1).sum() == 1


def test_iterations_behind_have_joined_frames(series: Series) -> None:
    assert plot_document(series)["client"]["length"] == [1000, 1000, 500]


def points(svg: str, name: str) -> list[tuple[float, float]]:
    match = re.search(rf'<polyline{f" class=.{name}." if name else ""} points="([^"]*)"', svg)
    assert match is not None
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in match[1].split())]


def places(svg: str) -> list[list[tuple[int, int]]]:
    """Corners of each path of a sparkline."""
    collected = []
    for first, rest in re.findall(r'd="M([^l]*)l([^"]*)"', svg):
        x, y = (int(value) for value in first.split())
        corners = [(x, y)]
        steps = [int(value) for value in rest.split()]
        for dx, dy in zip(steps[::2], steps[1::2], strict=True):
            x, y = x + dx, y + dy
            corners.append((x, y))
        collected.append(corners)
    return collected


def test_the_sparkline_stays_in_its_box_and_cuts_the_bound(series: Series) -> None:
    svg = str(sparkline(series))
    reference, curve_points = places(svg)
    assert all(0 <= x <= 176 and 0 <= y <= 52 for x, y in curve_points + reference)
    assert curve_points[-1] == (173, 3)
    assert sparkline(None) == ""


def test_a_bound_beyond_the_time_shown_is_cut_where_the_plot_ends(tmp_path: Path) -> None:
    bounds = {"ideal": [], "slow_start": [[0, 0], [0.004, 2500]]}
    slow = load_series(stored(tmp_path / "series.json", bounds=bounds))
    reference, _ = places(str(sparkline(slow)))
    assert reference[-1] == (173, 26)


def test_the_offset_plot_shows_both_vantage_points_retransmissions_and_instants(series: Series) -> None:
    svg = str(offset_plot(series, [series], title='<"t">'))
    assert points(svg, "ideal")
    for name in ("client", "server", "other"):
        (steps,) = re.findall(rf'<path class="{name}" d="(M[\d.]+,[\d.]+(?:H[\d.]+V[\d.]+)+)"/>', svg)
        heights = [float(y) for y in re.findall(r"V([\d.]+)", steps)]
        assert heights == sorted(heights, reverse=True), name  # in SVG, larger values of y are further down
    assert 'class="again"' in svg
    assert "TTFB 0.00 s" in svg
    assert "&lt;&#34;t&#34;&gt;" in svg
    assert offset_plot(None, [], title="") == ""


@pytest.mark.parametrize(("end", "last", "number"), [(10.0, 10.0, 11), (2.4, 2.4, 10), (0.2, 0.2, 11), (35.0, 35.0, 8)])
def test_ticks_are_round_and_few(end: float, last: float, number: int) -> None:
    outcome = ticks(end)
    assert outcome[0] == 0
    assert 4 <= len(outcome) <= 11
    assert len(outcome) <= number
    assert outcome[-1] <= last + 1e-9


def test_axes_use_binary_units() -> None:
    assert size_unit(10 * 2**20) == ("MiB", 2**20)
    assert size_unit(1024) == ("KiB", 1024)
    assert size_unit(32) == ("B", 1)
