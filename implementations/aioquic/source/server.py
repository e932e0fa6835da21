"""The server of aioquic: serves /www over HTTP/0.9 or HTTP/3, and stores uploads in /downloads, until SIGTERM."""

import asyncio
import signal
import socket
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from aioquic.asyncio.protocol import QuicConnectionProtocol, QuicStreamHandler
from aioquic.asyncio.server import serve
from aioquic.h0.connection import H0Connection
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset
from aioquic.tls import SessionTicket
from bodies import Bodies
from settings import Settings, StreamedLogger

SERVED = Path("/www")
UPLOADED = Path("/downloads")
PORT = 443
_REFUSED = 1
_FAREWELL_SECONDS = 0.1


class HttpServer(QuicConnectionProtocol):
    """Answers the requests of one connection. Files are read only as fast as they can be sent."""

    def __init__(self, quic: QuicConnection, stream_handler: QuicStreamHandler | None = None) -> None:
        super().__init__(quic, stream_handler)
        self._is_h3 = quic.configuration.alpn_protocols == H3_ALPN
        self._http: H0Connection | H3Connection | None = None
        self._responses = Bodies(quic)
        self._uploads: dict[int, BinaryIO] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if self._http is None:
            self._http = H3Connection(self._quic) if self._is_h3 else H0Connection(self._quic)
        if isinstance(event, ConnectionTerminated):
            self._responses.end_all()
            for file in self._uploads.values():
                file.close()
        elif isinstance(event, StreamReset):
            self._responses.end(event.stream_id)
        for http_event in self._http.handle_event(event):
            fields = dict(http_event.headers) if isinstance(http_event, HeadersReceived) else {}
            if b":method" in fields:  # trailers have none
                path = unquote(fields.get(b":path", b"").decode("ascii", "replace"))
                if fields[b":method"] == b"PUT" and self._is_h3:
                    self._begin_upload(self._http, http_event.stream_id, path)
                else:
                    self._answer(self._http, http_event.stream_id, path)
            if http_event.stream_id in self._uploads:
                self._store(self._http, http_event)

    def transmit(self) -> None:
        """Send as much as possible. While little data is left to send, read more and send again."""
        super().transmit()
        while self._http is not None and self._responses.read_on(self._http):
            super().transmit()

    def _begin_upload(self, http: H0Connection | H3Connection, stream_id: int, path: str) -> None:
        """Open the file of an upload. Only the case `upload` has a folder for it."""
        try:
            self._uploads[stream_id] = (UPLOADED / Path(path).name).open("wb")
        except (OSError, ValueError):
            http.send_headers(stream_id, [(b":status", b"405")], end_stream=True)

    def _store(self, http: H0Connection | H3Connection, event: H3Event) -> None:
        """Write the data of an upload; answer when it is complete."""
        if isinstance(event, DataReceived):
            self._uploads[event.stream_id].write(event.data)
        if isinstance(event, (DataReceived, HeadersReceived)) and event.stream_ended:
            self._uploads.pop(event.stream_id).close()
            http.send_headers(event.stream_id, [(b":status", b"201")], end_stream=True)

    def _answer(self, http: H0Connection | H3Connection, stream_id: int, path: str) -> None:
        file = _open_served(path)
        if file is None and not self._is_h3:
            self._quic.reset_stream(stream_id, _REFUSED)
        elif file is None:
            http.send_headers(stream_id, [(b":status", b"404")], end_stream=True)
        else:
            length = file.seek(0, 2)
            file.seek(0)
            headers = [(b":status", b"200"), (b"content-length", str(length).encode())]
            http.send_headers(stream_id, headers)
            self._responses.add(stream_id, file, length)


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
