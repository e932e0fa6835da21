"""Connections of aioquic with itself in memory, for tests that no recording fits: many connections at the same time,
rare frames, rare timing."""

import datetime
import io
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import Epoch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from runner.tests.decode.rewrite import Record

START_NS = 1_700_000_000_000_000_000
STEP_S = 0.01
_SERVER_PORT = 443


@lru_cache
def _certificate() -> tuple[Any, Any]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server4")])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=3650))
    return builder.sign(key, hashes.SHA256()), key


@dataclass
class Pair:
    """A client and a server that exchange datagrams without loss, every `STEP_S` seconds. All datagrams are kept."""

    client_port: int = 50000
    client_options: dict[str, Any] = field(default_factory=dict)
    server_options: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self._secrets = io.StringIO()
        certificate, key = _certificate()
        common: dict[str, Any] = {"alpn_protocols": ["hq-interop"], "secrets_log_file": self._secrets}
        client = QuicConfiguration(is_client=True, server_name="server4", **{**common, **self.client_options})
        client.verify_mode = 0  # the value of ssl.CERT_NONE
        server = QuicConfiguration(is_client=False, **{**common, **self.server_options})
        server.certificate, server.private_key = certificate, key
        client.supported_versions = [QuicProtocolVersion.VERSION_1]
        server.supported_versions = [QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2]
        self.client = QuicConnection(configuration=client)
        self.server: QuicConnection | None = None
        self._server_configuration = server

    @property
    def key_log(self) -> bytes:
        return self._secrets.getvalue().encode()

    def connect(self) -> "Pair":
        """Complete the handshake."""
        self.client.connect(("193.167.100.100", _SERVER_PORT), now=self.now)
        return self.exchange(6)

    def exchange(self, rounds: int = 2) -> "Pair":
        """Carry datagrams between the endpoints in turns."""
        for _ in range(rounds):
            for data, _ in self.client.datagrams_to_send(now=self.now):
                self.records.append(self._record(data, from_client=True))
                if self.server is None:
                    odcid = data[6 : 6 + data[5]]
                    self.server = QuicConnection(
                        configuration=self._server_configuration, original_destination_connection_id=odcid
                    )
                self.server.receive_datagram(data, ("193.167.0.100", self.client_port), now=self.now)
            self._step()
            if self.server is not None:
                for data, _ in self.server.datagrams_to_send(now=self.now):
                    self.records.append(self._record(data, from_client=False))
                    self.client.receive_datagram(data, ("193.167.100.100", _SERVER_PORT), now=self.now)
            self._step()
        return self

    def _step(self) -> None:
        self.now += STEP_S
        for end in (self.client, self.server):
            timer = end.get_timer() if end is not None else None
            if end is not None and timer is not None and timer <= self.now:
                end.handle_timer(now=self.now)

    def request(self, size: int) -> "Pair":
        """Make the server send a response of `size` bytes on a new stream."""
        assert self.server is not None
        stream = self.client.get_next_available_stream_id()
        self.client.send_stream_data(stream, b"GET /file\r\n", end_stream=True)
        self.exchange(1)
        self.server.send_stream_data(stream, bytes(size), end_stream=True)
        return self.exchange(8)

    def _record(self, payload: bytes, *, from_client: bool) -> Record:
        time_ns = START_NS + round(self.now * 1e9) + len(self.records)
        return datagram(time_ns, payload, client_port=self.client_port, from_client=from_client)


def datagram(time_ns: int, payload: bytes, *, client_port: int, from_client: bool) -> Record:
    """A UDP datagram in IPv4 in Ethernet."""
    client, server = bytes((193, 167, 0, 100)), bytes((193, 167, 100, 100))
    ends = (client + server) if from_client else (server + client)
    ports = (client_port, _SERVER_PORT) if from_client else (_SERVER_PORT, client_port)
    head = struct.pack(">BBHHHBBH", 0x45, 2, 28 + len(payload), 0, 0x4000, 64, 17, 0)
    udp = struct.pack(">HHHH", *ports, 8 + len(payload), 0)
    return Record(time_ns, bytes(12) + b"\x08\x00" + head + ends + udp + payload)


def protected(pair: Pair, *, from_client: bool, payload: bytes) -> Record:
    """A 1-RTT packet with any frames, with the keys and the next packet number of an endpoint of a pair."""
    end = pair.client if from_client else pair.server
    assert end is not None
    crypto = end._cryptos[Epoch.ONE_RTT]
    number = end._packet_number
    end._packet_number += 1
    header = bytes((0x41,)) + end._peer_cid.cid + struct.pack(">H", number & 0xFFFF)
    data = crypto.encrypt_packet(header, payload, number)
    return datagram(
        START_NS + round(pair.now * 1e9) + len(pair.records),
        data,
        client_port=pair.client_port,
        from_client=from_client,
    )
