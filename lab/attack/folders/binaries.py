"""Mutates tables, captures, key logs and logs of a job by their structure, and makes decompression bombs."""

import gzip
import io
import json
import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.attack.folders.documents import NAMES, mutated, mutated_text
from lab.mutate.frames import unknown
from lab.mutate.recording import Recording
from runner.decode.wire import FRAME_NAMES

_BOMB = 200 << 20  # bytes of an unpacked log
_EXTREMES = (0, 1, 2, 0x3F, 0x40, 0x7F, 0x80, 0xFF, 0x3FFF, 0x7FFF, 0xFFFF, 2**30 - 1, 2**31 - 1, 2**32 - 1)
_HUGE = (2**62 - 1, 2**63 - 1, 2**64 - 1, 2**62 - 2**14, 2**53)


def number(rng: Random) -> int:
    """An integer that is likely to be at the edge of a range."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(_EXTREMES)
    if kind == 1:
        return rng.choice(_HUGE)
    return rng.randrange(1 << rng.choice((4, 8, 16, 32, 62)))


def changed_bytes(rng: Random, data: bytes, *, most: int = 12) -> bytes:
    """`data` with up to `most` places changed, removed, repeated, inserted or swapped. Sometimes the end is cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 16, rng.randrange(1, 400)))
        kind = rng.randrange(8)
        if kind == 0:
            changed[at : at + 1] = bytes((rng.randrange(256),))
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            width = rng.choice((1, 2, 4, 8))
            value = number(rng) & ((1 << 8 * width) - 1)
            changed[at : at + width] = value.to_bytes(width, rng.choice(("big", "little")))
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at:at] = changed[at : at + size]
        elif kind == 5:
            changed[at:at] = rng.randbytes(size)
        elif kind == 6:
            other = rng.randrange(len(changed) + 1)
            changed[at : at + size] = changed[other : other + size]
        elif rng.randrange(4) == 0:
            del changed[at:]
    return bytes(changed)


