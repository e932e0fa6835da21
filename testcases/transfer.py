"""DC: three files at once over one connection, with concurrent streams and extended flow control limits."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.stack import HTTP09, OVER_TCP
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence


def streams_were_concurrent(case: CaseEvidence) -> Iterator[Finding]:
    """A note: the three streams were not open at the same time. The contract requires "multiple streams", but it does
    not say how many, and not at the same time."""
    most = max((connection.max_concurrent_streams for connection in case.facts.connections), default=0)
    if most < len(case.case.file_sizes):
        yield Finding(
            code="not-concurrent",
            requirement="The client requests all files at once, each on a stream of its own.",
            expected=f"{len(case.case.file_sizes)} streams open at the same time",
            actual=f"at most {most}",
            role="client",
            section="RFC 9000 §2",
        ).proven_by(*(place for connection in case.facts.connections for place in connection.landmarks.requests))


def limits_moved(case: CaseEvidence) -> Iterator[Finding]:
    """The client raised a flow control limit. A client whose initial limits cover all files is unsupported: small
    limits are a *should* of the contract."""
    for connection in case.facts.connections:
        arrived = all(file.equal for file in case.evidence.files)
        if connection.limits_raised is False and arrived:
            yield Finding(
                code="limits-never-raised",
                requirement="The client's first flow control limits are smaller than the files; it raises them.",
                expected="MAX_DATA or MAX_STREAM_DATA above the first limit",
                actual=f"none above {connection.initial_max_data} B for the connection and "
                f"{connection.initial_max_stream_data} B for a stream",
                role="client",
                section="RFC 9000 §4.1",
            ).proven_by(*connection.landmarks.client_hellos[:1], connection.landmarks.client_last)


CASE = Case(
    name="transfer",
    abbreviation="DC",
    description="Files of 2, 3 and 5 MiB arrive over one connection on concurrent streams; the client raises limits.",
    wire_name="transfer",
    files=(2 * MIB, 3 * MIB, 5 * MIB),
    capabilities=(limits_moved,),
    depends=("rfc9000-4.1-stream-limit", "rfc9000-4.1-connection-limit", "rfc9000-4.5"),
    protocols=(HTTP09, *OVER_TCP),
    over_tcp=checks.OVER_TCP,
    checks=checks.ONE_CONNECTION,
    notes=(streams_were_concurrent,),
)
