"""An engine that dies while it builds or pulls an image."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer

import docker
import pytest

from runner.errors import SetupError
from runner.images import images, pulling
from runner.images.images import Event, Image


class _Dying(BaseHTTPRequestHandler):
    """Has no image, and breaks off what it was told to do."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b'{"message": "No such image"}'
        self.send_response(404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        if self.headers["Transfer-Encoding"] == "chunked":
            while self.rfile.readline() != b"0\r\n":
                pass
        else:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True

    def address_string(self) -> str:
        return "a client"

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Engine(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def client(tmp_path: Path) -> Iterator[docker.DockerClient]:
    path = tmp_path / "engine.sock"
    with _Engine(str(path), _Dying) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        client = docker.DockerClient(f"unix://{path}", version="1.41")
        yield client
        client.close()
        server.shutdown()


def test_a_build_that_breaks_off_is_told_in_a_sentence(client: docker.DockerClient, tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image/Dockerfile").write_text("FROM scratch\n")
    events: list[Event] = []
    image = Image(tag="bentpipe/test-broken", context=tmp_path / "image")
    with pytest.raises(SetupError, match="The image bentpipe/test-broken can't be made: "):
        images.build(client, [image], report=events.append)


def test_a_pull_that_breaks_off_is_told_at_once(client: docker.DockerClient) -> None:
    (event,) = pulling._events(client, "somewhere/image", "latest", 10.0)
    assert "sent nothing" not in str(event["error"])
