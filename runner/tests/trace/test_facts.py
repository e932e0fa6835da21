"""Facts of connections: small tables, one question each."""

from dataclasses import replace
from time import process_time
from typing import Any

import pyarrow as pa
import pytest

from runner.decode.columns import CLIENT, SERVER, Trace
from runner.decode.tables import TABLES
from runner.model.facts import Ending
from runner.tests.trace.tables import EPOCH_NS, Ack, Frame, Packet, Stream, connection, trace
from runner.trace.establish import facts


def test_concurrent_streams_are_those_open_at_once() -> None:
    def transfer(stream: int, requested: float, answered: float) -> list[Packet]:
        return [
            Packet(requested, CLIENT, stream, (Stream(stream, 0, 5, fin=True),)),
            Packet(answered, SERVER, stream, (Stream(stream, 0, 100, fin=True),)),
        ]

    first = Packet(0, CLIENT, 0, type="initial")
    one_after_the_other = [*transfer(0, 0.1, 0.2), *transfer(4, 0.2, 0.3), *transfer(8, 0.35, 0.4)]
    overlapping = [*transfer(0, 0.1, 0.5), *transfer(4, 0.2, 0.3), *transfer(8, 0.35, 0.6)]
    for packets, most in ((one_after_the_other, 1), (overlapping, 2)):
        capture = trace([first, *sorted(packets, key=lambda packet: packet.time)])
        assert facts(capture, None).connections[0].max_concurrent_streams == most
        assert facts(None, capture).connections[0].max_concurrent_streams == most


def test_retry_that_is_answered_wrongly_is_told_from_one_that_is_answered_rightly() -> None:
    def held(size: int) -> dict[str, Any]:
        return {"token_length": size, "token": bytes(size) or None}

    def capture(token: int, number: int, dcid: bytes) -> Trace:
        return trace(
            [
                Packet(0.0, CLIENT, 0, type="initial", fields=held(0) | {"dcid": b"original"}),
                Packet(0.1, SERVER, None, type="retry", fields=held(40) | {"scid": b"retried"}),
                Packet(0.2, CLIENT, number, type="initial", fields=held(token) | {"dcid": dcid}),
            ]
        )

    def answered(*how: Any) -> tuple[int, bool | None, bool | None]:
        (connection,) = facts(capture(*how), None).connections
        return connection.retries, connection.retry_token_echoed, connection.packet_number_reset

    assert answered(40, 1, b"retried") == (1, True, False)
    assert answered(40, 0, b"retried") == (1, True, True)
    assert answered(0, 1, b"retried") == (1, False, False)
    assert answered(40, 1, b"original") == (1, False, None)


def test_early_data_counts_stream_bytes_and_not_padding() -> None:
    packets = [
        Packet(0.0, CLIENT, 0, type="initial"),
        Packet(0.0, CLIENT, 0, (Stream(0, 0, 300, fin=True), Frame("padding")), type="0rtt"),
        Packet(0.01, CLIENT, 1, (Stream(0, 0, 300, fin=True), Stream(4, 0, 20)), type="0rtt"),
        Packet(0.30, CLIENT, 2, (Stream(8, 0, 20, fin=True),)),
    ]
    (refused,) = facts(trace(packets), None).connections
    assert (refused.early_data_requests, refused.early_data_accepted) == (2, False)
    taken = [*packets, Packet(0.4, SERVER, 0, (Ack(((1, 1),)),))]
    assert facts(trace(taken), None).connections[0].early_data_accepted
    only_1rtt = [*packets, Packet(0.4, SERVER, 0, (Ack(((2, 2),)),))]
    assert facts(trace(only_1rtt), None).connections[0].early_data_accepted is False


