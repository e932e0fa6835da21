"""The change between two builds, base and head: further iterations, the verdict on each cell, and the report."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import comb
from pathlib import Path
from statistics import median

from runner.check.candidate import TRIES, CellPlace, JUnitEntry, Problem, by_the_peer, code_of, fix, junit
from runner.check.check import Verdict, finding_lines, findings_text
from runner.compare.report import markdown_row
from runner.compare.stats import FALSE_DISCOVERY_RATE, rank_test, rate_test
from runner.model.result import Outcome, Result
from runner.plan.jobs import FIRST_CASE_FAILED
from runner.store.runs import RunFolder
from runner.units import format_count, format_duration
from testcases.hits import MISSED

# One matrix cell of two builds, base and head: the rule for further iterations, and the verdict on a change.
#
# Both builds run a cell once, with the same seed. When the two results differ, both builds run the cell again with
# other seeds, until each build has 5 iterations and, if these decide nothing, 10 iterations. A difference counts as a
# change only when these iterations confirm it.

FIRST, SECOND = 5, 10  # iterations of each build after which a difference is judged
# The largest two-sided p of a change. With 5 iterations of each build, p is smaller only when one build always succeeds
# and the other never (0.008). With 10 iterations, the numbers of successes must differ by 7 (0.003). A cell that fails
# by chance, with any probability, counts as worse in at most 0.2 % of comparisons. A cell that fails one time in ten
# counts as worse in 0.001 % of comparisons (runner/tests/check/test_change.py computes both).
LEAST_P = 0.01
# The largest p of a change that all peers together show; such a change needs no further iterations. When 7 of 7 peers
# fail with head and none with base, p is smaller.
GROUP_P = 0.001
_GOOD = Outcome.SUCCEEDED


class CellState(StrEnum):
    """The result for one cell. Only WORSE turns a pull request red."""

    WORSE = "worse"
    BETTER = "better"
    OTHER = "fails for another reason"
    UNCONFIRMED = "differed, but chance can explain this"
    SAME = "unchanged"
    OPEN = "not decided"


@dataclass(frozen=True, kw_only=True)
class Change:
    """The iterations of one cell with both builds, in order. `least`: the smallest relative change of the delivery
    time that counts, a fraction. `questions`: the number of all compared cells of measurements."""

    place: CellPlace
    base: tuple[Result, ...]
    head: tuple[Result, ...]
    measured: bool = False
    least: float = 0.1
    questions: int = 1
    confirmed: bool = False  # by the other peers of the same case and role

    @cached_property
    def decided(self) -> tuple[tuple[Result, ...], tuple[Result, ...]]:
        """The iterations of base and of head that have a verdict."""
        before, after = (tuple(result for result in build if has_verdict(result)) for build in (self.base, self.head))
        return before, after

    @cached_property
    def rates(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Successes and attempts of base and of head. When head itself causes a failure, failures of base that the peer
        caused count as successes: otherwise they would hide the new failure."""
        role = self.place.role
        own = any(result.culprit == role.value for result in self.decided[1])
        good = sum(result.outcome is _GOOD or (own and by_the_peer(result, role)) for result in self.decided[0])
        good_after = sum(result.outcome is _GOOD for result in self.decided[1])
        return (good, len(self.decided[0])), (good_after, len(self.decided[1]))

    @cached_property
    def times(self) -> tuple[list[float], list[float]]:
        """Delivery times in seconds of base and of head; empty for a test case."""
        if not self.measured:
            return [], []
        before, after = (
            [result.sample.ttlb for result in build if result.outcome is _GOOD and result.sample and result.sample.ttlb]
            for build in self.decided
        )
        return before, after

    @cached_property
    def about_times(self) -> bool:
        """True when every iteration succeeded, so that only the delivery times can differ."""
        (good, tried), (good_after, tried_after) = self.rates
        return good == tried and good_after == tried_after and all(self.times)

    @property
    def slowdown(self) -> float:
        """Relative change of the median delivery time from base to head; 0 for a test case."""
        before, after = self.times
        return median(after) / median(before) - 1 if before and after else 0.0

    @cached_property
    def way(self) -> int:
        """-1 when head is worse, 1 when it is better, 0 when both are equal."""
        if not all(self.decided):
            return 0
        if self.about_times:
            return 0 if abs(self.slowdown) < self.least else -1 if self.slowdown > 0 else 1
        (good, tried), (good_after, tried_after) = self.rates
        difference = good_after * tried - good * tried_after
        return (difference > 0) - (difference < 0)

    @cached_property
    def pairs(self) -> int:
        """The number of iterations with a verdict, of the build that has fewer of them."""
        return min(map(len, self.decided))

    @cached_property
    def p(self) -> float:
        """Two-sided p of the hypothesis that base and head behave equally."""
        return rank_test(*self.times) if self.about_times else rate_test(*self.rates)

    @property
    def further(self) -> int:
        """The number of iterations that both builds must run next."""
        if any(sum(not has_verdict(result) for result in build) >= TRIES for build in (self.base, self.head)):
            return 0
        if not all(self.decided):
            codes = {code_of(result) for result in (*self.base, *self.head) if result.outcome is Outcome.ERROR}
            return int(codes == {MISSED})
        if self.way == 0 or self.confirmed:
            return 0
        if self.pairs < FIRST:
            return FIRST - self.pairs
        return SECOND - self.pairs if self.pairs < SECOND and self._may_be_shown else 0

    @property
    def _may_be_shown(self) -> bool:
        """True when the first iterations decide nothing, but more iterations can show a change."""
        if self.about_times:
            return self.p <= LEAST_P  # many numbers are compared, so a second, stricter test is needed
        (good, _), (good_after, _) = self.rates
        return self.p > LEAST_P and abs(good - good_after) > 1

    @cached_property
    def state(self) -> CellState:
        if not all(self.decided):
            return CellState.OPEN
        if self.way == 0:
            return CellState.OTHER if self._other_reason else CellState.SAME
        if self.about_times:
            shown = self.pairs >= SECOND and self.p <= FALSE_DISCOVERY_RATE / max(1, self.questions)
        else:
            shown = self.pairs >= FIRST and self.p <= LEAST_P
        if not (shown or self.confirmed):
            return CellState.UNCONFIRMED
        return CellState.WORSE if self.way < 0 else CellState.BETTER

    @property
    def _other_reason(self) -> bool:
        before, after = self.decided
        reasons = [{reason(result) for result in build} for build in (before, after)]
        return self.rates[1][0] == 0 and reasons[0].isdisjoint(reasons[1])

    @property
    def shown(self) -> Result:
        """The iteration that represents the cell: the first of head (of base for a better cell) that did not succeed,
        otherwise the first iteration of all."""
        build = self.base if self.state is CellState.BETTER else self.head
        return next(
            (result for result in build if result.outcome is not _GOOD and has_verdict(result)),
            (*self.head, *self.base)[0],
        )


