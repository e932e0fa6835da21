"""The estimate of the time left, with the times of a real demo of 27 jobs on a busy host with 2 cores."""

import pytest

from runner.campaign.campaign import TimeLeft
from runner.model.run import Job

# (began, ended, case, whether it counted), in s: 8 lanes for verdicts, then 2 for numbers, of which one closed at once.
# Six attempts were disturbed. The loop of that time said when the first number was done that 9 min 20 s were left, and
# 272 s were; then 7 min 54 s (260 s), …, 2 min 17 s (199 s), 3 min 57 s (186 s): ends that differ by 349 s.
ATTEMPTS = (
    *((0.0, end, "handshake", True) for end in (12.8, 13.3, 14.5, 14.9, 15.5, 15.9, 16.1, 16.2)),
    (12.8, 17.3, "handshake", True),
    *((17.3, 32.3, "goodput", False),) * 2,
    *((32.3 + 12.3 * number, 44.6 + 12.3 * number, "goodput", True) for number in range(5)),
    (93.8, 106.0, "goodput", False),
    (106.0, 118.0, "goodput", True),
    (118.0, 131.3, "goodput", True),
    (118.0, 132.4, "goodput", True),
    (132.4, 145.0, "goodput", False),
    (145.0, 159.7, "goodput", True),
    (159.7, 173.2, "sat", False),
    (173.2, 186.6, "sat", True),
    (186.6, 200.4, "sat", True),
    (200.4, 216.0, "sat", False),
    *((216.0 + 14.5 * number, 230.5 + 14.5 * number, "sat", True) for number in range(7)),
)
EXPECTED = {"handshake": 2.3, "goodput": 15.6, "sat": 12.5}  # seconds of a job according to the plan
GROUPS = {"handshake": "verdict", "goodput": "number", "sat": "number"}
WHOLE = 317.5


def told() -> list[tuple[float, float]]:
    """The moment of each finished job, and the time left that was reported then."""
    jobs = {
        number: Job(server="s", client="c", case=attempt[2], iteration=number + 1)
        for number, attempt in enumerate(ATTEMPTS)
    }
    counted = {jobs[number]: EXPECTED[attempt[2]] for number, attempt in enumerate(ATTEMPTS) if attempt[3]}
    left = TimeLeft(counted, lambda job: GROUPS[job.case])
    moments = sorted({moment for attempt in ATTEMPTS for moment in attempt[:2]})
    collected = []
    for moment in moments:
        left.passed(
            moment, [jobs[at] for at, ended_job in enumerate(ATTEMPTS) if ended_job[0] < moment <= ended_job[1]]
        )
        ended = [jobs[at] for at, ended_job in enumerate(ATTEMPTS) if ended_job[1] == moment and ended_job[3]]
        for job in ended:
            left.finished(job, ran=True)
        if ended:
            collected.append((moment, left.seconds(lambda group: 1.0 if group == "number" else 4.0)))
    return collected


def test_the_estimate_of_a_recorded_run_is_near_and_steady() -> None:
    estimates = told()
    assert len(estimates) >= 25
    for moment, seconds in estimates[:-2]:
        assert seconds == pytest.approx(WHOLE - moment, rel=0.4, abs=10), moment
    ends = [moment + seconds for moment, seconds in estimates]
    assert max(ends) - min(ends) < 120
    assert estimates[-1][1] == 0.0


def test_what_nobody_had_to_run_says_nothing_of_the_rate() -> None:
    jobs = [Job(server="s", client="c", case="sat", iteration=number) for number in (1, 2, 3)]
    left = TimeLeft(dict.fromkeys(jobs, 10.0), lambda _: "number")
    assert left.seconds(lambda _: 2.0) == pytest.approx(15.0)
    left.finished(jobs[0], ran=False)
    assert left.seconds(lambda _: 2.0) == pytest.approx(10.0)
    left.finished(jobs[0], ran=True)
    assert left.seconds(lambda _: 2.0) == pytest.approx(10.0)


def test_groups_that_run_at_once_share_the_time() -> None:
    jobs = [Job(server="s", client="c", case=case, iteration=at) for case in ("a", "b") for at in range(200)]
    left = TimeLeft(dict.fromkeys(jobs, 1.0), lambda job: job.case)
    for second in range(101):
        running = (jobs[second], jobs[200 + second])
        left.passed(float(second), running)
        if second:
            for job in (jobs[second - 1], jobs[199 + second]):
                left.finished(job, ran=True)
    assert left.seconds(lambda _: 1.0) == pytest.approx(100.0, rel=0.2)
