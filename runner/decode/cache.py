"""The tables of a trace on disk: one Parquet file each, keyed by the captures' bytes and the decoder's version."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from runner.decode.decode import decode_capture
from runner.decode.schema import DECODER_VERSION, READABLE_VERSIONS, TABLES, CaptureMeta, Trace, TraceCheck
from runner.errors import CaptureError

_META = b"bentpipe.trace"
_KEY = b"bentpipe.key"
# Written last: a folder with this table is complete.
_LAST = "datagrams"


def save_tables(trace: Trace, folder: Path, *, key: str = "") -> None:
    """Write folder/<table>.parquet (zstd) for every table; a reader never sees a half-written file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"meta": asdict(trace.meta), "invariants": [asdict(each) for each in trace.checks]})
    for name in sorted(TABLES, key=lambda each: each == _LAST):
        table: pa.Table = getattr(trace, name)
        temporary = folder / f"{name}.parquet.partial"
        metadata = {_META: text.encode(), _KEY: key.encode()}
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")
        temporary.rename(folder / f"{name}.parquet")


def load_tables(folder: Path) -> Trace:
    """The trace that `save_tables` wrote. CaptureError when it is not there, or of another decoder's version."""
    try:
        tables = {name: pq.read_table(folder / f"{name}.parquet") for name in TABLES}
        stored = json.loads(tables[_LAST].schema.metadata[_META])
        meta = CaptureMeta(**stored["meta"])
        checks = [TraceCheck(**each) for each in stored["invariants"]]
        tables = {name: _completed(table, TABLES[name]) for name, table in tables.items()}
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{folder} has no tables of this version: decode the capture again.") from error
    if meta.decoder_version not in READABLE_VERSIONS:
        raise CaptureError(f"{folder} was written by decoder version {meta.decoder_version}: decode the capture again.")
    return Trace(**tables, meta=meta, checks=checks)


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in this schema; columns that its decoder did not know are null."""
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def cached_decode(capture: Path, key_logs: Sequence[Path], folder: Path, *, kernel_drops: int | None = None) -> Trace:
    """The tables in `folder` when they were made from these very files by this decoder; else decode and keep them."""
    key = _key((capture,), key_logs, kernel_drops)
    if stored_key(folder) == key:
        try:
            return load_tables(folder)
        except CaptureError:
            pass  # a damaged cache is replaced like an old one
    trace = decode_capture(capture, key_logs, kernel_drops=kernel_drops)
    save_tables(trace, folder, key=key)
    return trace


def pair_key(captures: tuple[Path, Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    """The key of tables that are made of two captures together."""
    return _key(captures, key_logs, kernel_drops)


def _key(captures: Sequence[Path], key_logs: Sequence[Path], kernel_drops: int | None) -> str:
    names = " ".join(capture.name for capture in captures)
    digest = hashlib.sha256(f"{DECODER_VERSION} {kernel_drops} {names}".encode())
    for path in (*captures, *key_logs):
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise CaptureError(
                f"{path} can't be read ({error.strerror}): give the path of an existing file."
            ) from error
    return digest.hexdigest()


def stored_key(folder: Path) -> str | None:
    """The key under which a folder's tables were saved; None without tables."""
    try:
        metadata = pq.read_schema(folder / f"{_LAST}.parquet").metadata or {}
    except (OSError, pa.ArrowException):
        return None
    return str(metadata.get(_KEY, b""), "ascii")
