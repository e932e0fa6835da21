"""Which jobs of a campaign run beside each other, and which run alone."""

import threading
import time
from dataclasses import replace
from pathlib import Path

from runner.campaign.campaign import Campaign
from runner.model.result import Finding, Outcome
from runner.model.run import Job, Kind, Retention
from runner.places.place import Concurrency
from runner.plan import jobs as runs
from runner.plan.catalog import Catalog
from runner.plan.jobs import FIRST_CASE
from runner.store.runs import RunFolder
from runner.tests.campaign.recorded import execute, recorded_run
from runner.tests.records import RECORDINGS
from runner.tests.replay import Replay


def test_jobs_that_wait_run_beside_a_full_house_but_no_measurement(tmp_path: Path, catalog: Catalog) -> None:
    path = tmp_path / "run"
    run = recorded_run(path, catalog, iterations=26)
    names = [FIRST_CASE] * 8 + ["question"] * 8 + ["patient"] * 8 + ["number"] * 2
    order = tuple(replace(job, case=name) for job, name in zip(run.order, names, strict=True))
    question = replace(run.cases["lossy"], kind=Kind.TEST_CASE)
    patient = replace(catalog.cases["handshakeloss"].record(), name="patient")
    cases = {FIRST_CASE: question, "question": question, "patient": patient, "number": run.cases["lossy"]}
    folder = RunFolder.create(path, replace(run, cases=cases, order=order))
    running: list[str] = []
    houses: list[list[str]] = []  # the jobs that were running each time a job began
    full = threading.Event()  # more jobs than lanes run, because some of them wait

    class Slow(Replay):
        def run(self, job: Job, folder: Path, *, attempt: int) -> None:
            running.append(job.case)
            house = sorted(running)
            houses.append(house)
            if {"patient", "question"} <= set(house) and house.count("patient") > 2 and len(house) > width.most:
                full.set()
            if job.case in ("patient", "question"):
                full.wait(20)
            time.sleep(0.2)  # a job that must not run beside this one has time to begin
            super().run(replace(job, case="lossy", iteration=1), folder, attempt=attempt)
            running.remove(job.case)

    width = replace(Concurrency.parse("auto"), most=4, _open=dict.fromkeys(Kind, 2))
    results, _ = execute(folder, catalog, Slow(RECORDINGS), width=width)
    assert results.keys() == set(order)
    assert full.is_set()
    assert max(house.count("patient") for house in houses) <= width.waiting
    assert max(len(house) - house.count("patient") for house in houses) <= width.most
    assert all("patient" not in house for house in houses[:7]), "before a handshake that may spare it"
    assert not any({"patient", "number"} <= set(house) for house in houses)


def test_no_verdict_is_asked_for_beside_a_number_that_wants_to_be_alone(tmp_path: Path, catalog: Catalog) -> None:
    class Watched(Replay):
        def __init__(self) -> None:
            super().__init__(RECORDINGS)
            self.running: set[Job] = set()
            self.together: list[frozenset[Job]] = []
            self.full = threading.Event()

        def run(self, job: Job, folder: Path, *, attempt: int) -> None:
            self.running.add(job)
            self.together.append(frozenset(self.running))
            if len(self.running) == 3:
                self.full.set()
            self.full.wait(20)
            time.sleep(0.3)  # a job that must not run beside this one has time to begin
            super().run(replace(job, case="lossy"), folder, attempt=attempt)
            self.running.remove(job)

    run = recorded_run(tmp_path / "run", catalog)
    verdict = replace(run.cases["lossy"], name="verdict", kind=Kind.TEST_CASE)
    order = tuple(replace(job, case=case) for case in ("verdict", "lossy", "verdict") for job in run.order[:3])
    order = tuple(replace(job, iteration=at) for at, job in enumerate(order, start=1))
    folder = RunFolder.create(tmp_path / "run", replace(run, cases={**run.cases, "verdict": verdict}, order=order))
    watched = Watched()
    Campaign(
        folder=folder,
        cases=dict.fromkeys(("lossy", "verdict"), catalog.cases["goodput"]),
        todo=order,
        verdicts_without_run={},
        deployment=watched,
        width=Concurrency(most=3, _open={Kind.MEASUREMENT: 1, Kind.TEST_CASE: 3}),
        retention=Retention("none"),
    ).execute()
    assert watched.full.is_set()
    assert max(map(len, watched.together)) == 3
    assert {len(jobs) for jobs in watched.together if any(job.case == "lossy" for job in jobs)} == {1}


def test_a_stack_that_needs_the_cpus_for_itself_lets_others_pass(tmp_path: Path, catalog: Catalog) -> None:
    together: list[frozenset[str]] = []
    running: set[str] = set()
    second = threading.Event()

    class Slow(Replay):
        def run(self, job: Job, folder: Path, *, attempt: int) -> None:
            running.add(str(job))
            together.append(frozenset(running))
            if len(together) > 1:
                second.set()
            second.wait(20)
            time.sleep(0.3)  # a job that must not run beside this one has time to begin
            super().run(replace(job, client="quinn", iteration=1), folder, attempt=attempt)
            running.remove(str(job))

    run = recorded_run(tmp_path / "run", catalog)
    first = replace(run.order[0], server="quinn", client="quinn")
    order = tuple(
        replace(first, client=client, iteration=at)
        for at, client in enumerate(("light", "heavy", "light", "heavy", "light"), start=1)
    )
    folder = RunFolder.create(tmp_path / "run", replace(run, order=order))
    width = Concurrency(most=2, _open={Kind.MEASUREMENT: 2, Kind.TEST_CASE: 2}, adaptive=True)
    starved = Finding(code="disturbed", requirement="", expected="", actual="", role="client")
    width.learn(runs.without_run(order[1], Outcome.ERROR, starved), Kind.MEASUREMENT)
    results, _ = execute(folder, catalog, Slow(RECORDINGS), width=width)
    assert results.keys() == set(order)
    assert max(map(len, together)) == 2
    assert {len(jobs) for jobs in together if any("heavy" in job for job in jobs)} == {1}
    assert len(together[1]) == 2, "the second light one did not wait for the heavy one before it"
