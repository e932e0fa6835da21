"""Cases whose client is curl or a browser and whose server is `origin`, as in the papers on PEPs.

The default link is `geo`: a geostationary satellite and a ground segment behind its gateway.
"""

from typing import Any

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


def _load(name: str, description: str, *, protocol: str, **how: Any) -> Case:
    """A measurement without checks. `how`: other fields of the case."""
    return Case(
        name=name,
        abbreviation=name,
        kind=Kind.MEASUREMENT,
        description=description,
        wire_name=name,
        link=GEO,
        checks=(),
        iterations=10,
        protocols=(protocol,),
        **how,
    )


def _download(name: str, description: str, *, sizes: tuple[int, ...] = _SIZES, **how: Any) -> Case:
    """A download of one file by curl, with a case for each of `sizes` (bytes). `sweep`: the sizes of `--size all`."""
    usual = {"client": ClientKind.DOWNLOADER, "timeout": _LEAST_TIMEOUT, "slowest": _SLOWEST, "sweep": _SWEEP}
    return _load(name, description, files=(max(sizes),), sizes=sizes, **{**usual, **how})


def _page(name: str, description: str, **how: Any) -> Case:
    """A load of the reference page in a browser. `origins` serve its objects; each origin costs a connection."""
    return _load(name, description, files=(TOTAL,), client=ClientKind.BROWSER, timeout=_PAGE_TIMEOUT, **how)


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
