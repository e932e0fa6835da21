"""The misbehaving server: serves /www over HTTP/0.9 or HTTP/3 until SIGTERM."""

import asyncio
import ipaddress
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aioquic.asyncio import server as aioquic_server
from aioquic.asyncio.protocol import QuicConnectionProtocol, QuicStreamHandler
from aioquic.h0.connection import H0Connection
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent
from aioquic.quic.packet import QuicProtocolVersion, encode_quic_retry, encode_quic_version_negotiation
from aioquic.quic.retry import QuicRetryTokenHandler
from aioquic.tls import SessionTicket
from connection import Connection
from settings import Settings, built_in_ticket
from wire import Address, Wire

SERVED = Path("/www")
PORT, PREFERRED_PORT = 443, 4443
ADDRESSES = ("193.167.100.100", "fd00:cafe:cafe:100::100")
_RETRY_TAG_BYTES = 16
_FAREWELL_SECONDS = 0.1
_VERSIONS = {1: QuicProtocolVersion.VERSION_1, 2: QuicProtocolVersion.VERSION_2}


class HttpServer(QuicConnectionProtocol):
    """Answers the requests of one connection."""

    def __init__(self, quic: QuicConnection, stream_handler: QuicStreamHandler | None = None) -> None:
        super().__init__(quic, stream_handler)
        self._http: H0Connection | H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        if self._http is None:
            is_h3 = self._quic.configuration.alpn_protocols == ["h3"]
            self._http = H3Connection(self._quic) if is_h3 else H0Connection(self._quic)
        for http_event in self._http.handle_event(event):
            if isinstance(http_event, HeadersReceived):
                path = unquote(dict(http_event.headers).get(b":path", b"").decode("ascii", "replace"))
                if self._quic.sin("answers-late"):
                    later = self._quic.sin.value("time")
                    self._loop.call_later(later, self._answer_late, self._http, http_event.stream_id, path)
                else:
                    self._answer(self._http, http_event.stream_id, path)

    def _answer_late(self, http: H0Connection | H3Connection, stream_id: int, path: str) -> None:
        self._answer(http, stream_id, path)
        self.transmit()

    def _answer(self, http: H0Connection | H3Connection, stream_id: int, path: str) -> None:
        file = SERVED / path.strip("/")
        found = "/" not in path.strip("/") and file.is_file()
        http.send_headers(stream_id, [(b":status", b"200" if found else b"404")])
        http.send_data(stream_id, self._changed(file.read_bytes()) if found else b"", end_stream=True)

    def _changed(self, content: bytes) -> bytes:
        if self._quic.sin("corrupt-file"):
            return bytes([content[0] ^ 1]) + content[1:]
        return content[:-1] if self._quic.sin("short-file") else content


