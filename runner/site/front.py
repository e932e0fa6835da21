"""Pages about all runs of the site: the front page, the page *Tonight*, and a page, badge and feed for each stack.

They are drawn from the data that the manifest stores, so that old runs need not be read again.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from runner.model.run import NightRecord, NightState
from runner.site import exports
from runner.site import view as words
from runner.site.exports import FeedEntry, atom, run_id
from runner.site.front_data import MOST_LINES, FrontData, StackVerdicts, colour
from runner.site.view import JUDGED, RunView, same_plan

_CURRENT = 7 * 86_400  # seconds: a plan is current when it has a run that began at most this long before the newest run
_WORST = ("failed", "mixed", "succeeded", "none")
_WORDS = {"failed": "red", "mixed": "unclear", "succeeded": "green", "none": "no verdict"}
Place = tuple[str, str, str]  # role, peer, case of a cell
_GOOD = {"failed": False, "succeeded": True}


Plan = list[RunView]  # runs of one plan, the newest first


@dataclass(frozen=True)
class StackNight:
    folder: RunView
    colour: str
    verdicts: StackVerdicts


@dataclass(frozen=True)
class StackLine:
    """One stack over all current plans. `since`: a text with the time since which the stack has its colour. `fault`: a
    text with the number of failed cells and the endpoint at fault."""

    name: str
    colour: str
    since: str
    fault: str
    judged: int
    passed: int

    @property
    def word(self) -> str:
        """The colour as a word, for readers who don't see colours."""
        return _WORDS[self.colour]

    @property
    def href(self) -> str:
        """URL of the stack's page, relative to the site."""
        return f"latest/{quote(self.name)}/index.html"


