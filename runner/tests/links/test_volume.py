"""The record of bytes on a link, and the sentence for a used-up budget."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from runner.errors import BudgetError, UsageError
from runner.model.link import RealLink, RemoteHost
from runner.places.links.real_links import Ledger

HOST = RemoteHost(name="roof", user="me", address="192.0.2.1", port=22, host_key="ssh-ed25519 AAAA", key=None)
LINK = RealLink(name="astra", client=HOST, server=None, forward_rate=20_000_000, return_rate=2_000_000)
MONDAY, TUESDAY, DECEMBER = date(2026, 11, 30), date(2026, 11, 29), date(2026, 12, 1)


def test_volumes_add_up_by_day_and_month_and_outlive_the_runner(tmp_path: Path) -> None:
    path = tmp_path / "volume.json"
    ledger = Ledger(path)
    ledger.add("astra", 100, today=TUESDAY)
    ledger.add("astra", 10, today=MONDAY)
    ledger.add("other", 7, today=MONDAY)
    again = Ledger(path)
    assert again.spent("astra", today=MONDAY) == (10, 110)
    assert again.spent("astra", today=DECEMBER) == (0, 0)
    assert again.spent("nobody", today=MONDAY) == (0, 0)


def test_two_runners_at_once_lose_no_byte(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "volume.json") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for ledger in ledgers * 5:
            pool.submit(ledger.add, "astra", 1, today=MONDAY)
    ledgers[0].add("other", 7, today=MONDAY)
    assert [ledger.spent("astra", today=MONDAY) for ledger in ledgers] == [(20, 20)] * 4


@pytest.mark.parametrize("text", ["{", "[]", '{"astra": 5}', '{"astra": {"2026-11-30": "much"}}'])
def test_a_file_that_is_none_of_ours_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "volume.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"volume\.json is no record of data volumes"):
        Ledger(path)


def test_a_budget_that_the_next_job_would_pass_stops_it_with_a_sentence(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "volume.json")
    ledger.add("astra", 900, today=MONDAY)
    _job(ledger, LINK, 10**12, used=0)
    link = replace(LINK, budget_day=1000, budget_month=5000)
    _job(ledger, link, 100, used=0)
    with pytest.raises(BudgetError, match=r"astra: 900 B of the 1000 B for this day are used, and the next job takes"):
        _job(ledger, link, 101, used=0)
    ledger.add("astra", 4000, today=TUESDAY)
    with pytest.raises(BudgetError, match=r"continue in the next month, or raise budget_per_month in links\.json"):
        _job(ledger, replace(link, budget_day=None), 101, used=0)
    with ledger.reserved(link, 1000, today=DECEMBER):
        pass


def _job(ledger: Ledger, link: RealLink, size: int, *, used: int | None) -> None:
    with ledger.reserved(link, size, today=MONDAY) as reservation:
        reservation.used = used


def test_a_job_has_paid_before_it_begins_and_gets_back_what_it_did_not_use(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "volume.json")
    link = replace(LINK, budget_day=1000)
    with ledger.reserved(link, 600, today=MONDAY) as reservation:
        assert ledger.spent("astra", today=MONDAY) == (600, 600)
        with pytest.raises(BudgetError):  # a job of another runner at the same time
            _job(ledger, link, 600, used=0)
        reservation.used = 250
    assert ledger.spent("astra", today=MONDAY) == (250, 250)
    _job(ledger, link, 300, used=None)  # the number of used bytes is unknown
    assert ledger.spent("astra", today=MONDAY) == (550, 550)
    with pytest.raises(KeyError), ledger.reserved(link, 100, today=MONDAY):
        raise KeyError
    assert ledger.spent("astra", today=MONDAY) == (650, 650)
