"""Edits that keep the rest of a recording valid: sizes, packet numbers, acknowledgments, CRYPTO offsets."""

import copy
from collections.abc import Callable, Iterator

from lab.mutate import tls
from lab.mutate.connection import Connection
from lab.mutate.frames import F, Frame, padding
from lab.mutate.packets import LONG, Kind, Packet
from lab.mutate.recording import CLIENT, Datagram, Recording
from lab.mutate.tls import Message, Parameters

LEAST_INITIAL = 1200  # bytes of a datagram with an Initial packet (RFC 9000 §14.1)
MTU = 1452  # most bytes of UDP payload over Ethernet and IPv6


class UnfitError(Exception):
    """This rule can't be broken in this way in this recording."""


def space_packets(
    recording: Recording, connection: Connection, sender: str, space: str
) -> Iterator[tuple[Datagram, Packet]]:
    """All packets of one packet number space of one sender."""
    for datagram, packet in recording.packets(sender):
        if datagram.connection is connection and packet.opened and packet.space == space:
            yield datagram, packet


def keep_size(datagram: Datagram, size: int) -> None:
    """Restore the `size` of a datagram with an Initial packet, as far as padding allows it. Other datagrams may change
    their size."""
    initial = [packet for packet in datagram.packets if packet.kind is Kind.INITIAL]
    if initial and datagram.size != size:
        difference = size - datagram.size
        if difference < 0:
            for packet in datagram.packets:
                if datagram.size > size:
                    packet.pad(size - datagram.size)
        else:
            long = [packet for packet in datagram.packets if packet.kind in LONG]
            long[-1].pad(difference)


def copied(packet: Packet, *frames: Frame, number: int | None = None) -> Packet:
    """A packet with the header of another packet, and with these frames."""
    twin = copy.copy(packet)
    twin.frames = list(frames)
    twin.number = packet.number if number is None else number
    twin.trailer = b""
    twin.changed = True
    return twin


def renumber(  # noqa: PLR0917
    recording: Recording, connection: Connection, sender: str, space: str, start: int, acked_from_ns: int
) -> None:
    """Raise all packet numbers from `start` on by 1, also in ACKs. ACKs from `acked_from_ns` on also acknowledge
    `start`."""
    peer = "server" if sender == "client" else "client"
    for _, packet in space_packets(recording, connection, sender, space):
        if packet.number >= start:
            packet.number += 1
            packet.changed = True
    for datagram, packet in space_packets(recording, connection, peer, space):
        for frame in packet.frames:
            if frame.is_ack and frame.ranges[0][1] >= start - 1:
                ranges = _raised(frame.ranges, start, acked=datagram.sent_ns >= acked_from_ns)
                if ranges != frame.ranges:
                    packet.swap(frame, frame.but(ranges=ranges))
                    if packet.kind is Kind.ONE_RTT and datagram.size > MTU:
                        raise UnfitError("an ACK that grows makes a datagram too large")


def _raised(ranges: tuple[tuple[int, int], ...], start: int, *, acked: bool) -> tuple[tuple[int, int], ...]:
    numbers: list[tuple[int, int]] = []
    for low, high in ranges:
        if high < start:
            numbers.append((low, high))
        elif low >= start:
            numbers.append((low + 1, high + 1))
        else:
            numbers += [(start + 1, high + 1), (low, start - 1)]
    if acked and numbers[0][1] > start:
        numbers.append((start, start))
    numbers.sort(reverse=True)
    joined = [numbers[0]]
    for low, high in numbers[1:]:
        if high + 1 >= joined[-1][0]:
            joined[-1] = (min(low, joined[-1][0]), joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)


def insert_packet(
    recording: Recording, like: Datagram, template: Packet, *frames: Frame, after_s: float | None = None, size: int = 0
) -> tuple[Datagram, Packet]:
    """Send one more packet soon after another packet, with the next packet number. Later packet numbers are raised.

    `size`: bytes of the whole datagram, filled with PADDING; a datagram with an Initial packet gets 1200 B.
    """
    connection = like.connection
    if connection is None or not template.opened:
        raise UnfitError("no connection")
    number = template.number + 1
    if after_s is None:
        after_s = _free_time(recording, like)
    arrival = like.seen.get(like.receiver, like.seen[like.sender]).time_ns + round(after_s * 1e9)
    renumber(recording, connection, like.sender, template.space, number, arrival)
    _count(recording, like, template.space, number, arrival)
    packet = copied(template, *frames, number=number)
    if template.kind is Kind.INITIAL:
        size = max(size, LEAST_INITIAL)
    fill(packet, size)
    return recording.insert(like, [packet], after_s=after_s), packet


