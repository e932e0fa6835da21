"""Mutates the files of a run by their formats, and replaces files and folders by links, pipes, devices, odd names."""

import copy
import gzip
import io
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.mutate import wire
from lab.mutate.recording import Recording
from runner.decode.wire import FRAME_NAMES
from runner.store.runs import schemas

ALARM = "<script>alert('bentpipe')</script>"  # must not occur unescaped in any page
NAMES = (
    *(
        "..",
        "../../precious",
        "/srv/canary/precious",
        "a/b",
        "",
        ".hidden",
        "a\nb",
        "x" * 300,
        "\x1b[31m",
        "a\\b",
        "\x00",
    ),
    *("quinn", "alpha", "handshake", "goodput", "-rf", "--help", "con", "é" * 200, "\udc80", "\u202e", "%2e%2e%2f"),
    # Paths that lead to the folder of another run, or to the canaries, from a run, a pair or a case.
    *("../good", "../good/quinn", "../../good/quinn_quinn", "../../../../srv/canary/run/quinn"),
    *("../../../../../../srv/canary/precious", "[bold]", "[/]", "{{7*7}}", "a_b", "_", "__proto__"),
    *(ALARM, f'"><img src=x onerror={ALARM}', "'+alert(1)+'"),
)
NUMBERS = (
    *(0, 1, -1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30),
    *(0.0, -0.0, 0.5, -0.5, 1.0, 1e-300, 5e-324, 1e18, 1e300, -1e300, 1.7976931348623157e308, 1e-9, 253402300800.0),
)
_TEXTS = (*NAMES, "x" * 100_000, "\x1b]52;c;cm0gLXJm\x07", "RFC 9000 §99", "https://x/?a=1&b=<", "javascript:alert(1)")
_RAW = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400, b"1e9" * 2, b"nul", b'"\\ud800"', b"0x10", b"1" * 5000)


def value(rng: Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4, 5):
        return rng.choice(_TEXTS)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))]
    if kind == 7:
        return {str(rng.choice(NAMES)): value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))}
    repeated = value(rng, 3)
    return [repeated] * (rng.choice((100, 5000)) if len(str(repeated)) < 1000 else 20)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every place of the document: the list or dict, and the index or key."""
    documents, waiting = [], [document]
    while waiting:
        node = waiting.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            documents.append((node, key))
            waiting.append(node[key])
    return documents


def _change(rng: Random, document: Any) -> None:
    """Make one change at one place. Mostly it replaces a value by another value of the same type."""
    every = places(document)
    if not every:
        return
    node, key = rng.choice(every)
    before = node[key]
    kind = rng.randrange(10)
    if kind <= 3:
        node[key] = _of_the_same_type(rng, before)
    elif kind <= 5:
        node[key] = value(rng)
    elif kind == 6:
        other, place = rng.choice(every)
        node[key] = copy.deepcopy(other[place])
    elif kind == 7:
        del node[key]
    elif kind == 8 and isinstance(node, list):
        times = rng.choice((1, 2, 2000)) if len(str(before)) < 1000 else 3
        node[key:key] = [copy.deepcopy(before) for _ in range(times)]
    elif isinstance(node, dict):
        node[str(rng.choice(NAMES))] = copy.deepcopy(before)
    else:
        node[key] = None


def _of_the_same_type(rng: Random, before: Any) -> Any:
    if isinstance(before, bool):
        return not before
    if isinstance(before, int):
        return rng.choice([number for number in NUMBERS if isinstance(number, int)] + [before + 1, -before])
    if isinstance(before, float):
        return rng.choice(NUMBERS)
    if isinstance(before, str):
        return rng.choice((*_TEXTS, before + rng.choice(NAMES), before[:1], before.upper()))
    if isinstance(before, list):
        return rng.choice(([], before[::-1], before * 2, before[:1] * (1000 if len(str(before[:1])) < 1000 else 3)))
    if isinstance(before, dict):
        return rng.choice(({}, dict(reversed(before.items()))))
    return value(rng)


_schemas = cache(schemas)


def _grow(rng: Random, document: Any, name: str) -> None:
    """Set fields of the schema to values that the schema allows, including fields that the document lacks."""
    schema = _schemas().get(name)
    if schema is None or not isinstance(document, dict):
        _change(rng, document)
        return
    fields = list(_fields(document, schema, schema))
    for node, key, part in rng.sample(fields, min(len(fields), rng.choice((1, 1, 2, 4)))):
        node[key] = _allowed(rng, part, schema, 0)


def _fields(node: Any, part: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Each place of the document for which the schema has a rule."""
    for choice in _choices(part, schema):
        if isinstance(node, dict) and "properties" in choice:
            for key, below in choice["properties"].items():
                yield node, key, below
                yield from _fields(node.get(key), below, schema)
        elif isinstance(node, dict) and isinstance(choice.get("additionalProperties"), dict):
            for key in node:
                yield node, key, choice["additionalProperties"]
                yield from _fields(node[key], choice["additionalProperties"], schema)
        elif isinstance(node, list) and isinstance(choice.get("items"), dict):
            for index, entry in enumerate(node[:20]):
                yield node, index, choice["items"]
                yield from _fields(entry, choice["items"], schema)


