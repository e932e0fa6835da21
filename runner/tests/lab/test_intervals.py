"""The validation commands: they succeed when the product is right, and fail when it is wrong."""

from importlib import import_module

import numpy as np
import pytest
from click.testing import CliRunner

from lab import alarms, coverage
from runner.compare import stats


@pytest.mark.parametrize("kind", ["median", "margin", "rate"])
def test_printed_intervals_hold(kind: str) -> None:
    collected = list(coverage.KINDS[kind](np.random.default_rng(2), 300))
    assert len(collected) >= 16
    assert [one.setting for one in collected if not one.holds] == []


def test_an_interval_that_is_too_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_place", lambda size: size // 2 - 1)
    collected = list(coverage.of_medians(np.random.default_rng(2), 300))
    assert not any(one.holds for one in collected)
    assert CliRunner().invoke(coverage.main, ["--only", "median", "--times", "200"]).exit_code == 1


def test_alarms_are_rare_with_the_deviation_between_runs_and_frequent_without() -> None:
    setting = alarms.SETTINGS[0]
    with_it, without, outcome = alarms.simulated(setting, np.random.default_rng(4), 30)
    assert with_it.comparisons == 30
    assert with_it.numbers == 30 * setting.stacks**2
    assert with_it.holds
    assert not without.holds
    assert outcome >= 20


def test_a_test_that_sees_changes_everywhere_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("runner.compare.compare"), "FALSE_DISCOVERY_RATE", 0.9)
    assert stats.FALSE_DISCOVERY_RATE == 0.05
    assert CliRunner().invoke(alarms.main, ["--times", "10"]).exit_code == 1


def test_real_runs_take_three() -> None:
    assert CliRunner().invoke(alarms.main, ["no-such-run"]).exit_code != 0
