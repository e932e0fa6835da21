"""A candidate, the build under test: its jobs with reference peers, the verdict over all iterations of a case, and
problems with their fixes."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree as Xml

from runner.campaign.campaign import Campaign, stopping
from runner.compare.stats import count, rate_text
from runner.errors import InterruptedRunError, UsageError
from runner.images.images import ImageFacts
from runner.images.setup import Ready
from runner.judge.execution import missing_program
from runner.model.result import Finding, Observer, Outcome, Result, Silent
from runner.model.run import CaseRecord, Job, Kind, Retention
from runner.model.stack import OVER_QUIC, Implementation, Role
from runner.places.lane_job import Specs
from runner.places.place import Concurrency, Place
from runner.plan.catalog import Catalog
from runner.plan.choice import Selection, named, named_cases, split
from runner.plan.jobs import FIRST_CASE, declared_unsupported, new_run, other_protocols
from runner.store.runs import RunFolder
from runner.units import format_count
from testcases.hits import MISSED

# One case with one peer: the rule for further iterations, and the verdict over all iterations.
#
# When a case with random impairments failed, it runs again with other seeds. The image fails the case when 3
# (`HELD`) of at most 5 (`MOST`) iterations fail.

# Good stacks failed 5 of 64 jobs of `handshakeloss` and `handshakecorruption`: a client gave up 1 of 50 handshakes.
# With one iteration for each of 8 cells, `./bentpipe check` would reject a good image in half of its runs. A stack that
# fails 1 job in 10 fails 3 of 5 iterations in 1 of 190 cells.
MOST = 5
HELD = 3
TRIES = 3  # after so many iterations without a verdict (missed impairment, harness error), the cell stays undecided


@dataclass(frozen=True)
class CellPlace:
    """The place of a cell in the table of the image under check: case, role of the image, peer."""

    case: str
    role: Role
    peer: str

    @classmethod
    def of(cls, job: Job, stack: str) -> "CellPlace":
        """The place of a job of `stack` with a peer."""
        is_server = job.server == stack
        return cls(job.case, Role.SERVER if is_server else Role.CLIENT, job.client if is_server else job.server)

    def __str__(self) -> str:
        return f"{self.case} as {self.role.value} with {self.peer}"


@dataclass(frozen=True, kw_only=True)
class CheckedCell:
    """One case with one peer. `results`: the results of the iterations so far, at least one. `random`: True when
    another seed affects other packets."""

    results: tuple[Result, ...]
    random: bool

    @cached_property
    def decided(self) -> tuple[Result, ...]:
        """Iterations that did not end as errors of the harness."""
        return tuple(result for result in self.results if result.outcome is not Outcome.ERROR)

    @cached_property
    def failures(self) -> int:
        return sum(result.outcome is Outcome.FAILED for result in self.decided)

    @property
    def further(self) -> int:
        """The number of iterations to run next. A disturbed job is not run again here, because it already had all its
        attempts.

        All iterations that may be needed start together: in parallel they take as long as one iteration, about a
        minute.
        """
        undecided = [code_of(result) for result in self.results if result.outcome is Outcome.ERROR]
        if len(undecided) >= TRIES:
            return 0
        if not self.decided:
            return int(set(undecided) == {MISSED})
        passes = len(self.decided) - self.failures
        settled = self.failures >= HELD or passes > MOST - HELD
        return MOST - len(self.decided) if self.random and self.failures and not settled else 0

    @cached_property
    def outcome(self) -> Outcome:
        """The outcome over all iterations; an error means that the case could not be decided."""
        if not self.decided:
            return Outcome.ERROR
        if not (self.random and self.failures):
            return self.decided[0].outcome
        if self.failures >= HELD:
            return Outcome.FAILED
        return Outcome.SUCCEEDED if count(self.decided).successes > self.failures else Outcome.ERROR

    @property
    def tolerated(self) -> bool:
        """True when the case failed, but not more often than chance allows."""
        return self.outcome is Outcome.SUCCEEDED and self.failures > 0

    @property
    def rate(self) -> str:
        """`4/5 succeeded, a rate of 28% to 99% (95 %)`; empty for a single iteration."""
        judged = count(self.decided)
        return rate_text(judged) if judged.attempts > 1 else ""

    @property
    def shown(self) -> Result:
        """The iteration that represents the cell: the first that failed. In an undecided cell, it is the first that
        ended as an error. In a cell without failures, it is the first with the outcome of the cell."""
        reasons = (Outcome.ERROR, Outcome.FAILED) if self.outcome is Outcome.ERROR else (Outcome.FAILED, self.outcome)
        return next(result for reason in reasons for result in self.results if result.outcome is reason)


def code_of(result: Result) -> str:
    """The code of the finding that explains the outcome; empty without a finding."""
    return result.cause.code if result.cause is not None else ""


def by_the_peer(result: Result, role: Role) -> bool:
    """True when the job failed by the fault of the peer of the stack in `role`."""
    return result.culprit not in ("", role.value)


# The subject of a check or comparison: its name, its peers, cases and jobs.

PEERS = ("quic-go", "quinn", "aioquic")  # built from this repository
FIRST_CASES = ("handshake", "http3")  # a role that passes neither of them can't pass any other case
MEASUREMENTS = ("goodput", "sat")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9.-]+")


def select_peers(catalog: Catalog, names: Iterable[str]) -> tuple[str, ...]:
    """The peers in the order of `names`, without repetitions; without names, `PEERS`. Raises UsageError for a stack
    that the catalogue doesn't have."""
    peers = tuple(dict.fromkeys(split(names))) or PEERS
    named(peers, list(catalog.implementations), kind="stack", option="--peer")
    return peers


