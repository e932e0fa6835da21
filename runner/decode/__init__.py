"""Decodes captures with key logs to columnar tables: bentpipe's own QUIC decoder, and its cache."""

from runner.decode.cache import cached_decode, load_tables, save_tables
from runner.decode.clocks import on_server_clock
from runner.decode.decode import decode_capture
from runner.decode.pcapng import embed_secrets
from runner.decode.report import to_json
from runner.decode.schema import DECODER_VERSION, CaptureMeta, Trace, TraceCheck
from runner.decode.trace_checks import job_checks

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
