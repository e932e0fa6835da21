"""A job whose captures have two clocks: after the clocks are joined by the estimate, the numbers are those of one
clock."""

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.judge.judges import analyse
from runner.model.link import Clock, RealLinkEvidence
from runner.model.result import Artifacts, Outcome, Result, Sample
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.store.runs import load_evidence, save_evidence

SIZES = (20480, 30720, 51200)
JOB = Job(server="s", client="c", case="x", iteration=1)
NANO = 0xA1B23C4D


def _move(capture: Path, ahead: Callable[[int], int]) -> None:
    """Set the clock of a pcap: `ahead` gives ns for a time in ns."""
    data = bytearray(capture.read_bytes())
    magic = struct.unpack_from("<I", data)[0]
    tick = 1 if magic == NANO else 1000
    position = 24
    while position < len(data):
        seconds, fraction, held, _ = struct.unpack_from("<IIII", data, position)
        time = seconds * 10**9 + fraction * tick
        time += ahead(time)
        struct.pack_into("<II", data, position, time // 10**9, time % 10**9 // tick)
        position += 16 + held
    capture.write_bytes(data)


def _judged(catalog: Catalog, artifacts: Artifacts, clock: Clock | None) -> tuple[Result, Sample]:
    shutil.rmtree(artifacts.folder / "tables", ignore_errors=True)
    evidence = load_evidence(artifacts)
    assert evidence is not None
    seen = RealLinkEvidence(
        name="sky", server_address="192.0.2.1", family=4, interface="eth1", udp_port=443, clock=clock
    )
    save_evidence(artifacts, replace(evidence, real_link=seen))
    case = catalog.cases["transfer"]
    result = analyse(JOB, artifacts, case, replace(case.record(), file_sizes=SIZES))
    assert result.sample is not None
    return result, result.sample


@pytest.mark.parametrize(("offset", "drift"), [(2.5, 0.0), (-0.2, 100e-6), (3600.0, -50e-6)])
def test_captures_of_two_clocks_measure_as_with_one(
    catalog: Catalog, recorded: Callable[[str], Artifacts], offset: float, drift: float
) -> None:
    artifacts = recorded("quinn_quinn/transfer")
    alike = Clock(offset=0.0, drift=0.0, at=0.0, uncertainty=0.0, bound=0.0, exchanges=1)
    truth, wanted = _judged(catalog, artifacts, alike)
    assert truth.outcome is Outcome.UNSUPPORTED  # the files are small, so no limit had to be raised
    assert wanted.one_way_delay_median is not None
    at = truth.started_unix_s
    _move(artifacts.client_capture, lambda time: round((offset + drift * (time / 1e9 - at)) * 1e9))
    _, uncorrected = _judged(catalog, artifacts, None)
    assert uncorrected.one_way_delay_median != pytest.approx(wanted.one_way_delay_median, abs=0.01)
    clock = replace(alike, offset=offset, drift=drift, at=at)
    result, outcome = _judged(catalog, artifacts, clock)
    assert result.outcome is truth.outcome
    assert outcome.one_way_delay_median == pytest.approx(wanted.one_way_delay_median, abs=1e-5)
    assert outcome.goodput == pytest.approx(wanted.goodput, rel=1e-3)
    assert outcome.first_flight_packets == wanted.first_flight_packets
    assert outcome.spurious_bytes == wanted.spurious_bytes
