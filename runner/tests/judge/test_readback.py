"""Applied values in recordings of real pairs: one with a requested window, one whose window can't be set."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.judge.judges import analyse
from runner.model.result import Artifacts, Reading, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.tests.records import RECORDINGS

Recorded = Callable[[str], Artifacts]
QLOGS = RECORDINGS.parent / "decode" / "recordings"
JOB = Job(server="s", client="c", case="goodput", iteration=1)


def judge(catalog: Catalog, artifacts: Artifacts) -> Result:
    record = replace(catalog.cases["goodput"].record(), file_sizes=(100 * 1024,))
    return analyse(JOB, artifacts, catalog.cases["goodput"], record)


def of(result: Result, role: str, parameter: str) -> dict[str, Reading]:
    return {
        reading.source: reading for reading in result.readings if (reading.role, reading.parameter) == (role, parameter)
    }


def ask(artifacts: Artifacts, role: str, **parameters: str) -> None:
    """Change the recording so that these values were requested from the role."""
    document = json.loads(artifacts.evidence.read_text())
    document[role]["environment"].update(parameters)
    artifacts.evidence.write_text(json.dumps(document))


def say(artifacts: Artifacts, role: str, line: str) -> None:
    (artifacts.folder / role / "output.log").write_text(f"first\n{line}\nlast\n")


def test_a_window_that_was_asked_for_and_applied_is_on_the_wire(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, recorded("quinn+iw=32_quic-go/window"))
    reading = of(result, "server", "IW")
    assert reading["output"].holds is True
    assert (reading["first flight"].asked, reading["first flight"].holds) == ("32", True)
    assert int(reading["first flight"].found) in range(29, 36)
    assert result.refuted == ()
    assert result.sample is not None
    assert result.sample.first_flight_packets == pytest.approx(32, abs=3)


def test_a_window_that_is_compiled_in_is_told_from_the_wire(catalog: Catalog, recorded: Recorded) -> None:
    result = judge(catalog, recorded("quic-go+iw=10_quic-go/window"))
    (refuted,) = result.refuted
    assert refuted.source == "first flight"
    assert refuted.sentence in {f"requested IW=10, first flight {packets} packets" for packets in (32, 33)}
    assert of(result, "server", "IW")["output"].sentence == "requested IW=10, output 32 packets"


@pytest.mark.parametrize(
    ("name", "packets"),
    [("quinn_quinn/lossy", 10), ("aioquic_aioquic/lossy", 10), ("quic-go_quic-go/lossy", 32)],
)
def test_the_first_flight_of_every_stack_is_its_window(
    catalog: Catalog, recorded: Recorded, name: str, packets: int
) -> None:
    reading = of(judge(catalog, recorded(name)), "server", "IW")["first flight"]
    assert (reading.asked, reading.holds) == ("", None)
    assert int(reading.found) == pytest.approx(packets, abs=2)


def test_a_smaller_flight_refutes_only_when_the_window_ended_it(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quic-go+iw=10_quic-go/window")
    ask(artifacts, "server", IW="64")
    stopped = of(judge(catalog, artifacts), "server", "IW")["first flight"]
    assert stopped.holds is False  # the server sends 32 packets at once, and no more until the first ACK
    short = recorded("quinn_quinn/handshake")
    ask(short, "server", IW="64")
    reading = of(judge(catalog, short), "server", "IW")["first flight"]
    assert reading.holds is None
    assert "the whole response" in reading.detail


@pytest.mark.parametrize(("line", "holds"), [("applied: cca=bbr iw=10", True), ("applied: cca=cubic iw=10", False)])
def test_an_image_says_what_it_applied(catalog: Catalog, recorded: Recorded, line: str, holds: bool) -> None:
    artifacts = recorded("quinn_quinn/lossy")
    ask(artifacts, "server", CCA="bbr")
    say(artifacts, "server", line)
    assert of(judge(catalog, artifacts), "server", "CCA")["output"].holds is holds


def test_what_nobody_can_tell_is_said_to_be_so(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/lossy")
    ask(artifacts, "client", CCA="bbr")
    say(artifacts, "client", "nothing to say")
    (reading,) = (reading for reading in judge(catalog, artifacts).readings if reading.role == "client")
    assert (reading.sentence, reading.holds) == ("requested CCA=bbr, not read back", None)


@pytest.mark.parametrize(
    ("name", "packets"), [("quic-go_transfer", 32), ("quinn_transfer", 10), ("aioquic_transfer", 10)]
)
@pytest.mark.parametrize(("requested", "holds"), [("same", True), ("64", False)])
def test_qlogs_of_every_stack_tell_the_first_window(
    catalog: Catalog, recorded: Recorded, name: str, packets: int, requested: str, holds: bool
) -> None:
    artifacts = recorded("quinn_quinn/lossy")
    (source,) = (QLOGS / name).glob("server.*.gz")
    folder = artifacts.folder / "server" / "qlog"
    folder.mkdir()
    (folder / source.stem).write_bytes(gzip.decompress(source.read_bytes()))
    ask(artifacts, "server", IW=str(packets) if requested == "same" else requested)
    reading = of(judge(catalog, artifacts), "server", "IW")["qlog"]
    assert (int(reading.found), reading.holds) == (packets, holds)


def test_a_qlog_may_name_the_controller(catalog: Catalog, recorded: Recorded) -> None:
    artifacts = recorded("quinn_quinn/lossy")
    folder = artifacts.folder / "server" / "qlog" / "below"
    folder.mkdir(parents=True)
    event = {
        "name": "recovery:parameters_set",
        "data": {"congestion_control": "Cubic", "initial_congestion_window": 12000},
    }
    (folder / "one.sqlog").write_text(f"\x1e{json.dumps(event)}\n")
    ask(artifacts, "server", CCA="bbr")
    assert of(judge(catalog, artifacts), "server", "CCA")["qlog"].sentence == "requested CCA=bbr, qlog Cubic"


@pytest.mark.parametrize(("requested", "holds"), [("2", True), ("10", False), ("3", None)])
def test_acks_on_the_wire_confirm_or_refute_their_frequency(
    catalog: Catalog, recorded: Recorded, requested: str, holds: bool | None
) -> None:
    artifacts = recorded("quic-go_quic-go/transfer")
    ask(artifacts, "client", ACK_FREQUENCY=requested)
    reading = of(judge(catalog, artifacts), "client", "ACK_FREQUENCY")["ACKs on the wire"]
    assert float(reading.found) == pytest.approx(2, abs=0.4)
    assert reading.holds is holds


@pytest.mark.parametrize("window", ["9" * 5000, "9" * 400, "9" * 19])
def test_a_qlog_with_an_impossible_window_tells_nothing(catalog: Catalog, recorded: Recorded, window: str) -> None:
    artifacts = recorded("quinn_quinn/lossy")
    folder = artifacts.folder / "server" / "qlog"
    folder.mkdir()
    (folder / "one.sqlog").write_text(f'{{"cwnd": {window}}}')
    ask(artifacts, "server", IW="10")
    assert "qlog" not in of(judge(catalog, artifacts), "server", "IW")


@pytest.mark.parametrize("value", ['"><img src=x>', "9" * 5000, "-1", "1e9", "٣"])
def test_a_number_that_no_run_asks_for_is_not_compared(catalog: Catalog, recorded: Recorded, value: str) -> None:
    artifacts = recorded("quinn+iw=32_quic-go/window")
    ask(artifacts, "server", IW=value)
    ask(artifacts, "client", ACK_FREQUENCY=value)
    result = judge(catalog, artifacts)
    assert of(result, "server", "IW")["first flight"].holds is None
    assert of(result, "client", "ACK_FREQUENCY") == {}
