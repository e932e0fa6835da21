"""Decodes captures with key logs to columnar tables: bentpipe's own QUIC decoder, and its cache."""

from runner.decode.capture import embed_secrets
from runner.decode.columns import DECODER_VERSION, CaptureMeta, Trace, TraceCheck
from runner.decode.decode import (
    cached_decode,
    decode_capture,
    job_checks,
    load_tables,
    on_server_clock,
    save_tables,
    to_json,
)

__all__ = [
    "DECODER_VERSION",
    "CaptureMeta",
    "Trace",
    "TraceCheck",
    "cached_decode",
    "decode_capture",
    "embed_secrets",
    "job_checks",
    "load_tables",
    "on_server_clock",
    "save_tables",
    "to_json",
]
