"""Numbers of jobs in emulated links against what the simulator itself says that it did."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from runner.decode.tables import decode_capture
from runner.model.link import LinkParameters
from runner.model.result import Sample
from runner.trace.establish import facts
from runner.trace.measure import sample
from runner.trace.streams import Transfer

JOBS = Path(__file__).parent.parent / "recordings"
LINK = LinkParameters(data_rate=10_000_000, delay=0.015, queue_packets=25, loss=0.0)


def _measure(job: Path, file_sizes: Sequence[int] | None = None) -> Sample:
    """The numbers of a job. `file_sizes`: by default, the sizes of all responses."""
    keys = [job / role / "keys.log" for role in ("client", "server")]
    client, server = (
        decode_capture(job / "sim" / name, [path for path in keys if path.is_file()])
        for name in ("left.pcap", "right.pcap")
    )
    trace_facts = facts(client, server)
    sizes = [stream.server_bytes for connection in trace_facts.connections for stream in connection.request_streams]
    sizes = sizes if file_sizes is None else list(file_sizes)
    return sample(Transfer(client, server), trace_facts, file_sizes=sizes, forward=LINK, return_=LINK)


@pytest.mark.parametrize(
    "job",
    [
        "aioquic_aioquic/lossy",
        "quic-go_quic-go/lossy",
        "quinn_quinn/lossy",
        "aioquic_aioquic/transfer",
        "quic-go_quic-go/transfer",
        "quinn_quinn/transfer",
        "quic-go_quinn/longrtt",
    ],
)
def test_lost_packets_are_those_that_the_simulator_dropped(job: str) -> None:
    folder = JOBS / job / "1"
    forward = json.loads((folder / "sim" / "truth.json").read_text())["forward"]
    assert _measure(folder).lost_packets == forward["dropped_loss"] + forward["dropped_queue"]


@pytest.mark.parametrize("stack", ["aioquic", "quic-go", "quinn"])
def test_numbers_keep_to_the_link(stack: str) -> None:
    sample = _measure(JOBS / f"{stack}_{stack}" / "transfer" / "1")
    assert sample.rtt_min is not None
    assert sample.one_way_delay_median is not None
    assert sample.efficiency is not None
    assert sample.slow_start_bound is not None
    assert sample.rtt_min >= 2 * LINK.delay
    assert sample.one_way_delay_median >= LINK.delay
    assert 0 < sample.efficiency <= sample.slow_start_bound


def test_the_simulators_losses_are_there() -> None:
    sample = _measure(JOBS / "quinn_quinn" / "lossy" / "1")
    assert sample.lost_packets
    assert sample.retransmitted_bytes
    assert sample.efficiency is not None
    assert sample.efficiency < 0.5


def test_a_record_without_files_has_no_complete_transfer() -> None:
    """A stranger's run.json can say that a case has no files."""
    job = JOBS / "quinn_quinn" / "transfer" / "1"
    sample = _measure(job, file_sizes=())
    assert (sample.goodput, sample.ttfb) == (None, _measure(job).ttfb)
