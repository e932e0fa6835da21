"""Recorded jobs of real pairs, to be judged, played again, or broken."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from runner.config.catalog import Catalog, load_catalog
from runner.model.artifacts import Artifacts

settings.register_profile("bentpipe", deadline=None)  # a time limit per example would fail on a busy host
settings.load_profile("bentpipe")

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
