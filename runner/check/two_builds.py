"""`ci`: builds two commits or finds two images of a stack, and runs the same jobs with both side by side."""

import os
import secrets
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from runner.campaign.campaign import Campaign, stopping
from runner.campaign.matrix import packet_hashes
from runner.campaign.stacks import load_saved, ready_without_engine
from runner.check.cell import (
    CellPlace,
    Problem,
    code_of,
    jobs_with_peers,
    of_image,
    of_probe,
    select_cases,
    select_peers,
    subject_name,
)
from runner.check.change import Change, ChangeReport, confirmed_by_peers
from runner.engine import engine
from runner.errors import BentpipeError, InterruptedRunError, LaneError, SetupError, UsageError
from runner.files import remove_tree
from runner.images.images import CONTRACT_FILES, URL_LABELS, VERSION_LABEL, ImageFacts, held, image_facts
from runner.images.setup import Ready, prepare
from runner.model.deployment import REAL, VIRTUAL, Progress
from runner.model.result import Outcome, Result
from runner.model.run import ClientKind, Job, Kind, Retention
from runner.model.stack import OVER_QUIC, Implementation, Role
from runner.places.guests.processes import SavedImages
from runner.places.place import Concurrency, Place, place_of
from runner.plan.catalog import Catalog, Selection, load_catalog, named, split
from runner.plan.jobs import FIRST_CASE, LOGS, new_run, run_path, verdicts_without_run
from runner.plan.options import BuildOptions
from runner.store.runs import RunFolder, load_evidence
from runner.terminal.printing import result_line

# Where the images of a comparison are: in a Docker Engine, or in archives that `docker save` wrote.

_PLATFORM = "linux/amd64"  # `SavedImages` accepts no other platform


class ImageSource(ABC):
    """A place where images are found by name."""

    only_virtual: bool
    """True when jobs with these images can run only in guests."""
    saved: SavedImages | None
    """The archives; None when the images are in an engine."""

    @abstractmethod
    def catalog(self, implementations: Path) -> Catalog:
        """The catalogue, for peers whose images are here or can be built."""

    @abstractmethod
    def has(self, image: str) -> bool:
        """True when the image is here."""

    @abstractmethod
    def build_environment(self, image: str) -> Mapping[str, str]:
        """The environment variables besides IMAGE that a build command needs, so that its image is found here."""

    @abstractmethod
    def facts(self, image: str) -> ImageFacts:
        """Facts about an image. Raises UsageError when it is not here."""

    @abstractmethod
    def ready(self, stacks: Sequence[Implementation], options: BuildOptions, console: Console) -> Ready:
        """Make everything ready for jobs of `stacks`. Raises SetupError."""


class EngineImages(ImageSource):
    """Images of this host's engine. The engine pulls missing images."""

    only_virtual = False
    saved = None

    def catalog(self, implementations: Path) -> Catalog:
        return load_catalog(implementations)

    def has(self, image: str) -> bool:
        return held(engine.connect(), image) is not None

    def build_environment(self, image: str) -> Mapping[str, str]:  # noqa: ARG002 - the engine finds images by name
        return {}

    def facts(self, image: str) -> ImageFacts:
        return image_facts(engine.connect(), image)

    def ready(self, stacks: Sequence[Implementation], options: BuildOptions, console: Console) -> Ready:
        return prepare(
            stacks,
            assume_yes=options.yes,
            extra_cas=options.extra_cas,
            console=console,
            guests=options.clock != REAL,
        )


