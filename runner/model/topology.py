"""The topology between client and server as data: the segments of a link and the places of boxes.

client ── sim ── server                                                one segment
client ── [terminal] ── sim ── [gateway] ── server                     one segment with boxes
client ── [terminal] ══ sim ══ [gateway] ── ground ── server           two segments, with or without boxes

The client of a second flow is connected to the terminal, and its server to the gateway. Each has its own network.
"""

from dataclasses import dataclass
from itertools import pairwise

from runner.model.beside import BesideRole
from runner.model.link_record import LinkRecord, SegmentRecord
from runner.model.middlebox import BOXES, Box, Middlebox

CLIENT, SERVER = "client", "server"
SATELLITE, GROUND = "sim", "ground"  # names of the segments' containers and folders
TERMINAL, GATEWAY = (box.value for box in BOXES)  # names of the routers, in which the boxes' containers run

Hop = tuple[str, str]  # two neighbours in the network: nodes, or a node and a segment
_DIRECT = (CLIENT, SATELLITE, SERVER)
_BESIDE: tuple[Hop, ...] = ((BesideRole.CLIENT, TERMINAL), (GATEWAY, BesideRole.SERVER))


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The topology of a job. `link` has one or two segments. When `middlebox` is None, routers only forward packets.
    `beside`: True when a second flow shares the satellite segment.
    """

    link: LinkRecord
    middlebox: Middlebox | None = None
    beside: bool = False

    @property
    def routed(self) -> bool:
        """True when routers connect client and server to the link. Otherwise client and server are directly on it."""
        return self.middlebox is not None or len(self.link.segments) > 1 or self.beside

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The places at which the middlebox has a container."""
        return self.middlebox.boxes if self.middlebox is not None else ()

    @property
    def poses_as_server(self) -> bool:
        """True when a middlebox ends TLS connections in the server's name; its boxes then need the certificates."""
        return self.middlebox is not None and self.middlebox.poses_as_server

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have their own network, from the client to the server, then the nodes of the second flow. The
        segments are not included."""
        if not self.routed:
            return (CLIENT, SERVER)
        return (CLIENT, *(box.value for box in BOXES), SERVER, *(role.value for role in BesideRole if self.beside))

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The neighbours in the network, from the client to the server, then those of the second flow."""
        if not self.routed:
            return tuple(pairwise(_DIRECT))
        chain = (CLIENT, TERMINAL, SATELLITE, GATEWAY, *tuple(self.segments)[1:], SERVER)
        return (*pairwise(chain), *(_BESIDE if self.beside else ()))

    @property
    def captured_endpoints(self) -> tuple[str, ...]:
        """The endpoints at which packets are captured, in addition to both ends of every segment. With routers these
        are client and server, because a middlebox may hide their packets on the link."""
        return (CLIENT, SERVER) if self.routed else ()

    @property
    def segments(self) -> dict[str, SegmentRecord]:
        """The segments by the name of their container, the client's first."""
        return dict(zip((SATELLITE, GROUND), self.link.segments, strict=False))
