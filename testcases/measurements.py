"""Measurements: a 10 MiB file over one connection, in several iterations."""

from runner.model.link import AdvertisedLink, Link
from runner.model.protocol import PROTOCOLS
from runner.model.run import Kind
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
    """A transfer of `size` bytes over `link`, several iterations, `beside` another flow or alone.

    It is sent as `transfer`, so that no image can special-case it.

    A pair that shares only HTTP/3 is measured over that, sent as `http3`; one of TCP over HTTP/2 or HTTP/1.1, sent as
    `h2` or `h1`. Its result says so.
    """
    return Case(
        name=name,
        abbreviation=abbreviation,
        kind=Kind.MEASUREMENT,
        description=description,
        wire_name="transfer",
        link=link,
        files=(size,),
        checks=(checks.files_are_equal, checks.Handshakes(1), checks.alpn_as_asked),
        timeout=timeout,
        iterations=iterations,
        over_tcp=checks.OVER_TCP,
        protocols=PROTOCOLS,
        beside=beside,
    )
