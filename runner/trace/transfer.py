"""The response data of a recording: sent, received and repeated bytes of the request streams."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from runner.decode.schema import CLIENT, SERVER
from runner.trace.intervals import Bools, Ints, new_bytes, resent_bytes
from runner.trace.vantage import APPLICATION, NULL, Recording, Vantage, find, first_ack

NEW, RETRANSMISSION, SPURIOUS = 0, 1, 2

# Larger than any stream in a capture. Only broken or hostile traces have larger offsets; sums of such offsets overflow.
_MAX_OFFSET = 1 << 44
_FRAMES_PER_PACKET = 1 << 16


@dataclass(frozen=True)
class Layout:
    """All streams of a direction on one axis of global offsets. The streams follow each other without gaps, ordered by
    connection, then by stream ID."""

    connection: Ints
    stream_id: Ints
    size: Ints
    """For each stream: the highest end offset of a frame, at either vantage point."""

    @cached_property
    def base(self) -> Ints:
        """Per stream: its first global offset."""
        return np.cumsum(self.size) - self.size


@dataclass(frozen=True)
class StreamData:
    """STREAM frames of one direction at one vantage point, in the order of the capture."""

    time_ns: Ints
    connection: Ints
    packet: Ints
    """Row of the packet in the capture."""
    key: Ints
    """A number made from the packet and the frame's place in it. It is unique in the capture."""
    stream: Ints
    """Index of the stream in the layout."""
    start: Ints
    """Global offset of the first byte of the frame."""
    length: Ints
    fin: Bools

    @cached_property
    def end(self) -> Ints:
        """Global offset of the first byte after each frame."""
        return self.start + self.length

    @cached_property
    def new(self) -> Ints:
        """Per frame: bytes that no earlier frame carried past this vantage point."""
        return new_bytes(self.start, self.end)


def stream_data(vantages: tuple[Vantage, ...], sender: int, *, requests_only: bool) -> tuple[Layout, list[StreamData]]:
    """The stream data that `sender` sent, per vantage point, in a common layout. With `requests_only`, only request
    streams: bidirectional streams that the client opened (RFC 9000 §2.1)."""
    chosen = [_chosen(vantage, sender, requests_only) for vantage in vantages]
    pairs = [
        np.column_stack([vantage.stream_frames[name][rows] for name in ("connection", "stream_id")])
        for vantage, rows in zip(vantages, chosen, strict=True)
    ]
    streams, index = _distinct(np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64))
    parts = np.split(index, np.cumsum([len(pair) for pair in pairs])[:-1]) if pairs else []
    size = np.zeros(len(streams), dtype=np.int64)
    for vantage, rows, part in zip(vantages, chosen, parts, strict=True):
        np.maximum.at(size, part, (vantage.stream_frames["offset"] + vantage.stream_frames["length"])[rows])
    layout = Layout(connection=streams[:, 0], stream_id=streams[:, 1], size=size)
    data = []
    for vantage, rows, part in zip(vantages, chosen, parts, strict=True):
        frames = vantage.stream_frames
        data.append(
            StreamData(
                time_ns=frames["time_ns"][rows],
                connection=frames["connection"][rows],
                packet=frames["packet"][rows],
                key=frames["packet"][rows] * _FRAMES_PER_PACKET + frames["frame"][rows],
                stream=part,
                start=layout.base[part] + frames["offset"][rows],
                length=frames["length"][rows],
                fin=frames["fin"][rows] == 1,
            )
        )
    return layout, data


def _chosen(vantage: Vantage, sender: int, requests_only: bool) -> Ints:
    frames = vantage.stream_frames
    chosen = (frames["sender"] == sender) & (frames["connection"] >= 0)
    chosen &= (frames["offset"] >= 0) & (frames["offset"] < _MAX_OFFSET) & (frames["length"] >= 0)
    if requests_only:
        chosen &= frames["stream_id"] % 4 == 0
    return np.flatnonzero(chosen)


