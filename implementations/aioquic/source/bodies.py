"""Sends the content of files over streams, only as fast as the peer takes it."""

from dataclasses import dataclass
from typing import BinaryIO

from aioquic.h0.connection import H0Connection
from aioquic.h3.connection import H3Connection
from aioquic.quic.connection import QuicConnection

_PIECE = 64 * 1024
_ENOUGH_UNSENT = 4 * _PIECE


@dataclass
class _Body:
    file: BinaryIO
    left: int
    """Bytes of the file that were not yet given to aioquic."""


class Bodies:
    """The files that are sent over the streams of one connection."""

    def __init__(self, quic: QuicConnection) -> None:
        self._quic = quic
        self._bodies: dict[int, _Body] = {}

    def add(self, stream_id: int, file: BinaryIO, length: int) -> None:
        """Send `length` bytes of a file, then end the stream."""
        self._bodies[stream_id] = _Body(file, length)

    def read_on(self, http: H0Connection | H3Connection) -> bool:
        """Give the next piece of a file to each stream in which few bytes wait to be sent. Returns False when there was
        no such stream."""
        moved = False
        for stream_id, body in list(self._bodies.items()):
            if self._unsent(stream_id) >= _ENOUGH_UNSENT:
                continue
            data = body.file.read(_PIECE)
            body.left -= len(data)
            over = body.left <= 0 or not data
            http.send_data(stream_id, data, end_stream=over)
            if over:
                self.end(stream_id)
            moved = True
        return moved

    def _unsent(self, stream_id: int) -> int:
        """Bytes of the stream that wait to be sent. aioquic has no public function for this, and accepts any amount."""
        sender = self._quic._streams[stream_id].sender
        return sender._buffer_stop - sender.next_offset

    def end(self, stream_id: int) -> None:
        """Send no more of this stream's file."""
        if (body := self._bodies.pop(stream_id, None)) is not None:
            body.file.close()

    def end_all(self) -> None:
        """Send no more of any file."""
        for stream_id in list(self._bodies):
            self.end(stream_id)
