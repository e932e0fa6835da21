"""The result of a check: verdict, the entry to submit, and the report as Markdown and JUnit."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.check.cell import HELD, MOST, Cell, Place, by_the_peer, code_of
from runner.check.junit import Entry, junit
from runner.check.problems import Problem, fix, open_fix
from runner.images.image_facts import ImageFacts
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result
from runner.stats import count
from runner.units import format_data_rate, format_duration

_SIGNS = {
    Outcome.SUCCEEDED: "✓",
    Outcome.FAILED: "✗",
    Outcome.UNSUPPORTED: "–",
    Outcome.ERROR: "!",
    Outcome.SKIPPED: "·",
}
_BY_THE_PEER = "Failed by the fault of the peer: this does not count against the image"
_EXCUSED = f"Failed in some iterations, but in fewer than {HELD} of {MOST}: this does not count against the image"
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

    @property
    def verdict(self) -> Verdict:
        """Failed: a problem, a cell that failed (unless by the fault of the peer), or no supported case. Inconclusive:
        a case was decided with no peer."""
        if self.problems or any(map(self.is_charged, self.cells)) or not self.roles():
            return Verdict.FAILED
        return Verdict.INCONCLUSIVE if any(map(self.is_open, self.cells)) else Verdict.PASSED

    @cached_property
    def cells(self) -> dict[Place, Cell]:
        """All iterations of a case with a peer, in the order in which the cases were first run."""
        by_place: dict[Place, list[Result]] = {}
        for job, result in self.results.items():
            by_place.setdefault(Place.of(job, self.name), []).append(result)
        return {
            place: Cell(
                results=tuple(sorted(results, key=lambda result: result.iteration)), random=place.case in self.random
            )
            for place, results in by_place.items()
        }

    def is_charged(self, place: Place) -> bool:
        """True when the case failed, and a failed iteration is not the peer's fault."""
        cell = self.cells[place]
        failed = (result for result in cell.results if result.outcome is Outcome.FAILED)
        return cell.outcome is Outcome.FAILED and not all(by_the_peer(result, place.role) for result in failed)

    def says_nothing(self, place: Place) -> bool:
        """True when the cell says nothing about the image: it was not decided, or it failed by the peer's fault."""
        outcome = self.cells[place].outcome
        return outcome is Outcome.ERROR or (outcome is Outcome.FAILED and not self.is_charged(place))

    def is_open(self, place: Place) -> bool:
        """True when the cell says nothing and the case did not succeed in this role with another peer."""
        cells = [cell for other, cell in self.cells.items() if (other.case, other.role) == (place.case, place.role)]
        return self.says_nothing(place) and all(cell.outcome is not Outcome.SUCCEEDED for cell in cells)

    def path(self, place: Place) -> Path:
        """The job folder of `Cell.shown`."""
        return self.run / self.cells[place].shown.job.path

    def cases(self, role: Role) -> tuple[str, ...]:
        """The wire names that the image claims in `role`: names of cases that ran and did not end with 127."""
        names = {
            self.wire_names[job.case][role.value]
            for job, result in self.results.items()
            if Place.of(job, self.name).role is role and result.outcome not in (Outcome.UNSUPPORTED, Outcome.SKIPPED)
        }
        return tuple(sorted(names))

    def succeeded(self, role: Role) -> tuple[str, ...]:
        """The cases that succeeded in `role` with every peer that has a verdict."""
        outcomes: dict[str, set[Outcome]] = {}
        for place, cell in self.cells.items():
            if place.role is role and not self.says_nothing(place):
                outcomes.setdefault(place.case, set()).add(cell.outcome)
        return tuple(case for case, case_outcomes in outcomes.items() if case_outcomes == {Outcome.SUCCEEDED})

    def summary(self) -> str:
        """`as client 21 of 23 supported cases succeeded`, for both roles."""
        parts = []
        for role in self.roles():
            unknown = (Outcome.UNSUPPORTED, Outcome.SKIPPED)
            outcomes = {place.case: cell.outcome for place, cell in self.cells.items() if place.role is role}
            known = [case for case, outcome in outcomes.items() if outcome not in unknown]
            parts.append(f"as {role.value} {len(self.succeeded(role))} of {len(known)} supported cases succeeded")
        return "; ".join(parts) or "supports no case in any role"

    def roles(self) -> tuple[Role, ...]:
        """The roles in which the image claims a case."""
        return tuple(role for role in Role if self.cases(role))

    def _tried(self, role: Role) -> frozenset[str]:
        """The wire names that this check used in `role`."""
        jobs = (job for job in self.results if Place.of(job, self.name).role is role)
        return frozenset(self.wire_names[job.case][role.value] for job in jobs)

    def entry(self) -> dict[str, Any]:
        """The entry of implementations.json to submit, under its name."""
        listed = self.listed
        claimed = {role: self.cases(role) for role in self.roles()}
        tried = {role: self._tried(role) for role in Role}
        if listed is not None:  # the entry keeps its cases that this check did not run
            for role in listed.roles:
                if role not in listed.cases and tried[role] == frozenset(claimed.get(role, ())):
                    claimed[role] = ()  # the entry claims every case, and no case that ran contradicts it
                    continue
                kept = [name for name in listed.cases.get(role, ()) if name not in tried[role]]
                if kept:
                    claimed[role] = tuple(sorted({*claimed.get(role, ()), *kept}))
        names = {name for cases in claimed.values() for name in cases}
        speaks = [protocol for protocol, used in (("hq-interop", names - {"http3"}), ("h3", "http3" in names)) if used]
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

    def write(self) -> tuple[Path, Path, Path]:
        """Write `report.md`, `junit.xml` and `entry.json` into the run's folder, and return their paths."""
        paths = (self.run / "report.md", self.run / "junit.xml", self.run / "entry.json")
        paths[0].write_text(self.markdown())
        paths[1].write_bytes(self.junit())
        paths[2].write_text(json.dumps(self.entry(), indent=1) + "\n")
        return paths

    def columns(self) -> list[tuple[Role, str]]:
        """Role and peer of each column of the table, for cells that ran."""
        columns = {(place.role, place.peer) for place in self.cells}
        return sorted(columns, key=lambda column: (list(Role).index(column[0]), self.peers.index(column[1])))

    def rows(self) -> list[str]:
        """The cases in the order in which they were run."""
        return list(dict.fromkeys(place.case for place in self.cells))

    def markdown(self) -> str:
        """The report as Markdown, for people and pull requests."""
        lines = [f"# bentpipe check: {self.subject}", "", *self._markdown_head(), "", "## Cases", ""]
        columns = self.columns()
        lines.append("| case | " + " | ".join(f"as {role.value}, {peer}" for role, peer in columns) + " |")
        lines.append("| --- |" + " --- |" * len(columns))
        for case in self.rows():
            cells = (self.text(Place(case, role, peer)) for role, peer in columns)
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
        lines += [
            "",
            "✓ succeeded · ✗ failed · ≈ failed in some iterations · – not supported (127) · ! not decided · · not run",
        ]
        for title, places in self.groups():
            lines += ["", f"## {title}"]
            for place in places:
                lines += ["", *self._markdown_findings(place)]
        lines += ["", "## Entry for implementations.json", "", "```json", json.dumps(self.entry(), indent=1), "```", ""]
        return "\n".join(lines)

    def _markdown_head(self) -> list[str]:
        size = f", {self.facts.size / 1e6:.0f} MB, {self.facts.platform}" if self.facts else ""
        lines = [f"**{self.verdict.name.lower()}** in {format_duration(self.seconds)}{size}."]
        lines += [f"- **{problem.code}**: {problem.what} {problem.fix}" for problem in self.problems]
        return lines

    def groups(self) -> list[tuple[str, list[Place]]]:
        """Cells with findings to print, by heading; empty groups are left out."""
        by_title: dict[str, list[Place]] = {"Failed": [], _BY_THE_PEER: [], _EXCUSED: [], "Not decided": []}
        for place, cell in self.cells.items():
            if cell.outcome is Outcome.FAILED:
                by_title["Failed" if self.is_charged(place) else _BY_THE_PEER].append(place)
            elif cell.outcome is Outcome.ERROR:
                by_title["Not decided"].append(place)
            elif cell.excused:
                by_title[_EXCUSED].append(place)
        return [(title, places) for title, places in by_title.items() if places]

    def _markdown_findings(self, place: Place) -> list[str]:
        cell = self.cells[place]
        lines = [f"### {place}", *(["", f"{cell.rate}."] if cell.rate else [])]
        for finding in cell.shown.findings:
            lines += ["", *finding_lines(finding, fix_of(cell, finding, place.role))]
            if finding.log_tail:
                lines += ["", "```", finding.log_tail.replace("```", "'''"), "```"]
        return [*lines, "", f"Evidence: `{self.path(place)}`"]

    def text(self, place: Place) -> str:
        """The text of a cell in the table; empty when it did not run."""
        cell = self.cells.get(place)
        if cell is None:
            return ""
        peers = cell.outcome is Outcome.FAILED and not self.is_charged(place)
        return cell_text(cell) + (" (peer's fault)" if peers else "")

    def junit(self) -> bytes:
        """The report for a CI: one suite for the contract, and one for each role."""
        entries = {
            place: _junit_entry(cell, place.role, nothing=self.says_nothing(place), is_open=self.is_open(place))
            for place, cell in self.cells.items()
        }
        return junit(f"check {self.subject}", self.problems, entries)


