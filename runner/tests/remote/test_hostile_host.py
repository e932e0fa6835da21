"""An engine of another host that sends without end: what is kept of it is bounded."""

import http.server
import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest

from runner.remote import engine as remote_engine
from runner.remote.engine import RemoteEngine
from runner.units import MIB

BLOCK = bytes(MIB)


class _Endless(http.server.BaseHTTPRequestHandler):
    """Answers as an engine does; archives and logs have no end."""

    protocol_version = "HTTP/1.1"
    sent = 0  # bytes of archives and logs, of all requests

    def address_string(self) -> str:
        return "host"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        if "/archive" in self.path or "/logs" in self.path:
            self.send_response(200)
            self.send_header("X-Docker-Container-Path-Stat", "e30=")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            head = struct.pack(">B3xI", 1, 2**32 - 1) if "/logs" in self.path else b""
            self.wfile.write(b"%x\r\n%b\r\n" % (len(head), head) if head else b"")
            while True:
                try:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK))
                except OSError:
                    self.close_connection = True
                    return
                _Endless.sent += len(BLOCK)
        content = json.dumps({"ApiVersion": "1.43", "Driver": "overlay2"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[RemoteEngine]:
    url = f"unix://{tmp_path / 'engine'}"
    with _Server(str(tmp_path / "engine"), _Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tunnel = SimpleNamespace(url=url, failure=None)
        yield RemoteEngine(docker.DockerClient(url, version="1.43"), {}, cast("Any", tunnel))
        server.shutdown()


def test_an_archive_without_end_is_cut_off(hostile: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "LARGEST_ARCHIVE", 8 * MIB)
    _Endless.sent = 0
    size = sum(len(block) for block in hostile.archive("side", "/logs"))
    assert 8 * MIB < size <= 10 * MIB
    assert _Endless.sent < 32 * MIB, "nobody reads on"


def test_a_log_without_end_is_cut_off(hostile: RemoteEngine) -> None:
    _Endless.sent = 0
    assert len(hostile.printed("side")) == 32 * MIB
    assert _Endless.sent < 64 * MIB
