"""scripts/capture_and_probe.py as a process of this host: which addresses answer, and how long it takes."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from runner.places.supervised import SCRIPTS

TOKEN = "5a" * 16
SIDE = (sys.executable, "-ISB", str(SCRIPTS / "capture_and_probe.py"))


@pytest.fixture
def port() -> Iterator[int]:
    """A UDP port at which this host answers probes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        number = int(probe.getsockname()[1])
    with subprocess.Popen([*SIDE, "answer", "60", TOKEN, str(number)], stdout=subprocess.PIPE, text=True) as answering:
        assert answering.stdout is not None
        assert answering.stdout.readline() == "monitor ready\n"
        yield number
        answering.terminate()


def _find(port: int, *addresses: str, token: str = TOKEN) -> tuple[list[list[str]], float]:
    """The words of each line, and seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [*SIDE, "find", "60", token, str(port), *addresses], capture_output=True, text=True, check=True, timeout=60
    )
    *lines, last = done.stdout.splitlines()
    assert last == "found"
    return [line.split() for line in lines], time.monotonic() - began


def test_it_ends_when_all_addresses_have_answered(port: int) -> None:
    lines, seconds = _find(port, "127.0.0.1", "127.0.0.1")
    assert seconds < 4.0, "an address that doesn't answer takes longer"
    for address, rtt, payload, source, ours in lines:
        assert (address, payload, source, ours) == ("127.0.0.1", "1452", "127.0.0.1", "127.0.0.1")
        assert 0 < int(rtt) < 1e9


def test_an_address_that_does_not_answer_is_asked_again(port: int) -> None:
    lines, seconds = _find(port, "127.0.0.1", "127.0.0.1", token="00" * 16)
    assert seconds > 4.0
    assert lines == [["127.0.0.1", "-1", "0", "-", "-"]] * 2


def test_a_server_behind_a_satellite_is_ready_when_its_late_answer_comes() -> None:
    """The answer comes 0.6 s after its question, and so after later questions."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        command = [*SIDE, "ready", "10", "00", str(server.getsockname()[1]), "127.0.0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            question, client = server.recvfrom(2048)
            time.sleep(0.6)
            assert asking.poll() is None
            destination, source = question[6:14], question[15:23]
            server.sendto(b"\x80" + bytes(4) + b"\x08" + source + b"\x08" + destination + b"\0\0\0\1", client)
            try:
                assert asking.wait(5) == 0
            finally:
                asking.kill()
