"""Makes inputs from seeds. The functions depend only on a random generator, so the number of an input is enough to
repeat it."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lab.fuzz.seeds import PCAP_HEADER, Sealed, Seed
from lab.fuzz.seeds import records as records_of
from runner.decode.wire import FRAME_NAMES

_FRAME_HEADERS = 70  # bytes of Ethernet, IP and UDP headers and of a QUIC long header
_EXTREMES = (0, 1, 2, 0x3F, 0x40, 0x7F, 0x80, 0xFF, 0x3FFF, 0x7FFF, 0xFFFF, 2**30 - 1, 2**31 - 1, 2**32 - 1)
_HUGE = (2**62 - 1, 2**63 - 1, 2**64 - 1, 2**62 - 2**14, 2**53)


@dataclass(frozen=True)
class Captures:
    """A job's evidence, mutated: one capture or both, and the merged key log."""

    client: bytes
    server: bytes | None  # None: as recorded
    keys: bytes


def number(rng: Random) -> int:
    """An integer that is likely to be at the edge of a range."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.choice(_EXTREMES)
    if kind == 1:
        return rng.choice(_HUGE)
    return rng.randrange(1 << rng.choice((4, 8, 16, 32, 62)))


def changed_bytes(rng: Random, data: bytes, *, most: int = 12) -> bytes:
    """`data` with up to `most` places changed, removed, repeated, inserted or swapped. Sometimes the end is cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 16, rng.randrange(1, 400)))
        kind = rng.randrange(8)
        if kind == 0:
            changed[at : at + 1] = bytes((rng.randrange(256),))
        elif kind == 1 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            width = rng.choice((1, 2, 4, 8))
            value = number(rng) & ((1 << 8 * width) - 1)
            changed[at : at + width] = value.to_bytes(width, rng.choice(("big", "little")))
        elif kind == 3:
            del changed[at : at + size]
        elif kind == 4:
            changed[at:at] = changed[at : at + size]
        elif kind == 5:
            changed[at:at] = rng.randbytes(size)
        elif kind == 6:
            other = rng.randrange(len(changed) + 1)
            changed[at : at + size] = changed[other : other + size]
        elif rng.randrange(4) == 0:
            del changed[at:]
    return bytes(changed)


