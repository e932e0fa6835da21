"""Decides whether the evidence suffices for a verdict. An unreadable packet proves nothing for or against an
endpoint."""

from collections.abc import Iterable

import pyarrow.compute as pc

from runner.decode.schema import CLIENT, SERVER, Trace
from runner.model.implementation import Role
from runner.model.result import Finding, LinkTruth
from runner.trace import TraceFacts, UnreadPackets
from runner.trace.vantage import Recording

# A secret that decrypts some packets is the right secret. The other packets are damaged or not authentic, and the peer
# can't decrypt them either (RFC 9001 §5.2, §9.5). When more packets than these limits can't be read, and the peer
# acknowledges packets that were not read, the decoder itself may be wrong.
_DAMAGED_SHARE, _DAMAGED = 0.1, 10
_SHOWN = 8  # connections that a result lists
_RANDOM = 8  # bytes of a client random that a finding shows


def gaps(facts: TraceFacts, *, may_miss: frozenset[str], corrupts: bool) -> tuple[UnreadPackets, ...]:
    """The groups of unread packets that the case needs.

    `may_miss`: types of packets that the case doesn't need. `corrupts`: the link changes packets on purpose, so that
    only packets in the sender's own capture must be readable.
    """
    return tuple(group for group in facts.unread if group.type not in may_miss and _matters(group, corrupts=corrupts))


def _matters(group: UnreadPackets, *, corrupts: bool) -> bool:
    if corrupts and not group.near:
        return group.none_read and group.connection is not None
    if not group.may_be_authentic:
        return False
    if group.none_read and group.connection is not None:
        return True
    return group.unread > max(_DAMAGED, _DAMAGED_SHARE * group.packets)


def missing_secrets(facts: TraceFacts, missing: Iterable[UnreadPackets], *, key_logs: bool) -> tuple[Finding, ...]:
    """Findings that name the missing secrets of each connection, for the first eight connections. No stack is blamed.
    `key_logs`: an endpoint wrote a key log that is not empty."""
    groups: dict[int | None, list[UnreadPackets]] = {}
    for group in missing:
        groups.setdefault(group.connection, []).append(group)
    rest = len(groups) - _SHOWN
    findings = [
        _finding(facts, connection_groups, key_logs=key_logs) for connection_groups in tuple(groups.values())[:_SHOWN]
    ]
    if rest > 0:
        findings.append(_more_connections(rest, findings[-1]))
    return tuple(findings)


def _finding(facts: TraceFacts, groups: list[UnreadPackets], *, key_logs: bool) -> Finding:
    places = [place for group in groups for place in group.places]
    shown = [place for place in places if place.vantage == places[0].vantage][:5] if places else []
    times = tuple(place.time for place in shown if place.time is not None)
    return Finding(
        code="secrets-missing" if key_logs else "no-key-log",
        requirement="Endpoints write their secrets to SSLKEYLOGFILE, because verdicts come from decrypted packets.",
        expected="; ".join(sorted({_expected(group) for group in groups}))
        if key_logs
        else "a key log from the client or the server",
        actual=f"{_name(facts, groups[0])}: {'; '.join(_actual(group) for group in groups)}",
        section="RFC 9001 §5, draft-ietf-tls-keylogfile §2",
        packets=tuple(place.record for place in shown),
        times=times if len(times) == len(shown) else (),
        vantage=shown[0].vantage if shown else "",
    )


def _more_connections(count: int, last: Finding) -> Finding:
    return Finding(
        code=last.code,
        requirement=last.requirement,
        expected=last.expected,
        actual=f"the same in {count} more connection{'s' if count != 1 else ''}",
    )


def _name(facts: TraceFacts, group: UnreadPackets) -> str:
    if group.connection is None:
        return "packets of no known connection"
    random = f"client random {group.client_random.hex()[: 2 * _RANDOM]}…" if group.client_random else "no ClientHello"
    return f"connection {group.connection + 1} of {len(facts.connections)} ({random})"


def _expected(group: UnreadPackets) -> str:
    if group.type == "initial":
        return "the client's first Initial packet, whose connection ID gives the Initial keys"
    if not group.secret:
        return f"keys for {_TYPES[group.type]} packets"
    return f"{group.secret} in a key log"


_TYPES = {"initial": "Initial", "0rtt": "0-RTT", "handshake": "Handshake", "1rtt": "1-RTT"}


def _actual(group: UnreadPackets) -> str:
    """A part of a sentence, such as `120 of 120 1-RTT packets of the server can't be read, SERVER_TRAFFIC_SECRET_0 is
    in no key log`."""
    whose = f" of the {group.sender}" if group.sender else ""
    packets = f"{group.unread} of {group.packets} {_TYPES[group.type]} packets{whose} can't be read"
    if not group.secret or not group.none_read:
        return packets
    if group.secret_logged is None:
        return f"{packets} without {group.secret}"
    why = "in a key log does not decrypt them" if group.secret_logged else "is in no key log"
    return f"{packets}, {group.secret} {why}"


def unread_types(missing: Iterable[UnreadPackets]) -> frozenset[str]:
    """The packet types of these groups."""
    return frozenset(group.type for group in missing)


def misaddressed_datagrams(client_side: Trace, server_side: Trace, truth: LinkTruth | None) -> dict[str, int]:
    """By role, the number of datagrams in the sender's own capture that did not enter the link: their frames have a MAC
    address that the link does not know. Kernel drops at the simulator don't count."""
    if truth is None:
        return {}
    recording = Recording(client_side, server_side)
    misaddressed = {}
    for sender, link in ((CLIENT, truth.return_), (SERVER, truth.forward)):
        if (near := recording.near(sender)) is not None:
            sent = int((near.datagrams["sender"] == sender).sum())
            misaddressed[near.role] = max(0, sent - link.packets_in - truth.socket_drops)
    return misaddressed


def fragmented_packets(client_side: Trace, server_side: Trace) -> dict[str, int]:
    """By role, the number of IP fragments of the sender in its peer's capture. QUIC forbids them (RFC 9000 §14). The
    decoder doesn't read them, so it is unknown what the peer received."""
    fragments: dict[str, int] = {}
    for role, far, peer in ((Role.CLIENT, server_side, SERVER), (Role.SERVER, client_side, CLIENT)):
        sources = far.datagrams["src"].filter(pc.equal(far.datagrams["sender"], peer))
        own = set(pc.unique(sources).to_pylist())
        if own:
            fragments[role] = sum(count for source, count in far.meta.fragment_sources.items() if source not in own)
    return fragments
