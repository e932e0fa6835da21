"""Every command that needs an engine, with an engine that accepts connections and does not answer: one sentence and
exit code 3."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import cli
from runner.engine import engine
from runner.images import setup

_PATIENCE_S = 0.3


def _serve(server: socket.socket, answers: dict[bytes, bytes]) -> None:
    connections = []  # a connection that is not closed stays silent
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connections.append(connection)
        threading.Thread(target=_talk, args=(connection, answers), daemon=True).start()


def _talk(connection: socket.socket, answers: dict[bytes, bytes]) -> None:
    while request := connection.recv(1 << 16):
        for path, body in answers.items():
            if path in request.split(b"\r\n")[0]:
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)


@pytest.fixture(params=["nothing", "its version"])
def silent(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of an engine that answers nothing; or only its version, as an engine in a deadlock does."""
    version = json.dumps({"ApiVersion": "1.41", "Version": "20.10.24", "Os": "linux", "Arch": "amd64"}).encode()
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(64)
        answers = {b"/version ": version} if request.param == "its version" else {}
        threading.Thread(target=_serve, args=(server, answers), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        # The limits in seconds are long, so that a busy engine does not count as silent.
        monkeypatch.setattr(engine.client, "__kwdefaults__", {"patience": _PATIENCE_S})
        monkeypatch.setattr(setup, "_PATIENCE", _PATIENCE_S)
        yield path
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "command",
    [
        "run --client quinn --server quinn --case handshake --yes --run {run}",
        "run --client quinn --server quinn --case handshake --yes --clock virtual --run {run}",
        "plan",
        "doctor",
        "doctor --link",
        "check example/image:1",
        "check --client true",
        "build --yes",
        "build quinn --yes",
        "build --pull --yes",
        "ci --base example/image:1 --head example/image:2 --yes",
        "demo --yes --run {run}",
        "demo --yes --clock virtual --run {run}",
        "list",
    ],
)
def test_command_ends_with_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bentpipe", *command.format(run=tmp_path / "run").split()])
    with pytest.raises(SystemExit) as ended:
        cli.entry()
    output = capsys.readouterr()
    printed = " ".join((output.out + output.err).split())
    assert ended.value.code == 3, printed
    assert "and does not answer" in printed
    assert "systemctl restart docker" in printed
    if not command.startswith("doctor"):
        assert output.out == ""
        assert len(output.err.splitlines()) == 1, output.err


def test_later_silence_is_the_same_sentence(silent: Path) -> None:
    client = engine._Client(version="1.41", timeout=_PATIENCE_S, base_url=f"unix://{silent}")
    with pytest.raises(engine.SilentEngineError, match="restart docker"):
        client.images.list()
