"""Every package is pinned with the hashes of its files: a mirror can't put another file in its place."""

import re
import tomllib
from pathlib import Path

import pytest

from runner.paths import ROOT

_PINNED = re.compile(r"[A-Za-z0-9_.-]+==\S+( +--hash=sha256:[0-9a-f]{64})+")
FILES = [ROOT / "requirements.txt", ROOT / "runner" / "tests" / "requirements.txt"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_requirement_has_its_version_and_hashes(path: Path) -> None:
    lines = re.sub(r"\\\n", "", path.read_text()).splitlines()
    requirements = [line for line in lines if line and not line.startswith(("#", "-r "))]
    assert len(requirements) > 10
    assert [line for line in requirements if not _PINNED.fullmatch(line)] == []


def test_an_installation_needs_what_a_checkout_installs() -> None:
    """`pip install .` takes the packages from pyproject.toml; `./bentpipe` installs the same versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {
        "requirements.txt": project["dependencies"],
        "requirements-workers.txt": project["optional-dependencies"]["workers"],
    }
    for name, packages in asked.items():
        direct = (ROOT / name).read_text().partition("# What those import")[0]
        assert packages == [pin.replace("==", ">=") for pin in re.findall(r"^[A-Za-z]\S*==\S+", direct, re.MULTILINE)]
