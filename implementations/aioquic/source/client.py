"""The client of aioquic: downloads every URL of REQUESTS in the way that the test case requires, or uploads to it.

Exit code 0 when every file has arrived completely, 1 otherwise.
"""

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import SplitResult, urlsplit

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol, QuicStreamHandler
from aioquic.h0.connection import H0Connection
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset
from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import SessionTicket
from bodies import Bodies
from settings import Settings, StreamedLogger

DOWNLOADS = Path("/downloads")
UPLOADS = Path("/www")
_TICKET_SECONDS = 10.0


class TransferError(Exception):
    """A file did not arrive completely."""


@dataclass
class _Transfer:
    url: SplitResult
    done: asyncio.Future[None]
    upload: bool
    file: BinaryIO | None = None

    def write(self, data: bytes) -> None:
        if self.upload:
            return
        if self.file is None:
            self.file = (DOWNLOADS / Path(self.url.path).name).open("wb")
        self.file.write(data)

    def end(self, error: str | None = None) -> None:
        if self.file is not None:
            self.file.close()
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(TransferError(f"{self.url.path}: {error}"))


class HttpClient(QuicConnectionProtocol):
    """HTTP/0.9 or HTTP/3 over one connection. Data is written to the files as it arrives."""

    def __init__(self, quic: QuicConnection, stream_handler: QuicStreamHandler | None = None) -> None:
        super().__init__(quic, stream_handler)
        self._is_h3 = quic.configuration.alpn_protocols == H3_ALPN
        self._http = H3Connection(quic) if self._is_h3 else H0Connection(quic)
        self._transfers: dict[int, _Transfer] = {}
        self._bodies = Bodies(quic)

    async def fetch(self, urls: Sequence[SplitResult], *, upload: bool) -> None:
        """Request all files at once, or send them, and wait for the end. Raises TransferError when a transfer fails."""
        transfers = [self._request(url, upload=upload) for url in urls]
        self.transmit()
        await asyncio.gather(*(transfer.done for transfer in transfers))

    def end(self) -> None:
        """Close the connection with the error code of the protocol that means no error."""
        self.close(error_code=ErrorCode.H3_NO_ERROR if self._is_h3 else QuicErrorCode.NO_ERROR)

    def transmit(self) -> None:
        """Send as much as possible. While little data is left to send, read more and send again."""
        super().transmit()
        while self._bodies.read_on(self._http):
            super().transmit()

    def _request(self, url: SplitResult, *, upload: bool) -> _Transfer:
        stream_id = self._quic.get_next_available_stream_id()
        transfer = _Transfer(url, asyncio.get_running_loop().create_future(), upload)
        self._transfers[stream_id] = transfer
        headers = [
            (b":method", b"PUT" if upload else b"GET"),
            (b":scheme", b"https"),
            (b":authority", url.netloc.encode()),
            (b":path", url.path.encode()),
        ]
        if upload:
            path = UPLOADS / Path(url.path).name
            length = path.stat().st_size
            self._http.send_headers(stream_id, [*headers, (b"content-length", str(length).encode())])
            self._bodies.add(stream_id, path.open("rb"), length)
        else:
            self._http.send_headers(stream_id, headers, end_stream=True)
        return transfer

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            for stream_id in list(self._transfers):
                self._end(stream_id, f"connection closed, error {event.error_code:#x} {event.reason_phrase}")
        elif isinstance(event, StreamReset):
            self._end(event.stream_id, f"stream reset, error {event.error_code:#x}")
        for http_event in self._http.handle_event(event):
            self._http_event_received(http_event)

    def _http_event_received(self, event: H3Event) -> None:
        if not isinstance(event, (DataReceived, HeadersReceived)) or event.stream_id not in self._transfers:
            return
        if isinstance(event, DataReceived):
            self._transfers[event.stream_id].write(event.data)
        elif self._is_h3:
            status = dict(event.headers).get(b":status", b"200")  # trailers have none
            if not status.startswith((b"1", b"2")):
                self._end(event.stream_id, f"status {status.decode()}")
                return
        if event.stream_ended:
            self._transfers[event.stream_id].write(b"")
            self._end(event.stream_id)

    def _end(self, stream_id: int, error: str | None = None) -> None:
        self._bodies.end(stream_id)
        transfer = self._transfers.pop(stream_id, None)
        if transfer is not None:
            transfer.end(error)


class Client:
    """Opens the connections of the test case."""

    def __init__(self, settings: Settings) -> None:
        self._case = settings.case
        self._configuration = settings.configuration(is_client=True)
        self._ticket: asyncio.Future[SessionTicket] = asyncio.get_running_loop().create_future()

    async def run(self, urls: Sequence[SplitResult]) -> None:
        """Download all files. Raises TransferError or ConnectionError when a download fails."""
        if self._case == "multiconnect":
            for url in urls:
                await self._fetch([url])
        elif self._case in ("resumption", "zerortt"):
            await self._fetch(urls[:1], then_ticket=True)
            self._configuration.session_ticket = self._ticket.result()
            await self._fetch(urls[1:], early=self._case == "zerortt")
        else:
            await self._fetch(urls)

    def close(self) -> None:
        """Write the ends of the qlogs."""
        if isinstance(self._configuration.quic_logger, StreamedLogger):
            self._configuration.quic_logger.close()

    async def _fetch(self, urls: Sequence[SplitResult], *, early: bool = False, then_ticket: bool = False) -> None:
        async with self._connect(urls[0], self._configuration, early=early) as connection:
            client = cast("HttpClient", connection)
            if self._case == "keyupdate":
                client.request_key_update()
            await client.fetch(urls, upload=self._case == "upload")
            if then_ticket:
                await asyncio.wait_for(asyncio.shield(self._ticket), _TICKET_SECONDS)
            client.end()

    def _connect(
        self, url: SplitResult, configuration: QuicConfiguration, *, early: bool
    ) -> AbstractAsyncContextManager[QuicConnectionProtocol]:
        return connect(
            url.hostname or "",
            url.port or 443,
            configuration=configuration,
            create_protocol=HttpClient,
            session_ticket_handler=self._keep_ticket,
            wait_connected=not early,
        )

    def _keep_ticket(self, ticket: SessionTicket) -> None:
        if not self._ticket.done():
            self._ticket.set_result(ticket)


async def main(settings: Settings) -> int:
    """Download the files of REQUESTS. Returns the exit code."""
    client = Client(settings)
    task = asyncio.ensure_future(client.run([urlsplit(url) for url in settings.requests]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except (TransferError, ConnectionError, OSError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("terminated before all files had arrived", file=sys.stderr)
        return 1
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    environment = Settings.from_environment()
    if not environment.requests:
        sys.exit("REQUESTS is empty")
    print(f"applied: cca={environment.controller} iw={environment.initial_window}", flush=True)
    sys.exit(asyncio.run(main(environment)))