def has_verdict(result: Result) -> bool:
    """True unless the result is an error of the harness, or the case was not run because the handshake had failed."""
    return result.outcome is not Outcome.ERROR and code_of(result) != FIRST_CASE_FAILED


def reason(result: Result) -> str:
    """The code of the first finding; without a finding the outcome."""
    return code_of(result) or result.outcome.value


def confirmed_by_peers(changes: Mapping[CellPlace, Change]) -> frozenset[CellPlace]:
    """The cells whose difference needs no further iterations, because many peers of the same case and role show it.

    All cells of a case and role form a group. Its cells that differ for the same reason and in the same direction are
    confirmed when the whole group differs between base and head with p ≤ GROUP_P.
    """
    groups: dict[tuple[str, str], list[Change]] = {}
    for place, change in changes.items():
        if all(change.decided):
            groups.setdefault((place.case, place.role.value), []).append(change)
    return frozenset(
        change.place
        for group in groups.values()
        for change in group
        if change.way != 0 and _group_p(group, change) <= GROUP_P
    )


def _group_p(group: Sequence[Change], change: Change) -> float:
    """Two-sided p of the hypothesis that base and head are equal with all peers in the aspect in which `change`
    differs."""
    if change.about_times:
        ways = [other.way for other in group if other.about_times]
        less, more = sorted((ways.count(-1), ways.count(1)))
        return float(min(1.0, 2 * sum(comb(less + more, k) for k in range(less + 1)) / 2 ** (less + more)))
    cause = reason(change.decided[1 if change.way < 0 else 0][0])
    before, after = (sum(reason(other.decided[build][0]) != cause for other in group) for build in (0, 1))
    return rate_test((before, len(group)), (after, len(group)))