def select_cases(catalog: Catalog, names: tuple[str, ...]) -> tuple[str, ...]:
    """The selected cases; without a selection every test case, goodput and sat. Handshakes come first."""
    chosen = named_cases(catalog, names)
    if not names:
        chosen = tuple(name for name in chosen if catalog.cases[name].kind is Kind.TEST_CASE or name in MEASUREMENTS)
    return tuple(sorted(chosen, key=lambda name: name not in FIRST_CASES))


def subject_name(name: str | None, image: str, peers: Sequence[str]) -> str:
    """The name of the stack under check: `name`, or a name made from the name of the image. Raises UsageError for an
    unusable name."""
    if name is None:
        last = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        name = _NOT_A_NAME.sub("-", last).strip("-.") or "image"
        name = f"{name}-candidate" if name in peers else name
    if not name or _NOT_A_NAME.search(name) or name.startswith(".") or name in peers:
        raise UsageError(f"--name {name}: use letters, digits, '-' and '.' only, and not the name of a peer.")
    return name


def as_stack(
    name: str, image: str, facts: ImageFacts | None, *, roles: tuple[Role, ...] = tuple(Role)
) -> Implementation:
    """A build under test as an entry of the catalogue. `facts`: of its image."""
    return Implementation(
        name=name,
        image=image,
        url=facts.url if facts else "",
        version=facts.version if facts else "",
        roles=roles,
        speaks=OVER_QUIC,
    )


def with_stack(catalog: Catalog, entry: Implementation) -> Catalog:
    """The catalogue in which `entry` is the stack of its name."""
    return replace(catalog, implementations={**catalog.implementations, entry.name: entry})


def jobs_with_peers(
    catalog: Catalog, name: str, cases: Iterable[str], peers: Sequence[str], *, most: int
) -> tuple[Job, ...]:
    """The first iteration of each case in each role of the stack `name` that the case judges, with the first `most`
    peers that support it."""
    jobs: list[Job] = []
    for case in cases:
        for role in catalog.implementations[name].roles:
            if role in catalog.cases[case].judges:
                pairs = [(name, peer) if role is Role.SERVER else (peer, name) for peer in peers]
                played = [Job(server=server, client=client, case=case, iteration=1) for server, client in pairs]
                jobs += [job for job in played if declared_unsupported(catalog, job) is None][:most]
    return tuple(jobs)


# Problems of an image and their fixes: in the image itself, in the compliance probe, and in its jobs.

_BASE_IMAGE = (
    "start from the public runner's endpoint image (or implementations/_endpoint of this project), "
    "which sets the routes through the simulator"
)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A breach of the contract. `fatal`: the image can't be run."""

    code: str
    what: str
    fix: str
    fatal: bool = False


def of_image(facts: ImageFacts) -> Iterator[Problem]:
    """Problems that are visible without running the image (docs/contract.md)."""
    if facts.platform != facts.host_platform:
        yield Problem(
            code="wrong-platform",
            what=f"The image is built for {facts.platform}, this host runs {facts.host_platform}.",
            fix=f"Build it with `docker build --platform {facts.host_platform}`.",
            fatal=True,
        )
    if not facts.starts:
        yield Problem(
            code="no-entry-point",
            what="The image has neither ENTRYPOINT nor CMD: the runner starts it without a command.",
            fix='End the Dockerfile with `ENTRYPOINT ["/run_endpoint.sh"]`, or with the command of your endpoint.',
            fatal=True,
        )
    if "/setup.sh" not in facts.files:
        yield Problem(
            code="no-setup-script",
            what="The image has no /setup.sh: in the public runner its packets would never reach the simulator.",
            fix=f"Let the Dockerfile {_BASE_IMAGE}.",
        )
    if facts.user not in ("", "0", "root", "0:0", "root:root"):
        yield Problem(
            code="not-root",
            what=f"The image runs as '{facts.user}', which can't set routes: /setup.sh needs root with NET_ADMIN.",
            fix="Remove USER from the Dockerfile. If you need fewer rights, drop them after /setup.sh.",
        )


