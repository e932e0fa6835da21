"""The command line: reads options, calls the other rooms, prints, exits.

Exit codes: 0 success · 1 a job failed (`--strict`) · 2 bad input · 3 this host lacks something, or the run did not end.
"""

import errno
import os
import signal
import stat
import sys
from io import TextIOWrapper
from pathlib import Path

import click

from runner.cli.group import main
from runner.errors import BentpipeError

if not os.environ.get("DOCKER_HOST", "").startswith("ssh:"):
    # docker-py can do without this module, whose import takes longer than that of all others of a command.
    sys.modules.setdefault("docker.transport.sshconn", None)  # type: ignore[arg-type]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_BROKEN = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE)
_REFUSED = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
_ENGINE_PACKAGES = ("docker", "requests", "urllib3")  # which only the engine's client uses


def entry() -> None:
    """Run the command line; a BentpipeError becomes one sentence and its exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it, as with `>&-`; the next file would take its number
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal's encoding may lack a character
    try:
        try:
            main(prog_name="bentpipe", standalone_mode=False)
        finally:
            sys.stdout.flush()  # so that a full disk is noticed here
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        help_ = f" `./{context.command_path} --help` lists the options." if context is not None else ""
        message = error.format_message()
        _print(f"{message}{'' if message.endswith(('.', ')', '?')) else '.'}{help_}")
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        # Python now waits for threads. Another Ctrl-C ends the process, and a watchdog removes what is left.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _print("interrupted.")
        sys.exit(3)
    except BentpipeError as error:
        _print(_with_owner(str(error), error.__cause__))
        sys.exit(error.exit_code)
    except BrokenPipeError:
        _drop(1)
        sys.exit(3)
    except Exception as error:
        sentence, code = _outside(error)
        if not sentence:
            raise
        _print(_with_owner(sentence, error))
        _drop(1)
        sys.exit(code)


def _drop(descriptor: int) -> None:
    """Python writes what is left of the output at its end, and exits with 120 when it can't."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _outside(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code for an error outside of this program; no sentence for an unexpected error."""
    if type(error).__module__.partition(".")[0] in _ENGINE_PACKAGES:
        return f"The Docker Engine failed ({error}): `./bentpipe doctor` tells what is wrong.", 3
    if not isinstance(error, OSError) or error.errno is None:
        return "", 1
    why = os.strerror(error.errno)
    if error.errno in _FULL:
        return f"{error.filename or 'The output'} can't be written: {why}.", 3
    if error.errno in _BROKEN or (error.errno in _REFUSED and error.filename is not None):
        return f"{error.filename or 'A file'} can't be used: {why}.", 3 if error.errno in _BROKEN else 2
    return "", 1


def _with_owner(sentence: str, error: BaseException | None) -> str:
    """The sentence. If it ends with "Permission denied.", a second one names the file or folder that refuses this user,
    its owner and its mode."""
    if not isinstance(error, PermissionError) or not error.filename or not sentence.endswith(f": {error.strerror}."):
        return sentence
    place = Path(os.fsdecode(error.filename2 or error.filename)).absolute()
    while not os.access(place, os.F_OK, follow_symlinks=False):  # a folder on the way refuses, or a file can't be made
        place = place.parent
    status = place.lstat()
    try:
        owner = place.owner()
    except KeyError:
        owner = str(status.st_uid)
    return f"{sentence} {place} belongs to {owner} ({stat.filemode(status.st_mode)}): change its owner or its rights."


def _print(sentence: str) -> None:
    from runner.cli.base import err

    try:
        err.print(f"bentpipe: {sentence}", markup=False)
    except OSError:
        _drop(2)
