"""The recording of a job with all known facts about it, and the client's receive window. Every detector reads this."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runner.decode.columns import CLIENT, NULL, SERVER
from runner.diagnose.path import (
    Arrivals,
    Capacity,
    Flight,
    LinkEvents,
    Silence,
    as_set,
    black_hole,
    flight,
    longest_silence,
    outage,
)
from runner.model.facts import ConnectionFacts, TraceFacts
from runner.model.link import IP_PACKET, SegmentRecord
from runner.model.result import LinkTruth, Sample
from runner.trace.recording import Bools, Floats, Ints, Scope, Vantage, integer_parameter
from runner.trace.streams import StreamData, Transfer

# The bytes that the client's flow control (RFC 9000 §4.1) allowed the server at any moment.

_MOST_STREAMS = 16  # with more streams the limits of single streams are ignored, because they hold nothing back


@dataclass(frozen=True)
class Steps:
    """A value that only grows: `value[i]` holds from `time[i]` on. `before` is the value before `time[0]`."""

    time: Floats
    value: Floats
    before: float

    def at(self, moments: Floats) -> Floats:
        return np.append(self.before, self.value)[np.searchsorted(self.time, moments, side="right")]


@dataclass(frozen=True)
class Room:
    """Limits and use of flow control for the response data of one connection, in the time of the server's capture."""

    view: "View"

    @cached_property
    def _streams(self) -> Ints:
        """The streams of the connection, as indices in the layout."""
        return np.flatnonzero(self.view.transfer.layout.connection == self.view.connection)

    @cached_property
    def _gained(self) -> tuple[Ints, Floats, Ints]:
        """Per frame that extended its stream: stream, time, number of new bytes. Sorted by stream, then by time."""
        sent, base = self.view.sent, self.view.transfer.layout.base
        rows = np.flatnonzero(sent.connection == self.view.connection)
        rows = rows[np.argsort(sent.stream[rows], kind="stable")]
        stream, end = sent.stream[rows], sent.end[rows]
        reached = np.maximum.accumulate(end)
        fresh = np.append(True, stream[1:] != stream[:-1])
        before = np.where(fresh, base[stream], np.append(0, reached[:-1]))
        gain = np.maximum(end - before, 0)
        chosen = gain > 0
        return stream[chosen], self.view.seconds(sent.time_ns[rows][chosen]), gain[chosen]

    @cached_property
    def used(self) -> Steps:
        """Bytes of all streams that count against MAX_DATA."""
        _, time, gain = self._gained
        order = np.argsort(time, kind="stable")
        return Steps(time[order], np.cumsum(gain[order]).astype(np.float64), 0.0)

    @cached_property
    def limit(self) -> Steps:
        """The client's limit for the connection (MAX_DATA), by the time at which the server learnt it. Infinity when
        the first limit wasn't seen."""
        frames = self.view.server.frames
        mine = frames.named("name", "max_data") & (frames["connection"] == self.view.connection)
        return self._steps(np.flatnonzero(mine & (frames["sender"] == CLIENT)), self._first_limit("initial_max_data"))

    def _first_limit(self, name: str) -> int | None:
        return integer_parameter(self.view.scope.client_parameters, name)

    def _steps(self, rows: Ints, first: int | None) -> Steps:
        if first is None:
            return Steps(np.empty(0), np.empty(0), np.inf)
        frames = self.view.server.frames
        value = np.maximum(np.maximum.accumulate(frames["value"][rows]), first) if len(rows) else np.empty(0)
        return Steps(self.view.seconds(frames["time_ns"][rows]), value.astype(np.float64), float(first))

    @cached_property
    def busy(self) -> tuple[Floats, Floats]:
        """Per stream with data: when its request reached the server, and when its last new byte left the server."""
        stream, time, _ = self._gained
        frames, layout = self.view.server.stream_frames, self.view.transfer.layout
        mine = (frames["connection"] == self.view.connection) & (frames["sender"] == CLIENT)
        requested, first = np.unique(frames["stream_id"][mine], return_index=True)
        requested_at = self.view.seconds(frames["time_ns"][mine][first])
        open_, begin = np.unique(stream, return_index=True)
        last = np.append(begin[1:], len(stream)) - 1
        start = time[begin]
        if len(requested):
            place = np.minimum(np.searchsorted(requested, layout.stream_id[open_]), len(requested) - 1)
            known = requested[place] == layout.stream_id[open_]
            start = np.where(known, np.minimum(requested_at[place], start), start)
        return start, time[last]

    def pending(self, at: Floats) -> Floats:
        """Per moment: number of requested responses that were not yet sent completely."""
        start, end = (np.sort(times) for times in self.busy)
        count: Floats = (np.searchsorted(start, at, side="right") - np.searchsorted(end, at, side="right")).astype(
            float
        )
        return count

    def left(self, at: Floats) -> Floats:
        """Per moment: bytes that the client's limits still allowed: the smaller of the connection's limit and the sum
        of the limits of its unfinished streams."""
        connection = self.limit.at(at) - self.used.at(at)
        opened_by = "remote" if self.view.transfer.recording.upload else "local"
        first = self._first_limit(f"initial_max_stream_data_bidi_{opened_by}")
        if first is None or len(self._streams) > _MOST_STREAMS:
            return connection
        frames, layout = self.view.server.frames, self.view.transfer.layout
        raised = frames.named("name", "max_stream_data") & (frames["sender"] == CLIENT)
        raised &= frames["connection"] == self.view.connection
        stream, time, gain = self._gained
        streams = np.zeros(len(at))
        for number, start, end in zip(np.unique(stream), *self.busy, strict=True):
            mine = stream == number
            used = Steps(time[mine], np.cumsum(gain[mine]).astype(np.float64), 0.0)
            rows = np.flatnonzero(raised & (frames["stream_id"] == layout.stream_id[number]))
            limit = self._steps(rows, first)
            streams += np.where((at >= start) & (at < end), limit.at(at) - used.at(at), 0.0)
        return np.minimum(connection, np.where(self.pending(at) > 0, streams, np.inf))


