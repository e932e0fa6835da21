"""The decoder on many connections in one capture, and on migrating connections."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
import pytest
from aioquic.quic.connection import QuicConnection

from runner.decode.capture import open_capture, read_datagrams
from runner.decode.columns import SERVER
from runner.decode.tables import decode_capture, unique_bytes_by_stream
from runner.tests.decode.decoded import (
    connection,
    contents,
    decode,
    decode_pairs,
    decode_records,
    own,
    shared,
    undecrypted,
)
from runner.tests.decode.pairs import Pair
from runner.tests.decode.rewrite import read
from runner.tests.decode.test_oracle_tshark import OWN, key_logs
from runner.trace.establish import facts


def test_fifty_connections_at_once(tmp_path: Path) -> None:
    pairs = [Pair(client_port=50000 + number).connect().request(1024) for number in range(50)]
    trace = decode_pairs(tmp_path, pairs)
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 50
    assert len(set(trace.connections["client_random"].to_pylist())) == 50
    streams = unique_bytes_by_stream(trace.stream_frames)
    assert sum(size for (_, sender, _), size in streams.items() if sender == SERVER) == 50 * 1024


def test_two_connections_with_one_four_tuple(tmp_path: Path) -> None:
    pairs = [Pair().connect().request(20000) for _ in range(2)]
    trace = decode_pairs(tmp_path, pairs)
    assert sum(a != b for a, b in pairwise(trace.packets["connection"].to_pylist())) > 10, "they do not overlap"
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 2
    for number in (0, 1):
        frames = trace.stream_frames.filter(pc.equal(trace.stream_frames["connection"], number))
        from_server = frames.filter(pc.equal(frames["sender"], SERVER))
        assert pc.max(pc.add(from_server["offset"], pc.cast(from_server["length"], "int64"))).as_py() == 20000


def test_two_connections_with_one_four_tuple_and_no_connection_ids(tmp_path: Path) -> None:
    """quic-go's clients choose zero-length ones: what comes to them says nothing but the 4-tuple, which they share."""
    first, second = own("quic-go_transfer"), own("quic-go_owngeneration")
    shift = read(first)[0].time_ns - read(second)[0].time_ns + 1
    moved = [replace(record, time_ns=record.time_ns + shift) for record in read(second)]
    merged = sorted([*read(first), *moved], key=lambda record: record.time_ns)
    records = [record.with_client(61000) for record in merged]
    trace = decode_records(tmp_path, records, [*key_logs(first), *key_logs(second)])
    assert sum(a != b for a, b in pairwise(trace.packets["connection"].to_pylist())) > 10, "they do not overlap"
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 2
    assert trace.stream_frames.num_rows == sum(decode(each).stream_frames.num_rows for each in (first, second))


@pytest.mark.parametrize("name", ["quic-go_transfer", "quinn_transfer", "aioquic_transfer"])
def test_nat_rebinding(tmp_path: Path, name: str) -> None:
    """quic-go's client has a zero-length connection ID: what comes to it says nothing but the 4-tuple."""
    records = read(own(name))
    half = len(records) // 2
    moved = [*records[:half], *(record.with_client(61000) for record in records[half:])]
    trace = decode_records(tmp_path, moved, key_logs(own(name)))
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 1
    assert contents(trace) == contents(decode(own(name)))
    assert 61000 in trace.datagrams["src_port"].to_pylist()
    assert set(trace.datagrams["connection"].to_pylist()) == {0}


def test_a_preferred_address_is_quic_without_the_fixed_bit_too(tmp_path: Path) -> None:
    """RFC 9287: the bit may be 0 in any packet, and the other port is not a port of QUIC."""
    capture = shared("misbehaving_aioquic/connectionmigration")
    whole = decode(capture)
    file, data = open_capture(capture)
    datagrams = read_datagrams(file)
    ports = [datagrams.flows[flow].dst_port for flow in datagrams.flow]
    start = next(at for at, port in zip(datagrams.start, ports, strict=True) if port == 4443 and data[at] < 0x80)
    path = tmp_path / "greased.pcap"
    path.write_bytes(data[:start] + bytes((data[start] & ~0x40,)) + data[start + 1 :])
    trace = decode_capture(path, key_logs(capture))
    assert trace.datagrams["dst_port"].to_pylist().count(4443) == ports.count(4443)
    assert trace.datagrams.num_rows == whole.datagrams.num_rows
    assert undecrypted(trace) == ["1rtt"]


