"""How a job's traffic crossed the satellite link, in sentences."""

from collections.abc import Iterator

from runner.model.middlebox import Crossing
from runner.units import format_size


def carried(crossing: Crossing) -> Iterator[str]:
    """Sentences with the counts that show how the traffic crossed the satellite link: IP bytes, and TCP connections
    that ended at a box."""
    yield (
        f"{format_size(crossing.client_bytes)} of IP at the client; on the satellite link "
        f"{format_size(crossing.inner_bytes)} between client and server, "
        f"{format_size(crossing.outer_bytes)} between terminal and gateway"
    )
    if crossing.connections:
        ended = crossing.connections - crossing.whole
        where = [
            f"{number} at the {side}"
            for side, number in (("terminal", crossing.terminal_split), ("gateway", crossing.gateway_split))
            if number
        ]
        places = f", of them {' and '.join(where)}" if where else ""
        yield (
            f"{crossing.connections} TCP connections of the client, {ended} ended on the way{places} "
            "(by sequence numbers)"
        )
