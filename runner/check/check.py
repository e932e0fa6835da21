"""`check`: inspects an image or a local build, probes it, runs it against reference peers, and reports the result."""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.check.candidate import (
    FIRST_CASES,
    HELD,
    MEASUREMENTS,
    MOST,
    Candidate,
    CellPlace,
    CheckedCell,
    JUnitEntry,
    Problem,
    Trial,
    as_stack,
    by_the_peer,
    cells_of,
    code_of,
    fix,
    junit,
    of_output,
    open_fix,
    select_cases,
    select_peers,
    subject_name,
)
from runner.compare.stats import count
from runner.engine import engine
from runner.engine.engine import socket_path
from runner.errors import InterruptedRunError, UsageError
from runner.images.images import ImageFacts, image_facts
from runner.images.setup import prepare
from runner.model.result import Finding, Outcome, Result
from runner.model.run import REAL, Job, Kind, Retention
from runner.model.stack import HTTP3, OVER_QUIC, WIRE_NAMES, Implementation, Role, protocol_of
from runner.paths import LOGS
from runner.places.lane_job import EndpointSpec
from runner.places.place import place_of
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.jobs import busy, cannot_talk, cost
from runner.plan.options import CheckOptions
from runner.store.runs import run_path
from runner.terminal.printing import STYLES, RunWatch, show_finding
from runner.units import format_count, format_data_rate, format_duration, format_size

# A build on the user's host as an endpoint, without an image: its container has the host's files, read-only.

ENDPOINT_IMAGE = "bentpipe/endpoint"
# Folders of / that belong to the kernel, to the container or to the contract.
_NOT_SHARED = frozenset(
    ("proc", "sys", "dev", "run", "tmp", "var", "boot", "lost+found", "logs", "www", "certs", "downloads")
)
_WIRE_NAMES = (
    "handshake transfer multiconnect chacha20 retry resumption zerortt http3 keyupdate ecn v2 connectionmigration "
    "versionnegotiation"
)
# Does the work of /entrypoint.sh and /run_endpoint.sh of an image. It exits with 127 for an unknown case.
_SCRIPT = """
case " $KNOWN_CASES " in *" $TESTCASE "*) ;; *) exit 127 ;; esac
/setup.sh
mkdir -p "$QLOGDIR"
if [ "$ROLE" = client ]; then /wait-for-it.sh sim:57832 -s -t 30 || exit 1; fi
cd "$FOLDER"
exec /bin/bash -c "exec $COMMAND"
"""


def local_build(command: str) -> EndpointSpec:
    """An endpoint that runs `command` in a shell, in this folder, with the contract's environment.

    The host's programs, libraries and files have the same paths in the container, read-only; /tmp belongs to the
    container. Raises UsageError when the engine is on another host.
    """
    if socket_path() is None:
        raise UsageError("--client and --server need a Docker Engine on this host: DOCKER_HOST names another host.")
    here = Path.cwd().resolve()
    shared = [
        entry
        for entry in sorted(Path("/").iterdir())
        if entry.is_dir() and not entry.is_symlink() and entry.name not in _NOT_SHARED
    ]
    if not any(here.is_relative_to(entry) for entry in shared):
        shared.append(here)
    return EndpointSpec(
        image=ENDPOINT_IMAGE,
        entrypoint=("/bin/bash", "-c", _SCRIPT),
        environment={
            "KNOWN_CASES": _WIRE_NAMES,
            "COMMAND": command,
            "FOLDER": str(here),
            "PATH": os.environ.get("PATH", os.defpath),
        },
        binds=tuple(f"{entry}:{entry}:ro" for entry in shared),
    )


# The result of a check: verdict, the entry to submit, and the report as Markdown and JUnit.

_BY_THE_PEER = "Failed by the fault of the peer: this does not count against the image"
_RULES = "Broken MUSTs (§)"
_TOLERATED = f"Failed in some iterations, but in fewer than {HELD} of {MOST}: this does not count against the image"
_TAGS = {Outcome.FAILED: "failure", Outcome.UNSUPPORTED: "skipped", Outcome.SKIPPED: "skipped"}  # of JUnit
UNKNOWN_URL = "https://example.org/your-project"