def of_probe(answers: Mapping[Role, str]) -> Iterator[Problem]:
    """Problems that the compliance probe shows. `answers`: the reasons why the image is not compliant, by role."""
    for role, reason in answers.items():
        yield Problem(
            code="ignores-testcase",
            what=f"As {role.value}, with a TESTCASE that does not exist, {reason}.",
            fix="Compare TESTCASE with the list of supported cases first, and exit with 127 for any other case.",
        )


def of_output(role: Role, output: str, *, unsupported: bool = False) -> Iterator[Problem]:
    """Problems that the output of an endpoint shows. `unsupported`: the endpoint exited with 127."""
    refused = [line for line in output.splitlines() if "Operation not permitted" in line]
    if refused:
        yield Problem(
            code="no-net-admin",
            what=f"As {role.value}, /setup.sh lacks a permission: `{refused[0].strip()[:160]}`.",
            fix="Run /setup.sh as root before anything else: only root has NET_ADMIN in the container.",
        )
    if unsupported and (missing := missing_program(output)):
        yield Problem(
            code="program-missing",
            what=f"As {role.value}, it exited with 127 because a program is missing: `{missing}`.",
            fix="Correct the path of the program, or add it to the image: 127 means only an unsupported case.",
        )


# Candidates and their jobs with peers: `check` and a meeting with the hostile peer have one candidate, `ci` has one for
# each of two builds.


@dataclass(kw_only=True)
class Candidate:
    """One build of the stack under test, and its run with reference peers.

    `catalog`: the catalogue with this build as the stack `name`. `facts`: of its image; None: commands of this host,
    which are the endpoints `specs`.
    """

    name: str
    catalog: Catalog
    peers: tuple[str, ...]
    facts: ImageFacts | None
    specs: Specs
    folder: RunFolder
    observer: Observer = field(default_factory=Silent)
    results: dict[Job, Result] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def create(
        cls,
        path: Path,
        entry: Implementation,
        *,
        catalog: Catalog,
        peers: tuple[str, ...],
        cases: tuple[str, ...] = (FIRST_CASE,),
        most: int = 0,
        own: Mapping[Job, CaseRecord] | None = None,
        facts: ImageFacts | None,
        specs: Specs = MappingProxyType({}),
        clock: str,
        seed: int | None = None,
        images: Ready,
        observer: Observer = Silent(),  # noqa: B008 - it has no state
    ) -> "Candidate":
        """Make the run folder `path` with the first iteration of each case with `most` peers, or with the jobs of `own`
        and their cases. `entry`: the build as a stack. `images`: those of the peers. Raises UsageError when the folder
        already has a run."""
        known = with_stack(catalog, entry)
        stacks = (entry.name, *peers)
        selection = Selection.of(known, servers=stacks, clients=stacks, cases=cases, iterations=1)
        if facts:
            images = replace(images, ids={**images.ids, entry.name: facts.image_id})
        run = images.recorded_in(new_run(path, selection, clock=clock, seed=seed))
        if own is not None:
            run = replace(run, cases={job.case: record for job, record in own.items()}, order=tuple(own))
        else:
            run = replace(run, order=jobs_with_peers(known, entry.name, cases, peers, most=most))
            if not run.order:
                raise UsageError("No job is left: no peer supports any of the selected cases in the selected roles.")
        return cls(
            name=entry.name,
            catalog=known,
            peers=peers,
            facts=facts,
            specs=specs,
            folder=RunFolder.create(path, run),
            observer=observer,
            problems=list(of_image(facts)) if facts else [],
        )

    @property
    def entry(self) -> Implementation:
        return self.catalog.implementations[self.name]

    @property
    def runs(self) -> bool:
        """False when the image can't be run at all."""
        return not any(problem.fatal for problem in self.problems)

    def limit(self, cases: Mapping[Role, tuple[str, ...]]) -> None:
        """From now on the build has only these roles, and supports only these cases in them; an empty tuple: all."""
        entry = replace(self.entry, roles=tuple(cases), cases={role: names for role, names in cases.items() if names})
        self.catalog = with_stack(self.catalog, entry)

    def jobs(self, cases: Iterable[str], *, most: int) -> list[Job]:
        """The jobs of `cases` that have no result yet, with the first `most` peers that support each case."""
        jobs = jobs_with_peers(self.catalog, self.name, cases, self.peers, most=most)
        return [job for job in jobs if job not in self.results]

    def cells(self) -> dict[CellPlace, tuple[Result, ...]]:
        """The results of each case with each peer, by iteration; cells in the order in which they were first run."""
        return cells_of(self.results, self.name)


