"""Packets at the beginning of a connection: Retry, Version Negotiation, tokens, probes (RFC 9000 §6, §8, §17.2)."""

from collections.abc import Iterator

import numpy as np

from runner.judge.invariants.packets import shown
from runner.judge.side import INITIAL, NEGOTIATION, RETRY, Broken, Side
from runner.trace.intervals import Ints
from runner.trace.paths import amplification
from runner.trace.vantage import NULL

_FULL = 1200  # bytes of the smallest datagram that a server must answer (RFC 9000 §5.2.2)
_FLIGHT_NS = 100_000_000  # packets sent within this time are one flight
_BACKOFF = 1.5  # least ratio of a gap between probes to the gap before


def retry_from_server(side: Side) -> Iterator[Broken]:
    """The form of a Retry (RFC 9000 §17.2.5.1)."""
    retries = side.of_type(RETRY)
    if side.is_client or not len(retries):
        return
    packets = side.capture.packets
    (sources, source_ids), (targets, target_ids) = side.capture.ids("scid"), side.capture.ids("dcid")
    empty = retries[packets["token_length"][retries] == 0]
    if len(empty):
        yield Broken(rule="rfc9000-17.2.5.2-retry-token-empty", actual="a Retry without a token", packets=shown(empty))
    if side.row and side.row["retry_integrity_ok"] is False:
        yield Broken(
            rule="rfc9001-5.8-retry-tag-wrong", actual="a Retry with a wrong integrity tag", packets=shown(retries)
        )
    initials = side.of_type(INITIAL, got=True)
    for retry in retries.tolist():
        before = initials[initials < retry]
        if not len(before):
            continue
        request = int(before[-1])
        source = source_ids[sources[retry]]
        if source == target_ids[targets[request]]:
            yield Broken(
                rule="rfc9000-17.2.5.1-retry-source-is-destination",
                actual=f"both connection IDs are {source.hex()}",
                packets=(request, retry),
            )
        target = target_ids[targets[retry]]
        if target != source_ids[sources[request]]:
            yield Broken(
                rule="rfc9000-17.2.5.1-retry-destination",
                actual=f"destination connection ID {target.hex()} in the Retry, source connection ID "
                f"{source_ids[sources[request]].hex()} in the client's Initial packet",
                packets=(request, retry),
            )
        if packets["version"][retry] != packets["version"][request]:
            yield Broken(
                rule="rfc9369-4.1-retry-version",
                actual=f"version 0x{packets['version'][retry]:08x} in the Retry, "
                f"0x{packets['version'][request]:08x} in the client's Initial packet",
                packets=(request, retry),
            )
        datagrams = len(np.unique(packets["datagram"][before]))
        if int((retries <= retry).sum()) > datagrams and side.sound:
            yield Broken(
                rule="rfc9000-17.2.5.1-retries-per-datagram",
                actual=f"more Retry packets than the {datagrams} datagrams that the client had sent",
                packets=shown(retries),
            )
            return


def retry_at_client(side: Side) -> Iterator[Broken]:
    """The client's answer to a Retry (RFC 9000 §17.2.5.3)."""
    retries = side.of_type(RETRY, got=True)
    if not side.is_client or not len(retries):
        return
    packets = side.capture.packets
    retry = int(retries[0])
    source = side.ids("scid", retries[:1])[0]
    initials = side.of_type(INITIAL)
    before, after = initials[initials < retry], side.with_id("dcid", source, initials[initials > retry])
    theirs = side.sent_by_peer
    if not len(after) or (side.capture.type[theirs[theirs < retry]] != NEGOTIATION).any():
        return  # a client drops a Retry that follows another packet of the server
    token = packets.cell("token", retry)
    # The first packet to the new connection ID shows that the client has read the Retry.
    tokens = [row for row in initials[initials >= after[0]].tolist() if packets.cell("token", row) != token]
    if token is not None and tokens:
        yield Broken(
            rule="rfc9000-17.2.5.3-token-not-echoed",
            actual=f"{len(tokens)} Initial packets have another token or none",
            packets=(retry, *tokens[:4]),
        )
    new_numbers, old_numbers = (packets["packet_number"][rows] for rows in (after, before))
    if len(before) and new_numbers.min() <= old_numbers.max():
        yield Broken(
            rule="rfc9000-17.2.5.3-number-reset",
            actual=f"packet number {new_numbers.min()} follows {old_numbers.max()}",
            packets=(int(before[-1]), int(after[0])),
        )
    if packets["version"][after[0]] != packets["version"][retry]:
        yield Broken(
            rule="rfc9369-4.1-version-after-retry",
            actual=f"version 0x{packets['version'][after[0]]:08x} in the Initial packet after the Retry, "
            f"0x{packets['version'][retry]:08x} in the Retry",
            packets=(retry, int(after[0])),
        )
    old, new = _crypto(side, before), _crypto(side, after)
    differs = [at for at in old.keys() & new.keys() if old[at] != new[at]]
    if differs:
        yield Broken(
            rule="rfc9000-17.2.5.3-hello-changed",
            actual=f"byte {min(differs)} of the CRYPTO data differs",
            packets=(int(before[0]), int(after[0])),
        )


def _crypto(side: Side, packets: Ints) -> dict[int, int]:
    """Offset → byte of the CRYPTO data in these packets. Where packets differ, the byte of the first packet counts:
    after a HelloRetryRequest, a second ClientHello follows."""
    frames = side.capture.frames
    data: dict[int, int] = {}
    for row in side.frames("crypto"):
        if frames["packet"][row] in packets:
            for at, byte in enumerate(frames.cell("payload", int(row)) or b"", int(frames["offset"][row])):
                data.setdefault(at, byte)
    return data


