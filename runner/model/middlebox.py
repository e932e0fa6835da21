"""A middlebox (RFC 3234), such as a VPN or a PEP, and how traffic crossed the satellite through it."""

from dataclasses import dataclass, field
from enum import StrEnum

NO_VIA = "none"  # the value of `--via` for no middlebox


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
    carries: tuple[str, ...] = ("tcp", "udp")  # transports that go through it; others are forwarded past it
    encrypts: bool = False  # nothing of the inner connections may be visible on the satellite link
    link_port: bool = False  # the boxes speak over UDP port LINK_PORT of the gateway alone
    poses_as_server: bool = False  # it ends TLS connections in the server's name, and gets /certs
    knobs: tuple[str, ...] = ()  # environment variables that a variant may set
    variant_of: str = ""  # the middlebox of which it is a variant; empty: it is no variant
    parameters: dict[str, str] = field(default_factory=dict)  # parameters of a variant

    @property
    def forwards(self) -> bool:
        """True when it only forwards packets."""
        return not (self.splits or self.splits_quic or self.encrypts)

    @property
    def crosses_real_links(self) -> bool:
        """True when it works over a real link, on which the endpoints' own addresses don't exist."""
        return self.link_port or self.forwards


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One kind of private data that was searched for in every captured byte of the satellite link."""

    what: str  # client address, server address, ports, server name, secret in the URL, …
    visible: bool
    times: int = 0  # packets that show it
    packet: int | None = None  # the first of them in the capture at the terminal's end of the link, from 1
    how: str = ""  # how it was found: in the clear, inside a tunnel without encryption, as base64, …


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
    whole: int = 0  # those that reach the server unchanged: both initial sequence numbers are equal
    on_link: int = 0  # TCP connections in the clear on the satellite segment, between client's and server's address
    terminal_split: int = 0  # those that begin at the terminal: their sequence numbers are not at the client
    gateway_split: int = 0  # those that end at the gateway: their sequence numbers are not at the server
    inner_bytes: int = 0
    outer_bytes: int = 0
    client_bytes: int = 0  # IP bytes between client and server in the client's capture, both directions
    answered: bool = True  # True: payload of the server reached the client
    sights: tuple[Sight, ...] = ()

    @property
    def visible(self) -> tuple[str, ...]:
        """The names of the data that an eavesdropper sees."""
        return tuple(sight.what for sight in self.sights if sight.visible)
