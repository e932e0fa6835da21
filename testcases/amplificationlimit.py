"""A: before the client's address is validated, a server sends at most 3 times the received bytes (RFC 9000 §8.1)."""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.model.stack import Role
from runner.units import KIB
from testcases import checks
from testcases.base import Case, CaseEvidence, keyless, undecided
from testcases.hits import Hit
from testcases.links import CLIENT_LOSS_2_7

_CHAIN = 7500  # bytes, as in the public runner
_DATAGRAM = 1500  # bytes: a sender that may send fewer bytes has reached its limit, because no full datagram fits


@keyless
def chain_was_sent(case: CaseEvidence) -> Iterator[Finding]:
    """The server sent the whole chain of /certs (docs/contract.md). A shorter chain, as in old runs, stays below the
    limit."""
    least = case.case.chain_bytes
    for number, connection in enumerate(case.facts.connections):
        if case.facts.no_secrets:
            continue
        if connection.handshake_completed and connection.server_handshake_bytes < least:
            yield Finding(
                code="chain-not-sent",
                requirement="The server sends the whole certificate chain of /certs.",
                expected=f"at least {least} B of CRYPTO data in Handshake packets",
                actual=f"connection {number}: {connection.server_handshake_bytes} B",
                role="server",
                section="endpoint contract, Files",
            ).proven_by(connection.landmarks.server_hello, connection.landmarks.server_parameters)


@keyless
def comes_near_the_limit(case: CaseEvidence) -> Iterator[Finding]:
    """The server reached the limit, except for less than a datagram. Other servers are unsupported: without reaching
    the limit, they can't show that they keep it. A server that reached the limit sent a long chain, also when the chain
    can't be read."""
    for number, connection in enumerate(case.facts.connections):
        sent, hidden = connection.amplification, case.facts.no_secrets
        if sent is None or sent.headroom is None:
            continue
        if hidden and sent.headroom > _DATAGRAM:
            yield undecided("SERVER_HANDSHAKE_TRAFFIC_SECRET in a key log", "the length of the chain can't be read")
        elif sent.headroom > _DATAGRAM and connection.server_handshake_bytes >= case.case.chain_bytes:
            yield Finding(
                code="limit-not-reached",
                requirement="Before the client's address is validated, the server has more data than it may send.",
                expected=f"at most {_DATAGRAM} B left to the limit",
                actual=f"connection {number}: always at least {sent.headroom} B left; address validated by "
                f"{sent.validated_by or 'nothing'}",
                role="server",
                section="RFC 9000 §8.1",
            ).proven_by(connection.landmarks.server_hello)


CASE = Case(
    name="amplificationlimit",
    abbreviation="A",
    description="A server with a chain of 9 certificates keeps the amplification limit while the client's packets 2 to "
    "7 are lost; then 5 KiB arrive.",
    wire_name="transfer",
    judges=(Role.SERVER,),
    link=CLIENT_LOSS_2_7,
    files=(5 * KIB,),
    chain_length=9,
    chain_bytes=_CHAIN,
    preconditions=(Hit("dropped_loss", forward=False),),
    capabilities=(comes_near_the_limit,),
    depends=("rfc9000-8.1-",),
    checks=(*checks.ONE_CONNECTION, chain_was_sent),
)