def tokens(side: Side) -> Iterator[Broken]:
    """All Initial packets before a Retry carry the token of the first Initial packet (RFC 9000 §8.1.3). After Version
    Negotiation, a client leaves out a token of another version (RFC 9369 §5)."""
    if not side.is_client or not side.whole:
        return
    packets = side.capture.packets
    initials = side.of_type(INITIAL)
    retries = side.of_type(RETRY, got=True)
    initials = initials[initials < retries[0]] if len(retries) else initials
    if not len(initials):
        return
    if len(side.of_type(NEGOTIATION, got=True)):
        initials = initials[packets["version"][initials] == packets["version"][initials[0]]]
    token = packets.cell("token", int(initials[0]))
    other = [int(row) for row in initials if packets.cell("token", int(row)) != token]
    if token and other:
        yield Broken(
            rule="rfc9000-8.1.3-token-left-out",
            actual=f"{len(other)} Initial packets without the token of the first Initial packet",
            packets=(int(initials[0]), *other[:4]),
        )


def token_versions(side: Side, earlier: list[Side]) -> Iterator[Broken]:
    """A client uses a NEW_TOKEN token only with the QUIC version in which the server issued it (RFC 9369 §5)."""
    initials = side.of_type(INITIAL)
    if not side.is_client or not len(initials):
        return
    packets = side.capture.packets
    token = packets.cell("token", int(initials[0]))
    for client in earlier:
        frames = client.capture.frames
        if not client.is_client or not token:
            continue
        issued = {frames.cell("payload", int(row)) for row in client.frames("new_token", got=True)}
        version = client.scope.row.value("version")
        if token in issued and version != packets["version"][initials[0]]:
            yield Broken(
                rule="rfc9369-5-token-of-other-version",
                actual=f"a token from a connection of version 0x{version:08x} in an Initial packet of version "
                f"0x{packets['version'][initials[0]]:08x}",
                packets=shown(initials[:1]),
            )
            return


def amplified(side: Side) -> Iterator[Broken]:
    """The server keeps the anti-amplification limit of the handshake (RFC 9000 §8.1)."""
    if side.is_client or not side.whole or not side.peer_read:
        return
    limit = amplification(side.scope)
    if limit is None or not limit.excess:
        return
    packet: tuple[int, ...] = ()
    if limit.place is not None:
        records = side.capture.datagrams["record"][side.capture.packets["datagram"][side.sent]]
        packet = tuple(int(row) for row in side.sent[records == limit.place.record][:1])
    yield Broken(
        rule="rfc9000-8.1-amplification",
        actual=f"{limit.sent} B were sent after {limit.received} B had been received",
        packets=packet,
    )


def negotiation(side: Side) -> Iterator[Broken]:
    """Only a server sends Version Negotiation, in response to a client's packet (RFC 9000 §6.1, §17.2.1)."""
    rows = side.sent[side.capture.type[side.sent] == NEGOTIATION]
    if side.is_client:
        if len(rows):
            yield Broken(
                rule="rfc9000-6.1-negotiation-from-client",
                actual=f"{len(rows)} Version Negotiation packets",
                packets=shown(rows),
            )
        return
    capture = side.capture
    (sources, source_ids), (targets, target_ids) = capture.ids("scid"), capture.ids("dcid")
    requests = np.flatnonzero(
        (capture.packets["connection"] == side.scope.number)
        & (capture.packets["sender"] == 1 - side.sender)
        & (capture.packets["version"] != NULL)
    )
    for row in rows.tolist():
        before = requests[requests < row]
        if not len(before):
            continue
        source = [packet for packet in before.tolist() if source_ids[sources[packet]] == target_ids[targets[row]]]
        target = [packet for packet in before.tolist() if target_ids[targets[packet]] == source_ids[sources[row]]]
        if not source:
            yield Broken(
                rule="rfc9000-17.2.1-negotiation-destination",
                actual=f"destination connection ID {target_ids[targets[row]].hex()}, "
                "but no packet of the client has this source connection ID",
                packets=(int(before[-1]), row),
            )
        if not target:
            yield Broken(
                rule="rfc9000-17.2.1-negotiation-source",
                actual=f"source connection ID {source_ids[sources[row]].hex()}, "
                "but no packet of the client has this destination connection ID",
                packets=(int(before[-1]), row),
            )
        if source and target:
            length = capture.datagrams["payload_length"][capture.packets["datagram"][source]]
            if (length < _FULL).all():
                yield Broken(
                    rule="rfc9000-5.2.2-small-datagram-answered",
                    actual=f"Version Negotiation in response to a datagram of {int(length[-1])} B",
                    packets=(source[-1], row),
                )


def backoff(side: Side) -> Iterator[Broken]:
    """The time between probes grows while no packet arrives (RFC 9002 §6.2.1)."""
    if not side.is_client or not side.whole:
        return
    theirs = side.sent_by_peer
    initials = side.of_type(INITIAL)
    initials = initials[initials < theirs[0]] if len(theirs) else initials
    times = np.unique(side.time(initials))
    flights = times[np.concatenate(([True], np.diff(times) > _FLIGHT_NS))] if len(times) else times
    gaps = np.diff(flights)
    short = np.flatnonzero(gaps[1:] < _BACKOFF * gaps[:-1])
    if len(short):
        at = int(short[0])
        yield Broken(
            rule="rfc9002-6.2.1-backoff",
            actual=f"{gaps[at] / 1e9:.3f} s between the first two of three flights, then {gaps[at + 1] / 1e9:.3f} s",
            packets=tuple(int(initials[side.time(initials) == flights[at + step]][0]) for step in range(3)),
        )


DETECTORS = (retry_from_server, retry_at_client, tokens, amplified, negotiation, backoff)
