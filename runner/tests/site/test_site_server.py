"""Compressed qlogs over HTTP: a browser unpacks them by itself, and any other client gets the file as it is."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from runner.site.server import SiteServer

QLOG = b'{"qlog_format": "JSON-SEQ"}\n' * 100
PLACE = "night/quinn_quinn/sat/1/client.sqlog.zst"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / PLACE
    path.parent.mkdir(parents=True)
    path.write_bytes(pa.Codec("zstd").compress(QLOG, asbytes=True))
    with SiteServer(("127.0.0.1", 0), tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("accepted", "coding"), [("gzip, br, zstd", "zstd"), ("gzip", None), ("", None)])
def test_a_client_that_knows_zstd_is_told_of_it(port: int, accepted: str, coding: str | None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/{PLACE}", headers={"Accept-Encoding": accepted})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert (answer.status, answer.getheader("Content-Encoding")) == (200, coding)
    assert answer.getheader("Access-Control-Allow-Origin", "").startswith("https://qvis.")
    assert pa.decompress(body, codec="zstd", decompressed_size=len(QLOG), asbytes=True) == QLOG


def test_a_client_that_leaves_during_an_answer_is_not_reported(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "large.js").write_bytes(bytes(32 << 20))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets the connection
        client.sendall(b"GET /large.js HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.0 200")
    deadline = time.monotonic() + 20
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "Traceback" not in capsys.readouterr().err
