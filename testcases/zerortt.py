"""Z: requests of a resumed connection go in 0-RTT packets (RFC 9001 §4.6)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from testcases import checks
from testcases.base import Case, CaseEvidence, proven
from testcases.scenarios import DEFAULT

_FILES = 40
_NAME_LENGTH = 250  # so that the requests are too large for one packet


def requests_went_early(case: CaseEvidence) -> Iterator[Finding]:
    """More than half of the remaining requests began in 0-RTT packets, and the server took them.

    STREAM bytes are counted per connection, neither padding nor PMTU probes. All need not: the congestion window is 10
    packets, and the stream limit the remembered one.
    """
    early = sum(connection.early_data_requests for connection in case.facts.connections)
    remaining = len(case.case.file_sizes) - 1
    if 2 * early <= remaining:
        finding = Finding(
            code="not-early",
            requirement="The client sends the requests of its second connection in 0-RTT packets.",
            expected=f"more than half of {remaining} requests",
            actual=f"{early}",
            role="client",
            section="RFC 9001 §4.6.1",
        )
        yield proven(finding, *(place for one in case.facts.connections[1:] for place in one.landmarks.requests))
    if early and not any(connection.early_data_accepted for connection in case.facts.connections):
        finding = Finding(
            code="early-data-refused",
            requirement="The server accepts 0-RTT.",
            expected="an acknowledged 0-RTT packet",
            actual="none",
            role="server",
            section="RFC 9001 §4.6.2",
        )
        yield proven(finding, *(one.landmarks.early_data for one in case.facts.connections))


CASE = Case(
    name="zerortt",
    abbreviation="Z",
    kind=Kind.TEST_CASE,
    description="40 files of 32 B with long names arrive; all requests but the first go in 0-RTT.",
    wire_name="zerortt",
    scenario=DEFAULT,
    files=(32,) * _FILES,
    name_length=_NAME_LENGTH,
    may_miss=frozenset(),
    checks=(
        *checks.COMMON,
        checks.Handshakes(2),
        checks.version_is_1,
        checks.no_retry,
        checks.Alpn("hq-interop"),
        requests_went_early,
    ),
)
