"""The command line: reads options, calls the other rooms, prints, exits.

Exit codes: 0 success · 1 a job failed (`--strict`) · 2 bad input · 3 this host lacks something, or the run did not end.
"""

import signal
import sys

import click

from runner.cli.group import main
from runner.errors import BentpipeError

_ENGINE_PACKAGES = ("docker", "requests", "urllib3")  # which only the engine's client uses


def entry() -> None:
    """Run the command line; a BentpipeError becomes one sentence and its exit code."""
    try:
        main(prog_name="bentpipe", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
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
        if type(error).__module__.partition(".")[0] not in _ENGINE_PACKAGES:
            raise
        _print(f"The Docker Engine failed ({error}): `./bentpipe doctor` tells what is wrong.")
        sys.exit(3)


def _print(sentence: str) -> None:
    from runner.cli.base import err  # noqa: PLC0415 - slow to import

    err.print(f"bentpipe: {sentence}", soft_wrap=True, markup=False)
