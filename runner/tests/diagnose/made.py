"""Transfers with a known cause. A small sender, a link and a client make each packet, in the decoder's tables. The
detectors must find the cause that is set here."""

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.decode.columns import CLIENT, SERVER
from runner.diagnose.explain import Explanation, explain
from runner.diagnose.path import LinkEvents
from runner.model.link import NO_LINK_IMPAIRMENTS, LinkImpairments, LinkParameters, SegmentRecord
from runner.tests.trace.tables import Ack, Frame, Packet, Stream, connection, trace
from runner.trace.establish import facts
from runner.trace.measure import sample
from runner.trace.streams import Transfer

HEADER = 30  # bytes of a packet around its stream data
IP_UDP = 28
ACK_DELAY = 0.025
ACK_FRAME = 12
_OVERTAKEN = 0.008  # s; two packets of a window of 80 kB
_FEW = 200  # bytes of the smallest packet that is sent
FIN_ACK = 2


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The settings of a transfer. Sizes in bytes, times in seconds, data rates in bit/s."""

    size: int = 1_500_000
    data_rate: int = 8_000_000
    delay: float = 0.1
    """Delay in each direction."""
    queue: int = 150
    """Size of the forward link's queue in packets."""
    packet: int = 1400
    initial_window: int = 14_000
    cap: int = 1 << 40
    """The largest congestion window."""
    receive_window: int = 1 << 40
    """MAX_DATA is this much larger than the arrived bytes. It is raised each time that half of it was used."""
    stall: tuple[float, float] = (1e9, 0.0)
    """Start (since the request) and duration of a time in which the application has nothing to send."""
    writes: tuple[int, float] = (1 << 40, 1e9)
    """(bytes, seconds): the size of a write of the application, and the time between two writes."""
    advertised: int = 0
    """Data rate in the contract of a real link; 0: the link is emulated."""
    shrink: tuple[float, float, int] = (1e9, 0.0, 0)
    """Start (since the request) and duration of a time in which the congestion window has at most this many bytes."""
    every: float = 1e9
    """Seconds from one such time to the next."""
    quantum: int = 1
    """Number of packets that the pacer sends at once."""
    pace: float = 1.25
    """The pacer's data rate, in congestion windows per RTT."""
    burst: bool = False
    """No pacing, and no packet is sent until the whole last window is acknowledged."""
    lost: Callable[[int], bool] = field(default=lambda _: False)
    """Function that returns True for packets of the server that the link loses, by number."""
    kept: float = 0.5
    """Share of the congestion window after a loss. The window doesn't grow again."""
    twice: bool = False
    early: int = 0
    """Every n-th packet is repeated 20 ms later; 0: none."""
    held: int = 0
    """Every n-th packet leaves after the eight packets that follow it; 0: none."""
    back: int = 0
    """Every n-th packet is followed by an empty packet with a lower number, which was skipped before; 0: none."""
    probe: int = 0
    """Bytes of a probe of the path's MTU that leaves before the response; 0: no probe."""
    with_ack: int = 0
    """Every n-th packet also carries an ACK frame, so that there is less space for data; 0: none."""
    late: Callable[[int], bool] = field(default=lambda _: False)
    """Whether the packets behind a packet of the server overtake it, so that the server takes it for lost as soon as a
    later packet is acknowledged. Its data is sent again, and the window falls."""
    back_rate: float = 1e12
    """Bit/s of the return link, whose queue has no limit."""
    pieces: int = 1 << 40
    """The stack takes pieces of this size from the application; no datagram has bytes of two pieces."""
    slow: float = 0.0
    """Seconds from an ACK to the packets that it allows."""
    fills: bool = False
    """Whether a short packet fills the rest of the congestion window."""
    ack_size: int = 70
    ack_every: int = 2
    ack_delay: float = ACK_DELAY
    """The longest time from a packet to its ACK, in seconds."""


