"""The context in which a mutant breaks its rule: a recording, a connection, the role that breaks it, and a random
generator. Edits keep the rest of the recording valid: sizes, packet numbers, acknowledgments, CRYPTO offsets.
"""

import copy
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from lab.mutate.recording import CLIENT, SERVER, Connection, Datagram, Recording, anything
from lab.mutate.wire import (
    CLIENT_HELLO,
    ENCRYPTED_EXTENSIONS,
    LONG,
    NEW_SESSION_TICKET,
    SERVER_HELLO,
    TRANSPORT_PARAMETERS,
    F,
    Frame,
    Kind,
    Message,
    Packet,
    Parameters,
    Reader,
    encode_parameters,
    messages,
    padding,
    parameters,
    with_parameter,
)

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
    space = {CLIENT_HELLO: "initial", SERVER_HELLO: "initial", NEW_SESSION_TICKET: "application"}
    done: list[Message] = []

    def change(stream: bytes) -> bytes:
        listed, rest = messages(stream)
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
        old = message.get(TRANSPORT_PARAMETERS)
        if old is None:
            raise UnfitError("no transport parameters")
        message.set(TRANSPORT_PARAMETERS, encode_parameters(edit(parameters(old))))

    kind = CLIENT_HELLO if role == CLIENT else ENCRYPTED_EXTENSIONS
    edit_message(recording, connection, role, kind, change)


def parameters_of(connection: Connection, role: str) -> dict[int, bytes]:
    """The transport parameters that an endpoint sent."""
    space = "initial" if role == CLIENT else "handshake"
    for message in messages(connection.crypto_stream(role, space))[0]:
        data = message.get(TRANSPORT_PARAMETERS)
        if data is not None:
            return dict(parameters(data))
    raise UnfitError("no transport parameters")


Sent = tuple[Datagram, Packet]
T = TypeVar("T")


@dataclass
class Stream:
    """The frames that a role sent on a stream."""

    id: int
    sent: list[tuple[Datagram, Packet, Frame]] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return max(frame.end for _, _, frame in self.sent)

    @property
    def finished(self) -> bool:
        """Whether the end of the stream was sent."""
        return any(frame.fin for _, _, frame in self.sent)


