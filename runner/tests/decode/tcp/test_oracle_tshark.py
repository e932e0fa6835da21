"""The decoder of TCP beside tshark, on captures of curl and nginx over HTTP/2 (kernel's TCP, default link)."""

from pathlib import Path

import pytest

from runner.decode.columns import SERVER, Trace, integers
from runner.decode.tcp import decode_tcp
from runner.tests.decode.tshark import rows
from runner.trace.establish import facts

RECORDED = Path(__file__).parent / "recordings"


def _tshark(capture: str, display_filter: str, *fields: str) -> list[list[str]]:
    return [[",".join(values) for values in row.values()] for row in rows(RECORDED / capture, display_filter, *fields)]


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    return decode_tcp(RECORDED / "left.pcapng", RECORDED / "right.pcapng")


@pytest.mark.parametrize(("capture", "side"), [("left.pcapng", 0), ("right.pcapng", 1)])
def test_segments_are_those_of_tshark(traces: tuple[Trace, Trace], capture: str, side: int) -> None:
    expected = _tshark(capture, "tcp.port == 443", "frame.number", "tcp.srcport", "tcp.len", "ip.len")
    datagrams = traces[side].datagrams
    columns = [integers(datagrams[name]).tolist() for name in ("record", "src_port", "payload_length", "ip_length")]
    assert [list(map(str, row)) for row in zip(*columns, strict=True)] == expected


def test_what_tls_and_http_say_is_what_tshark_reads(traces: tuple[Trace, Trace]) -> None:
    (connection,) = facts(*traces).connections
    ((sni,),) = _tshark("left.pcapng", "tls.handshake.type == 1", "tls.handshake.extensions_server_name")
    assert connection.sni == sni
    first = _tshark("left.pcapng", "tcp.dstport == 443 && tcp.len > 0", "frame.number")[0]  # it takes two segments
    assert connection.landmarks.client_hellos[0].record == int(first[0])
    (agreed,) = _tshark("right.pcapng", "tls.handshake.type == 8", "tls.handshake.extensions_alpn_str")
    assert agreed == [connection.alpn]
    frames = _tshark("left.pcapng", "http2.type == 0 && tcp.srcport == 443", "frame.number")
    rows = traces[0].stream_frames.filter(traces[0].stream_frames["sender"].to_numpy() == SERVER)
    last = traces[0].packets["datagram"][int(rows["packet"][-1].as_py())].as_py()
    assert traces[0].datagrams["record"][last].as_py() == int(frames[-1][0])


def test_the_content_is_as_long_as_tshark_finds_it(traces: tuple[Trace, Trace]) -> None:
    """The response is its headers, the content and the framing of HTTP/2 and TLS: a little more than the file."""
    lengths = _tshark("right.pcapng", "http2.type == 0 && tcp.srcport == 443", "http2.length", "http2.type")
    content = sum(
        int(length)
        for sizes, types in lengths
        for length, kind in zip(sizes.split(","), types.split(","), strict=True)
        if kind == "0"
    )
    (connection,) = facts(*traces).connections
    assert content == 1024
    assert 0 < connection.streams[0].server_bytes - content < 400