def finding_lines(finding: Finding, how: str) -> list[str]:
    """A finding as a Markdown list. `how`: the fix; empty when the requirement already says it."""
    section = f" ({finding.section})" if finding.section else ""
    lines = [
        f"- `{finding.code}`{f' of the {finding.role}' if finding.role else ''}: {finding.requirement}{section}",
        f"- expected: {finding.expected}",
        f"- actual: {finding.actual}",
    ]
    if finding.packets:
        lines.append(f"- packets {finding.places}, in the capture of the {finding.vantage}")
    return [*lines, f"- fix: {how}"] if how else lines


def findings_text(findings: Iterable[Finding], fix_of_code: Callable[[Finding], str]) -> str:
    """All findings with the last lines of the logs, as text."""
    return "\n".join(
        line for finding in findings for line in (*finding_lines(finding, fix_of_code(finding)), finding.log_tail)
    )


def cell_text(cell: Cell) -> str:
    """The sign of a cell with its goodput, its code or its rate of success."""
    sign, result = _SIGNS[cell.outcome], cell.shown
    tried = f"{count(cell.decided)}" if cell.rate else ""
    if cell.excused:
        return f"≈ {tried}"
    if cell.outcome in (Outcome.FAILED, Outcome.ERROR):
        return " ".join(filter(None, (sign, code_of(result), tried)))
    if cell.outcome is Outcome.SUCCEEDED and result.sample and result.sample.goodput and result.sample.efficiency:
        return f"{sign} goodput {format_data_rate(result.sample.goodput)}"
    return sign


