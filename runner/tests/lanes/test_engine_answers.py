"""Answers of an engine that dies while it sends them, or that never ends them."""

import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from docker.errors import DockerException
from requests.exceptions import RequestException

from runner.engine import containers
from runner.engine.containers import BoundedApi

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def _engine(folder: Path, parts: Iterable[bytes], pause: float) -> Iterator[str]:
    """The address of an engine that sends `parts` with pauses, in seconds, and closes the connection."""
    path = folder / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"unix://{path}"
        thread.join()


@pytest.fixture(params=[b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 50\r\n\r\n{"])
def dying_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with _engine(tmp_path, [_HEAD + request.param], 0.0) as url:
        yield url


@pytest.mark.parametrize("head", [b"H", _HEAD + b"X-Long: "])
def test_a_head_that_drips_for_ever_is_given_up(tmp_path: Path, head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "LONGEST_ANSWER", 0.5)
    late = pytest.raises((RequestException, DockerException), match="takes too long")
    with _engine(tmp_path, itertools.chain([head], itertools.repeat(b"x")), 0.05) as url, late:
        BoundedApi(url, version="auto", timeout=10)


def test_a_head_in_pieces_is_read(tmp_path: Path) -> None:
    pieces = [bytes((byte,)) for byte in _HEAD + b"Content-Length: 2\r\n\r\n{}"]
    with _engine(tmp_path, pieces, 0.002) as url:
        api = BoundedApi(url, version="1.41", timeout=10)
        assert api.info() == {}
        api.close()


def test_an_answer_that_breaks_off_is_an_error_that_callers_know(dying_engine: str) -> None:
    api = BoundedApi(dying_engine, version="1.41", timeout=10)
    with pytest.raises((RequestException, OSError)):
        api.wait("x")
    api.close()
