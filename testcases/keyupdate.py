"""U: both endpoints change to key phase 1 (RFC 9001 §6)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence


def client_began(case: CaseEvidence) -> Iterator[Finding]:
    """A note: the server began every key update. The client must follow (RFC 9001 §6.2) and may have no reason for an
    update of its own, so the job does not show that the client can begin an update."""
    for connection in case.facts.connections:
        if connection.client_key_updates and not connection.key_updates_begun_by_client:
            yield Finding(
                code="server-began-update",
                requirement="The client begins a key update early, and the server follows.",
                expected="packets of the client in a new key phase before such packets of the server arrive",
                actual="the server began each update, and the client followed",
                role="server",
                section="endpoint contract, Test case names",
            ).proven_by(connection.landmarks.server_key_update, connection.landmarks.client_key_update)


def both_updated_keys(case: CaseEvidence) -> Iterator[Finding]:
    """Both endpoints sent packets of key phase 1."""
    begun = [connection.landmarks.client_key_update for connection in case.facts.connections]
    for role in ("client", "server"):
        updates = sum(getattr(connection, f"{role}_key_updates") for connection in case.facts.connections)
        if not updates:
            yield Finding(
                code="no-key-update",
                requirement="The client begins a key update early, and the server follows.",
                expected=f"packets of the {role} in key phase 1",
                actual="none",
                role=role,
                section="RFC 9001 §6.1" if role == "client" else "RFC 9001 §6.2",
            ).proven_by(
                *begun, *(getattr(connection.landmarks, f"{role}_last") for connection in case.facts.connections)
            )


CASE = Case(
    name="keyupdate",
    abbreviation="U",
    description="A 3 MiB file arrives while the client updates its keys and the server follows.",
    wire_name="keyupdate",
    wire_name_server="transfer",
    files=(3 * MIB,),
    depends=("rfc9001-6",),
    notes=(client_began,),
    checks=(*checks.ONE_CONNECTION, both_updated_keys),
)
