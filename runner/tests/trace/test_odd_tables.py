"""Whatever the tables hold, the trace raises nothing, and what it says stays within what was sent."""

import json
from math import isfinite
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.decode.columns import CLIENT, PACKET_TYPES, SERVER
from runner.diagnose.explain import explain
from runner.model.link import LinkParameters, SegmentRecord
from runner.tests.trace.tables import Ack, Frame, Packet, Stream, connection, trace
from runner.trace.establish import facts
from runner.trace.measure import sample, series
from runner.trace.streams import Transfer

LINK = LinkParameters(data_rate=1_000_000, delay=0.1, queue_packets=25, loss=0.0)

_HUGE = st.integers(0, 2**62 - 1)
_RANGES = st.lists(st.tuples(_HUGE, _HUGE), min_size=1, max_size=4).map(tuple)
_FRAMES: st.SearchStrategy[Stream | Ack | Frame] = st.one_of(
    st.builds(
        Stream,
        stream_id=st.integers(0, 12),
        offset=st.integers(0, 50) | _HUGE,
        length=st.integers(0, 30),
        fin=st.booleans(),
    ),
    st.builds(Ack, ranges=_RANGES, delay_us=st.integers(0, 10**6), ecn=st.none() | st.tuples(_HUGE, _HUGE, _HUGE)),
    st.builds(
        Frame,
        name=st.sampled_from(
            ["padding", "crypto", "max_data", "max_streams_bidi", "connection_close", "handshake_done"]
        ),
        value=st.none() | _HUGE,
        payload=st.none() | st.binary(max_size=4),
    ),
)
_PACKETS = st.lists(
    st.builds(
        Packet,
        time=st.floats(-1, 1000),
        sender=st.sampled_from([-1, CLIENT, SERVER]),
        number=st.none() | st.integers(0, 8) | _HUGE,
        frames=st.lists(_FRAMES, max_size=3).map(tuple),
        type=st.sampled_from(PACKET_TYPES),
        connection=st.integers(-1, 1),
        fields=st.fixed_dictionaries(
            {
                "decrypted": st.booleans(),
                "token_length": st.none() | st.integers(0, 9),
                "scid": st.none() | st.just(b""),
            }
        ),
        datagram=st.fixed_dictionaries({"ecn": st.integers(0, 3), "ip_version": st.sampled_from([4, 6])}),
    ),
    max_size=25,
)


def _capture(packets: list[Packet]) -> Any:
    return trace(packets, connection(client_random=b"a"), connection(client_random=None, odcid=None))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(client=st.none() | _PACKETS, server=st.none() | _PACKETS)
def test_any_tables_give_facts_numbers_and_series(client: list[Packet] | None, server: list[Packet] | None) -> None:
    client_side = _capture(client) if client is not None else None
    server_side = _capture(server) if server is not None else None
    trace_facts = facts(client_side, server_side)
    numbers = sample(Transfer(client_side, server_side), trace_facts, file_sizes=(30,), forward=LINK, return_=LINK)
    drawn = series(
        Transfer(client_side, server_side), trace_facts, numbers, file_sizes=(30,), forward=LINK, return_=LINK
    )
    assert json.loads(json.dumps(drawn, allow_nan=False)) == drawn
    transfer = Transfer(client_side, server_side)
    why = explain(transfer, trace_facts, numbers, SegmentRecord(forward=LINK, return_=LINK))
    assert not why.limits or abs(sum(why.limits.values()) - 1) < 1e-9
    assert all(isfinite(diagnosis.start) and isfinite(diagnosis.end) for diagnosis in why.diagnoses)
    if numbers.retransmitted_bytes is not None:
        assert numbers.stream_bytes_sent is not None
        assert 0 <= (numbers.spurious_bytes or 0) <= numbers.retransmitted_bytes <= numbers.stream_bytes_sent
    for row in trace_facts.connections:
        for stream in row.streams:
            assert stream.server_bytes >= 0


_SENDING = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 20), st.sampled_from([0, 4]), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=100)
@given(_SENDING)
def test_retransmissions_equal_those_counted_byte_by_byte(sending: list[tuple[int, int, int, bool]]) -> None:
    server = [Packet(0.0, SERVER, 0, type="initial")]
    client = [Packet(-0.2, CLIENT, 0, type="initial")]
    sent: set[tuple[int, int]] = set()
    delivered: set[tuple[int, int]] = set()
    total = repeated = spurious = lost = 0
    for number, (offset, length, stream, arrives) in enumerate(sending):
        covered = {(stream, at) for at in range(offset, offset + length)}
        packet = Packet(0.01 * number, SERVER, number, (Stream(stream, offset, length),))
        server.append(packet)
        total, repeated = total + length, repeated + len(covered & sent)
        spurious, lost = spurious + len(covered & delivered), lost + (not arrives)
        sent |= covered
        if arrives:
            client.append(Packet(packet.time + 0.1, SERVER, number, packet.frames))
            delivered |= covered
    client.append(Packet(0.1, SERVER, 0, type="initial"))
    client.append(Packet(1.0, CLIENT, 1))  # the capture lasts until all packets could have arrived
    captures = trace(client), trace(server)
    trace_facts = facts(*captures)
    numbers = sample(Transfer(*captures), trace_facts, file_sizes=(1,), forward=LINK, return_=LINK)
    assert numbers.stream_bytes_sent == total
    assert (numbers.retransmitted_bytes, numbers.spurious_bytes) == (repeated, spurious)
    assert numbers.retransmission_ratio == pytest.approx(total / len(sent) - 1)
    assert numbers.lost_packets == lost
    assert sum(stream.server_bytes for stream in trace_facts.connections[0].streams) == len(delivered)