def fix_of(cell: Cell, finding: Finding, role: Role) -> str:
    """The fix for the image in `role`; empty when the finding's requirement already says it, or when the fault is not
    the image's."""
    if cell.outcome is Outcome.ERROR:
        return open_fix(finding.code)
    return fix(finding, cell.shown.case, role)


def _junit_entry(cell: Cell, role: Role, *, nothing: bool, is_open: bool) -> Entry:
    """A cell that says nothing about the image is an error only when it leaves the check open. An excused cell passes
    with a note."""
    tags = {
        Outcome.FAILED: "failure",
        Outcome.UNSUPPORTED: "skipped",
        Outcome.SKIPPED: "skipped",
    }
    findings, seconds = cell.shown.findings, sum(result.wall_s for result in cell.results)
    text = findings_text(findings, lambda finding: fix_of(cell, finding, role))
    tag = ("error" if is_open else "skipped") if nothing else tags.get(cell.outcome)
    if tag is None:
        return Entry(text=f"{cell.rate}\n{text}" if cell.excused else "", seconds=seconds)
    words = ["not decided"] if cell.outcome is Outcome.ERROR else ["the peer's fault"] if nothing else []
    words += [f"{finding.code}: {finding.actual}" for finding in findings[:1]] or [cell.outcome.value]
    words += [cell.rate] if cell.rate else []
    return Entry(tag=tag, message="; ".join(words), text=text, seconds=seconds)
