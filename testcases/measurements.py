"""Measurements: a 10 MiB file over one connection, in several iterations."""

from runner.model.link import AdvertisedLink, Link
from runner.model.run import Kind
from runner.model.stack import PROTOCOLS
from testcases import checks
from testcases.base import MEASURED_FILE, Case


def measurement(
    *,
    name: str,
    abbreviation: str,
    description: str,
    link: Link | AdvertisedLink,
    timeout: float,
    iterations: int = 10,
    size: int = MEASURED_FILE,
    beside: str = "",
) -> Case:
    """A transfer of `size` bytes over `link`, in several iterations; `beside`: the second flow, empty for none.

    TESTCASE is `transfer`, so that no image can treat a measurement in a special way.

    A pair whose only common protocol is HTTP/3 is measured over HTTP/3, with the TESTCASE `http3`. A pair of stacks
    over TCP is measured over HTTP/2 or HTTP/1.1, with the TESTCASE `h2` or `h1`. The result names the protocol.
    """
    return Case(
        name=name,
        abbreviation=abbreviation,
        kind=Kind.MEASUREMENT,
        description=description,
        wire_name="transfer",
        link=link,
        files=(size,),
        checks=(checks.files_are_equal, checks.Handshakes(1), checks.alpn_of_job),
        timeout=timeout,
        iterations=iterations,
        over_tcp=checks.OVER_TCP,
        protocols=PROTOCOLS,
        beside=beside,
    )
