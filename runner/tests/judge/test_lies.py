"""Whatever an endpoint writes into its own files changes neither the verdict nor a number, of itself or of its peer."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.run_folders import recorded_run
from runner.judge.execution import flood, load_truth
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.store.runs import RunFolder, load_evidence

Recorded = Callable[[str], Artifacts]


JOB = Job(server="quinn", client="quinn", case="goodput", iteration=1)


def _judge(catalog: Catalog, run: RunFolder) -> Result:
    return analyse(JOB, run.artifacts(JOB), catalog.cases["goodput"], run.run.case(JOB))


def _qlogs(folder: Path) -> None:
    """Windows, losses, times and packets that never were, plain and compressed, and one that is broken."""
    (folder / "qlog").mkdir(exist_ok=True)
    events = b"".join(
        b"\x1e" + json.dumps({"time": 1e-9 * number, "name": name, "data": data}).encode() + b"\n"
        for number, (name, data) in enumerate(
            [
                ("recovery:metrics_updated", {"congestion_window": 10**15, "smoothed_rtt": 1e-9, "latest_rtt": 0}),
                ("recovery:packet_lost", {"header": {"packet_number": 1, "packet_type": "1RTT"}}),
                ("transport:packet_received", {"header": {"packet_number": 2**61, "packet_type": "1RTT"}}),
                ("transport:connection_closed", {"error_code": 10}),
            ]
            * 50
        )
    )
    head = b'\x1e{"qlog_format":"JSON-SEQ","trace":{"common_fields":{"reference_time":-1e18}}}\n'
    (folder / "qlog/a.sqlog").write_bytes(head + events)
    (folder / "qlog/b.qlog.gz").write_bytes(gzip.compress(head + events))
    (folder / "qlog/c.qlog").write_bytes(b'{"traces":[{"events":[')


def _output(folder: Path) -> None:
    lines = "applied: cca=bbr iw=1000000 ack=1\nttfb 0.000001\ngoodput 99999 Mbit/s\nserver closed the connection\n"
    (folder / "output.log").write_text(lines * 20)


def _false_secrets(folder: Path) -> None:
    """Wrong secrets of every kind for the same connections, before and behind the true ones."""
    path = folder / "keys.log"
    lines = [line.split() for line in path.read_text().splitlines()]
    false = "".join(f"{label} {session} {secret[::-1]}\n" for label, session, secret in lines)
    path.write_text(false + path.read_text() + false)


def _swapped_secrets(folder: Path) -> None:
    """Each direction's secret under the other's name."""
    path = folder / "keys.log"
    swapped = path.read_text().replace("CLIENT_", "X_").replace("SERVER_", "CLIENT_").replace("X_", "SERVER_")
    path.write_text(swapped)


def _no_secrets(folder: Path) -> None:
    (folder / "keys.log").write_text("")


def _evidence_of_its_own(folder: Path) -> None:
    """Files with the names of ours, in the folder that the endpoint's /logs becomes."""
    for name in ("evidence.json", "result.json", "truth.json", "series.json", "left.pcap"):
        (folder / name).write_text('{"schema": 1, "outcome": "failed", "sample": {"goodput": 1}}')


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("lie", [_qlogs, _output, _false_secrets, _swapped_secrets, _no_secrets, _evidence_of_its_own])
def test_a_lie_changes_no_number(catalog: Catalog, tmp_path: Path, role: str, lie: Callable[[Path], None]) -> None:
    run = recorded_run(tmp_path / "run")
    honest = _judge(catalog, run)
    assert honest.outcome is Outcome.SUCCEEDED and honest.sample is not None
    folder = run.artifacts(JOB).folder
    for table in folder.rglob("*.parquet"):
        table.unlink()
    lie(folder / role)
    judged = _judge(catalog, run)
    assert (judged.outcome, judged.findings) == (honest.outcome, honest.findings)
    assert judged.sample == honest.sample
    assert judged.violations == honest.violations


@pytest.mark.parametrize("value", ["late", [], {}, None])
def test_a_truth_that_no_simulator_writes_is_none(recorded: Recorded, value: object) -> None:
    path = recorded("quinn_quinn/handshake").folder / "sim" / "truth.json"
    assert load_truth(path) is not None
    document = json.loads(path.read_text())
    document["lateness_s"]["p99"] = document["forward"]["queue_max_packets"] = value
    path.write_text(json.dumps(document))
    assert load_truth(path) is None


@pytest.mark.parametrize(("end", "role"), [("left", "client"), ("right", "server")])
def test_frames_that_no_link_carries_are_a_flood_of_who_sent_them(
    catalog: Catalog, recorded: Recorded, end: str, role: str
) -> None:
    """For example when an endpoint writes random frames to its interface."""
    artifacts = recorded("quinn_quinn/handshake")
    evidence, truth = load_evidence(artifacts), load_truth(artifacts.folder / "sim" / "truth.json")
    assert evidence is not None
    with (artifacts.client_capture if end == "left" else artifacts.server_capture).open("ab") as capture:
        capture.truncate(64 << 20)
    finding = flood(artifacts, catalog.cases["handshake"].record(), evidence, truth)
    assert finding is not None and finding.role == role
