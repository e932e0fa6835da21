"""The work of a check: inspect the image, probe it, run it against reference peers, handshakes first."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.campaign import Campaign
from runner.campaign.retention import Retention
from runner.campaign.signals import stopping
from runner.campaign.width import Width
from runner.check.cell import Cell, Place
from runner.check.ground import Ground, open_ground
from runner.check.local_build import ENDPOINT_IMAGE, local_build
from runner.check.problems import Problem, of_image, of_output, of_probe
from runner.check.report import Report
from runner.check.subject import (
    FIRST_CASES,
    PEERS,
    jobs_with_peers,
    select_cases,
    select_peers,
    subject_name,
)
from runner.config.catalog import Catalog, load_catalog
from runner.config.selection import Selection
from runner.engine import engine
from runner.errors import InterruptedRunError, UsageError
from runner.guests.memory import require_memory
from runner.images.image_facts import ImageFacts, image_facts
from runner.images.setup import prepare
from runner.lanes.request import EndpointSpec
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.protocol import HTTP3, OVER_QUIC, WIRE_NAMES
from runner.model.result import Outcome, Result
from runner.model.run import Kind, Run
from runner.plan import runs
from runner.plan.jobs import cannot_talk
from runner.plan.runs import LOGS
from runner.store import RunFolder
from runner.terminal.tables import RunWatch

PEERS_A_CASE = 2


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `check`. Either `image`, or commands of a local build by role."""

    implementations: Path
    image: str | None = None
    commands: Mapping[Role, str]
    name: str | None = None  # name of the stack; None: the name is made from the name of the image
    peers: tuple[str, ...] = PEERS
    cases: tuple[str, ...] = ()  # empty: all cases on the default link, goodput and sat
    run: str | None = None
    lanes: str = "auto"
    clock: str = clocks.REAL  # clocks.REAL or clocks.VIRTUAL
    yes: bool = False
    extra_cas: Path | None = None


def check(options: CheckOptions, *, out: Console, err: Console) -> Report:
    """Check one image or local build. Raises UsageError for a missing image or peer, InterruptedRunError after
    Ctrl-C."""
    began = time.monotonic()
    catalog = load_catalog(options.implementations)
    if options.clock != clocks.REAL and options.commands:
        raise UsageError("--clock virtual: a local build runs in real time only. Name an image, or leave out --clock.")
    width = clocks.width(options.lanes, options.clock)
    if options.clock != clocks.REAL:
        require_memory(width.all)  # before the kernel of guests is built, which takes minutes
    peers = select_peers(catalog, options.peers)
    cases = select_cases(catalog, options.cases)
    image = options.image if options.image is not None else "local"
    name = subject_name(options.name, image, peers)
    prepare(
        [catalog.implementations[peer] for peer in peers],
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=options.clock != clocks.REAL,
    )
    facts = image_facts(engine.connect(), options.image) if options.image is not None else None
    problems = list(of_image(facts)) if facts is not None else []
    path = (
        LOGS / "checks" / f"{name}-{time.strftime('%Y-%m-%dT%H%M%S')}"
        if options.run is None
        else runs.run_path(options.run)
    )
    subject = _Subject(name=name, facts=facts, commands=options.commands, clock=options.clock)
    work = _Check(catalog=catalog, subject=subject, peers=peers, cases=cases, path=path, width=width, out=out)
    if any(problem.fatal for problem in problems):
        path.mkdir(parents=True, exist_ok=True)
    else:
        problems += work.run()
    return Report(
        name=name,
        subject=subject.text,
        facts=facts,
        problems=tuple(problems),
        results=work.results,
        wire_names=work.wire_names(),
        random=frozenset(case for case in cases if work.is_random(case)),
        peers=peers,
        run=path,
        seconds=time.monotonic() - began,
        listed=catalog.implementations.get(name)
        or (_stack_with_image(catalog, options.image) if options.name is None else None),
    )


