"""Every package is pinned with the hashes of its files: a mirror can't put another file in its place."""

import re
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
