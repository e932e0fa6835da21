"""Frames byte by byte, and what is malformed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.decode.wire import NONE, FrameRows, parse_frames, varint


def parse(plain: bytes) -> FrameRows:
    rows = FrameRows()
    parse_frames(plain, 7, 2, rows)
    return rows


@pytest.mark.parametrize(
    ("text", "value"),
    # RFC 9000 appendix A.1
    [("c2197c5eff14e88c", 151288809941952652), ("9d7f3e7d", 494878333), ("7bbd", 15293), ("25", 37), ("4025", 37)],
)
def test_varint(text: str, value: int) -> None:
    data = b"\xff" + bytes.fromhex(text)
    assert varint(data, 1) == (value, len(data))


def encode(value: int) -> bytes:
    """RFC 9000 §16, written the other way round."""
    for size, prefix in ((1, 0), (2, 1), (4, 2)):
        if value < 1 << (8 * size - 2):
            return (value | prefix << (8 * size - 2)).to_bytes(size)
    return (value | 3 << 62).to_bytes(8)


integers = st.one_of(st.integers(0, 100), st.integers(0, 2**62 - 1))


@given(stream_id=integers, offset=integers, data=st.binary(max_size=50), fin=st.booleans(), last=st.booleans())
def test_stream(stream_id: int, offset: int, data: bytes, fin: bool, last: bool) -> None:
    kind = 0x08 | fin | (0 if last else 0x02) | (0x04 if offset else 0)
    frame = bytes((kind,)) + encode(stream_id) + (encode(offset) if offset else b"")
    frame += data if last else encode(len(data)) + data
    rows = parse(b"\x01" + frame + (b"" if last else b"\x01"))
    assert rows.streams.tail == [7, 1, kind, stream_id, offset, len(data)]
    assert len(rows.others) == (1 if last else 2)


@given(
    ranges=st.lists(st.tuples(st.integers(0, 500), st.integers(2, 500)), min_size=1, max_size=40),
    delay=integers,
    ecn=st.none() | st.tuples(integers, integers, integers),
)
def test_ack(ranges: list[tuple[int, int]], delay: int, ecn: tuple[int, int, int] | None) -> None:
    """Each range is its length - 1, and the distance to the one below."""
    spans, first = [], 0
    for length, distance in reversed(ranges):
        spans.append((first, first + length))
        first += length + distance
    spans.reverse()
    frame = b"\x03" if ecn else b"\x02"
    frame += encode(spans[0][1]) + encode(delay) + encode(len(spans) - 1) + encode(spans[0][1] - spans[0][0])
    for (above, _), (low, high) in pairwise(spans):
        frame += encode(above - high - 2) + encode(high - low)
    frame += b"".join(encode(count) for count in ecn or ())
    rows = parse(frame)
    assert list(zip(*(rows.ranges.column(name).tolist() for name in ("first", "last")), strict=True)) == spans
    counts = list(ecn) if ecn else [NONE] * 3
    assert rows.acks.tail == [7, 0, frame[0], 2, spans[0][1], delay, len(spans), *counts]


@pytest.mark.parametrize(
    ("text", "expected", "payload"),
    [
        # type, stream id, offset, length, value
        ("01", (0x01, NONE, NONE, NONE, NONE), None),
        ("04 08 4100 4200", (0x04, 8, 0x200, NONE, 0x100), None),
        ("05 08 05", (0x05, 8, NONE, NONE, 5), None),
        ("06 10 03 616263", (0x06, NONE, 16, 3, NONE), b"abc"),
        ("07 02 6162", (0x07, NONE, NONE, 2, NONE), b"ab"),
        ("10 8000ffff", (0x10, NONE, NONE, NONE, 0xFFFF), None),
        ("11 04 4400", (0x11, 4, NONE, NONE, 0x400), None),
        ("12 05", (0x12, NONE, NONE, NONE, 5), None),
        ("13 05", (0x13, NONE, NONE, NONE, 5), None),
        ("14 05", (0x14, NONE, NONE, NONE, 5), None),
        ("15 04 05", (0x15, 4, NONE, NONE, 5), None),
        ("16 05", (0x16, NONE, NONE, NONE, 5), None),
        ("17 05", (0x17, NONE, NONE, NONE, 5), None),
        ("18 02 01 04 01020304" + "aa" * 16, (0x18, NONE, 1, 4, 2), bytes((1, 2, 3, 4))),
        ("19 03", (0x19, NONE, NONE, NONE, 3), None),
        ("1a 0102030405060708", (0x1A, NONE, NONE, 8, NONE), bytes(range(1, 9))),
        ("1b 0102030405060708", (0x1B, NONE, NONE, 8, NONE), bytes(range(1, 9))),
        ("1c 0a 06 02 6869", (0x1C, NONE, NONE, 2, 10), b"hi"),
        ("1d 4100 02 6869", (0x1D, NONE, NONE, 2, 256), b"hi"),
        ("1e", (0x1E, NONE, NONE, NONE, NONE), None),
        ("1f", (0x1F, NONE, NONE, NONE, NONE), None),
        ("30 616263", (0x30, NONE, NONE, 3, NONE), None),
        ("31 03 616263", (0x31, NONE, NONE, 3, 1), None),
        ("40af 01 02 4400 03", (0xAF, NONE, NONE, NONE, 1), bytes.fromhex("01 02 4400 03")),
        ("42f5 4400", (0x2F5, NONE, NONE, NONE, 1024), None),
        ("00 00 00", (0x00, NONE, NONE, 3, NONE), None),
    ],
)
def test_other_frames(text: str, expected: tuple[int, ...], payload: bytes | None) -> None:
    frame = bytes.fromhex(text)
    rows = parse(frame)
    assert tuple(rows.others.tail) == (7, 0, *expected)
    assert rows.payloads == [payload]
    if len(frame) > 1 and frame[0] not in (0x00, 0x30):
        for size in range(1, len(frame)):
            cut = parse(frame[:size])
            assert cut.others[0, "type"] < 0, "a cut off frame is not read"
            assert cut.payloads == [frame[:size]]


@pytest.mark.parametrize(
    "text",
    [
        "02 05 00 00 06",  # acknowledges a negative packet number
        "02 05 00 01 00 03 02",  # the second range ends below 0
        "02 05 00 bfffffff 00",  # more ranges than bytes
        "0a 00 05 6162",  # longer than the packet
        "06 00 bfffffff 61",
        "21",  # this frame type does not exist
        "4008 00",  # STREAM in a type that is not the shortest encoding
        "4000 00",  # PADDING in a type that is not the shortest encoding
        "ffffffffffffffff 00",  # the largest type
        "ff",  # a type that is cut off
    ],
)
def test_malformed_frames_are_unknown_and_end_the_packet(text: str) -> None:
    rows = parse(b"\x01" + bytes.fromhex(text))
    assert rows.others[1, "type"] < 0
    assert rows.payloads == [None, bytes.fromhex(text)]
    assert not (len(rows.streams) or len(rows.acks) or len(rows.ranges))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_to_the_end(plain: bytes) -> None:
    rows = parse(plain)
    assert all(len(kind.tail) % kind.width == 0 for kind in (rows.streams, rows.acks, rows.others))
    assert len(rows.payloads) == len(rows.others)
    assert bool(plain) == bool(len(rows.streams) or len(rows.acks) or len(rows.others))
