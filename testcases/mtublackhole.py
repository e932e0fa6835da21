"""MB: during the transfer, the path's MTU falls to 1280 B without an ICMP message (RFC 8899 §4.3, RFC 9000 §14.3)."""

from collections.abc import Iterator

from runner.model.facts import ConnectionFacts
from runner.model.result import Finding
from runner.model.stack import Role
from runner.units import MIB
from testcases import checks, hits
from testcases.base import Case, CaseEvidence, keyless
from testcases.links import MTU_FALL

_FALLEN = 1280  # bytes of an IP packet that still passes
_USED = 10  # packets: more than the probes of path MTU discovery, so the server really uses the larger size


@keyless
def sends_longer_packets(case: CaseEvidence) -> Iterator[Finding]:
    """The server uses packets of more than 1280 B. Otherwise the fall of the MTU does not affect it."""
    longer = sum(_longer(connection) for connection in case.facts.connections)
    if longer < _USED:
        sent = [item for connection in case.facts.connections for item in connection.server_lengths.items()]
        longest, where = max(sent, key=lambda item: item[0], default=(0, None))
        yield Finding(
            code="packets-small",
            requirement="The server discovers that packets of more than 1280 B pass, and sends such packets.",
            expected=f"at least {_USED} packets of more than {_FALLEN} B",
            actual=f"{longer}; the longest has {longest} B",
            role="server",
            section="RFC 9000 §14.3",
        ).proven_by(where.first if where is not None else None)


@keyless
def shrinks(case: CaseEvidence) -> Iterator[Finding]:
    """When a connection did not deliver its file, a server that sent packets of more than 1280 B in it is at fault: it
    did not return to smaller packets. A client may get the file over another connection."""
    delivered = all(file.equal for file in case.evidence.files)
    for connection in case.facts.connections:
        if delivered and all(stream.server_fin == stream.server_bytes for stream in connection.request_streams):
            continue
        longest = max((length for length in connection.server_lengths if length > _FALLEN), default=None)
        if longest is not None:
            last = connection.server_lengths[longest].last
            when = f", the last at {last.time:.1f} s" if last is not None and last.time is not None else ""
            yield Finding(
                code="black-hole-not-noticed",
                requirement="The server delivers the file, also when its large packets are lost from some time on. For "
                "this it returns to a size that passes (RFC 8899 §4.3).",
                expected=f"packets of at most {_FALLEN} B after the MTU fell, and a transfer that continues",
                actual=f"packets of {longest} B{when}",
                role="server",
                section="endpoint contract, Files",
            ).proven_by(last)


def _longer(connection: ConnectionFacts) -> int:
    return sum(sent.count for length, sent in connection.server_lengths.items() if length > _FALLEN)


CASE = Case(
    name="mtublackhole",
    abbreviation="MB",
    description="A 10 MiB transfer continues although packets of more than 1280 B are lost from 3 s on.",
    wire_name="transfer",
    judges=(Role.SERVER,),
    link=MTU_FALL,
    files=(10 * MIB,),
    capabilities=(sends_longer_packets,),
    preconditions=(hits.Hit("dropped_mtu", return_=False),),
    checks=(*checks.ONE_CONNECTION, shrinks),
)
