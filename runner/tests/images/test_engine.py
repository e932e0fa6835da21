"""The sentences for a user who can't use the engine, with real sockets and real users without rights."""

import os
import socket
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from runner.engine import engine
from runner.engine.engine import SocketState
from runner.errors import SetupError

NOBODY = 65534


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    """A socket at which something listens, in folders that everybody may pass."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield path


def _answer(call: Callable[[], object], pipe: Connection) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        pipe.send(call())
    except SetupError as error:
        pipe.send(str(error))


def as_nobody(call: Callable[[], object]) -> object:
    """The result of `call`, or the sentence of its SetupError, in a process without root's rights."""
    ours, theirs = get_context("fork").Pipe()
    process = get_context("fork").Process(target=_answer, args=(call, theirs))
    process.start()
    theirs.close()
    answer: object = ours.recv()
    process.join()
    return answer


def test_socket_of_others_is_told_with_the_group_to_join(listener: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener.chmod(0)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{listener}")
    sentence = str(as_nobody(engine.connect))
    own = "run `sudo usermod -aG docker nobody` and log in again, or run bentpipe as root." if os.geteuid() == 0 else ""
    assert own in sentence
    assert "`run --clock virtual --rootless`" in sentence
    assert f"may not use the Docker Engine ({listener})" in sentence
    assert len(sentence.splitlines()) == 1


def test_state_of_a_socket(listener: Path) -> None:
    assert engine.socket_state(listener) is SocketState.ANSWERS
    assert engine.socket_state(listener.with_name("absent")) is SocketState.SILENT
    listener.chmod(0)
    assert as_nobody(lambda: engine.socket_state(listener)) is SocketState.FORBIDDEN


def test_socket_that_a_dead_engine_left_is_silent(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert path.exists()
    assert engine.socket_state(path) is SocketState.SILENT


@pytest.mark.parametrize("where", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:1"])
def test_wrong_docker_host_is_one_sentence_and_installs_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", where)
    messages: list[str] = []
    with pytest.raises(SetupError) as caught:
        engine.connect(progress=messages.append)
    assert str(caught.value).startswith(f"No Docker Engine answers at {where} (")
    assert str(caught.value).endswith("start it, or fix DOCKER_HOST.")
    assert len(str(caught.value).splitlines()) == 1
    assert messages == []


def test_docker_host_decides_which_socket_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert engine.socket_path() == engine.SOCKET
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/user/1000/docker.sock")
    assert engine.socket_path() == Path("/run/user/1000/docker.sock")
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    assert engine.socket_path() is None


def test_nothing_is_installed_without_consent() -> None:
    messages: list[str] = []

    def install() -> None:
        engine.install_packages(
            ["hello"], consent=lambda _: False, progress=messages.append, purpose="No greeting is installed."
        )

    with pytest.raises(SetupError, match="run `sudo apt-get install hello`, then this command again"):
        install()
    assert "needs root" in str(as_nobody(install))
    assert messages == []


@pytest.mark.docker
def test_finds_the_engine_of_this_host() -> None:
    messages: list[str] = []
    client = engine.connect(progress=messages.append)
    assert client.ping()
    assert messages == []
