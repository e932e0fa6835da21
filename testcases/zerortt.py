"""Z: the requests of a resumed connection are sent in 0-RTT packets (RFC 9001 §4.6)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import format_count
from testcases import checks
from testcases.base import Case, CaseEvidence

_FILES = 40
_NAME_LENGTH = 250  # so that the requests are too large for one packet


def early_data_can_be_judged(case: CaseEvidence) -> Iterator[Finding]:
    """0-RTT packets could be decrypted, or other packets are enough for a verdict: most requests were answered although
    no other packet carries them, or the server refused 0-RTT. Go's TLS does not log CLIENT_EARLY_TRAFFIC_SECRET."""
    unread = sum(connection.early_data_unread for connection in case.facts.connections)
    refused = any(
        connection.early_data_accepted is False for connection in case.facts.connections if connection.early_data_unread
    )
    early, remaining = _early(case)
    if unread and not refused and 2 * early <= remaining:
        yield Finding(
            code="early-data-unread",
            requirement="A verdict needs packets that can be decrypted.",
            expected="CLIENT_EARLY_TRAFFIC_SECRET in a key log",
            actual=f"{format_count(unread, '0-RTT packet')} that no secret decrypts; the others prove 0-RTT for only "
            f"{early} of {remaining} requests",
        ).proven_by(*(connection.landmarks.early_data for connection in case.facts.connections))


def _early(case: CaseEvidence) -> tuple[int, int]:
    """Number of requests that were sent in 0-RTT, and number of requests that can be sent in 0-RTT."""
    early = sum(connection.early_data_requests for connection in case.facts.connections)
    return early, len(case.case.file_sizes) - 1


def requests_went_early(case: CaseEvidence) -> Iterator[Finding]:
    """More than half of the requests after the first began in 0-RTT packets, and the server accepted these packets.

    STREAM bytes are counted, not padding or PMTU probes. Half is enough: the initial congestion window (10 packets) and
    the remembered stream limit may hold back the rest.
    """
    early, remaining = _early(case)
    unread = any(connection.early_data_unread for connection in case.facts.connections)
    if 2 * early <= remaining and not unread:
        yield Finding(
            code="not-early",
            requirement="The client sends the requests of its second connection in 0-RTT packets.",
            expected=f"more than half of {format_count(remaining, 'request')}",
            actual=f"{early}",
            role="client",
            section="RFC 9001 §4.6.1",
        ).proven_by(*(place for connection in case.facts.connections[1:] for place in connection.landmarks.requests))
    if (early or unread) and not any(connection.early_data_accepted for connection in case.facts.connections):
        yield Finding(
            code="early-data-refused",
            requirement="The server accepts 0-RTT.",
            expected="early_data in EncryptedExtensions" if unread else "an acknowledged 0-RTT packet",
            actual="none",
            role="server",
            section="RFC 9001 §4.6.2",
        ).proven_by(*(connection.landmarks.early_data for connection in case.facts.connections))


CASE = Case(
    name="zerortt",
    abbreviation="Z",
    description="40 files of 32 B with long names arrive; all requests except the first are sent in 0-RTT.",
    wire_name="zerortt",
    files=(32,) * _FILES,
    name_length=_NAME_LENGTH,
    preconditions=(early_data_can_be_judged,),
    checks=(*checks.TWO_CONNECTIONS, requests_went_early),
)
