"""The topology between client and server: the segments of a link and the places of boxes, as data.

client ── sim ── server                                                one segment
client ── [terminal] ── sim ── [gateway] ── server                     one segment with boxes
client ── [terminal] ══ sim ══ [gateway] ── ground ── server           two segments, with or without boxes

A flow beside has its client at the terminal and its server at the gateway, in networks of their own.
"""

from dataclasses import dataclass

from runner.model.beside import BesideRole
from runner.model.link_record import LinkRecord, SegmentRecord
from runner.model.middlebox import BOXES, Box, Middlebox

CLIENT, SERVER = "client", "server"
SATELLITE, GROUND = "sim", "ground"  # names of the segments' containers and folders


@dataclass(frozen=True, kw_only=True)
class Topology:
    """`link` has one or two segments. `middlebox` None: routers, if any, only forward. `beside`: a second flow shares
    the satellite segment.
    """

    link: LinkRecord
    middlebox: Middlebox | None = None
    beside: bool = False

    @property
    def routed(self) -> bool:
        """True when routers join client and server to the link. Without routers, both are on the segment itself."""
        return self.middlebox is not None or len(self.link.segments) > 1 or self.beside

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The places at which the middlebox has a container."""
        return self.middlebox.boxes if self.middlebox is not None else ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes with their own network, besides the segments, from the client to the server."""
        if not self.routed:
            return (CLIENT, SERVER)
        return (CLIENT, *(box.value for box in BOXES), SERVER, *(role.value for role in BesideRole if self.beside))

    @property
    def segments(self) -> dict[str, SegmentRecord]:
        """The segments by the name of their container, the client's first."""
        return dict(zip((SATELLITE, GROUND), self.link.segments, strict=False))
