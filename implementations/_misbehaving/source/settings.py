"""The common parts of both roles: environment, QUIC configuration, changes of aioquic's modules."""

import os
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from aioquic import tls
from aioquic.buffer import Buffer
from aioquic.h3.connection import H3Connection
from aioquic.quic import recovery
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicProtocolVersion
from sins import Chosen, chosen

HQ, HQ_DRAFT, H3 = "hq-interop", "hq-29", "h3"
SERVER_NAMES = ("server4", "server6", "server46", "server")
_PATIENT = 2.0  # RTTs after which a packet counts as lost
_LATE_PROBE_RTT = 5.0  # s; the first probe is sent after twice this time
_UNKNOWN = 0x1A2A3A4A  # a version number that RFC 9000 §15 reserves
_V1, _V2 = QuicProtocolVersion.VERSION_1, QuicProtocolVersion.VERSION_2


@dataclass(frozen=True)
class Settings:
    """One run of the endpoint, read from its environment."""

    role: str
    case: str
    """Wire name of the test case."""
    requests: tuple[str, ...]
    key_log: Path | None
    sin: Chosen

    @classmethod
    def from_environment(cls, role: str) -> "Settings":
        """Read the settings. Ends the process when the sin is unknown."""
        return cls(
            role=role,
            case=os.environ["TESTCASE"],
            requests=tuple(os.environ.get("REQUESTS", "").split()),
            key_log=Path(key_log) if (key_log := os.environ.get("SSLKEYLOGFILE")) else None,
            sin=chosen(role),
        )

    @property
    def is_h3(self) -> bool:
        """Whether HTTP/3 is spoken."""
        return self.case == "http3"

    @property
    def with_ecn(self) -> bool:
        """Whether received ECN marks are reported."""
        return self.case == "ecn"

    @property
    def marked(self) -> bool:
        """Whether datagrams are sent with ECT(0)."""
        return self.with_ecn and not self.sin("no-ect")

    def configuration(self) -> QuicConfiguration:
        """aioquic's defaults, changed for the test case and the sin."""
        is_client = self.role == "client"
        configuration = QuicConfiguration(
            is_client=is_client,
            alpn_protocols=self._alpn(is_client),
            secrets_log_file=self.key_log.open("a", buffering=1) if self.key_log else None,
        )
        if is_client:
            configuration.load_verify_locations(cafile="/certs/ca.pem")
        else:
            configuration.load_cert_chain("/certs/cert.pem", "/certs/priv.key")
        if self.case == "v2":
            configuration.original_version = _V1 if is_client else None
            configuration.supported_versions = [_V1] if self.sin("no-upgrade") else [_V2, _V1]
        if self.case == "versionnegotiation" and is_client and not self.sin("offers-version-1"):
            configuration.original_version = _UNKNOWN
            configuration.supported_versions = [_UNKNOWN, _V2 if self.sin("takes-unlisted") else _V1]
        if self.sin("never-shrinks"):
            configuration.max_datagram_size = int(self.sin.value("size"))
        if self.sin("wrong-version"):
            configuration.supported_versions = [_V2]
        if self.sin("no-probe"):
            configuration.initial_rtt = _LATE_PROBE_RTT
        if self.sin("tiny-window") or self.sin("never-extends-windows"):
            configuration.max_data = configuration.max_stream_data = int(self.sin.value("window"))
        return configuration

    def _alpn(self, is_client: bool) -> list[str]:
        if self.is_h3:
            return [H3]
        if is_client:
            return [HQ_DRAFT if self.sin("wrong-alpn") else HQ]
        return [HQ, HQ_DRAFT]

    def change_modules(self) -> None:
        """Replace functions of aioquic's modules where aioquic has no other way to change its behaviour."""
        only_chacha20 = self.case == "chacha20" and not self.sin("all-suites")
        push_client_hello, pull_client_hello = tls.push_client_hello, tls.pull_client_hello

        def push(buffer: Buffer, hello: tls.ClientHello) -> None:
            # All suites are accepted, so a server may choose a suite that was not offered.
            offered = [int(tls.CipherSuite.CHACHA20_POLY1305_SHA256)] if only_chacha20 else hello.cipher_suites
            push_client_hello(buffer, replace(hello, cipher_suites=offered))

        def pull(buffer: Buffer) -> tls.ClientHello:
            hello = pull_client_hello(buffer)
            if self.sin("unoffered-suite"):
                hello.cipher_suites = [int(tls.CipherSuite.AES_128_GCM_SHA256)]
            if self.sin("refuses-early-data"):
                hello.early_data = False
            return hello

        tls.push_client_hello, tls.pull_client_hello = push, pull
        if self.sin("out-of-order"):
            # Otherwise the sender would declare held-back packets lost (RFC 9002 §6.1), which would be a second sin.
            recovery.K_PACKET_THRESHOLD += int(self.sin.value("by"))
            recovery.K_TIME_THRESHOLD = _PATIENT
        if self.sin("no-control-stream"):
            # Without QPACK streams, headers must be written and read without QPACK's dynamic table.
            H3Connection._init_connection = lambda _: None
            H3Connection._receive_stream_data_uni = lambda *_: []


def built_in_ticket(server_name: str) -> tls.SessionTicket:
    """The session that both endpoints know from the start, so that a first connection can resume it."""
    suite = tls.CipherSuite.AES_256_GCM_SHA384
    now = tls.utcnow()
    return tls.SessionTicket(
        age_add=0,
        cipher_suite=suite,
        not_valid_after=now + timedelta(days=1),
        not_valid_before=now - timedelta(hours=1),
        resumption_secret=bytes(tls.cipher_suite_hash(suite).digest_size),
        server_name=server_name,
        ticket=b"built in",
    )
