"""Both rebinding cases: the server validates each new path, the client answers, all files arrive (RFC 9000 §9)."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from runner.model.facts import Challenge, ConnectionFacts, Path
from runner.model.link import LinkRecord
from runner.model.result import Finding
from runner.units import MIB
from testcases import checks, hits
from testcases.base import Case, CaseEvidence
from testcases.links import REBIND_ADDRESS, REBIND_PORT

_SETTLED_RTTS = 3


def new_paths_are_validated(case: CaseEvidence) -> Iterator[Finding]:
    """The server challenges each mapping that lasted long enough, and the client answers (RFC 9000 §8.2, §9.3). A
    Handshake packet from the new address validates it, too (§8.1)."""
    for connection in case.facts.connections:
        for path in connection.paths[1:]:
            if path.server_datagrams and lasted(path) >= settled(case) and not path.handshake_packet:
                yield from _judge(path, challenges_on(path, connection), connection)


def _judge(path: Path, challenges: list[Challenge], connection: ConnectionFacts) -> Iterator[Finding]:
    where = f"the path of {_with_beginning(path)}"
    from_server = [challenge for challenge in challenges if challenge.sender == "server"]
    if not from_server:
        yield Finding(
            code="path-not-challenged",
            requirement="A server that sees a new address of its peer validates the path.",
            expected=f"PATH_CHALLENGE on {where}",
            actual=f"none; {path.server_datagrams} other datagrams of the server",
            role="server",
            section="RFC 9000 §9.3",
        ).proven_by(path.place)
    elif any(_in_time(challenge, connection) for challenge in from_server) and not any(
        challenge.answered for challenge in from_server
    ):
        count = len(from_server)
        errors = [close.reason or f"error 0x{close.code:x}" for close in connection.closes if close.code]
        closed = f"; closed: {errors[0]}" if errors else ""
        yield Finding(
            code="path-challenge-unanswered",
            requirement="An endpoint answers a PATH_CHALLENGE with a PATH_RESPONSE that repeats its data.",
            expected=f"PATH_RESPONSE to one of {count} PATH_CHALLENGE on {where}",
            actual=f"none{closed}",
            role="client",
            section="RFC 9000 §8.2.2",
        ).proven_by(*(challenge.place for challenge in from_server if _in_time(challenge, connection)))


def old_paths_are_left(case: CaseEvidence) -> Iterator[Finding]:
    """The server sends to the client's new address (RFC 9000 §9.3). A finding when a mapping that lasted long enough
    got no packet while an older mapping still got packets."""
    for connection in case.facts.connections:
        for number, path in enumerate(connection.paths):
            old = max(connection.paths[:number], key=lambda earlier: earlier.last_seen or 0.0, default=None)
            if path.server_datagrams or lasted(path) < settled(case) or old is None:
                continue
            if (old.last_seen or 0.0) > (path.last_seen or 0.0):
                yield Finding(
                    code="old-path-kept",
                    requirement="A server that receives packets from a new address sends to that address from then on.",
                    expected=f"packets to {_with_beginning(path)}",
                    actual=f"none; packets to {old.client} until {old.last_seen:.3f} s",
                    role="server",
                    section="RFC 9000 §9.3",
                ).proven_by(path.place, old.last_place)


def _in_time(challenge: Challenge, connection: ConnectionFacts) -> bool:
    """True when `challenge` arrived before either end closed: a closed endpoint need not answer (RFC 9000 §10.2)."""
    closed = min((close.time for close in connection.closes if close.time is not None), default=inf)
    return challenge.arrival is not None and challenge.arrival < closed


def settled(case: CaseEvidence) -> float:
    """Seconds that a path must last to be judged. On a path with a shorter life, a missing or lost challenge is not the
    fault of an endpoint."""
    return _SETTLED_RTTS * (case.case.forward.delay + case.case.return_.delay)


def lasted(path: Path) -> float:
    """Seconds between the first and the last datagram on a path."""
    return (path.last_seen or 0.0) - (path.first_seen or 0.0)


def challenges_on(path: Path, connection: ConnectionFacts) -> list[Challenge]:
    """The challenges between the two addresses of a path."""
    ends = (path.client, path.server)
    return [challenge for challenge in connection.challenges if (challenge.client, challenge.server) == ends]


def _with_beginning(path: Path) -> str:
    return f"{path.client}, used from {path.first_seen or 0.0:.3f} s on"


def mappings_were_seen(case: CaseEvidence) -> Iterator[Finding]:
    """The server's capture shows every mapping of the NAT that packets used. Otherwise the capture can't be judged."""
    seen = {path.client for connection in case.facts.connections for path in connection.paths}
    used = {mapping.outer for mapping in (case.truth.mappings if case.truth else ()) if mapping.packets}
    if not used <= seen:
        yield hits.missed(
            f"the server's capture shows {', '.join(sorted(used))}", f"it shows {', '.join(sorted(seen)) or 'none'}"
        )


def _rebinding(*, name: str, abbreviation: str, description: str, link: LinkRecord) -> Case:
    """10 MiB through a NAT that changes its mapping after 1 s, then every 5 s."""
    return Case(
        name=name,
        abbreviation=abbreviation,
        description=description,
        wire_name="transfer",
        link=link,
        files=(10 * MIB,),
        preconditions=(hits.rebound, mappings_were_seen),
        depends=("rfc9000-8.2.2-response-on-other-path",),
        checks=(*checks.ONE_CONNECTION, new_paths_are_validated, old_paths_are_left),
    )


def address_changed(case: CaseEvidence) -> Iterator[Finding]:
    """The server saw the client at more than one IP address, not only at more than one port."""
    hosts = {path.client.rpartition(":")[0] for connection in case.facts.connections for path in connection.paths}
    if len(hosts) < 2:
        yield hits.missed("the server sees two addresses of the client", ", ".join(sorted(hosts)))


_ADDRESS = _rebinding(
    name="rebind-addr",
    abbreviation="BA",
    description="10 MiB arrive although a NAT changes the client's address after 1 s, then every 5 s; "
    "new paths are validated.",
    link=REBIND_ADDRESS,
)
CASES = (
    _rebinding(
        name="rebind-port",
        abbreviation="BP",
        description="10 MiB arrive although a NAT changes the client's port after 1 s, then every 5 s; "
        "new paths are validated.",
        link=REBIND_PORT,
    ),
    replace(_ADDRESS, preconditions=(*_ADDRESS.preconditions, address_changed)),
)
