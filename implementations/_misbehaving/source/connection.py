"""A connection of aioquic that may sin. aioquic's own methods are overridden: the pinned version is part of it."""

from typing import Any

from acks import Acknowledgements
from aioquic import tls
from credit import Credit
from handshake import Handshakes
from paths import Paths
from sending import Sending
from sins import Chosen


class Connection(Handshakes, Paths, Credit, Acknowledgements, Sending):
    """One sin, none or several parts of it in several places. `with_ecn`: report the marks that arrive."""

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
        if stream_id is not None:  # it is what a stream is that was never opened
            super().send_stream_data(stream_id, data, end_stream)