class Verdict(Enum):
    """The verdict of a check; the value is the exit code."""

    PASSED = 0
    FAILED = 1
    INCONCLUSIVE = 3  # nothing failed, but a case could not be decided with any peer


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a check. `wire_names`: case → role → TESTCASE. `random`: cases with random impairments."""

    name: str  # the name of the implementation, as in implementations.json
    subject: str  # the image, or the commands
    facts: ImageFacts | None  # None: a local build
    problems: tuple[Problem, ...]
    results: Mapping[Job, Result]
    wire_names: Mapping[str, Mapping[str, str]]
    random: frozenset[str]
    peers: tuple[str, ...]
    run: Path
    seconds: float
    listed: Implementation | None = None  # the stack of this name in implementations.json
    strict: bool = False  # a broken MUST (§) counts like a failed case
    interrupted: str = ""  # the sentence about a check that Ctrl-C ended; the report then covers the jobs before

    @property
    def verdict(self) -> Verdict:
        """Failed: a problem, a cell that failed (unless by the fault of the peer), no supported case, or, when strict,
        a broken MUST. Inconclusive: a case was decided with no peer, or the check was interrupted."""
        broken = self.problems or any(map(self.is_charged, self.cells)) or (self.strict and self.broken_rules)
        if broken or not (self.roles() or self.interrupted):
            return Verdict.FAILED
        undecided = self.interrupted or any(map(self.is_open, self.cells))
        return Verdict.INCONCLUSIVE if undecided else Verdict.PASSED

    @cached_property
    def broken_rules(self) -> dict[str, dict[CellPlace, Finding]]:
        """The MUSTs of RFCs that the image broke (§), by id: each cell with the finding of its first such iteration.
        Rules that the peer broke are left out."""
        broken: dict[str, dict[CellPlace, Finding]] = {}
        for place, cell in self.cells.items():
            for result in cell.results:
                for finding in result.violations:
                    if finding.role == place.role.value:
                        broken.setdefault(finding.code, {}).setdefault(place, finding)
        return broken

    def breaks_rules(self, place: CellPlace) -> bool:
        return any(place in places for places in self.broken_rules.values())

    def rules_summary(self) -> str:
        """`It broke 2 MUSTs of RFCs (§) in 5 of 46 cells.`; empty when it broke none."""
        if not self.broken_rules:
            return ""
        marked = sum(map(self.breaks_rules, self.cells))
        count = format_count(len(self.broken_rules), "MUST")
        return f"It broke {count} of RFCs (§) in {marked} of {format_count(len(self.cells), 'cell')}."

    @cached_property
    def cells(self) -> dict[CellPlace, CheckedCell]:
        """All iterations of a case with a peer, in the order in which the cases were first run."""
        return {
            place: CheckedCell(results=results, random=place.case in self.random)
            for place, results in cells_of(self.results, self.name).items()
        }

    def is_charged(self, place: CellPlace) -> bool:
        """True when the case failed, and a failed iteration is not the peer's fault."""
        cell = self.cells[place]
        failed = (result for result in cell.results if result.outcome is Outcome.FAILED)
        return cell.outcome is Outcome.FAILED and not all(by_the_peer(result, place.role) for result in failed)

    def says_nothing(self, place: CellPlace) -> bool:
        """True when the cell says nothing about the image: it was not decided, or it failed by the peer's fault."""
        outcome = self.cells[place].outcome
        return outcome is Outcome.ERROR or (outcome is Outcome.FAILED and not self.is_charged(place))

    def is_open(self, place: CellPlace) -> bool:
        """True when the cell says nothing and the case did not succeed in this role with another peer."""
        cells = [cell for other, cell in self.cells.items() if (other.case, other.role) == (place.case, place.role)]
        return self.says_nothing(place) and all(cell.outcome is not Outcome.SUCCEEDED for cell in cells)

    def path(self, place: CellPlace) -> Path:
        """The job folder of `Cell.shown`."""
        return self.run / self.cells[place].shown.job.path

    def cases(self, role: Role) -> tuple[str, ...]:
        """The wire names that the image claims in `role`: names of cases that ran and did not end with 127."""
        return tuple(sorted(self._wire_names(role, without=(Outcome.UNSUPPORTED, Outcome.SKIPPED))))

    def _wire_names(self, role: Role, without: tuple[Outcome, ...] = ()) -> frozenset[str]:
        """The wire names that this check used in `role`, of jobs with other outcomes than `without`."""
        return frozenset(
            self.wire_names[job.case][role.value]
            for job, result in self.results.items()
            if CellPlace.of(job, self.name).role is role and result.outcome not in without
        )

    def succeeded(self, role: Role) -> tuple[str, ...]:
        """The cases that succeeded in `role` with every peer that supports them and has a verdict."""
        outcomes: dict[str, set[Outcome]] = {}
        for place in self._supported(role):
            if not self.says_nothing(place):
                outcomes.setdefault(place.case, set()).add(self.cells[place].outcome)
        return tuple(case for case, case_outcomes in outcomes.items() if case_outcomes == {Outcome.SUCCEEDED})

    def _supported(self, role: Role) -> list[CellPlace]:
        unsupported = (Outcome.UNSUPPORTED, Outcome.SKIPPED)
        return [place for place, cell in self.cells.items() if place.role is role and cell.outcome not in unsupported]

    def summary(self) -> str:
        """`as client 21 of 23 supported cases succeeded`, for both roles."""
        parts = []
        for role in self.roles():
            known = {place.case for place in self._supported(role)}
            parts.append(f"as {role.value} {len(self.succeeded(role))} of {len(known)} supported cases succeeded")
        return "; ".join(parts) or "supports no case in any role"

    def roles(self) -> tuple[Role, ...]:
        """The roles in which the image claims a case."""
        return tuple(role for role in Role if self.cases(role))

    def entry(self) -> dict[str, Any]:
        """The entry of implementations.json to submit, under its name."""
        listed = self.listed
        claimed = {role: self.cases(role) for role in self.roles()}
        tried = {role: self._wire_names(role) for role in Role}
        if listed is not None:  # the entry keeps its cases that this check did not run
            for role in listed.roles:
                if role not in listed.cases and tried[role] == frozenset(claimed.get(role, ())):
                    claimed[role] = ()  # the entry claims every case, and no case that ran contradicts it
                    continue
                kept = [name for name in listed.cases.get(role, ()) if name not in tried[role]]
                if kept:
                    claimed[role] = tuple(sorted({*claimed.get(role, ()), *kept}))
        names = {name for cases in claimed.values() for name in cases}
        speaks = [protocol for protocol in OVER_QUIC if protocol in map(protocol_of, names)]
        if listed is not None:
            untried = any("http3" not in tried[role] or len(tried[role]) == 1 for role in listed.roles)
            speaks += [protocol for protocol in listed.speaks if protocol not in speaks and untried]
        facts = self.facts
        rates = [f"{place}: {cell.rate}" for place, cell in self.cells.items() if cell.rate]
        return {
            self.name: {
                "image": self.subject,
                "url": (facts.url if facts else "") or (listed.url if listed else "") or UNKNOWN_URL,
                "version": facts.version if facts else "",
                **({"language": listed.language} if listed and listed.language else {}),
                "roles": [role.value for role in Role if role in claimed],
                "speaks": speaks,
                "cases": {role.value: list(claimed[role]) for role in Role if claimed.get(role)},
                **({"note": "; ".join(rates)} if rates else {}),
            }
        }

    def write(self) -> dict[str, Path]:
        """Write `report.md`, `junit.xml` and, unless the check was interrupted, `entry.json` into the run's folder.
        Returns their paths by name."""
        paths = {"report": self.run / "report.md", "JUnit": self.run / "junit.xml", "entry": self.run / "entry.json"}
        paths["report"].write_text(self.markdown())
        paths["JUnit"].write_bytes(self.junit())
        if self.interrupted:
            return {name: path for name, path in paths.items() if name != "entry"}
        paths["entry"].write_text(json.dumps(self.entry(), indent=1) + "\n")
        return paths

    def columns(self) -> list[tuple[Role, str]]:
        """Role and peer of each column of the table, for cells that ran."""
        columns = {(place.role, place.peer) for place in self.cells}
        return sorted(columns, key=lambda column: (list(Role).index(column[0]), self.peers.index(column[1])))

    def rows(self) -> list[str]:
        return list(dict.fromkeys(place.case for place in self.cells))

    def markdown(self) -> str:
        """The report as Markdown, for people and pull requests."""
        lines = [f"# bentpipe check: {self.subject}", "", *self._markdown_head(), "", "## Cases", ""]
        columns = self.columns()
        lines.append("| case | " + " | ".join(f"as {role.value}, {peer}" for role, peer in columns) + " |")
        lines.append("| --- |" + " --- |" * len(columns))
        for case in self.rows():
            cells = (self.text(CellPlace(case, role, peer)) for role, peer in columns)
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
        lines += [
            "",
            "✓ succeeded · ✗ failed · ≈ failed in some iterations · – not supported · ? not decided · ⊘ not run · "
            "§ the image broke a MUST of an RFC on which the case does not depend · ° judged without keys",
        ]
        for title, places in self.groups():
            lines += ["", f"## {title}"]
            for place in places:
                lines += ["", *self._markdown_findings(place)]
        if self.broken_rules:
            lines += ["", f"## {_RULES}"]
            for marked in self.broken_rules.values():
                (place, finding), others = next(iter(marked.items())), len(marked) - 1
                lines += ["", *finding_lines(finding, "")]
                lines.append(f"- in {place}{f' and {others} more' if others else ''}: `{self.path(place)}`")
        if not self.interrupted:
            entry = json.dumps(self.entry(), indent=1)
            lines += ["", "## Entry for implementations.json", "", "```json", entry, "```"]
        return "\n".join([*lines, ""])

    def _markdown_head(self) -> list[str]:
        size = f", {self.facts.size / 1e6:.0f} MB, {self.facts.platform}" if self.facts else ""
        lines = [f"**{self.verdict.name.lower()}** in {format_duration(self.seconds)}{size}. {self.rules_summary()}"]
        lines += [f"- **interrupted**: {self.interrupted}"] if self.interrupted else []
        lines += [f"- **{problem.code}**: {problem.what} {problem.fix}" for problem in self.problems]
        return lines

    def groups(self) -> list[tuple[str, list[CellPlace]]]:
        """Cells with findings to print, by heading; empty groups are left out."""
        by_title: dict[str, list[CellPlace]] = {"Failed": [], _BY_THE_PEER: [], _TOLERATED: [], "Not decided": []}
        for place, cell in self.cells.items():
            if cell.outcome is Outcome.FAILED:
                by_title["Failed" if self.is_charged(place) else _BY_THE_PEER].append(place)
            elif cell.outcome is Outcome.ERROR:
                by_title["Not decided"].append(place)
            elif cell.tolerated:
                by_title[_TOLERATED].append(place)
        return [(title, places) for title, places in by_title.items() if places]

    def _markdown_findings(self, place: CellPlace) -> list[str]:
        cell = self.cells[place]
        lines = [f"### {place}", *(["", f"{cell.rate}."] if cell.rate else [])]
        for finding in cell.shown.findings:
            lines += ["", *finding_lines(finding, fix_of(cell, finding, place.role))]
            if finding.log_tail:
                lines += ["", "```", finding.log_tail.replace("```", "'''"), "```"]
        return [*lines, "", f"Evidence: `{self.path(place)}`"]

    def text(self, place: CellPlace) -> str:
        """The text of a cell in the table; empty when it did not run."""
        cell = self.cells.get(place)
        if cell is None:
            return ""
        peers = cell.outcome is Outcome.FAILED and not self.is_charged(place)
        marked = " §" if self.breaks_rules(place) else ""
        return cell_text(cell) + marked + (" (peer's fault)" if peers else "")

    def junit(self) -> bytes:
        """The report for a CI: one suite for the contract, and one for each role."""
        return junit(f"check {self.subject}", self.problems, {place: self._junit_entry(place) for place in self.cells})

    def _junit_entry(self, place: CellPlace) -> JUnitEntry:
        """A cell that says nothing about the image is an error only when it leaves the check open. A tolerated cell
        passes with a note. When strict, a broken MUST is a failure."""
        cell, nothing = self.cells[place], self.says_nothing(place)
        text = findings_text(cell.shown.findings, lambda finding: fix_of(cell, finding, place.role))
        tag = ("error" if self.is_open(place) else "skipped") if nothing else _TAGS.get(cell.outcome, "")
        words = ["not decided"] if cell.outcome is Outcome.ERROR else ["the peer's fault"] if nothing else []
        words += [finding.headline for finding in cell.shown.findings[:1]] or [cell.outcome.value]
        words += [cell.rate] if cell.rate else []
        if not tag:
            words, text = [], f"{cell.rate}\n{text}" if cell.tolerated else ""
        if rules := [places[place] for places in self.broken_rules.values() if place in places]:
            text = f"{text}\n{findings_text(rules, lambda _: '')}".strip()
            if self.strict and tag in ("", "skipped"):
                tag, words = "failure", [f"§ {rules[0].headline}"]
        seconds = sum(result.wall_s for result in cell.results)
        return JUnitEntry(tag=tag, message="; ".join(words), text=text, seconds=seconds)