def test_ecn_counts_come_from_marks_and_from_the_last_ack() -> None:
    packets = [
        Packet(0.0, CLIENT, 0, type="initial", datagram={"ecn": 2}),
        Packet(0.1, SERVER, 0, (Ack(((0, 0),), ecn=(1, 0, 0)),), type="initial", datagram={"ecn": 1}),
        Packet(0.2, CLIENT, 0, datagram={"ecn": 3}),
        Packet(0.3, SERVER, 0, (Ack(((0, 0),), ecn=(1, 0, 1)),)),
        Packet(0.4, SERVER, 1, (Ack(((0, 1),), ecn=(2, 0, 1)),)),
        Packet(0.5, CLIENT, 1, (Ack(((0, 1),)),)),
    ]
    (connection,) = facts(trace(packets), trace(packets)).connections
    assert connection.client_ecn.sent is not None
    assert (connection.client_ecn.sent.ect0, connection.client_ecn.sent.ce, connection.client_ecn.sent.not_ect) == (
        1,
        1,
        1,
    )
    assert connection.server_ecn.sent is not None
    assert (connection.server_ecn.sent.ect1, connection.server_ecn.sent.not_ect) == (1, 2)
    assert connection.client_ecn.sent.ect == 1
    reported = connection.server_ecn.reported
    assert (reported.ect0, reported.ect1, reported.ce) == (3, 0, 1)
    assert (connection.server_ecn.ack_frames, connection.server_ecn.ack_frames_with_counts) == (3, 3)
    assert (connection.client_ecn.ack_frames, connection.client_ecn.ack_frames_with_counts) == (1, 0)


def test_key_updates_paths_and_stream_limits() -> None:
    packets = [
        Packet(0.0, CLIENT, 0, type="initial"),
        Packet(0.1, SERVER, 0, (Frame("max_streams_bidi", 0x12, 200),)),
        Packet(0.2, CLIENT, 0, fields={"key_generation": 1}),
        Packet(0.3, CLIENT, 1, fields={"key_generation": 2}, datagram={"src_port": 50001}),
    ]
    row = connection(server_transport_parameters='{"initial_max_streams_bidi": 100}')
    (connection_facts,) = facts(None, trace(packets, row)).connections
    assert (connection_facts.client_key_updates, connection_facts.server_key_updates) == (2, 0)
    assert [path.client for path in connection_facts.paths] == ["10.0.0.1:50000", "10.0.0.1:50001"]
    assert (connection_facts.initial_max_streams_bidi, connection_facts.max_streams_bidi) == (100, 200)


def test_connections_of_both_captures_are_joined_by_the_clients_random() -> None:
    def packets(numbers: tuple[int, ...], delay: float) -> list[Packet]:
        return [
            Packet(number + delay, CLIENT, 0, type="initial", connection=place) for place, number in enumerate(numbers)
        ]

    rows = [connection(client_random=bytes([number]), odcid=b"", sni=str(number)) for number in range(3)]
    client_side = trace(packets((0, 1), 0.0), rows[0], rows[1])
    server_side = trace(packets((1, 2), 0.1), rows[1], rows[2])
    connections = facts(client_side, server_side).connections
    assert [row.sni for row in connections] == ["0", "1", "2"]
    assert [row.first_initial for row in connections] == [0.0, 1.0, None]


def test_times_are_exact_to_the_nanosecond() -> None:
    packets = [Packet(0, CLIENT, 0, type="initial"), Packet(0, SERVER, 0)]
    capture = trace(packets)
    place = capture.datagrams.schema.get_field_index("time_ns")
    times = pa.array([EPOCH_NS, EPOCH_NS + 1_000_001])
    exact = replace(capture, datagrams=capture.datagrams.set_column(place, TABLES["datagrams"].field(place), times))
    assert facts(exact, None).connections[0].first_server_1rtt == pytest.approx(0.001000001, abs=1e-12)


def test_an_application_close_that_is_masked_in_handshake_packets_is_no_transport_error() -> None:
    def closes(*frames: Packet) -> list[tuple[str, bool, int]]:
        (connection,) = facts(trace([Packet(0, CLIENT, 0, type="initial"), *frames]), None).connections
        return [(close.sender, close.application, close.code) for close in connection.closes]

    masked = Packet(0.1, CLIENT, 1, (Frame("connection_close", 0x1C, 0x0C),), type="handshake")
    other = Packet(0.1, SERVER, 1, (Frame("connection_close", 0x1C, 0x0A),), type="handshake")
    real = Packet(0.1, CLIENT, 2, (Frame("application_close", 0x1D, 7),))
    assert closes(masked, real, real, other) == [("client", True, 7), ("server", False, 0x0A)]
    assert closes(masked) == [("client", False, 0x0C)]


