"""The common parts of both roles: environment, QUIC configuration, congestion control, qlog."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aioquic.h0.connection import H0_ALPN
from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import K_INITIAL_WINDOW, QuicCongestionControl, register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.logger import QLOG_VERSION, QuicLogger, QuicLoggerTrace
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite

UNKNOWN_VERSION = 0x1A2A3A4A
"""A version number that RFC 9000 §15 reserves for tests of version negotiation."""

_CONTROLLERS: dict[str, Callable[..., QuicCongestionControl]] = {
    "newreno": RenoCongestionControl,
    "cubic": CubicCongestionControl,
}
_LARGEST_WINDOW = 1000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of the endpoint, read from its environment."""

    case: str
    """Wire name of the test case."""
    requests: tuple[str, ...]
    controller: str
    initial_window: int
    """Packets."""
    key_log: Path | None
    qlog_folder: Path | None

    @classmethod
    def from_environment(cls) -> "Settings":
        """Read TESTCASE, REQUESTS, CCA, IW, SSLKEYLOGFILE and QLOGDIR. An unsupported CCA or IW is ignored."""
        controller = os.environ.get("CCA", "")
        controller = "newreno" if controller == "reno" else controller
        window = os.environ.get("IW", "")
        packets = int(window) if window.isdecimal() else 0
        key_log, qlog_folder = os.environ.get("SSLKEYLOGFILE"), os.environ.get("QLOGDIR")
        return cls(
            case=os.environ["TESTCASE"],
            requests=tuple(os.environ.get("REQUESTS", "").split()),
            controller=controller if controller in _CONTROLLERS else "newreno",
            initial_window=packets if 1 <= packets <= _LARGEST_WINDOW else K_INITIAL_WINDOW,
            key_log=Path(key_log) if key_log else None,
            qlog_folder=Path(qlog_folder) if qlog_folder else None,
        )

    def configuration(self, *, is_client: bool) -> QuicConfiguration:
        """aioquic's defaults, changed as the test case and the run require."""
        configuration = QuicConfiguration(
            is_client=is_client,
            alpn_protocols=H3_ALPN if self.case in ("http3", "upload") else H0_ALPN,
            congestion_control_algorithm=self._register_controller(),
            quic_logger=StreamedLogger(self.qlog_folder) if self.qlog_folder else None,
            secrets_log_file=self.key_log.open("a", buffering=1) if self.key_log else None,
        )
        if is_client:
            configuration.load_verify_locations(cafile="/certs/ca.pem")
        else:
            configuration.load_cert_chain("/certs/cert.pem", "/certs/priv.key")
        if self.case == "chacha20" and is_client:
            configuration.cipher_suites = [CipherSuite.CHACHA20_POLY1305_SHA256]
        if self.case == "v2":
            configuration.original_version = QuicProtocolVersion.VERSION_1 if is_client else None
            configuration.supported_versions = [QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1]
        if self.case == "versionnegotiation" and is_client:
            configuration.original_version = UNKNOWN_VERSION
            configuration.supported_versions = [UNKNOWN_VERSION, QuicProtocolVersion.VERSION_1]
        return configuration

    def _register_controller(self) -> str:
        """Register the run's congestion controller with aioquic. Returns its name there."""
        make = _CONTROLLERS[self.controller]
        packets = self.initial_window

        def controller(*, max_datagram_size: int) -> QuicCongestionControl:
            control = make(max_datagram_size=max_datagram_size)
            control.congestion_window = packets * max_datagram_size
            return control

        register_congestion_control("requested", controller)
        return "requested"


class StreamedLogger(QuicLogger):
    """Writes each event to the qlog of its connection at once.

    aioquic's own file logger keeps all events in memory until the connection ends: hundreds of megabytes for a large
    file. When the process is stopped before that, it writes nothing.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._alive: set[StreamedTrace] = set()

    def start_trace(self, is_client: bool, odcid: bytes) -> QuicLoggerTrace:
        """Open the qlog of a new connection."""
        trace = StreamedTrace(self._folder / f"{odcid.hex()}.sqlog", is_client=is_client, odcid=odcid)
        self._alive.add(trace)
        return trace

    def end_trace(self, trace: QuicLoggerTrace) -> None:
        """Close the qlog of a connection that has ended."""
        if isinstance(trace, StreamedTrace):
            self._alive.discard(trace)
            trace.close()

    def close(self) -> None:
        """Close the qlogs of connections that have not ended."""
        for trace in list(self._alive):
            self.end_trace(trace)


class StreamedTrace(QuicLoggerTrace):
    """The qlog of one connection, as JSON-SEQ records (RFC 7464)."""

    def __init__(self, path: Path, *, is_client: bool, odcid: bytes) -> None:
        super().__init__(is_client=is_client, odcid=odcid)
        self._file = path.open("w")
        trace = self.to_dict()
        del trace["events"]
        self._write({"qlog_format": "JSON-SEQ", "qlog_version": QLOG_VERSION, "trace": trace})

    def log_event(self, *, category: str, event: str, data: dict[str, Any]) -> None:
        """Write one event. After the trace was closed, nothing is written."""
        super().log_event(category=category, event=event, data=data)
        self._write(self._events.pop())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write("\x1e" + json.dumps(record, separators=(",", ":")) + "\n")