class Made:
    """One transfer: sender, link and client make its packets."""

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        self.near: list[Packet] = []  # packets that passed the server's capture
        self.far: list[Packet] = []  # packets that passed the client's capture
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._now = 0.0
        self._run()

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), action))

    def _run(self) -> None:
        cause, rtt = self.cause, 2 * self.cause.delay
        self._window, self._number, self._offset = cause.initial_window, 0, 0
        self._unacked: dict[int, tuple[int, int, float]] = {}
        self._again: list[tuple[int, int]] = []
        self._largest, self._recovery = -1, -1
        self._limit, self._next_send, self._link_free = cause.receive_window, 0.0, 0.0
        self._held: list[tuple[int, int, int]] = []
        self._received: set[int] = set()
        self._seen: set[int] = set()
        self._to_ack, self._client_number, self._advertised = 0, 1, cause.receive_window
        self._begin = 1.5 * rtt
        for time, far_time, sender, number, kind, frames in (
            (cause.delay, 0.0, CLIENT, 0, "initial", ()),
            (cause.delay, rtt, SERVER, 0, "initial", ()),
            (self._begin, rtt, CLIENT, 0, "1rtt", (Stream(0, 0, 20, True),)),
        ):
            self.near.append(Packet(time, sender, number, frames, type=kind))
            self.far.append(Packet(far_time, sender, number, frames, type=kind))
        if cause.probe:
            self._emit_at_begin(cause.probe)
        self._at(self._begin, self._send)
        if cause.stall[0] < 1e9:
            self._at(self._begin + sum(cause.stall) + 1e-6, self._send)
        for turn in range(1, min(400, -(-cause.size // cause.writes[0]))):
            self._at(self._begin + turn * cause.writes[1] + 1e-6, self._send)
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()

    def _emit_at_begin(self, length: int) -> None:
        self._now = self._begin
        self._link(Packet(self._now, SERVER, self._number, (Frame("ping", 1),), length=length))
        self._number += 1

    @property
    def _in_flight(self) -> int:
        return sum(length for _, length, _ in self._unacked.values())

    def _allowed(self) -> bool:
        cause, since = self.cause, self._now - self._begin
        if cause.stall[0] <= since < sum(cause.stall):
            return False
        window = min(self._window, cause.cap)
        if since >= cause.shrink[0] and (since - cause.shrink[0]) % cause.every < cause.shrink[1]:
            window = min(window, cause.shrink[2])
        self._room = window - self._in_flight
        return self._room >= (_FEW if cause.fills else cause.packet)

    def _send(self) -> None:
        """Send as much as the windows and the pacer allow now."""
        cause = self.cause
        if cause.burst and self._unacked and not self._again and self._burst_done:
            return
        self._burst_done = False
        while self._allowed():
            if self._now < self._next_send and self._number % cause.quantum == 0:
                if self._wake <= self._now:
                    self._wake = self._next_send
                    self._at(self._wake, self._send)
                return
            if not self._send_one():
                return
            rate = 40e6 if cause.burst else cause.pace * 8 * min(self._window, cause.cap) / (2 * cause.delay)
            self._next_send = max(self._next_send, self._now - 1e-3) + 8 * cause.packet / max(rate, 1e5)
        self._burst_done = True

    _room = 0
    _back_free = 0.0
    _burst_done = False
    _wake = 0.0

    def _send_one(self) -> bool:
        """Send one packet. Returns False when there is nothing to send."""
        cause = self.cause
        if self._again:
            offset, length = self._again.pop(0)
        else:
            written = (1 + int((self._now - self._begin) / cause.writes[1])) * cause.writes[0]
            length = min(cause.packet - HEADER - self._ack_bytes, min(cause.size, written) - self._offset)
            length = min(length, cause.pieces - self._offset % cause.pieces)
            if cause.fills:
                length = min(length, self._room - HEADER)
            if length <= 0 or self._offset + length > self._limit:
                return False
            offset = self._offset
            self._offset += length
        if cause.back and self._number % cause.back == 0:
            self._number += 1
            self._emit(self._number, offset, length)
            self._emit(self._number - 1, 0, 0)
        elif cause.held and self._number % cause.held == 0 and self._offset < cause.size - 20 * cause.packet:
            self._held.append((self._number, offset, length))
            self._unacked[self._number] = (offset, length, self._now)
        else:
            self._emit(self._number, offset, length)
        self._number += 1
        if self._held and self._number > self._held[0][0] + 8:
            self._emit(*self._held.pop(0))
        if cause.early and self._number % cause.early == 0:
            self._at(self._now + 0.02, lambda: self._again.append((offset, length)))
        return True

    def _emit(self, number: int, offset: int, length: int) -> None:
        cause = self.cause
        frames: list[Stream | Ack | Frame] = [Frame("ping", 1)]
        if length:
            frames = [Stream(0, offset, length, offset + length == cause.size)]
            self._unacked[number] = (offset, length, self._now)
        extra = self._ack_bytes
        if extra:
            frames.append(Ack(((0, 0),)))
        packet = Packet(self._now, SERVER, number, tuple(frames), length=length + HEADER + extra)
        for _ in range(2 if cause.twice else 1):
            self._link(packet)
        self._at(self._now + 6 * cause.delay + 0.7, lambda: self._probe(number))

    @property
    def _ack_bytes(self) -> int:
        """Bytes of the ACK frame in the packet that is sent next."""
        return ACK_FRAME if self.cause.with_ack and self._number % self.cause.with_ack == 0 else 0

    def _link(self, packet: Packet) -> None:
        cause, number = self.cause, packet.number or 0
        self.near.append(packet)
        begin = max(self._now, self._link_free)
        serial = 8 * (packet.length + IP_UDP) / cause.data_rate
        if (begin - self._now) / serial > cause.queue:
            return
        self._link_free = begin + serial
        if not cause.lost(number):
            arrival = self._link_free + cause.delay + (_OVERTAKEN if cause.late(number) else 0.0)
            self._at(arrival, lambda: self._receive(packet, arrival))

    def _probe(self, number: int) -> None:
        """A probe timeout: send the data of the packet again if the packet is not acknowledged by now."""
        if number in self._unacked and number > self._largest - 3:
            self._again.append(self._unacked.pop(number)[:2])
            self._send()

    def _receive(self, packet: Packet, at: float) -> None:
        self.far.append(Packet(**{**vars(packet), "time": at}))
        assert packet.number is not None
        self._seen.add(packet.number)
        if isinstance(packet.frames[0], Stream):
            self._received.add(packet.frames[0].offset)
        self._to_ack += 1
        if self._to_ack >= self.cause.ack_every:
            self._acknowledge()
        elif self._to_ack == 1:
            self._at(self._now + self.cause.ack_delay, lambda: self._acknowledge() if self._to_ack else None)

    def _acknowledge(self) -> None:
        cause = self.cause
        self._to_ack = 0
        ranges: list[tuple[int, int]] = []
        for number in range(max(self._seen), max(-1, max(self._seen) - 400), -1):
            if number not in self._seen:
                continue
            if ranges and ranges[-1][0] == number + 1:
                ranges[-1] = (number, ranges[-1][1])
            else:
                ranges.append((number, number))
        frames: list[Ack | Frame] = [Ack(tuple(ranges))]
        arrived = len(self._received) * (cause.packet - HEADER)
        if self._advertised - arrived <= cause.receive_window // 2:
            self._advertised = arrived + cause.receive_window
            frames.append(Frame("max_data", 0x10, value=self._advertised))
        packet = Packet(self._now, CLIENT, self._client_number, tuple(frames), length=cause.ack_size)
        self._client_number += 1
        self.far.append(packet)
        self._back_free = max(self._back_free, self._now) + 8 * (cause.ack_size + IP_UDP) / cause.back_rate
        arrival = self._back_free + cause.delay
        advertised = self._advertised
        self._at(arrival, lambda: self._acknowledged(packet, tuple(ranges), advertised))

    def _acknowledged(self, packet: Packet, ranges: tuple[tuple[int, int], ...], limit: int) -> None:
        self.near.append(Packet(**{**vars(packet), "time": self._now}))
        self._limit = max(self._limit, limit)
        self._largest = max(self._largest, ranges[0][1])
        lowest = ranges[-1][0]
        covered = [number for number in self._unacked if number >= lowest and any(a <= number <= b for a, b in ranges)]
        for number in covered:
            _, length, _ = self._unacked.pop(number)
            if self._recovery < 0:
                self._window += length
        missing = [
            number
            for number in self._unacked
            if number + (1 if self.cause.late(number) else 3) <= self._largest and not self.cause.held
        ]
        for number in missing:
            offset, length, _ = self._unacked.pop(number)
            self._again.append((offset, length))
            if number > self._recovery:
                kept = int(self._window * self.cause.kept)
                self._window, self._recovery = max(kept, 2 * self.cause.packet), self._number
        self._at(self._now + self.cause.slow, self._send)

    def explained(
        self, *, events: LinkEvents | None = None, changes: LinkImpairments = NO_LINK_IMPAIRMENTS
    ) -> Explanation:
        """The limits and diagnoses of the transfer. `changes`: of the forward link's parameters; the packets that are
        made do not follow them."""
        cause = self.cause
        parameters = {"initial_max_data": cause.receive_window, "initial_max_stream_data_bidi_local": 1 << 40}
        row = connection(client_transport_parameters=json.dumps(parameters), alpn="hq-interop")
        client, server = (trace(sorted(side, key=lambda packet: packet.time), row) for side in (self.far, self.near))
        forward = LinkParameters(
            data_rate=cause.data_rate, delay=cause.delay, queue_packets=cause.queue, loss=0.0, impairments=changes
        )
        back = LinkParameters(data_rate=2_000_000, delay=cause.delay, queue_packets=cause.queue, loss=0.0)
        if cause.advertised:
            forward = LinkParameters(data_rate=cause.advertised, delay=0.0, queue_packets=0, loss=0.0)
            back = LinkParameters(data_rate=cause.advertised // 4, delay=0.0, queue_packets=0, loss=0.0)
        trace_facts = facts(client, server)
        numbers = sample(Transfer(client, server), trace_facts, file_sizes=(cause.size,), forward=forward, return_=back)
        link = SegmentRecord(forward=forward, return_=back)
        return explain(Transfer(client, server), trace_facts, numbers, link, events=events)
