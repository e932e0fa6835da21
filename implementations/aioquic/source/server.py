"""The server of aioquic: serves /www over HTTP/0.9 or HTTP/3 until SIGTERM."""

import asyncio
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from aioquic.asyncio.protocol import QuicConnectionProtocol, QuicStreamHandler
from aioquic.asyncio.server import serve
from aioquic.h0.connection import H0Connection
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset
from aioquic.tls import SessionTicket
from settings import Settings, StreamedLogger

SERVED = Path("/www")
PORT = 443
_PIECE = 64 * 1024
_ENOUGH_UNSENT = 4 * _PIECE
_REFUSED = 1
_FAREWELL_SECONDS = 0.1


@dataclass
class _Response:
    stream_id: int
    file: BinaryIO
    left: int
    """Bytes of the file that were not yet given to aioquic."""


class HttpServer(QuicConnectionProtocol):
    """Answers the requests of one connection. Files are read only as fast as they can be sent."""

    def __init__(self, quic: QuicConnection, stream_handler: QuicStreamHandler | None = None) -> None:
        super().__init__(quic, stream_handler)
        self._is_h3 = quic.configuration.alpn_protocols == H3_ALPN
        self._http: H0Connection | H3Connection | None = None
        self._responses: dict[int, _Response] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if self._http is None:
            self._http = H3Connection(self._quic) if self._is_h3 else H0Connection(self._quic)
        if isinstance(event, ConnectionTerminated):
            for stream_id in list(self._responses):
                self._end(stream_id)
        elif isinstance(event, StreamReset):
            self._end(event.stream_id)
        for http_event in self._http.handle_event(event):
            fields = dict(http_event.headers) if isinstance(http_event, HeadersReceived) else {}
            if b":method" in fields:  # trailers have none
                self._answer(self._http, http_event.stream_id, fields.get(b":path", b""))

    def transmit(self) -> None:
        """Send as much as possible. While little data is left to send, read more and send again."""
        super().transmit()
        while self._read_on():
            super().transmit()

    def _answer(self, http: H0Connection | H3Connection, stream_id: int, path: bytes) -> None:
        file = _open_served(unquote(path.decode("ascii", "replace")))
        if file is None and not self._is_h3:
            self._quic.reset_stream(stream_id, _REFUSED)
        elif file is None:
            http.send_headers(stream_id, [(b":status", b"404")], end_stream=True)
        else:
            length = file.seek(0, 2)
            file.seek(0)
            headers = [(b":status", b"200"), (b"content-length", str(length).encode())]
            http.send_headers(stream_id, headers)
            self._responses[stream_id] = _Response(stream_id, file, length)

    def _read_on(self) -> bool:
        """Give the next piece of a file to each stream in which few bytes wait to be sent. Returns False when there was
        no such stream."""
        moved = False
        for response in list(self._responses.values()):
            if self._http is None or self._unsent(response.stream_id) >= _ENOUGH_UNSENT:
                continue
            data = response.file.read(_PIECE)
            response.left -= len(data)
            over = response.left <= 0 or not data
            self._http.send_data(response.stream_id, data, end_stream=over)
            if over:
                self._end(response.stream_id)
            moved = True
        return moved

    def _unsent(self, stream_id: int) -> int:
        """Bytes of the stream that wait to be sent. aioquic has no public function for this, and accepts any amount."""
        sender = self._quic._streams[stream_id].sender
        return sender._buffer_stop - sender.next_offset

    def _end(self, stream_id: int) -> None:
        response = self._responses.pop(stream_id, None)
        if response is not None:
            response.file.close()


def _open_served(path: str) -> BinaryIO | None:
    file = (SERVED / path.lstrip("/")).resolve()
    if not file.is_relative_to(SERVED.resolve()) or not file.is_file():
        return None
    return file.open("rb")


class Tickets:
    """Session tickets. Each is valid for one resumption, as RFC 8446 §8.1 recommends for 0-RTT."""

    def __init__(self) -> None:
        self._tickets: dict[bytes, SessionTicket] = {}

    def add(self, ticket: SessionTicket) -> None:
        """Store an issued ticket."""
        self._tickets[ticket.ticket] = ticket

    def pop(self, label: bytes) -> SessionTicket | None:
        """Remove the ticket with this label, and return it; None when there is none."""
        return self._tickets.pop(label, None)


async def main(settings: Settings) -> None:
    """Serve until SIGTERM."""
    configuration = settings.configuration(is_client=False)
    tickets = Tickets()
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    server = await serve(
        "::" if socket.has_ipv6 and Path("/proc/net/if_inet6").exists() else "0.0.0.0",
        PORT,
        configuration=configuration,
        create_protocol=HttpServer,
        retry=settings.case == "retry",
        session_ticket_fetcher=tickets.pop,
        session_ticket_handler=tickets.add,
    )
    await terminated.wait()
    server.close()
    # The event loop sends the last packets (CONNECTION_CLOSE) in its next iterations.
    await asyncio.sleep(_FAREWELL_SECONDS)
    if isinstance(configuration.quic_logger, StreamedLogger):
        configuration.quic_logger.close()


if __name__ == "__main__":
    environment = Settings.from_environment()
    print(f"applied: cca={environment.controller} iw={environment.initial_window}", flush=True)
    asyncio.run(main(environment))
