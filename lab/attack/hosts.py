"""Hostile remote hosts: an SSH server whose Docker Engine lies, floods, delays or breaks connections.

Each trial runs in its own process, which connects and makes calls like a run over a real link. A trial holds when each
call ends in time with an answer or with a BentpipeError, and when memory and spooled files stay bounded. The time-outs
of the product are shortened, so that a trial takes seconds.
"""

import base64
import json
import os
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from lab.attack.verdicts import Finding, Tally, Verdict, resident
from runner.engine import containers
from runner.engine import containers as engine_client
from runner.engine.containers import ContainerSpec
from runner.errors import BentpipeError
from runner.model.link import RemoteHost
from runner.places.links import hosts
from runner.places.links import hosts as remote_engine
from runner.places.links.hosts import RemoteEngine, SshConnection
from runner.units import MIB

_FLOOD = 3 * 1024 * MIB  # the most bytes that the host sends in a flood
_BLOCK = bytes(1 << 16)
_STATE = {
    "Status": "running", "Pid": 7, "ExitCode": 0, "OOMKilled": False,
    "StartedAt": "2026-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z",
}  # fmt: skip
ANSWERS: dict[str, Any] = {
    "version": {"ApiVersion": "1.41", "Version": "20.10", "Os": "linux", "Arch": "amd64"},
    "info": {"CgroupDriver": "cgroupfs", "NCPU": 2, "MemTotal": 1 << 30},
    "images": {"Id": "sha256:" + "0" * 64, "Config": {"Entrypoint": ["x"]}, "Size": 5},
    "containers/create": {"Id": "1" * 64, "Warnings": []},
    "containers/json": [],
    "volumes": {"Volumes": []},
    "containers/x/json": {"State": _STATE, "Id": "1" * 64},
    "containers/x/stats": {"cpu_stats": {"cpu_usage": {"total_usage": 1}}},
    "exec": {"Id": "2" * 64, "ExitCode": 0},
}
_WRONG_TYPES = {
    "State": {**dict.fromkeys(_STATE, "x"), "Pid": "-1"},
    **{"Id": 7, "ApiVersion": 7, "Config": 5, "cpu_stats": 3, "Volumes": 4, "ExitCode": "x", "CgroupDriver": []},
}
_WRONG_NUMBERS = {
    "State": {**_STATE, "Pid": 2**70, "StartedAt": "never"},
    **{"Id": "../../x", "ApiVersion": "1e9", "cpu_stats": {"cpu_usage": {"total_usage": -1e300}}},
}
ODD: dict[str, bytes] = {
    **{"empty": b"", "null": b"null", "list": b"[]", "number": b"7", "text": b'"x"', "no json": b"<html>"},
    **{"deep": b"[" * 200_000, "huge": b'{"a": "' + b"x" * (64 << 20) + b'"}', "nan": b'{"State": NaN}'},
    **{"objects": b"{}", "bytes": b"\xff\xfe\x00", "wrong types": json.dumps(_WRONG_TYPES).encode()},
    **{"wrong numbers": json.dumps(_WRONG_NUMBERS).encode()},
    "many": json.dumps([{"Id": "x", "Labels": None}] * 5000).encode(),
}
HTTP = (
    "endless body",
    "endless headers",
    "endless chunks",
    "trickle",
    "close",
    "reset",
    "no answer",
    "garbage",
    "redirect",
)
RAW = ("silence", "trickled banner", "endless banner", "garbage", "close")
SSH = (*RAW, "wrong key", "no login", "close after login")
SESSION = ("endless output", "no output", "binary output")


class HostileHost:
    """Listens on the loopback interface and answers according to `behaviour`."""

    def __init__(self, behaviour: str) -> None:
        self.logged_in = False
        self._behaviour = behaviour
        self._key = paramiko.ECDSAKey.generate()
        self._known = paramiko.ECDSAKey.generate() if behaviour == "ssh: wrong key" else self._key
        self._user = paramiko.ECDSAKey.generate()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def described(self, scratch: Path) -> RemoteHost:
        """The host's entry in links.json."""
        key = scratch / "key"
        self._user.write_private_key_file(str(key))
        return RemoteHost(
            name="hostile",
            address="127.0.0.1",
            port=self._listener.getsockname()[1],
            user="bentpipe",
            host_key=f"{self._known.get_name()} {self._known.get_base64()}",
            key=key,
        )

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        layer, _, how = self._behaviour.partition(": ")
        with suppress(Exception):
            if layer == "ssh" and how in RAW:
                _raw(connection, how)
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self._key)
            transport.start_server(server=_Server(self))
            while transport.is_active():
                channel = transport.accept(20)
                if channel is not None:
                    threading.Thread(target=self._channel, args=(transport, channel), daemon=True).start()

    def _channel(self, transport: paramiko.Transport, channel: paramiko.Channel) -> None:
        layer, _, how = self._behaviour.partition(": ")
        with suppress(Exception):
            if self._behaviour == "ssh: close after login":
                transport.close()
            elif channel.get_name() == "session" or getattr(channel, "is_session", False):
                _session(channel, how if layer == "session" else "")
            else:
                _Engine(channel, layer, how).serve()


