"""PQ: a ClientHello with a post-quantum key share needs two datagrams, which may arrive in any order.

X25519MLKEM768 makes a ClientHello about 1.5 kB long (draft-ietf-tls-ecdhe-mlkem). A server assembles it from CRYPTO
frames of several Initial packets in any order (RFC 9000 §7, §7.5). When a later part arrives first, the server may
answer it with Retry, so that the server need not store this part (RFC 9000 §8.1.2).
"""

from collections.abc import Iterator

from runner.model.result import Finding
from runner.units import KIB
from testcases import checks, hits
from testcases.base import Case, CaseEvidence, keyless
from testcases.links import REORDER_CLIENT

_CONNECTIONS = 20  # in about a quarter of these connections the link swaps the two parts


@keyless
def needs_two_datagrams(case: CaseEvidence) -> Iterator[Finding]:
    """At least one ClientHello takes more than one datagram. Otherwise the case is unsupported."""
    hellos = [connection.client_hello for connection in case.facts.connections if connection.client_hello is not None]
    if not any(hello.datagrams > 1 for hello in hellos):
        largest = max((hello.bytes for hello in hellos), default=0)
        yield Finding(
            code="client-hello-small",
            requirement="The client offers a post-quantum key share.",
            expected="a ClientHello of more than one datagram",
            actual=f"{largest} B, in one datagram",
            role="client",
            section="draft-ietf-tls-ecdhe-mlkem §4.1",
        ).proven_by(*(hello.places[0] for hello in hellos if hello.places))


CASE = Case(
    name="postquantum",
    abbreviation="PQ",
    description=f"{_CONNECTIONS} connections, each with 1 KiB; each ClientHello takes two datagrams, which arrive in "
    "any order.",
    wire_name="multiconnect",
    link=REORDER_CLIENT,
    files=(1 * KIB,) * _CONNECTIONS,
    timeout=120.0,
    preconditions=(hits.Hit("held_back", forward=False), hits.Hit("dropped_loss", forward=False)),
    capabilities=(needs_two_datagrams,),
    checks=(
        *checks.COMMON,
        checks.a_handshake_per_file,
        checks.version_is_1,
        checks.alpn_of_job,
        checks.hellos_are_answered,
    ),
)
