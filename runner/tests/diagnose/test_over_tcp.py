"""Diagnoses of transfers over TCP that are made here: the expected diagnosis follows from the settings."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from runner.decode.columns import CLIENT, SERVER
from runner.decode.tables import load_tables
from runner.decode.tcp import decode_tcp
from runner.diagnose.explain import PATTERNS, Explanation, explain
from runner.judge.execution import load_truth
from runner.model.link import LinkParameters, SegmentRecord
from runner.model.result import Artifacts, Limit
from runner.model.run import CaseRecord
from runner.tests.decode.tcp.session import DELAY, MSS, Sent, Tls, Wire, talk
from runner.tests.records import RECORDINGS
from runner.trace.establish import facts
from runner.trace.measure import sample
from runner.trace.streams import Transfer

SIZE = 2_000_000
LINK = LinkParameters(data_rate=20_000_000, delay=DELAY, queue_packets=1000, loss=0.0)
RTT, SPACING = 2 * DELAY, 0.0006  # seconds; SPACING is the time of 1500 B at 20 Mbit/s
BEGIN = 5 * DELAY


def _opening(tls: Tls) -> list[Sent]:
    """The handshakes and the request."""
    hello, finished = tls.client.index(b"\x14\x03\x03\x00\x01"), tls.marks["finished"]
    return [
        Sent(at=0.0, sender=CLIENT, offset=None),
        Sent(at=DELAY, sender=SERVER, offset=None, acknowledged=0),
        Sent(at=2 * DELAY, sender=CLIENT, offset=0, data=tls.client[:hello], acknowledged=0),
        Sent(at=3 * DELAY, sender=SERVER, offset=0, data=tls.server[:MSS], acknowledged=hello),
        Sent(at=3 * DELAY + 0.001, sender=SERVER, offset=MSS, data=tls.server[MSS:finished], acknowledged=hello),
        Sent(at=4 * DELAY + 0.001, sender=CLIENT, offset=hello, data=tls.client[hello:], acknowledged=finished),
    ]


def _made(folder: Path, window: Callable[[int], int], *, receive_window: int = 1 << 22) -> Explanation:
    """The explanation of a transfer whose sender sends `window(round)` bytes in each RTT, at the link's data rate. They
    are acknowledged at once."""
    tls = talk(folder, alpn="h2", content=bytes(SIZE))
    segments, at, number = _opening(tls), tls.marks["finished"], 0
    for turn in range(1000):
        stop = min(at + window(turn), len(tls.server))
        for place, start in enumerate(range(at, stop, MSS)):
            end = min(start + MSS, stop)
            time = BEGIN + turn * RTT + place * SPACING
            number += 1
            segments += [
                Sent(
                    at=time,
                    sender=SERVER,
                    offset=start,
                    data=tls.server[start:end],
                    acknowledged=len(tls.client),
                    identification=number,
                ),
                Sent(at=time + DELAY + 1e-5, sender=CLIENT, offset=len(tls.client), acknowledged=end),
            ]
        at = stop
        if at == len(tls.server):
            break
    captures = Wire(window=receive_window).write(folder, segments)
    traces = decode_tcp(*captures, [folder / "keys.log"], kernel_drops=0)
    trace_facts = facts(*traces)
    numbers = sample(Transfer(*traces), trace_facts, file_sizes=(SIZE,), forward=LINK, return_=LINK)
    transfer = Transfer(*traces)
    return explain(transfer, trace_facts, numbers, SegmentRecord(forward=LINK, return_=LINK), tcp=True)


def _doubling(turn: int) -> int:
    return min(10 * MSS << turn, 1000 * MSS)


def test_a_window_that_doubles_until_the_path_is_full_has_no_diagnosis(tmp_path: Path) -> None:
    explanation = _made(tmp_path, _doubling)
    assert explanation.diagnoses == ()
    assert max(explanation.limits, key=lambda limit: explanation.limits[limit]) == Limit.CONGESTION_WINDOW.value


def test_a_small_receive_window_is_named(tmp_path: Path) -> None:
    explanation = _made(tmp_path, lambda turn: min(_doubling(turn), 128_000), receive_window=128_000)
    (diagnosis,) = explanation.diagnoses
    assert (diagnosis.code, diagnosis.section) == ("receive-window", "RFC 9293 §3.8.6")
    assert explanation.limits[Limit.RECEIVE_WINDOW.value] > 0.5


def test_a_window_that_stops_growing_is_named(tmp_path: Path) -> None:
    explanation = _made(tmp_path, lambda turn: min(_doubling(turn), 150 * MSS))
    assert [diagnosis.code for diagnosis in explanation.diagnoses] == ["slow-start-left-early"]


def test_a_window_that_stays_for_ten_round_trips_without_a_loss_is_a_full_send_buffer(tmp_path: Path) -> None:
    explanation = _made(tmp_path, lambda turn: min(_doubling(turn), 90 * MSS))
    (diagnosis,) = explanation.diagnoses
    assert (diagnosis.code, diagnosis.section) == ("send-buffer", "RFC 9293 §3.9.1.2")
    assert "123 KiB in flight for" in diagnosis.sentence
    # Two more segments in each RTT are a congestion window.
    growing = _made(tmp_path, lambda turn: min(_doubling(turn), (90 + 2 * turn) * MSS))
    assert [diagnosis.code for diagnosis in growing.diagnoses] == ["slow-start-left-early"]


def test_a_window_that_never_grows_is_named(tmp_path: Path) -> None:
    explanation = _made(tmp_path, lambda _: 10 * MSS * 4)
    assert [diagnosis.code for diagnosis in explanation.diagnoses] == ["window-never-grew"]


@pytest.mark.parametrize("section", sorted({pattern.over_tcp for pattern in PATTERNS.values()} - {""}))
def test_no_section_is_about_quic(section: str) -> None:
    assert section.startswith("RFC ")
    assert not section.startswith(("RFC 9000", "RFC 9001", "RFC 9002"))


@pytest.mark.parametrize(
    ("recording", "codes", "low"),
    [
        ("probe-rtt", {"fade", "standing-queue"}, (12.4, 13.8)),  # `ietf-step`
        ("probe-rtt-after-loss", {"queue-overflow", "retransmitted-tail"}, (11.7, 13.5)),  # `ietf-small`
    ],
)
def test_a_kernel_that_probes_the_rtt_is_limited_by_its_window_and_has_no_diagnosis_for_it(
    recording: str, codes: set[str], low: tuple[float, float]
) -> None:
    """nginx over Linux's BBR, whose window shrinks to four packets for some time: jobs in virtual time."""
    explanation = _recorded(recording)
    assert {diagnosis.code for diagnosis in explanation.diagnoses} == codes
    assert any(
        span.limit is Limit.CONGESTION_WINDOW and span.start < low[0] and span.end > low[1]
        for span in explanation.spans
    )


@pytest.mark.parametrize(
    "recording",
    [
        pytest.param("send-buffer", id="ietf-large, whose return link loses ACKs"),
        pytest.param("send-buffer-near-the-path", id="ietf-medium, 90 % of the BDP in flight, 63 % sent in each RTT"),
    ],
)
def test_a_send_buffer_that_is_full_is_named(recording: str) -> None:
    """45 MB from nginx over Linux's CUBIC, with 4 MiB of `tcp_wmem`: jobs in virtual time."""
    assert [diagnosis.code for diagnosis in _recorded(recording).diagnoses] == ["send-buffer"]


def _recorded(recording: str) -> Explanation:
    artifacts = Artifacts(RECORDINGS / recording)
    record = TypeAdapter(CaseRecord).validate_json((artifacts.folder / "record.json").read_bytes())
    traces = load_tables(artifacts.client_tables), load_tables(artifacts.server_tables)
    trace_facts = facts(*traces)
    numbers = sample(
        Transfer(*traces), trace_facts, file_sizes=record.file_sizes, forward=record.forward, return_=record.return_
    )
    truth = load_truth(artifacts.link_truth)
    return explain(Transfer(*traces), trace_facts, numbers, record.link.satellite, truth=truth, tcp=True)
