"""Captures and key logs → columnar tables: our own QUIC decoder, and its cache."""

from runner.decode.cache import cached_decode, load_tables, save_tables
from runner.decode.clocks import on_server_clock
from runner.decode.decode import decode_capture
from runner.decode.invariants import job_invariants
from runner.decode.pcapng import embed_secrets
from runner.decode.report import to_json
from runner.decode.schema import DECODER_VERSION, CaptureMeta, Invariant, Trace

__all__ = [
    "DECODER_VERSION",
    "CaptureMeta",
    "Invariant",
    "Trace",
    "cached_decode",
    "decode_capture",
    "embed_secrets",
    "job_invariants",
    "load_tables",
    "on_server_clock",
    "save_tables",
    "to_json",
]
