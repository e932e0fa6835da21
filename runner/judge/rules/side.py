"""The packets of one endpoint of a connection, in the capture at the endpoint's own end of the link. Detectors of rules
read these packets.

Rows are row numbers of the capture's tables, in the order of the capture: a packet with a lower row number passed the
vantage point earlier. A packet of the peer passes the vantage point before the endpoint can read the packet.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from runner.decode.columns import CLIENT, MTU, NULL, SERVER
from runner.decode.keys import VERSIONS
from runner.trace.handshake import TYPES, may_be_authentic
from runner.trace.recording import APPLICATION, ROLES, Bools, Columns, Ints, Scope, Vantage

INITIAL, EARLY, HANDSHAKE, ONE_RTT, RETRY, NEGOTIATION = range(6)
"""Positions of the packet types in PACKET_TYPES."""
SPACE_NAMES = ("Initial", "Handshake", "application data")


@dataclass(frozen=True)
class Broken:
    """A rule that an endpoint broke, before it becomes a finding."""

    rule: str
    """ID of the rule."""
    actual: str
    """What the packets show instead."""
    packets: tuple[int, ...] = ()
    """The first few packets that show the violation, as rows of the capture at the endpoint's end."""
    pair: bool = False
    """True when the first packet breaks no rule alone: it shows the violation together with another packet."""