def _choices(part: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a part of a schema, with references resolved."""
    if "$ref" in part:
        return _choices(schema["$defs"][part["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in part:
        return [choice for alternative in part["anyOf"] for choice in _choices(alternative, schema)]
    return [part]


def _allowed(rng: Random, part: dict[str, Any], schema: dict[str, Any], depth: int) -> Any:
    """A value that the schema allows, often at the edge of its range."""
    choices = _choices(part, schema)
    choice = rng.choice([choice for choice in choices if choice.get("type") != "null"] or choices)
    if depth and len(choices) > 1 and rng.randrange(3) == 0:
        choice = rng.choice(choices)
    if "enum" in choice:
        return rng.choice(choice["enum"])
    makers: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.choice([number for number in NUMBERS if isinstance(number, int)]),
        "number": lambda: rng.choice(NUMBERS),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
        "string": lambda: rng.choice(_TEXTS),
        "array": lambda: _array(rng, choice, schema, depth),
        "object": lambda: _object(rng, choice, schema, depth),
    }
    return makers.get(str(choice.get("type")), lambda: value(rng))()


def _array(rng: Random, choice: dict[str, Any], schema: dict[str, Any], depth: int) -> list[Any]:
    if "prefixItems" in choice:
        return [_allowed(rng, item, schema, depth + 1) for item in choice["prefixItems"]]
    below = choice.get("items") or {}
    return [_allowed(rng, below, schema, depth + 1) for _ in range(rng.choice((0, 1, 2, 5)) if depth < 6 else 0)]


def _object(rng: Random, choice: dict[str, Any], schema: dict[str, Any], depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, below in choice.get("properties", {}).items():
        if key in choice.get("required", ()) or rng.random() < (0.5 if depth < 4 else 0.1):
            made[key] = _allowed(rng, below, schema, depth + 1)
    others = choice.get("additionalProperties")
    if isinstance(others, dict):
        for _ in range(rng.choice((0, 1, 3))):
            made[str(rng.choice(NAMES))] = _allowed(rng, others, schema, depth + 1)
    return made


def mutated_text(rng: Random, text: bytes) -> bytes:
    """The document as changed text: cut off, with other bytes, with tokens that are not JSON, deeply nested, or
    replaced."""
    kind = rng.randrange(9)
    if kind == 0:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 1:
        depth = rng.choice((200, 3000, 100_000))
        return b'{"schema": 1, "a":' + b"[" * depth + b"]" * depth + b"}"
    if kind == 2:
        marked = (b"\xef\xbb\xbf" + text, text.decode().encode("utf-16"))  # byte order marks
        return rng.choice((b"", b"null", b"[]", b"{}", *marked, b"\x00" * 64))
    if kind == 3:
        return text + text
    if kind == 4:
        return text.replace(b"{", b'{"schema": 1, "schema": 7, ', 1)
    changed = bytearray(text)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(changed) + 1)
        if kind in (5, 6):
            while at < len(changed) and not chr(changed[at]).isdigit():
                at += 1
            end = at
            while end < len(changed) and chr(changed[end]) in "0123456789.eE+-":
                end += 1
            changed[at:end] = rng.choice(_RAW)
        else:
            changed[at : at + rng.choice((1, 1, 8))] = rng.randbytes(rng.choice((0, 1, 3)))
    return bytes(changed)


def mutated(rng: Random, text: bytes, name: str) -> bytes:
    """The JSON document `text` of the file `name`, with a few changes."""
    kind = rng.randrange(10)
    if kind == 0:
        return mutated_text(rng, text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return mutated_text(rng, text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if kind <= 5:
            _grow(rng, document, name)
        else:
            _change(rng, document)
    made = json.dumps(document, indent=1, sort_keys=kind % 2 == 0, allow_nan=True)
    return (made + "\n").encode("utf-8", "surrogatepass" if rng.randrange(4) == 0 else "replace")


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
    return wire.varint(value, rng.choice([size for size in (1, 2, 4, 8) if value < 1 << (8 * size - 2)]))


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
        packet.edit(frames=[wire.unknown(payload(rng, packet.payload))])
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
    return zlib.compress(data, 1, wbits=31)


def _zstandard(data: bytes) -> bytes:
    target = pa.BufferOutputStream()
    with pa.CompressedOutputStream(target, "zstd") as packed:
        packed.write(data)
    return bytes(target.getvalue().to_pybytes())


CANARY = Path("/srv/canary")  # a separate file system that no command should touch
_TARGETS = (
    *(f"{CANARY}/secret", f"{CANARY}/precious", f"{CANARY}/run/quinn_quinn/handshake/1", "/etc/shadow", "/etc", "/"),
    *("/proc/self/environ", "/proc/1/maps", "/dev/zero", "/dev/random", "/dev/stdin", ".", "..", "loop", "missing"),
    *("../../../../../../../srv/canary/secret", "../../../good/run.json", "../../../good/quinn_quinn"),
)
_DEVICES = ((1, 5), (1, 7), (1, 8), (1, 3), (5, 0))  # zero, full, random, null, tty (Linux: devices.txt)
_LARGEST = 64 << 20  # bytes; larger files, which an earlier change made, are not changed again
_ODD_NAMES = (
    *(b"\xff\xfe\x80", b"a\nb", b"\x1b[31m", b"x" * 255, b" ", b"%2e%2e%2f", b"-rf", b"<b>&\"'", b"\xe2\x80\xaeexe"),
)


def mutate(rng: Random, folder: Path) -> list[str]:
    """Make a few changes to the run in `folder`. Returns a line for each change, with its kind and its place."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.is_symlink() and path.lstat().st_size < _LARGEST
        ]
        if not files:
            break
        path = _chosen(rng, files)
        kind = rng.choices(("content", "entry", "tree"), (80, 14, 6))[0]
        change: Callable[[Random, Path, Path], str]
        change = {"content": _content, "entry": _entry, "tree": _tree}[kind]
        with suppress(OSError, ValueError, EOFError, zlib.error):  # an earlier change may have broken the file
            done.append(f"{change(rng, path, folder)}: {path.relative_to(folder)}")
    return done


