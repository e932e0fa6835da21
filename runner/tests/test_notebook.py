"""`packets` and the example notebook give a job's decrypted packets."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from runner.cli.group import main
from runner.errors import UsageError
from runner.model.result import Artifacts
from runner.notebook import packets, tshark
from runner.paths import ROOT
from runner.tests.records import RECORDINGS

JOB = RECORDINGS / "schema_1/pairs/quinn_quinn/handshake/1"


def _bentpipe(*arguments: str) -> str:
    return CliRunner().invoke(main, ["packets", *arguments], catch_exceptions=False).stdout


def test_the_example_notebook_runs_where_a_loop_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """As in Jupyter, the cells run inside of an event loop."""
    cells = [
        cell for cell in json.loads((ROOT / "docs/packets.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    sources = [
        f"JOB = {str(JOB)!r}" if cell["metadata"].get("tags") == ["parameters"] else "".join(cell["source"])
        for cell in cells
    ]
    assert sum(source.startswith("JOB = ") for source in sources) == 1

    async def run() -> None:
        names: dict[str, object] = {}
        for source in sources:
            exec(compile(source, "docs/packets.ipynb", "exec"), names)

    asyncio.run(run())
    text = capsys.readouterr().out
    assert "443 → packets 0, 0" in text  # two packets in one datagram
    assert "ALPN hq-interop" in text
    assert "suite 0x1302" in text
    assert "filter 'quic.frame_typo == 6': " in text


def test_packets_are_decrypted_with_the_secrets_of_a_key_log(recorded: Callable[[str], Artifacts]) -> None:
    artifacts = recorded("quinn_quinn/handshake")
    done = "quic.frame_type == 30"  # HANDSHAKE_DONE, in a 1-RTT packet
    assert artifacts.client_capture.suffix == ".pcap"
    assert list(tshark(artifacts, display_filter=done))
    for path in artifacts.key_logs:
        path.unlink()
    assert not list(tshark(artifacts, display_filter=done))


def test_the_command_shows_the_packets_of_both_vantage_points() -> None:
    client, server = (_bentpipe(str(JOB), "--filter", "quic", "--vantage", side) for side in ("client", "server"))
    assert "Initial, DCID=" in client
    assert "Initial, DCID=" in server
    assert client != server  # their times differ
    details = _bentpipe(str(JOB), "--filter", "quic.frame_type == 30", "--details")
    assert "Frame Type: HANDSHAKE_DONE" in details


def test_a_capture_that_is_cut_or_gone_is_one_sentence(tmp_path: Path) -> None:
    run = tmp_path / "pairs"
    shutil.copytree(JOB.parents[2], run)
    job = run / JOB.relative_to(JOB.parents[2])
    capture = job / "sim/left.pcapng"
    capture.write_bytes(capture.read_bytes()[:-20])
    seen: list[object] = []
    with pytest.raises(UsageError, match=r"left\.pcapng appears to have been cut short"):
        seen.extend(packets(job))
    assert seen  # what can be read is given first
    capture.unlink()
    with pytest.raises(UsageError, match=r"no capture of the client: run the job again with --keep-captures all"):
        next(packets(job))
    (job / "evidence.json").rename(job / "kept")  # an imported job has only its result
    with pytest.raises(UsageError, match="its results were imported, and its packets are on the host that ran it"):
        next(packets(job))
    (job / "kept").rename(job / "evidence.json")
    capture.symlink_to(JOB / "sim/left.pcapng")
    with pytest.raises(UsageError, match="bentpipe never makes this"):
        next(packets(job))
    with pytest.raises(UsageError, match=r"There is no finished job in "):
        next(packets(run / "quinn_quinn/handshake/2"))
    with pytest.raises(UsageError, match="Choices: client, server"):
        next(packets(JOB, vantage="left"))
