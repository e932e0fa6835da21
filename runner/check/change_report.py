"""The result of a comparison of two builds: verdict, summary as Markdown, JUnit, JSON."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runner.check.cell import Place
from runner.check.change import Change, State, has_verdict, reason
from runner.check.junit import Entry, junit
from runner.check.problems import Problem, fix
from runner.check.report import Verdict, finding_lines, findings_text
from runner.model.result import Outcome, Result
from runner.store import RunFolder
from runner.units import format_count, format_duration

SCHEMA = 1
SITE = "site"  # the folder of the pages, beside the report
_MOST_ROWS, _MOST_NAMES, _MOST_DETAILS = 40, 8, 5
_SIGNS = {
    State.WORSE: "🔴 worse",
    State.BETTER: "🟢 better",
    State.OTHER: "🟡 fails for another reason",
    State.UNCONFIRMED: "⚪ not confirmed",
    State.OPEN: "⚪ not decided",
}
_SAME = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed with both base and head",
    Outcome.UNSUPPORTED: "not supported",
    Outcome.SKIPPED: "not run",
}
_TITLES = {Verdict.PASSED: "nothing got worse", Verdict.INCONCLUSIVE: "no cell could be decided"}
_HOW = (
    "Numbers are successes and iterations. A cell whose two results differ runs again with 4 and then 5 more seeds on "
    "both sides. *Worse* and *better* are differences that these iterations confirm (p ≤ 0.01), or that many peers "
    "show at once (p ≤ 0.001). Only *worse* fails this check. A failure that base has too is not due to this change."
)


@dataclass(frozen=True, kw_only=True)
class ChangeReport:
    """The result of a comparison of base and head. The keys of `images`, `image_ids` and `folders` are base and head.

    `problems`: breaches of the contract by head but not by base. `equal`: the number of first jobs with equal packets
    in both builds; None in real time. `url`: the web address where the folder `path` will be
    published; empty when unknown.
    """

    name: str
    images: Mapping[str, str]
    image_ids: Mapping[str, str]
    problems: tuple[Problem, ...]
    changes: Mapping[Place, Change]
    folders: Mapping[str, RunFolder]
    path: Path
    clock: str
    jobs: int
    equal: int | None
    seconds: float
    url: str = ""

    @cached_property
    def verdict(self) -> Verdict:
        """Failed when head is worse than base in any cell; inconclusive when no cell could be decided."""
        states = {change.state for change in self.changes.values()}
        if self.problems or State.WORSE in states:
            return Verdict.FAILED
        return Verdict.INCONCLUSIVE if states <= {State.OPEN} else Verdict.PASSED

    @property
    def changed(self) -> dict[Place, Change]:
        """The cells that differ between base and head, or that could not be decided."""
        return {place: change for place, change in self.changes.items() if change.state is not State.SAME}

    def title(self) -> str:
        """The result in one sentence."""
        worse = [place for place, change in self.changes.items() if change.state is State.WORSE]
        sentence = _TITLES.get(self.verdict) or ", ".join(
            text
            for count, text in (
                (len(self.problems), f"{format_count(len(self.problems), 'problem')} of the image"),
                (len(worse), f"{format_count(len(worse), 'cell')} of {len(self.changes)} got worse"),
            )
            if count
        )
        return f"{self.name}: {sentence}"

    def write(self) -> tuple[Path, Path, Path]:
        """Write `summary.md`, `junit.xml` and `changes.json` into the comparison's folder, and return their paths."""
        paths = (self.path / "summary.md", self.path / "junit.xml", self.path / "changes.json")
        paths[0].write_text(self.markdown(), encoding="utf-8")
        paths[1].write_bytes(self.junit())
        paths[2].write_text(self.document(), encoding="utf-8")
        return paths

    def markdown(self) -> str:
        """The summary for a pull request, as Markdown."""
        builds = ", ".join(f"{side} `{self.images[side]}` ({_short(self.image_ids[side])})" for side in self.images)
        clock = "virtual time" if self.clock != "real" else "real time"
        lines = [f"## {self.title()}", "", f"{builds}; {self.jobs} jobs, {clock}, {format_duration(self.seconds)}."]
        if self.equal is not None:
            lines.append(f"{self.equal} of {len(self.changes)} cells have equal packets with both builds.")
        if self.problems:
            lines += ["", *(f"- **{problem.code}**: {problem.what} {problem.fix}" for problem in self.problems)]
        lines += [*self._table(), *self._details(), *self._unchanged(), "", f"<sub>{_HOW}</sub>", ""]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        order = list(_SIGNS)
        groups = _groups(
            self.changed.values(), lambda change: (order.index(change.state), change.place.case, change.place.role)
        )
        if not groups:
            return ["", "No cell differs between base and head."]
        lines = ["", "| | case | as | with | base | head | cause | evidence |", "|" + " --- |" * 8]
        for group in groups[:_MOST_ROWS]:
            first = group[0]
            fields = (
                _SIGNS[first.state],
                first.place.case,
                first.place.role.value,
                _names(change.place.peer for change in group),
                *(_tally(group, side) for side in (0, 1)),
                _cause(first),
                self._evidence(first),
            )
            lines.append("| " + " | ".join(_field(text) for text in fields) + " |")
        if len(groups) > _MOST_ROWS:
            lines += ["", f"{len(groups) - _MOST_ROWS} more rows are in `changes.json`."]
        return lines

    def _details(self) -> list[str]:
        worse = [change for change in self.changes.values() if change.state is State.WORSE]
        groups = _groups(worse, lambda change: (change.place.case, change.place.role))
        lines: list[str] = []
        for group in groups[:_MOST_DETAILS]:
            for finding in group[0].shown.findings[:1]:
                lines += [
                    "",
                    f"### {group[0].place}",
                    "",
                    *finding_lines(finding, fix(finding, group[0].place.case, group[0].place.role)),
                ]
                lines.append(f"- show it: `./bentpipe show {self._folder(group[0])}`")
                if finding.log_tail:
                    tail = finding.log_tail.replace("```", "'''")
                    lines += ["", "<details><summary>last lines of the log</summary>", "", "```", tail, "```"]
                    lines.append("</details>")
        return lines

    def _unchanged(self) -> list[str]:
        same = [change for change in self.changes.values() if change.state is State.SAME]
        by_outcome = Counter(change.decided[1][0].outcome for change in same)
        failing = [str(change.place) for change in same if change.decided[1][0].outcome is Outcome.FAILED]
        parts = [
            f"{count} {_SAME[outcome]}" + (f" ({_names(failing)})" if outcome is Outcome.FAILED else "")
            for outcome, count in by_outcome.items()
        ]
        return ["", f"{format_count(len(same), 'cell')} unchanged: {', '.join(parts) or 'none'}."]

    def _folder(self, change: Change) -> Path:
        return self.folders["base" if change.state is State.BETTER else "head"].artifacts(change.shown.job).folder

    def _evidence(self, change: Change) -> str:
        """The packets of the cell's finding and the page of the cell; as a link when the report has a URL."""
        job = change.shown.job
        side = "base" if change.state is State.BETTER else "head"
        page = f"{SITE}/{side}/{job.pair}/{job.case_link}.html"
        places = "; ".join(f"packets {finding.places}" for finding in change.shown.findings[:1] if finding.packets)
        return f"[{places or 'page'}]({self.url.rstrip('/')}/{page})" if self.url else places or f"`{page}`"

    def junit(self) -> bytes:
        """The report as JUnit: one suite for the contract and one for each role. A cell that fails with base too is
        skipped."""
        return junit(self.name, self.problems, {place: _junit_entry(change) for place, change in self.changes.items()})

    def document(self) -> str:
        """Every cell as JSON: outcomes by iteration, delivery times in seconds."""
        cells = [
            {
                "case": place.case,
                "role": place.role.value,
                "peer": place.peer,
                "state": change.state.name.lower(),
                "base": [reason(result) for result in change.base],
                "head": [reason(result) for result in change.head],
                "ttlb_base": change.times[0],
                "ttlb_head": change.times[1],
                "p": change.p if change.way else None,
                "confirmed_by_peers": change.confirmed,
            }
            for place, change in self.changes.items()
        ]
        problems = [{"code": problem.code, "what": problem.what} for problem in self.problems]
        about = {"schema": SCHEMA, "name": self.name, "verdict": self.verdict.name.lower(), "clock": self.clock}
        return json.dumps({**about, "images": self.image_ids, "problems": problems, "cells": cells}, indent=1) + "\n"


