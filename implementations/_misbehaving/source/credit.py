"""Flow control and stream limits. A peer may exceed the limits of this endpoint without an error."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from aioquic.buffer import Buffer
from aioquic.quic.connection import QuicConnection, QuicReceiveContext
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from sins import Chosen

_ENDLESS = 1 << 60


@contextmanager
def _set(owner: Any, name: str, value: int) -> Iterator[None]:
    """Change an attribute for the duration of the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Credit(QuicConnection):
    """A connection whose sins are about limits: its own and its peer's."""

    sin: Chosen

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        with _set(self._stream_limit(stream_id), "value", _ENDLESS):
            return super()._get_or_create_stream(frame_type, stream_id)

    def _handle_stream_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        stream_id = buf.pull_uint_var()
        buf.seek(start)
        with ExitStack() as lifted:
            if not self._stream_is_discarded(stream_id):
                stream = self._get_or_create_stream(frame_type, stream_id)
                lifted.enter_context(_set(stream, "max_stream_data_local", _ENDLESS))
            lifted.enter_context(_set(self._local_max_data, "value", _ENDLESS))
            super()._handle_stream_frame(context, frame_type, buf)

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        if self.sin("exceeds-streams"):
            self._remote_max_streams_bidi = _ENDLESS

    def _write_stream_frame(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream, max_offset: int
    ) -> int:
        if self.sin("exceeds-flow-control"):
            max_offset = _ENDLESS
        return super()._write_stream_frame(builder, space, stream, max_offset)

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        if not (self.sin("never-extends-windows") or self.sin("tiny-window")):
            super()._write_stream_limits(builder, space, stream)
            return
        if self.sin("tiny-window") and stream.max_stream_data_local:
            stream.max_stream_data_local = self._slid(stream.receiver.highest_offset, stream.max_stream_data_local)
        # aioquic doubles a window that is half used.
        with _set(stream.receiver, "highest_offset", 0):
            super()._write_stream_limits(builder, space, stream)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        if self.sin("never-raises-streams"):
            self._local_max_streams_bidi.value = self._local_max_streams_bidi.sent
        if not (self.sin("never-extends-windows") or self.sin("tiny-window")):
            super()._write_connection_limits(builder, space)
            return
        if self.sin("tiny-window"):
            self._local_max_data.value = self._slid(self._local_max_data.used, self._local_max_data.value)
        with _set(self._local_max_data, "used", 0):
            super()._write_connection_limits(builder, space)

    def _slid(self, used: int, limit: int) -> int:
        """The new limit: once half of the window is used, the limit moves to one window beyond `used`."""
        window = int(self.sin.value("window"))
        return used + window if limit - used <= window // 2 else limit
