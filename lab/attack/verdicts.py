"""The results of all attacks, stored on disk, with their table, and the resources that processes use (proc(5))."""

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter
from rich.table import Table

from runner.paths import ROOT
from runner.store.runs import write_atomically

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def proc_file(pid: int, name: str) -> bytes:
    """A file of a process in /proc; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    return proc_file(pid, "stat").rpartition(b")")[2].split()


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    family_pids, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        family_pids.append(process)
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(OSError):
                waiting += map(int, task.read_text().split())
    return family_pids


def cpu_s(processes: Iterable[int]) -> float:
    """CPU time of the living processes among these, in seconds."""
    return sum(int(ticks) for process in processes for ticks in _stat(process)[11:13]) / _TICKS


def resident(pid: int) -> int:
    """Resident bytes; 0 when the process is gone."""
    return int((proc_file(pid, "statm").split() or [b"0"] * 2)[1]) * _PAGE


def largest_resident(pid: int) -> int:
    """The largest resident bytes so far, or since `reset_peak`; 0 when the process is gone."""
    return int((proc_file(pid, "status").partition(b"VmHWM:")[2].split() or [b"0"])[0]) * 1024


def reset_peak(pid: int) -> None:
    """Forget the largest resident bytes so far."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def runs(pid: int) -> bool:
    """True when the process runs on a CPU or waits for one."""
    return _stat(pid)[:1] == [b"R"]


STATE = ROOT / "logs" / "attack.json"
_MOST_FINDINGS = 200  # the most findings that are kept with their text
_LONGEST = 4000  # characters of a finding's text


class Verdict(StrEnum):
    """The result of an attack. HELD: correct behaviour. DISTURBED: bentpipe said that other load on this host disturbed
    the job, which was true, so nothing is known. LOST: a traceback, a hang, too much memory or disk, a lost result, or
    blame for the wrong role. ESCAPED: the attack read or wrote a file outside its limits, or left a process running."""

    HELD = "held"
    DISTURBED = "disturbed"
    LOST = "lost"
    ESCAPED = "escaped"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack that did not hold. The text of `attack` is enough to repeat it."""

    attack: str
    verdict: Verdict
    what: str  # such as traceback, time, memory, read, write, orphan
    text: str


@dataclass(kw_only=True)
class Tally:
    """The attacks of one family. `peaks`: the largest value of each measurement, by its name with the unit."""

    tried: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)  # attack → the worst verdict of its findings

    def add(self, finding: Finding) -> None:
        """Add an attack that did not hold. Only the first findings are kept."""
        worst = tuple(Verdict)
        before = Verdict(self.bad.get(finding.attack, Verdict.HELD))
        self.bad[finding.attack] = max(before, finding.verdict, key=worst.index)
        if len(self.findings) < _MOST_FINDINGS:
            text = finding.text[:_LONGEST].encode(errors="replace").decode()  # it may have halves of surrogate pairs
            self.findings.append(replace(finding, text=text))

    def forget(self, attack: str) -> None:
        """Forget the findings about an attack that is tried again."""
        self.bad.pop(attack, None)
        self.findings = [finding for finding in self.findings if finding.attack != attack]

    def peak(self, measurement: str, value: float) -> None:
        """Note a measured value; only the largest value is kept."""
        self.peaks[measurement] = max(value, self.peaks.get(measurement, 0.0))

    def count(self, verdict: Verdict) -> int:
        """The number of attacks with this verdict."""
        count = sum(worst == verdict for worst in self.bad.values())
        return count if verdict is not Verdict.HELD else self.tried - len(self.bad)


_TALLIES = TypeAdapter(dict[str, Tally])


def load(path: Path = STATE) -> dict[str, Tally]:
    """Tallies by family; empty when there is no file of tallies, or it can't be read."""
    try:
        return _TALLIES.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return {}


def save(tallies: dict[str, Tally], path: Path = STATE) -> None:
    """Store the tallies atomically."""
    write_atomically(path, _TALLIES.dump_json(tallies, indent=1) + b"\n")


def table(tallies: dict[str, Tally]) -> Table:
    """The table of attacks by family and verdict."""
    shown = Table("family", "tried", *Verdict, "minutes", "peaks")
    for family, tally in tallies.items():
        peaks = ", ".join(f"{measurement} {value:,.4g}" for measurement, value in sorted(tally.peaks.items()))
        numbers = (tally.tried, *(tally.count(verdict) for verdict in Verdict))
        shown.add_row(family, *(f"{number:,}" for number in numbers), f"{tally.seconds / 60:.1f}", peaks)
    return shown


def sentences(findings: Iterable[Finding]) -> list[str]:
    """A line for each finding, with the last line of its text."""
    return [
        f"{finding.attack}: {finding.verdict}, {finding.what}: {(finding.text.strip().splitlines() or [''])[-1][:300]}"
        for finding in findings
    ]
