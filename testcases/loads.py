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


def download(
    *,
    name: str,
    description: str,
    protocol: str,
    sizes: tuple[int, ...],
    sweep: tuple[int, ...],
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


def page(*, name: str, description: str, protocol: str, origins: int = 1, encrypted: bool = True) -> Case:
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
