"""Plans, runs and judges jobs over the links of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import docker

from lab.testbed.hosts import Host
from runner.images.setup import Ready
from runner.judge.judges import analyse
from runner.model.link import RealLink
from runner.model.result import Artifacts, Evidence, Result
from runner.model.run import Job, Run
from runner.places.links.real_links import RealLinks
from runner.plan import jobs
from runner.plan.catalog import Catalog, with_measurements
from runner.plan.choice import iterations_of
from runner.store.runs import load_evidence
from runner.tests.records import over_real, select

STACK = "quic-go"
FORWARD_RATE, RETURN_RATE = 20_000_000, 2_000_000


def link_to(host: Host, *, name: str = "roof", interface: str = "mgmt0", server: Host | None = None) -> RealLink:
    """A link to `host` as an entry of links.json."""
    return RealLink(
        name=name,
        client=host.remote(),
        server=server.remote() if server else None,
        interface=interface,
        forward_rate=FORWARD_RATE,
        return_rate=RETURN_RATE,
    )


@dataclass(frozen=True)
class Work:
    """Open real links, and the run whose jobs use them."""

    run: Run
    catalog: Catalog
    links: RealLinks
    folder: Path
    said: list[str]

    def do(self, job: Job) -> tuple[Result, Evidence]:
        """Run one job and judge it."""
        folder = self.folder / job.case_link / str(job.iteration)
        folder.mkdir(parents=True)
        self.links.run(job, folder, attempt=1)
        result = analyse(job, Artifacts(folder), self.catalog.cases[job.case], self.run.case(job))
        evidence = load_evidence(Artifacts(folder))
        assert evidence is not None
        return result, evidence


def planned(
    catalog: Catalog, links: tuple[RealLink, ...], cases: tuple[str, ...], *, stack: str = STACK
) -> tuple[Catalog, Run]:
    """A run of one pair."""
    catalog = with_measurements(catalog, links)
    records = over_real(catalog, links, cases)
    iterations = {name: iterations_of(record, 3) for name, record in records.items()}
    selection = replace(select(catalog, servers=(stack,), clients=(stack,)), cases=records, iterations=iterations)
    local = docker.from_env()
    ids = {stack: str(local.images.get(catalog.implementations[stack].image).id)}
    run = Ready(ids=ids).recorded_in(jobs.new_run(Path("real"), selection, seed=7))
    return catalog, run


@contextmanager
def working(
    catalog: Catalog, folder: Path, *links: RealLink, cases: tuple[str, ...] = (), timeout: float | None = None
) -> Iterator[Work]:
    """Open the links for jobs of `cases`."""
    catalog, run = planned(catalog, links, cases)
    if timeout is not None:
        run = replace(run, cases={name: replace(case, timeout=timeout) for name, case in run.cases.items()})
    messages: list[str] = []
    with RealLinks.open(
        run, links, ledger=folder / "volume.json", say=messages.append, report=lambda *_: None
    ) as opened:
        yield Work(run, catalog, opened, folder, messages)
