"""A middlebox (RFC 3234), such as a VPN or a PEP, and how traffic crossed the satellite link through it."""

from dataclasses import dataclass, field
from enum import StrEnum

NO_VIA = "none"  # the value of `--via` for no middlebox


class Box(StrEnum):
    """The places of a middlebox's containers. A box without a container forwards packets and does nothing else."""

    TERMINAL = "terminal"  # the client's end of the satellite link
    GATEWAY = "gateway"  # the server's end of the satellite link


BOXES = (Box.TERMINAL, Box.GATEWAY)


@dataclass(frozen=True, kw_only=True)
class Middlebox:
    """One entry of `middleboxes` in implementations.json. `build`: the folder from which `image` is built; None when
    the image is pulled."""

    name: str
    image: str
    url: str
    version: str
    build: str | None = None
    note: str = ""
    boxes: tuple[Box, ...] = BOXES  # boxes where the image runs
    splits: tuple[Box, ...] = ()  # boxes where TCP connections end and new TCP connections begin
    splits_quic: tuple[Box, ...] = ()  # boxes where QUIC connections end and new QUIC connections begin
    carries: tuple[str, ...] = ("tcp", "udp")  # transports that the middlebox handles; it forwards others unchanged
    encrypts: bool = False  # True: nothing of the inner connections may be visible on the satellite link
    link_port: bool = False  # True: the boxes use only UDP port LINK_PORT of the gateway between each other
    poses_as_server: bool = False  # True: it ends TLS connections in the server's name, and gets /certs
    knobs: tuple[str, ...] = ()  # environment variables that a variant may set
    variant_of: str = ""  # the middlebox of which this is a variant; empty: this is no variant
    parameters: dict[str, str] = field(default_factory=dict)  # parameters of a variant

    @property
    def forwards(self) -> bool:
        """True when the middlebox only forwards packets."""
        return not (self.splits or self.splits_quic or self.encrypts)

    @property
    def crosses_real_links(self) -> bool:
        """True when the middlebox works over a real link, on which the endpoints' own addresses don't exist."""
        return self.link_port or self.forwards


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One kind of private data, for which every captured byte of the satellite link was searched."""

    what: str  # client address, server address, ports, server name, secret in the URL, …
    visible: bool
    times: int = 0  # number of packets that show the data
    packet: int | None = None  # number of the first such packet in the capture at the terminal, counted from 1
    how: str = ""  # form of the data: in the clear, inside a tunnel without encryption, as base64, …


@dataclass(frozen=True, kw_only=True)
class PageLoad:
    """Times of a page load from the Navigation and Paint Timing APIs (W3C), in seconds since the navigation began."""

    response_start: float | None
    first_contentful_paint: float | None
    load: float | None  # loadEventStart; None: the page was not loaded within the case's time-out
    completed: int  # number of objects that arrived completely, with status 200
    attempted: int  # number of objects that were requested


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """How a job's traffic crossed the satellite link, from captures at the client, on the link and at the server.

    `inner_bytes` and `outer_bytes` are IP bytes on the satellite segment, in both directions. `inner_bytes` are in
    packets between client and server; `outer_bytes` are in packets of the middlebox, between terminal and gateway.
    """

    connections: int  # TCP connections of the client that carried data
    whole: int = 0  # connections that reach the server unchanged: both initial sequence numbers are the same there
    on_link: int = 0  # TCP connections in the clear on the satellite segment, between client's and server's address
    terminal_split: int = 0  # connections that begin at the terminal: the client's capture lacks their sequence numbers
    gateway_split: int = 0  # connections that end at the gateway: the server's capture lacks their sequence numbers
    inner_bytes: int = 0
    outer_bytes: int = 0
    client_bytes: int = 0  # IP bytes between client and server in the client's capture, both directions
    answered: bool = True  # True: payload of the server reached the client
    sights: tuple[Sight, ...] = ()

    @property
    def visible(self) -> tuple[str, ...]:
        """The names of the private data that an eavesdropper sees."""
        return tuple(sight.what for sight in self.sights if sight.visible)