def finding_lines(finding: Finding, how: str) -> list[str]:
    """A finding as a Markdown list. `how`: the fix; empty when the requirement already says it."""
    title = f"- `{finding.code}`{finding.title.removeprefix(finding.code)}: {finding.rule}"
    return [title, *(f"- {heading}: {text}" for heading, text in finding.parts(how).items())]


def findings_text(findings: Iterable[Finding], fix_of_code: Callable[[Finding], str]) -> str:
    """All findings with the last lines of the logs, as text."""
    return "\n".join(
        line for finding in findings for line in (*finding_lines(finding, fix_of_code(finding)), finding.log_tail)
    )


def cell_text(cell: CheckedCell) -> str:
    """The sign of a cell with its goodput, its code or its rate of success."""
    sign, result = cell.outcome.sign + ("°" if cell.shown.without_keys else ""), cell.shown
    tried = f"{count(cell.decided)}" if cell.rate else ""
    if cell.tolerated:
        return f"≈ {tried}"
    if cell.outcome in (Outcome.FAILED, Outcome.ERROR):
        return " ".join(filter(None, (sign, code_of(result), tried)))
    if cell.outcome is Outcome.SUCCEEDED and result.case in MEASUREMENTS and result.sample and result.sample.goodput:
        return f"{sign} goodput {format_data_rate(result.sample.goodput)}"
    return sign


