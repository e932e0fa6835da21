"""U: both sides change to key phase 1 (RFC 9001 §6)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.run import Kind
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence, proven
from testcases.links import DEFAULT


def both_updated_keys(case: CaseEvidence) -> Iterator[Finding]:
    """Packets with a changed key phase came from both sides."""
    begun = [one.landmarks.client_key_update for one in case.facts.connections]
    for role in ("client", "server"):
        updates = sum(getattr(connection, f"{role}_key_updates") for connection in case.facts.connections)
        if not updates:
            finding = Finding(
                code="no-key-update",
                requirement="The client begins a key update early, and the server follows.",
                expected=f"packets of the {role} in key phase 1",
                actual="none",
                role=role,
                section="RFC 9001 §6.1" if role == "client" else "RFC 9001 §6.2",
            )
            yield proven(finding, *begun, *(getattr(one.landmarks, f"{role}_last") for one in case.facts.connections))


CASE = Case(
    name="keyupdate",
    abbreviation="U",
    kind=Kind.TEST_CASE,
    description="A 3 MiB file arrives while the client updates its keys and the server follows.",
    wire_name="keyupdate",
    wire_name_server="transfer",
    link=DEFAULT,
    files=(3 * MIB,),
    exercises=("rfc9001-6",),
    checks=(*checks.ONE_CONNECTION, both_updated_keys),
)
