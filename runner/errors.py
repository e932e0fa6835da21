"""Errors, by who has to fix them. Only `runner.cli` turns them into text and exit codes."""

import re

_LONGEST = 240  # characters of a tool's output in a sentence: three lines of a terminal
# Lines that tcpdump always prints, also without a failure.
_CHATTER = re.compile(
    r"^(tcpdump: )?(listening on |verbose output suppressed|\d+ packets? (captured|received|dropped))"
)


class BentpipeError(Exception):
    """Base of every error with one clear sentence for the user. Exit code 3 unless a subclass says otherwise."""

    exit_code = 3


class UsageError(BentpipeError):
    """The user's input is wrong: an option, a file, a name. The sentence says what was expected. Exit code 2."""

    exit_code = 2


class SetupError(BentpipeError):
    """This host lacks something: Docker, a right, disk, a kernel feature, an image. Exit code 3."""


class LaneError(BentpipeError):
    """The harness could not run a job: an engine call failed, a holder died. The job becomes an `error`.

    `printed`: the output of the tool that failed. The sentence quotes it on one line; `printed` keeps all of it.
    """

    def __init__(self, code: str, message: str, *, printed: str = "") -> None:
        quoted = _quoted(printed)
        super().__init__(f"{message.rstrip('.')}: {quoted}" if quoted else message)
        self.code = code
        self.printed = printed

    def record(self) -> dict[str, str]:
        """The error as `evidence.json` keeps it."""
        return {"code": self.code, "message": str(self)} | ({"printed": self.printed} if self.printed else {})


def _quoted(printed: str) -> str:
    """The output of a tool on one line, without what it always prints, cut to its end."""
    lines = [line.strip() for line in printed.splitlines()]
    text = " / ".join(line for line in lines if line and not _CHATTER.match(line))
    return text if len(text) <= _LONGEST else f"… {text[-_LONGEST:]}"


class BudgetError(BentpipeError):
    """A link's volume for a day or a month is used up: its jobs stay undone; other links continue. Exit code 3."""


class HostRefusedError(SetupError):
    """A remote host has another key, or refuses the login. Another try won't help. The jobs of its links stay undone;
    other links continue."""


class InterruptedRunError(BentpipeError):
    """The user ended the run. Finished jobs are stored. The sentence has the command that resumes the run. Exit code
    3."""


class CaptureError(BentpipeError):
    """A capture or key log can't be read at all: not a capture, unknown link type, empty. Exit code 2."""

    exit_code = 2