def fix_of(cell: CheckedCell, finding: Finding, role: Role) -> str:
    """The fix for the image in `role`; empty when the finding's requirement already says it, or when the fault is not
    the image's."""
    if cell.outcome is Outcome.ERROR:
        return open_fix(finding.code)
    return fix(finding, cell.shown.case, role)


# The work of a check: inspect the image, probe it, run it against reference peers, handshakes first.

PEERS_A_CASE = 2


def check(options: CheckOptions, *, out: Console, err: Console) -> Report:
    """Check one image or local build. After Ctrl-C, the report covers the jobs that were judged. Raises UsageError for
    a missing image or peer, InterruptedRunError after Ctrl-C before the first result."""
    began = time.monotonic()
    catalog = load_catalog(options.implementations)
    if options.clock != REAL and options.commands:
        raise UsageError("--clock virtual: a local build runs in real time only. Name an image, or leave out --clock.")
    place = place_of(options.clock, say=partial(out.print, soft_wrap=True, markup=False))
    width = place.width(options.lanes)
    peers = select_peers(catalog, options.peers)
    cases = select_cases(catalog, options.cases)
    name = subject_name(options.name, options.image or "local", peers)
    images = prepare(
        [catalog.implementations[peer] for peer in peers],
        assume_yes=options.yes,
        extra_cas=options.extra_cas,
        console=err,
        guests=options.clock != REAL,
    )
    facts = image_facts(engine.connect(), options.image) if options.image is not None else None
    roles = tuple(role for role in Role if facts is not None or role in options.commands)
    watch = RunWatch(out)
    candidate = Candidate.create(
        LOGS / "checks" / f"{name}-{time.strftime('%Y-%m-%dT%H%M%S')}"
        if options.run is None
        else run_path(options.run),
        as_stack(name, facts.image if facts else ENDPOINT_IMAGE, facts, roles=roles),
        catalog=catalog,
        peers=peers,
        cases=cases,
        most=PEERS_A_CASE,
        facts=facts,
        specs={(name, role): local_build(command) for role, command in options.commands.items()},
        clock=options.clock,
        images=images,
        observer=watch,
    )
    trial = Trial(candidates=(candidate,), place=place, width=width, path=candidate.folder.path)
    interrupted = ""
    if candidate.runs:
        _announce(trial, options.clock)
        try:
            with trial.open(), watch:
                _run(trial, candidate, cases)
        except InterruptedRunError as error:
            if not candidate.results:
                raise
            interrupted = str(error)
        candidate.problems += _output_problems(candidate)
    run = candidate.folder.run
    commands = ", ".join(f"{role.value}: {command}" for role, command in options.commands.items())
    image = options.image if options.name is None else None
    same = (stack for stack in catalog.implementations.values() if image and stack.image == image)
    return Report(
        name=name,
        subject=facts.image if facts else commands,
        facts=facts,
        problems=tuple(candidate.problems),
        results=candidate.results,
        wire_names={job.case: dict(run.wire_names(job)) for job in candidate.results},
        random=frozenset(case for case in cases if is_random(catalog, case)),
        peers=peers,
        run=candidate.folder.path,
        seconds=time.monotonic() - began,
        listed=catalog.implementations.get(name) or next(same, None),
        strict=options.strict,
        interrupted=interrupted,
    )


