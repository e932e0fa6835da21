"""The decoder on captures of strangers: other traffic, link layers, versions and key logs."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from lab.pairs import datagram
from lab.rewrite import Record, read, write_pcap
from runner.decode import decode_capture
from runner.tests.decode.decoded import own, undecrypted
from runner.tests.decode.test_oracle_tshark import key_logs

CAPTURE = own("quic-go_transfer")


def _ported(record: Record, source: int, destination: int) -> Record:
    return replace(record, frame=record.frame[:34] + struct.pack(">HH", source, destination) + record.frame[38:])


def _on_port(record: Record, port: int) -> Record:
    """The same datagram of a server on another port than 443."""
    source, destination = struct.unpack(">HH", record.frame[34:38])
    return _ported(record, *(port if each == 443 else each for each in (source, destination)))


def test_text_in_udp_is_not_quic(tmp_path: Path) -> None:
    records = read(CAPTURE)
    last = records[-1].time_ns
    lines = [datagram(last + at, b"jobs.done:%d|c" % at, client_port=30000, from_client=True) for at in range(20)]
    calls = [
        datagram(last + at, b"OPTIONS sip:a@b SIP/2.0", client_port=5060, from_client=at % 2 == 0) for at in range(9)
    ]
    others = [_on_port(record, 8125) for record in lines] + [_on_port(record, 5060) for record in calls]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", [*records, *others]), key_logs(CAPTURE))
    assert trace.packets.num_rows == decode_capture(CAPTURE, key_logs(CAPTURE)).packets.num_rows
    assert trace.meta.skipped_udp == {"no QUIC connection on these addresses and ports": 29}


@pytest.mark.parametrize("first", [0, 12])
def test_quic_on_any_port_is_read_from_its_middle_too(tmp_path: Path, first: int) -> None:
    records = [_on_port(record, 4444) for record in read(CAPTURE)[first:]]
    trace = decode_capture(write_pcap(tmp_path / "a.pcap", records), key_logs(CAPTURE))
    assert (trace.datagrams.num_rows, undecrypted(trace)) == (len(records), [])
