"""Compressed qlogs over HTTP: a browser unpacks them by itself, and any other client gets the file as it is."""

import http.client
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from runner.render.site_server import SiteServer

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