class ArchivedImages(ImageSource):
    """Images in archives, for users who may not use an engine."""

    only_virtual = True

    def __init__(self, origin: Path) -> None:
        """`origin`: an archive, or a folder with `*.tar`. Raises UsageError for a file of another program."""
        self._origin = origin
        self.saved: SavedImages = SavedImages.open(origin)

    def catalog(self, implementations: Path) -> Catalog:
        return load_saved(implementations, self.saved)

    def has(self, image: str) -> bool:
        self.saved = SavedImages.open(self._origin)
        return image in self.saved

    def build_environment(self, image: str) -> Mapping[str, str]:
        if not self._origin.is_dir():
            raise UsageError(
                f"--rootless {self._origin}: with --build name a folder, where the command writes the archive $ARCHIVE."
            )
        return {"ARCHIVE": str((self._origin / f"{image.replace('/', '-').replace(':', '-')}.tar").resolve())}

    def facts(self, image: str) -> ImageFacts:
        config = self.saved.image_config(image)
        labels = config.get("Labels") or {}
        return ImageFacts(
            image=image,
            image_id=self.saved.image_id(image),
            platform=_PLATFORM,
            host_platform=_PLATFORM,
            user=config.get("User") or "",
            starts=bool(config.get("Entrypoint") or config.get("Cmd")),
            files=self.saved.files(image).intersection(CONTRACT_FILES),
            url=next((labels[name] for name in URL_LABELS if labels.get(name)), ""),
            version=labels.get(VERSION_LABEL, ""),
        )

    def ready(self, stacks: Sequence[Implementation], options: BuildOptions, console: Console) -> Ready:  # noqa: ARG002
        if options.clock != VIRTUAL:
            raise UsageError(
                f"--clock {options.clock}: jobs without Docker run in virtual time; leave out --clock or --rootless."
            )
        return ready_without_engine(stacks, self.saved)


# Runs the same jobs with two builds of one stack, base and head, side by side. Cells that differ run again.
#
# Each build has its own run folder, `base` or `head`, with the same seed and the same name of the stack. So a job has
# the same losses, files and certificates in both runs, and all other commands (`show`, `compare`, `render`) can read
# the folders.

BASE, HEAD = "base", "head"
BUILDS = (BASE, HEAD)
_GUEST = "guest-"  # the first letters of the codes for failures of a guest itself


def compare_builds(options: BuildOptions, *, out: Console, err: Console) -> ChangeReport:
    """Build commits where the options ask for it, run both builds, and compare them. Raises UsageError for wrong
    options, InterruptedRunError after Ctrl-C.

    When guests can't run on this host, the jobs run in lanes, in real time, and a sentence on `out` says so.
    """
    source = EngineImages() if options.rootless is None else ArchivedImages(options.rootless)
    catalog = source.catalog(options.implementations)
    Concurrency.parse(options.lanes)  # an invalid value is refused before anything is built
    peers, cases = _peers(catalog, options.peers), select_cases(catalog, options.cases)
    for case in cases:
        record = catalog.cases[case].record()
        if record.client is not ClientKind.STACK or record.forward.is_real:
            raise UsageError(f"--case {case}: choose a case between stacks over an emulated link.")
        if options.clock != REAL and record.beside:
            raise UsageError(f"--case {case} runs in real time only: leave it out, or add --clock real.")
    roles = named(options.roles, [role.value for role in Role], option="--role", kind="role")
    images = {BASE: options.base, HEAD: options.head}
    stack = options.name
    if options.build:
        stack = stack or options.repository.resolve().name
        images = build_commits(
            images,
            command=options.build,
            repository=options.repository,
            name=stack.lower(),
            source=source,
            say=lambda text: out.print(text, markup=False),
        )
    stacks = [catalog.implementations[peer] for peer in peers]

    def run(comparison: _Comparison) -> ChangeReport:
        options = comparison.options
        place = place_of(options.clock, saved=source.saved, say=partial(out.print, soft_wrap=True, markup=False))
        try:
            width, ready = place.width(options.lanes), source.ready(stacks, options, err)
        except SetupError as error:
            if options.clock != REAL:
                raise GuestsUnavailableError(f"This host can't run virtual time: {error}") from error
            raise
        return TwoBuilds(comparison, ready, place, width, out).run()

    name = subject_name(stack, images[HEAD], peers)
    path = run_path(options.run) if options.run else LOGS / "ci" / f"{name}-{time.strftime('%Y-%m-%dT%H%M%S')}"
    comparison = _Comparison(
        options=replace(options, seed=secrets.randbits(31) if options.seed is None else options.seed),
        catalog=catalog,
        source=source,
        images=images,
        name=name,
        roles=tuple(map(Role, roles)),
        peers=peers,
        cases=cases,
        facts={build: source.facts(images[build]) for build in BUILDS},
        path=path,
    )
    if (path / BASE).exists():
        raise UsageError(f"--run {path} already has a comparison: choose another name.")
    if options.clock != REAL:
        try:
            return run(comparison)
        except GuestsUnavailableError as error:
            if source.only_virtual:
                raise SetupError(f"{error} Jobs in lanes need Docker; leave out --rootless.") from error
            out.print(f"{error} The jobs run in lanes, in real time.", soft_wrap=True, markup=False)
            for build in BUILDS:
                remove_tree(path, build)
            comparison = replace(comparison, options=replace(comparison.options, clock=REAL))
    return run(comparison)


