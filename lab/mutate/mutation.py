"""The context in which a mutant breaks its rule: a recording, a connection, the role that breaks it, and a random
generator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from lab.mutate import edits, tls
from lab.mutate.connection import Connection
from lab.mutate.edits import MTU, UnfitError
from lab.mutate.frames import F, Frame, padding
from lab.mutate.packets import Kind, Packet
from lab.mutate.recording import CLIENT, SERVER, Datagram, Recording, anything
from lab.mutate.tls import Message
from lab.mutate.wire import Reader

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
        self,
        kind: Kind | None = None,
        *,
        sender: str = "",
        where: Callable[[Datagram, Packet], bool] = anything,
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
        return edits.insert_packet(self.recording, datagram, packet, *frames, size=size)

    def send_after(self, sent: Sent, *frames: Frame, size: int = 0, after_s: float | None = None) -> Sent:
        """Send one more packet with these frames soon after the packet `sent`."""
        return edits.insert_packet(self.recording, *sent, *frames, size=size, after_s=after_s)

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
        edits.keep_size(datagram, size)

    def replace(self, sent: Sent, old: Frame, *new: Frame) -> None:
        """Replace a frame by other frames. A datagram with an Initial packet keeps its size."""
        datagram, packet = sent
        size = datagram.size
        packet.swap(old, *new)
        if not packet.frames:
            packet.frames = [padding(1)]
        edits.keep_size(datagram, size)

    # Transport parameters and TLS

    def parameters(self, role: str = "") -> dict[int, bytes]:
        """The transport parameters of the role, or of another role."""
        return edits.parameters_of(self.connection, role or self.role)

    def parameter(self, kind: int, role: str, default: int = 0) -> int:
        """A transport parameter that is an integer."""
        data = self.parameters(role).get(kind)
        return default if data is None else Reader(data).varint()

    def set_parameter(self, kind: int, data: bytes | int | None, role: str = "") -> None:
        """Change, add or remove a transport parameter."""
        self.edit_parameters(lambda listed: tls.with_parameter(listed, kind, data), role)

    def edit_parameters(self, edit: Callable[[tls.Parameters], tls.Parameters], role: str = "") -> None:
        """Change the list of transport parameters."""
        edits.edit_parameters(self.recording, self.connection, role or self.role, edit)
        self._reread()

    def edit_message(self, kind: int, edit: Callable[[Message], None], role: str = "") -> None:
        """Change a TLS message."""
        edits.edit_message(self.recording, self.connection, role or self.role, kind, edit)
        self._reread()

    def _reread(self) -> None:
        """Collect the CRYPTO streams again after an edit."""
        self.connection.crypto.clear()
        for sender in (CLIENT, SERVER):
            for _, packet, frame in self.frames(F.CRYPTO, sender=sender):
                self.connection.add_crypto(sender, packet.space, frame)
