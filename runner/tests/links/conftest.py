"""Fixtures with remote hosts, which are namespaces with their own SSH server and Docker Engine."""

from collections.abc import Iterator

import pytest

from lab.testbed.hosts import Host, free_number, lacking
from runner.places.supervised import TOOLS
from runner.tests.links.jobs import STACK


@pytest.fixture(scope="session")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host that many tests share. They must leave it unchanged, except for the images that were sent to it."""
    if reason := lacking():
        pytest.skip(f"no remote host can be made: {reason}")
    host = Host(tmp_path_factory.mktemp("remote"), free_number())
    try:
        host.open()
        host.load(TOOLS, f"bentpipe/{STACK}")
        yield host
    finally:
        host.close()
