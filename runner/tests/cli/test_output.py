"""Output that can't be written or encoded: at most one sentence, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.paths import ROOT

RECORDINGS = ROOT / "runner/tests/recordings/schema_1"
RUN = str(RECORDINGS / "pairs")
COMMANDS = {
    "show": ("show", f"{RUN}/quic-go_quinn/handshake/1"),
    "plan": ("plan", "--client", "quinn", "--server", "quinn"),
    "compare": ("compare", RUN, str(RECORDINGS / "pairs-with-variant")),
    "history": ("history", "--logs", str(RECORDINGS), "--all"),
    "list": ("list",),
    "schema": ("schema", "implementations.json"),
    "help": ("--help",),
    "wrong": ("show", "\u00fc\u2713\u202e"),
}


def _bentpipe(name: str, *, full: str = "", **environment: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "runner", *COMMANDS[name]]
    with Path("/dev/full").open("w") as disk:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "200", "DOCKER_HOST": "unix:///nonexistent", **environment},
            stdout=disk if "out" in full else subprocess.PIPE,
            stderr=disk if "err" in full else subprocess.PIPE,
            timeout=120,
            check=False,
        )
    encoding = environment.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
    return done.returncode, (done.stdout or b"").decode(encoding), (done.stderr or b"").decode(encoding)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "wrong"])
def test_a_full_disk_is_one_sentence(name: str) -> None:
    code, _, printed = _bentpipe(name, full="out")
    assert code == 3, printed
    assert printed == "bentpipe: The output can't be written: No space left on device.\n"


@pytest.mark.parametrize("name", ["show", "wrong"])
def test_a_full_disk_for_everything_ends_the_command(name: str) -> None:
    assert _bentpipe(name, full="out err")[0] in (2, 3)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_any_encoding_prints_everything(name: str, encoding: str) -> None:
    code, output, printed = _bentpipe(name, PYTHONIOENCODING=encoding)
    assert "Traceback" not in printed
    assert code in ((2,) if name == "wrong" else (0, 1)), printed
    assert name == "wrong" or output
