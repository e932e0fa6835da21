"""What a check found: its verdict, the entry to submit, and the report as Markdown and JUnit."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

from runner.check.problems import MENDS, Problem
from runner.deploy.image_facts import ImageFacts
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import Outcome, Result
from runner.units import format_data_rate, format_duration

_SIGNS = {
    Outcome.SUCCEEDED: "✓",
    Outcome.FAILED: "✗",
    Outcome.UNSUPPORTED: "–",
    Outcome.ERROR: "!",
    Outcome.SKIPPED: "·",
}
_CONTROL = dict.fromkeys((*range(9), 11, 12, *range(14, 32)))  # what XML 1.0 can't carry
UNKNOWN_URL = "https://example.org/your-project"


class Verdict(Enum):
    """The end of a check; the value is the exit code."""

    PASSED = 0
    FAILED = 1
    INCONCLUSIVE = 3  # nothing failed, but jobs of ours went wrong


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that a check found. `wire_names`: case → role → TESTCASE."""

    name: str  # of the implementation, as it would be listed
    subject: str  # the image, or the commands
    facts: ImageFacts | None  # None: a local build
    problems: tuple[Problem, ...]
    results: Mapping[Job, Result]
    wire_names: Mapping[str, Mapping[str, str]]
    peers: tuple[str, ...]
    run: Path
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """Failed with a problem or a failed job, and when it supports nothing; errors alone leave it open."""
        outcomes = {result.outcome for result in self.results.values()}
        if self.problems or Outcome.FAILED in outcomes or not self.roles():
            return Verdict.INCONCLUSIVE if not self.problems and outcomes == {Outcome.ERROR} else Verdict.FAILED
        return Verdict.INCONCLUSIVE if Outcome.ERROR in outcomes else Verdict.PASSED

    def role_of(self, job: Job) -> Role:
        """The side that the subject took in `job`."""
        return Role.SERVER if job.server == self.name else Role.CLIENT

    def peer_of(self, job: Job) -> str:
        """Whom it was run against."""
        return job.client if job.server == self.name else job.server

    def cases(self, role: Role) -> tuple[str, ...]:
        """The wire names that it claims in `role`: those that were run and not answered with 127."""
        names = {
            self.wire_names[job.case][role.value]
            for job, result in self.results.items()
            if self.role_of(job) is role and result.outcome not in (Outcome.UNSUPPORTED, Outcome.SKIPPED)
        }
        return tuple(sorted(names))

    def roles(self) -> tuple[Role, ...]:
        """The roles in which it claims anything."""
        return tuple(role for role in Role if self.cases(role))

    def entry(self) -> dict[str, Any]:
        """The entry of implementations.json to send, under its name."""
        claimed = {role: self.cases(role) for role in self.roles()}
        names = {name for cases in claimed.values() for name in cases}
        alpn = [protocol for protocol, there in (("hq-interop", names - {"http3"}), ("h3", "http3" in names)) if there]
        facts = self.facts
        return {
            self.name: {
                "image": self.subject,
                "url": (facts.url if facts else "") or UNKNOWN_URL,
                "version": facts.version if facts else "",
                "roles": [role.value for role in claimed],
                "alpn": alpn,
                "cases": {role.value: list(cases) for role, cases in claimed.items()},
            }
        }

    def write(self) -> tuple[Path, Path, Path]:
        """`report.md`, `junit.xml` and `entry.json` in the run's folder."""
        paths = (self.run / "report.md", self.run / "junit.xml", self.run / "entry.json")
        paths[0].write_text(self.markdown())
        paths[1].write_bytes(self.junit())
        paths[2].write_text(json.dumps(self.entry(), indent=1) + "\n")
        return paths

    def columns(self) -> list[tuple[Role, str]]:
        """Role and peer of each column of the table, those that were run."""
        found = {(self.role_of(job), self.peer_of(job)) for job in self.results}
        return sorted(found, key=lambda column: (list(Role).index(column[0]), self.peers.index(column[1])))

    def rows(self) -> list[str]:
        """The cases in the order in which they were run."""
        return list(dict.fromkeys(job.case for job in self.results))

    def cell(self, case: str, role: Role, peer: str) -> Result | None:
        """The result of one cell of the table."""
        for job, result in self.results.items():
            if (job.case, self.role_of(job), self.peer_of(job)) == (case, role, peer):
                return result
        return None

    def markdown(self) -> str:
        """The report for people and pull requests."""
        lines = [f"# bentpipe check: {self.subject}", "", *self._markdown_head(), "", "## Cases", ""]
        columns = self.columns()
        lines.append("| case | " + " | ".join(f"as {role.value}, {peer}" for role, peer in columns) + " |")
        lines.append("| --- |" + " --- |" * len(columns))
        for case in self.rows():
            cells = (cell_text(self.cell(case, role, peer)) for role, peer in columns)
            lines.append(f"| {case} | " + " | ".join(cells) + " |")
        lines += ["", "✓ succeeded · ✗ failed · – not supported (127) · ! the harness went wrong · · not run"]
        for job, result in self.results.items():
            if result.outcome in (Outcome.FAILED, Outcome.ERROR):
                lines += ["", *self._markdown_finding(job, result)]
        lines += ["", "## Entry for implementations.json", "", "```json", json.dumps(self.entry(), indent=1), "```", ""]
        return "\n".join(lines)

    def _markdown_head(self) -> list[str]:
        size = f", {self.facts.size / 1e6:.0f} MB, {self.facts.platform}" if self.facts else ""
        lines = [f"**{self.verdict.name.lower()}** in {format_duration(self.seconds)}{size}."]
        lines += [f"- **{problem.code}**: {problem.what} {problem.mend}" for problem in self.problems]
        return lines

    def _markdown_finding(self, job: Job, result: Result) -> list[str]:
        lines = [f"### {job.case} as {self.role_of(job).value} with {self.peer_of(job)}"]
        for finding in result.findings:
            section = f" ({finding.section})" if finding.section else ""
            lines += [
                "",
                f"- `{finding.code}`{f' of the {finding.role}' if finding.role else ''}",
                f"- requirement: {finding.requirement}{section}",
                f"- expected: {finding.expected}",
                f"- actual: {finding.actual}",
            ]
            if finding.code in MENDS:
                lines.append(f"- mend: {MENDS[finding.code]}")
            if finding.log_tail:
                lines += ["", "```", finding.log_tail.replace("```", "'''"), "```"]
        return [*lines, "", f"Evidence: `{self.run / job.path}`"]

    def junit(self) -> bytes:
        """The report for a CI: a suite for the contract, and one for each role."""
        root = Xml.Element("testsuites", name=f"bentpipe check {self.subject}")
        contract = Xml.SubElement(root, "testsuite", name="contract")
        for problem in self.problems:
            case = Xml.SubElement(contract, "testcase", classname="contract", name=problem.code)
            _child(case, "failure", problem.what, problem.mend)
        if not self.problems:
            Xml.SubElement(contract, "testcase", classname="contract", name="image and probe")
        for role in Role:
            of_role = {job: result for job, result in self.results.items() if self.role_of(job) is role}
            suite = Xml.SubElement(root, "testsuite", name=role.value)
            for job, result in of_role.items():
                case = Xml.SubElement(
                    suite,
                    "testcase",
                    classname=f"{role.value}.{self.peer_of(job)}",
                    name=job.case,
                    time=f"{result.wall_s:.3f}",
                )
                _junit_outcome(case, result)
        for suite in root:
            suite.set("tests", str(len(suite)))
            for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
                suite.set(attribute, str(sum(case.find(tag) is not None for case in suite)))
        Xml.indent(root)
        document: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
        return document