def _count(recording: Recording, like: Datagram, space: str, number: int, arrival_ns: int) -> None:
    """Add the ECN mark of the new packet to the receiver's ECN counts from its arrival on."""
    if not like.arrived or like.connection is None:
        return
    name = {1: "ect1", 2: "ect0", 3: "ce"}.get(like.seen[like.receiver].ecn)
    for datagram, packet in space_packets(recording, like.connection, like.receiver, space):
        for frame in packet.frames:
            if name and frame.type == F.ACK_ECN and datagram.sent_ns >= arrival_ns and frame.ranges[0][1] >= number:
                packet.swap(frame, frame.with_value(name, frame[name] + 1))


def _free_time(recording: Recording, like: Datagram) -> float:
    """A time before the sender's next datagram, in seconds after this datagram."""
    later = (each.sent_ns for each in recording.datagrams if each.sender == like.sender and each.sent_ns > like.sent_ns)
    return min(0.0005, (min(later, default=like.sent_ns + 10**9) - like.sent_ns) / 2e9)


def fill(packet: Packet, size: int) -> None:
    """Fill the packet with PADDING up to this size of the whole packet."""
    packet.changed = True
    while (missing := size - len(packet.encode())) > 0:  # a second time if a short packet was already padded
        packet.frames = [*packet.frames, padding(missing)]


def rewrite_crypto(
    recording: Recording, connection: Connection, sender: str, space: str, edit: Callable[[bytes], bytes]
) -> None:
    """Change a CRYPTO stream in all its frames. Retransmissions get the same change, and later offsets move."""
    old = connection.crypto_stream(sender, space)
    new = edit(old)
    start = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    back = 0
    while back < min(len(old), len(new)) - start and old[-1 - back] == new[-1 - back]:
        back += 1
    stop, grown = len(old) - back, len(new) - len(old)

    def moved(offset: int, *, end: bool) -> int:
        if offset < start or (offset == start and not (end and start == stop == len(old))):
            return offset
        return offset + grown if offset >= stop else min(offset, start + max(stop + grown - start, 0))

    for datagram, packet in list(space_packets(recording, connection, sender, space)):
        size = datagram.size
        for frame in list(packet.frames):
            if frame.type == F.CRYPTO:
                low, high = moved(frame.offset, end=False), moved(frame.end, end=True)
                data = new[low:high]
                if (low, data) != (frame.offset, frame.data):
                    packet.swap(frame, *([frame.but(data=data, offset=low)] if data else []))
        packet.frames = packet.frames or [Frame(F.PING)]
        if packet.changed:
            keep_size(datagram, size)


def edit_message(
    recording: Recording, connection: Connection, sender: str, kind: int, edit: Callable[[Message], None]
) -> None:
    """Change one TLS message of a sender."""
    space = {tls.CLIENT_HELLO: "initial", tls.SERVER_HELLO: "initial", tls.NEW_SESSION_TICKET: "application"}
    done: list[Message] = []

    def change(stream: bytes) -> bytes:
        listed, rest = tls.messages(stream)
        for message in listed:
            if message.type == kind and not done:
                edit(message)
                done.append(message)
        return b"".join(message.encode() for message in listed) + rest

    rewrite_crypto(recording, connection, sender, space.get(kind, "handshake"), change)
    if not done:
        raise UnfitError(f"no message of type {kind}")


def edit_parameters(
    recording: Recording, connection: Connection, role: str, edit: Callable[[Parameters], Parameters]
) -> None:
    """Change the transport parameters of an endpoint."""

    def change(message: Message) -> None:
        old = message.get(tls.TRANSPORT_PARAMETERS)
        if old is None:
            raise UnfitError("no transport parameters")
        message.set(tls.TRANSPORT_PARAMETERS, tls.encode_parameters(edit(tls.parameters(old))))

    kind = tls.CLIENT_HELLO if role == CLIENT else tls.ENCRYPTED_EXTENSIONS
    edit_message(recording, connection, role, kind, change)


def parameters_of(connection: Connection, role: str) -> dict[int, bytes]:
    """The transport parameters that an endpoint sent."""
    space = "initial" if role == CLIENT else "handshake"
    for message in tls.messages(connection.crypto_stream(role, space))[0]:
        data = message.get(tls.TRANSPORT_PARAMETERS)
        if data is not None:
            return dict(tls.parameters(data))
    raise UnfitError("no transport parameters")