@dataclass
class Mutation:
    """Lets `role` break one rule in `connection`. `rng` makes all free choices."""

    recording: Recording
    connection: Connection
    role: str
    rng: Random

    @property
    def peer(self) -> str:
        """The other role."""
        return SERVER if self.role == CLIENT else CLIENT

    def pick(self, candidates: Sequence[T], why: str = "nothing that fits") -> T:
        """Choose one of the candidates. Raises UnfitError when there is none."""
        if not candidates:
            raise UnfitError(why)
        return self.rng.choice(candidates)

    def need(self, condition: object, why: str) -> None:
        """Raise UnfitError unless the condition holds."""
        if not condition:
            raise UnfitError(why)

    # The sent packets and frames

    def packets(
        self, kind: Kind | None = None, *, sender: str = "", where: Callable[[Datagram, Packet], bool] = anything
    ) -> list[Sent]:
        """The packets of this connection that can be edited and that the role (or `sender`) sent."""
        return [
            (datagram, packet)
            for datagram, packet in self.recording.packets(sender or self.role, kind)
            if datagram.connection is self.connection and where(datagram, packet)
        ]

    def frames(self, *types: int, sender: str = "") -> list[tuple[Datagram, Packet, Frame]]:
        """The frames of these types that the role (or `sender`) sent."""
        return [
            (datagram, packet, frame)
            for datagram, packet in self.packets(sender=sender)
            for frame in packet.frames
            if frame.type in types or (F.STREAM in types and frame.is_stream)
        ]

    def streams(self, sender: str = "") -> dict[int, Stream]:
        """The streams on which a role sent data."""
        streams: dict[int, Stream] = {}
        for datagram, packet, frame in self.frames(F.STREAM, sender=sender):
            streams.setdefault(frame["stream"], Stream(frame["stream"])).sent.append((datagram, packet, frame))
        return streams

    @property
    def confirmed_ns(self) -> int:
        """When the handshake was confirmed at the role (RFC 9001 §4.1.2)."""
        done = self.frames(F.HANDSHAKE_DONE, sender=SERVER)
        self.need(done, "the handshake was never confirmed")
        times = [datagram.seen[self.role].time_ns for datagram, _, _ in done if self.role in datagram.seen]
        self.need(times, "HANDSHAKE_DONE never arrived")
        return min(times)

    @property
    def closed_ns(self) -> int:
        """When the first endpoint closed the connection; a time far in the future when no endpoint did."""
        closes = [
            datagram.sent_ns
            for role in (CLIENT, SERVER)
            for datagram, _, _ in self.frames(F.CLOSE, F.CLOSE_APPLICATION, sender=role)
        ]
        return min(closes, default=1 << 62)

    def acked_later(self, datagram: Datagram, packet: Packet) -> bool:
        """Whether the peer later acknowledges a packet with a higher number, and so would acknowledge a packet that is
        inserted before it."""
        return any(
            frame.ranges[0][1] > packet.number and ack.space == packet.space and sent.sent_ns > datagram.sent_ns
            for sent, ack, frame in self.frames(F.ACK, F.ACK_ECN, sender=self.peer)
        )

    def hosts(self, kind: Kind = Kind.ONE_RTT, *, confirmed: bool = True) -> list[Sent]:
        """Packets after which another packet can be sent, or into which frames can be inserted, without breaking
        another rule."""
        least = self.confirmed_ns if kind is Kind.ONE_RTT and confirmed else 0
        unsure = self.unsure_ns()
        last = max((packet.number for _, packet in self.packets(kind)), default=-1)
        closed = self.closed_ns

        def fits(datagram: Datagram, packet: Packet) -> bool:
            return (
                datagram.arrived
                and datagram.opened
                and packet.opened
                and least <= datagram.sent_ns < closed
                and not any(start <= datagram.sent_ns <= stop for start, stop in unsure)
                and packet.number < last
                and self.acked_later(datagram, packet)
            )

        return self.packets(kind, where=fits)

    def unsure_ns(self) -> list[tuple[int, int]]:
        """The times (start, end) in which the server sends to an address that it has not validated. One more packet
        then might exceed the anti-amplification limit."""
        sent = [datagram for datagram, _ in self.packets(Kind.ONE_RTT, sender=SERVER) if SERVER in datagram.seen]
        answers = [
            datagram for datagram, _, _ in self.frames(F.PATH_RESPONSE, sender=CLIENT) if SERVER in datagram.seen
        ]
        if self.role == CLIENT or not sent:
            return []
        begun: dict[tuple[bytes, int], int] = {}
        for datagram in sent:
            begun.setdefault(datagram.seen[SERVER].destination, datagram.sent_ns)
        valid = {each.seen[SERVER].source: each.seen[SERVER].time_ns for each in answers}
        first = sent[0].seen[SERVER].destination
        return [(start, valid.get(address, 1 << 62)) for address, start in begun.items() if address != first]

    # Changes

    def send(self, *frames: Frame, kind: Kind = Kind.ONE_RTT, size: int = 0, confirmed: bool = True) -> Sent:
        """Send one more packet with these frames at a random time. The peer acknowledges it."""
        datagram, packet = self.pick(
            self.hosts(kind, confirmed=confirmed), f"no place for one more {kind.value} packet"
        )
        return insert_packet(self.recording, datagram, packet, *frames, size=size)

    def send_after(self, sent: Sent, *frames: Frame, size: int = 0, after_s: float | None = None) -> Sent:
        """Send one more packet with these frames soon after the packet `sent`."""
        return insert_packet(self.recording, *sent, *frames, size=size, after_s=after_s)

    def add(self, kind: Kind, *frames: Frame) -> Sent:
        """Put frames into an ack-eliciting packet, in the place of its PADDING if it has PADDING."""
        room = sum(len(frame.encode()) for frame in frames)
        candidates = [
            (datagram, packet)
            for datagram, packet in self.packets(kind)
            if datagram.arrived and packet.opened and packet.eliciting and datagram.size + room <= MTU
        ]
        datagram, packet = self.pick(candidates, f"no {kind.value} packet with room")
        self.add_to((datagram, packet), *frames)
        return datagram, packet

    def add_to(self, sent: Sent, *frames: Frame) -> None:
        """Put frames into this packet."""
        datagram, packet = sent
        size = datagram.size
        packet.add(*frames)
        keep_size(datagram, size)

    def replace(self, sent: Sent, old: Frame, *new: Frame) -> None:
        """Replace a frame by other frames. A datagram with an Initial packet keeps its size."""
        datagram, packet = sent
        size = datagram.size
        packet.swap(old, *new)
        if not packet.frames:
            packet.frames = [padding(1)]
        keep_size(datagram, size)

    # Transport parameters and TLS

    def parameters(self, role: str = "") -> dict[int, bytes]:
        """The transport parameters of the role, or of another role."""
        return parameters_of(self.connection, role or self.role)

    def parameter(self, kind: int, role: str, default: int = 0) -> int:
        """A transport parameter that is an integer."""
        data = self.parameters(role).get(kind)
        return default if data is None else Reader(data).varint()

    def set_parameter(self, kind: int, data: bytes | int | None, role: str = "") -> None:
        """Change, add or remove a transport parameter."""
        self.edit_parameters(lambda listed: with_parameter(listed, kind, data), role)

    def edit_parameters(self, edit: Callable[[Parameters], Parameters], role: str = "") -> None:
        """Change the list of transport parameters."""
        edit_parameters(self.recording, self.connection, role or self.role, edit)
        self._reread()

    def edit_message(self, kind: int, edit: Callable[[Message], None], role: str = "") -> None:
        """Change a TLS message."""
        edit_message(self.recording, self.connection, role or self.role, kind, edit)
        self._reread()

    def _reread(self) -> None:
        """Collect the CRYPTO streams again after an edit."""
        self.connection.crypto.clear()
        for sender in (CLIENT, SERVER):
            for _, packet, frame in self.frames(F.CRYPTO, sender=sender):
                self.connection.add_crypto(sender, packet.space, frame)


