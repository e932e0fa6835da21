"""CM: the connection migrates, by the client's decision or to the server's preferred address (RFC 9000 §9)."""

from collections.abc import Iterator

from runner.model.facts import Challenge, ConnectionFacts
from runner.model.result import Finding
from runner.units import MIB
from testcases import checks
from testcases.base import Case, CaseEvidence
from testcases.rebinding import challenges_on, lasted, settled


def moves(case: CaseEvidence) -> Iterator[Finding]:
    """The client uses a second path. Otherwise the case is unsupported, not failed: moving to a preferred address is a
    SHOULD (RFC 9000 §9.6.1), and the client's TESTCASE, `transfer`, can't request a migration."""
    if all(len(connection.paths) < 2 for connection in case.facts.connections):
        offered = any("preferred_address" in connection.server_parameters for connection in case.facts.connections)
        finding = Finding(
            code="no-migration",
            requirement="The connection migrates: to the server's preferred address, or to another port of the client.",
            expected="two paths",
            actual="one path, although the server prefers another address" if offered else "one path",
            role="client" if offered else "",
            section="RFC 9000 §9.6.1",
        )
        seen = (connection.landmarks for connection in case.facts.connections)
        yield finding.proven_by(
            *(place for landmarks in seen for place in (landmarks.client_first, landmarks.client_last))
        )


def is_validated(case: CaseEvidence) -> Iterator[Finding]:
    """The second path is validated."""
    for connection in case.facts.connections:
        if len(connection.paths) > 1:
            yield from _validated(connection, settled(case))


def _validated(connection: ConnectionFacts, least: float) -> Iterator[Finding]:
    """The server challenges a client that moved (RFC 9000 §9.3), and the client challenges the server's preferred
    address (§9.6.1). The server need not challenge a path that lasted less than `least` seconds, or that the client
    only probed."""
    first = connection.paths[0]
    for path in connection.paths[1:]:
        here = challenges_on(path, connection)
        answered = {challenge.sender for challenge in here if challenge.answered}
        if not answered:
            yield Finding(
                code="path-not-validated",
                requirement="An endpoint validates a new path.",
                expected=f"PATH_CHALLENGE and PATH_RESPONSE between {path.client} and {path.server}",
                actual=f"none answered; the first path was {first.client} to {first.server}",
                section="RFC 9000 §8.2",
            ).proven_by(path.place)
        elif path.client != first.client and path.client_moved and lasted(path) >= least and "server" not in answered:
            yield Finding(
                code="address-not-validated",
                requirement="A server validates the new address of a client that migrates.",
                expected=f"PATH_CHALLENGE of the server to {path.client}, and an answer",
                actual=_of_server(here),
                role="client"
                if any(challenge.sender == "server" and challenge.arrived for challenge in here)
                else "server",
                section="RFC 9000 §9.3",
            ).proven_by(path.place)
        elif path.server != first.server and "client" not in answered:
            yield Finding(
                code="address-not-validated",
                requirement="A client validates the server's preferred address before it moves there.",
                expected=f"PATH_CHALLENGE of the client to {path.server}, and an answer",
                actual="none answered",
                role="client",
                section="RFC 9000 §9.6.2",
            ).proven_by(path.place)


def _of_server(challenges: list[Challenge]) -> str:
    sent = sum(challenge.sender == "server" for challenge in challenges)
    return f"{sent} PATH_CHALLENGE, none answered" if sent else "no PATH_CHALLENGE of the server"


CASE = Case(
    name="connectionmigration",
    abbreviation="CM",
    description="A 2 MiB transfer moves to another path, which is validated and has connection IDs of its own.",
    wire_name="transfer",
    wire_name_server="connectionmigration",
    files=(2 * MIB,),
    host="server46",
    capabilities=(moves,),
    depends=("rfc9000-8.2.2-response-on-other-path", "rfc9000-9.5"),
    checks=(*checks.ONE_CONNECTION, is_validated),
)