def _chosen(rng: Random, files: list[Path]) -> Path:
    """Choose a file. The documents that every command reads are chosen more often than other files."""
    documents_ = [path for path in files if path.name in ("run.json", "result.json", "evidence.json", "series.json")]
    return rng.choice(documents_ if documents_ and rng.random() < 0.65 else files)


def _content(rng: Random, path: Path, folder: Path) -> str:  # noqa: ARG001 - all changes have the same parameters
    data = path.read_bytes()
    if path.suffix == ".pcap" and rng.randrange(3) == 0:
        seal_again(rng, path.parents[1])
        return "frames"
    if path.suffix == ".json":
        kind, made = "document", mutated(rng, data, path.name)
    elif path.suffix == ".parquet":
        kind, made = "table", table(rng, data)
    elif path.suffix in (".pcap", ".pcapng"):
        kind, made = "capture", capture(rng, data)
    elif path.name == "keys.log":
        kind, made = "key log", key_log(rng, data)
    else:
        kind, made = "log", log(rng, path, data)
    path.unlink()  # the file may be read-only
    path.write_bytes(made)
    return kind


def _entry(rng: Random, path: Path, folder: Path) -> str:
    """Replace a file or its folder by an object of another kind."""
    if rng.randrange(4) == 0 and path.parent != folder:
        path = path.parent
    away = path.with_name(f"{path.name}.away")
    path.rename(away)
    if rng.randrange(3):
        shutil.rmtree(away) if away.is_dir() else away.unlink()
    kind = rng.randrange(9)
    if kind <= 3:
        path.symlink_to(rng.choice(_TARGETS))
        return "symbolic link"
    if kind == 4:
        os.mkfifo(path)
        return "pipe"
    if kind == 5:
        mode = rng.choice((stat.S_IFCHR, stat.S_IFBLK if rng.randrange(4) == 0 else stat.S_IFCHR)) | 0o666
        os.mknod(path, mode, os.makedev(*rng.choice(_DEVICES)))
        return "device"
    if kind == 6:
        path.mkdir()
        (path / "inside").write_bytes(b"{}")
        return "folder"
    if kind == 7:
        with path.open("wb") as file:
            file.truncate(rng.choice((10 << 20, 1 << 30, 1 << 40)))
        return "sparse file"
    _bind_socket(path)
    return "socket"


