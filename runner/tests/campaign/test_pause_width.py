from dataclasses import replace
from datetime import datetime

import pytest

from runner.errors import UsageError
from runner.model.result import DirectionTruth, Finding, LinkTruth, Outcome, Result
from runner.model.run import Job, Kind, Pause
from runner.places.place import Concurrency


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{clock}")


@pytest.mark.parametrize(
    ("span", "now", "seconds"),
    [
        ("18:00-23:00", "17:59:59", 0.0),
        ("18:00-23:00", "18:00:00", 5 * 3600.0),
        ("18:00-23:00", "22:59:30", 30.0),
        ("18:00-23:00", "23:00:00", 0.0),
        ("22:00-06:00", "23:00:00", 7 * 3600.0),
        ("22:00-06:00", "05:00:00", 3600.0),
        ("22:00-06:00", "12:00:00", 0.0),
    ],
)
def test_seconds_until_the_pause_is_over(span: str, now: str, seconds: float) -> None:
    assert Pause.parse(span, lambda: at(now)).seconds_left() == seconds


@pytest.mark.parametrize("text", ["18-23", "25:00-26:00", "18:00", "18:00-18:00", ""])
def test_a_span_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="18:00-23:00"):
        Pause.parse(text)


JOB = Job(server="a", client="b", case="sat", iteration=1)


def job_result(lateness: float, *codes: str) -> Result:
    way = DirectionTruth(
        packets_in=1,
        bytes_in=1,
        packets_out=1,
        bytes_out=1,
        dropped_queue=0,
        dropped_loss=0,
        queue_max_packets=0,
        queue_mean_packets=0,
    )
    truth = LinkTruth(seed=1, forward=way, return_=way, lateness_p99=lateness, lateness_max=lateness, socket_drops=0)
    findings = tuple(Finding(code=code, requirement="", expected="", actual="") for code in codes)
    return Result(
        server="a", client="b", case="sat", iteration=1, outcome=Outcome.SUCCEEDED, truth=truth, findings=findings
    )


def test_auto_opens_lanes_while_it_is_calm_and_closes_one_when_disturbed() -> None:
    width = Concurrency.parse("auto")
    begin = width.of(Kind.MEASUREMENT)
    for _ in range(begin):
        width.learn(job_result(1e-4), Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == begin + 1
    width.learn(job_result(0.1, "disturbed"), Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == begin
    for _ in range(1000):
        width.learn(job_result(1e-4), Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == width.most
    for _ in range(1000):
        width.learn(job_result(0.1, "disturbed"), Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == 1


def test_auto_has_room_of_its_own_for_jobs_that_wait() -> None:
    width = Concurrency.parse("auto")
    for _ in range(1000):
        width.learn(job_result(0.1, "disturbed"), Kind.TEST_CASE)
    assert (width.of(Kind.TEST_CASE), width.waiting, width.all) == (1, width.most, 2 * width.most)


def test_a_late_packet_closes_lanes_for_numbers_before_it_does_for_verdicts() -> None:
    width = Concurrency.parse("auto")
    begin = {kind: width.of(kind) for kind in Kind}
    assert begin[Kind.MEASUREMENT] < begin[Kind.TEST_CASE] == width.most
    late = job_result(2e-3)  # s of lateness: too much for a measurement, not for a test case
    for _ in range(100):
        for kind in Kind:
            width.learn(late, kind)
    assert (width.of(Kind.MEASUREMENT), width.of(Kind.TEST_CASE)) == (begin[Kind.MEASUREMENT], width.most)


@pytest.mark.parametrize("role", ["server", "client"])
def test_a_stack_that_stands_still_runs_alone_and_the_others_keep_their_lanes(role: str) -> None:
    width = Concurrency.parse("auto")
    begin = width.of(Kind.MEASUREMENT)
    calm, starved = job_result(1e-4), job_result(1e-4, "disturbed")
    starved = replace(starved, findings=(replace(starved.findings[0], role=role),))
    for _ in range(begin):
        width.learn(calm, Kind.MEASUREMENT)
    width.learn(starved, Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == begin, "first the lane goes that was opened on trial"
    assert not width.alone(JOB, Kind.MEASUREMENT)
    width.learn(starved, Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == begin
    assert width.alone(JOB, Kind.MEASUREMENT)
    assert not width.alone(JOB, Kind.TEST_CASE)
    other = {"server": replace(JOB, server="c"), "client": replace(JOB, client="c")}
    assert not width.alone(other[role], Kind.MEASUREMENT)


def test_a_crowded_host_gets_no_further_lane() -> None:
    width = Concurrency.parse("auto")
    begin = width.of(Kind.MEASUREMENT)
    for _ in range(10 * begin):
        width.learn(replace(job_result(1e-4), cpu_pressure=0.5), Kind.MEASUREMENT)
    assert width.of(Kind.MEASUREMENT) == begin


def test_a_fixed_number_of_lanes_stays() -> None:
    width = Concurrency.parse("3")
    width.learn(job_result(0.1, "disturbed"), Kind.TEST_CASE)
    assert (width.of(Kind.TEST_CASE), width.waiting, width.all) == (3, 0, 3)


@pytest.mark.parametrize("text", ["0", "many", "-1", "65", "1.5"])
def test_a_number_of_lanes_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--lanes"):
        Concurrency.parse(text)