@dataclass(frozen=True)
class Front:
    """All runs of the site with their `front_data`. In `folders` the newest run comes first."""

    folders: Sequence[RunView]
    data: Mapping[str, FrontData]
    nights: Mapping[str, NightRecord]

    def plans(self) -> list[Plan]:
        """Every plan with a run of the last seven days before the newest run, the newest plan first."""
        plans: list[Plan] = []
        for folder in self.folders:
            # In both directions: a run of a few cases must not hide the other cases of a wider run before it.
            known = next((plan for plan in plans if same_plan(folder, plan[0]) and same_plan(plan[0], folder)), None)
            if known is not None:
                known.append(folder)
            elif self.folders[0].run.started_unix_s - folder.run.started_unix_s <= _CURRENT:
                plans.append([folder])
        return plans

    def of(self, folder: RunView) -> FrontData:
        return self.data[folder.name]

    def index(self) -> dict[str, Any]:
        """The variables of the template `front.html`."""
        plans = self.plans()
        current = [(newest, self.of(newest)) for newest, *_ in plans]
        return {
            "stacks": self.stack_lines(plans),
            "current": current,
            "grid": next(((run, state["grid"]) for run, state in current if state["grid"]["rows"]), None),
            "changes": [(folder, line) for folder, data in current for line in data["changes"]][:MOST_LINES],
            "compared": any(data["previous"] for _, data in current),
            "best": list(_best(current)),
            "tonight": bool(self.nights),
        }

    def stack_lines(self, plans: Sequence[Plan]) -> list[StackLine]:
        """One line for each stack: red first, then unclear, then green."""
        names = {name for newest, *_ in plans for name in self.of(newest)["stacks"]}
        lines = (self._stack_line(name, plans) for name in names)
        return sorted(lines, key=lambda line: (_WORST.index(line.colour), line.name))

    def _stack_line(self, name: str, plans: Sequence[Plan]) -> StackLine:
        histories = list(self._current(name, plans))
        newest = [history[0] for history in histories]
        worst = min((night.colour for night in newest), key=_WORST.index)
        streaks = [_streak(history, worst) for history in histories if history[0].colour == worst]
        # A stack is green since the last of its plans became green. It has another colour since the first plan got it.
        ordered = sorted(streaks, key=lambda streak: streak[0].folder.run.started_unix_s)
        began, before = ordered[-1] if worst == "succeeded" else ordered[0]
        since = f"since {words.moment(began.folder.run.started_unix_s)}"
        since += f", {_WORDS[before.colour]} before" if before is not None else ", the first run of this plan"
        several = [night.verdicts for night in newest]
        return StackLine(
            name=name,
            colour=worst,
            since=since,
            fault=fault(several),
            judged=sum(verdicts["judged"] for verdicts in several),
            passed=sum(verdicts["passed"] for verdicts in several),
        )

    def _current(self, name: str, plans: Sequence[Plan]) -> Iterator[list[StackNight]]:
        """The history of the stack in each plan whose newest run tested it. A cell counts only in the newest run that
        has a verdict on it, so each verdict of the newest nights is there once."""
        judged: set[str] = set()
        for plan in plans:
            history = self._history(name, plan)
            if not history or history[0].folder is not plan[0]:
                continue
            night = history[0]
            left = _without(night.verdicts, judged)
            if left["cells"]:
                fewer = len(left["cells"]) < len(night.verdicts["cells"])
                yield [StackNight(night.folder, colour(left) if fewer else night.colour, left), *history[1:]]
            judged |= {href for *_, outcome, href in night.verdicts["cells"] if outcome in JUDGED}

    def _history(self, name: str, plan: Plan) -> list[StackNight]:
        """The stack in each run of the plan that tested the stack, the newest first.

        A green run counts as a run without a verdict when the harness failed in every cell that had failed before.
        """
        nights: list[StackNight] = []
        failed: set[Place] = set()
        for folder in reversed(plan):
            if (verdicts := self.of(folder)["stacks"].get(name)) is None:
                continue
            now = colour(verdicts)
            errors = {(role, peer, case) for role, peer, case, outcome, _ in verdicts["cells"] if outcome == "error"}
            if now == "succeeded" and failed and failed <= errors:
                now = "none"
            if now != "none":
                failed = failed_cells(verdicts)
            nights.insert(0, StackNight(folder, now, verdicts))
        return nights

    def stack_page(self, line: StackLine) -> dict[str, Any]:
        """The variables of the template `latest.html`."""
        parts = [(history[0].folder, history) for history in self._current(line.name, self.plans())]
        changes = [
            (folder, change)
            for folder, *_ in parts
            for change in self.of(folder)["changes"]
            if line.name in change["stacks"]
        ]
        return {"line": line, "parts": parts, "changes": changes, "words": _WORDS}

    def badge(self, line: StackLine) -> bytes:
        """An SVG badge: `quinn | bentpipe: green, 14 of 14`."""
        value = f"bentpipe: {line.word}, {line.passed} of {line.judged} cells"
        return exports.badge(line.name, value, good=_GOOD.get(line.colour))

    def feed(self, line: StackLine) -> bytes:
        """An Atom feed with an entry for the first run of each plan, and for each run in which the stack's failures or
        numbers changed."""
        entries = []
        for plan in self.plans():
            history = [night for night in self._history(line.name, plan) if night.colour != "none"]
            for night, older in zip(history, [*history, None][1:], strict=True):
                folder, now, verdicts = night.folder, night.colour, night.verdicts
                lines = [
                    f"{change['state']}: {change['subject']}: {change['text']} {change['cause']}".strip()
                    for change in self.of(folder)["changes"]
                    if line.name in change["stacks"]
                ]
                if older is not None and not lines and failed_cells(verdicts) == failed_cells(older.verdicts):
                    continue
                before = f", {_WORDS[older.colour]} before" if older is not None and older.colour != now else ""
                entries.append(
                    FeedEntry(
                        id=f"{run_id(folder.name, folder.run)}:{quote(line.name)}",
                        title=f"{line.name}: {_WORDS[now]}{before}, {folder.name}",
                        href=f"../../{quote(folder.name)}/implementations/{quote(line.name)}.html",
                        published=folder.run.started_unix_s,
                        updated=folder.run.started_unix_s,
                        summary=fault([verdicts]),
                        text="\n".join([fault([verdicts]), *lines]),
                    )
                )
        entries.sort(key=lambda entry: -entry.updated)
        return atom(f"bentpipe: {line.name}", f"urn:bentpipe:stack:{quote(line.name)}", entries)

    def tonight(self) -> dict[str, Any]:
        """The variables of the template `tonight.html`: the newest night of each name."""
        lines = []
        by_name = {folder.name: folder for folder in self.folders}
        for name, record in self.nights.items():
            runs = [
                (run, by_name[folder], self.of(by_name[folder]))
                for run, folder in record.runs(name).items()
                if folder in by_name
            ]
            missing = [run for run, folder in record.runs(name).items() if folder not in by_name]
            trusted = bool(runs) and not missing and all(data["trusted"] for _, _, data in runs)
            wrong = [stage for stage in record.stages if stage.state is not NightState.DONE]
            lines.append(
                {"name": name, "record": record, "runs": runs, "missing": missing, "trusted": trusted, "wrong": wrong}
            )
        return {"nights": sorted(lines, key=lambda line: -line["record"].began_unix_s), "most": MOST_LINES}


