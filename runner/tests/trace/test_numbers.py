"""Numbers of small tables whose answers can be read off."""

import json
from dataclasses import fields, replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runner.decode.columns import CLIENT, SERVER
from runner.decode.tables import TABLES
from runner.model.link import LinkParameters
from runner.model.result import DEFINITIONS, Sample
from runner.tests.trace.tables import Ack, Frame, Packet, Stream, connection, empty, trace
from runner.tests.trace.transfer import FILE, FORWARD, ONE_WAY, RETURN, captures, draw, measure
from runner.trace.establish import facts
from runner.trace.measure import rtt_samples, sample
from runner.trace.recording import Recording
from runner.trace.streams import Transfer


def test_numbers_of_both_captures() -> None:
    sample = measure(*captures())
    assert sample.first_server_1rtt == pytest.approx(0.2)
    assert sample.handshake_time == pytest.approx(0.2)
    assert sample.ttfb == pytest.approx(0.4)
    assert sample.ttlb == pytest.approx(0.8)
    assert sample.goodput == pytest.approx(8 * FILE / 0.6)
    assert sample.efficiency == pytest.approx(8 * FILE / 0.6 / 1e6)
    assert sample.efficiency_exact == pytest.approx(8 * FILE / 0.6 / 0.9e6)
    assert sample.definitions == DEFINITIONS
    assert sample.throughput == pytest.approx(8 * FILE / 0.8)
    assert sample.link_share == pytest.approx(8 * FILE / 0.8 / 1e6)
    assert sample.delivery_rate == pytest.approx(8 * FILE / 0.4)
    assert sample.stream_bytes_sent == 6500
    assert sample.retransmitted_bytes == 1500
    assert sample.spurious_bytes == 500
    assert sample.retransmission_ratio == pytest.approx(0.3)
    assert (sample.data_packets, sample.lost_packets) == (7, 1)
    assert sample.ack_ratio == pytest.approx(3 / 6)
    assert sample.one_way_delay_median == pytest.approx(ONE_WAY)
    # ACKs reach the server at 0.55, 0.80 and 1.00 s; their largest packets left at 0.31, 0.57 and 0.70 s.
    assert sample.rtt_min == pytest.approx(0.23)
    assert sample.rtt_median == pytest.approx(0.24)
    # Three frames left before the first ACK of data at 0.55 s; what leaves at that instant may answer it.
    assert sample.initial_window_bytes == 3000
    # Three datagrams of 40, 40 and 50 B with IP and UDP headers between 0.2 and 0.8 s, and the request at 0.2 s.
    assert sample.return_data_rate == pytest.approx(8 * (60 + 40 + 40 + 3 * 28) / 0.6)
    # New bytes that have arrived: 2000 at 0.41 s, 3000 at 0.65 s, 4000 at 0.67 s, 5000 at 0.80 s.
    assert sample.steady_state_efficiency == pytest.approx(8 * 2000 / (0.80 - 0.65) / 1e6)


def test_goodput_goes_from_the_first_to_the_last_1rtt_packet_of_the_server_whatever_they_carry() -> None:
    """Thesis figure 5.16: a tail that is sent again counts, and so does the wait for the request; only for goodput."""
    client_side, _ = captures()
    plain = measure(client_side, None)

    def with_more(*packets: Packet) -> Sample:
        first = [
            Packet(0.0, CLIENT, 0, (Frame("crypto"),), type="initial"),
            Packet(0.2, SERVER, 0, (Frame("handshake_done"),), length=50),
            Packet(0.8, SERVER, 8, (Stream(0, 0, FILE, fin=True),), length=1040),
        ]
        return measure(trace([*first, *packets]), None)

    assert with_more().goodput == pytest.approx(8 * FILE / 0.6) == plain.goodput
    unread = Packet(1.4, SERVER, None, fields={"decrypted": False})
    for late in (Packet(1.4, SERVER, 9, (Stream(0, 0, 1000),)), Packet(1.4, SERVER, 9, (Frame("ping"),)), unread):
        tail = with_more(late)
        assert tail.goodput == pytest.approx(8 * FILE / 1.2)
        assert tail.efficiency == pytest.approx(8 * FILE / 1.2 / 1e6)
        assert (tail.ttlb, tail.last_server_1rtt) == pytest.approx((0.8, 1.4))
        assert tail.throughput == with_more().throughput
    of_client = with_more(Packet(1.4, CLIENT, 9, (Ack(((8, 8),)),)))
    assert of_client.goodput == with_more().goodput