def _plant_pages(rng: Random, folder: Path) -> None:
    """Files that a browser would run, with names that a site may contain."""
    for name in rng.sample(("evil.html", "evil.svg", "evil.js", "evil.xhtml", "index.html", "series.js", "a.qlog"), 3):
        (folder / name).write_text(f"<html><body>{ALARM}</body></html>\n")


def _copy(source: Path, target: Path) -> None:
    """Copy a folder exactly: pipes are copied as pipes, and sparse files stay sparse."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=False, capture_output=True)


def _bind_socket(path: Path) -> None:
    """Make a socket at `path`, from within its folder, because the whole path may be too long for a socket's
    address."""
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _tree(rng: Random, path: Path, folder: Path) -> str:
    """Make many files and folders, with odd names, large numbers or great depth."""
    kind = rng.randrange(8)
    above = os.fsencode(path.parent)
    if kind == 0:
        Path(os.fsdecode(above + b"/" + rng.choice(_ODD_NAMES))).write_bytes(path.read_bytes())
        return "odd name"
    if kind == 1:
        job = next((above for above in path.parents if above.parent.parent.parent == folder), None)
        if job is not None:
            place = job.parent / rng.choice(("0", "-1", "01", "99999999999999999999", "x", "²"))
            _copy(job, place)
        return "another iteration"
    if kind == 2:
        odd = Path(os.fsdecode(os.fsencode(folder) + b"/" + rng.choice(_ODD_NAMES) + b"_b"))
        _copy(folder / path.relative_to(folder).parts[0], odd) if path.parent != folder else odd.mkdir()
        return "odd pair"
    if kind == 3:
        deep = path.parent
        for _ in range(rng.choice((14, 300))):
            deep = deep / "d"
        with suppress(OSError):
            deep.mkdir(parents=True)
        return "depth"
    if kind == 4:
        for index in range(rng.choice((300, 3000))):
            (path.parent / f"f{index}.qlog").touch()
        _plant_pages(rng, path.parent)
        return "many files"
    if kind == 5:
        path.unlink()
        return "missing file"
    if kind == 6:
        path.chmod(0)
        return "no rights"
    path.write_bytes(b"")
    return "empty file"
