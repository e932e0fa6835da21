"""What stands between client and server: the segments of a link, and where boxes stand. Data; no lane, no host.

client ── sim ── server                                                one segment
client ── [terminal] ── sim ── [gateway] ── server                     one segment with boxes
client ── [terminal] ══ sim ══ [gateway] ── ground ── server           two segments, with or without boxes
"""

from dataclasses import dataclass

from runner.model.link_record import LinkRecord, SegmentRecord
from runner.model.middlebox import BOXES, Box, Middlebox

CLIENT, SERVER = "client", "server"
SATELLITE, GROUND = "sim", "ground"  # names of the segments' containers and folders


@dataclass(frozen=True, kw_only=True)
class Topology:
    """`link` has one or two segments; `middlebox` None: nothing is carried, routers at most forward."""

    link: LinkRecord
    middlebox: Middlebox | None = None

    @property
    def routed(self) -> bool:
        """Whether routers join client and server to the link. Without them the segment lies between both ends."""
        return self.middlebox is not None or len(self.link.segments) > 1

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Where the middlebox has a container."""
        return self.middlebox.boxes if self.middlebox is not None else ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Everything with a network of its own beside the segments, from the client to the server."""
        return (CLIENT, *(box.value for box in BOXES), SERVER) if self.routed else (CLIENT, SERVER)

    @property
    def segments(self) -> dict[str, SegmentRecord]:
        """The segments by the name of their container, the client's first."""
        return dict(zip((SATELLITE, GROUND), self.link.segments, strict=False))
