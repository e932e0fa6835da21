"""The tables of a trace on disk, each in a Parquet file. A hash of the captures with their names, the key logs, the
kernel's drops and the decoder's version is the key of the tables."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa

from runner.decode.columns import integers
from runner.decode.decode import decode_capture
from runner.decode.file_bytes import file_bytes, sha256
from runner.decode.keylog import LARGEST_KEY_LOG
from runner.decode.schema import (
    DECODER_VERSION,
    PACKET_TYPES,
    READABLE_VERSIONS,
    SPACES,
    TABLES,
    CaptureMeta,
    Trace,
    TraceCheck,
)
from runner.errors import CaptureError
from runner.files.safe_files import read_head

_META = b"bentpipe.trace"
_KEY = b"bentpipe.key"
_MOST_ROWS = 1 << 24
# Columns that are never null.
_NEVER_NULL = frozenset(
    {"time_ns", "sender", "src", "dst", "src_port", "dst_port", "payload_length", "ip_length", "ecn", "ip_version"}
    | {"index", "type", "length", "decrypted", "frame", "stream_id", "offset", "fin", "space", "largest", "delay_us"}
    | {"ranges", "name", "retry", "early_data_offered", "client_hello_count", "certificate", "first_time_ns"}
    | {"client_ip", "client_port", "server_ip", "server_port", "datagram", "packet", "connection"}
)
_MAY_BE_NULL = {"frames": frozenset({"stream_id", "offset", "length"})}  # null in frame types without these fields
# This table is written last: a folder that contains it is complete.
_LAST = "datagrams"


def save_tables(trace: Trace, folder: Path, *, key: str = "") -> None:
    """Write folder/<table>.parquet (zstd) for every table; a reader never sees a half-written file."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import, and `decode` needs no cache

    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"meta": asdict(trace.meta), "invariants": [asdict(each) for each in trace.checks]})
    for name in sorted(TABLES, key=lambda each: each == _LAST):
        table: pa.Table = getattr(trace, name)
        temporary = folder / f"{name}.parquet.partial"
        metadata = {_META: text.encode(), _KEY: key.encode()}
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")
        temporary.rename(folder / f"{name}.parquet")


def load_tables(folder: Path) -> Trace:
    """The trace that `save_tables` wrote. Raises CaptureError when the trace is missing, or was written by a decoder
    version that can't be read, or contains values that no decoder writes (a run folder is untrusted input)."""
    try:
        tables = {name: _read(folder / f"{name}.parquet") for name in TABLES}
        stored = json.loads(tables[_LAST].schema.metadata[_META])
        meta = CaptureMeta(**stored["meta"])
        checks = [TraceCheck(**each) for each in stored["invariants"]]
        tables = {name: _completed(table, TABLES[name]) for name, table in tables.items()}
        _check(tables)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{folder} has no tables of this version: decode the capture again.") from error
    if meta.decoder_version not in READABLE_VERSIONS:
        raise CaptureError(f"{folder} was written by decoder version {meta.decoder_version}: decode the capture again.")
    return Trace(**tables, meta=meta, checks=checks)


def _read(path: Path) -> pa.Table:
    """The table in a file. Raises ValueError when it has more rows than any capture: a file of a few kilobytes can
    expand to gigabytes."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    with pq.ParquetFile(path) as file:
        if file.metadata.num_rows > _MOST_ROWS:
            raise ValueError(f"{path} has {file.metadata.num_rows} rows")
        return file.read()


def _check(tables: dict[str, pa.Table]) -> None:
    """Check the references between tables. Raises ValueError for row numbers out of range, missing values and unknown
    words."""
    rows = {parent: tables[f"{parent}s"].num_rows for parent in ("datagram", "packet", "connection")}
    for name, table in tables.items():
        for column in table.column_names:
            values = table.column(column)
            if values.null_count and column in _NEVER_NULL - _MAY_BE_NULL.get(name, frozenset()):
                raise ValueError(f"{name}.{column} has nulls")
            if column in rows and len(values):
                numbers = integers(values)
                if numbers.min() < -(column == "connection") or numbers.max() >= rows[column]:
                    raise ValueError(f"{name}.{column} is the number of no row")
    identities = tables["connections"].column("connection"), tables["packets"].column("packet")
    if any(
        not column.equals(pa.chunked_array([pa.array(range(len(column)), column.type)]))
        for column in identities
        if len(column)
    ):
        raise ValueError("rows are not numbered from 0")
    for name in ("datagrams", "packets", "stream_frames", "ack_frames", "frames"):
        _check_words(name, tables[name], "sender", {-1, 0, 1})
    _check_words("packets", tables["packets"], "type", set(PACKET_TYPES))
    _check_words("ack_frames", tables["ack_frames"], "space", set(SPACES))


def _check_words(name: str, table: pa.Table, column: str, known: set[object]) -> None:
    if unknown := set(table.column(column).unique().to_pylist()) - known:
        raise ValueError(f"{name}.{column} has the unknown value {min(map(str, unknown))}")


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in this schema; columns that an older decoder did not write are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def cached_decode(capture: Path, key_logs: Sequence[Path], folder: Path, *, kernel_drops: int | None = None) -> Trace:
    """The trace in `folder`, if this decoder version made it from exactly these files. Otherwise the files are decoded
    and the trace is saved in `folder`."""
    key = _key((capture,), key_logs, kernel_drops)
    if stored_key(folder) == key:
        try:
            return load_tables(folder)
        except CaptureError:
            pass  # a damaged cache is replaced
    trace = decode_capture(capture, key_logs, kernel_drops=kernel_drops)
    save_tables(trace, folder, key=key)
    return trace


def pair_key(captures: tuple[Path, Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    """The key of tables made from two captures together."""
    return _key(captures, key_logs, kernel_drops)


def _key(captures: Sequence[Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    names = " ".join(capture.name for capture in captures)
    digest = hashlib.sha256(f"{DECODER_VERSION} {kernel_drops} {names}".encode())
    for path in (*captures, *key_logs):
        try:
            read = read_head(path, size=LARGEST_KEY_LOG) if path in key_logs else file_bytes(path)
            digest.update(bytes.fromhex(sha256(read)))
        except OSError as error:
            raise CaptureError(
                f"{path} can't be read ({error.strerror}): give the path of an existing file."
            ) from error
    return digest.hexdigest()


def stored_key(folder: Path) -> str | None:
    """The key with which a folder's tables were saved; None when the folder has no tables."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to import

    try:
        metadata = pq.read_schema(folder / f"{_LAST}.parquet").metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return str(metadata.get(_KEY, b""), "ascii", "replace")
