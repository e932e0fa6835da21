"""Sending: pacing, pauses, early retransmissions, sizes, packet numbers."""

import random
from collections import deque
from collections.abc import Iterable

from aioquic import tls
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.packet import PACKET_FIXED_BIT
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicSentPacket
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from sins import Chosen

_INITIAL_RTT = 0.333  # s (RFC 9002 §6.2.2)
_TICK = 0.001  # s between the datagrams of a burst
_PING = b"\x01"
_FORGED_BYTES = 32
_TWO_BYTE_NUMBER = 1
_EVERY_PATH = 1200  # bytes of a datagram (RFC 9000 §14)
_BLACK_HOLE = 6  # after this number of lost larger packets in a row, the path no longer carries them (RFC 8899 §4.3)

Datagrams = list[tuple[bytes, NetworkAddress]]


class Sending(QuicConnection):
    """A connection whose sins are about sending. Times of sins count from the first byte of response data."""

    sin: Chosen
    _now = 0.0
    _began: float | None = None
    _burst_began = 0.0
    _burst_sent = 0
    _skipped: int | None = None
    _next_skip = 0
    _copies = 0
    """Number of packets whose data must be sent again."""
    _vanished = 0
    """Number of packets of more than 1200 B that were lost since such a packet was last acknowledged."""
    _window = 0
    """Bytes of a constant congestion window. 0: aioquic's own window."""

    def prepare_sending(self) -> None:
        """Prepare the sin. Called before the first packet."""
        self._early: deque[tuple[float, int]] = deque()
        self._reusable: list[int] = []
        control = self._loss._cc
        if self.sin("leaves-slow-start"):
            control.ssthresh = int(self.sin.value("window"))
        self._window = self.sin.steady
        if self.sin("sometimes-slow") and random.SystemRandom().random() < 0.5:
            self._window = int(self.sin.value("window"))
            print("slow this time", flush=True)
        if self.sin("bursts"):
            self._loss._pacer.update_rate = lambda **_: None
        if self.sin("raises-mtu"):
            self._watch_large_packets()

    def _watch_large_packets(self) -> None:
        """Count lost large packets. After six in a row, the count no longer changes back."""
        control = self._loss._cc
        acked, lost, expired = control.on_packet_acked, control.on_packets_lost, control.on_packets_expired

        def on_packet_acked(*, now: float, packet: QuicSentPacket) -> None:
            if packet.sent_bytes > _EVERY_PATH and self._vanished < _BLACK_HOLE:
                self._vanished = 0
            acked(now=now, packet=packet)

        def counted(packets: Iterable[QuicSentPacket]) -> list[QuicSentPacket]:
            gone = list(packets)
            self._vanished += sum(packet.sent_bytes > _EVERY_PATH for packet in gone)
            return gone

        control.on_packet_acked = on_packet_acked
        control.on_packets_lost = lambda *, now, packets: lost(now=now, packets=counted(packets))
        control.on_packets_expired = lambda *, packets: expired(packets=counted(packets))

    def datagrams_to_send(self, now: float) -> Datagrams:
        self._now = now
        if self._handshake_confirmed:
            self._set_size()
        if self._window:
            self._hold_window()
        if self.sin("collapses") and self._began is not None and now >= self._began + self.sin.value("at"):
            self._loss._cc.congestion_window = int(self.sin.value("window"))
        if self.sin("bursts") and self._began is not None:
            self._open_for_burst(now)
        if self.sin("retransmits-early"):
            self._repeat_early(now)
        if self.sin("numbers-go-back") and self._handshake_confirmed:
            self._skip_number()
        first = self._packet_number
        datagrams = super().datagrams_to_send(now)
        self._burst_sent += sum(len(data) for data, _ in datagrams)
        if self._handshake_confirmed and self._packet_number > first and not self._close_event:
            datagrams += self._forge_more(first)
        return datagrams

    def _set_size(self) -> None:
        """Set the size of the next datagrams."""
        if self.sin("small-datagrams"):
            self._max_datagram_size = int(self.sin.value("size"))
        elif self.sin("raises-mtu"):
            fallen = self._vanished >= _BLACK_HOLE
            self._max_datagram_size = _EVERY_PATH if fallen else int(self.sin.value("size"))

    def _hold_window(self) -> None:
        """Undo what acknowledgements and losses did to the congestion window and to the pacer."""
        self._loss._cc.congestion_window = self._window
        rtt = self._loss._rtt_smoothed if self._loss._rtt_initialized else _INITIAL_RTT
        self._loss._pacer.update_rate(congestion_window=self._window, smoothed_rtt=rtt)

    def get_timer(self) -> float | None:
        timer = super().get_timer()
        wakes = [wake for wake in self._wakes() if wake > self._now]
        return min([timer, *wakes]) if timer is not None else None

    def _wakes(self) -> list[float]:
        """Times of events that aioquic's own timer doesn't include."""
        if self.sin("retransmits-early"):
            return [self._early[0][0]] if self._early else []
        if self._began is None:
            return []
        if self.sin("stalls"):
            return [self._began + self.sin.value("at") + self.sin.value("time")]
        if self.sin("bursts"):
            busy = self._burst_sent + self._max_datagram_size <= self.sin.value("window")
            return [self._now + _TICK if busy else self._burst_began + self.sin.value("every")]
        return []

    def _write_stream_frame(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream, max_offset: int
    ) -> int:
        if self.sin("stalls") and self._began is not None:
            since = self._now - self._began - self.sin.value("at")
            if 0 <= since < self.sin.value("time"):
                return 0
        used = super()._write_stream_frame(builder, space, stream, max_offset)
        if used and self._began is None:
            self._began = self._now
        return used

    def _open_for_burst(self, now: float) -> None:
        """Set the congestion window so that exactly the part of the burst that is due now can be sent."""
        if now >= self._burst_began + self.sin.value("every"):
            self._burst_began, self._burst_sent = now, 0
        due = self.sin.value("rate") / 8 * (now - self._burst_began + _TICK)
        allowed = int(min(due, self.sin.value("window"))) - self._burst_sent
        whole = max(0, allowed // self._max_datagram_size) * self._max_datagram_size
        self._loss._cc.congestion_window = self._loss.bytes_in_flight + whole

    def _repeat_early(self, now: float) -> None:
        """Declare the chosen packets lost, without a congestion event, even when they are not lost."""
        space = self._spaces.get(tls.Epoch.ONE_RTT)
        while self._early and self._early[0][0] <= now:
            _, number = self._early.popleft()
            packet = space.sent_packets.get(number) if space else None
            if packet is not None and packet.is_ack_eliciting:
                self._loss._on_packets_lost(congestion_event=False, now=now, packets=[packet], space=space)
                self._copies += 1

    def _skip_number(self) -> None:
        if self._skipped is None and self._packet_number >= self._next_skip:
            self._skipped = self._packet_number
            self._next_skip = self._packet_number + int(self.sin.value("every"))
            self._packet_number += 1

    def _forge_more(self, first: int) -> Datagrams:
        """Additional packets. `first`: the first packet number that aioquic has just used."""
        address = self._network_paths[0].addr
        if self.sin("numbers-go-back") and self._skipped is not None:
            number, self._skipped = self._skipped, None
            return [(self._forged(number), address)]
        every = int(self.sin.values.get("every", 0))
        chosen = [number for number in range(first, self._packet_number) if every and number % every == 0]
        if self.sin("reuses-packet-numbers"):
            # A number is reused only after its packet was acknowledged or declared lost. Otherwise an ACK of the second
            # packet would acknowledge the data of the first.
            self._reusable += chosen
            done = [number for number in self._reusable if number not in self._spaces[tls.Epoch.ONE_RTT].sent_packets]
            self._reusable = [number for number in self._reusable if number not in done]
            return [(self._forged(number), address) for number in done]
        if self.sin("retransmits-early"):
            # aioquic sends lost data first, so the first packets are copies. Copies are not repeated again: aioquic
            # ignores ACKs of packets that were declared lost, so there would be copies of copies without end.
            copies = min(self._copies, self._packet_number - first)
            self._copies -= copies
            originals = (number for number in chosen if number >= first + copies)
            self._early.extend((self._now + self.sin.value("after"), number) for number in originals)
        return []

    def _forged(self, number: int) -> bytes:
        """A packet with a PING, and with a packet number that aioquic has not used for it."""
        crypto = self._cryptos[tls.Epoch.ONE_RTT]
        first = PACKET_FIXED_BIT | crypto.key_phase << 2 | _TWO_BYTE_NUMBER
        header = bytes([first]) + self._peer_cid.cid + (number & 0xFFFF).to_bytes(2)
        return crypto.encrypt_packet(header, _PING.ljust(_FORGED_BYTES, b"\0"), number)