def test_a_lost_packet_whose_data_were_sent_again_waits_for_no_acknowledgment() -> None:
    def waiting(*packets: Packet) -> list[float | None]:
        first = Packet(0.0, CLIENT, 0, type="initial")
        ending = facts(trace([first, *packets]), None).connections[0].endings["client"]
        return [place.time for place in ending.unacknowledged]

    request, again = (Packet(time, CLIENT, number, (Stream(0, 0, 20, fin=True),)) for time, number in ((1, 0), (2, 1)))
    acknowledged = Packet(3, SERVER, 0, (Ack(((1, 1),)),))
    assert waiting(request, again) == [1, 2]
    assert waiting(request, again, acknowledged) == []
    assert waiting(replace(request, frames=(Stream(0, 0, 30, fin=True),)), again, acknowledged) == [1]
    assert waiting(request, replace(again, frames=(Stream(0, 0, 20),)), acknowledged) == [1], "FIN is missing"
    assert waiting(request, replace(again, frames=(Frame("ping", 1),)), acknowledged) == [1]
    assert waiting(replace(request, frames=(Frame("ping", 1),)), again, acknowledged) == []


def _ends(sender: int, *packets: Packet, idle: str = '{"max_idle_timeout": 30000}') -> Ending:
    """The end of the part of `sender`, which has its own capture."""
    capture = trace([Packet(0.0, CLIENT, 0, type="initial"), *packets], connection(client_transport_parameters=idle))
    sides = (capture, None) if sender == CLIENT else (None, capture)
    return facts(*sides).connections[0].endings["client" if sender == CLIENT else "server"]


def test_a_lost_ping_of_the_handshake_is_not_repaired() -> None:
    ping, acknowledged = (Frame("ping", 1),), Packet(3, SERVER, 0, (Ack(((1, 1),)),), type="handshake")
    pings = [Packet(time, CLIENT, number, ping, type="handshake") for time, number in ((1, 0), (2, 1))]
    assert [place.time for place in _ends(CLIENT, *pings).unacknowledged] == [1, 2]
    assert _ends(CLIENT, *pings, acknowledged).unacknowledged == ()
    data = replace(pings[0], frames=(Frame("crypto", 6, offset=0, length=52),))
    assert [place.time for place in _ends(CLIENT, data, pings[1], acknowledged).unacknowledged] == [1]


def test_the_next_probe_of_a_handshake_is_due_after_twice_the_time() -> None:
    ping = (Frame("ping", 1),)
    probes = [Packet(time, CLIENT, number, ping, type="initial") for time, number in ((1, 1), (3, 2), (7, 3))]
    assert _ends(CLIENT, *probes).backoff == 4
    assert _ends(CLIENT, replace(probes[0], type="1rtt"), replace(probes[1], type="1rtt")).backoff == 0


def test_an_endpoint_owes_no_answer_after_the_idle_timeout() -> None:
    answer = Packet(1, SERVER, 0, (Frame("ping", 1),))
    for late, seen in ((30, (1, False)), (32, (0, True))):
        ending = _ends(SERVER, answer, Packet(late, CLIENT, 1, (Stream(0, 0, 20, fin=True),)))
        assert (ending.unanswered, ending.timed_out) == seen
    heard = [Packet(time, CLIENT, time, (Ack(((0, 0),)),)) for time in (20, 31)]
    ending = _ends(SERVER, answer, *heard, Packet(32, CLIENT, 40, (Frame("ping", 1),)))
    assert (ending.unanswered, ending.timed_out) == (1, False)


def test_a_client_without_handshake_keys_owes_no_answer_to_1rtt_packets() -> None:
    packets = [Packet(time, SERVER, time, (Frame("ping", 1),)) for time in (1, 2)]
    assert _ends(CLIENT, *packets).unanswered == 0
    finished = Packet(0.5, CLIENT, 0, (Frame("crypto", 6, offset=0, length=52),), type="handshake")
    assert _ends(CLIENT, finished, *packets).unanswered == 2


def test_thousands_of_lost_packets_take_little_time() -> None:
    """nginx packs lost data into new packets again and again, when all large packets are lost."""
    pieces = range(4)
    packets = [
        Packet(0.001 * number, SERVER, number, tuple(Stream(0, 400 * each + number % 400, 200) for each in pieces))
        for number in range(4000)
    ]
    acknowledged = Packet(9, CLIENT, 1, (Ack(((3999, 3999),)),))
    capture = trace([Packet(0.0, CLIENT, 0, type="initial"), *packets, acknowledged])
    begin = process_time()
    ending = facts(None, capture).connections[0].endings["server"]
    assert process_time() - begin < 2
    assert len(ending.unacknowledged) == 5, "the last ones, whose data were not sent again"
