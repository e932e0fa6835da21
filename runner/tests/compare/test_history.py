"""Histories of runs whose trend is known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.run_folders import case
from runner.compare.history import change_point, history, least_runs
from runner.compare.stats import Attempts
from runner.errors import UsageError
from runner.model.run import Kind
from runner.store.runs import RunFolder
from runner.tests.compare.test_compare import failing, folder, same, slower


def nights(path: Path, number: int, change_at: int) -> list[RunFolder]:
    return [
        folder(
            path / f"night-{index:02}",
            slower("kwik", 0.5 if index >= change_at else 1.0),
            iterations=2,
            servers=("quinn", "kwik"),
            change=lambda one, index=index: replace(one, started_unix_s=1e9 + index),  # type: ignore[misc]
        )
        for index in range(number)
    ]


def test_a_change_is_found_in_the_night_it_happened_and_nowhere_else(tmp_path: Path) -> None:
    cells = history(nights(tmp_path, 16, change_at=9))
    changed = {(one.server, one.change.run) for one in cells.trends if one.change}
    assert changed == {("kwik", "night-09")}
    assert all(len(one.medians) == 16 for one in cells.trends)
    assert all(str(one.attempts) == "32/32" and one.flips == 0 for one in cells.trends)


def test_nights_of_chance_show_no_change() -> None:
    random = np.random.default_rng(6)
    points = (change_point([(str(i), float(random.normal())) for i in range(14)]) for _ in range(200))
    alarms = sum(point is not None and point.q <= 0.05 for point in points)
    assert alarms <= 17  # probability 0.988 when each of the 200 histories raises an alarm with probability 0.05


def test_too_few_nights_show_nothing_and_the_least_is_right() -> None:
    least = least_runs()
    assert change_point([("a", 1.0), ("b", 2.0)]) is None
    stepped = [(str(i), float(i + 100 * (i >= least // 2))) for i in range(least)]
    point = change_point(stepped)
    assert point is not None
    assert point.q <= 0.05
    shorter = change_point([(str(i), float(i + 100 * (i >= (least - 1) // 2))) for i in range(least - 1)])
    assert shorter is not None
    assert shorter.q > 0.05


def test_flaky_cells_have_their_rate_and_flips(tmp_path: Path) -> None:
    cases = {"hs": case("hs", Kind.TEST_CASE)}
    runs = [
        folder(
            tmp_path / f"n{index}",
            failing("kwik") if index in (1, 3) else same,
            servers=("kwik",),
            cases=cases,
            change=lambda one, index=index: replace(one, started_unix_s=1e9 + index),  # type: ignore[misc]
        )
        for index in range(5)
    ]
    first = history(runs).trends[0]
    assert first.attempts == Attempts(successes=3, attempts=5)
    assert first.flips == 4
    assert first.rate is not None
    assert 0.14 < first.rate[0] < 0.6 < first.rate[1] < 0.95


def test_runs_under_other_conditions_are_left_out_by_name(tmp_path: Path) -> None:
    other = folder(tmp_path / "old", same, change=lambda one: replace(one, started_unix_s=1.0, host={"cores": "64"}))
    cells = history([other, folder(tmp_path / "new", same)])
    assert cells.runs == ("new",)
    assert cells.left_out[0][0] == "old"
    with pytest.raises(UsageError):
        history([])
