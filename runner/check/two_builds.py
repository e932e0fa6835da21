"""`ci`: builds two commits or finds two images of a stack, and runs the same jobs with both side by side."""

import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from runner.campaign.campaign import packet_hashes
from runner.check.candidate import (
    Candidate,
    CellPlace,
    Trial,
    as_stack,
    code_of,
    select_cases,
    select_peers,
    subject_name,
)
from runner.check.change import Change, ChangeReport, confirmed_by_peers
from runner.engine import engine
from runner.errors import BentpipeError, LaneError, SetupError, UsageError
from runner.files import remove_tree
from runner.images.images import ImageFacts, held, image_facts
from runner.images.pulling import SavedImages
from runner.images.setup import Ready, prepare
from runner.model.result import Outcome, Progress
from runner.model.run import REAL, VIRTUAL, ClientKind, Job, Kind, Retention
from runner.model.stack import Implementation, Role
from runner.paths import LOGS
from runner.places.place import Concurrency, place_of
from runner.plan.catalog import Catalog, load_catalog, load_present
from runner.plan.choice import named, split
from runner.plan.jobs import FIRST_CASE
from runner.plan.options import BuildOptions
from runner.store.runs import load_evidence, run_path
from runner.terminal.printing import result_line

# Where the images of a comparison are: in a Docker Engine, or in archives that `docker save` wrote.


