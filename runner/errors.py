"""Error classes. The class of an error shows where it must be fixed. Only `runner.cli` turns errors into text and exit
codes."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_LONGEST = 240  # characters of a tool's output that an error message quotes: three lines of a terminal
# Lines that tcpdump always prints, also without a failure.
_CHATTER = re.compile(
    r"^(tcpdump: )?(listening on |verbose output suppressed|\d+ packets? (captured|received|dropped))"
)


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A hint for an unknown name, with a blank at its beginning; empty when no choice is similar."""
    near = get_close_matches(name, list(choices), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its class when the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)


class BentpipeError(Exception):
    """Base class of errors whose message is one clear sentence for the user. Exit code 3 unless set otherwise."""

    exit_code = 3


class UsageError(BentpipeError):
    """The user's input is wrong: an option, a file, a name. The message names the expected input. Exit code 2."""

    exit_code = 2


class SetupError(BentpipeError):
    """This host lacks Docker, a permission, disk space, a kernel feature or an image. Exit code 3."""


class LaneError(BentpipeError):
    """The harness could not run a job: an engine call failed, or a container of the lane ended. The job's outcome is
    `error`. `printed` is the complete output of the tool that failed. The message quotes the end of this output on one
    line."""

    def __init__(self, code: str, message: str, *, printed: str = "") -> None:
        quoted = _quoted(printed)
        super().__init__(f"{message.rstrip('.')}: {quoted}" if quoted else message)
        self.code = code
        self.printed = printed

    def record(self) -> dict[str, str]:
        """The error in the format of `evidence.json`."""
        return {"code": self.code, "message": str(self)} | ({"printed": self.printed} if self.printed else {})


def _quoted(printed: str) -> str:
    """The end of a tool's output on one line, without the lines that tcpdump always prints."""
    lines = [line.strip() for line in printed.splitlines()]
    text = " / ".join(line for line in lines if line and not _CHATTER.match(line))
    return text if len(text) <= _LONGEST else f"… {text[-_LONGEST:]}"


class InUseError(UsageError):
    """Another process has locked the folder."""


class BudgetError(BentpipeError):
    """A link's volume of a day or month is used up. Its other jobs don't run; other links go on. Exit code 3."""


class HostRefusedError(SetupError):
    """A remote host shows another host key or refuses the login. Its links' jobs don't run; other links go on."""


class InterruptedRunError(BentpipeError):
    """The user ended the run. The message has the command that resumes it. Exit code 3."""


class CaptureError(BentpipeError):
    """A capture or key log can't be read at all: not a capture, unknown link type, empty. Exit code 2."""

    exit_code = 2
