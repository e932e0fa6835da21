"""An endpoint that floods the link: told from the size of the captures, because nobody can, or need, decode them."""

from runner.model.artifacts import Artifacts
from runner.model.result import Finding
from runner.model.run import CaseRecord
from runner.units import MIB

_LEAST = 128 * MIB  # no case of small files comes near; decoding takes some ten times that in memory
_PER_BYTE = 8  # of a capture, for a byte of the files
_CLEARLY = 1.5  # the queue of the link drops what is too much, so that the capture behind it is smaller


def flood(artifacts: Artifacts, record: CaseRecord) -> Finding | None:
    """The finding when a capture is far larger than the files of the case explain; None when not."""
    limit = max(_LEAST, _PER_BYTE * sum(record.file_sizes))
    captures = (artifacts.client_capture, artifacts.server_capture)
    client, server = (path.stat().st_size if path.is_file() else 0 for path in captures)
    if max(client, server) <= limit:
        return None
    role = "client" if client > _CLEARLY * server else "server" if server > _CLEARLY * client else ""
    return Finding(
        code="packet-flood",
        requirement="What an endpoint sends is bounded by what it has to say, repeats included.",
        expected=f"captures of at most {limit:,} B, for {sum(record.file_sizes):,} B of files",
        actual=f"{client:,} B at the client, {server:,} B at the server",
        role=role,
        section="RFC 9002 §6.2.1, §7",
    )