class ImageSource:
    """The images of this host's engine, which pulls missing ones. With `origin`: of an archive, or of all *.tar in a
    folder, for users who may not use an engine."""

    def __init__(self, origin: Path | None) -> None:
        self._origin = origin
        self.saved = None if origin is None else SavedImages.open(origin)

    def has(self, image: str) -> bool:
        if self._origin is None:
            return held(engine.connect(), image) is not None
        self.saved = SavedImages.open(self._origin)
        return image in self.saved

    def build_environment(self, image: str) -> Mapping[str, str]:
        """The environment variables besides IMAGE that a build command needs, so that its image is found here."""
        if self._origin is None:
            return {}
        if not self._origin.is_dir():
            raise UsageError(
                f"--rootless {self._origin}: with --build name a folder, where the command writes the archive $ARCHIVE."
            )
        return {"ARCHIVE": str((self._origin / f"{image.replace('/', '-').replace(':', '-')}.tar").resolve())}

    def facts(self, image: str) -> ImageFacts:
        """Facts about an image. Raises UsageError when it is not here."""
        return image_facts(engine.connect(), image) if self.saved is None else self.saved.facts(image)


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
    source = ImageSource(options.rootless)
    if source.saved is not None and options.clock != VIRTUAL:
        raise UsageError(
            f"--clock {options.clock}: jobs without Docker run in virtual time; leave out --clock or --rootless."
        )
    catalog = (
        load_catalog(options.implementations)
        if options.rootless is None
        else load_present(options.implementations, options.rootless)
    )
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
    name = subject_name(stack, images[HEAD], peers)
    path = run_path(options.run) if options.run else LOGS / "ci" / f"{name}-{time.strftime('%Y-%m-%dT%H%M%S')}"
    if (path / BASE).exists():
        raise UsageError(f"--run {path} already has a comparison: choose another name.")
    facts = {build: source.facts(images[build]) for build in BUILDS}
    comparison = _Comparison(
        options=replace(options, seed=secrets.randbits(31) if options.seed is None else options.seed),
        catalog=catalog,
        source=source,
        entries={build: as_stack(name, images[build], facts[build], roles=tuple(map(Role, roles))) for build in BUILDS},
        peers=peers,
        cases=cases,
        facts=facts,
        path=path,
        out=out,
        err=err,
    )
    if options.clock != REAL:
        try:
            return comparison.run(options.clock)
        except GuestsUnavailableError as error:
            if source.saved is not None:
                raise SetupError(f"{error} Jobs in lanes need Docker; leave out --rootless.") from error
            out.print(f"{error} The jobs run in lanes, in real time.", soft_wrap=True, markup=False)
            for build in BUILDS:
                remove_tree(path, build)
    return comparison.run(REAL)


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
    """The options of a comparison, resolved. `entries`: base and head as stacks of one name. `path`: the folder of both
    runs."""

    options: BuildOptions
    catalog: Catalog
    source: ImageSource
    entries: Mapping[str, Implementation]
    peers: tuple[str, ...]
    cases: tuple[str, ...]
    facts: Mapping[str, ImageFacts]
    path: Path
    out: Console
    err: Console

    def run(self, clock: str) -> ChangeReport:
        """Run handshakes first, then all other cases, then the cells that differ again. Raises GuestsUnavailableError
        when this host can't run virtual time."""
        began, options = time.monotonic(), replace(self.options, clock=clock)
        place = place_of(clock, saved=self.source.saved, say=partial(self.out.print, soft_wrap=True, markup=False))
        try:
            width = place.width(options.lanes)
            peers = [self.catalog.implementations[peer] for peer in self.peers]
            images = prepare(
                peers,
                assume_yes=options.yes,
                extra_cas=options.extra_cas,
                console=self.err,
                guests=clock != REAL,
                saved=self.source.saved,
            )
        except SetupError as error:
            raise self._unavailable(clock, error) from error
        builds = {build: self._candidate(build, clock, images) for build in BUILDS}
        trial = Trial(candidates=tuple(builds.values()), place=place, width=width, path=self.path)
        first = builds[HEAD].folder.run.order
        if all(candidate.runs for candidate in trial.candidates):
            with ExitStack() as stack:
                try:
                    stack.enter_context(trial.open())
                except (LaneError, SetupError) as error:
                    raise self._unavailable(clock, error) from error
                self._run_all(trial, first, builds)
        return ChangeReport(
            name=self.entries[HEAD].name,
            images={build: entry.image for build, entry in self.entries.items()},
            image_ids={build: facts.image_id for build, facts in self.facts.items()},
            problems=tuple(problem for problem in builds[HEAD].problems if problem not in builds[BASE].problems),
            changes=self._changes(builds),
            folders={build: candidate.folder for build, candidate in builds.items()},
            path=self.path,
            clock=clock,
            jobs=sum(len(candidate.results) for candidate in trial.candidates),
            equal=None if clock == REAL else sum(_equal(job, trial.candidates) for job in first),
            seconds=time.monotonic() - began,
            url=options.url,
        )

    def _candidate(self, build: str, clock: str, images: Ready) -> Candidate:
        return Candidate.create(
            self.path / build,
            self.entries[build],
            catalog=self.catalog,
            peers=self.peers,
            cases=self.cases,
            most=len(self.peers),
            facts=self.facts[build],
            clock=clock,
            seed=self.options.seed,
            images=images,
            observer=_Progress(self.out, build),
        )

    def _unavailable(self, clock: str, error: BentpipeError) -> BentpipeError:
        return error if clock == REAL else GuestsUnavailableError(f"This host can't run virtual time: {error}")

    def _run_all(self, trial: Trial, first: Sequence[Job], builds: Mapping[str, Candidate]) -> None:
        trial.probe(first)
        for handshakes in (True, False):
            trial.run([job for job in first if (job.case == FIRST_CASE) is handshakes])
            _require_guests(trial)
        while more := self._further(builds):
            self.out.print(f"{len(more)} jobs run again with each build, because their cells differ.")
            # When two results differ, the captures of both builds are useful, also of the build that succeeded.
            trial.run(more, Retention.ALL)

    def _changes(self, builds: Mapping[str, Candidate]) -> dict[CellPlace, Change]:
        """Every cell with the iterations of both builds, in the order of the cases."""
        base, head = builds[BASE].cells(), builds[HEAD].cells()
        cases = self.catalog.cases
        measured = {case for case in self.cases if cases[case].kind is Kind.MEASUREMENT}
        changes = {
            place: Change(
                place=place,
                base=base[place],
                head=head[place],
                measured=place.case in measured,
                least=self.options.least / 100,
                questions=sum(other.case in measured for other in base.keys() | head.keys()),
            )
            for place in sorted(base, key=lambda place: self.cases.index(place.case))
            if place in head
        }
        confirmed = confirmed_by_peers(changes)
        return {place: replace(change, confirmed=place in confirmed) for place, change in changes.items()}

    def _further(self, builds: Mapping[str, Candidate]) -> list[Job]:
        """The next iterations of the cells that differ."""
        return [
            replace(change.head[0].job, iteration=len(change.head) + number)
            for change in self._changes(builds).values()
            for number in range(1, change.further + 1)
        ]


def _require_guests(trial: Trial) -> None:
    """Raise GuestsUnavailableError when all jobs so far failed because of their guests."""
    ended = [result for candidate in trial.candidates for result in candidate.results.values()]
    broken = [result for result in ended if code_of(result).startswith(_GUEST)]
    if ended and len(broken) == len(ended):
        raise GuestsUnavailableError(f"This host can't run virtual time: {broken[0].findings[0].actual}.")


def _equal(job: Job, candidates: Iterable[Candidate]) -> bool:
    """True when the packets of the job are equal in all runs."""
    first, *others = [packet_hashes(load_evidence(candidate.folder.artifacts(job))) for candidate in candidates]
    return bool(first) and all(other == first for other in others)


class _Progress:
    """Prints a line for each job that did not succeed, and for each tenth of a build's jobs."""

    def __init__(self, out: Console, build: str) -> None:
        self._out = out
        self._build = build
        self._tenths = 0
        self._lock = threading.Lock()

    def report(self, event: Progress) -> None:
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