def _announce(trial: Trial, clock: str) -> None:
    """Tell how many jobs will run, how long they take and how much disk they need."""
    run, say = trial.candidates[0].folder.run, trial.place.say
    seconds, disk = cost(run, run.order, Retention.FAILED.value)
    say(
        f"About {format_count(len(run.order), 'job')}, {format_duration(seconds)} one after the other; "
        f"{format_size(disk)} on disk, and the captures of jobs that fail."
    )
    if load := busy(clock):
        say(load)


def _run(trial: Trial, candidate: Candidate, cases: tuple[str, ...]) -> None:
    """Probe the image, and run its handshakes, then all cases in the roles that passed one, then further iterations."""
    say, declared = trial.place.say, candidate.catalog.cases
    first = candidate.jobs([case for case in cases if case in FIRST_CASES], most=1)
    if candidate.facts is not None and trial.place.unprobed:
        say(trial.place.unprobed)
    trial.probe(first or candidate.jobs(cases, most=1))
    if first:
        trial.run(first)
        passed = _passed(candidate)
        for role in candidate.entry.roles:
            if role not in passed:
                say(f"As {role.value} it supports neither {' nor '.join(FIRST_CASES)}, so no case runs in this role.")
            elif not passed[role]:
                say(f"As {role.value} it {_ending(candidate, role)} its first case, so its other cases don't run.")
        only_http3 = (WIRE_NAMES[HTTP3],)
        candidate.limit({role: only_http3 if names == {"http3"} else () for role, names in passed.items() if names})
    # The longest jobs start first: otherwise they would still run when other lanes are already idle.
    # Measurements come last, because fewer lanes may be open during measurements.
    jobs = candidate.jobs(cases, most=PEERS_A_CASE)
    jobs.sort(key=lambda job: (declared[job.case].kind is Kind.MEASUREMENT, -declared[job.case].timeout))
    while jobs:
        trial.run(jobs)
        jobs = further(candidate)
        if jobs:
            say(f"{format_count(len(jobs), 'more iteration')} of cases in which chance decides.")


