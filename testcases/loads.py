"""Cases whose client is curl or a browser and whose server is `origin`, as in the papers on PEPs.

The default link is `geo`: a geostationary satellite and a ground segment behind its gateway.
"""

from runner.inputs.inputs import TOTAL
from runner.model.run import ClientKind, Kind
from testcases.base import Case
from testcases.links import GEO

KB = 1_000  # bytes; the papers use decimal sizes
_LEAST_TIMEOUT = 60.0  # s
_SLOWEST = 200_000  # bit/s: the time-out is long enough for a transfer at this rate
_PAGE_TIMEOUT = 120.0  # s
_SIZES, _SWEEP = (2_000 * KB,), (500 * KB, 2_000 * KB, 10_000 * KB)
_STEPS = tuple(range(500 * KB, 10_000 * KB + 1, 250 * KB))  # of the comparison with iperf3 (QPEP paper 2021, figure 5)


def _download(
    name: str,
    description: str,
    *,
    protocol: str,
    sizes: tuple[int, ...] = _SIZES,
    sweep: tuple[int, ...] = _SWEEP,
    host: str = "server4",
    encrypted: bool = True,
) -> Case:
    """A download of one file by curl, with a case for each of `sizes` (bytes). `sweep`: the sizes of `--size all`."""
    return Case(
        name=name,
        abbreviation=name,
        kind=Kind.MEASUREMENT,
        description=description,
        wire_name=name,
        link=GEO,
        files=(max(sizes),),
        checks=(),
        timeout=_LEAST_TIMEOUT,
        slowest=_SLOWEST,
        iterations=10,
        protocols=(protocol,),
        host=host,
        client=ClientKind.DOWNLOADER,
        encrypted=encrypted,
        sizes=sizes,
        sweep=sweep,
    )


def _page(name: str, description: str, *, protocol: str, origins: int = 1, encrypted: bool = True) -> Case:
    """A load of the reference page in a browser. `origins` serve its objects; each origin costs a connection."""
    return Case(
        name=name,
        abbreviation=name,
        kind=Kind.MEASUREMENT,
        description=description,
        wire_name=name,
        link=GEO,
        files=(TOTAL,),
        checks=(),
        timeout=_PAGE_TIMEOUT,
        iterations=10,
        protocols=(protocol,),
        client=ClientKind.BROWSER,
        encrypted=encrypted,
        origins=origins,
    )


CASES = (
    _download(
        "download",
        "curl downloads one file over HTTP/1.1 without TLS: the time from its SYN to the last byte.",
        protocol="http/1.1",
        sizes=_SWEEP,
        sweep=_STEPS,
        encrypted=False,
    ),
    _download(
        "download-h1",
        "curl downloads one file over HTTP/1.1 and TLS: the time from its first packet to the last byte.",
        protocol="http/1.1",
    ),
    _download(
        "download-h2",
        "curl downloads one file over HTTP/2: the time from its first packet to the last byte.",
        protocol="h2",
    ),
    _download(
        "download-h3",
        "curl downloads one file over HTTP/3: the time from its first packet to the last byte.",
        protocol="h3",
    ),
    # It shows whether a middlebox carries IPv6, and whether IPv6 is as fast as IPv4.
    _download(
        "download-ipv6",
        "curl downloads one file over IPv6 and HTTP/1.1; a tunnel over the satellite may use IPv4.",
        protocol="http/1.1",
        host="server6",
        sweep=_STEPS,
        encrypted=False,
    ),
    # QUIC-PEP paper 2022, table II; QPEP paper 2021, figure 7.
    _page(
        "page",
        "Chromium loads the reference page of 75 objects over HTTP/1.1 without TLS, with an empty cache.",
        protocol="http/1.1",
        encrypted=False,
    ),
    _page(
        "page-h2", "Chromium loads the reference page of 75 objects over HTTP/2, with an empty cache.", protocol="h2"
    ),
    _page(
        "page-h3", "Chromium loads the reference page of 75 objects over HTTP/3, with an empty cache.", protocol="h3"
    ),
    # As most pages today (QPEP paper 2021, figure 6: the Alexa list).
    _page(
        "page-origins",
        "Chromium loads the reference page of 75 objects from 12 origins over HTTP/1.1 and TLS, with an empty cache.",
        protocol="http/1.1",
        origins=12,
    ),
)
