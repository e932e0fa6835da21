"""BA: during the transfer, a NAT gives the client another address."""

from collections.abc import Iterator
from dataclasses import replace

from runner.model.result import Finding
from testcases import hits
from testcases.base import CaseEvidence
from testcases.links import REBIND_ADDRESS
from testcases.rebinding import rebinding


def address_changed(case: CaseEvidence) -> Iterator[Finding]:
    """The server saw the client at more than one IP address, not only at more than one port."""
    hosts = {path.client.rpartition(":")[0] for connection in case.facts.connections for path in connection.paths}
    if len(hosts) < 2:
        yield hits.missed("the server sees two addresses of the client", ", ".join(sorted(hosts)))


_CASE = rebinding(
    name="rebind-addr",
    abbreviation="BA",
    description="10 MiB arrive although a NAT changes the client's address after 1 s, then every 5 s; "
    "new paths are validated.",
    link=REBIND_ADDRESS,
)
CASE = replace(_CASE, preconditions=(*_CASE.preconditions, address_changed))