def _stack_with_image(catalog: Catalog, image: str | None) -> Implementation | None:
    """The stack of the catalogue that has this image."""
    return next((stack for stack in catalog.implementations.values() if image and stack.image == image), None)


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The image or local build under check."""

    name: str
    facts: ImageFacts | None
    commands: Mapping[Role, str]
    clock: str

    @property
    def text(self) -> str:
        """The image, or the commands."""
        if self.facts is not None:
            return self.facts.image
        return ", ".join(f"{role.value}: {command}" for role, command in self.commands.items())

    @property
    def image(self) -> str:
        return self.facts.image if self.facts is not None else ENDPOINT_IMAGE

    def roles(self) -> tuple[Role, ...]:
        """The possible roles: both for an image; for a local build the roles with a command."""
        return tuple(role for role in Role if self.facts is not None or role in self.commands)

    def specs(self) -> dict[tuple[str, Role], EndpointSpec]:
        """The endpoints of a local build, by name and role; empty for an image."""
        return {(self.name, role): local_build(command) for role, command in self.commands.items()}


def _got_through(result: Result) -> bool:
    """True when the file arrived. The case may still have failed because of a behaviour that other cases allow, such as
    Retry."""
    return result.outcome is Outcome.SUCCEEDED or (result.outcome is Outcome.FAILED and not cannot_talk(result))


class _Check:
    """The jobs of one check and their results."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        subject: _Subject,
        peers: tuple[str, ...],
        cases: tuple[str, ...],
        path: Path,
        width: Width,
        out: Console,
    ) -> None:
        self.results: dict[Job, Result] = {}
        self._planned: list[Job] = []
        self._subject = subject
        self._peers = peers
        self._cases = cases
        self._path = path
        self._width = width
        self._out = out
        self._say = partial(out.print, soft_wrap=True, markup=False)
        self._catalog = catalog
        self._folder: RunFolder | None = None

    def run(self) -> list[Problem]:
        """Probe the image and run the jobs. Returns the problems that the jobs showed."""
        entry = self._entry(self._subject.roles(), {})
        folder = self._open(entry)
        # All stages use the same lanes: making a lane takes as long as a job.
        with folder.locked(), open_ground(folder.run, self._width, self._say) as ground:
            problems = self._run_all(entry, ground)
        return problems + self._output_problems()

    def _run_all(self, entry: Implementation, ground: Ground) -> list[Problem]:
        first = self._jobs(entry, tuple(case for case in self._cases if case in FIRST_CASES), peers=1)
        problems = self._probe(first, ground)
        self._execute(first, entry, ground)
        able = self._able()
        for role in entry.roles:
            if role in able and not able[role]:
                self._out.print(
                    f"As {role.value} it {self._ending(role)} its first case, so its other cases don't run."
                )
            elif role not in able:
                self._out.print(
                    f"As {role.value} it supports neither {' nor '.join(FIRST_CASES)}, so no case runs in this role."
                )
        roles = tuple(role for role in entry.roles if able.get(role))
        if roles:
            entry = self._entry(roles, able)
            jobs = [job for job in self._jobs(entry, self._cases, peers=PEERS_A_CASE) if job not in self.results]
            # The longest jobs start first: otherwise they would still run when other lanes are already idle.
            # Measurements come last, because fewer lanes may be open during measurements.
            cases = self._catalog.cases
            jobs.sort(key=lambda job: (cases[job.case].kind is Kind.MEASUREMENT, -cases[job.case].timeout))
            self._execute(jobs, entry, ground)
        return problems

    def _entry(self, roles: tuple[Role, ...], able: Mapping[Role, frozenset[str]]) -> Implementation:
        """The subject as a stack. `able`: the first cases that each role passed; empty before they run."""
        facts = self._subject.facts
        only_h3 = {role: (WIRE_NAMES[HTTP3],) for role, cases in able.items() if cases == {"http3"}}
        return Implementation(
            name=self._subject.name,
            image=self._subject.image,
            url=facts.url if facts else "",
            version=facts.version if facts else "",
            roles=roles,
            speaks=OVER_QUIC,
            cases={role: names for role, names in only_h3.items() if role in roles},
        )

    def _jobs(self, entry: Implementation, cases: tuple[str, ...], *, peers: int) -> list[Job]:
        return jobs_with_peers(self._with(entry), entry, cases, self._peers, most=peers)

    def _with(self, entry: Implementation) -> Catalog:
        return Catalog(implementations={**self._catalog.implementations, entry.name: entry}, cases=self._catalog.cases)

    def _open(self, entry: Implementation) -> RunFolder:
        jobs = self._jobs(entry, self._cases, peers=PEERS_A_CASE)
        self._folder = RunFolder.create(self._path, replace(self._record(entry), order=tuple(jobs)))
        return self._folder

    def _record(self, entry: Implementation) -> Run:
        """The record of the run: the subject with its peers, in both roles."""
        stacks = (entry.name, *self._peers)
        selection = Selection(servers=stacks, clients=stacks, cases=self._cases, iterations=1)
        ids = {entry.name: self._subject.facts.image_id} if self._subject.facts else {}
        run = runs.new_run(
            self._path, self._with(entry), selection, seed=None, shuffled=False, image_ids=ids, timeout_scale=1.0
        )
        return clocks.with_clock(run, self._subject.clock)

    def _probe(self, jobs: list[Job], ground: Ground) -> list[Problem]:
        """Run the image with an unknown TESTCASE. A local build needs no probe: its script exits with 127."""
        if self._subject.facts is None:
            return []
        if ground.unprobed:
            self._say(ground.unprobed)
        answers = ground.probe(self._run(), self._path / "compliance.json", jobs)
        reasons = {role: reason for (name, role), reason in answers.items() if name == self._subject.name}
        return list(of_probe(reasons))

    def _run(self) -> Run:
        assert self._folder is not None, "_open() comes first"
        return self._folder.run

    def _execute(self, jobs: list[Job], entry: Implementation, ground: Ground) -> None:
        assert self._folder is not None, "_open() comes first"
        record, now = self._run(), self._record(entry)
        self._folder.save_run(replace(record, protocols={**record.protocols, **now.protocols}))
        with RunWatch(self._out) as watch:
            work = Campaign(
                folder=self._folder,
                cases=self._catalog.cases,
                todo=tuple(jobs),
                presets={},
                deployment=ground.deployment(self._run(), self._subject.specs()),
                width=self._width,
                retention=Retention.FAILED,
                observer=watch,
                extension=self,
            )
            self._planned += jobs
            with stopping(work):
                self.results |= work.execute()
        order = dict.fromkeys((*self._run().order, *self._planned))
        self._folder.save_run(replace(self._run(), order=tuple(order)))
        if work.stopped:
            raise InterruptedRunError(f"Stopped after {len(self.results)} jobs of the check; they are in {self._path}.")

    def further(self, job: Job, results: Mapping[Job, Result]) -> Sequence[Job]:
        """Further iterations of the job's cell; none while iterations of the cell still run."""
        iterations = [other for other in self._planned if replace(other, iteration=job.iteration) == job]
        if not all(other in results for other in iterations):
            return ()
        cell = Cell(results=tuple(results[other] for other in iterations), random=self.is_random(job.case))
        more = [replace(job, iteration=len(iterations) + number) for number in range(1, cell.further + 1)]
        self._planned += more
        return more

    def is_random(self, case: str) -> bool:
        """True when another seed affects other packets."""
        return self._catalog.cases[case].record().has_chance

    def _ending(self, role: Role) -> str:
        """The verb for a role that passed none of its first cases: `fails`, or `could not be judged in`."""
        outcomes = {result.outcome for job, result in self.results.items() if self._role_of(job) is role}
        return "fails" if Outcome.FAILED in outcomes else "could not be judged in"

    def _able(self) -> dict[Role, frozenset[str]]:
        """The first cases that succeeded, by role. A role that supports none of them is left out."""
        able: dict[Role, frozenset[str]] = {}
        for role in Role:
            results = {job: result for job, result in self.results.items() if self._role_of(job) is role}
            known = {job.case for job, result in results.items() if result.outcome is not Outcome.UNSUPPORTED}
            if known:
                able[role] = frozenset(job.case for job, result in results.items() if _got_through(result))
        return able

    def _role_of(self, job: Job) -> Role:
        return Place.of(job, self._subject.name).role

    def _output_problems(self) -> list[Problem]:
        """Problems with missing rights that the output of an endpoint shows, at most one per role."""
        by_role: dict[Role, Problem] = {}
        for job in self.results:
            role = self._role_of(job)
            log = self._path / job.path / role.value / "output.log"
            if log.is_file() and role not in by_role:
                for problem in of_output(role, log.read_text(errors="replace")):
                    by_role[role] = problem
        return list(by_role.values())

    def wire_names(self) -> dict[str, dict[str, str]]:
        """The values of TESTCASE that the endpoints got, by case and role."""
        if self._folder is None:
            return {}
        return {job.case: dict(self._run().wire_names(job)) for job in self.results}
