"""The choice of a worker for a job: the window, spreading, pinning, benching."""

from collections import Counter

import pytest

from runner.model.run import Job
from runner.places.workers.workers import BENCH_SECONDS, STRIKES, Member, Roster, Spread


def job(iteration: int = 1, case: str = "goodput") -> Job:
    return Job(server="quinn", client="quic-go", case=case, iteration=iteration)


def roster(*hosts: str, lanes: int = 2, spread: Spread = Spread.ANY) -> Roster:
    made = Roster(spread=spread)
    for number, host in enumerate(hosts):
        made.admit(Member(address=f"tls://{number}", name=f"{host}-{number}", host=host, lanes=lanes))
    return made


def test_each_worker_has_half_as_many_jobs_again_as_lanes() -> None:
    workers = roster("a", "b")
    assert workers.window == 6
    placed = [workers.place(job(number)) for number in range(1, 8)]
    assert placed[-1] is None
    assert Counter(member.host for member in placed if member) == {"a": 3, "b": 3}


def test_a_job_goes_to_the_worker_that_has_least_to_do() -> None:
    workers = roster("a", "b")
    first = workers.place(job(1))
    second = workers.place(job(2))
    assert first is not None
    assert second is not None
    workers.give_back(first)
    assert workers.place(job(3)) is first


def test_another_attempt_runs_on_another_worker_where_there_is_one() -> None:
    assert roster("a", "b").place(job(), avoid="tls://0").address == "tls://1"  # type: ignore[union-attr]
    assert roster("a").place(job(), avoid="tls://0").address == "tls://0"  # type: ignore[union-attr]


def test_iterations_are_spread_over_hosts_evenly() -> None:
    workers = roster("a", "a", "b", "c", spread=Spread.HOSTS)
    hosts = []
    for number in range(1, 10):
        member = workers.place(job(number))
        assert member is not None
        hosts.append(member.host)
        workers.give_back(member)
    assert Counter(hosts) == {"a": 3, "b": 3, "c": 3}


def test_a_pinned_cell_stays_on_its_host_while_it_is_there() -> None:
    workers = roster("a", "b", "c", "d", spread=Spread.PINNED)
    cells = [f"case{number}" for number in range(40)]

    def hosts() -> dict[str, str]:
        placed = {}
        for case in cells:
            member = workers.place(job(case=case))
            assert member is not None
            placed[case] = member.host
            workers.give_back(member)
        return placed

    before = hosts()
    assert hosts() == before
    assert len(set(before.values())) == 4
    workers.lose("tls://1")
    after = hosts()
    assert {case for case in cells if before[case] != after[case]} == {case for case in cells if before[case] == "b"}


def test_a_worker_that_disturbs_is_benched_for_a_while() -> None:
    now = [0.0]
    workers = roster("a", "b")
    workers.clock = lambda: now[0]
    text = [workers.learn("a-0", fault="disturbed: late packets") for _ in range(STRIKES)]
    assert text[:-1] == [""] * (STRIKES - 1)
    assert text[-1] == "a-0 gets no jobs for 10 minutes: its last 3 jobs did not count (disturbed: late packets)."
    assert {member.host for number in range(3) if (member := workers.place(job(number)))} == {"b"}
    assert workers.window == 3
    now[0] = BENCH_SECONDS
    assert workers.window == 6


def test_a_job_that_counts_forgives() -> None:
    workers = roster("a", "b")
    for fault in ["disturbed"] * (STRIKES - 1) + [""] + ["disturbed"] * (STRIKES - 1):
        assert not workers.learn("a-0", fault=fault)


def test_the_last_worker_is_never_benched() -> None:
    workers = roster("a", "b")
    for _ in range(STRIKES):
        workers.learn("a-0", fault="disturbed")
    assert not any(workers.learn("b-1", fault="disturbed") for _ in range(3 * STRIKES))
    assert workers.place(job()) is not None


@pytest.mark.parametrize("spread", list(Spread))
def test_without_workers_nobody_gets_a_job(spread: Spread) -> None:
    assert roster(spread=spread).place(job()) is None
