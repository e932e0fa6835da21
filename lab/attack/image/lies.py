"""ACK frames that lie, sent by an endpoint that is honest in every other way. `lying.py` calls one of these behaviours
in the process of the endpoint."""

from aioquic.quic import connection
from aioquic.quic.packet import QuicFrameType, push_ack_frame
from aioquic.quic.rangeset import RangeSet
from common import LIE, behaviour

_AHEAD = 3  # number of packets by which the acknowledged number is ahead of the received packets
_LONG_DELAY = 400_000 >> 3  # 0.4 s in the units of RFC 9000 §19.3 with the default exponent


def acknowledge(changed):
    """Send false ranges and a false delay: `changed` makes them from the true ranges and the true delay."""

    def push(buf, rangeset, delay, capacity):
        ranges, delay = changed(rangeset, delay)
        return push_ack_frame(buf, ranges, delay, capacity)

    connection.push_ack_frame = push


def count_ecn(counts):
    """Report false ECN counts: `counts` makes them from the number of packets received in a space."""

    def write(self, builder, space, now):
        delay = int((now - space.largest_received_time) * 1000000) >> self._local_ack_delay_exponent
        buf = builder.start_frame(
            QuicFrameType.ACK_ECN,
            capacity=connection.ACK_FRAME_CAPACITY + 24,
            handler=self._on_ack_delivery,
            handler_args=(space, space.largest_received_packet),
        )
        push_ack_frame(buf, space.ack_queue, delay, builder.remaining_buffer_space - 24)
        for count in counts(sum(part.stop - part.start for part in space.ack_queue)):
            buf.push_uint_var(count)
        space.ack_at = None

    connection.QuicConnection._write_ack_frame = write


@behaviour(LIE)
def ack_gaps():
    acknowledge(lambda ranges, delay: (RangeSet([range(ranges[0].start, ranges[-1].stop)]), delay))


@behaviour(LIE)
def ack_ahead():
    acknowledge(lambda ranges, delay: (RangeSet([range(ranges[0].start, ranges[-1].stop + _AHEAD)]), delay))


@behaviour(LIE)
def ack_delay_long():
    acknowledge(lambda ranges, delay: (ranges, delay + _LONG_DELAY))


@behaviour(LIE)
def ack_delay_none():
    acknowledge(lambda ranges, _: (ranges, 0))


@behaviour(LIE)
def ecn_counts_high():
    count_ecn(lambda received: (received * 10, 0, 0))


@behaviour(LIE)
def ecn_congestion():
    count_ecn(lambda received: (received - received // 2, 0, received // 2))


@behaviour(LIE)
def ecn_decrease():
    count_ecn(lambda received: (received - 3 * (received % 2), 0, 0) if received > 3 else (received, 0, 0))
