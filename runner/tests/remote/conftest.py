"""Remote hosts for the tests: namespaces with an SSH server and a Docker Engine of their own."""

from collections.abc import Iterator

import pytest

from runner.lanes.holders import TOOLS
from runner.tests.remote.hosts import Host, free_number, lacking
from runner.tests.remote.jobs import STACK


@pytest.fixture(scope="session")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host, for all tests that leave it as they found it; images that were sent to it stay there."""
    if reason := lacking():
        pytest.skip(f"no remote host can be made: {reason}")
    host = Host(tmp_path_factory.mktemp("remote"), free_number())
    try:
        host.open()
        host.load(TOOLS, f"bentpipe/{STACK}")
        yield host
    finally:
        host.close()
