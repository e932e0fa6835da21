"""What became of each attack, kept on disk, and the table of all of them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from rich.table import Table

from runner.config.catalog import ROOT
from runner.store import write_atomically

STATE = ROOT / "logs" / "attack.json"
_MOST_FINDINGS = 200  # that are kept with their text
_LONGEST = 4000  # characters of a finding's text


class Verdict(StrEnum):
    """HELD: as it should be. LOST: a traceback, a hang, too much memory or disk, a result lost, the wrong role blamed.
    ESCAPED: something outside was read, written or left running."""

    HELD = "held"
    LOST = "lost"
    ESCAPED = "escaped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack that did not hold. `attack` is enough to repeat it."""

    attack: str
    verdict: Verdict
    what: str  # such as traceback, time, memory, read, write, orphan
    text: str


@dataclass(kw_only=True)
class Tally:
    """Attacks of one family. `peaks`: the largest of what was measured, by what it is and its unit."""

    tried: int = 0
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    suspects: list[int] = field(default_factory=list)  # attacks to try again, alone
    bad: dict[str, str] = field(default_factory=dict)  # attack → the worst verdict of its findings

    def add(self, finding: Finding) -> None:
        """An attack that did not hold; of many findings the first ones are kept."""
        if self.bad.get(finding.attack) != Verdict.ESCAPED:
            self.bad[finding.attack] = finding.verdict
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(finding)

    def of_kind(self, kind: str) -> None:
        """Count a kind of attack."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def peak(self, what: str, value: float) -> None:
        """Note a measurement; the largest stays."""
        self.peaks[what] = max(value, self.peaks.get(what, 0.0))

    def count(self, verdict: Verdict) -> int:
        """How many attacks ended so."""
        found = sum(one == verdict for one in self.bad.values())
        return found if verdict is not Verdict.HELD else self.tried - len(self.bad)


def load(path: Path = STATE) -> dict[str, Tally]:
    """Tallies by family; empty where there are none, or none that can be read."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        family: Tally(
            **entry
            | {
                "findings": [Finding(**one | {"verdict": Verdict(one["verdict"])}) for one in entry["findings"]],
            }
        )
        for family, entry in document.items()
    }


def save(tallies: dict[str, Tally], path: Path = STATE) -> None:
    """Keep them, whole or not at all."""
    document = {family: asdict(tally) for family, tally in tallies.items()}
    for entry in document.values():
        for finding in entry["findings"]:
            finding["text"] = finding["text"][:_LONGEST]
    write_atomically(path, json.dumps(document, indent=1, sort_keys=True).encode() + b"\n")


def table(tallies: dict[str, Tally]) -> Table:
    """Tried, held, lost, escaped, by family."""
    shown = Table("family", "tried", "held", "lost", "escaped", "minutes", "peaks")
    for family, tally in tallies.items():
        peaks = ", ".join(f"{what} {value:,.4g}" for what, value in sorted(tally.peaks.items()))
        numbers = (tally.tried, *(tally.count(verdict) for verdict in Verdict))
        shown.add_row(family, *(f"{number:,}" for number in numbers), f"{tally.seconds / 60:.1f}", peaks)
    return shown


def sentences(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, the last line of its text behind it."""
    return [
        f"{one.attack}: {one.verdict}, {one.what}: {(one.text.strip().splitlines() or [''])[-1][:300]}"
        for one in findings
    ]