Break = Callable[[Mutation], None]
TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())
MUTANTS: list["Mutant"] = []
BOTH = (CLIENT, SERVER)


@dataclass(frozen=True)
class Mutant:
    """A way in which `role` breaks `rule`. `along`: rules that are necessarily broken, too, each with the reason."""

    rule: str
    name: str
    role: str
    apply: Break
    cases: tuple[str, ...] = ()
    """Ends of the paths of the recordings to try first; empty: no recording is preferred."""
    along: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the mutant with its role."""
        return f"{self.rule} {self.name} ({self.role})"


def mutant(rule: str, *roles: str, cases: Sequence[str] = (), name: str = "") -> Callable[[Break], Break]:
    """Register a function as the mutants of a rule, one for each role that can break it. Without `name`, they are named
    after the function. `mutants.toml` has the rules that are broken along with this rule."""

    def register(function: Break) -> Break:
        for role in roles or BOTH:
            label = name or function.__name__.removeprefix("_")
            along = TABLES["along"].get(f"{rule} {label}", {})
            MUTANTS.append(Mutant(rule, label, role, function, tuple(cases), along))
        return function

    return register


# Any of these exceptions means that the mutant doesn't fit the recording.
_UNFIT = (UnfitError, IndexError, KeyError, ValueError, StopIteration, AssertionError)


def in_order(mutant: Mutant, folders: Sequence[Path], random: Random) -> list[Path]:
    """The recordings in the order in which they are tried: first those that the mutant names, then the others in random
    order."""
    shuffled = sorted(folders)
    random.shuffle(shuffled)
    # The recording in which each byte of the server counts is only for mutants that name it.
    if not mutant.cases:
        return sorted(shuffled, key=lambda folder: folder.parent.name == "amplificationlimit")
    return sorted(shuffled, key=lambda folder: folder.parent.name not in mutant.cases)


def make(mutant: Mutant, folders: Sequence[Path], seed: int, target: Path) -> tuple[Path, Path] | str:
    """The recording and the job folder of the mutant, or the reason why the last recording does not fit."""
    random = Random(f"{seed} {mutant.title}")
    why = "no recording"
    for folder in in_order(mutant, folders, random):
        for number in reversed(range(len(Recording.load(folder).connections))):
            recording = Recording.load(folder)
            try:
                mutant.apply(Mutation(recording, recording.connections[number], mutant.role, random))
            except _UNFIT as error:
                why = str(error) or type(error).__name__
                continue
            return folder, recording.save(target)
    return why