def _peers(catalog: Catalog, names: Sequence[str]) -> tuple[str, ...]:
    """The peers of `--peer`; `all`: every QUIC stack that is built here."""
    if split(names) != ["all"]:
        return select_peers(catalog, names)
    stacks = catalog.implementations.values()
    return tuple(stack.name for stack in stacks if stack.build and stack.kind == "stack" and not stack.is_over_tcp)


class GuestsUnavailableError(BentpipeError):
    """This host can't run virtual time."""


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The options of a comparison, resolved. `images` and `facts`: of base and head. `path`: the folder of both
    runs."""

    options: BuildOptions
    catalog: Catalog
    source: ImageSource
    images: Mapping[str, str]
    name: str
    roles: tuple[Role, ...]
    peers: tuple[str, ...]
    cases: tuple[str, ...]
    facts: Mapping[str, ImageFacts]
    path: Path


class TwoBuilds:
    """The jobs of one comparison and their results, by build."""

    def __init__(self, plan: _Comparison, ready: Ready, place: Place, width: Concurrency, out: Console) -> None:
        self.results: dict[str, dict[Job, Result]] = {build: {} for build in BUILDS}
        self._plan, self._options = plan, plan.options
        self._name, self._ready, self._out = plan.name, ready, out
        self._entries = {
            build: Implementation(
                name=plan.name,
                image=plan.images[build],
                url=facts.url,
                version=facts.version,
                roles=plan.roles,
                speaks=OVER_QUIC,
            )
            for build, facts in plan.facts.items()
        }
        self._place, self._width = place, width
        self._catalogs = {
            build: replace(plan.catalog, implementations={**plan.catalog.implementations, plan.name: entry})
            for build, entry in self._entries.items()
        }
        self._folders: dict[str, RunFolder] = {}
        self._problems: dict[str, list[Problem]] = {build: list(of_image(plan.facts[build])) for build in BUILDS}
        self._without_run: dict[str, dict[Job, Result]] = {build: {} for build in BUILDS}

    def run(self) -> ChangeReport:
        """Run handshakes first, then all other cases, then the cells that differ again. Raises GuestsUnavailableError
        when this host can't run virtual time."""
        began = time.monotonic()
        first = jobs_with_peers(
            self._catalogs[HEAD], self._entries[HEAD], self._plan.cases, self._plan.peers, most=len(self._plan.peers)
        )
        if not first:
            raise UsageError("No job is left: no peer supports any of the cases of --case in the roles of --role.")
        self._folders = {build: self._create(build, first) for build in BUILDS}
        if not any(problem.fatal for problems in self._problems.values() for problem in problems):
            with ExitStack() as stack:
                for folder in self._folders.values():
                    stack.enter_context(folder.locked())
                self._open(stack)
                self._run_all(first)
        changes = self.changes()
        return ChangeReport(
            name=self._name,
            images=self._plan.images,
            image_ids={build: facts.image_id for build, facts in self._plan.facts.items()},
            problems=tuple(problem for problem in self._problems[HEAD] if problem not in self._problems[BASE]),
            changes=changes,
            folders=self._folders,
            path=self._plan.path,
            clock=self._options.clock,
            jobs=sum(map(len, self.results.values())),
            equal=self._equal(first),
            seconds=time.monotonic() - began,
            url=self._options.url,
        )

    def _open(self, stack: ExitStack) -> None:
        try:
            stack.enter_context(self._place.open(self._folders[HEAD].run, self._width))
        except (LaneError, SetupError) as error:
            if self._options.clock == REAL:
                raise
            raise GuestsUnavailableError(f"This host can't run virtual time: {error}") from error

    def _run_all(self, first: Sequence[Job]) -> None:
        self._probe(first)
        for jobs in (
            [job for job in first if job.case == FIRST_CASE],
            [job for job in first if job.case != FIRST_CASE],
        ):
            self._execute(jobs)
            self._require_guests()
        while more := self._further():
            self._out.print(f"{len(more)} jobs run again with each build, because their cells differ.")
            self._execute(more)

    def _require_guests(self) -> None:
        """Raise GuestsUnavailableError when all jobs so far failed because of their guests."""
        ended = [result for build in BUILDS for result in self.results[build].values()]
        broken = [result for result in ended if code_of(result).startswith(_GUEST)]
        if ended and len(broken) == len(ended):
            raise GuestsUnavailableError(f"This host can't run virtual time: {broken[0].findings[0].actual}.")

    def _create(self, build: str, first: Sequence[Job]) -> RunFolder:
        stacks = (self._name, *self._plan.peers)
        catalog = self._catalogs[build]
        selection = Selection.of(catalog, servers=stacks, clients=stacks, cases=self._plan.cases, iterations=1)
        path = self._plan.path / build
        run = new_run(
            path,
            selection,
            clock=self._options.clock,
            seed=self._options.seed,
            image_ids={**self._ready.ids, self._name: self._plan.facts[build].image_id},
            image_digests=self._ready.digests,
        )
        return RunFolder.create(path, replace(run, order=tuple(first)))

    def _probe(self, jobs: Sequence[Job]) -> None:
        """Run both images with an unknown test case, on a place that probes images."""
        for build, folder in self._folders.items():
            answers = self._place.probe(folder.run, folder.path / "compliance.json", jobs)
            self._without_run[build] = verdicts_without_run(self._catalogs[build], tuple(jobs), answers)
            reasons = {role: reason for (name, role), reason in answers.items() if name == self._name}
            self._problems[build] += of_probe(reasons)

    def _execute(self, jobs: Sequence[Job]) -> None:
        """Run the jobs with both builds: at the same time when they can't disturb each other, otherwise case by case
        in turns."""
        at_once = self._place.runs_at_once
        for _, block in groupby(jobs, key=lambda job: "" if at_once else job.case):
            todo = tuple(block)
            works = {build: self._campaign(build, todo) for build in BUILDS}
            with stopping(*works.values()), ThreadPoolExecutor(len(BUILDS) if at_once else 1) as pool:
                for build, results in zip(BUILDS, pool.map(Campaign.execute, works.values()), strict=True):
                    self.results[build] |= results
            if any(work.stopped for work in works.values()):
                done = sum(map(len, self.results.values()))
                raise InterruptedRunError(
                    f"Stopped after {done} jobs of the comparison; they are in {self._plan.path}."
                )

    def _campaign(self, build: str, jobs: tuple[Job, ...]) -> Campaign:
        folder = self._folders[build]
        order = dict.fromkeys((*folder.run.order, *jobs))
        folder.save_run(replace(folder.run, order=tuple(order)))
        return Campaign(
            folder=folder,
            cases=self._plan.catalog.cases,
            todo=jobs,
            verdicts_without_run={job: result for job, result in self._without_run[build].items() if job in jobs},
            deployment=self._place.deployment(folder.run),
            width=self._width,
            # When two results differ, the captures of both builds are useful, also of the build that succeeded.
            retention=Retention.ALL if any(job.iteration > 1 for job in jobs) else Retention.FAILED,
            observer=_Progress(self._out, build),
        )

    def changes(self) -> dict[CellPlace, Change]:
        """Every cell with the iterations of both builds, in the order of the jobs."""
        iterations: dict[CellPlace, dict[str, list[Result]]] = {}
        for build, results in self.results.items():
            for job, result in sorted(results.items(), key=lambda item: item[0].iteration):
                iterations.setdefault(CellPlace.of(job, self._name), {name: [] for name in BUILDS})[build].append(
                    result
                )
        cases = self._plan.catalog.cases
        measured = {case for case in self._plan.cases if cases[case].kind is Kind.MEASUREMENT}
        changes = {
            place: Change(
                place=place,
                base=tuple(builds[BASE]),
                head=tuple(builds[HEAD]),
                measured=place.case in measured,
                least=self._options.least / 100,
                questions=sum(other.case in measured for other in iterations),
            )
            for place, builds in iterations.items()
            if all(builds.values())
        }
        confirmed = confirmed_by_peers(changes)
        order = list(self._plan.cases)
        return {
            place: replace(change, confirmed=place in confirmed)
            for place, change in sorted(changes.items(), key=lambda item: order.index(item[0].case))
        }

    def _further(self) -> list[Job]:
        """The next iterations of the cells that differ."""
        jobs = []
        for place, change in self.changes().items():
            pair = (self._name, place.peer) if place.role is Role.SERVER else (place.peer, self._name)
            begin = len(change.head) + 1
            jobs += [
                Job(server=pair[0], client=pair[1], case=place.case, iteration=number)
                for number in range(begin, begin + change.further)
            ]
        return jobs

    def _equal(self, first: Sequence[Job]) -> int | None:
        """The number of first jobs with equal packets in both builds; None in real time."""
        if self._options.clock == REAL:
            return None
        return sum(
            bool(hashes[0]) and hashes[0] == hashes[1]
            for job in first
            if (hashes := [packet_hashes(load_evidence(folder.artifacts(job))) for folder in self._folders.values()])
        )


