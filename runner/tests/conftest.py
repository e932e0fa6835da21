"""Fixtures with recorded jobs of real pairs, which tests judge, play again, or break."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from lab.recordings.recordings import RECORDINGS
from runner.model.result import Artifacts
from runner.plan.catalog import Catalog, load_catalog

settings.register_profile("bentpipe", deadline=None)  # with a time limit per example, tests would fail on a busy host
settings.load_profile("bentpipe")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Artifacts]:
    """A function that copies the recording `<server>_<client>/<case>`. A test may break the copy."""

    def copy(name: str) -> Artifacts:
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(RECORDINGS / name / "1", folder)
        return Artifacts(folder)

    return copy