class Dispatcher(aioquic_server.QuicServer):
    """aioquic's server with our connections. It accepts every token."""

    def __init__(self, settings: Settings, **given: Any) -> None:
        super().__init__(**given)
        self._settings = settings
        self._retries = settings.sin("always-retries") or (
            settings.case == "retry" and not settings.sin("never-retries")
        )
        self._tokens = QuicRetryTokenHandler()
        self._retried: dict[bytes, bytes] = {}
        self._offered = 0
        self._answered = False
        aioquic_server.QuicConnection = self._connection
        aioquic_server.encode_quic_retry = self._retry_packet
        aioquic_server.encode_quic_version_negotiation = self._version_negotiation

    def datagram_received(self, data: bytes, addr: Address) -> None:
        # A packet to the connection ID of a Retry is accepted with and without its token.
        is_long = len(data) > 5 and data[0] & 0x80
        destination = data[6 : 6 + data[5]] if is_long else b""
        self._offered = int.from_bytes(data[1:5])
        unknown = is_long and self._offered not in _VERSIONS.values()
        if self._settings.sin("silent-on-versions") and unknown and self._answered:
            return
        self._retry = self._tokens if self._retries and destination not in self._retried else None
        super().datagram_received(data, addr)

    def _connection(self, **given: Any) -> Connection:
        settings, first = self._settings, given["original_destination_connection_id"]
        if first in self._retried:
            given["retry_source_connection_id"] = first
            given["original_destination_connection_id"] = self._retried[first]
        connection = Connection(sin=settings.sin, with_ecn=settings.with_ecn, **given)
        if settings.case == "connectionmigration":
            connection.offer_preferred_address(_preferred_address())
        return connection

    def _retry_packet(self, *, source_cid: bytes, original_destination_cid: bytes, **given: Any) -> bytes:
        self._retried[source_cid] = original_destination_cid
        packet = encode_quic_retry(source_cid=source_cid, original_destination_cid=original_destination_cid, **given)
        if self._settings.sin("wrong-retry-tag"):
            return packet[:-_RETRY_TAG_BYTES] + bytes(byte ^ 1 for byte in packet[-_RETRY_TAG_BYTES:])
        return packet

    def _version_negotiation(
        self, *, source_cid: bytes, destination_cid: bytes, supported_versions: list[int]
    ) -> bytes:
        if self._settings.sin("wrong-vn-ids") and self._answered:
            source_cid, destination_cid = os.urandom(len(source_cid)), os.urandom(len(destination_cid))
        self._answered = True
        if self._settings.sin("vn-lists-offered"):
            supported_versions = [*supported_versions, self._offered]
        if self._settings.sin("vn-leaves-out"):
            left_out = _VERSIONS[int(self._settings.sin.value("version"))]
            supported_versions = [version for version in supported_versions if version != left_out]
        return encode_quic_version_negotiation(source_cid, destination_cid, supported_versions)


def _preferred_address() -> bytes:
    """The server's addresses with the preferred port, in the format of the transport parameter (RFC 9000 §18.2)."""
    port = PREFERRED_PORT.to_bytes(2)
    return b"".join(ipaddress.ip_address(address).packed + port for address in ADDRESSES)


class Tickets:
    """Session tickets. Each is valid for one resumption; the built-in ticket is always valid."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tickets: dict[bytes, SessionTicket] = {}

    def add(self, ticket: SessionTicket) -> None:
        """Store an issued ticket."""
        self._tickets[ticket.ticket] = ticket

    def pop(self, label: bytes) -> SessionTicket | None:
        """Remove the ticket with this label, and return it; None when there is none."""
        if self._settings.sin("forgets-tickets"):
            return None
        built_in = built_in_ticket("")
        return built_in if label == built_in.ticket else self._tickets.pop(label, None)


class Wires:
    """The sockets of both ports as one transport. The last item of an address is the local port."""

    def __init__(self, settings: Settings, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._wires = {port: self._wire(settings, port) for port in (PORT, PREFERRED_PORT)}

    def _wire(self, settings: Settings, port: int) -> Wire:
        def deliver(data: bytes, address: Address) -> None:
            self._dispatcher.datagram_received(data, (*address, port))

        return Wire(port, deliver, sin=settings.sin, marked=settings.marked)

    def sendto(self, data: bytes, address: Address) -> None:
        """Send from the local port in `address`."""
        self._wires[address[-1]].sendto(data, address[:-1])

    def close(self) -> None:
        """Close both sockets."""
        for wire in self._wires.values():
            wire.close()


async def main(settings: Settings) -> None:
    """Serve until SIGTERM."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    tickets = Tickets(settings)
    dispatcher = Dispatcher(
        settings,
        configuration=settings.configuration(),
        create_protocol=HttpServer,
        session_ticket_fetcher=tickets.pop,
        session_ticket_handler=tickets.add,
    )
    wires = Wires(settings, dispatcher)
    dispatcher.connection_made(wires)
    await terminated.wait()
    for protocol in set(dispatcher._protocols.values()):
        protocol.close()
    await asyncio.sleep(_FAREWELL_SECONDS)
    wires.close()


if __name__ == "__main__":
    environment = Settings.from_environment("server")
    environment.change_modules()
    print(environment.sin.sentence, flush=True)
    asyncio.run(main(environment))