def cells_of(results: Mapping[Job, Result], name: str) -> dict[CellPlace, tuple[Result, ...]]:
    """The results of the stack `name` with each peer in each case, by iteration."""
    cells: dict[CellPlace, list[Result]] = {}
    for job, result in results.items():
        cells.setdefault(CellPlace.of(job, name), []).append(result)
    return {place: tuple(sorted(cell, key=lambda result: result.iteration)) for place, cell in cells.items()}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The jobs of candidates at one place. `path`: the folder of all their runs."""

    candidates: tuple[Candidate, ...]
    place: Place
    width: Concurrency
    path: Path

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the runs, and open the place. All stages use it: making a lane takes as long as a job."""
        with ExitStack() as stack:
            for candidate in self.candidates:
                stack.enter_context(candidate.folder.locked())
            stack.enter_context(self.place.open(self.candidates[0].folder.run, self.width))
            yield

    def probe(self, jobs: Sequence[Job]) -> None:
        """Run the images with an unknown TESTCASE. Commands of this host need no probe: their script exits with 127."""
        for candidate in self.candidates:
            if candidate.facts is not None:
                run, record = candidate.folder.run, candidate.folder.path / "compliance.json"
                answers = self.place.probe(run, record, jobs)
                reasons = {role: reason for (name, role), reason in answers.items() if name == candidate.name}
                candidate.problems += of_probe(reasons)

    def run(self, jobs: Sequence[Job], retention: Retention = Retention.FAILED) -> None:
        """Run the jobs with each candidate: with all candidates at the same time when they can't disturb each other,
        otherwise case by case in turns. Raises InterruptedRunError after Ctrl-C."""
        one, at_once = len(self.candidates) == 1, self.place.runs_at_once
        for _, block in groupby(jobs, key=lambda job: "" if one or at_once else job.case):
            todo = tuple(block)
            works = [self._campaign(candidate, todo, retention) for candidate in self.candidates]
            with stopping(*works), ThreadPoolExecutor(len(works)) as pool:
                execute = pool.map if at_once and not one else map
                for candidate, results in zip(self.candidates, execute(Campaign.execute, works), strict=True):
                    candidate.results |= results
            if any(work.stopped for work in works):
                done = sum(len(candidate.results) for candidate in self.candidates)
                raise InterruptedRunError(f"Stopped after {format_count(done, 'job')}; they are in {self.path}.")

    def _campaign(self, candidate: Candidate, jobs: tuple[Job, ...], retention: Retention) -> Campaign:
        folder = candidate.folder
        order = dict.fromkeys((*folder.run.order, *jobs))
        protocols = folder.run.protocols | other_protocols(candidate.catalog, jobs)
        folder.save_run(replace(folder.run, order=tuple(order), protocols=protocols))
        return Campaign(
            folder=folder,
            cases=candidate.catalog.cases,
            todo=jobs,
            verdicts_without_run={},
            deployment=self.place.deployment(folder.run, candidate.specs),
            width=self.width,
            retention=retention,
            observer=candidate.observer,
        )


# Fixes by the code of a finding. For other codes, the finding's requirement already says what to do.
FIXES = {
    "server-not-ready": "Listen on UDP port 443 of all addresses, IPv4 and IPv6, within 10 s of the start, and answer "
    "unknown versions with Version Negotiation.",
    "server-exit": "Keep serving until SIGTERM. The last lines of the log say why the server ended.",
    "client-exit": "Exit with 0 when every file is saved. The last lines of the log say why the client didn't.",
    "client-not-started": "The first process must exist in the image and be executable.",
    "server-not-started": "The first process must exist in the image and be executable.",
    "timeout": "Let the client end by itself as soon as the last file is saved.",
    "files-differ": "A client saves each URL's body to /downloads/<last part of the path>, completely, before it "
    "exits; a server answers each request with the whole file of /www and ends the stream.",
    "files-extra": "Write nothing but the requested files to /downloads; logs belong to /logs.",
    "no-key-log": "Append secrets in the NSS key log format to the file that SSLKEYLOGFILE names.",
    "wrong-alpn": "Offer or accept hq-interop in every case except http3, which needs h3.",
    "handshake-count": "Use one connection for all requests, except in multiconnect, resumption and zerortt.",
    "output-flood": "Print less, and write traces into files below /logs.",
    "volume-full": "Write less below /logs: qlog and key log are enough.",
}