# The recording of a job with all known facts about it. Every detector reads this.

EVIDENCE = 20
"""The most packet numbers that a diagnosis shows."""
LEAST_WINDOW = 0.05
"""Shortest window in seconds. On short paths a window of one RTT would contain too few packets."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A recording with response data in both captures. Of several connections only the connection with the most
    response data counts."""

    transfer: Transfer
    facts: TraceFacts
    sample: Sample
    link: SegmentRecord
    truth: LinkTruth | None
    events: LinkEvents | None
    sent: StreamData
    received: StreamData
    flight: Flight
    origin: int
    connection: int

    @classmethod
    def of(  # noqa: PLR0917
        cls,
        transfer: Transfer,
        facts: TraceFacts,
        sample: Sample,
        link: SegmentRecord,
        truth: LinkTruth | None,
        events: LinkEvents | None,
    ) -> "View | None":
        """The view of a recording; None when a capture is missing, or no response was seen in both captures."""
        sent, received, origin = transfer.sent, transfer.received, transfer.recording.origin_ns
        if sent is None or received is None or origin is None or not sent.new.any() or not received.new.any():
            return None
        connection = int(np.bincount(sent.connection, weights=sent.new).argmax())
        under_way = flight(transfer.recording, connection)
        if under_way is None or connection >= len(facts.connections):
            return None
        if not received.new[received.connection == connection].any():
            return None
        return cls(
            transfer=transfer,
            facts=facts,
            sample=sample,
            link=link,
            truth=truth,
            events=events,
            sent=sent,
            received=received,
            flight=under_way,
            origin=origin,
            connection=connection,
        )

    @property
    def client(self) -> Vantage:
        client = self.transfer.recording.client
        assert client is not None  # it has received data
        return client

    @property
    def server(self) -> Vantage:
        server = self.transfer.recording.server
        assert server is not None  # it has sent data
        return server

    @cached_property
    def scope(self) -> Scope:
        return Scope(self.transfer.recording, self.connection)

    @property
    def connection_facts(self) -> ConnectionFacts:
        return self.facts.connections[self.connection]

    @cached_property
    def rtt(self) -> float:
        """RTT of the empty link in seconds. For a link without a configured delay it is the smallest measured RTT, or
        1 ms without a measurement."""
        return self.link.forward.delay + self.link.return_.delay or self.sample.rtt_min or 1e-3

    @property
    def window(self) -> float:
        """Seconds of one turn of a sender's feedback loop: one RTT, at least 50 ms."""
        return max(self.rtt, LEAST_WINDOW)

    @cached_property
    def bdp(self) -> float:
        """Bytes that fill the path: RTT × forward capacity. Infinity: unknown, because the path was never full."""
        return self.rtt * self.capacity.known / 8

    @cached_property
    def capacity(self) -> Capacity:
        """Capacity of the forward link: the configured data rate, or, for a real link, the capacity found in the trace;
        never the advertised data rate."""
        return self.shown.capacity() if self.link.forward.is_real else as_set(self.link.forward, self.shift)

    @cached_property
    def return_rate(self) -> float:
        """Capacity of the return link in bit/s: the configured data rate, or, for a real link with a queue in front of
        it, the rate of arrivals; never the advertised data rate. Infinity: unknown, because there was no queue."""
        if not self.link.return_.is_real:
            return float(self.link.return_.data_rate)
        shown = self._shown_of_return
        capacity = shown.capacity() if shown is not None else None
        return capacity.known if capacity is not None and capacity.by_queue else np.inf

    @cached_property
    def _shown_of_return(self) -> Arrivals | None:
        """The arrivals over the return link. None when no packet is in both captures."""
        client, server, departure = self.client, self.server, self.transfer.recording.departure
        assert departure is not None  # both captures exist
        left = self.numbered(client, CLIENT)
        left = left[departure[left] != NULL]
        if not len(left):
            return None
        came = departure[left]
        sent, arrived = self.seconds(client.packet_time[left]), self.seconds(server.packet_time[came])
        order = np.argsort(sent, kind="stable")
        mine = server.datagrams["sender"] == CLIENT
        return Arrivals(
            time=self.seconds(server.datagrams["time_ns"][mine]),
            size=server.datagrams["ip_length"][mine],
            sent=sent[order],
            arrived=arrived[order],
            length=server.datagrams["ip_length"][server.packets["datagram"][came[order]]],
            waited=(arrived - sent - (arrived - sent).min())[order],
            rtt=self.rtt,
            window=self.window,
        )

    @cached_property
    def shown(self) -> Arrivals:
        """The arrivals over the forward link."""
        time, size = self.arrivals
        came, took = self._crossing
        carrier = self.server.packets["datagram"][self.flight.row[self._once]]
        return Arrivals(
            time=time,
            size=size,
            sent=came - took,
            arrived=came,
            length=self.server.datagrams["ip_length"][carrier],
            waited=took - self.shift,
            rtt=self.rtt,
            window=self.window,
        )

    @cached_property
    def shift(self) -> float:
        """Seconds from a packet's departure at the server to its arrival over an empty link. The difference between the
        clocks of the captures is included."""
        delays = self._crossing[1]
        return float(delays.min()) if len(delays) else self.link.forward.delay

    @cached_property
    def _crossing(self) -> tuple[Floats, Floats]:
        """Per packet of the connection that arrived: its time of arrival, and the seconds from departure to arrival.
        Packets whose number was used twice are left out, because they can't be distinguished."""
        chosen, arrival = self._once, self.transfer.recording.arrival
        assert arrival is not None  # both captures exist
        time = self.seconds(self.client.packet_time[arrival[self.flight.row[chosen]]])
        return time, time - self.flight.time[chosen]

    @cached_property
    def _once(self) -> Bools:
        """Per packet of the flight: whether it arrived and its number was used only once."""
        _, place, count = np.unique(self.flight.number, return_inverse=True, return_counts=True)
        once: Bools = self.flight.arrived & (count[place] == 1)
        return once

    @cached_property
    def outage(self) -> Silence | None:
        if self.link.forward.is_real:
            return longest_silence(self.transfer.recording, self.flight, self.rtt, self.shift)
        return outage(self.transfer.recording, self.link.impairments, self.truth, self.link.forward.delay)

    @cached_property
    def black_hole(self) -> Silence | None:
        return black_hole(self.transfer.recording, self.flight, self.truth, self.shift)

    @cached_property
    def room(self) -> Room:
        return Room(self)

    def seconds(self, time_ns: Ints) -> Floats:
        """Times of a capture as seconds since the origin."""
        return (time_ns - self.origin) / 1e9

    @cached_property
    def arrivals(self) -> tuple[Floats, Ints]:
        """Times and sizes in bytes of all IP packets of the server that reached the client."""
        datagrams = self.client.datagrams
        chosen = datagrams["sender"] == SERVER
        return self.seconds(datagrams["time_ns"][chosen]), datagrams["ip_length"][chosen]

    @cached_property
    def begin(self) -> float:
        """When the connection's client sent its first packet."""
        return self.connection_facts.first_initial or 0.0

    @cached_property
    def first_byte(self) -> float:
        """When the first new byte of a response reached the client."""
        return float(self.seconds(self._fresh[:1])[0])

    @cached_property
    def last_byte(self) -> float:
        return float(self.seconds(self._fresh[-1:])[0])

    @cached_property
    def _fresh(self) -> Ints:
        received = self.received
        fresh: Ints = received.time_ns[(received.new > 0) & (received.connection == self.connection)]
        return fresh

    @cached_property
    def own(self) -> Ints:
        """The connection's rows in `sent`."""
        return np.flatnonzero(self.sent.connection == self.connection)

    @cached_property
    def late_rows(self) -> Ints:
        """Rows in `sent` with new data that was sent after later data of the same stream."""
        sent, rows = self.sent, self.own[np.argsort(self.sent.stream[self.own], kind="stable")]
        reached = np.append(0, np.maximum.accumulate(sent.end[rows])[:-1])
        late: Ints = np.sort(rows[(sent.start[rows] < reached) & (sent.new[rows] > 0)])
        return late

    @cached_property
    def first_repeat(self) -> float:
        """When the server first sent response data again that it may have taken for lost; infinity: never. A probe of
        data that arrived doesn't count: a PTO lowers no window (RFC 9002 §7.5), and it comes before any ACK of a packet
        that was sent after the data (§6.1)."""
        sent, rows, flight = self.sent, self.own, self.flight
        first = rows[sent.new[rows] > 0]
        first = first[np.argsort(sent.start[first], kind="stable")]
        again = rows[sent.new[rows] < sent.length[rows]]
        copy = first[np.maximum(np.searchsorted(sent.start[first], sent.start[again], side="right") - 1, 0)]
        order = np.argsort(flight.acked, kind="stable")
        highest = np.append(-1, np.maximum.accumulate(flight.row[order]))
        time = self.seconds(sent.time_ns[again])
        passed = highest[np.searchsorted(flight.acked[order], time, side="right")] > sent.packet[copy]
        assert self.transfer.resent is not None  # there is sent data
        lost = self.transfer.resent[1][again] == 0
        return float(time[passed | lost].min(initial=np.inf))

    @cached_property
    def first_loss(self) -> float:
        """When the server first learnt of a loss or of CE, or first sent data again that it took for lost, by the
        server's clock; infinity: never."""
        return min(float(self.flight.signals.min(initial=np.inf)), self.first_repeat)

    @cached_property
    def queue_seconds(self) -> float:
        """Seconds that a packet waits behind the full configured queue of the forward link; 0 for a real link."""
        return self.link.forward.queue_packets * IP_PACKET * 8 / self.link.forward.data_rate

    @cached_property
    def waiting(self) -> tuple[Floats, Floats]:
        """Per packet of the connection that arrived: its time of arrival, and how many seconds longer it took than the
        fastest packet."""
        time, took = self._crossing
        return time, took - self.shift

    def numbers_in(self, start: float, end: float) -> tuple[int, ...]:
        """Packet numbers of the first few packets of the server that reached the client between two moments. Lost
        packets count as if they had arrived. If there are none, the numbers of the last few packets before and of the
        first few after."""
        at = self.flight.time + self.shift
        first, last = np.searchsorted(at, start), np.searchsorted(at, end, side="right")
        if first < last:
            return self.numbers(self.flight.row[first:last])
        few = EVIDENCE // 2
        return self.numbers(self.flight.row[max(0, first - few) : last + few])

    def client_numbers(self, start: float, end: float) -> tuple[int, ...]:
        """Packet numbers of the first few 1-RTT packets that the client sent between two times."""
        rows = self.numbered(self.client, CLIENT)
        at = self.seconds(self.client.packet_time[rows])
        numbers: list[int] = self.client.packets["packet_number"][rows[(at >= start) & (at <= end)]][:EVIDENCE].tolist()
        return tuple(numbers)

    def numbered(self, vantage: Vantage, sender: int) -> Ints:
        """Rows of the 1-RTT packets that `sender` sent in the connection, at one vantage point. Packets without a known
        number are left out."""
        rows = self.scope.packets(vantage, sender, "1rtt")
        numbered: Ints = rows[vantage.packets["packet_number"][rows] != NULL]
        return numbered

    def numbers(self, packets: Ints) -> tuple[int, ...]:
        """QUIC packet numbers of the first few of these rows (`packets`) of the server-side capture."""
        packet_numbers: list[int] = self.server.packets["packet_number"][packets[:EVIDENCE]].tolist()
        return tuple(packet_numbers)
