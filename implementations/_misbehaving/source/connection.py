"""A connection of aioquic that can commit sins. It overrides private methods, so it needs the pinned version."""

from typing import Any

from acks import Acknowledgements
from aioquic import tls
from credit import Credit
from handshake import Handshakes
from paths import Paths
from sending import Sending
from sins import Chosen


class Connection(Handshakes, Paths, Credit, Acknowledgements, Sending):
    """A connection with at most one sin, which several of its base classes may implement together. `with_ecn`: report
    received ECN marks."""

    def __init__(self, *, sin: Chosen, with_ecn: bool, **given: Any) -> None:
        self.sin = sin
        self.with_ecn = with_ecn
        self.preferred = b""
        self.marks = {epoch: [0] * 4 for epoch in tls.Epoch}
        super().__init__(**given)
        self.prepare_sending()
        if sin("many-streams"):
            self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent = int(sin.value("streams"))

    def send_stream_data(self, stream_id: int | None, data: bytes, end_stream: bool = False) -> None:
        if stream_id is not None:  # None: a stream that was never opened, because of a sin
            super().send_stream_data(stream_id, data, end_stream)
