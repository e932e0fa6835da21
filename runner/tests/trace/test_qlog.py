"""The congestion window from qlogs of real servers, and from ones that were made odd."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from runner.decode.columns import SERVER
from runner.decode.tables import decode_capture
from runner.tests.decode.test_oracle_qlog import RECORDINGS
from runner.trace.measure import CongestionWindow, congestion_window

DOCUMENT = RECORDINGS.parents[1] / "trace" / "recordings" / "lossy"
FIRST = 1_795_000_000_000_000_000  # ns since 1970 when the server's first datagram passed the server's capture


def put(folder: Path, text: bytes, name: str = "a.sqlog") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(text)
    return folder


def sequence(*events: object, **trace: object) -> bytes:
    records = ({"qlog_format": "JSON-SEQ", "trace": trace}, *events)
    return b"".join(b"\x1e" + json.dumps(record).encode() + b"\n" for record in records)


def metrics(time: float, **data: object) -> dict[str, object]:
    return {"time": time, "name": "recovery:metrics_updated", "data": data}


def of(folder: Path, text: bytes) -> CongestionWindow:
    window = congestion_window(put(folder, text), FIRST)
    assert window is not None
    return window


# The first window of each stack, by its documentation: 32 and 10 packets of 1280 and 1200 B.
@pytest.mark.parametrize(
    ("name", "first"), [("quic-go_transfer", 40960), ("quinn_transfer", 12000), ("aioquic_transfer", 12000)]
)
def test_a_server_s_window_is_on_the_clock_of_its_capture(tmp_path: Path, name: str, first: int) -> None:
    (log,) = (RECORDINGS / name).glob("server.*.sqlog.gz")
    trace = decode_capture(RECORDINGS / name / "left.pcap", sorted((RECORDINGS / name).glob("*.keys.log")))
    times, sender = (trace.datagrams.column(column).to_numpy() for column in ("time_ns", "sender"))
    begin = int(times[sender == SERVER].min())
    window = congestion_window(put(tmp_path / "qlog", gzip.decompress(log.read_bytes())), begin)
    assert window is not None
    assert window.size[0] == first < window.size.max()
    assert abs(int(window.time_ns[0]) - begin) < 5_000_000
    assert window.time_ns[-1] <= times.max() + 40_000_000  # the capture was made at the client, 15 ms from the server
    assert np.all(np.diff(window.time_ns) >= 0)


def test_a_document_says_the_same_as_a_sequence(tmp_path: Path) -> None:
    text = gzip.decompress((DOCUMENT / "server.qlog.json.gz").read_bytes())
    (trace,) = json.loads(text)["traces"]
    sequence_window, again = of(tmp_path / "one", text), of(tmp_path / "two", sequence(*trace["events"]))
    assert sequence_window.size.tolist() == again.size.tolist()
    assert sequence_window.time_ns.tolist() == again.time_ns.tolist()
    assert len(sequence_window.size) > 4


def test_arrays_and_microseconds(tmp_path: Path) -> None:
    events = [[1000, "transport", "packet_sent", {}], [2500, "recovery", "metrics_updated", {"cwnd": 15360}]]
    trace = {"configuration": {"time_units": "us"}, "events": events}
    window = of(tmp_path, json.dumps({"qlog_version": "draft-00", "traces": [trace]}).encode())
    assert (window.time_ns.tolist(), window.size.tolist()) == ([FIRST + 1_500_000], [15360])


@pytest.mark.parametrize("begin", [0.0, 3.0, 1_795_000_002_700.5])
def test_the_first_packet_that_was_sent_is_the_first_datagram_whatever_the_clock(tmp_path: Path, begin: float) -> None:
    sent = {"time": begin + 1.0, "name": "quic:packet_sent", "data": {}}
    again = {"time": begin + 2.0, "name": "quic:packet_sent", "data": {}}
    numbers = (metrics(begin + 2.5, congestion_window=12000), metrics(begin + 9.5, congestion_window="24000"))
    window = of(tmp_path, sequence(sent, again, *numbers, common_fields={"reference_time": begin}))
    assert np.allclose(window.time_ns - FIRST, [1_500_000, 8_500_000], atol=1000)
    moments = np.array([FIRST, FIRST + 5_000_000, FIRST + 20_000_000])
    assert window.at(moments) == [None, 12000, 24000]


def test_the_largest_log_counts_and_links_don_t(tmp_path: Path) -> None:
    put(tmp_path, sequence(metrics(1.0, cwnd=1)), "a.sqlog")
    put(tmp_path, sequence(metrics(1.0, cwnd=2), metrics(2.0, cwnd=2), metrics(3.0, cwnd=2)), "b.sqlog")
    (tmp_path / "outside").mkdir()
    put(tmp_path / "outside", sequence(*(metrics(time, cwnd=3) for time in range(9))), "c.sqlog")
    (tmp_path / "outside/c.sqlog").rename(tmp_path.parent / "c.sqlog")
    (tmp_path / "c.sqlog").symlink_to(tmp_path.parent / "c.sqlog")
    window = congestion_window(tmp_path, FIRST)
    assert window is not None
    assert window.size.tolist() == [2]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x1e{",
        b"[]",
        b'{"traces": [3]}',
        b'{"traces": [{"events": 3}]}',
        sequence(),
        sequence(
            3,
            [1],
            None,
            {"time": "x"},
            metrics(1.0),
            metrics(1e300, cwnd=5),
            metrics(1.0, cwnd=-5),
            metrics(1.0, cwnd=1e300),
        ),
        sequence(metrics(1.0, cwnd=12000)).replace(b"12000", b"12000" * 400),
    ],
)
def test_what_tells_no_window_yields_none(tmp_path: Path, text: bytes) -> None:
    assert congestion_window(put(tmp_path, text), FIRST) is None
    assert congestion_window(tmp_path / "missing", FIRST) is None
