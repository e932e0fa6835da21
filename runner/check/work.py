"""The work of a check: look at the image, probe it, run it against reference peers, handshakes first."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from runner.campaign import clocks
from runner.campaign.campaign import Campaign, Deployment
from runner.campaign.retention import Retention
from runner.campaign.signals import stopping
from runner.campaign.width import Width
from runner.check.cell import Cell
from runner.check.local_build import ENDPOINT_IMAGE, local_build
from runner.check.problems import Problem, of_image, of_output, of_probe
from runner.check.report import Report
from runner.config.catalog import Catalog, load_catalog
from runner.config.selection import Selection
from runner.engine import engine
from runner.errors import InterruptedRunError, UsageError
from runner.guests.deployment import GuestHost, Guests
from runner.guests.experiment import Setting
from runner.images.image_facts import ImageFacts, image_facts
from runner.images.setup import prepare
from runner.lanes.emulated import Emulated
from runner.lanes.lanes import Lanes
from runner.lanes.request import EndpointSpec
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.protocol import HTTP3, OVER_QUIC, WIRE_NAMES
from runner.model.result import Outcome, Result
from runner.model.run import Kind, Run
from runner.plan import runs
from runner.plan.jobs import cannot_talk, declared_unsupported
from runner.plan.runs import LOGS
from runner.store import RunFolder
from runner.terminal.tables import RunWatch

PEERS = ("quic-go", "quinn", "aioquic")  # stacks that any checkout builds; each case takes the first two that know it
PEERS_A_CASE = 2
FIRST_CASES = ("handshake", "http3")  # without one of them a role can do nothing
MEASUREMENTS = ("goodput", "sat")
Places = Lanes | GuestHost
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `check`. Either `image`, or commands of a local build by role."""

    implementations: Path
    image: str | None = None
    commands: Mapping[Role, str]
    name: str | None = None  # of the implementation; None: made from the image's
    peers: tuple[str, ...] = PEERS
    cases: tuple[str, ...] = ()  # empty: all on the default link, goodput and sat
    run: str | None = None
    lanes: str = "auto"
    clock: str = clocks.REAL  # or virtual
    yes: bool = False
    extra_cas: Path | None = None


def check(options: CheckOptions, *, out: Console, err: Console) -> Report:
    """Check one image or local build. Raises UsageError for a missing image or peer, InterruptedRunError after
    Ctrl-C."""
    began = time.monotonic()
    catalog = load_catalog(options.implementations)
    if options.clock != clocks.REAL and options.commands:
        raise UsageError("--clock virtual: a local build runs in real time only; give an image, or leave out --clock.")
    width = clocks.width(options.lanes, options.clock)
    peers = _peers(options, catalog)
    cases = _cases(options, catalog)
    name = _name(options, peers)
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
        or (_of_image(catalog, options.image) if options.name is None else None),
    )


def _of_image(catalog: Catalog, image: str | None) -> Implementation | None:
    """The stack of the catalogue that has this image."""
    return next((stack for stack in catalog.implementations.values() if image and stack.image == image), None)


def _peers(options: CheckOptions, catalog: Catalog) -> tuple[str, ...]:
    for peer in options.peers:
        if peer not in catalog.implementations:
            raise UsageError(f"--peer: there is no stack '{peer}'. Choices: {', '.join(catalog.implementations)}.")
    return tuple(dict.fromkeys(options.peers))


def _cases(options: CheckOptions, catalog: Catalog) -> tuple[str, ...]:
    """The selected cases; without a selection every test case, goodput and sat. Handshakes come first."""
    chosen = catalog.select_cases(options.cases)
    if not options.cases:
        chosen = tuple(name for name in chosen if catalog.cases[name].kind is Kind.TEST_CASE or name in MEASUREMENTS)
    return tuple(name for name in chosen if name in FIRST_CASES) + tuple(
        name for name in chosen if name not in FIRST_CASES
    )