def _groups(changes: Iterable[Change], key: Callable[[Change], tuple[str | int, ...]]) -> list[list[Change]]:
    """Groups of changes with the same key and reason, which differ only in their peer, in the order of `key`."""
    groups: dict[tuple[str | int, ...], list[Change]] = {}
    for change in sorted(changes, key=key):
        groups.setdefault((*key(change), reason(change.shown)), []).append(change)
    return list(groups.values())


def _tally(group: Sequence[Change], side: int) -> str:
    """Successes and attempts of all cells of the group, such as `3/5`; the median delivery time when only the times can
    differ."""
    if all(change.about_times for change in group):
        times = sorted(time for change in group for time in change.times[side])
        return format_duration(times[len(times) // 2]) if times else ""
    good, tried = (sum(change.rates[side][index] for change in group) for index in (0, 1))
    return f"{good}/{tried}" if tried else "–"


def _cause(change: Change) -> str:
    if change.about_times and change.way:
        return f"delivery time {change.slowdown:+.0%}"
    shown: Result = change.shown
    return f"`{reason(shown)}` {shown.findings[0].actual}" if shown.findings else shown.outcome.value


def _names(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return ", ".join(known[:_MOST_NAMES]) + more


def _short(image_id: str) -> str:
    return image_id.removeprefix("sha256:")[:12]


def _field(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())


def _junit_entry(change: Change) -> Entry:
    """A cell fails when it got worse. It is skipped when it fails with base too, is unsupported, or is not decided."""
    shown, seconds = change.shown, sum(result.wall_s for result in (*change.base, *change.head))
    text = findings_text(shown.findings, lambda finding: fix(finding, change.place.case, change.place.role))
    sentence = f"base {_tally([change], 0)}, head {_tally([change], 1)}: {_cause(change)}"
    if change.state is State.WORSE:
        return Entry(tag="failure", message=sentence, text=text, seconds=seconds)
    if change.state is not State.SAME:
        return Entry(tag="skipped", message=f"{change.state.value}; {sentence}", text=text, seconds=seconds)
    if has_verdict(shown) and shown.outcome is not Outcome.SUCCEEDED:
        return Entry(tag="skipped", message=f"the same with base: {_cause(change)}", text=text, seconds=seconds)
    return Entry(seconds=seconds)
