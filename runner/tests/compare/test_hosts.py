"""Runs on several hosts: the speed of a host is no change, and a change is found although the hosts differ."""

from dataclasses import replace
from pathlib import Path

from runner.compare.compare import compare
from runner.model.result import Result
from runner.model.run import Job
from runner.tests.compare.test_compare import Fill, changed, folder

FACTORS = {"fast": 1.0, "slow": 0.7}  # factor of the goodput by host


def on(fast: int, *, change: float = 1.0) -> Fill:
    """Run the first `fast` iterations of each cell on the fast host, and the others on the slow host."""

    def fill(job: Job, result: Result) -> Result:
        host = "fast" if job.iteration <= fast else "slow"
        factor = FACTORS[host] * (change if job.server == "quinn" else 1.0)
        assert result.sample and result.sample.goodput and result.sample.ttlb
        goodput, ttlb = result.sample.goodput * factor, result.sample.ttlb / factor
        sample = replace(result.sample, goodput=goodput, ttlb=ttlb)
        return replace(result, sample=sample, host={"name": host, "worker": f"{host}-1"})

    return fill


def test_another_share_of_a_slow_host_is_no_change(tmp_path: Path) -> None:
    before = folder(tmp_path / "before", on(15), iterations=20)
    after = folder(tmp_path / "after", on(5), iterations=20)
    assert changed(compare(before, after, despite={"host"}))  # compares as if the hosts were unknown
    known = compare(before, after)
    assert not changed(known)
    assert any("fast, slow; the differences between hosts are removed" in note for note in known.notes)


def test_a_change_shows_although_hosts_differ(tmp_path: Path) -> None:
    before = folder(tmp_path / "before", on(10), iterations=20)
    after = folder(tmp_path / "after", on(8, change=0.9), iterations=20)
    comparison = changed(compare(before, after))
    assert {(server, metric) for server, metric, _ in comparison} == {("quinn", "goodput"), ("quinn", "ttlb")}


def test_numbers_of_different_hosts_are_not_compared(tmp_path: Path) -> None:
    before = folder(tmp_path / "before", on(20), iterations=20)
    after = folder(tmp_path / "after", on(0), iterations=20)
    comparison = compare(before, after)
    assert not comparison.numbers
    assert any("fast before, slow after" in note for note in comparison.notes)