class Side:
    """The packets that one endpoint of a connection sent, and the peer's packets that reached it."""

    def __init__(self, scope: Scope, sender: int, capture: Vantage, far: Vantage) -> None:
        self.scope = scope
        self.sender = sender
        self.role = ROLES[sender]
        self.is_client = sender == CLIENT
        self.capture = capture
        self.far = far
        packets = capture.packets
        mine = packets["connection"] == scope.number
        self.sent: Ints = np.flatnonzero(mine & (packets["sender"] == sender))
        self.got: Ints = np.flatnonzero(mine & (packets["sender"] == 1 - sender) & (packets["decrypted"] == 1))
        """Packets of the peer that could be read; the endpoint couldn't read a damaged packet either."""
        self.sent_by_peer: Ints = np.flatnonzero(mine & (packets["sender"] == 1 - sender))
        """All packets of the peer in this capture, readable or not."""
        self.sent_read: Ints = self.sent[packets["decrypted"][self.sent] == 1]

    # How far the evidence reaches

    @cached_property
    def own_read(self) -> bool:
        """Whether every packet that the endpoint sent was decrypted."""
        return self._all_read(self.capture.packets, self.sent)

    @cached_property
    def peer_read(self) -> bool:
        """Whether every packet that the peer sent was decrypted at the peer's end. Then an unreadable packet here was
        damaged."""
        theirs = np.flatnonzero(self.scope.mine(self.far.packets, 1 - self.sender))
        return bool(len(theirs)) and self._all_read(self.far.packets, theirs)

    def _all_read(self, packets: Columns, rows: Ints) -> bool:
        """Whether these packets of one endpoint were decrypted. Packets that the other endpoint can't have read either
        don't count, nor do packets of a refused version: they have no keys (RFC 9000 §6)."""
        unread = rows[packets["decrypted"][rows] == 0]
        if not len(unread):
            return True
        codes, kinds = packets.words("type")
        present = {kinds[code] for code in np.unique(codes[unread]).tolist()}
        recording, sender = self.scope.recording, int(packets["sender"][unread[0]])
        if present <= set(TYPES) and not any(
            may_be_authentic(recording, self.scope.number, sender, kind) for kind in present
        ):
            return True
        refused = bool(self.scope.count(SERVER, "version_negotiation"))
        return refused and not np.isin(packets["version"][unread], (*VERSIONS, NULL)).any()

    @cached_property
    def whole(self) -> bool:
        """Whether both captures are complete, and this capture contains the beginning of the connection."""
        metas = [vantage.trace.meta for vantage in (self.capture, self.far)]
        if any(meta.kernel_drops or meta.truncated or meta.snapped for meta in metas):
            return False
        row = self.row
        return row is not None and bool(row["client_hello_count"]) and row["client_random"] is not None

    @cached_property
    def sound(self) -> bool:
        """Whether every event is visible: both captures are complete, and all packets could be read."""
        return self.whole and self.own_read and self.peer_read

    # Facts of the connection

    @cached_property
    def row(self) -> dict[str, Any] | None:
        """The connection's row in this capture."""
        return self.scope.row.client if self.is_client else self.scope.row.server

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The endpoint's own transport parameters."""
        return self.scope.client_parameters if self.is_client else self.scope.server_parameters

    @cached_property
    def peer_parameters(self) -> Mapping[str, Any]:
        """The peer's transport parameters."""
        return self.scope.server_parameters if self.is_client else self.scope.client_parameters

    def preferred(self, *, of_peer: bool = False) -> tuple[bytes, bytes] | None:
        """Connection ID and stateless reset token of the preferred address of the endpoint, or of its peer."""
        address = (self.peer_parameters if of_peer else self.parameters).get("preferred_address")
        if not isinstance(address, dict):
            return None
        return bytes.fromhex(str(address["connection_id"])), bytes.fromhex(str(address["stateless_reset_token"]))

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """TLS messages of both endpoints in this capture; empty when an old decoder wrote the tables."""
        text = self.row["messages"] if self.row else None
        return list(json.loads(text)) if text else []

    def message(self, kind: int, sender: int) -> dict[str, Any] | None:
        """The first TLS message of type `kind` from `sender`; None when there is none."""
        return next(
            (message for message in self.messages if message["type"] == kind and message["sender"] == sender), None
        )

    # Rows

    def of_type(self, *types: int, got: bool = False) -> Ints:
        """Decrypted packets of these types that the endpoint sent, or, with `got`, received."""
        rows = self.got if got else self.sent_read
        return rows[np.isin(self.capture.type[rows], types)]

    @cached_property
    def _frames(self) -> dict[tuple[int, str], Ints]:
        frames = self.capture.frames
        rows = np.flatnonzero(frames["connection"] == self.scope.number)
        codes, names = frames.words("name")
        group = frames["sender"][rows] * 1000 + codes[rows]
        order = np.argsort(group, kind="stable")
        rows, group = rows[order], group[order]
        borders = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(rows)]
        return {
            (int(group[start]) // 1000, names[int(group[start]) % 1000]): rows[start:stop]
            for start, stop in pairwise(borders)
            if start < stop
        }

    def frames(self, *names: str, got: bool = False) -> Ints:
        """Rows of frames that the endpoint sent, or, with `got`, received, in the order of the capture."""
        sender = 1 - self.sender if got else self.sender
        rows = [self._frames[sender, name] for name in names if (sender, name) in self._frames]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)

    @cached_property
    def _connection_rows(self) -> tuple[Ints, Ints, Ints, Ints]:
        streams, acks = self.capture.stream_frames, self.capture.ack_frames
        ours = np.flatnonzero(streams["connection"] == self.scope.number)
        ours = ours[self.is_valid(streams["packet"][ours])]
        answers = np.flatnonzero(acks["connection"] == self.scope.number)
        mine, my_acks = streams["sender"][ours] == self.sender, acks["sender"][answers] == self.sender
        return ours[mine], ours[~mine], answers[my_acks], answers[~my_acks]

    def is_valid(self, packets: Ints) -> Bools:
        """Per packet: False for 0-RTT packets that the server rejected. After a rejection, the client resets the state
        of all streams (RFC 9001 §4.6.2)."""
        accepted = self.scope.row.either("early_data_accepted") is not False
        valid: Bools = (self.capture.type[packets] != EARLY) | accepted
        return valid

    def stream_frames(self, *, got: bool = False) -> Ints:
        """Rows of STREAM frames that the endpoint sent, or, with `got`, received. Frames in rejected 0-RTT packets are
        left out."""
        return self._connection_rows[1 if got else 0]

    def ack_frames(self, *, got: bool = False, space: int | None = None) -> Ints:
        """Rows of ACK frames that the endpoint sent, or, with `got`, received. With `space`, only frames of this packet
        number space."""
        rows = self._connection_rows[3 if got else 2]
        return rows if space is None else rows[self.capture.ack_space[rows] == space]

    def time(self, packets: Ints) -> Ints:
        """The times at which packets passed the vantage point, in ns."""
        times: Ints = self.capture.packet_time[packets]
        return times

    def at(self, packet: int) -> int:
        """The time at which a packet passed the vantage point, in ns."""
        return int(self.capture.packet_time[packet])

    def ids(self, name: str, packets: Ints) -> list[bytes]:
        """The different `dcid` or `scid` of packets, in the order of their first use."""
        codes, values = self.capture.ids(name)
        chosen = codes[packets]
        _, first = np.unique(chosen, return_index=True)
        return [values[code] for code in chosen[np.sort(first)] if code != NULL]

    def with_id(self, name: str, value: bytes, packets: Ints) -> Ints:
        """The packets of `packets` whose `dcid` or `scid` is `value`."""
        codes, values = self.capture.ids(name)
        if value not in values:
            return packets[:0]
        chosen: Ints = packets[codes[packets] == values.index(value)]
        return chosen

    @cached_property
    def source(self) -> bytes | None:
        """The source connection ID of the endpoint's first Initial packet."""
        sources = self.ids("scid", self.of_type(INITIAL))
        return sources[0] if sources else None

    @cached_property
    def peer_source(self) -> bytes | None:
        """The source connection ID of the peer's last Initial packet. Without Initial packets: of its first Handshake
        packet."""
        initial = self.ids("scid", self.of_type(INITIAL, got=True))
        handshake = self.ids("scid", self.of_type(HANDSHAKE, got=True))
        return initial[-1] if initial else handshake[0] if handshake else None

    @cached_property
    def single_datagrams(self) -> Bools:
        """Per packet of `sent_read`: whether its datagram is a single datagram. Segmentation offload joins several
        datagrams to a record that is larger than the MTU."""
        lengths: Bools = self.capture.datagrams["ip_length"][self.capture.packets["datagram"][self.sent_read]] <= MTU
        return lengths

    def confirmed(self, packet: int) -> bool:
        """Whether the handshake was confirmed for this endpoint before it sent `packet` (RFC 9001 §4.1.2)."""
        if not self.is_client:
            finished = self.finished(CLIENT)
            return finished is not None and finished < packet
        done = self.frames("handshake_done", got=True)
        acks = self.ack_frames(got=True, space=APPLICATION)
        rows = np.concatenate((self.capture.frames["packet"][done], self.capture.ack_frames["packet"][acks]))
        return bool((rows < packet).any())

    def finished(self, sender: int) -> int | None:
        """The row of the packet that completed the TLS message Finished of `sender`; None when it was not seen."""
        message = self.message(20, sender)
        return None if message is None else int(message["packet"])
