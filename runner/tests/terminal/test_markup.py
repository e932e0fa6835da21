"""Text of untrusted files and captures is printed as it is: `[/]` in it is no markup of the console."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from runner.cli.base import out
from runner.cli.decoding import decoded_lines
from runner.model.result import Outcome, Result
from runner.model.run import Job
from runner.model.stack import Crossing, Sight
from runner.terminal.printing import show_crossing

HOSTILE = "[/] [bold]x"


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=300)


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_crossing_prints_its_texts(console: Console) -> None:
    job = Job(server="quinn", client="quinn", case="page", iteration=1)
    crossing = Crossing(connections=1, sights=(Sight(what=HOSTILE, visible=True),))
    result = replace(Result.of(job, Outcome.SUCCEEDED), crossing=crossing, applied={HOSTILE: HOSTILE})
    show_crossing(console, result)
    assert printed(console).count(HOSTILE) == 3


def test_names_in_a_capture_are_printed() -> None:
    connection: dict[str, object] = {
        **dict.fromkeys(("client_ip", "server_ip"), "192.0.2.1"),
        **dict.fromkeys(("client_port", "server_port"), 443),
        **{"version": 1, "alpn": HOSTILE, "suite": None, "sni": HOSTILE, "retry": False, "resumed": False},
        **{"connection": 0, "original_version": 1, "odcid": None, "negotiated_versions": []},
    }
    counts = dict.fromkeys(("datagrams", "packets", "frames", "stream_frames", "stream_bytes", "undecrypted"), 0)
    document = {**counts, "connections": [connection], "invariants": [], "link_type": "RAW", "headers": {}}
    assert "\n".join(decoded_lines(document)).count(HOSTILE) == 2


def test_a_part_of_an_address_is_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    address = "fd00:cafe:cafe:100:100"
    out.print(address)
    assert capsys.readouterr().out == f"{address}\n"