def varint(rng: Random, value: int) -> bytes:
    """`value` as a variable-length integer, not always in the shortest form (RFC 9000 §16)."""
    value &= (1 << 62) - 1
    shortest = next(bits for bits in (6, 14, 30, 62) if value < 1 << bits)
    bits = rng.choice([bits for bits in (6, 14, 30, 62) if bits >= shortest])
    prefix = (6, 14, 30, 62).index(bits)
    return (prefix << bits | value).to_bytes((bits + 2) // 8)


def frames(rng: Random) -> bytes:
    """A few frames, some of them incomplete. Most of them have types that exist."""
    made = b""
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(tuple(FRAME_NAMES)) if rng.randrange(10) else number(rng)
        made += varint(rng, kind)
        for _ in range(rng.randint(0, 7)):
            made += varint(rng, rng.choice((0, 1, 4, 8, rng.randrange(64), number(rng))))
        made += rng.randbytes(rng.choice((0, 0, 8, 16, 24)))
    return made


def payload(rng: Random, plain: bytes) -> bytes:
    """Another payload of the same length for a packet: its own payload with changes, new frames before it, or only new
    frames."""
    kind = rng.randrange(4)
    if kind < 2:
        changed = changed_bytes(rng, plain, most=6)
    elif kind == 2:
        changed = frames(rng) + plain
    else:
        changed = frames(rng)
    return changed[: len(plain)].ljust(len(plain), b"\0")


def table(rng: Random, data: bytes) -> bytes:
    """A Parquet file with other values, types, columns, metadata or lengths, or with other bytes."""
    kind = rng.randrange(8)
    if kind == 0:
        return changed_bytes(rng, data)
    if kind == 1:  # change bytes of the footer, which has the positions of all parts
        at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        return data[:at] + changed_bytes(rng, data[at:], most=4)
    read = pq.read_table(io.BytesIO(data))
    changed = read
    for _ in range(rng.randint(1, 3)):
        changed = _changed(rng, changed, kind)
    metadata = dict(read.schema.metadata or {})
    if kind == 7 and metadata:
        key = rng.choice(sorted(metadata))
        text = metadata[key]
        metadata[key] = mutated(rng, text, "") if text.startswith(b"{") else mutated_text(rng, text or b"1")
    file = io.BytesIO()
    changed = changed.replace_schema_metadata(metadata)
    pq.write_table(changed, file, compression=rng.choice(("zstd", "none", "gzip")))
    return file.getvalue()


def _changed(rng: Random, read: pa.Table, kind: int) -> pa.Table:
    if not read.num_columns:
        return read
    at = rng.randrange(read.num_columns)
    name, column = read.column_names[at], read.column(at)
    if kind == 2 and read.num_rows:  # a small file with a table that is too long for any memory
        return pa.concat_tables([read] * (rng.choice((1_000, 200_000)) // read.num_rows + 1))
    if kind == 3:
        return read.drop_columns([name])
    if kind == 4:
        return read.set_column(at, name, pa.nulls(read.num_rows, rng.choice((column.type, pa.string(), pa.int64()))))
    if kind == 5:
        kinds = (pa.string(), pa.int64(), pa.float64(), pa.binary())
        try:
            return read.set_column(at, name, column.cast(rng.choice(kinds)))
        except pa.ArrowException:
            return read.append_column(rng.choice(NAMES[5:8]), column)
    return read.set_column(at, name, _values(rng, column))


def _values(rng: Random, column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column with numbers at the edges of their range, or in another order."""
    if not len(column):
        return column
    if pa.types.is_integer(column.type):
        bounds = np.iinfo(column.type.to_pandas_dtype())
        made = column.to_pylist()
        for _ in range(rng.randint(1, 5)):
            edge = rng.choice((bounds.min, bounds.max, 0, 1, number(rng)))
            made[rng.randrange(len(made))] = max(bounds.min, min(int(edge), bounds.max))
        return pa.array(made, column.type)
    order = list(range(len(column)))
    rng.shuffle(order)
    return column.take(pa.array(order))


def capture(rng: Random, data: bytes) -> bytes:
    """A pcap or pcapng file with records in another order, doubled, or with other times and lengths; or with other
    bytes."""
    kind = rng.randrange(6)
    if kind == 0:
        return changed_bytes(rng, data, most=40)
    if kind == 1:
        return data[: rng.randrange(len(data) + 1)]
    if kind == 2:  # change lengths, in either format
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(max(1, len(changed) - 4)) & ~3
            struct.pack_into("<I", changed, at, number(rng) & 0xFFFFFFFF)
        return bytes(changed)
    if kind == 3:
        head = 24 if data[:4] != b"\n\r\r\n" else 28
        return data + data[head:] * rng.choice((1, 3))
    if kind == 4:
        return gzip.compress(data)
    return rng.choice((b"", data[:24], b"\n\r\r\n", b"\xd4\xc3\xb2\xa1", data[:4] + bytes(60), b"0" * 100))


def seal_again(rng: Random, job: Path) -> None:
    """Give packets of a job other frames, as an endpoint could send them. Both captures get the same change. Raises
    ValueError when an earlier change has broken the job."""
    files = [job / name for name in ("sim/left.pcap", "sim/right.pcap", "evidence.json")]
    files += [path for path in (job / "client" / "keys.log", job / "server" / "keys.log") if path.exists()]
    if not all(path.is_file() and not path.is_symlink() and path.stat().st_size < _BOMB for path in files):
        raise ValueError(f"{job} has no captures")
    try:
        recording = Recording.load(job)
    except (LookupError, TypeError, AttributeError, struct.error) as error:
        raise ValueError from error
    opened = [packet for _, packet in recording.packets() if packet.opened and packet.payload]
    for packet in rng.sample(opened, min(len(opened), rng.choice((1, 1, 2, 3, 8)))):
        packet.frames, packet.changed = [unknown(payload(rng, packet.payload))], True
    for path in files[:2]:
        path.unlink()  # it may be read-only
    recording.write_captures(job)


def key_log(rng: Random, data: bytes) -> bytes:
    """A key log with lines that are changed, swapped, invented, or very long."""
    lines = data.splitlines(keepends=True)
    kind = rng.randrange(5)
    if kind == 0:
        return changed_bytes(rng, data)
    if kind == 1:
        rng.shuffle(lines)
        return b"".join(lines[: rng.randrange(len(lines) + 1)])
    if kind == 2:
        return data + b"".join(
            b"CLIENT_TRAFFIC_SECRET_0 %s %s\n" % (rng.randbytes(32).hex().encode(), rng.randbytes(48).hex().encode())
            for _ in range(rng.choice((10, 3000)))
        )
    if kind == 3:
        return data.replace(b" ", rng.choice((b"", b"\t", b"  " * 100, b"\x00")))
    return data + b"A" * rng.choice((10, 3_000_000))


def log(rng: Random, path: Path, data: bytes) -> bytes:
    """A log or qlog, plain or compressed, with other lines, numbers or bytes, or a decompression bomb."""
    packer = {".gz": _gzip, ".zst": _zstandard}.get(path.suffix)
    if packer is not None:
        kind = rng.randrange(4)
        if kind == 0:
            return changed_bytes(rng, data)
        if kind == 1:
            return data[: rng.randrange(len(data) + 1)]
        if kind == 2 and rng.randrange(8) == 0:
            return packer(rng.choice((b" ", b"\n", b'{"a":', b"[")) * (_BOMB // 6))
        text = gzip.decompress(data) if path.suffix == ".gz" else pa.input_stream(pa.py_buffer(data), "zstd").read()
        return packer(_text(rng, text))
    return _text(rng, data)


def _text(rng: Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    kind = rng.randrange(7)
    if kind == 0:
        return changed_bytes(rng, data)
    if kind == 1:
        return mutated_text(rng, data or b"{}") if data.isascii() else data
    if kind == 2:
        return data + b"".join(rng.choice(NAMES).encode("utf-8", "surrogatepass") + b"\n" for _ in range(20))
    if kind == 3:
        words = (b"cca", b"iw", b"ack")
        values = (b"9" * 5000, b"-1", b"cubic", b"\xff\xfe", b"<b>", b"1e9")
        return b"applied: " + b" ".join(b"%s=%s" % (word, rng.choice(values)) for word in words) + b"\n" + data
    if kind == 4:
        return b"\x1b[2J\x1b]52;c;cm0gLXJm\x07\x9b31m" * rng.choice((1, 1000)) + data
    at = rng.randrange(len(lines))
    line = lines[at].lstrip(b"\x1e")
    try:
        json.loads(line)
    except ValueError:
        return b"".join(lines[:at]) + b"x" * rng.choice((100, 5_000_000)) + b"".join(lines[at:])
    lines[at] = b"\x1e" + mutated(rng, line, "").replace(b"\n", b"") + b"\n"
    return b"".join(lines)


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return packer.compress(data) + packer.flush()


def _zstandard(data: bytes) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, "zstd") as packed:
        packed.write(data)
    return bytes(target.getvalue().to_pybytes())
