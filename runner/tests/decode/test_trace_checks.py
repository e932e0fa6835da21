"""Invariants hold on sound traces and break on unsound ones; the tables survive the disk."""

import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from runner.decode.columns import SERVER, Trace, TraceCheck
from runner.decode.tables import (
    TABLES,
    cached_decode,
    decode_capture,
    final_sizes,
    job_checks,
    load_tables,
    save_tables,
    unique_bytes_by_stream,
)
from runner.errors import CaptureError
from runner.tests.decode.rewrite import read, write_pcap
from runner.tests.decode.test_oracle_tshark import SHARED, key_logs

STACKS = ("quic-go", "quinn", "aioquic")
SIZE = 100 * 1024


def job(name: str) -> tuple[Trace, Trace]:
    folder = SHARED / name / "1" / "sim"
    left, right = folder / "left.pcap", folder / "right.pcap"
    return decode_capture(left, key_logs(left), kernel_drops=0), decode_capture(right, key_logs(right), kernel_drops=0)


def broken(checks: list[TraceCheck]) -> dict[str, int | None]:
    return {each.name: each.actual for each in checks if not each.holds}


@pytest.mark.parametrize("stack", STACKS)
def test_a_sound_job_with_losses(stack: str) -> None:
    client_side, server_side = job(f"{stack}_{stack}/lossy")
    assert broken(client_side.checks) == broken(server_side.checks) == {}
    assert broken(job_checks(client_side, server_side, [SIZE])) == {}
    lost = server_side.packets.num_rows - client_side.packets.num_rows
    assert lost > 0, "the recording has no loss"


def test_several_files_and_http3() -> None:
    client_side, server_side = job("quinn_quinn/transfer")
    assert broken(job_checks(client_side, server_side, [50 * 1024, 20 * 1024, 30 * 1024])) == {}
    client_side, server_side = job("quic-go_quinn/http3")
    assert broken(job_checks(client_side, server_side, None)) == {}


def test_wrong_sizes_break() -> None:
    client_side, server_side = job("quic-go_quic-go/lossy")
    names = broken(job_checks(client_side, server_side, [SIZE + 1]))
    assert names == {"stream_bytes": SIZE, "fin_offsets": 0}
    names = broken(job_checks(client_side, server_side, [SIZE // 2, SIZE // 2]))
    assert names == {"fin_offsets": 0}


def test_swapped_vantage_points_break() -> None:
    """Packets that the link lost then look like packets that were never sent."""
    client_side, server_side = job("quic-go_quic-go/lossy")
    names = broken(job_checks(server_side, client_side, None))
    assert names.keys() == {"arrived_at_client_never_sent", "arrived_at_server_never_sent"}
    assert all(names.values())


def test_kernel_drops_are_unknown_unless_said() -> None:
    left = SHARED / "quic-go_quic-go" / "handshake" / "1" / "sim" / "left.pcap"
    assert decode_capture(left, key_logs(left)).checks[-1] == TraceCheck("kernel_drops", None, 0, None)
    trace = decode_capture(left, key_logs(left), kernel_drops=2)
    assert trace.checks[-1] == TraceCheck("kernel_drops", False, 0, 2)


def test_unique_bytes_are_counted_once() -> None:
    client_side, server_side = job("quinn_quinn/lossy")
    for trace in (client_side, server_side):
        frames = trace.stream_frames.filter(pc.equal(trace.stream_frames["sender"], SERVER))
        counted: set[tuple[int, int]] = set()
        for stream, offset, length in zip(
            *(frames[name].to_pylist() for name in ("stream_id", "offset", "length")), strict=True
        ):
            counted.update((stream, byte) for byte in range(offset, offset + length))
        assert sum(unique_bytes_by_stream(frames).values()) == len(counted) == SIZE
    sent = server_side.stream_frames.filter(pc.equal(server_side.stream_frames["sender"], SERVER))
    assert pc.sum(sent["length"]).as_py() > SIZE, "nothing was retransmitted"
    assert final_sizes(server_side, SERVER) == [SIZE]


def test_tables_survive_the_disk(tmp_path: Path) -> None:
    trace, _ = job("quic-go_quinn/zerortt")
    save_tables(trace, tmp_path)
    loaded = load_tables(tmp_path)
    for name in TABLES:
        assert getattr(loaded, name).equals(getattr(trace, name))
        assert getattr(loaded, name).schema.equals(TABLES[name])
    assert (loaded.meta, loaded.checks) == (trace.meta, trace.checks)
    stored = pq.read_metadata(tmp_path / "datagrams.parquet").row_group(0)
    assert "DELTA_BINARY_PACKED" in stored.column(TABLES["datagrams"].get_field_index("time_ns")).encodings


def test_cache_is_used_and_replaced(tmp_path: Path) -> None:
    left = SHARED / "quic-go_quic-go" / "handshake" / "1" / "sim" / "left.pcap"
    capture, folder = write_pcap(tmp_path / "left.pcap", read(left)), tmp_path / "tables"
    first = cached_decode(capture, key_logs(left), folder)
    written = (folder / "datagrams.parquet").stat().st_mtime_ns
    time.sleep(0.01)
    assert cached_decode(capture, key_logs(left), folder).packets.equals(first.packets)
    assert (folder / "datagrams.parquet").stat().st_mtime_ns == written

    without_keys = cached_decode(capture, [], folder)
    assert not pc.all(without_keys.packets["decrypted"]).as_py()
    assert (folder / "datagrams.parquet").stat().st_mtime_ns > written

    write_pcap(capture, read(left)[:5])
    assert cached_decode(capture, key_logs(left), folder).datagrams.num_rows == 5

    (folder / "frames.parquet").write_bytes(b"PAR1 damaged")
    assert cached_decode(capture, key_logs(left), folder).datagrams.num_rows == 5
    assert load_tables(folder).datagrams.num_rows == 5


def test_tables_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="decode the capture again"):
        load_tables(tmp_path)
    with pytest.raises(CaptureError, match="can't be read"):
        cached_decode(tmp_path / "missing.pcap", [], tmp_path)
