"""An endpoint that floods the link: told from the size of the captures, because nobody can, or need, decode them."""

from collections.abc import Sequence

from runner.decode.keylog import LARGEST_KEY_LOG
from runner.model.artifacts import Artifacts, Evidence
from runner.model.result import Finding, LinkTruth
from runner.model.run import CaseRecord
from runner.units import MIB

_LEAST = 16 * MIB  # no case of small files comes near; decoding takes some ten times that in memory
_PER_BYTE = 8  # of a capture, for a byte of the files
_CLEARLY = 1.5  # the queue of the link drops what is too much, so that the capture behind it is smaller


def flood_limit(file_sizes: Sequence[int]) -> int:
    """Bytes that no capture of a case with these files needs. A job whose link has carried more is ended."""
    return max(_LEAST, _PER_BYTE * sum(file_sizes))


def flood(artifacts: Artifacts, record: CaseRecord, evidence: Evidence, truth: LinkTruth | None) -> Finding | None:
    """The finding when a job was ended for a flood, or has a capture too large to decode; None else."""
    limit = flood_limit(record.file_sizes)
    captures = (artifacts.client_capture, artifacts.server_capture)
    client, server = (path.stat().st_size if path.is_file() else 0 for path in captures)
    # Secrets that endpoints wrote stand in the captures of both: what one writes is not held against the other.
    if max(client, server) <= limit + 2 * LARGEST_KEY_LOG and not evidence.flooded:
        return None
    sent = (client, server) if truth is None else (truth.return_.bytes_in, truth.forward.bytes_in)
    when = ", when the job was ended" if evidence.flooded else ""
    role = "client" if sent[0] > _CLEARLY * sent[1] else "server" if sent[1] > _CLEARLY * sent[0] else ""
    return Finding(
        code="packet-flood",
        requirement="What an endpoint sends is bounded by what it has to say, repeats included.",
        expected=f"captures of at most {limit:,} B, for {sum(record.file_sizes):,} B of files",
        actual=f"{client:,} B at the client, {server:,} B at the server{when}",
        role=role,
        section="RFC 9002 §6.2.1, §7",
    )
