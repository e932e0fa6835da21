"""Groups the protected packets that could not be decrypted by connection, sender and type. No verdict can use these
packets."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.decode.keylog import APPLICATION, EARLY, HANDSHAKE
from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Ints
from runner.trace.nouns import UnreadPackets
from runner.trace.vantage import NULL, SPACE_OF_TYPE, Recording, Vantage

TYPES = ("initial", "0rtt", "handshake", "1rtt")
"""Types of packets that have packet protection (RFC 9001 §5)."""

_SHOWN = 5  # packets that a group shows
_ROLES = {CLIENT: "client", SERVER: "server"}
_SENDERS, _KINDS = 3, len(TYPES)  # client, server, unknown

Group = tuple[int, int, int]
"""connection, or NULL when it is unknown; sender, or NULL; position in TYPES"""


def protected(recording: Recording) -> tuple[int, int]:
    """The number of protected packets in both captures, and the number of protected packets that could not be
    decrypted."""
    counts = [_protected_rows(vantage) for vantage in recording.vantages]
    unread = sum(
        int((vantage.packets["decrypted"][rows] == 0).sum())
        for vantage, rows in zip(recording.vantages, counts, strict=True)
    )
    return sum(len(rows) for rows in counts), unread


def unread(recording: Recording) -> tuple[UnreadPackets, ...]:
    """The groups with packets that could not be decrypted, ordered by connection, sender and type.

    If the capture at the sender's end contains such packets, this capture counts, because the link may have changed
    packets in the other capture.
    """
    counted = [(vantage, _groups(vantage)) for vantage in recording.vantages]
    opened = {group for _, groups in counted for group, count in groups.items() if count.packets > len(count.unread)}
    worst: dict[Group, tuple[Vantage, _Count]] = {}
    for vantage, groups in counted:
        for group, count in groups.items():
            known = worst.get(group)
            near = group[1] != NULL and vantage is recording.near(group[1])
            if len(count.unread) and (known is None or near):
                worst[group] = vantage, count
    order = sorted(worst, key=lambda group: (group[0] == NULL, group))
    return tuple(_noun(recording, group, *worst[group], none_read=group not in opened) for group in order)


@dataclass(frozen=True)
class _Count:
    """One group in one capture: the number of its packets, and the rows of its packets that could not be decrypted."""

    packets: int
    unread: Ints


def may_be_authentic(recording: Recording, connection: int, sender: int, kind: str) -> bool:
    """Whether the peer may have read a packet of this kind that could not be decrypted here.

    When the keys decrypt other packets of this kind, nobody can read such a packet (RFC 9001 §5.2), unless the decoder
    is wrong. Then the peer acknowledges packet numbers that were not read.
    """
    vantage, space = recording.near(sender) or recording.far(sender), SPACE_OF_TYPE[kind]
    assert vantage is not None
    packets = vantage.packets
    mine = (packets["connection"] == connection) & (packets["sender"] == sender) & (packets["decrypted"] == 1)
    if kind == "0rtt" and recording.connections[connection].either("early_data_offered") is False:
        return False
    if not (mine & packets.named("type", kind)).any():
        return True
    numbers = np.unique(packets["packet_number"][mine & (vantage.packet_space == space)])
    peer = recording.far(sender) or vantage
    acks = peer.ack_frames
    rows = (acks["connection"] == connection) & (acks["sender"] == 1 - sender) & (peer.ack_space == space)
    ranges = peer.trace.ack_frames.column("ranges").take(np.flatnonzero(rows)).combine_chunks().flatten()
    first, last = ranges.field("first").to_numpy(), ranges.field("last").to_numpy()
    read = np.searchsorted(numbers, last, side="right") - np.searchsorted(numbers, first)
    return bool((read <= last - first).any())


def _protected_rows(vantage: Vantage) -> Ints:
    return np.flatnonzero(vantage.packets.named("type", *TYPES))


def _groups(vantage: Vantage) -> dict[Group, _Count]:
    """Every group in one capture."""
    rows = _protected_rows(vantage)
    keys = _keys(vantage)[rows]
    groups, every = np.unique(keys, return_counts=True)
    failed = vantage.packets["decrypted"][rows] == 0
    keys, rows = keys[failed], rows[failed]
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    begins, ends = np.searchsorted(keys, groups), np.searchsorted(keys, groups, side="right")
    return {
        _group(number): _Count(packets, rows[begin:end])
        for number, packets, begin, end in zip(
            groups.tolist(), every.tolist(), begins.tolist(), ends.tolist(), strict=True
        )
    }


def _keys(vantage: Vantage) -> Ints:
    """Per packet: the number of its group."""
    packets = vantage.packets
    kind = packets.codes("type", {name: at for at, name in enumerate(TYPES)})
    return ((packets["connection"] + 1) * _SENDERS + packets["sender"] + 1) * _KINDS + kind


def _group(number: int) -> Group:
    rest, kind = divmod(number, _KINDS)
    connection, sender = divmod(rest, _SENDERS)
    return connection - 1, sender - 1, kind


def _noun(recording: Recording, group: Group, vantage: Vantage, count: _Count, *, none_read: bool) -> UnreadPackets:
    connection, sender, kind = group
    row = recording.connections[connection] if connection != NULL else None
    secret = _label(sender, TYPES[kind])
    logged: Any = row.value("secrets") if row is not None else None
    datagrams = dict.fromkeys(vantage.packets["datagram"][count.unread[: 4 * _SHOWN]].tolist())
    places = (recording.place(vantage, datagram) for datagram in tuple(datagrams)[:_SHOWN])
    return UnreadPackets(
        connection=None if connection == NULL else connection,
        client_random=row.value("client_random") if row is not None else None,
        sender=_ROLES.get(sender, ""),
        type=TYPES[kind],
        secret=secret,
        secret_logged=None if logged is None else secret in logged,
        packets=count.packets,
        unread=len(count.unread),
        near=sender != NULL and vantage is recording.near(sender),
        none_read=none_read,
        may_be_authentic=NULL in (connection, sender) or may_be_authentic(recording, connection, sender, TYPES[kind]),
        places=tuple(place for place in places if place is not None),
    )


def _label(sender: int, kind: str) -> str:
    """The label in key logs of the secret for these packets (RFC 9001 §4, draft-ietf-tls-keylogfile)."""
    if sender == NULL or kind == "initial":
        return ""
    if kind == "0rtt":
        return EARLY
    return (HANDSHAKE if kind == "handshake" else APPLICATION)[sender]