def further(candidate: Candidate) -> list[Job]:
    """The iterations that the cells of random cases need next."""
    jobs = []
    for place, results in candidate.cells().items():
        cell = CheckedCell(results=results, random=is_random(candidate.catalog, place.case))
        jobs += [replace(results[0].job, iteration=len(results) + number) for number in range(1, cell.further + 1)]
    return jobs


def is_random(catalog: Catalog, case: str) -> bool:
    """True when another seed affects other packets."""
    return catalog.cases[case].record().has_chance


def got_through(result: Result, role: Role) -> bool:
    """True when the file arrived, or when the peer is to blame that it did not: another peer may be able to run the
    other cases. The case may also have failed because of a behaviour that other cases allow, such as Retry."""
    failed = result.outcome is Outcome.FAILED
    return result.outcome is Outcome.SUCCEEDED or (failed and (not cannot_talk(result) or by_the_peer(result, role)))


def _passed(candidate: Candidate) -> dict[Role, set[str]]:
    """The first cases that succeeded, by role. A role that supports none of them is left out."""
    passed: dict[Role, set[str]] = {}
    for place, results in candidate.cells().items():
        if any(result.outcome is not Outcome.UNSUPPORTED for result in results):
            names = passed.setdefault(place.role, set())
            if any(got_through(result, place.role) for result in results):
                names.add(place.case)
    return {role: passed[role] for role in Role if role in passed}


def _ending(candidate: Candidate, role: Role) -> str:
    """The verb for a role that passed none of its first cases: `fails`, or `could not be judged in`."""
    outcomes = {result.outcome for place, cell in candidate.cells().items() if place.role is role for result in cell}
    return "fails" if Outcome.FAILED in outcomes else "could not be judged in"


