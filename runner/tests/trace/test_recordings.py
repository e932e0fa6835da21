"""Real transfers, captured on both sides of a link with delay and loss, against the qlogs of their endpoints."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runner.decode.columns import Trace
from runner.decode.tables import decode_capture
from runner.model.facts import TraceFacts
from runner.model.link import LinkParameters
from runner.model.result import Sample
from runner.tests.decode.tshark import rows
from runner.tests.trace import oracle
from runner.trace.establish import facts
from runner.trace.measure import rtt_samples, sample, series
from runner.trace.recording import Recording
from runner.trace.streams import NEW, Transfer

RECORDING = Path(__file__).parent / "recordings" / "lossy"
SIZES = (12_000, 12_000)
DELAY = 0.05
LINK = LinkParameters(data_rate=10_000_000, delay=DELAY, queue_packets=1000, loss=0.0)


def _traces() -> tuple[Trace, Trace]:
    keys = [RECORDING / "keys.log"]
    client, server = (decode_capture(RECORDING / f"{side}.pcap", keys) for side in ("client", "server"))
    return client, server


def _analyse() -> tuple[TraceFacts, Sample]:
    client, server = _traces()
    trace_facts = facts(client, server)
    return trace_facts, sample(Transfer(client, server), trace_facts, file_sizes=SIZES, forward=LINK, return_=LINK)


def test_bytes_and_packets_are_those_of_the_qlogs() -> None:
    _, sample = _analyse()
    expected = oracle.read(RECORDING)
    assert sample.stream_bytes_sent == expected.sent
    assert sample.retransmitted_bytes == expected.repeated
    assert sample.spurious_bytes == expected.spurious
    assert sample.data_packets == expected.data_packets
    assert sample.ack_ratio == pytest.approx(expected.acks_of_client / expected.data_packets_received)
    assert sample.initial_window_bytes == expected.initial_window


def test_the_lossy_recording_has_what_it_is_for() -> None:
    expected = oracle.read(RECORDING)
    assert expected.repeated > expected.spurious > 0
    assert expected.declared_lost


def test_lost_packets_are_those_that_the_client_never_saw() -> None:
    """Only packets that could reach the client before it closed count, because it logs no later ones."""
    client, server = _traces()
    (close,) = facts(client, server).connections[0].closes
    assert close.time is not None
    recording = Recording(client, server)
    assert recording.server is not None
    assert recording.arrival is not None
    mine = recording.server.packets.named("type", "1rtt") & (recording.server.packets["sender"] == 1)
    mine &= (recording.server.packet_time - (recording.origin_ns or 0)) / 1e9 < close.time - DELAY
    assert int((recording.arrival[mine] < 0).sum()) == oracle.read(RECORDING).unseen_packets


def test_what_was_sent_again_without_being_lost_is_spurious() -> None:
    """The server's loss detection gave packets up; every retransmission repeats such a packet or is a probe."""
    client, server = _traces()
    transfer = Transfer(client, server)
    assert transfer.sent is not None
    assert transfer.sent_kind is not None
    assert transfer.recording.server is not None
    number = transfer.recording.server.packets["packet_number"]
    declared = oracle.read(RECORDING).declared_lost
    again = transfer.sent_kind != NEW
    for start, end, packet in zip(
        transfer.sent.start[again], transfer.sent.end[again], transfer.sent.packet[again], strict=True
    ):
        earlier = (transfer.sent.packet < packet) & (transfer.sent.start < end) & (transfer.sent.end > start)
        assert earlier.any()
        assert declared & set(number[transfer.sent.packet[earlier]].tolist())


def test_times_are_those_of_the_qlogs() -> None:
    trace_facts, numbers = _analyse()
    expected = oracle.read(RECORDING)
    assert trace_facts.origin_unix_ns is not None
    origin = trace_facts.origin_unix_ns / 1e9
    assert numbers.first_server_1rtt == pytest.approx(expected.first_1rtt - origin, abs=0.01)
    assert numbers.ttlb == pytest.approx(expected.last_new_byte - origin, abs=0.01)
    wait = expected.last_new_byte - expected.first_1rtt
    assert numbers.first_server_1rtt is not None
    assert numbers.ttlb is not None
    assert numbers.ttlb - numbers.first_server_1rtt == pytest.approx(wait, rel=0.1)
    assert numbers.rtt_min == pytest.approx(min(expected.rtts), abs=0.01)
    assert numbers.one_way_delay_median == pytest.approx(DELAY, abs=0.01)


def _server_1rtt_by_tshark(capture: Path) -> tuple[float, float]:
    """The first and the last packet with a short header that the server's address sent, as the public runner asks."""
    address = "193.167.100.100" if capture.name == "left.pcap" else "10.99.0.2"
    filter_text = f"quic.header_form == 0 && (ip.src == {address} || ipv6.src == fd00:cafe:cafe:100::100)"
    found = rows(capture, filter_text, "frame.time_epoch", options=["-d", "udp.port==4433,quic"])
    times = [float(row["frame.time_epoch"][0]) for row in found]
    return times[0], times[-1]


