"""A path: what carries traffic between a client's network and the satellite, as a VPN or a PEP does; and what it did.

In a run of paths a job's `client` is the path, its `server` is ORIGIN, its case is a workload over a link.
"""

from dataclasses import dataclass, field
from enum import StrEnum

ORIGIN = "origin"  # the server that workloads ask (RFC 9110 §3.6), the same behind every path
BROWSER = "browser"  # of page loads; recorded so that loads of two builds don't share a cell


def ends(client: str, server: str) -> str:
    """`client → server` of a pair; the path alone where the server is that of the workloads."""
    return client if server == ORIGIN else f"{client} → {server}"


class Side(StrEnum):
    """Where a path's containers stand. A side without one forwards packets and nothing else."""

    TERMINAL = "terminal"  # before the satellite, seen from the client
    GATEWAY = "gateway"  # behind it


SIDES = (Side.TERMINAL, Side.GATEWAY)


@dataclass(frozen=True, kw_only=True)
class PathEntry:
    """One entry of `paths` in implementations.json. `build`: the folder that makes `image`, None when it is pulled."""

    name: str
    image: str
    url: str
    version: str
    build: str | None = None
    note: str = ""
    sides: tuple[Side, ...] = SIDES  # where the image runs
    splits: tuple[Side, ...] = ()  # where TCP connections end and others begin
    carries: tuple[str, ...] = ("tcp", "udp")  # what goes through it; the rest is forwarded beside it
    encrypts: bool = False  # nothing of the inner connections may be visible on the satellite link
    poses_as_server: bool = False  # it ends TLS connections in the server's name, and is given /certs
    knobs: tuple[str, ...] = ()  # environment variables that a variant may set
    variant_of: str = ""  # the path beside which it stands; empty: it is one itself
    parameters: dict[str, str] = field(default_factory=dict)  # of a variant


@dataclass(frozen=True, kw_only=True)
class PathEvidence:
    """What the judge of a job must know of its path. `seed`: that of the served content."""

    entry: PathEntry
    seed: int


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One thing that an eavesdropper on the satellite link looked for in every captured byte."""

    what: str  # client address, server address, ports, server name, secret in the URL, …
    visible: bool
    times: int = 0  # packets that show it
    packet: int | None = None  # the first of them in the terminal's side capture of the link, from 1
    how: str = ""  # in the clear, inside a tunnel without encryption, as base64, …


@dataclass(frozen=True, kw_only=True)
class PageLoad:
    """Times of the Navigation and Paint Timing APIs (W3C), seconds since the navigation began."""

    response_start: float | None
    first_contentful_paint: float | None
    load: float | None  # loadEventStart; None: not within the case's time
    completed: int  # objects that arrived whole, with status 200
    attempted: int


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """How a job's traffic crossed the satellite link, from captures at the client, on the link and at the server.

    IP bytes on the satellite segment, both directions: `inner_bytes` in packets between client and server themselves,
    `outer_bytes` in packets of the path's own, between terminal and gateway.
    """

    connections: int  # TCP connections of the client that carried data
    whole: int = 0  # of those, the same from client to server: both initial sequence numbers are
    on_link: int = 0  # TCP connections in the clear on the satellite segment, between client's and server's address
    terminal_split: int = 0  # of those, none of the client's own: their sequence numbers are not at the client
    gateway_split: int = 0  # of those, ended at the gateway: their sequence numbers are not at the server
    inner_bytes: int = 0
    outer_bytes: int = 0
    client_bytes: int = 0  # IP bytes at the client, both directions, with the workload's server
    sights: tuple[Sight, ...] = ()
    page: PageLoad | None = None

    @property
    def visible(self) -> tuple[str, ...]:
        """What an eavesdropper sees, by name."""
        return tuple(sight.what for sight in self.sights if sight.visible)
