"""Detects endpoints that flood the link. The captures of such a job are too large to decode."""

from runner.decode.keylog import LARGEST_KEY_LOG
from runner.inputs.inputs import flood_limit
from runner.model.artifacts import Artifacts, Evidence
from runner.model.result import Finding, LinkTruth
from runner.model.run import CaseRecord

_HEADERS = 4  # most bytes of a capture file per byte of its packets
_CLEARLY = 1.5  # ratio of sent bytes above which one endpoint is at fault


def flood(artifacts: Artifacts, record: CaseRecord, evidence: Evidence, truth: LinkTruth | None) -> Finding | None:
    """The finding when a job was ended because of a flood, or a capture is too large to decode; None otherwise."""
    limit = flood_limit(record.file_sizes)
    captures = (artifacts.client_capture, artifacts.server_capture)
    client, server = (path.stat().st_size if path.is_file() else 0 for path in captures)
    # Both captures contain the secrets that endpoints wrote: a large key log must not count as a flood of the peer.
    if max(client, server) <= limit + 2 * LARGEST_KEY_LOG and not evidence.flooded:
        return None
    sent = (client, server) if truth is None else _sent(client, server, truth)
    when = ", when the job was ended" if evidence.flooded else ""
    role = "client" if sent[0] > _CLEARLY * sent[1] else "server" if sent[1] > _CLEARLY * sent[0] else ""
    return Finding(
        code="packet-flood",
        requirement="An endpoint sends bytes in proportion to the transferred files, retransmissions included.",
        expected=f"captures of at most {limit:,} B for files of {sum(record.file_sizes):,} B",
        actual=f"{client:,} B at the client, {server:,} B at the server{when}",
        role=role,
        section="RFC 9002 §6.2.1, §7",
    )


def _sent(client: int, server: int, truth: LinkTruth) -> tuple[int, int]:
    """The bytes that each endpoint sent. A capture can be larger than all packets that entered the link, with their
    record headers. Then the capture contains other frames, and only the endpoint at that end can have sent them."""
    carried = _HEADERS * (truth.forward.bytes_in + truth.return_.bytes_in) + 2 * LARGEST_KEY_LOG
    return truth.return_.bytes_in + max(0, client - carried), truth.forward.bytes_in + max(0, server - carried)
