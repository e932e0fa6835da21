"""Recorded jobs of real pairs, to be judged, played again, or broken."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.config.catalog import Catalog, load_catalog
from runner.model.artifacts import Artifacts

RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Artifacts]:
    """A function from `<server>_<client>/<case>` to a copy of that recording, which a test may break."""

    def copy(name: str) -> Artifacts:
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(RECORDINGS / name / "1", folder)
        return Artifacts(folder)

    return copy
