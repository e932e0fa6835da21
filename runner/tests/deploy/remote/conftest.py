"""Remote hosts for the tests: namespaces with an SSH server and a Docker Engine of their own."""

from collections.abc import Iterator

import pytest

from runner.tests.deploy.remote.hosts import Host, free_number, lacking


@pytest.fixture(scope="session")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host, for all tests that leave it as they found it; images that were sent to it stay there."""
    if reason := lacking():
        pytest.skip(f"no remote host can be made: {reason}")
    host = Host(tmp_path_factory.mktemp("remote"), free_number())
    try:
        yield host.open()
    finally:
        host.close()
