"""The misbehaving client: downloads every URL of REQUESTS in the way that the test case requires, except for its sin.

Exit code 0 when every file has arrived completely, 1 otherwise.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h0.connection import H0Connection
from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamReset
from aioquic.tls import SessionTicket
from connection import Connection
from settings import Settings, built_in_ticket
from wire import Wire

DOWNLOADS = Path("/downloads")
SERVER_IPV4 = "193.167.100.100"
_TICKET_SECONDS = 10.0
_GIVE_UP_SECONDS = 3.0
_ERROR = 1


class TransferError(Exception):
    """A file did not arrive completely."""


class HttpClient(QuicConnectionProtocol):
    """HTTP/0.9 or HTTP/3 over one connection."""

    def __init__(self, quic: Connection, *, is_h3: bool) -> None:
        super().__init__(quic)
        self._http = H3Connection(quic) if is_h3 else H0Connection(quic)
        self._is_h3 = is_h3
        self._bodies: dict[int, bytearray] = {}
        self._done: dict[int, asyncio.Future[bytes]] = {}

    async def fetch(self, urls: Sequence[SplitResult]) -> None:
        """Request files at once and save them. Raises TransferError when a download fails."""
        stream_ids = [self._request(url) for url in urls]
        self.transmit()
        bodies = await asyncio.gather(*(self._done[stream_id] for stream_id in stream_ids))
        for url, body in zip(urls, bodies, strict=True):
            (DOWNLOADS / Path(url.path).name).write_bytes(self._changed(body))

    def end(self) -> None:
        """Close the connection."""
        if self._quic.sin("closes-with-error"):
            self.close(error_code=_ERROR, reason_phrase="a sin")
        else:
            self.close(error_code=ErrorCode.H3_NO_ERROR if self._is_h3 else 0)

    async def move(self, wire: Wire, *, after: float) -> None:
        """Migrate to another port, `after` seconds from now."""
        await asyncio.sleep(after)
        self._quic.change_connection_id()
        wire.move()
        self._quic.send_ping(0)  # the server must see the new port, and a client that only receives sends nothing else
        self.transmit()

    def _request(self, url: SplitResult) -> int:
        stream_id = self._quic.get_next_available_stream_id()
        self._bodies[stream_id] = bytearray()
        self._done[stream_id] = asyncio.get_running_loop().create_future()
        headers = [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", url.netloc.encode()),
            (b":path", url.path.encode()),
        ]
        self._http.send_headers(stream_id, headers, end_stream=True)
        return stream_id

    def _changed(self, body: bytes) -> bytes:
        if self._quic.sin("corrupt-file"):
            return bytes([body[0] ^ 1]) + body[1:]
        return body[:-1] if self._quic.sin("short-file") else body

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, (ConnectionTerminated, StreamReset)):
            for done in self._done.values():
                if not done.done():
                    done.set_exception(TransferError(str(event)))
        for http_event in self._http.handle_event(event):
            if isinstance(http_event, DataReceived):
                self._bodies[http_event.stream_id] += http_event.data
            if getattr(http_event, "stream_ended", False):
                self._done[http_event.stream_id].set_result(bytes(self._bodies.pop(http_event.stream_id)))


class Client:
    """Opens the connections of the test case."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sin = settings.sin
        self._ticket: asyncio.Future[SessionTicket] = asyncio.get_running_loop().create_future()

    async def run(self, urls: Sequence[SplitResult]) -> None:
        """Download all files. Raises TransferError or ConnectionError when a download fails."""
        case, configuration = self._settings.case, self._settings.configuration()
        if self._sin("second-connection"):
            await self._fetch(configuration, urls[0], ())
        if case == "multiconnect":
            for url in urls:
                await self._fetch(configuration, url, (url,))
        elif case in ("resumption", "zerortt"):
            if self._sin("resumes-at-once"):
                configuration.session_ticket = built_in_ticket(urls[0].hostname or "")
            await self._fetch(configuration, urls[0], urls[:1], then_ticket=True)
            await self._resume(configuration, urls[1:])
        else:
            await self._fetch(configuration, urls[0], urls)
        if self._sin("extra-file"):
            (DOWNLOADS / "index.html").write_text("This file was not requested.")

    async def _resume(self, configuration: QuicConfiguration, urls: Sequence[SplitResult]) -> None:
        early = self._settings.case == "zerortt" and not self._sin("no-early-data")
        ticket = self._ticket.result()
        configuration.session_ticket = ticket if early else replace(ticket, max_early_data_size=None)
        await self._fetch(configuration, urls[0], urls, early=early)

    async def _fetch(
        self,
        configuration: QuicConfiguration,
        to: SplitResult,
        urls: Sequence[SplitResult],
        *,
        early: bool = False,
        then_ticket: bool = False,
    ) -> None:
        async with self._connect(configuration, to, early=early) as (client, wire):
            if self._settings.case == "keyupdate" and not self._sin("no-key-update"):
                client.request_key_update()
            moving = None
            if self._sin("migrates") or self._sin("keeps-connection-id"):
                moving = asyncio.create_task(client.move(wire, after=self._sin.value("at")))
            groups = [[url] for url in urls] if self._sin("one-at-a-time") else [list(urls)]
            for group in groups:
                await client.fetch(group)
            if then_ticket:
                await asyncio.wait_for(asyncio.shield(self._ticket), _TICKET_SECONDS)
            if moving is not None:
                moving.cancel()

    @asynccontextmanager
    async def _connect(
        self, configuration: QuicConfiguration, url: SplitResult, *, early: bool
    ) -> AsyncIterator[tuple[HttpClient, Wire]]:
        host = SERVER_IPV4 if self._sin("over-ipv4") else url.hostname
        resolved = await asyncio.get_running_loop().getaddrinfo(host, url.port or 443, type=socket.SOCK_DGRAM)
        target = resolved[0][4]
        address = target if len(target) == 4 else (f"::ffff:{target[0]}", target[1], 0, 0)
        configuration.server_name = url.hostname
        connection = Connection(
            sin=self._sin,
            with_ecn=self._settings.with_ecn,
            configuration=configuration,
            session_ticket_handler=self._keep_ticket,
        )
        client = HttpClient(connection, is_h3=self._settings.is_h3)
        wire = Wire(0, client.datagram_received, sin=self._sin, marked=self._settings.marked)
        client.connection_made(wire)
        try:
            client.connect(address, transmit=not early)
            if not early:
                await client.wait_connected()
            yield client, wire
        finally:
            client.end()
            await client.wait_closed()
            wire.close()

    def _keep_ticket(self, ticket: SessionTicket) -> None:
        if not self._ticket.done():
            self._ticket.set_result(ticket)


async def main(settings: Settings) -> int:
    """Download the files of REQUESTS. Returns the exit code."""
    client = Client(settings)
    task = asyncio.ensure_future(client.run([urlsplit(url) for url in settings.requests]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if settings.case == "versionnegotiation":
        # A client whose version the server doesn't know may give up (RFC 9000 §6.2).
        await asyncio.wait([task], timeout=_GIVE_UP_SECONDS)
        return 0
    try:
        await task
    except (TransferError, ConnectionError, OSError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("terminated before all files had arrived", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    environment = Settings.from_environment("client")
    environment.change_modules()
    print(environment.sin.sentence, flush=True)
    sys.exit(asyncio.run(main(environment)))