def test_the_share_of_the_slow_start_bound_counts_both_from_the_first_byte_to_the_last() -> None:
    """A transfer that is ideal slow start itself has 100 %, however long the server's first packet waits for data."""
    link = LinkParameters(data_rate=1_000_000, delay=0.1, queue_packets=25, loss=0.0)

    def shares(first_1rtt: float) -> Sample:
        packets = [Packet(0.0, CLIENT, 0, type="initial"), Packet(first_1rtt, SERVER, 0, (Frame("handshake_done"),))]
        acks = [(1.2 + 0.1, 3)]
        sends = [(1.0 + 0.008 * n, n) for n in range(2)] + [(1.2 + 0.008 * n, 2 + n) for n in range(3)]
        packets += [Packet(1.0, CLIENT, 1, (Stream(0, 0, 12, fin=True),))]
        packets += [Packet(at, SERVER, 1 + n, (Stream(0, 1000 * n, 1000, fin=n == 4),)) for at, n in sends]
        packets += [Packet(at, CLIENT, 5, (Ack(((1, largest),)),)) for at, largest in acks]
        ordered = sorted(packets, key=lambda packet: packet.time)
        acked = [
            replace(packet, time=1.19) if packet.sender == CLIENT and packet.number == 5 else packet
            for packet in ordered
        ]
        both = trace(sorted(acked, key=lambda packet: packet.time))
        return sample(Transfer(both, both), facts(both, both), file_sizes=(FILE,), forward=link, return_=link)

    early, late = shares(0.2), shares(1.0)
    assert early.initial_window_bytes == 2000
    assert early.slow_start_bound is not None
    # 2000 B, one RTT of 0.2 s, then 3000 B: 0.224 s from the first byte to the last, when bytes have no width.
    assert early.slow_start_bound == pytest.approx(8 * FILE / 1e6 / 0.224)
    # The first packet is there at once, so that what is measured lacks its 8 ms.
    assert early.efficiency_of_bound == pytest.approx(0.224 / 0.216)
    assert late.efficiency_of_bound == early.efficiency_of_bound
    assert early.goodput is not None
    assert late.goodput is not None
    assert early.goodput < 0.25 * late.goodput


def test_samples_of_the_first_definitions_get_the_rates_that_follow_from_their_times() -> None:
    now = measure(*captures())
    names = ("throughput", "link_share", "delivery_rate", "efficiency_of_bound", "last_server_1rtt")
    old = replace(now, definitions=1, **dict.fromkeys(names))  # type: ignore[arg-type]
    again = old.completed(1e6)
    for name in names[:4]:
        assert getattr(again, name) == getattr(now, name)
    assert again.definitions == 1


def test_one_capture_gives_what_it_can_and_none_for_the_rest() -> None:
    client_side, server_side = captures()
    both, client, server = measure(client_side, server_side), measure(client_side, None), measure(None, server_side)
    for name in ("goodput", "ttfb", "ttlb", "throughput", "delivery_rate", "handshake_time", "ack_ratio"):
        assert getattr(client, name) == getattr(both, name)
        assert getattr(server, name) is None
    for name in ("stream_bytes_sent", "retransmitted_bytes", "initial_window_bytes", "rtt_min", "data_packets"):
        assert getattr(server, name) == getattr(both, name)
        assert getattr(client, name) is None
    for name in ("spurious_bytes", "one_way_delay_median", "lost_packets"):
        assert getattr(client, name) is None
        assert getattr(server, name) is None


def test_an_unreadable_packet_of_the_server_leaves_no_wrong_count() -> None:
    client_side, server_side = captures()
    hidden = server_side.packets.column("decrypted").to_pylist()
    hidden[server_side.packets.column("packet_number").to_pylist().index(4)] = False
    place = server_side.packets.schema.get_field_index("decrypted")
    broken = replace(
        server_side, packets=server_side.packets.set_column(place, TABLES["packets"].field(place), pa.array(hidden))
    )
    sample = measure(client_side, broken)
    assert sample.goodput == measure(client_side, server_side).goodput
    assert sample.stream_bytes_sent is None
    assert sample.retransmission_ratio is None
    assert sample.lost_packets is None


def test_an_incomplete_transfer_has_no_goodput() -> None:
    client_side, server_side = captures()
    trace_facts = facts(client_side, server_side)
    larger = sample(
        Transfer(client_side, server_side), trace_facts, file_sizes=(FILE, 1), forward=FORWARD, return_=RETURN
    )
    assert larger.goodput is None
    assert larger.ttlb is None
    assert larger.ttfb == pytest.approx(0.4)
    assert larger.retransmitted_bytes == 1500


