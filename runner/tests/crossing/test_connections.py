"""Which connections two captures share, and when the last new byte came."""

import ipaddress
from functools import partial
from pathlib import Path

from runner.decode.capture import read_packets
from runner.judge.crossing import connections, exchange
from runner.tests.crossing.captures import CLIENT, SERVER, Sent, connection, write_capture

ENDS = ipaddress.ip_address(CLIENT).packed, ipaddress.ip_address(SERVER).packed


def test_a_connection_is_known_by_both_initial_sequence_numbers(tmp_path: Path) -> None:
    packets = connection(CLIENT, SERVER, initials=(7, 9), request=b"GET", response=b"x" * 2500)
    _, read = read_packets(write_capture(tmp_path / "a.pcap", packets))
    assert connections(read) == ((7, 9),)


def test_a_connection_without_data_does_not_count(tmp_path: Path) -> None:
    packets = connection(CLIENT, SERVER, initials=(7, 9), request=b"GET", response=b"x")[:2]
    _, read = read_packets(write_capture(tmp_path / "a.pcap", packets))
    assert connections(read) == ()


def test_a_segment_that_came_before_does_not_move_the_end(tmp_path: Path) -> None:
    packets = connection(CLIENT, SERVER, initials=(7, 9), request=b"GET", response=b"x" * 3000)
    packets += [packets[3]]
    _, read = read_packets(write_capture(tmp_path / "a.pcap", packets))
    outcome = exchange(read, *ENDS)
    assert (outcome.answered, outcome.first, outcome.last) == (0.1, 0.3, 0.5)
    assert outcome.bytes == sum(len(packet.ip()) for packet in packets)


def test_a_segment_that_fills_a_hole_is_the_end(tmp_path: Path) -> None:
    packets = connection(CLIENT, SERVER, initials=(7, 9), request=b"GET", response=b"x" * 3000)
    lost = packets.pop(4)
    _, read = read_packets(write_capture(tmp_path / "a.pcap", [*packets, lost, lost]))
    assert exchange(read, *ENDS).last == 0.5


def test_sequence_numbers_wrap(tmp_path: Path) -> None:
    back = partial(Sent, source=SERVER, destination=CLIENT, ports=(80, 40000))
    packets = [
        Sent(source=CLIENT, destination=SERVER, ports=(40000, 80), sequence=1, payload=b"GET"),
        back(sequence=0xFFFFFFF0, payload=b"x" * 8),
        back(sequence=0xFFFFFFF8, payload=b"x" * 16),
        back(sequence=0xFFFFFFF0, payload=b"x" * 8),
    ]
    _, read = read_packets(write_capture(tmp_path / "a.pcap", packets))
    assert exchange(read, *ENDS).last == 0.2
