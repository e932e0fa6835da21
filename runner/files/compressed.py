"""Logs of endpoints on disk: plain while a job runs, compressed with Zstandard (RFC 8878) after the job was judged.

A qlog shrinks to about 8 % of its size. Captures are not compressed: their content is encrypted and would shrink by
only 7 %, and Wireshark opens plain captures with a double click.
"""

import io
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

SUFFIX = ".zst"
_PART = ".part"
_CODEC = "zstd"
_BLOCK = 1 << 20  # bytes
MOST_BYTES = 1 << 30  # most bytes of a decompressed log: a few hostile kilobytes could unpack to terabytes


class _Bounded(io.RawIOBase):
    """The decompressed content of a file, at most `MOST_BYTES`. A damaged file ends where the damage begins."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path))
        self._stream = pa.CompressedInputStream(self._file, _CODEC)
        self._left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer as far as there is data. Returns the number of bytes, 0 at the end."""
        try:
            data = self._stream.read(min(len(buffer), self._left))
        except (OSError, ValueError):
            self._left = 0
            return 0
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the compressed file, too."""
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()


def open_log(path: Path) -> BinaryIO:
    """Open a log for sequential reading, compressed or not. Raises OSError when the file can't be opened."""
    return io.BufferedReader(_Bounded(path)) if path.suffix == SUFFIX else path.open("rb")


def log_files(folder: Path) -> list[Path]:
    """The regular files below a folder of logs, sorted; symbolic links are left out."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def compress_logs(folder: Path) -> None:
    """Compress every file below `folder` and remove the plain file. A kill at any moment loses nothing."""
    for path in log_files(folder):
        if path.suffix == _PART:
            path.unlink()  # an earlier call was killed; the plain file is still there
        if path.suffix in (SUFFIX, _PART):
            continue
        target, part = path.with_name(path.name + SUFFIX), path.with_name(f".{path.name}{SUFFIX}{_PART}")
        with (
            path.open("rb") as source,
            pa.OSFile(str(part), "wb") as file,
            pa.CompressedOutputStream(file, _CODEC) as out,
        ):
            while block := source.read(_BLOCK):
                out.write(block)
        part.replace(target)
        path.unlink()