def varint(rng: Random, value: int) -> bytes:
    """`value` as a variable-length integer, not always in the shortest form (RFC 9000 §16)."""
    value &= (1 << 62) - 1
    shortest = next(bits for bits in (6, 14, 30, 62) if value < 1 << bits)
    bits = rng.choice([bits for bits in (6, 14, 30, 62) if bits >= shortest])
    prefix = (6, 14, 30, 62).index(bits)
    return (prefix << bits | value).to_bytes((bits + 2) // 8)


def frames(rng: Random) -> bytes:
    """A few frames, some of them incomplete. Most of them have types that exist."""
    made = b""
    for _ in range(rng.randint(1, 6)):
        kind = rng.choice(tuple(FRAME_NAMES)) if rng.randrange(10) else number(rng)
        made += varint(rng, kind)
        for _ in range(rng.randint(0, 7)):
            made += varint(rng, rng.choice((0, 1, 4, 8, rng.randrange(64), number(rng))))
        made += rng.randbytes(rng.choice((0, 0, 8, 16, 24)))
    return made


def payload(rng: Random, plain: bytes) -> bytes:
    """Another payload of the same length for a packet: its own payload with changes, new frames before it, or only new
    frames."""
    kind = rng.randrange(4)
    if kind < 2:
        changed = changed_bytes(rng, plain, most=6)
    elif kind == 2:
        changed = frames(rng) + plain
    else:
        changed = frames(rng)
    return changed[: len(plain)].ljust(len(plain), b"\0")


def _resealed(rng: Random, data: bytes, opened: tuple[Sealed, ...]) -> bytes:
    changed = bytearray(data)
    for packet in rng.sample(opened, min(len(opened), rng.choice((1, 1, 2, 3, 8)))):
        changed[packet.start : packet.end] = packet.sealed(data, payload(rng, packet.plain))
    return bytes(changed)


def of_frames(rng: Random, seed: Seed) -> Captures:
    """Packets that are sealed again with other frames, as an endpoint could send them. Both captures have the same
    change."""
    side = rng.randrange(2)
    packet = rng.choice(seed.opened[side])
    twin = next(
        (
            item
            for item in seed.opened[1 - side]
            if (item.number, item.plain, item.first) == (packet.number, packet.plain, packet.first)
        ),
        None,
    )
    if twin is None or rng.randrange(2):
        return Captures(_resealed(rng, seed.captures[0], seed.opened[0]), None, seed.keys)
    plain = payload(rng, packet.plain)
    both = [bytearray(data) for data in seed.captures]
    for at, item in ((side, packet), (1 - side, twin)):
        both[at][item.start : item.end] = item.sealed(seed.captures[at], plain)
    return Captures(bytes(both[0]), bytes(both[1]), seed.keys)


def of_bytes(rng: Random, seed: Seed) -> Captures:
    """Captures with changes at any byte of file headers, records and packets."""
    return Captures(changed_bytes(rng, seed.captures[0], most=40), None, seed.keys)


def of_records(rng: Random, seed: Seed) -> Captures:
    """Captures with records in another order, doubled, removed, with other times, cut off, or with other headers."""
    records = records_of(seed.captures[0])
    for _ in range(rng.randint(1, 8)):
        at, other = rng.randrange(len(records)), rng.randrange(len(records))
        head, frame = records[at]
        kind = rng.randrange(7)
        if kind == 0:
            records[at], records[other] = records[other], records[at]
        elif kind == 1:
            records.insert(other, records[at])
        elif kind == 2 and len(records) > 1:
            del records[at]
        elif kind == 3:
            seconds, fraction = (number(rng) & 0xFFFFFFFF for _ in range(2))
            records[at] = (struct.pack("<II", seconds, fraction) + head[8:], frame)
        elif kind == 4:
            records[at] = (head, frame[: rng.randrange(len(frame) + 1)])
        elif kind == 5:
            part = changed_bytes(rng, frame[:_FRAME_HEADERS], most=3)
            records[at] = (head, part + frame[_FRAME_HEADERS:])
        else:
            records[at] = (head, records[other][1])
    start = seed.captures[0][:PCAP_HEADER]
    if rng.randrange(8) == 0:
        start = start[:20] + rng.choice((0, 1, 9, 12, 50, 101, 108, 113, 228, 229, 276, 147)).to_bytes(4, "little")
    whole = (head[:8] + struct.pack("<I", len(frame)) + head[12:] + frame for head, frame in records)
    return Captures(start + b"".join(whole), None, seed.keys)


def of_keys(rng: Random, seed: Seed) -> Captures:
    """A key log with lines changed, swapped, repeated, with other labels, or for sessions that don't exist."""
    lines = seed.keys.splitlines(keepends=True)
    kind = rng.randrange(5)
    if kind == 0:
        return Captures(seed.captures[0], None, changed_bytes(rng, seed.keys))
    if kind == 1:
        rng.shuffle(lines)
        lines = lines[: rng.randrange(len(lines) + 1)]
    elif kind == 2:
        labels = [line.split(b" ")[0] for line in lines]
        rng.shuffle(labels)
        lines = [b" ".join((label, *line.split(b" ")[1:])) for label, line in zip(labels, lines, strict=True)]
    elif kind == 3:
        lines += [
            b"%s %s %s\n" % (rng.choice(lines).split(b" ")[0], rng.randbytes(32).hex().encode(), secret)
            for secret in (rng.randbytes(rng.choice((0, 31, 32, 48))).hex().encode() for _ in range(8))
        ]
    else:
        at = rng.randrange(len(lines))
        lines[at] = changed_bytes(rng, lines[at], most=3)
    return Captures(seed.captures[0], None, b"".join(lines))


def of_qlog(rng: Random, text: bytes) -> bytes:
    """A qlog with bytes changed, or with its numbers and names replaced."""
    changed = bytearray(text)
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(changed))
        word = rng.choice(
            (b'"congestion_window":', b'"cwnd": ', b'"initial_congestion_window": "', b'"cc_algorithm": "')
        )
        digits = rng.choice((b"0", b"-1", b"9" * rng.choice((3, 20, 400, 5000)), b"1e9", str(number(rng)).encode()))
        changed[at:at] = word + digits + rng.choice((b"", b'"', b","))
    return changed_bytes(rng, bytes(changed))


CAPTURE_KINDS: dict[str, Callable[[Random, Seed], Captures]] = {
    "bytes": of_bytes,
    "records": of_records,
    "frames": of_frames,
    "keys": of_keys,
}
"""Kind of an input → function that makes it."""
