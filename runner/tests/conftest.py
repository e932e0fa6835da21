"""Fixtures with recorded jobs of real pairs, which tests judge, play again, or break."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from runner.model.result import Artifacts
from runner.plan.catalog import Catalog, load_catalog
from runner.tests.records import RECORDINGS

settings.register_profile("bentpipe", deadline=None)  # with a time limit per example, tests would fail on a busy host
settings.load_profile("bentpipe")


class _OneProcessForDocker(LoadScopeScheduling):  # type: ignore[misc]
    """Distributes tests by file. One process gets all files with containers: jobs would take each other's cores."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "docker" if _has_containers(self.config.rootpath / file) else file


@cache
def _has_containers(file: Path) -> bool:
    return "mark.docker" in file.read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _OneProcessForDocker(config, log)


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
