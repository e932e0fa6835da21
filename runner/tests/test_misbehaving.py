"""The misbehaving endpoints: their list of sins, and their verdicts against a real stack."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runner.model.result import Outcome
from runner.paths import ROOT
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder
from runner.tests.recordings.conformance import BAD

FOLDER = ROOT / "implementations" / "_misbehaving"
SOURCE = FOLDER / "source"
STACKS = FOLDER / "implementations.json"


def _sins() -> set[str]:
    """The keys of SINS, read without aioquic."""
    tree = ast.parse((SOURCE / "sins.py").read_text())
    table = next(
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "SINS"
    )
    assert isinstance(table, ast.Dict)
    return {key.value for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def test_every_sin_is_committed_somewhere_and_none_that_is_not_listed() -> None:
    code = "".join(path.read_text() for path in SOURCE.glob("*.py") if path.name != "sins.py")
    assert set(re.findall(r'_?sin\("([a-z0-9-]+)"\)', code)) == _sins()


def test_recordings_ask_for_listed_sins() -> None:
    requested = {text.split()[0] for bad in BAD for text in (bad.client, bad.server) if text}
    assert requested <= _sins()


def test_no_user_meets_them_in_the_matrix() -> None:
    assert "misbehaving" not in load_catalog().implementations
    assert "misbehaving" in load_catalog(STACKS).implementations


def _sinful(sin: str) -> tuple[str, str]:
    return "--variant", f"misbehaving:SERVER_PARAMS=sin={sin}"


@pytest.mark.docker
def test_a_real_client_sees_the_sins_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "sins"
    command = [
        sys.executable,
        "-m",
        "runner",
        "--implementations",
        str(STACKS),
        "run",
        "--run",
        str(path),
        "--lanes",
        "3",
    ]
    command += ["--server", "misbehaving", "--client", "quic-go", "--case", "handshake", "--seed", "3"]
    process = subprocess.run(
        [*command, *_sinful("always-retries"), *_sinful("short-file")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    verdicts = {
        re.sub("~.*", "", job.server): (result.outcome, [finding.code for finding in result.findings])
        for job, result in RunFolder.open(path).results().items()
    }
    assert verdicts == {
        "misbehaving": (Outcome.SUCCEEDED, []),
        "misbehaving+server-params=sin-always-retries": (Outcome.FAILED, ["unexpected-retry"]),
        "misbehaving+server-params=sin-short-file": (Outcome.FAILED, ["files-differ"]),
    }
