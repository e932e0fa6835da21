"""Logs that are compressed once a job is judged: every reader reads both forms, and no kill loses a log."""

import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from runner import files
from runner.files import compress_logs, log_files, open_log
from runner.tests.trace.test_qlog import FIRST, metrics, sequence
from runner.trace.measure import congestion_window

LOG = sequence(
    {"time": 1.0, "name": "transport:packet_sent", "data": {}},
    *(metrics(float(at), congestion_window=12000 + at) for at in range(1, 2000)),
)


def folder_with(path: Path, name: str = "a.sqlog") -> Path:
    path.mkdir(parents=True)
    (path / name).write_bytes(LOG)
    return path


def test_a_compressed_log_says_what_the_plain_one_said(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "qlog")
    before = congestion_window(folder, FIRST)
    compress_logs(folder)
    after = congestion_window(folder, FIRST)
    assert before is not None and after is not None
    assert before.size.tolist() == after.size.tolist()
    (file,) = log_files(folder)
    assert file.name == "a.sqlog.zst"
    assert file.stat().st_size < len(LOG) / 4


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the program zstd is not installed")
def test_other_programs_read_it(tmp_path: Path) -> None:
    """Zstandard's own program, which shares no code with the library that compressed."""
    folder = folder_with(tmp_path / "qlog")
    compress_logs(folder)
    printed = subprocess.run(["zstd", "-dc", str(folder / "a.sqlog.zst")], capture_output=True, check=True).stdout
    assert printed == LOG


def test_a_kill_between_two_files_loses_nothing(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "qlog")
    (folder / ".a.sqlog.zst.part").write_bytes(b"half of it")
    compress_logs(folder)
    compress_logs(folder)
    (file,) = log_files(folder)
    with open_log(file) as log:
        assert log.read() == LOG


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_damage_ends_a_log_and_nothing_else(tmp_path: Path, damage: str) -> None:
    folder = folder_with(tmp_path / "qlog")
    compress_logs(folder)
    (file,) = log_files(folder)
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[: len(whole) // 2], "noise": b"\x00" * 64, "empty": b""}[damage])
    with open_log(file) as log:
        assert LOG.startswith(log.read())
    congestion_window(folder, FIRST)


def test_a_small_file_can_not_unpack_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    file = tmp_path / "bomb.zst"
    file.write_bytes(pa.Codec("zstd").compress(bytes(1 << 24), asbytes=True))
    assert file.stat().st_size < 4096
    with open_log(file) as log:
        assert len(log.read()) == 1 << 20


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not a log")
    folder = folder_with(tmp_path / "qlog")
    (folder / "link.sqlog").symlink_to(secret)
    compress_logs(folder)
    assert secret.read_bytes() == b"not a log"
    assert [path.name for path in log_files(folder)] == ["a.sqlog.zst"]
