"""Requirements of guests: memory and, without Docker, a folder that lets programs run."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import SetupError
from runner.places.guests.processes import LEAST, require_exec, require_memory


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory from which no program can be run."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    folder = tmp_path / "noexec"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def meminfo(folder: Path, size: int) -> Path:
    path = folder / "meminfo"
    path.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {size // 1024} kB\n")
    return path


def test_too_little_memory_is_told_before_anything_starts(tmp_path: Path) -> None:
    require_memory(2, meminfo(tmp_path, 2 * LEAST))
    with pytest.raises(SetupError, match=r"3 guests at once need .* are available: .* smaller --lanes"):
        require_memory(3, meminfo(tmp_path, 2 * LEAST))


def test_file_systems_that_let_no_program_run(noexec: Path) -> None:
    require_exec(noexec.parent)
    with pytest.raises(SetupError, match="where no program can run"):
        require_exec(noexec)
