"""A terminal behind its owner's router and its carrier's: addresses and ports are others at each end of the link."""

from pathlib import Path

import pytest

from lab.testbed.hosts import Host
from runner.decode.tables import load_tables
from runner.model.link import LinkParameters
from runner.model.result import Outcome
from runner.plan.catalog import Catalog
from runner.tests.links import nat, satellite
from runner.tests.links.jobs import link_to, working
from runner.tests.links.test_real_link import images  # noqa: F401 - a fixture

pytestmark = pytest.mark.docker

DELAY = 0.05
# A full queue delays by 25 ms at most: half of the delay, whatever a sender keeps in it.
WAY = LinkParameters(data_rate=50_000_000, delay=DELAY, queue_packets=100, loss=0.0)
CLOCK = 0.005  # largest allowed error of the clock offset in seconds
QUEUE = WAY.queue_packets * 8 * 1514 / WAY.data_rate


def _client_side(tables: Path) -> set[tuple[str, int]]:
    """Address and port of whoever opened the connections, in one capture."""
    datagrams = load_tables(tables).datagrams
    from_client = datagrams.filter(datagrams["sender"].to_numpy() == 0)
    return set(zip(from_client["src"].to_pylist(), from_client["src_port"].to_pylist(), strict=True))


def test_a_client_behind_two_nats_is_judged_as_any(remote_host: Host, catalog: Catalog, tmp_path: Path) -> None:
    number = remote_host.number
    routers = nat.Nat(remote_host, number)
    sky = satellite.Satellite(routers, None, number)
    try:
        routers.open(outside=satellite.INTERFACE)
        sky.open(WAY, WAY)
        link = link_to(remote_host, interface=nat.INTERFACE)
        with working(catalog, tmp_path, link, cases=("transfer",)) as work:
            result, evidence = work.do(work.run.order[0])
    finally:
        sky.close()
        routers.close()
    assert result.outcome is Outcome.SUCCEEDED, result.findings
    observed = evidence.real_link
    assert observed is not None
    assert (observed.server_address, observed.translated) == (sky.server_address, True)
    left, right = (_client_side(tmp_path / "transfer@roof" / "1" / "tables" / side) for side in ("client", "server"))
    assert {address for address, _ in left} == {f"192.168.{number}.100"}
    assert {address for address, _ in right} == {sky.client_address}
    assert {port for _, port in left}.isdisjoint(port for _, port in right)
    # Facts that need both captures.
    assert result.sample is not None
    delay = result.sample.one_way_delay_median
    assert delay is not None
    assert DELAY - CLOCK < delay < DELAY + QUEUE + CLOCK
    assert not [invariant for invariant in result.invariants if invariant.holds is False]
