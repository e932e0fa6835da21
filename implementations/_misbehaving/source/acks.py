"""ACK frames with ECN counts (RFC 9000 §13.4, §19.3.2), which aioquic neither writes nor uses."""

from typing import ClassVar

from aioquic import tls
from aioquic.buffer import Buffer
from aioquic.quic.congestion.base import K_MINIMUM_WINDOW
from aioquic.quic.connection import ACK_FRAME_CAPACITY, QuicConnection, QuicReceiveContext
from aioquic.quic.packet import QuicFrameType, pull_ack_frame, push_ack_frame
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from sins import Chosen

_NOT_ECT, _ECT1, _ECT0, _CE = range(4)
_COUNTS_BYTES = 3 * 8
_EPOCHS = (tls.Epoch.INITIAL, tls.Epoch.HANDSHAKE, tls.Epoch.ONE_RTT)


class Acknowledgements(QuicConnection):
    """A connection that counts ECN marks. Its sins are about its ACKs."""

    sin: Chosen
    with_ecn: bool
    marks: dict[tls.Epoch, list[int]]
    """Packets that arrived, by packet number space and codepoint."""
    arriving: ClassVar[int] = _NOT_ECT
    """Codepoint of the datagram that is being delivered, because aioquic does not pass it on."""
    _reported_ce = 0

    def _payload_received(
        self, context: QuicReceiveContext, plain: bytes, crypto_frame_required: bool = False
    ) -> tuple[bool, bool]:
        epoch = tls.Epoch.ONE_RTT if context.epoch is tls.Epoch.ZERO_RTT else context.epoch
        self.marks[epoch][Acknowledgements.arriving] += 1
        return super()._payload_received(context, plain, crypto_frame_required)

    def receive_datagram(self, data: bytes, addr: object, now: float) -> None:
        super().receive_datagram(data, addr, now)
        if self.sin("acks-everything"):
            for space in self._spaces.values():
                space.ack_at = None if space.ack_at is None else now

    def _write_ack_frame(self, builder: QuicPacketBuilder, space: QuicPacketSpace, now: float) -> None:
        counts = self._counts(space)
        if not any(counts):
            super()._write_ack_frame(builder, space, now)
        else:
            delay = int((now - space.largest_received_time) * 1e6) >> self._local_ack_delay_exponent
            buffer = builder.start_frame(
                QuicFrameType.ACK_ECN,
                capacity=ACK_FRAME_CAPACITY + _COUNTS_BYTES,
                handler=self._on_ack_delivery,
                handler_args=(space, space.largest_received_packet),
            )
            push_ack_frame(buffer, space.ack_queue, delay, builder.remaining_buffer_space - _COUNTS_BYTES)
            for count in counts:
                buffer.push_uint_var(count)
            space.ack_at = None
        if self.sin("acks-everything") and self._handshake_confirmed:
            padding = int(self.sin.value("size")) - builder._buffer.tell()
            builder._buffer.push_bytes(bytes(max(0, min(padding, builder.remaining_buffer_space))))

    def _handle_ack_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        start = buf.tell()
        super()._handle_ack_frame(context, frame_type, buf)
        if frame_type == QuicFrameType.ACK_ECN and context.epoch is tls.Epoch.ONE_RTT:
            buf.seek(start)
            pull_ack_frame(buf)
            ce = [buf.pull_uint_var() for _ in range(3)][-1]
            if ce > self._reported_ce and not self.sin("ignores-ce"):
                self._reduce_window(context.time)
            self._reported_ce = max(self._reported_ce, ce)

    def _reduce_window(self, now: float) -> None:
        """Reduce the congestion window as after a loss, once per RTT (RFC 9002 §7.1, §7.3.2)."""
        control = self._loss._cc
        if now > control._congestion_recovery_start_time + self._loss._rtt_smoothed:
            control._congestion_recovery_start_time = now
            least = K_MINIMUM_WINDOW * self._max_datagram_size
            control.congestion_window = control.ssthresh = max(control.congestion_window // 2, least)

    def _counts(self, space: QuicPacketSpace) -> tuple[int, int, int]:
        """The counts of ECT(0), ECT(1) and CE to report. All are 0 for a frame without counts."""
        if not self.with_ecn or self.sin("no-ecn-counts"):
            return 0, 0, 0
        marks = self.marks[next(epoch for epoch in _EPOCHS if self._spaces[epoch] is space)]
        ect0, ect1, ce = marks[_ECT0], marks[_ECT1], marks[_CE]
        if self.sin("high-ecn-counts"):
            return 2 * ect0, 2 * ect1, 2 * ce
        if self.sin("no-ce-counts"):
            return ect0 + ce, ect1, 0
        return ect0, ect1, ce
