"""Parses the reports about a guest, which a hostile guest may have written: that of its first process, lines with a
word and values, and that of run-guest. No input or output."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_CODE = re.compile(r"[a-z0-9-]{1,40}")
_LONGEST = 500  # characters of a message or name
_ROLES = ("client", "server")
_WORK = ("syscalls", "faults", "cpu_s")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a guest ended (guest/run-guest): ended, spins, hangs, late, stopped, memory, panic, died. Times in
    seconds."""

    how: str
    host_s: float
    cpu_s: float
    virtual_s: float
    spinner: str = ""  # role and name of the process that spins
    spin_s: float = 0.0  # CPU time in which it did
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by role: syscalls, faults, cpu_s
    least_s: float = 0.0  # shortest time in user code, in seconds; 0 without charges


def read_ended(about: Mapping[str, Any]) -> Ended:
    """Check the JSON object of run-guest. Values of other types count as missing."""
    spinner, work = about.get("spinner"), about.get("work")
    spinner, work = spinner if isinstance(spinner, dict) else {}, work if isinstance(work, dict) else {}
    return Ended(
        how=_text(about.get("how")),
        host_s=_number(about.get("host_s")),
        cpu_s=_number(about.get("cpu_s")),
        virtual_s=_number(about.get("virtual_s")),
        spinner=f"{_text(spinner.get('name'))} of the {_text(spinner.get('role')) or 'guest'}",
        spin_s=_number(spinner.get("cpu_s")),
        work={
            role: {name: _number(counts.get(name)) for name in _WORK}
            for role in _ROLES
            if isinstance(counts := work.get(role), dict)
        },
        least_s=_number(about.get("least_s")),
    )


def _number(value: object) -> float:
    usable = isinstance(value, int | float) and abs(value) < 1e15
    return value if usable else 0.0  # type: ignore[return-value]


def _text(value: object) -> str:
    text = value[:_LONGEST] if isinstance(value, str) else ""
    return text if text.isprintable() else ascii(text)


@dataclass(kw_only=True)
class ProcessReport:
    """The report about the first process of one container. Times in seconds of virtual time since 1970."""

    started: bool = False
    ended: bool = False
    code: int = 0
    began: float = 0.0
    end: float = 0.0
    stopped: bool = False
    timed_out: bool = False
    flooded: bool = False
    printed: int = 0


@dataclass(kw_only=True)
class GuestReport:
    """The whole report. It is incomplete when the guest was ended from outside."""

    began: float = 0.0
    done: float | None = None
    ready: bool | None = None
    flooded: bool = False
    transfer: float = 0.0
    oom_kills: int = 0
    memory_left: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # number of packets, by capture
    stages: dict[str, float] = field(default_factory=dict)
    processes: dict[str, ProcessReport] = field(default_factory=dict)
    error: dict[str, str] = field(default_factory=dict)
    error_role: str = ""  # role whose last lines of output explain the error; `-`: none


def read_report(text: str) -> GuestReport:
    """Parse the lines of a report. Unknown and broken lines are ignored."""
    report = GuestReport()
    for line in text.splitlines():
        with suppress(ValueError, KeyError):
            _read_line(report, line)
    return report


def _read_line(report: GuestReport, line: str) -> None:
    word, _, rest = line.partition(" ")
    first, _, more = rest.partition(" ")
    if word in ("began", "done", "transfer"):
        setattr(report, word, _finite(first))
    elif word in ("oom_kills", "memory_left"):
        setattr(report, word, int(_finite(first)))
    elif word in ("ready", "flooded"):
        setattr(report, word, first == "1")
    elif word == "stage":
        report.stages[_text(first.replace("-", " "))] = _finite(more)
    elif word == "dropped":
        report.dropped[first] = int(_finite(more))
    elif word == "process":
        report.processes[first] = _process(more)
    elif word == "error" and not report.error and _CODE.fullmatch(first):
        role, _, message = more.partition(" ")
        report.error, report.error_role = {"code": first, "message": _text(message)}, role


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _process(text: str) -> ProcessReport:
    values = dict(part.split("=", 1) for part in text.split())
    flags = {name: values[name] == "1" for name in ("started", "ended", "stopped", "timed_out", "flooded")}
    return ProcessReport(
        **flags,
        code=int(_finite(values["code"])),
        printed=int(_finite(values["printed"])),
        began=_finite(values["began"]),
        end=_finite(values["end"]),
    )