def test_facts_of_the_connection() -> None:
    (connection,) = facts(*captures()).connections
    (stream,) = connection.streams
    assert connection.handshake_completed
    assert (stream.client_bytes, stream.server_bytes, stream.server_fin) == (12, FILE, FILE)
    assert (stream.request, stream.last_new_byte) == pytest.approx((0.2, 0.8))
    assert connection.max_concurrent_streams == 1
    (close,) = connection.closes
    assert (close.sender, close.application, close.code) == ("client", True, 0)
    assert close.time == pytest.approx(0.9)
    (path,) = connection.paths
    assert (path.client, path.server) == ("10.0.0.1:50000", "10.0.0.2:443")


ODD = {
    "nothing": lambda: trace([], *[]),
    "no connection": lambda: trace([Packet(0, -1, None, type="unknown", connection=-1)]),
    "no packet number": lambda: trace([Packet(0, SERVER, None, fields={"decrypted": False})]),
    "an ACK of nothing": lambda: trace([Packet(0, CLIENT, 0, (Ack(((5, 7),)),))]),
    "an empty frame": lambda: trace([Packet(0, SERVER, 0, (Stream(0, 0, 0, fin=True),))]),
    "a huge offset": lambda: trace([Packet(0, SERVER, 0, (Stream(0, 2**62 - 1, 1000), Stream(4, 2**62 - 1, 9)))]),
    "data before the FIN's end": lambda: trace([Packet(0, SERVER, 0, (Stream(0, 5, 0, True), Stream(0, 0, 9)))]),
    "no parameters": lambda: trace([Packet(0, SERVER, 0)], connection(client_transport_parameters="no JSON")),
    "an odd parameter": lambda: trace(
        [Packet(0, SERVER, 0)], connection(server_transport_parameters='{"initial_max_streams_bidi": "x"}')
    ),
    "a connection without packets": lambda: trace([], connection()),
    "time that runs backwards": lambda: trace(
        [Packet(1, SERVER, 0, (Stream(0, 0, 9),)), Packet(0, CLIENT, 0, (Ack(((0, 0),)),))]
    ),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("sides", ["client", "server", "both", "with an empty one"])
def test_odd_traces_raise_nothing(name: str, sides: str) -> None:
    odd = ODD[name]()
    client_side = odd if sides in ("client", "both", "with an empty one") else None
    server_side = odd if sides in ("server", "both") else empty() if sides == "with an empty one" else None
    sample = measure(client_side, server_side)
    assert sample.goodput is None
    json.dumps(draw(client_side, server_side), allow_nan=False)


def test_no_capture_at_all_gives_no_number() -> None:
    sample = measure(None, None)
    known = ("file_size", "definitions")
    assert all(getattr(sample, field.name) is None for field in fields(Sample) if field.name not in known)
    assert facts(None, None).connections == ()
    assert json.loads(json.dumps(draw(empty(), empty())))["client"]["t_us"] == []


def test_clocks_that_differ_give_no_one_way_delay() -> None:
    client_side, server_side = captures()
    both = measure(client_side, server_side)
    shift = pa.scalar(-5_000_000_000, pa.int64())
    late: dict[str, pa.Table] = {}
    for name in TABLES:
        table = getattr(client_side, name)
        for column in ("time_ns", "first_time_ns"):
            if column in table.column_names and table.column(column).null_count == 0:
                place = table.schema.get_field_index(column)
                table = table.set_column(place, table.schema.field(place), pc.add(table.column(column), shift))
        late[name] = table
    sample = measure(replace(client_side, **late), server_side)
    assert sample.one_way_delay_median is None
    unaffected = ("goodput", "ttlb", "spurious_bytes", "lost_packets", "rtt_min", "initial_window_bytes")
    assert [getattr(sample, name) for name in unaffected] == pytest.approx([getattr(both, name) for name in unaffected])


def test_rtt_comes_from_acks_that_are_first_to_name_a_packet_that_asks_for_one() -> None:
    packets = [
        Packet(0.00, SERVER, 0, (Stream(0, 0, 10),)),
        Packet(0.01, SERVER, 1, (Ack(((0, 0),)), Frame("padding"))),
        Packet(0.10, CLIENT, 0, (Ack(((0, 0),), delay_us=5000),)),
        Packet(0.50, CLIENT, 1, (Ack(((0, 0),)),)),
        Packet(0.60, CLIENT, 2, (Ack(((0, 1),)),)),
        Packet(0.70, CLIENT, 3, (Ack(((7, 7),)),)),
        Packet(0.80, SERVER, 8, (Frame("ping"),)),
        Packet(1.00, CLIENT, 4, (Ack(((8, 8), (0, 1))),)),
    ]
    vantage = Recording(None, trace(packets)).server
    assert vantage is not None
    samples = rtt_samples(vantage)
    assert samples.rtt.tolist() == pytest.approx([0.10, 0.20])


def test_without_fin_a_transfer_is_not_complete() -> None:
    def goodput(fin: bool) -> float | None:
        packets = [
            Packet(0.0, CLIENT, 0, type="initial"),
            Packet(0.2, SERVER, 0, (Frame("handshake_done"),)),
            Packet(0.7, SERVER, 1, (Stream(0, 0, FILE, fin=fin),)),
        ]
        return measure(trace(packets), None).goodput

    assert goodput(True) == pytest.approx(8 * FILE / 0.5)
    assert goodput(False) is None


def test_steady_state_leaves_start_and_tail_out() -> None:
    # 100 B every 10 ms, but the first half and the last 5 % of the bytes take their time.
    times = [0.1 * n for n in range(25)] + [3 + 0.01 * n for n in range(23)] + [10.0, 20.0]
    packets = [Packet(0.0, CLIENT, 0, type="initial")]
    packets += [Packet(time, SERVER, n, (Stream(0, 100 * n, 100, fin=n == 49),)) for n, time in enumerate(times)]
    # 50 % have arrived with frame 24 at 2.4 s, 95 % with frame 47 at 3.22 s.
    assert measure(trace(packets), None).steady_state_efficiency == pytest.approx(8 * 2300 / (3.22 - 2.4) / 1e6)


def test_the_times_of_the_first_megabytes_count_new_bytes() -> None:
    times = ((0.5, 0), (1.0, 0), (2.0, 1), (3.0, 2))  # the second packet repeats the bytes of the first
    packets = [Packet(0.0, CLIENT, 0, type="initial")]
    packets += [
        Packet(time, SERVER, number, (Stream(0, 1_000_000 * block, 1_000_000, fin=block == 2),))
        for number, (time, block) in enumerate(times)
    ]
    sample = measure(trace(packets), None)
    assert (sample.first_2_mb, sample.first_10_mb, sample.first_100_mb) == (2.0, None, None)


def test_a_repeated_transfer_has_times_of_its_second_connection() -> None:
    """The second connection's times begin at its own first packet, and count its own new bytes."""
    times = {0: (0.5, 1.0, 2.0), 1: (7.5, 8.0)}
    packets = [Packet(0.0, CLIENT, 0, type="initial"), Packet(7.0, CLIENT, 0, type="initial", connection=1)]
    packets += [
        Packet(time, SERVER, number, (Stream(0, 1_000_000 * number, 1_000_000),), connection=one)
        for one, arrivals in times.items()
        for number, time in enumerate(arrivals)
    ]
    packets.sort(key=lambda packet: packet.time)
    sample = measure(trace(packets, connection(), connection()), None)
    assert (sample.first_2_mb, sample.repeat_pause, sample.repeat_2_mb) == (1.0, 5.0, 1.0)
    assert sample.repeat_10_mb is None
    once = measure(trace([packet for packet in packets if not packet.connection], connection()), None)
    assert (once.repeat_pause, once.repeat_2_mb) == (None, None)


def test_the_first_flight_is_what_left_before_an_ack_of_it_could_have_come() -> None:
    flight = facts(*captures()).first_flight
    assert flight is not None
    # The request arrives at 0.3 s; HANDSHAKE_DONE had left before. The first ACK of data arrives at 0.55 s.
    assert (flight.packets, flight.bytes, flight.datagram_bytes) == (3, 3 * 1040, 1200)
    assert flight.full_packets == pytest.approx(2.6)
    assert flight.response_bytes == 3000
    assert flight.duration == pytest.approx(0.02)
    assert flight.acknowledged == pytest.approx(0.25)
    assert measure(*captures()).first_flight_packets == pytest.approx(2.6)


def test_without_the_servers_capture_there_is_no_first_flight() -> None:
    client_side, server_side = captures()
    assert facts(client_side, None).first_flight is None
    assert facts(None, server_side).first_flight is not None
    assert facts(empty(), empty()).first_flight is None
