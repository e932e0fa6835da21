"""The program in a fork of this process, which has its modules: a new Python needs seconds of CPU time to load them."""

import io
import os
import pty
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from runner.cli import decoding, entry, host_commands, read_commands, run_commands
from runner.paths import ROOT

LOADED = decoding, host_commands, read_commands, run_commands


def bentpipe(
    *arguments: str | Path,
    full: str = "",
    typed: str = "",
    encoding: str = "utf-8",
    errors: str = "strict",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run `./bentpipe` with these arguments. `full`: what goes to a full disk, `out` or `err` or both. `typed`: what a
    person types at the terminal; without it the standard input is empty. `encoding`, `errors`: those of both streams.
    """
    terminal, keyboard = pty.openpty()
    os.write(terminal, typed.encode())
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path("/dev/full").open("wb") as disk:
        streams = (disk if "out" in full else out).fileno(), (disk if "err" in full else err).fileno()
        if (pid := os.fork()) == 0:
            os.dup2(keyboard if typed else os.open(os.devnull, os.O_RDONLY), 0)
            _child(tuple(map(str, arguments)), streams, encoding, errors, environment)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
        os.close(keyboard)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(encoding))
    return subprocess.CompletedProcess(arguments, code, *texts)


def _child(
    arguments: tuple[str, ...], streams: tuple[int, int], encoding: str, errors: str, environment: dict[str, str]
) -> NoReturn:
    code = 1
    try:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(open(number, "wb", closefd=False), encoding=encoding, errors=errors)  # noqa: SIM115
            for number in (1, 2)
        )
        os.environ |= environment
        os.chdir(ROOT)
        sys.argv = ["bentpipe", *arguments]
        entry()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        with suppress(OSError):
            traceback.print_exc()
    finally:
        for file in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                file.flush()
        os._exit(code)
