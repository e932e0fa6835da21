"""Both ends of a link on other hosts: a terminal and a rented server, with the runner beside neither."""

from pathlib import Path

import pytest

from lab.testbed.hosts import Host, free_number
from runner.model.link import LinkParameters
from runner.model.result import Outcome
from runner.places.supervised import TOOLS
from runner.plan.catalog import Catalog
from runner.tests.links.jobs import FORWARD_RATE, RETURN_RATE, STACK, link_to, working
from runner.tests.links.satellite import INTERFACE, Satellite
from runner.tests.links.test_real_link import images  # noqa: F401 - a fixture

pytestmark = [pytest.mark.docker, pytest.mark.slow]

DELAY = 0.03


def test_the_server_stands_on_a_second_host(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    rented = Host(tmp_path / "rented", free_number())
    satellite = Satellite(remote_host, rented, remote_host.number)
    try:
        rented.open()
        rented.load(TOOLS, f"bentpipe/{STACK}")
        satellite.open(
            LinkParameters(data_rate=FORWARD_RATE, delay=DELAY, queue_packets=125, loss=0.0),
            LinkParameters(data_rate=RETURN_RATE, delay=DELAY, queue_packets=125, loss=0.0),
        )
        link = link_to(remote_host, interface=INTERFACE, server=rented)
        with working(catalog, tmp_path, link, cases=("transfer",)) as work:
            # The address of SSH is probed first, and the link does not lead there.
            first = next(line for line in work.said if line.startswith("  10."))
            assert (
                first == f"  {rented.address} over nothing: the client's host routes it nowhere, not over {INTERFACE}"
            )
            result, evidence = work.do(work.run.order[0])
        assert (result.outcome, result.findings) == (Outcome.SUCCEEDED, ())
        assert evidence.real_link is not None
        assert evidence.real_link.server_address == satellite.server_address
        assert (remote_host.containers(), rented.containers()) == ([], [])
    finally:
        satellite.close()
        rented.close()
