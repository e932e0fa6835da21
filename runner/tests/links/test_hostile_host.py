"""An engine of another host that sends without end: what is kept of it is bounded."""

import gzip
import http.server
import json
import resource
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest

from runner.engine import containers
from runner.engine.containers import Engine
from runner.errors import HostRefusedError, LaneError
from runner.places.links import hosts as remote_engine
from runner.places.links.hosts import RemoteEngine
from runner.places.links.link_experiment import Collected
from runner.units import MIB

BLOCK = bytes(MIB)
_STATE = {"Status": "running", "Pid": 1, "ExitCode": 0, "OOMKilled": False, "FinishedAt": ""}
_ODD = {  # invalid descriptions of containers
    "list": b"[]",
    "nothing": b"",
    "number": b'{"State": 7}',
    "deep": b"[" * 200_000,
    "types": json.dumps({"State": {**_STATE, "Pid": "-1x", "StartedAt": "2026-01-01T00:00:00Z"}}).encode(),
    "times": json.dumps({"State": {**_STATE, "StartedAt": "never"}}).encode(),
}


class _Endless(http.server.BaseHTTPRequestHandler):
    """Answers as an engine does; archives and logs have no end."""

    protocol_version = "HTTP/1.1"
    sent = 0  # bytes of archives and logs in the answers to all requests
    command = ""  # the container of the last command

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
        if self._answered_badly():
            return
        content = json.dumps({"ApiVersion": "1.43", "Driver": "overlay2"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        """A command in a container: it prints nothing, or a byte now and then."""
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/start"):
            self._begin("Content-Type: application/vnd.docker.raw-stream")
            self._send_for_ever(b"\1" if _Endless.command == "slow" else b"", pause=0.05)
            return
        _Endless.command = self.path.split("/")[-2]
        self._begin("Content-Length: 11")
        self._send(b'{"Id": "x"}')

    def _answered_badly(self) -> bool:
        """Answers to questions about the containers that are named after what is wrong with them."""
        if "/containers/endless/" in self.path:
            self._begin("Transfer-Encoding: chunked")
            self._send_for_ever(b"%x\r\n%b\r\n" % (len(BLOCK), BLOCK), pause=0.0)
        elif "/containers/packed/" in self.path:
            bomb = gzip.compress(bytes(512 * MIB), 6)
            self._begin(f"Content-Length: {len(bomb)}", "Content-Encoding: gzip")
            self._send(bomb)
        elif "/containers/dripping/" in self.path:
            self._begin("Transfer-Encoding: chunked")
            self._send_for_ever(b"1\r\n \r\n", pause=0.05)
        elif odd := next((body for name, body in _ODD.items() if f"/containers/{name}/json" in self.path), None):
            self._begin(f"Content-Length: {len(odd)}")
            self._send(odd)
        elif "/containers/elsewhere/" in self.path:
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{_Endless.port}/secret")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            return False
        return True

    port = 0  # a redirect that must not be followed

    def _begin(self, *headers: str) -> None:
        self.send_response(200)
        for header in headers:
            self.send_header(*header.split(": "))
        self.end_headers()

    def _send(self, data: bytes) -> bool:
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True
            return False
        _Endless.sent += len(data)
        return True

    def _send_for_ever(self, data: bytes, *, pause: float) -> None:
        while self._send(data):
            time.sleep(pause)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[RemoteEngine]:
    url = f"unix://{tmp_path / 'engine'}"
    with _Server(str(tmp_path / "engine"), _Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tunnel = SimpleNamespace(
            url=url,
            failure=None,
            connection=SimpleNamespace(host=SimpleNamespace(name="hostile"), connect=lambda: None),
        )
        yield RemoteEngine(docker.DockerClient(url, version="1.43"), {}, cast("Any", tunnel))
        server.shutdown()


def test_an_archive_without_end_is_cut_off(hostile: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "LARGEST_ARCHIVE", 32 * MIB)
    for limit, largest in ((None, 32 * MIB), (4 * MIB, 4 * MIB)):
        _Endless.sent = 0
        size = sum(len(block) for block in hostile.archive("monitor", "/logs", limit=limit))
        assert largest < size <= largest + 10 * MIB, "with its headers"
        assert _Endless.sent < 2 * largest + 32 * MIB, "nobody reads on"


def test_a_log_without_end_is_cut_off(hostile: RemoteEngine) -> None:
    _Endless.sent = 0
    assert len(hostile.printed("monitor")) == 32 * MIB
    assert _Endless.sent < 64 * MIB


@pytest.mark.parametrize("container", ["endless", "packed"])
def test_a_description_without_end_is_refused(hostile: RemoteEngine, container: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LaneError, match="its answer has more than 16 MiB"):
        hostile.state(container)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # in KiB
    assert grown < 100 * 1024


def test_a_description_that_drips_is_refused(hostile: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "LONGEST_ANSWER", 0.5)
    began = time.monotonic()
    with pytest.raises(LaneError, match="its answer took more than"):
        hostile.state("dripping")
    assert time.monotonic() - began < 10


def test_nobody_is_sent_elsewhere(hostile: RemoteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "_PATIENCE_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as secret:
        secret.settimeout(1)
        monkeypatch.setattr(_Endless, "port", secret.getsockname()[1])
        with pytest.raises(LaneError):
            hostile.state("elsewhere")
        with pytest.raises(TimeoutError):
            secret.accept()


@pytest.mark.parametrize("container", ["list", "nothing", "number", "deep", "types", "times"])
def test_an_answer_that_is_no_engines_is_said_and_not_asked_again(hostile: RemoteEngine, container: str) -> None:
    began = time.monotonic()
    with pytest.raises(LaneError, match="its answer is not that of a Docker Engine") as error:
        hostile.state(container)
    assert error.value.code == "not-an-engine"
    assert time.monotonic() - began < 10, "a host whose connection is lost would be asked for a minute"


@pytest.mark.parametrize("container", ["silent", "slow"])
def test_a_command_that_never_ends_is_given_up(
    hostile: RemoteEngine, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "_call_seconds", 1)
    monkeypatch.setattr(remote_engine, "_PATIENCE_SECONDS", 0.0)
    began = time.monotonic()
    with pytest.raises(LaneError):
        hostile.execute(container, ["true"])
    assert 0.9 < time.monotonic() - began < 10


def test_an_engine_that_is_away_before_a_job_is_waited_for_and_then_given_up(
    hostile: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    hostile.require_welcome(threading.Event(), messages.append)
    assert messages == []
    Engine.close(hostile)  # closes the last connection
    monkeypatch.setattr(remote_engine, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(hostile, "_where", {"base_url": "unix:///nowhere/engine"})
    with pytest.raises(HostRefusedError, match="It was away for 2"):
        hostile.require_welcome(threading.Event(), messages.append)
    assert len(messages) == 1 and "hostile is away. Waiting for it" in messages[0]


def test_a_job_and_a_call_copy_no_more_than_their_limits() -> None:
    collected = Collected(most_of_job=3 * MIB, most_of_run=5 * MIB)
    first = collected.job()
    assert sum(map(len, first(iter([BLOCK, BLOCK])))) == 2 * MIB
    with pytest.raises(LaneError, match="left more than 3 MiB") as error:
        list(first(iter([BLOCK, BLOCK])))
    assert error.value.code == "collected-limit"
    list(collected.job()(iter([BLOCK])))
    with pytest.raises(HostRefusedError, match="its limit is 5 MiB"):
        collected.job()
