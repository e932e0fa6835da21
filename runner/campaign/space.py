"""Checks free disk space before each job. A full disk pauses the run."""

import shutil
from pathlib import Path

from runner.units import MIB, format_size

LEAST_FREE = 512 * MIB  # bytes; a SAT job with its captures and tables needs about a tenth of this


def lack_of_space(folder: Path) -> str:
    """Why no job can begin now, and the fix; empty when LEAST_FREE bytes are free in the file system of `folder`."""
    if shutil.disk_usage(folder).free >= LEAST_FREE:
        return ""
    return (
        f"paused: less than {format_size(LEAST_FREE)} are free in {folder}. Make space there; the run then "
        "continues by itself. Ctrl-C ends the run; the same command continues it later."
    )