# The result of a comparison of two builds: verdict, summary as Markdown, JUnit, JSON.

SCHEMA = 1
SITE = "site"  # the folder of the pages, beside the report
_MOST_ROWS, _MOST_NAMES, _MOST_DETAILS = 40, 8, 5
_SIGNS = {
    CellState.WORSE: "🔴 worse",
    CellState.BETTER: "🟢 better",
    CellState.OTHER: "🟡 fails for another reason",
    CellState.UNCONFIRMED: "⚪ not confirmed",
    CellState.OPEN: "⚪ not decided",
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
    changes: Mapping[CellPlace, Change]
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
        if self.problems or CellState.WORSE in states:
            return Verdict.FAILED
        return Verdict.INCONCLUSIVE if states <= {CellState.OPEN} else Verdict.PASSED

    @property
    def changed(self) -> dict[CellPlace, Change]:
        """The cells that differ between base and head, or that could not be decided."""
        return {place: change for place, change in self.changes.items() if change.state is not CellState.SAME}

    def title(self) -> str:
        worse = [place for place, change in self.changes.items() if change.state is CellState.WORSE]
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
        builds = ", ".join(f"{build} `{self.images[build]}` ({_short(self.image_ids[build])})" for build in self.images)
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
                *(_tally(group, build) for build in (0, 1)),
                _cause(first),
                self._evidence(first),
            )
            lines.append(markdown_row(fields))
        if len(groups) > _MOST_ROWS:
            lines += ["", f"{len(groups) - _MOST_ROWS} more rows are in `changes.json`."]
        return lines

    def _details(self) -> list[str]:
        worse = [change for change in self.changes.values() if change.state is CellState.WORSE]
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
        same = [change for change in self.changes.values() if change.state is CellState.SAME]
        by_outcome = Counter(change.decided[1][0].outcome for change in same)
        failing = [str(change.place) for change in same if change.decided[1][0].outcome is Outcome.FAILED]
        parts = [
            f"{count} {_SAME[outcome]}" + (f" ({_names(failing)})" if outcome is Outcome.FAILED else "")
            for outcome, count in by_outcome.items()
        ]
        return ["", f"{format_count(len(same), 'cell')} unchanged: {', '.join(parts) or 'none'}."]

    def _folder(self, change: Change) -> Path:
        return self.folders["base" if change.state is CellState.BETTER else "head"].artifacts(change.shown.job).folder

    def _evidence(self, change: Change) -> str:
        """The packets of the cell's finding and the page of the cell; as a link when the report has a URL."""
        job = change.shown.job
        build = "base" if change.state is CellState.BETTER else "head"
        page = f"{SITE}/{build}/{job.pair}/{job.case_link}.html"
        packets = next((f"packets {finding.places}" for finding in change.shown.findings[:1] if finding.packets), "")
        return f"[{packets or 'page'}]({self.url.rstrip('/')}/{page})" if self.url else packets or f"`{page}`"

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


def _tally(group: Sequence[Change], build: int) -> str:
    """Successes and attempts of all cells of the group, such as `3/5`; the median delivery time when only the times can
    differ."""
    if all(change.about_times for change in group):
        times = sorted(time for change in group for time in change.times[build])
        return format_duration(times[len(times) // 2]) if times else ""
    good, tried = (sum(change.rates[build][index] for change in group) for index in (0, 1))
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


def _junit_entry(change: Change) -> JUnitEntry:
    """A cell fails when it got worse. It is skipped when it fails with base too, is unsupported, or is not decided."""
    shown, seconds = change.shown, sum(result.wall_s for result in (*change.base, *change.head))
    text = findings_text(shown.findings, lambda finding: fix(finding, change.place.case, change.place.role))
    sentence = f"base {_tally([change], 0)}, head {_tally([change], 1)}: {_cause(change)}"
    if change.state is CellState.WORSE:
        return JUnitEntry(tag="failure", message=sentence, text=text, seconds=seconds)
    if change.state is not CellState.SAME:
        return JUnitEntry(tag="skipped", message=f"{change.state.value}; {sentence}", text=text, seconds=seconds)
    if has_verdict(shown) and shown.outcome is not Outcome.SUCCEEDED:
        return JUnitEntry(tag="skipped", message=f"the same with base: {_cause(change)}", text=text, seconds=seconds)
    return JUnitEntry(seconds=seconds)