def _distinct(pairs: Ints) -> tuple[Ints, Ints]:
    """The sorted distinct pairs (connection, stream ID), and the position of each given pair in them."""
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    ordered = pairs[order]
    fresh = np.ones(len(pairs), dtype=bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    index = np.empty(len(pairs), dtype=np.int64)
    index[order] = np.cumsum(fresh) - 1
    return ordered[fresh], index


class Transfer:
    """The response data of all connections, at both vantage points where they exist."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.layout, data = stream_data(recording.vantages, SERVER, requests_only=True)
        rest = iter(data)
        self.received = next(rest) if recording.client else None
        self.sent = next(rest) if recording.server else None

    @cached_property
    def arrived(self) -> Bools | None:
        """Per sent frame: whether its packet was seen at the client. None without both captures."""
        if self.sent is None or self.recording.arrival is None:
            return None
        arrived: Bools = self.recording.arrival[self.sent.packet] != NULL
        return arrived

    @cached_property
    def resent(self) -> tuple[Ints, Ints] | None:
        """Per sent frame: the bytes that had been sent before, and the bytes of which an earlier copy arrived. The
        second number is 0 unless both captures exist."""
        if self.sent is None:
            return None
        arrived = self.arrived if self.arrived is not None else np.zeros(len(self.sent.start), dtype=bool)
        return resent_bytes(self.sent.start, self.sent.end, arrived)

    @cached_property
    def sent_kind(self) -> Ints | None:
        """Per sent frame: NEW, RETRANSMISSION (at least one byte was sent before) or SPURIOUS (an earlier copy of at
        least one byte arrived)."""
        if self.resent is None:
            return None
        repeated, spurious = self.resent
        return np.where(spurious > 0, SPURIOUS, np.where(repeated > 0, RETRANSMISSION, NEW))

    @cached_property
    def received_kind(self) -> Ints | None:
        """Per received frame: its kind when it was sent. Without the server's capture only NEW and SPURIOUS (a
        duplicate) can be distinguished."""
        if self.received is None:
            return None
        kind = np.where(self.received.new < self.received.length, SPURIOUS, NEW)
        if self.sent is None or self.sent_kind is None or self.recording.departure is None:
            return kind
        origin = self.recording.departure[self.received.packet]
        key = np.where(origin < 0, NULL, origin * _FRAMES_PER_PACKET + self.received.key % _FRAMES_PER_PACKET)
        row = find(self.sent.key, key)
        return np.where(row < 0, kind, self.sent_kind[row]) if len(self.sent.key) else kind

    @cached_property
    def sent_completely(self) -> bool:
        """True when the server's capture contains every packet with response data, and all these packets could be read.
        Otherwise counts of sent bytes are too low."""
        server = self.recording.server
        if server is None or self.sent is None or not len(self.sent.start):
            return False
        packets = server.packets
        mine = (packets["sender"] == SERVER) & packets.named("type", "1rtt")
        # Unreadable packets after the last readable packet are stateless resets (RFC 9000 §10.3).
        unread = np.flatnonzero(mine & (packets["decrypted"] == 0))
        last = np.flatnonzero(mine & (packets["decrypted"] == 1))
        if len(unread) and len(last) and unread[0] < last[-1]:
            return False
        if self.received is None or self.recording.departure is None:
            return True
        return bool((self.recording.departure[self.received.packet] != NULL).all())

    @cached_property
    def initial_window_bytes(self) -> int | None:
        """The response bytes that the server sent on the first connection before the first ACK for one of these bytes
        arrived."""
        if self.sent is None or self.recording.server is None or not self.sent_completely:
            return None
        connection = int(self.sent.connection[0])
        early = self.sent.connection == connection
        limit = first_acknowledged(self.recording.server, connection, self.sent.packet[early])
        if limit is not None:
            early &= self.sent.time_ns < limit
        return int(self.sent.new[early].sum())


def first_acknowledged(server: Vantage, connection: int, packets: Ints) -> int | None:
    """The time in ns when the first ACK for one of `packets` (rows) passed the server's vantage point; None when there
    is none."""
    acks = server.ack_frames
    numbers = np.sort(server.packets["packet_number"][packets])
    mine = (acks["connection"] == connection) & (acks["sender"] == CLIENT) & (server.ack_space == APPLICATION)
    row = first_ack(server, np.flatnonzero(mine & (acks["largest"] >= numbers[0])), numbers)
    return None if row is None else int(acks["time_ns"][row])
