"""The context in which a mutant breaks its rule: a recording, a connection, the role that breaks it, and a random
generator. Edits keep the rest of the recording valid: sizes, packet numbers, acknowledgments, CRYPTO offsets.
"""

import copy
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from aioquic.quic.rangeset import RangeSet

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


@contextmanager
def kept_size(datagram: Datagram) -> Iterator[None]:
    """Keep the size of a datagram with an Initial packet while it is edited, as far as padding allows it. Other
    datagrams may change their size."""
    size = datagram.size
    yield
    if any(packet.kind is Kind.INITIAL for packet in datagram.packets):
        for packet in datagram.packets:
            if datagram.size > size:
                packet.pad(size - datagram.size)
        if datagram.size < size:
            [packet for packet in datagram.packets if packet.kind in LONG][-1].pad(size - datagram.size)


def copied(packet: Packet, *frames: Frame, **fields: Any) -> Packet:
    """A packet with the header of another packet, but for these fields, and with these frames."""
    twin = copy.copy(packet)
    twin.edit(frames=list(frames), trailer=b"", **fields)
    return twin


def flipped(data: bytes, at: int = -1) -> bytes:
    """The same bytes with another value at one place."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def _common(first: bytes, second: bytes) -> int:
    """The number of bytes with which both begin."""
    differing = (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differing, min(len(first), len(second)))


def _raised(ranges: tuple[tuple[int, int], ...], start: int, *, acked: bool) -> tuple[tuple[int, int], ...]:
    """The ranges of an ACK when the numbers from `start` on are raised by 1. `acked`: `start` is acknowledged, too."""
    raised = RangeSet()
    for low, high in ranges:
        if low < start:
            raised.add(low, min(high + 1, start))
        if high >= start:
            raised.add(max(low, start) + 1, high + 2)
    if acked and ranges[0][1] >= start:
        raised.add(start, start + 1)
    return tuple((each.start, each.stop - 1) for each in reversed(list(raised)))


def fill(packet: Packet, size: int) -> None:
    """Fill the packet with PADDING up to this size of the whole packet."""
    packet.changed = True
    while (missing := size - len(packet.encode())) > 0:  # a second time if a short packet was already padded
        packet.frames = [*packet.frames, padding(missing)]


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

    def by(self, role: str) -> "Mutation":
        """The same connection, for another role."""
        return Mutation(self.recording, self.connection, role, self.rng)

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
        sent = self.recording.frames(*types, sender=sender or self.role)
        return [each for each in sent if each[0].connection is self.connection]

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
        like = self.pick(self.hosts(kind, confirmed=confirmed), f"no place for one more {kind.value} packet")
        return self.send_after(like, *frames, size=size)

    def send_after(self, sent: Sent, *frames: Frame, size: int = 0, after_s: float | None = None) -> Sent:
        """Send one more packet soon after the packet `sent`, with the next packet number. Later packet numbers are
        raised.

        `size`: bytes of the whole datagram, filled with PADDING; a datagram with an Initial packet gets 1200 B.
        """
        like, template = sent
        if like.connection is not self.connection or not template.opened:
            raise UnfitError("no connection")
        number = template.number + 1
        if after_s is None:
            after_s = self._free_time(like)
        arrival = like.seen.get(like.receiver, like.seen[like.sender]).time_ns + round(after_s * 1e9)
        self.renumber(like.sender, template.space, number, arrival)
        self._count(like, template.space, number, arrival)
        packet = copied(template, *frames, number=number)
        fill(packet, max(size, LEAST_INITIAL) if template.kind is Kind.INITIAL else size)
        return self.recording.insert(like, [packet], after_s=after_s), packet

    def renumber(self, sender: str, space: str, start: int, acked_from_ns: int) -> None:
        """Raise all packet numbers of a space from `start` on by 1, also in ACKs. ACKs from `acked_from_ns` on also
        acknowledge `start`."""
        for _, packet in self._in_space(sender, space):
            if packet.number >= start:
                packet.edit(number=packet.number + 1)
        for datagram, packet in self._in_space(CLIENT if sender == SERVER else SERVER, space):
            for frame in packet.frames:
                if frame.is_ack and frame.ranges[0][1] >= start - 1:
                    ranges = _raised(frame.ranges, start, acked=datagram.sent_ns >= acked_from_ns)
                    if ranges != frame.ranges:
                        packet.swap(frame, frame.but(ranges=ranges))
                        if packet.kind is Kind.ONE_RTT and datagram.size > MTU:
                            raise UnfitError("an ACK that grows makes a datagram too large")

    def _in_space(self, sender: str, space: str) -> list[Sent]:
        """The packets of one packet number space of one sender."""
        return self.packets(sender=sender, where=lambda _, packet: packet.opened and packet.space == space)

    def _count(self, like: Datagram, space: str, number: int, arrival_ns: int) -> None:
        """Add the ECN mark of a new packet to the receiver's ECN counts from its arrival on."""
        if not like.arrived:
            return
        name = {1: "ect1", 2: "ect0", 3: "ce"}.get(like.seen[like.receiver].ecn, "")
        for datagram, packet in self._in_space(like.receiver, space):
            for frame in packet.frames:
                new = frame.type == F.ACK_ECN and datagram.sent_ns >= arrival_ns and frame.ranges[0][1] >= number
                if name and new:
                    packet.swap(frame, frame.but(**{name: frame[name] + 1}))

    def _free_time(self, like: Datagram) -> float:
        """A time before the sender's next datagram, in seconds after this datagram."""
        sent = (each.sent_ns for each in self.recording.datagrams if each.sender == like.sender)
        following = min((at for at in sent if at > like.sent_ns), default=like.sent_ns + 10**9)
        return min(0.0005, (following - like.sent_ns) / 2e9)

    def add(self, kind: Kind, *frames: Frame) -> Sent:
        """Put frames into an ack-eliciting packet, in the place of its PADDING if it has PADDING."""
        room = sum(len(frame.encode()) for frame in frames)
        candidates = [
            (datagram, packet)
            for datagram, packet in self.packets(kind)
            if datagram.arrived and packet.opened and packet.eliciting and datagram.size + room <= MTU
        ]
        sent = self.pick(candidates, f"no {kind.value} packet with room")
        self.add_to(sent, *frames)
        return sent

    def add_to(self, sent: Sent, *frames: Frame) -> None:
        """Put frames into this packet."""
        datagram, packet = sent
        with kept_size(datagram):
            packet.add(*frames)

    def replace(self, sent: Sent, old: Frame, *new: Frame) -> None:
        """Replace a frame by other frames. A datagram with an Initial packet keeps its size."""
        datagram, packet = sent
        with kept_size(datagram):
            packet.swap(old, *new)
            packet.frames = packet.frames or [padding(1)]

    # Transport parameters and TLS

    def parameters(self, role: str = "") -> dict[int, bytes]:
        """The transport parameters that the role, or another role, sent."""
        role = role or self.role
        stream = self.connection.crypto_stream(role, "initial" if role == CLIENT else "handshake")
        for message in messages(stream)[0]:
            if (data := message.get(TRANSPORT_PARAMETERS)) is not None:
                return dict(parameters(data))
        raise UnfitError("no transport parameters")

    def parameter(self, kind: int, role: str, default: int = 0) -> int:
        """A transport parameter that is an integer."""
        data = self.parameters(role).get(kind)
        return default if data is None else Reader(data).varint()

    def set_parameter(self, kind: int, data: bytes | int | None, role: str = "") -> None:
        """Change, add or remove a transport parameter."""
        self.edit_parameters(lambda listed: with_parameter(listed, kind, data), role)

    def edit_parameters(self, edit: Callable[[Parameters], Parameters], role: str = "") -> None:
        """Change the list of transport parameters."""

        def change(message: Message) -> None:
            old = message.get(TRANSPORT_PARAMETERS)
            if old is None:
                raise UnfitError("no transport parameters")
            message.set(TRANSPORT_PARAMETERS, encode_parameters(edit(parameters(old))))

        self.edit_message(CLIENT_HELLO if (role or self.role) == CLIENT else ENCRYPTED_EXTENSIONS, change, role)

    def edit_message(self, kind: int, edit: Callable[[Message], None], role: str = "") -> None:
        """Change the first TLS message of this kind."""
        sender = role or self.role
        space = {CLIENT_HELLO: "initial", SERVER_HELLO: "initial", NEW_SESSION_TICKET: "application"}
        listed, rest = messages(self.connection.crypto_stream(sender, space.get(kind, "handshake")))
        message = next((each for each in listed if each.type == kind), None)
        if message is None:
            raise UnfitError(f"no message of type {kind}")
        edit(message)
        new = b"".join(each.encode() for each in listed) + rest
        self._rewrite_crypto(sender, space.get(kind, "handshake"), new)
        self._reread()

    def _rewrite_crypto(self, sender: str, space: str, new: bytes) -> None:
        """Change a CRYPTO stream in all its frames. Retransmissions get the same change, and later offsets move."""
        old = self.connection.crypto_stream(sender, space)
        start = _common(old, new)
        back = _common(old[start:][::-1], new[start:][::-1])
        stop, grown = len(old) - back, len(new) - len(old)

        def moved(offset: int, *, end: bool) -> int:
            if offset < start or (offset == start and not (end and start == stop == len(old))):
                return offset
            return offset + grown if offset >= stop else min(offset, start + max(stop + grown - start, 0))

        for datagram, packet in self._in_space(sender, space):
            with kept_size(datagram):
                for frame in list(packet.frames):
                    if frame.type == F.CRYPTO:
                        low, high = moved(frame.offset, end=False), moved(frame.end, end=True)
                        data = new[low:high]
                        if (low, data) != (frame.offset, frame.data):
                            packet.swap(frame, *([frame.but(data=data, offset=low)] if data else []))
                packet.frames = packet.frames or [Frame(F.PING)]

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