class _Server(paramiko.ServerInterface):
    def __init__(self, host: HostileHost) -> None:
        self._host = host

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        if self._host._behaviour == "ssh: no login":
            time.sleep(1000)
        self._host.logged_in = True
        return AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        del kind, chanid
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        del command
        channel.is_session = True  # type: ignore[attr-defined]
        return True


def _raw(connection: socket.socket, how: str) -> None:
    if how == "close":
        connection.close()
    elif how == "silence":
        time.sleep(1000)
    elif how == "garbage":
        connection.sendall(os.urandom(100_000))
    elif how == "trickled banner":
        for byte in b"SSH-2.0-" + b"x" * 1000:
            connection.sendall(bytes((byte,)))
            time.sleep(0.5)
    else:
        _flood(connection.sendall, b"a line that is no version\r\n" * 1000)


def _session(channel: paramiko.Channel, how: str) -> None:
    time.sleep(0.2)
    if how == "endless output":
        _flood(channel.sendall, b"x" * (1 << 15))
    elif how == "binary output":
        channel.sendall(os.urandom(1 << 15))
        channel.close()
    elif how == "no output":
        time.sleep(1000)
    else:
        channel.sendall(b"10.0.0.1 5 10.0.0.2 22\n")
        channel.close()


def _flood(send: Callable[[bytes], object], block: bytes) -> None:
    sent = 0
    while sent < _FLOOD:
        send(block)
        sent += len(block)


