"""Captures with secrets inside: tshark needs no key log, packets stay what they were, damage stays seen."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from runner.decode.capture import Record, embed_secrets, open_capture
from runner.decode.tables import decode_capture
from runner.model.result import Artifacts
from runner.tests.records import RECORDINGS

JOB = RECORDINGS / "quinn_quinn" / "transfer" / "1"
KEYS = (JOB / "client/keys.log", JOB / "server/keys.log")


def capture(tmp_path: Path, side: str = "left") -> Path:
    return Path(shutil.copy(JOB / "sim" / f"{side}.pcap", tmp_path))


def frames_with_data(path: Path, *options: str) -> list[str]:
    """The numbers of records in which tshark reads STREAM data."""
    assert shutil.which("tshark"), "tshark is missing: apt-get install tshark"
    command = ["tshark", "-r", str(path), *options, "-Y", "quic.stream_data", "-T", "fields", "-e", "frame.number"]
    # Preferences of whoever runs this must not help: an empty home has no key log.
    home = {"HOME": str(path.parent), "XDG_CONFIG_HOME": str(path.parent), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=home, timeout=120).stdout.split()


def records(path: Path) -> list[tuple[int, int, bytes, int]]:
    file, _ = open_capture(path)

    def content(record: Record) -> tuple[int, int, bytes, int]:
        time, link_type, start, end, length = record
        return time, link_type, file.data[start:end], length

    contents = [content(record) for record in file.records()]
    assert not file.truncated
    return contents


@pytest.mark.parametrize("side", ["left", "right"])
def test_tshark_decrypts_it_without_a_key_log(tmp_path: Path, side: str) -> None:
    plain = capture(tmp_path, side)
    assert frames_with_data(plain) == []
    text = frames_with_data(plain, "-o", f"tls.keylog_file:{KEYS[0]}")
    before = records(plain)
    made = embed_secrets(plain, KEYS)
    assert (made.name, plain.exists()) == (f"{side}.pcapng", False)
    assert frames_with_data(made) == text != []
    assert records(made) == before
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


def test_a_block_that_ends_with_another_length_is_read_and_told(tmp_path: Path) -> None:
    made = embed_secrets(capture(tmp_path), KEYS)
    file, _ = open_capture(made)
    before = list(file.records())
    assert file.left_out == []
    data = bytearray(made.read_bytes())
    data[-4:] = bytes(4)  # the last block's second length
    made.write_bytes(data)
    file, _ = open_capture(made)
    assert (list(file.records()), file.end) == (before, "")
    assert [sentence.partition(":")[0] for sentence in file.left_out] == [
        "1 block read with another length at the end than at the beginning"
    ]


def test_secrets_of_client_and_server_are_there_once(tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_bytes(KEYS[1].read_bytes() + b"# a comment\nCLIENT_RANDOM 00 11\n\xff\xfe\n")
    file, _ = open_capture(embed_secrets(capture(tmp_path), (KEYS[0], other)))
    assert list(file.records())
    (embedded,) = file.secrets
    lines = embedded.splitlines()
    assert sorted(lines) == sorted({line for path in KEYS for line in path.read_bytes().splitlines()})


def test_our_decoder_reads_the_same_from_it(tmp_path: Path) -> None:
    plain = capture(tmp_path)
    before = decode_capture(plain, KEYS)
    after = decode_capture(embed_secrets(plain, KEYS))
    assert after.stream_frames == before.stream_frames
    assert after.frames == before.frames


@pytest.mark.parametrize("order", ["<", ">"])
def test_microseconds_and_both_byte_orders_are_kept(tmp_path: Path, order: str) -> None:
    path = tmp_path / "left.pcap"
    packets = [(2**32 - 1, 999_999, b"x" * size, size + 5) for size in range(6)]
    header = struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 2048, 113)
    path.write_bytes(
        header + b"".join(struct.pack(order + "IIII", at, us, len(data), size) + data for at, us, data, size in packets)
    )
    made = embed_secrets(path, KEYS)
    assert made.suffix == ".pcapng"
    assert records(made) == [(at * 10**9 + us * 1000, 113, data, size) for at, us, data, size in packets]


@pytest.mark.parametrize("keep", [0, 10, 24 + 8, 24 + 16 + 8, -1])
def test_a_damaged_capture_stays_what_it_is(tmp_path: Path, keep: int) -> None:
    plain = capture(tmp_path)
    plain.write_bytes(content := plain.read_bytes()[:keep])
    assert embed_secrets(plain, KEYS) == plain
    assert plain.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["left.pcap"]


def test_without_secrets_or_without_a_capture_nothing_is_written(tmp_path: Path) -> None:
    plain = capture(tmp_path)
    (tmp_path / "keys.log").write_text("nothing\n")
    assert embed_secrets(plain, (tmp_path / "keys.log",)) == plain
    assert embed_secrets(tmp_path / "none.pcap", KEYS) == tmp_path / "none.pcap"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.log", "left.pcap"]


def test_a_job_s_captures_are_those_with_secrets_where_there_are_any(tmp_path: Path) -> None:
    artifacts = Artifacts(tmp_path)
    (tmp_path / "sim").mkdir()
    shutil.copy(JOB / "sim/left.pcap", artifacts.client_capture)
    assert artifacts.client_capture.name == "left.pcap"
    embed_secrets(artifacts.client_capture, KEYS)
    assert (artifacts.client_capture.name, artifacts.server_capture.name) == ("left.pcapng", "right.pcap")
