"""TCP with TLS in two captures: what is new, repeated or lost, where the response lies, when each step was.

Every expectation is computed from the session and the time table of `_segments`, never by the decoder.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from runner.decode.columns import CLIENT, NULL, SERVER, Trace
from runner.decode.tcp import cached_decode_tcp, decode_tcp
from runner.model.link import LinkParameters
from runner.tests.decode.tcp.session import DELAY, MSS, Sent, Tls, Wire, talk
from runner.trace.establish import facts
from runner.trace.measure import sample
from runner.trace.recording import Recording
from runner.trace.streams import Transfer

CONTENT = bytes(range(256)) * 200
LINK = LinkParameters(data_rate=20_000_000, delay=DELAY, queue_packets=125, loss=0.0)
LOST, REPEATED = 5, 9  # indices of the lost and of the repeated segment of the response
STEP = 0.001  # seconds between the segments of a flight
HELLO, FLIGHT, REQUEST, RESPONSE = 2 * DELAY, 3 * DELAY, 4 * DELAY, 5 * DELAY  # times of sending
AGAIN = RESPONSE + 2.5 * DELAY  # time at which these two segments are sent again


def _pieces(start: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(at + MSS, end)) for at in range(start, end, MSS)]


def _segments(tls: Tls) -> list[Sent]:
    """SYN to FIN: one segment of the response is lost, one is repeated in vain."""
    hello = tls.client.index(b"\x14\x03\x03\x00\x01")  # change_cipher_spec and Finished are in the same segment
    finished = tls.marks["finished"]
    segments = [
        Sent(at=0.0, sender=CLIENT, offset=None),
        Sent(at=DELAY, sender=SERVER, offset=None, acknowledged=0),
        Sent(at=HELLO, sender=CLIENT, offset=0, acknowledged=0),
        Sent(at=HELLO + STEP, sender=CLIENT, offset=0, data=tls.client[:hello], acknowledged=0),
    ]
    for number, (start, end) in enumerate(_pieces(0, finished)):
        at = FLIGHT + STEP * (1 + number)
        segments.append(Sent(at=at, sender=SERVER, offset=start, data=tls.server[start:end], acknowledged=hello))
    requested = Sent(at=REQUEST + 0.01, sender=CLIENT, offset=hello, data=tls.client[hello:], acknowledged=finished)
    segments.append(requested)
    before = _pieces(finished, tls.marks["response"])
    response = _pieces(tls.marks["response"], tls.marks["end"])
    for number, (start, end) in enumerate([*before, *response]):
        place = number - len(before)
        segments.append(
            Sent(
                at=RESPONSE + 0.02 + STEP * number,
                sender=SERVER,
                offset=start,
                data=tls.server[start:end],
                acknowledged=len(tls.client),
                arrives=None if place == LOST else DELAY,
                identification=number + 1,
            )
        )
        if place != LOST:
            hole, edge = response[LOST][0], end
            beyond = place > LOST
            segments.append(
                Sent(
                    at=RESPONSE + 0.02 + STEP * number + DELAY + STEP / 2,
                    sender=CLIENT,
                    offset=len(tls.client),
                    acknowledged=hole if beyond else edge,
                    sacked=((response[LOST + 1][0], edge),) if beyond else (),
                )
            )
    for number, place in enumerate((LOST, REPEATED)):
        start, end = response[place]
        segments.append(
            Sent(
                at=AGAIN + STEP * number,
                sender=SERVER,
                offset=start,
                data=tls.server[start:end],
                acknowledged=len(tls.client),
                identification=1000 + number,
            )
        )
    end = tls.marks["end"]
    segments.append(Sent(at=AGAIN + DELAY + STEP, sender=CLIENT, offset=len(tls.client), acknowledged=end, fin=True))
    alert = tls.server[end:]
    segments.append(Sent(at=AGAIN + 3 * DELAY, sender=SERVER, offset=end, data=alert, acknowledged=0, fin=True))
    return segments


@pytest.fixture(params=["h2", "http/1.1"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tls, Trace, Trace, str]:
    tls = talk(tmp_path, alpn=request.param, content=CONTENT)
    paths = Wire().write(tmp_path, _segments(tls))
    return tls, *decode_tcp(*paths, [tmp_path / "keys.log"], kernel_drops=0), request.param


def test_a_segment_whose_mss_a_tunnel_lowered_is_the_same_segment(tmp_path: Path) -> None:
    left, right = Wire().write(tmp_path, _segments(talk(tmp_path, alpn="h2", content=CONTENT)))
    before = decode_tcp(left, right, [], kernel_drops=0)
    option = b"\x02\x04%b\x01\x03\x03"
    lowered = right.read_bytes().replace(option % MSS.to_bytes(2), option % (MSS - 80).to_bytes(2))
    assert lowered != right.read_bytes()
    right.write_bytes(lowered)
    for old, new in zip(before, decode_tcp(left, right, [], kernel_drops=0), strict=True):
        assert new.packets["packet_number"].to_pylist() == old.packets["packet_number"].to_pylist()


def test_a_connection_tells_what_tls_agreed_on(recorded: tuple[Tls, Trace, Trace, str]) -> None:
    _, client_side, server_side, alpn = recorded
    (connection,) = facts(client_side, server_side).connections
    assert (connection.alpn, connection.sni, connection.offered_alpn) == (alpn, "server4", (alpn,))
    assert connection.suite == "TLS_AES_256_GCM_SHA384"
    assert connection.handshake_completed
    assert connection.certificate_sent
    assert not connection.unread
    assert all(check.holds for trace in (client_side, server_side) for check in trace.checks)


def test_the_response_is_the_servers_stream_without_tickets_settings_and_alerts(
    recorded: tuple[Tls, Trace, Trace, str],
) -> None:
    tls, client_side, server_side, _ = recorded
    (connection,) = facts(client_side, server_side).connections
    (stream,) = connection.streams
    assert stream.server_bytes == stream.server_fin == tls.marks["end"] - tls.marks["response"]


def test_the_numbers_are_those_of_the_time_table(recorded: tuple[Tls, Trace, Trace, str]) -> None:
    tls, client_side, server_side, _ = recorded
    trace_facts = facts(client_side, server_side)
    numbers = sample(
        Transfer(client_side, server_side), trace_facts, file_sizes=(len(CONTENT),), forward=LINK, return_=LINK
    )
    before = len(_pieces(tls.marks["finished"], tls.marks["response"]))
    response = len(_pieces(tls.marks["response"], tls.marks["end"]))
    began = RESPONSE + 0.02 + DELAY
    assert numbers.handshake_time == pytest.approx(began)
    assert numbers.ttfb == pytest.approx(began + STEP * before)
    assert numbers.ttlb == pytest.approx(AGAIN + DELAY)  # the lost segment arrives last
    assert numbers.data_packets == response + 2
    assert numbers.lost_packets == 1
    assert (numbers.retransmitted_bytes, numbers.spurious_bytes) == (2 * MSS, MSS)
    assert numbers.goodput == pytest.approx(8 * len(CONTENT) / (AGAIN + DELAY + STEP - began))
    assert numbers.rtt_min == pytest.approx(2 * DELAY)  # of the needless repeat; other RTTs are STEP / 2 longer
    assert numbers.one_way_delay_median == pytest.approx(DELAY)


def test_a_segment_has_the_same_number_on_both_sides(recorded: tuple[Tls, Trace, Trace, str]) -> None:
    _, client_side, server_side, _ = recorded
    recording = Recording(client_side, server_side)
    assert recording.arrival is not None
    assert recording.server is not None
    assert recording.client is not None
    rows = recording.arrival != NULL
    sent = recording.server.packets["sender"] == SERVER
    assert (~rows & sent & (recording.server.packet_key != NULL)).sum() == 1  # the lost segment
    delay = recording.client.packet_time[recording.arrival[rows & sent]] - recording.server.packet_time[rows & sent]
    assert set(delay.tolist()) == {round(DELAY * 1e9)}


def test_a_repeat_in_vain_is_acknowledged_as_the_first_transmission(recorded: tuple[Tls, Trace, Trace, str]) -> None:
    """By bytes alone an ACK would be for both, and RTTs would come out too short (RFC 6298 §3)."""
    _, _, server_side, _ = recorded
    ranges = [each for row in server_side.ack_frames["ranges"].to_pylist() for each in row]
    numbers = [number for range_ in ranges for number in range(range_["first"], range_["last"] + 1)]
    assert len(numbers) == len(set(numbers))


def test_an_ack_acknowledges_what_the_lost_ack_before_it_did(tmp_path: Path) -> None:
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    segments = _segments(tls)

    def ranges() -> list[list[dict[str, int]]]:
        _, server_side = decode_tcp(*Wire().write(tmp_path, segments), [tmp_path / "keys.log"], kernel_drops=0)
        found: list[list[dict[str, int]]] = server_side.ack_frames["ranges"].to_pylist()
        return found

    whole = ranges()
    acks = [place for place, each in enumerate(segments) if each.sender == CLIENT and each.at > RESPONSE]
    segments[acks[2]] = replace(segments[acks[2]], arrives=None)
    ((place, (first,)),) = [(place, each) for place, each in enumerate(ranges()) if each != whole[place]][:1]
    assert first == {"first": whole[place][0]["first"], "last": whole[place + 1][0]["last"]}


def test_without_a_key_log_nothing_is_claimed(tmp_path: Path) -> None:
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    client_side, server_side = decode_tcp(*Wire().write(tmp_path, _segments(tls)))
    trace_facts = facts(client_side, server_side)
    assert trace_facts.unread_packets
    assert {group.type for group in trace_facts.unread} == {"handshake"}
    numbers = sample(
        Transfer(client_side, server_side), trace_facts, file_sizes=(len(CONTENT),), forward=LINK, return_=LINK
    )
    assert (numbers.goodput, numbers.ttlb, numbers.handshake_time) == (None, None, None)


def test_a_wrong_key_log_opens_nothing(tmp_path: Path) -> None:
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    paths = Wire().write(tmp_path, _segments(tls))
    lines = [line.split() for line in (tmp_path / "keys.log").read_text().splitlines() if not line.startswith("#")]
    (tmp_path / "wrong.log").write_text(
        "\n".join(f"{label} {random} {secret[::-1]}" for label, random, secret in lines)
    )
    trace_facts = facts(*decode_tcp(*paths, [tmp_path / "wrong.log"]))
    assert trace_facts.unread_packets
    assert trace_facts.connections[0].alpn is None


def test_headers_at_the_client_are_enough(tmp_path: Path) -> None:
    """The content is read where it was captured whole; the other capture gives times and arrivals."""
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    left, right = Wire().write(tmp_path, _segments(tls))
    short, _ = Wire().write(tmp_path / "..", _segments(tls), snap=128)
    trace_facts = facts(*decode_tcp(short, right, [tmp_path / "keys.log"]))
    whole = facts(*decode_tcp(left, right, [tmp_path / "keys.log"]))
    assert trace_facts.connections[0].streams == whole.connections[0].streams


def test_tables_are_kept_and_read_again(tmp_path: Path) -> None:
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    captures, keys = Wire().write(tmp_path, _segments(tls)), [tmp_path / "keys.log"]
    folders = tmp_path / "client", tmp_path / "server"
    first = cached_decode_tcp(captures, keys, folders, kernel_drops=0)
    again = cached_decode_tcp(captures, keys, folders, kernel_drops=0)
    assert all(trace.packets.equals(repeated.packets) for trace, repeated in zip(first, again, strict=True))
    captures[0].write_bytes(captures[1].read_bytes())
    other = cached_decode_tcp(captures, keys, folders, kernel_drops=0)
    assert not other[0].datagrams["time_ns"].equals(first[0].datagrams["time_ns"])


@pytest.mark.parametrize("cut", [0, 40, 500, 3000, 20_000])
def test_a_capture_that_ends_early_is_read_as_far_as_it_goes(tmp_path: Path, cut: int) -> None:
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    left, right = Wire().write(tmp_path, _segments(tls))
    for path in (left, right):
        path.write_bytes(path.read_bytes()[: 24 + cut])
    traces = decode_tcp(left, right, [tmp_path / "keys.log"])
    facts(*traces)
    assert all(trace.meta.truncated for trace in traces) is (cut > 0)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_captures_are_read_without_an_error(tmp_path: Path, seed: int) -> None:
    """Bytes of headers, options and records are changed at random; what an endpoint sends is not to be trusted."""
    draw = random.Random(seed)
    tls = talk(tmp_path, alpn=draw.choice(["h2", "http/1.1"]), content=CONTENT[:20_000])
    paths = Wire().write(tmp_path, _segments(tls))
    for path in paths:
        data = bytearray(path.read_bytes())
        for _ in range(draw.choice([1, 20, 300])):
            at = draw.randrange(40, len(data))
            if draw.random() < 0.5 or at < 100:
                data[at] = draw.randrange(256)
            else:
                data[at : at + 4] = draw.choice([b"\0\0\0\0", b"\xff\xff\xff\xff"])
        path.write_bytes(data)
    trace_facts = facts(*(traces := decode_tcp(*paths, [tmp_path / "keys.log"])))
    sample(Transfer(*traces), trace_facts, file_sizes=(20_000,), forward=LINK, return_=LINK)


def test_a_capture_that_begins_behind_the_syn_has_the_connection(tmp_path: Path) -> None:
    tls = talk(tmp_path, alpn="h2", content=CONTENT)
    segments, keys = _segments(tls), [tmp_path / "keys.log"]
    whole = decode_tcp(*Wire().write(tmp_path, segments), keys)
    (tmp_path / "late").mkdir()
    left = tmp_path / "left.pcap"
    _, late = Wire().write(tmp_path / "late", segments[1:])
    traces = decode_tcp(left, late, keys)
    (connection,), (same,) = facts(*traces).connections, facts(*whole).connections
    assert connection.streams == same.streams
    assert connection.handshake_completed
    assert "max_data" not in traces[1].frames["name"].to_pylist()  # the scale of the window is in the SYN