def _name(options: CheckOptions, peers: tuple[str, ...]) -> str:
    name = options.name
    if name is None and options.image is None:
        name = "local"
    if name is None:
        last = (options.image or "").partition("@")[0].rpartition("/")[2].partition(":")[0]
        name = _NOT_A_NAME.sub("-", last).strip("-.") or "image"
        name = f"{name}-candidate" if name in peers else name
    if _NOT_A_NAME.search(name) or name.startswith(".") or name in peers:
        raise UsageError(f"--name {name}: letters, digits, '-' and '.' make a name, and no peer may have it.")
    return name


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
        """The possible roles: both for an image, the given ones for a local build."""
        return tuple(role for role in Role if self.facts is not None or role in self.commands)

    def specs(self) -> dict[tuple[str, Role], EndpointSpec]:
        """How the containers of a local build differ from those of an image."""
        return {(self.name, role): local_build(command) for role, command in self.commands.items()}


def _got_through(result: Result) -> bool:
    """True when the file arrived, even if the case forbids how: other cases may allow it, such as Retry."""
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
        self._asked: list[Job] = []
        self._subject = subject
        self._peers = peers
        self._cases = cases
        self._path = path
        self._width = width
        self._out = out
        self._catalog = catalog
        self._folder: RunFolder | None = None

    def run(self) -> list[Problem]:
        """Probe and run. Returns the problems that only showed while it ran."""
        entry = self._entry(self._subject.roles(), {})
        folder = self._open(entry)
        say = partial(self._out.print, soft_wrap=True, markup=False)
        # The same lanes from the probe to the last job: a new one costs as much as a job.
        with folder.locked(), self._places(folder.run, say) as places:
            problems = self._ask(entry, places)
        return problems + self._output_problems()

    def _places(self, run: Run, say: Callable[[str], None]) -> AbstractContextManager[Places]:
        if run.clock == clocks.REAL:
            return Lanes.open(run.name, lanes=self._width.all, say=say)
        return GuestHost.open(run.name, Setting.of(run), lanes=self._width.all, scratch=LOGS / ".guests")

    def _deployment(self, places: Places) -> Deployment:
        if isinstance(places, GuestHost):
            return Guests(self._run(), places)
        return Emulated(self._run(), places, self._subject.specs())

    def _ask(self, entry: Implementation, places: Places) -> list[Problem]:
        first = self._jobs(entry, tuple(case for case in self._cases if case in FIRST_CASES), peers=1)
        problems = self._probe(first, places)
        self._execute(first, entry, places)
        able = self._able()
        for role in entry.roles:
            if role in able and not able[role]:
                self._out.print(f"As {role.value} it {self._ending(role)} its first case: its other cases are not run.")
            elif role not in able:
                self._out.print(
                    f"As {role.value} it supports neither {' nor '.join(FIRST_CASES)}: not run as {role.value}."
                )
        roles = tuple(role for role in entry.roles if able.get(role))
        if roles:
            entry = self._entry(roles, able)
            jobs = [job for job in self._jobs(entry, self._cases, peers=PEERS_A_CASE) if job not in self.results]
            # The longest first: begun last, they would run alone while the other lanes are idle. Measurements, which
            # leave room for fewer lanes, at the end.
            cases = self._catalog.cases
            jobs.sort(key=lambda job: (cases[job.case].kind is Kind.MEASUREMENT, -cases[job.case].timeout))
            self._execute(jobs, entry, places)
        return problems

    def _entry(self, roles: tuple[Role, ...], able: Mapping[Role, frozenset[str]]) -> Implementation:
        """The subject as a stack. `able`: the first cases that each role passed; empty before they were run."""
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
        """Each case in each role that it judges, against the first `peers` stacks that know it, the case outermost."""
        catalog = self._with(entry)
        jobs = []
        for case in cases:
            for role in (role for role in entry.roles if role in catalog.cases[case].judges):
                pairs = [
                    Job(server=entry.name, client=peer, case=case, iteration=1)
                    if role is Role.SERVER
                    else Job(server=peer, client=entry.name, case=case, iteration=1)
                    for peer in self._peers
                ]
                able = [job for job in pairs if declared_unsupported(catalog, job) is None]
                jobs += able[:peers]
        return jobs

    def _with(self, entry: Implementation) -> Catalog:
        return Catalog(implementations={**self._catalog.implementations, entry.name: entry}, cases=self._catalog.cases)

    def _open(self, entry: Implementation) -> RunFolder:
        wanted = self._jobs(entry, self._cases, peers=PEERS_A_CASE)
        self._folder = RunFolder.create(self._path, replace(self._record(entry), order=tuple(wanted)))
        return self._folder

    def _record(self, entry: Implementation) -> Run:
        """The subject against its peers, both ways."""
        stacks = (entry.name, *self._peers)
        selection = Selection(servers=stacks, clients=stacks, cases=self._cases, iterations=1)
        ids = {entry.name: self._subject.facts.image_id} if self._subject.facts else {}
        run = runs.new_run(
            self._path, self._with(entry), selection, seed=None, shuffled=False, image_ids=ids, timeout_scale=1.0
        )
        return clocks.on(run, self._subject.clock)

    def _probe(self, jobs: list[Job], places: Places) -> list[Problem]:
        """Run the image with an unknown TESTCASE. For a local build the runner itself gives that answer."""
        if self._subject.facts is None:
            return []
        if isinstance(places, GuestHost):
            self._out.print("Whether the image answers an unknown test case with 127 is asked in real time only.")
            return []
        answers = Emulated(self._run(), places, {}).probe(self._path / "compliance.json", jobs)
        mine = {role: reason for (name, role), reason in answers.items() if name == self._subject.name}
        return list(of_probe(mine))

    def _run(self) -> Run:
        assert self._folder is not None, "_open() comes first"
        return self._folder.run

    def _execute(self, jobs: list[Job], entry: Implementation, places: Places) -> None:
        assert self._folder is not None, "_open() comes first"
        record, now = self._run(), self._record(entry)
        self._folder.save_run(replace(record, protocols={**record.protocols, **now.protocols}))
        with RunWatch(self._out) as watch:
            work = Campaign(
                folder=self._folder,
                cases=self._catalog.cases,
                todo=tuple(jobs),
                presets={},
                deployment=self._deployment(places),
                width=self._width,
                retention=Retention.FAILED,
                watch=watch,
                more=self._again,
            )
            self._asked += jobs
            with stopping(work):
                self.results |= work.execute()
        asked = dict.fromkeys((*self._run().order, *self._asked))
        self._folder.save_run(replace(self._run(), order=tuple(asked)))
        if work.stopped:
            raise InterruptedRunError(f"Stopped after {len(self.results)} jobs of the check; they are in {self._path}.")

    def _again(self, job: Job, results: Mapping[Job, Result]) -> Sequence[Job]:
        """Further iterations of the job's cell, once all its running ones have ended."""
        asked = [one for one in self._asked if replace(one, iteration=job.iteration) == job]
        if not all(one in results for one in asked):
            return ()
        cell = Cell(results=tuple(results[one] for one in asked), random=self.is_random(job.case))
        more = [replace(job, iteration=len(asked) + number) for number in range(1, cell.further + 1)]
        self._asked += more
        return more

    def is_random(self, case: str) -> bool:
        """True when another seed affects other packets."""
        return self._catalog.cases[case].record().has_chance

    def _ending(self, role: Role) -> str:
        """What a role that passed none of its first cases did with them."""
        outcomes = {result.outcome for job, result in self.results.items() if self._role_of(job) is role}
        return "fails" if Outcome.FAILED in outcomes else "could not be judged in"

    def _able(self) -> dict[Role, frozenset[str]]:
        """The first cases that succeeded, by role; a role that answered all of them with 127 is left out."""
        able: dict[Role, frozenset[str]] = {}
        for role in Role:
            mine = {job: result for job, result in self.results.items() if self._role_of(job) is role}
            known = {job.case for job, result in mine.items() if result.outcome is not Outcome.UNSUPPORTED}
            if known:
                able[role] = frozenset(job.case for job, result in mine.items() if _got_through(result))
        return able

    def _role_of(self, job: Job) -> Role:
        return Role.SERVER if job.server == self._subject.name else Role.CLIENT

    def _output_problems(self) -> list[Problem]:
        """Problems with rights that the endpoint's own output shows; each once per role."""
        found: dict[Role, Problem] = {}
        for job in self.results:
            role = self._role_of(job)
            log = self._path / job.path / role.value / "output.log"
            if log.is_file() and role not in found:
                for problem in of_output(role, log.read_text(errors="replace")):
                    found[role] = problem
        return list(found.values())

    def wire_names(self) -> dict[str, dict[str, str]]:
        """Case → role → TESTCASE, as they were sent."""
        if self._folder is None:
            return {}
        return {job.case: dict(self._run().wire_names(job)) for job in self.results}