_A_CONNECTION_EACH = "Open a new connection for each of the 50 requests, one after the other."
# Fixes for single cases in which the general advice would be wrong.
_FIXES_OF_CASES = {
    ("handshake-count", "handshakeloss"): _A_CONNECTION_EACH,
    ("handshake-count", "handshakecorruption"): _A_CONNECTION_EACH,
    ("handshake-count", "resumption"): "Open two connections. The second resumes the session of the first.",
    ("handshake-count", "zerortt"): "Open two connections. The second sends its requests in 0-RTT.",
    ("timeout", "handshakeloss"): "Repeat lost handshake packets after the probe time-out (RFC 9002 §6.2). Don't close "
    "a connection before the idle time-out.",
    ("timeout", "handshakecorruption"): "Discard packets that can't be authenticated. Repeat lost packets after the "
    "probe time-out (RFC 9002 §6.2).",
    (
        "black-hole-not-noticed",
        "mtublackhole",
    ): "Fall back to 1200-byte datagrams when only large ones are lost (RFC 8899 §4.3).",
    ("timeout", "blackhole"): "Continue after a silence of two seconds. Probe time-outs must not grow far beyond two "
    "seconds.",
    ("wrong-alpn", "http3"): "Offer or accept h3 in this case.",
}


_FOR_CLIENTS = frozenset({"client-exit", "files-extra", "timeout"})
"""Codes whose fix is for the client."""


def fix(finding: Finding, case: str, role: Role) -> str:
    """The fix for the image in `role`. Empty when the finding's requirement already says it, or when the finding is
    about the peer."""
    if finding.role not in ("", role.value) or (finding.code in _FOR_CLIENTS and role is Role.SERVER):
        return ""
    return _FIXES_OF_CASES.get((finding.code, case)) or FIXES.get(finding.code, "")


_HOST_FAILED = "Repair what `./bentpipe doctor` reports about this host. Then check the image again."


def open_fix(code: str) -> str:
    """The fix for a cell that could not be decided for this reason."""
    known = {
        MISSED: "The image has no problem: the impairment of the link did not affect any of its packets. Run this case "
        "again with `--case`; another seed may affect some.",
        "disturbed": "Check the image again while this host is idle, or with `--lanes 1`.",
    }
    return known.get(code) or FIXES.get(code, _HOST_FAILED)


# JUnit files, which CI systems read: of a check, and of a comparison of two builds.

_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)))  # characters that XML 1.0 doesn't allow; left out


@dataclass(frozen=True, kw_only=True)
class JUnitEntry:
    """One cell or problem in the file. `tag`: failure, error or skipped; empty: it passed, and `text` is a note."""

    tag: str = ""
    message: str = ""
    text: str = ""
    seconds: float = 0.0


def junit(title: str, problems: Iterable[Problem], entries: Mapping[CellPlace, JUnitEntry]) -> bytes:
    """The file: one suite for the contract, and one for each role."""
    root = Xml.Element("testsuites", name=f"bentpipe {title}")
    contract = {
        ("contract", problem.code): JUnitEntry(tag="failure", message=problem.what, text=problem.fix)
        for problem in problems
    }
    _add_suite(root, "contract", contract or {("contract", "image and probe"): JUnitEntry()})
    for role in Role:
        cases = {
            (f"{role.value}.{place.peer}", place.case): entry for place, entry in entries.items() if place.role is role
        }
        _add_suite(root, role.value, cases)
    Xml.indent(root)
    document: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _add_suite(root: Xml.Element, name: str, entries: Mapping[tuple[str, str], JUnitEntry]) -> None:
    """Add a suite with its counts. `entries`: by class name and name of the test case."""
    suite = Xml.SubElement(root, "testsuite", name=name, tests=str(len(entries)))
    for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(entry.tag == tag for entry in entries.values())))
    for (classname, case), entry in entries.items():
        element = Xml.SubElement(suite, "testcase", classname=classname, name=case, time=f"{entry.seconds:.3f}")
        if entry.tag:
            child = Xml.SubElement(element, entry.tag, message=entry.message.translate(_CONTROL))
        elif entry.text:
            child = Xml.SubElement(element, "system-out")
        else:
            continue
        child.text = entry.text.translate(_CONTROL)