JOBS = Path(__file__).parents[1] / "recordings"


@pytest.mark.parametrize("name", ["lossy", "quinn_quinn/lossy", "quic-go_quic-go/transfer", "quinn_aioquic/ipv6"])
def test_goodput_is_that_of_the_public_runner(name: str) -> None:
    """8 · size / (last - first 1-RTT packet from the server), read by another program from the same capture."""
    if name == "lossy":
        capture, (client, server) = RECORDING / "client.pcap", _traces()
    else:
        job = JOBS / name / "1"
        capture, keys = job / "sim/left.pcap", sorted(job.glob("*/keys.log"))
        client, server = (decode_capture(job / "sim" / f"{side}.pcap", keys) for side in ("left", "right"))
    trace_facts = facts(client, server)
    sizes = tuple(stream.server_bytes for stream in trace_facts.connections[0].request_streams)
    numbers = sample(Transfer(client, server), trace_facts, file_sizes=sizes, forward=LINK, return_=LINK)
    first, last = _server_1rtt_by_tshark(capture)
    assert numbers.goodput == pytest.approx(8 * sum(sizes) / (last - first), rel=1e-5)
    assert numbers.efficiency == pytest.approx(8 * sum(sizes) / (last - first) / 1e7, rel=1e-5)


def test_rtt_samples_are_near_the_servers_own() -> None:
    _, server = _traces()
    vantage = Recording(None, server).server
    assert vantage is not None
    measured = rtt_samples(vantage).rtt
    expected = oracle.read(RECORDING).rtts
    assert len(measured) > 0
    for rtt in measured:
        assert min(abs(rtt - other) for other in expected) < 0.01


def test_facts_of_aioquic() -> None:
    trace_facts, _ = _analyse()
    (connection,) = trace_facts.connections
    assert connection.handshake_completed
    assert (connection.version, connection.alpn, connection.retries) == (1, "hq-interop", 0)
    assert connection.certificate_sent
    assert connection.resumed is False
    assert connection.max_concurrent_streams == len(SIZES)
    assert [stream.server_bytes for stream in connection.request_streams] == list(SIZES)
    assert [stream.server_fin for stream in connection.request_streams] == list(SIZES)
    assert not connection.unread
    assert [close.code for close in connection.closes] == [0]
    assert trace_facts.ip_versions == {4}
    assert connection.client_hello_count == oracle.read(RECORDING).client_hellos
    assert connection.handshake_confirmed is not None
    assert connection.handshake_confirmed == pytest.approx(connection.first_server_1rtt, abs=0.2)


def test_series_hold_every_byte() -> None:
    client, server = _traces()
    trace_facts, numbers = _analyse()
    drawn = series(Transfer(client, server), trace_facts, numbers, file_sizes=SIZES, forward=LINK, return_=LINK)
    assert json.loads(json.dumps(drawn, allow_nan=False)) == drawn
    vantage = drawn["server"]
    assert isinstance(vantage, dict)
    assert sum(vantage["length"]) == numbers.stream_bytes_sent
    new = sum(length for length, kind in zip(vantage["length"], vantage["kind"], strict=True) if kind == NEW)
    assert new == sum(SIZES)


def test_a_capture_that_ends_early_gives_no_goodput() -> None:
    client, server = _traces()
    frames = client.stream_frames
    cut = replace(client, stream_frames=frames.slice(0, frames.num_rows // 2))
    trace_facts = facts(cut, server)
    numbers = sample(Transfer(cut, server), trace_facts, file_sizes=SIZES, forward=LINK, return_=LINK)
    assert numbers.goodput is None
    assert numbers.stream_bytes_sent == oracle.read(RECORDING).sent


def test_without_keys_nothing_is_claimed_of_protected_packets() -> None:
    client, server = (decode_capture(RECORDING / f"{side}.pcap") for side in ("client", "server"))
    trace_facts = facts(client, server)
    (connection,) = trace_facts.connections
    # An endpoint sends 1-RTT packets after the handshake only, and the server can only choose what the client offered.
    assert connection.handshake_completed
    assert (connection.alpn, connection.offered_alpn) == ("hq-interop", ("hq-interop",))
    assert connection.unread
    assert connection.first_server_1rtt is not None
    numbers = sample(Transfer(client, server), trace_facts, file_sizes=SIZES, forward=LINK, return_=LINK)
    assert numbers.first_server_1rtt is not None
    for value in (numbers.goodput, numbers.ttfb, numbers.retransmission_ratio, numbers.lost_packets, numbers.rtt_min):
        assert value is None