class _Engine:
    """The HTTP of a Docker Engine, one request after the other on a channel."""

    def __init__(self, channel: paramiko.Channel, layer: str, how: str) -> None:
        self._channel, self._layer, self._how = channel, layer, how

    def serve(self) -> None:
        """Serve until the client closes the channel."""
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                data = self._channel.recv(1 << 16)
                if not data:
                    return
                buffer += data
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                ),
                0,
            )
            while len(buffer) < length:
                buffer += self._channel.recv(1 << 16)
            buffer = buffer[length:]
            self._answer(head.split(b" ")[1].decode())

    def _answer(self, path: str) -> None:
        first = "/version" in path
        if self._layer == "http" and not (first and self._how in ("endless chunks", "redirect")):
            self._misbehave()
        elif self._layer == "archive" and "/archive" in path:
            self._archive()
        elif self._layer == "log" and "/logs" in path:
            self._chunks(
                b"\1\0\0\0" + (0x7FFFFFFF if self._how == "long frame" else 1 << 15).to_bytes(4) + bytes(1 << 15)
            )
        elif self._layer == "answer" and not first:
            self._send(ODD[self._how])
        elif "/archive" in path:
            self._send(bytes(10240), stat=True)
        elif "/logs" in path or "/start" in path:
            self._send(b"")
        else:
            self._send(json.dumps(self._honest(path)).encode())

    @staticmethod
    def _honest(path: str) -> object:
        keys = ("version", "info", "images", "containers/create", "containers/json", "volumes", "exec")
        for key in keys:
            if f"/{key}" in path.partition("?")[0]:
                return ANSWERS[key]
        return ANSWERS["containers/x/stats" if "/stats" in path else "containers/x/json"]

    def _send(self, body: bytes, *, stat: bool = False) -> None:
        extra = b"X-Docker-Container-Path-Stat: " + base64.b64encode(b'{"name":"logs"}') + b"\r\n" if stat else b""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n" % (extra, len(body))
        self._channel.sendall(head + body)

    def _chunks(self, block: bytes) -> None:
        extra = b"X-Docker-Container-Path-Stat: e30=\r\n"
        self._channel.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n" % extra)
        _flood(self._channel.sendall, b"%x\r\n%s\r\n" % (len(block), block))

    def _archive(self) -> None:
        if self._how == "sparse":
            head = b"file" + bytes(96) + b"0000644\0" + bytes(16) + b"77777777777\0" + b"0" * 12
            self._chunks(head.ljust(512, b"\0") + _BLOCK)
        self._chunks(os.urandom(1 << 15) if self._how == "no tar" else _BLOCK)

    def _misbehave(self) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        if self._how == "endless body":
            self._channel.sendall(head + b"Content-Length: %d\r\n\r\n" % (1 << 62))
            _flood(self._channel.sendall, b" " * (1 << 15))
        elif self._how == "endless headers":
            self._channel.sendall(head)
            _flood(self._channel.sendall, b"X-Long: " + b"x" * 30_000 + b"\r\n")
        elif self._how == "endless chunks":
            self._chunks(b" " * (1 << 15))
        elif self._how == "trickle":
            for byte in head * 1000:
                self._channel.sendall(bytes((byte,)))
                time.sleep(0.5)
        elif self._how == "redirect":
            self._channel.sendall(b"HTTP/1.1 301 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        elif self._how == "no answer":
            time.sleep(1000)
        elif self._how == "garbage":
            self._channel.sendall(os.urandom(1 << 15))
        else:
            self._channel.close()


_WAIT_S = 3.0  # the product's time-outs in trials
_LONGEST_CALL_S = 30.0
_LONGEST_S = 180.0  # the longest duration of a trial, which makes a dozen calls
_MOST_MEMORY = 400 * MIB
_ARCHIVE = 16 * MIB  # the limit of a folder's archive in trials


def behaviours() -> list[str]:
    """All behaviours: those of SSH, of its sessions, of the engine's HTTP, and of the engine's answers."""
    attacks = [f"ssh: {behaviour}" for behaviour in SSH] + [f"session: {behaviour}" for behaviour in SESSION]
    attacks += [f"http: {behaviour}" for behaviour in HTTP]
    attacks += [f"answer: {behaviour}" for behaviour in ODD]
    return [*attacks, "archive: endless", "archive: sparse", "archive: no tar", "log: endless", "log: long frame"]


def attack_hosts(tally: Tally, *, only: str, progress: Callable[[Tally], None]) -> None:
    """Try each behaviour once."""
    for behaviour in behaviours():
        if only not in behaviour:
            continue
        began = time.monotonic()
        for verdict, kind, text in _trial(tally, behaviour):
            tally.add(Finding(attack=f'hosts --only "{behaviour}"', verdict=verdict, what=kind, text=text))
        tally.tried += 1
        tally.of_kind(behaviour)
        tally.seconds += time.monotonic() - began
        progress(tally)


def _trial(tally: Tally, behaviour: str) -> Iterator[tuple[Verdict, str, str]]:
    server = HostileHost(behaviour)
    with tempfile.TemporaryDirectory() as scratch:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _child(writing, server, Path(scratch))
        os.close(writing)
        began, peak, spooled = time.monotonic(), 0, 0
        ended = False
        while not ended and time.monotonic() - began < _LONGEST_S and peak < 2 * _MOST_MEMORY:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            peak = max(peak, resident(pid))
            for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
                with suppress(OSError):
                    if str(descriptor.readlink()).startswith(scratch):
                        spooled = max(spooled, descriptor.stat().st_blocks * 512)
            time.sleep(0.05)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            yield Verdict.LOST, "memory" if peak >= 2 * _MOST_MEMORY else "time", f"{peak / MIB:.0f} MiB, not ended"
        with os.fdopen(reading) as file:
            text = file.read()
    server.close()
    tally.peak("seconds of a trial", time.monotonic() - began)
    tally.peak("memory, MiB", peak / MIB)
    tally.peak("spooled, MiB", spooled / MIB)
    if peak > _MOST_MEMORY and ended:
        yield Verdict.LOST, "memory", f"{peak / MIB:.0f} MiB"
    if spooled > 2 * _ARCHIVE:
        yield Verdict.LOST, "disk", f"{spooled / MIB:.0f} MiB"
    if text:
        yield Verdict.LOST, "traceback", text
    elif ended and "wrong key" in behaviour and server.logged_in:
        yield Verdict.ESCAPED, "login", "a host with another key was logged in to"


def _child(report: int, server: HostileHost, scratch: Path) -> None:
    """Make every call, and write tracebacks of exceptions that are not a BentpipeError."""
    failures: list[str] = []
    tempfile.tempdir = str(scratch)
    hosts.CONNECT_SECONDS = hosts._CHANNEL_SECONDS = remote_engine._PATIENCE_SECONDS = _WAIT_S
    engine_client.LONGEST_ANSWER = _WAIT_S
    containers._CALL_SECONDS = int(_WAIT_S)
    remote_engine._CALL_SECONDS, remote_engine.LARGEST_ARCHIVE = int(_WAIT_S), _ARCHIVE
    try:
        for call in _calls(server.described(scratch)):
            began = time.monotonic()
            try:
                call()
            except BentpipeError:
                pass
            except BaseException:
                failures.append(traceback.format_exc())
            if (took := time.monotonic() - began) > _LONGEST_CALL_S:
                failures.append(f"a call took {took:.0f} s")
    finally:
        os.write(report, "\n".join(failures)[-60_000:].encode())
        os._exit(0)


def _calls(host: RemoteHost) -> Iterator[Callable[[], object]]:
    connection = SshConnection(host)
    yield connection.own_address
    yield connection.connect
    yield connection.close
    opened: list[RemoteEngine] = []
    yield lambda: opened.append(RemoteEngine.open(host, {}))
    if not opened:
        return
    engine = opened[0]
    spec = ContainerSpec(image="x", role="client")
    yield lambda: engine.image_id("x")
    yield lambda: engine.image_config("x")
    yield lambda: engine.create("x", spec)
    yield lambda: engine.state("x")
    yield lambda: engine.usage("x")
    yield lambda: engine.printed("x")
    yield lambda: engine.execute("x", ["true"])
    yield lambda: sum(len(block) for block in engine.archive("x", "/logs"))
    yield engine.labelled_containers
    yield engine.labelled_volumes
    yield engine.close
