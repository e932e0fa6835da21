"""The command line: reads options, calls the other rooms, prints, exits.

Exit codes: 0 success · 1 a job failed (`--strict`) · 2 bad input · 3 this host lacks something, or the run did not end.
"""

import contextlib
import errno
import os
import signal
import sys
from io import TextIOWrapper

import click

from runner.cli.group import main
from runner.errors import BentpipeError

if not os.environ.get("DOCKER_HOST", "").startswith("ssh:"):
    # docker-py can do without this module, whose import takes longer than that of all others of a command.
    sys.modules.setdefault("docker.transport.sshconn", None)  # type: ignore[arg-type]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_ENGINE_PACKAGES = ("docker", "requests", "urllib3")  # which only the engine's client uses


def entry() -> None:
    """Run the command line; a BentpipeError becomes one sentence and its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal's encoding may lack a character
    try:
        try:
            main(prog_name="bentpipe", standalone_mode=False)
        finally:
            sys.stdout.flush()  # so that a full disk is noticed here
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, EOFError, KeyboardInterrupt):
        # Python now waits for threads. Another Ctrl-C ends the process, and a watchdog removes what is left.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _print("interrupted.")
        sys.exit(3)
    except BentpipeError as error:
        _print(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(3)
    except Exception as error:
        if (sentence := _outside(error)) is None:
            raise
        _print(sentence)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left of the output at its end
        sys.exit(3)


def _outside(error: Exception) -> str | None:
    """The sentence for an error outside of this program; None for an unexpected error."""
    if type(error).__module__.partition(".")[0] in _ENGINE_PACKAGES:
        return f"The Docker Engine failed ({error}): `./bentpipe doctor` tells what is wrong."
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{error.filename or 'The output'} can't be written: {os.strerror(error.errno)}."
    return None


def _print(sentence: str) -> None:
    from runner.cli.base import err

    with contextlib.suppress(OSError):
        err.print(f"bentpipe: {sentence}", soft_wrap=True, markup=False)
