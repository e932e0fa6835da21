"""The topology between client and server as data: the segments of a link and the places of boxes.

client ── sim ── server                                                one segment
client ── [terminal] ── sim ── [gateway] ── server                     one segment with boxes
client ── [terminal] ══ sim ══ [gateway] ── ground ── server           two segments, with or without boxes

The client of a second flow is connected to the terminal, and its server to the gateway. Each has its own network.
"""

from dataclasses import dataclass

from runner.model.beside import BesideRole
from runner.model.link_record import LinkRecord, SegmentRecord
from runner.model.middlebox import BOXES, Box, Middlebox

CLIENT, SERVER = "client", "server"
SATELLITE, GROUND = "sim", "ground"  # names of the segments' containers and folders


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
    def nodes(self) -> tuple[str, ...]:
        """The nodes that have their own network, from the client to the server, then the nodes of the second flow. The
        segments are not included."""
        if not self.routed:
            return (CLIENT, SERVER)
        return (CLIENT, *(box.value for box in BOXES), SERVER, *(role.value for role in BesideRole if self.beside))

    @property
    def segments(self) -> dict[str, SegmentRecord]:
        """The segments by the name of their container, the client's first."""
        return dict(zip((SATELLITE, GROUND), self.link.segments, strict=False))