def _without(verdicts: StackVerdicts, hrefs: Container[str]) -> StackVerdicts:
    """The verdicts without the cells of these pages."""
    cells = [cell for cell in verdicts["cells"] if cell[-1] not in hrefs]
    outcomes = Counter(cell[3] for cell in cells)
    return {
        "judged": sum(outcomes[outcome] for outcome in JUDGED),
        "passed": outcomes["succeeded"],
        "errors": outcomes["error"],
        "failures": [failure for failure in verdicts["failures"] if failure["href"] not in hrefs],
        "cells": cells,
    }


def _streak(history: Sequence[StackNight], shown: str) -> tuple[StackNight, StackNight | None]:
    """The first night of the newest unbroken series of the colour `shown`, and the night before that series. A night
    without a verdict does not break a series."""
    first = history[0]
    for night in history:
        if night.colour == shown:
            first = night
        elif night.colour != "none":
            return first, night
    return first, None


def failed_cells(verdicts: StackVerdicts) -> set[Place]:
    """The cells that failed, whoever is at fault."""
    return {(failure["role"], failure["peer"], failure["case"]) for failure in verdicts["failures"]}


def fault(several: Sequence[StackVerdicts]) -> str:
    """A sentence about a stack's failures in several runs: `2 of 14 cells failed by its own fault: timeout (2)`."""
    judged = sum(verdicts["judged"] for verdicts in several)
    failures = [failure for verdicts in several for failure in verdicts["failures"]]
    if not judged:
        errors = sum(verdicts["errors"] for verdicts in several)
        return f"no verdict: {words.amount(errors, 'cell')} ended as errors of the harness" if errors else "not run"
    parts: list[str] = []
    for whose, sentence in (
        ("own", "failed by its own fault"),
        ("either", "failed, and no finding names the endpoint at fault"),
        ("peer", "failed by its peer's fault"),
    ):
        some = [failure for failure in failures if failure["whose"] == whose]
        if some:
            codes = Counter(failure["code"] or "no reason stored" for failure in some)
            named = ", ".join(f"{code} ({count})" for code, count in codes.most_common(3))
            share = f"{len(some)} of {words.amount(judged, 'cell')}" if not parts else f"{len(some)}"
            parts.append(f"{share} {sentence}: {named}")
    return "; ".join(parts) or f"all {words.amount(judged, 'cell')} succeeded"


def _best(current: Sequence[tuple[RunView, FrontData]]) -> Iterator[tuple[RunView, Any]]:
    """The fastest server over each orbit, from the measurement with ranks, then the least loss, then the most servers.
    Among equals, the newest plan is chosen."""
    for orbit in ("GEO", "LEO"):
        fastest = [(folder, best) for folder, data in current for best in data["best"] if best["orbit"] == orbit]
        yield from sorted(fastest, key=_trust)[:1]


def _trust(fastest: tuple[RunView, Any]) -> tuple[bool, float, int]:
    best = fastest[1]
    return bool(best["why_not"]), best["loss"], -best["among"]
