"""Parses the report of a guest's first process: lines with a word and values. No input or output."""

from dataclasses import dataclass, field


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
    """Parse the lines of a report. Unknown lines are ignored."""
    report = GuestReport()
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        first, _, more = rest.partition(" ")
        if word in ("began", "done", "transfer"):
            setattr(report, word, float(first))
        elif word in ("oom_kills", "memory_left"):
            setattr(report, word, int(first))
        elif word in ("ready", "flooded"):
            setattr(report, word, first == "1")
        elif word == "stage":
            report.stages[first.replace("-", " ")] = float(more)
        elif word == "dropped":
            report.dropped[first] = int(more)
        elif word == "process":
            report.processes[first] = _process(more)
        elif word == "error" and not report.error:
            role, _, message = more.partition(" ")
            report.error, report.error_role = {"code": first, "message": message}, role
    return report


def _process(text: str) -> ProcessReport:
    values = dict(part.split("=", 1) for part in text.split())
    flags = {name: values[name] == "1" for name in ("started", "ended", "stopped", "timed_out", "flooded")}
    return ProcessReport(
        **flags,
        code=int(values["code"]),
        printed=int(values["printed"]),
        began=float(values["began"]),
        end=float(values["end"]),
    )
