"""What a plan takes of real links: by numbers that can be worked out by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from runner.model.link import LinkPlan, RealLink
from runner.places.links.real_links import FIND_BYTES, Ledger, expected_volume, link_plans
from runner.plan import jobs
from runner.plan.catalog import Catalog, with_measurements
from runner.tests.links.test_volume import LINK
from runner.tests.plan.test_links import GOOD
from runner.tests.program import bentpipe
from runner.tests.records import over_real, select
from runner.units import MIB

NOON = datetime(2026, 11, 29, 12, 0)  # a Sunday; the month ends on Monday
Planned = Callable[[RealLink], LinkPlan]


@pytest.fixture
def planned(catalog: Catalog, tmp_path: Path) -> Planned:
    """Plans 30 transfers of 10 MiB over a link that has carried 1 MiB today and 2 MiB this month."""
    ledger = Ledger(tmp_path / "volume.json")
    ledger.add(LINK.name, MIB, today=NOON.date())
    ledger.add(LINK.name, MIB, today=NOON.date().replace(day=1))

    def make(link: RealLink) -> LinkPlan:
        known = with_measurements(catalog, (link,))
        records = over_real(known, (link,), ())
        selection = replace(select(known, servers=("quinn",), clients=("quinn",)), cases=records)
        selection = replace(selection, iterations=dict.fromkeys(records, 30))
        run = jobs.new_run(tmp_path, selection, seed=1)
        (plan,) = link_plans(run.order, run.cases, (link,), ledger=ledger, now=NOON)
        job = expected_volume(link, next(iter(run.cases.values())))
        assert 11.5 * MIB < job < 12.5 * MIB
        assert plan.volume == FIND_BYTES + 30 * job
        return plan

    return make


def test_a_plan_that_fits_says_volume_and_time_and_nothing_else(planned: Planned) -> None:
    placed = planned(replace(LINK, budget_day=400 * MIB))
    assert (placed.jobs, placed.spent_day, placed.spent_month) == (30, MIB, 2 * MIB)
    assert 30 * 15 < placed.seconds < 30 * 40
    assert placed.ends is not None
    assert (placed.ends - NOON).total_seconds() == pytest.approx(placed.seconds)
    assert list(placed.sentences) == []


def test_a_budget_that_does_not_hold_the_plan_is_one_sentence(planned: Planned) -> None:
    placed = planned(replace(LINK, budget_day=130 * MIB))
    assert (placed.broken, placed.first_day, placed.calls) == ("day", 11, 3)
    (sentence,) = placed.sentences
    assert sentence.startswith(
        "astra: budget_per_day (130 MiB) is enough for 11 of 30 jobs now, then the run ends. Continue it with "
        "the same command, 2 times, until on Tuesday 01 December at 00:"
    )
    assert sentence.endswith("or raise budget_per_day in links.json.")


def test_a_spent_month_is_waited_for_and_too_small_a_budget_is_told(planned: Planned) -> None:
    placed = planned(replace(LINK, budget_month=200 * MIB))
    assert (placed.broken, placed.calls) == ("month", 2)
    assert placed.ends is not None
    assert (placed.ends.month, placed.ends.day) == (12, 1)
    never = planned(replace(LINK, budget_day=5 * MIB))
    assert never.ends is None
    (sentence,) = never.sentences
    assert "is enough for 0 of 30 jobs, and a single job needs more: raise budget_per_day in links.json." in sentence


def test_quiet_hours_are_in_the_time(planned: Planned) -> None:
    plain = planned(LINK)
    placed = planned(replace(LINK, quiet_hours=("12:05-13:00", "13:00-14:00")))
    assert placed.ends is not None
    assert plain.ends is not None
    assert placed.ends.hour == 14
    assert (placed.ends - plain.ends).total_seconds() == pytest.approx(2 * 3600 - 300, abs=60)  # a job is running
    (sentence,) = placed.sentences
    assert (
        "its jobs pause in the quiet hours 12:05-13:00 and 13:00-14:00 and end on Sunday 29 November at 14:0"
        in sentence
    )


def test_the_command_tells_links_and_budgets(tmp_path: Path) -> None:
    document = json.loads(json.dumps(GOOD))
    document["links"]["astra"] |= {"budget_per_day": 1000}
    links = tmp_path / "links.json"
    links.write_text(json.dumps(document))
    process = bentpipe("plan", "--link", "astra", "--links", str(links), "--server", "quinn", "--client", "quinn")
    assert process.returncode == 0, process.stderr
    text = " ".join(process.stdout.split())
    assert "AST astra 1 5 5" in text
    assert "astra: budget_per_day (1000 B) is enough for 0 of 5 jobs, and a single job needs more" in text