def cell_text(result: Result | None) -> str:
    """The sign of a result with its number or its code."""
    if result is None:
        return ""
    sign = _SIGNS[result.outcome]
    if result.outcome in (Outcome.FAILED, Outcome.ERROR):
        return f"{sign} {result.findings[0].code}" if result.findings else sign
    if result.outcome is Outcome.SUCCEEDED and result.sample and result.sample.goodput and result.sample.efficiency:
        return f"{sign} {format_data_rate(result.sample.goodput)}"
    return sign


def _junit_outcome(case: Xml.Element, result: Result) -> None:
    tags = {
        Outcome.FAILED: "failure",
        Outcome.ERROR: "error",
        Outcome.UNSUPPORTED: "skipped",
        Outcome.SKIPPED: "skipped",
    }
    if result.outcome not in tags:
        return
    first = result.findings[0] if result.findings else None
    text = "\n".join(
        f"{one.code}: {one.requirement} {one.section}\nexpected: {one.expected}\nactual: {one.actual}\n{one.log_tail}"
        for one in result.findings
    )
    _child(case, tags[result.outcome], f"{first.code}: {first.actual}" if first else result.outcome.value, text)


def _child(case: Xml.Element, tag: str, message: str, text: str) -> None:
    child = Xml.SubElement(case, tag, message=message.translate(_CONTROL))
    child.text = text.translate(_CONTROL)
