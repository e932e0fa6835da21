"""Uploads: nginx with curl over HTTP/3, 150 kB over 20/2 Mbit/s, recorded in virtual time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.decode.columns import CLIENT, Trace
from runner.decode.tables import cached_decode
from runner.judge.judges import analyse
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import CaseRecord
from runner.model.stack import exchanged
from runner.places.lane_job import lane_job
from runner.plan.catalog import Catalog
from runner.plan.jobs import new_run
from runner.store.runs import load_evidence
from runner.tests.judge.test_analyse import JOB, edit
from runner.tests.records import select
from runner.trace.recording import Vantage

Recorded = Callable[[str], Artifacts]
SIZE = 150_000
RATE = 2e6


@pytest.fixture(name="upload")
def _upload(recorded: Recorded) -> Artifacts:
    return recorded("nginx_curl/upload")


def _record(catalog: Catalog) -> CaseRecord:
    return replace(catalog.cases["upload"].record(), file_sizes=(SIZE,))


def _judged(catalog: Catalog, artifacts: Artifacts) -> Result:
    return analyse(JOB, artifacts, catalog.cases["upload"], _record(catalog))


def _at_server(artifacts: Artifacts) -> Trace:
    return cached_decode(artifacts.server_capture, artifacts.key_logs, artifacts.server_tables, kernel_drops=None)


def test_the_guests_cpu_time_is_recorded(catalog: Catalog, upload: Artifacts) -> None:
    evidence = load_evidence(upload)
    assert evidence is not None and evidence.guest is not None
    assert _judged(catalog, upload).cpu_s == evidence.guest.cpu_s > 0.1


def test_the_numbers_are_those_of_the_clients_data_at_the_server(catalog: Catalog, upload: Artifacts) -> None:
    result = _judged(catalog, upload)
    assert result.outcome is Outcome.SUCCEEDED
    assert result.sample is not None
    assert result.sample.goodput is not None
    server = Vantage("server", _at_server(upload), [0])
    mine = (server.packets["sender"] == CLIENT) & server.packets.named("type", "1rtt")
    first, last = (int(moment) for moment in (server.packet_time[mine].min(), server.packet_time[mine].max()))
    assert result.sample.goodput == pytest.approx(8 * SIZE / ((last - first) / 1e9))
    assert result.sample.efficiency == pytest.approx(result.sample.goodput / RATE)
    frames = server.stream_frames
    data = (frames["sender"] == CLIENT) & (frames["stream_id"] == 0)
    end = frames["time_ns"][data][np.argmax(frames["offset"][data] + frames["length"][data])]
    assert result.sample.ttlb is not None
    assert result.sample.ttfb is not None
    begin = frames["time_ns"][data].min()
    assert result.sample.ttlb - result.sample.ttfb == pytest.approx((end - begin) / 1e9)


def test_a_diagnosis_of_an_upload_names_the_client_as_the_sender(catalog: Catalog, upload: Artifacts) -> None:
    """nginx allows 64 KiB for a stream: less than the 146 KiB of the path."""
    sentences = {each.code: each.sentence for each in _judged(catalog, upload).diagnoses}
    assert sentences["receive-window"].startswith("The server's flow control held the client back")


def test_numbers_keep_their_origin_when_a_text_is_exchanged() -> None:
    download = "t(last new byte at the client) − t(client's first packet); the server's forward link"
    assert exchanged(download) == "t(last new byte at the server) − t(client's first packet); the client's return link"


def test_a_server_that_loses_an_upload_is_at_fault(catalog: Catalog, upload: Artifacts) -> None:
    edit(upload, lambda evidence: evidence["files"][0].update(received=None, equal=False))
    (finding,) = _judged(catalog, upload).findings
    assert (finding.code, finding.role) == ("files-differ", "server")
    assert "reached the server" in finding.actual
    assert finding.requirement == "The server saves every sent file to /downloads, unchanged."


def test_nobody_is_at_fault_for_other_content(catalog: Catalog, upload: Artifacts) -> None:
    edit(upload, lambda evidence: evidence["files"][0].update(equal=False))
    (finding,) = _judged(catalog, upload).findings
    assert (finding.code, finding.role) == ("files-differ", "")


def test_the_client_has_the_files_and_the_server_receives_them(catalog: Catalog, tmp_path: Path) -> None:
    selection = select(catalog, servers=("nginx",), clients=("curl",), cases=("upload",), iterations=1)
    run = new_run(tmp_path, selection)
    (job,) = run.order
    planned = lane_job(run, job, tmp_path)
    assert planned.sender.value == "client"
    assert (planned.client.environment["TESTCASE"], planned.server.environment["TESTCASE"]) == ("upload", "upload")
    assert run.case(job).forward.data_rate == RATE