@pytest.mark.parametrize("vantage", ["client", "server"])
def test_answers_to_a_client_hello_without_the_token_of_the_retry_are_left_out(vantage: str) -> None:
    """ngtcp2's server sent a Retry, answered a late Initial packet without its token, and then the one with the token:
    two connections at the server with one client random. The client follows the Retry and ignores the first answers."""
    folder = OWN / "ngtcp2_answers"
    trace = decode_capture(folder / f"{vantage}.pcap", sorted(folder.glob("*.keys.log")))
    assert undecrypted(trace) == []
    assert connection(trace)["retry"]
    from_server = trace.packets.filter(
        pc.and_(pc.equal(trace.packets["sender"], SERVER), pc.is_valid(trace.packets["scid"]))
    )
    named = {cid.hex()[:8] for cid in from_server["scid"].to_pylist()}
    assert named == {"e340ce27", "d6dfe79a"}, "those of the Retry and of the connection that the client accepts"
    assert sum(trace.meta.skipped_udp.values()) > 0


def test_a_server_that_sends_to_an_id_that_the_client_never_had(tmp_path: Path) -> None:
    """x-net's server takes the client's connection ID from a damaged Initial packet. Packets of other connections on
    the same 4-tuple come before its second datagram."""
    pair = Pair()
    pair.client.connect(("193.167.100.100", 443), now=pair.now)
    ((flight, _),) = pair.client.datagrams_to_send(now=pair.now)
    server = QuicConnection(
        configuration=pair._server_configuration, original_destination_connection_id=flight[6 : 6 + flight[5]]
    )
    for pair.now in (0.1, 9.0):
        pair.records.append(pair._record(flight, from_client=True))
        server.receive_datagram(flight, ("193.167.0.100", pair.client_port), now=pair.now)
        if (timer := server.get_timer()) is not None and timer <= pair.now:
            server.handle_timer(now=pair.now)
        server._peer_cid.cid = bytes(8)
        answers = [data for data, _ in server.datagrams_to_send(now=pair.now)]
        assert answers
        pair.records += [pair._record(data, from_client=False) for data in answers]
    trace = decode_pairs(tmp_path, [pair, *(Pair(now=1.0).connect() for _ in range(6))])
    assert undecrypted(trace) == []
    assert trace.connections.num_rows == 7


def test_a_hello_retry_request_after_version_negotiation_is_in_the_transcript() -> None:
    """ngtcp2's client and quic-go's server: the messages after HelloRetryRequest are verified with both ClientHellos
    (RFC 8446 §4.4.1), and the server's certificate is the wrong one that it showed."""
    folder = OWN / "ngtcp2_helloretry"
    trace = decode_capture(folder / "client.pcap", sorted(folder.glob("*.keys.log")))
    assert undecrypted(trace) == ["unknown"]
    refused, followed = trace.connections.to_pylist()
    assert (refused["original_version"], followed["version"]) == (0x1A2A3A4A, 1)
    messages = json.loads(followed["messages"])
    assert [each["type"] for each in messages] == [1, 2, 1, 2, 8, 11, 15, 20, 20, 4]
    assert [each["right"] for each in messages if "right" in each] == [True] * 3
    assert followed["client_hello_count"] == 1, "zero tells that the capture lacks the beginning"
    assert facts(trace, None).connections[1].client_hello_count == 2, "the public runner counts both"
    shown = next(each for each in messages if each["type"] == 11)
    assert (shown["names"], shown["self_signed"]) == (["wrong.example"], True)
