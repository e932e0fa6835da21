"""Virtual time without Docker and without root: a whole run by a user who has neither, from saved images."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from runner.engine.engine import connect
from runner.images.images import SIMULATOR
from runner.model.result import Outcome
from runner.paths import ROOT
from runner.places.guests.processes import IMAGE
from runner.store.runs import RunFolder

pytestmark = pytest.mark.docker

IMAGES = (IMAGE, SIMULATOR, "bentpipe/quic-go")
_NOBODY = 65534
_USER = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs")
_READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
_STARTS_ITSELF = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of this source that belongs to the user `nobody`, with an archive of the images."""
    client = connect()
    try:
        client.images.get(IMAGE)
    except ImageNotFound:
        pytest.skip(f"the image {IMAGE} is not built: `./bentpipe test` builds it")
    finally:
        client.close()
    folder = tmp_path_factory.mktemp("rootless") / "bentpipe"
    usual = shutil.ignore_patterns(".git", ".venv", "logs", "tests", "__pycache__", "target")

    def ignored(where: str, names: list[str]) -> set[str]:
        drawn = {name for name in names if name == "site" or name.startswith(".site")}  # links to jobs of this checkout
        return usual(where, names) | (drawn if Path(where) == ROOT / "web" else set())

    shutil.copytree(ROOT, folder, ignore=ignored)
    (folder / "logs").mkdir()
    subprocess.run(["docker", "save", "-o", str(folder / "images.tar"), *IMAGES], check=True, timeout=120)
    for path in folder.rglob("*"):
        shutil.chown(path, _NOBODY, _NOBODY)
    shutil.chown(folder, _NOBODY, _NOBODY)
    for parent in folder.parents:
        if parent.stat().st_mode & 0o005 != 0o005:  # pytest's folders are closed to other users
            parent.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def user() -> tuple[str, ...]:
    """The command that becomes `nobody`. Where only root reaches Python's own files, the user may read every file, but
    still write only its own.
    """
    for command in (_USER, (*_USER, *_READS)):
        if not subprocess.run(
            [*command, sys.executable, "-c", _STARTS_ITSELF], capture_output=True, check=False
        ).returncode:
            return command
    pytest.skip(f"the user nobody can't run {sys.executable}")


def test_a_user_without_docker_and_root_runs_a_job(checkout: Path, user: tuple[str, ...]) -> None:
    options = ["--clock", "virtual", "--rootless", "images.tar", "--case", "handshake", "--run", "alone", "--seed", "3"]
    stacks = ["--server", "quic-go", "--client", "quic-go"]
    process = subprocess.run(
        [*user, sys.executable, "-m", "runner", "run", *options, *stacks],
        cwd=checkout, env={"HOME": str(checkout), "DOCKER_HOST": "unix:///nowhere", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    folder = RunFolder.open(checkout / "logs" / "alone")
    assert folder.run.clock == "virtual"
    assert [result.outcome for result in folder.results().values()] == [Outcome.SUCCEEDED]