def _output_problems(candidate: Candidate) -> list[Problem]:
    """Problems that the output of an endpoint shows, at most one per role."""
    by_role: dict[Role, Problem] = {}
    for place, results in candidate.cells().items():
        for result in results:
            log = candidate.folder.path / result.job.path / place.role.value / "output.log"
            if log.is_file() and place.role not in by_role:
                unsupported = result.outcome is Outcome.UNSUPPORTED
                for problem in of_output(place.role, log.read_text(errors="replace"), unsupported=unsupported):
                    by_role[place.role] = problem
    return list(by_role.values())


# Prints a check's report to a terminal.

_STYLES = {Verdict.PASSED: "green", Verdict.FAILED: "red", Verdict.INCONCLUSIVE: "yellow"}


def show_report(console: Console, report: Report) -> None:
    """Print problems with their fixes, the table of cases, failures, the places of the files, the verdict."""
    for problem in report.problems:
        console.print(f"\n[red]✗ {escape(problem.code)}[/red] {escape(problem.what)}", soft_wrap=True)
        console.print(f"  fix: {escape(problem.fix)}", soft_wrap=True)
    for role in Role:
        columns = [column for column in report.columns() if column[0] is role]
        if columns:
            console.print("", _cases_table(report, columns), sep="\n")
    for title, places in report.groups():
        console.print(f"\n[bold]{title}[/bold]")
        for place in places:
            _show_cell(console, report, place)
    if report.broken_rules:
        console.print(f"\n[bold]{_RULES}[/bold]")
        for marked in report.broken_rules.values():
            _show_rule(console, report, marked)
    style = _STYLES[report.verdict]
    console.print(
        f"\n[{style}]{report.verdict.name.lower()}[/{style}] in {format_duration(report.seconds)}: "
        f"{escape(report.subject)} {report.summary()}.",
        soft_wrap=True,
    )
    if any(cell.shown.without_keys for cell in report.cells.values()):
        console.print("° judged without keys: no key log opened the packets (docs/outcomes.md)", soft_wrap=True)
    if summary := report.rules_summary():
        how = "" if report.strict else " With --strict, the check fails."
        console.print(f"[red]§ {summary}[/red]{how}", soft_wrap=True)
    if report.interrupted:
        console.print(f"[yellow]{escape(report.interrupted)}[/yellow]", soft_wrap=True)
    for name, path in report.write().items():
        console.print(f"{name:<6} {path}", soft_wrap=True, markup=False)
    if report.facts is not None and not report.facts.url:
        console.print(
            "The image has no label org.opencontainers.image.source: "
            f"write your project's page instead of {UNKNOWN_URL}.",
            soft_wrap=True,
        )


def _cases_table(report: Report, columns: list[tuple[Role, str]]) -> Table:
    """The cases in one role with a column per peer, within 80 columns: long codes of failures are folded."""
    table = Table(box=None)
    table.add_column(f"as {columns[0][0].value}", no_wrap=True)
    for _, peer in columns:
        table.add_column(f"with {peer}", overflow="fold")
    for case in report.rows():
        places = [CellPlace(case, role, peer) for role, peer in columns]
        if any(place in report.cells for place in places):
            table.add_row(case, *(f"[{_style(report, place)}]{escape(report.text(place))}[/]" for place in places))
    return table


def _style(report: Report, place: CellPlace) -> str:
    cell = report.cells.get(place)
    if cell is None or cell.tolerated or report.says_nothing(place):
        return "yellow"
    return STYLES[cell.outcome]


def _show_rule(console: Console, report: Report, places: Mapping[CellPlace, Finding]) -> None:
    """Print a MUST that the image broke, with the packets of the first cell that shows it."""
    (place, finding), others = next(iter(places.items())), len(places) - 1
    console.print(f"\n[red]§[/red] in {place}{f' and {others} more' if others else ''}", soft_wrap=True)
    show_finding(console, finding)
    console.print(f"  [dim]./bentpipe show {report.path(place)}[/dim]", soft_wrap=True)


def _show_cell(console: Console, report: Report, place: CellPlace) -> None:
    cell = report.cells[place]
    console.print(f"\n[bold]{place}[/bold]" + (f": {cell.rate}" if cell.rate else ""), soft_wrap=True)
    for finding in cell.shown.findings:
        show_finding(console, finding, fix_of(cell, finding, place.role))
    console.print(f"  [dim]./bentpipe show {report.path(place)}[/dim]", soft_wrap=True)
