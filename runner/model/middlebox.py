"""A middlebox (RFC 3234): what carries traffic over the satellite, as a VPN or a PEP does; and how it crossed."""

from dataclasses import dataclass, field
from enum import StrEnum

NO_VIA = "none"  # what `--via` calls a way without a middlebox


class Box(StrEnum):
    """Where a middlebox's containers stand. A box without a container forwards packets and does nothing else."""

    TERMINAL = "terminal"  # before the satellite, seen from the client
    GATEWAY = "gateway"  # behind it


BOXES = (Box.TERMINAL, Box.GATEWAY)


@dataclass(frozen=True, kw_only=True)
class Middlebox:
    """One entry of `middleboxes` in implementations.json. `build`: the folder that makes `image`, None when pulled."""

    name: str
    image: str
    url: str
    version: str
    build: str | None = None
    note: str = ""
    boxes: tuple[Box, ...] = BOXES  # where the image runs
    splits: tuple[Box, ...] = ()  # where TCP connections end and others begin
    splits_quic: tuple[Box, ...] = ()  # where QUIC connections end and others begin
    carries: tuple[str, ...] = ("tcp", "udp")  # what goes through it; the rest is forwarded beside it
    encrypts: bool = False  # nothing of the inner connections may be visible on the satellite link
    poses_as_server: bool = False  # it ends TLS connections in the server's name, and is given /certs
    knobs: tuple[str, ...] = ()  # environment variables that a variant may set
    variant_of: str = ""  # the middlebox beside which it stands; empty: it is one itself
    parameters: dict[str, str] = field(default_factory=dict)  # of a variant


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One thing that an eavesdropper on the satellite link looked for in every captured byte."""

    what: str  # client address, server address, ports, server name, secret in the URL, …
    visible: bool
    times: int = 0  # packets that show it
    packet: int | None = None  # the first of them in the capture at the terminal's end of the link, from 1
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
    `outer_bytes` in packets of the middlebox itself, between terminal and gateway.
    """

    connections: int  # TCP connections of the client that carried data
    whole: int = 0  # of those, the same from client to server: both initial sequence numbers are
    on_link: int = 0  # TCP connections in the clear on the satellite segment, between client's and server's address
    terminal_split: int = 0  # of those, none of the client's own: their sequence numbers are not at the client
    gateway_split: int = 0  # of those, ended at the gateway: their sequence numbers are not at the server
    inner_bytes: int = 0
    outer_bytes: int = 0
    client_bytes: int = 0  # IP bytes at the client, both directions, with the server
    answered: bool = True  # some payload of the server reached the client
    sights: tuple[Sight, ...] = ()

    @property
    def visible(self) -> tuple[str, ...]:
        """What an eavesdropper sees, by name."""
        return tuple(sight.what for sight in self.sights if sight.visible)