class _Progress:
    """Prints a line for each job that did not succeed, and for each tenth of a build's jobs."""

    def __init__(self, out: Console, build: str) -> None:
        self._out = out
        self._build = build
        self._tenths = 0
        self._lock = threading.Lock()

    def report(self, event: Progress) -> None:
        """Show an event."""
        if event.event != "finished" or event.result is None:
            return
        if event.result.outcome in (Outcome.FAILED, Outcome.ERROR):
            self._out.print(f"{self._build}: {result_line(event.result, event.kind)}", soft_wrap=True)
        with self._lock:
            tenths = 10 * event.done // event.total
            if tenths > self._tenths:
                self._tenths = tenths
                self._out.print(f"{self._build}: {event.done} of {event.total} jobs, {escape(event.result.job.case)}")


# Builds the images of two commits of a repository, with the build command that the user gives.

_LINES = 15  # the last lines of a failed build's output, for the error message


def build_commits(
    refs: Mapping[str, str],
    *,
    command: str,
    repository: Path,
    name: str,
    source: ImageSource,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Build the image of each ref. Returns the images by the keys of `refs`. An image that `source` already has is not
    built again.

    `command` runs in a shell, in a checkout of the commit, and tags its image as $IMAGE; without an engine it also
    writes this image into the archive $ARCHIVE. Raises UsageError for a ref that the repository doesn't have, and for a
    build that fails.
    """
    images = {}
    for build, ref in refs.items():
        commit = _git(repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if not commit:
            raise UsageError(f"--{build} {ref}: {repository} has no such commit. A shallow clone lacks older commits.")
        images[build] = f"bentpipe-ci/{name}:{commit[:12]}"
        if source.has(images[build]):
            say(f"{build} {commit[:12]}: the image exists already.")
            continue
        say(f"{build} {commit[:12]}: {command}")
        more = source.build_environment(images[build])
        _build(repository, commit, command, {"IMAGE": images[build], **more}, build)
        if not source.has(images[build]):
            where = " and write it to $ARCHIVE" if more else ""
            raise UsageError(
                f"--build: the command made no image {images[build]}; it must tag its image as $IMAGE{where}."
            )
    return images


def _build(repository: Path, commit: str, command: str, variables: Mapping[str, str], build: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bentpipe-build-") as folder:
        checkout = Path(folder) / "checkout"
        try:
            if not _git(repository, "worktree", "add", "--detach", str(checkout), commit, printed=True):
                raise SetupError(f"git can't check {commit[:12]} out of {repository}.")
            if (checkout / ".gitmodules").is_file():
                _git(checkout, "submodule", "update", "--init", "--recursive")
            done = subprocess.run(
                ["/bin/bash", "-euo", "pipefail", "-c", command],
                cwd=checkout,
                env={**os.environ, **variables, "COMMIT": commit},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        finally:
            _git(repository, "worktree", "remove", "--force", str(checkout))
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_LINES:])
        raise UsageError(f"--build of {build} ({commit[:12]}) ended with exit code {done.returncode}:\n{tail}")


def _git(folder: Path, *words: str, printed: bool = False) -> str:
    """The output of git; empty when git failed. `printed`: include the messages of git (stderr)."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--repository {folder}: git can't be run there ({error.strerror}).") from error
    return "" if done.returncode else (done.stdout + (done.stderr if printed else "")).strip()
