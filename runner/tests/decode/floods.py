"""Captures that are made to be slow for a decoder. Seeds are fixed."""

from collections.abc import Callable
from functools import cache
from random import Random

from runner.tests.decode.pairs import START_NS, Pair, datagram
from runner.tests.decode.rewrite import Record

Make = Callable[[Random, int], list[Record]]
_SEALED = 100  # index of a byte of a datagram that is in the protected part of its Initial packet


def _sent(number: int, payload: bytes, port: int = 50000) -> Record:
    return datagram(START_NS + number * 1000, payload, client_port=port, from_client=True)


def _initials(_: Random, count: int, *, ports: int = 1) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        pair = Pair()
        pair.client.connect(("193.167.100.100", 443), now=0.0)
        for data, _ in pair.client.datagrams_to_send(now=0.0):
            records.append(_sent(len(records), data, 20000 + len(records) % ports))
    return records[:count]


def _from_many_ports(rng: Random, count: int) -> list[Record]:
    return _initials(rng, count, ports=20000)


def _damaged_initials(rng: Random, count: int) -> list[Record]:
    """Initial packets; every second packet can't be decrypted."""
    records = _initials(rng, count)
    return [
        record.with_payload(
            record.payload[:_SEALED] + bytes((record.payload[_SEALED] ^ 1,)) + record.payload[_SEALED + 1 :]
        )
        if number % 2
        else record
        for number, record in enumerate(records)
    ]


def _extended_initials(rng: Random, count: int) -> list[Record]:
    """Initial packets; every second datagram ends with a byte that looks like a packet with a short header."""
    records = _initials(rng, count)
    return [
        record.with_payload(record.payload[:-1] + bytes((record.payload[-1] ^ 1,))) if number % 2 else record
        for number, record in enumerate(records)
    ]


@cache
def _connection() -> Pair:
    return Pair().connect().request(5000)


def _short_junk(rng: Random, count: int, *, size: int = 1200) -> list[Record]:
    """Packets with a short header that can't be decrypted, after a real connection whose keys the key log has."""
    records = list(_connection().records)
    begin = records[-1].time_ns
    while len(records) < count:
        payload = bytes((0x40 | rng.getrandbits(6),)) + rng.randbytes(size - 1)
        records.append(datagram(begin + len(records), payload, client_port=50000, from_client=True))
    return records


def _small_junk(rng: Random, count: int) -> list[Record]:
    return _short_junk(rng, count, size=40)


def _handshake_junk(rng: Random, count: int) -> list[Record]:
    """Handshake packets, each with its own connection IDs."""
    head = bytes((0xE0,)) + (1).to_bytes(4)
    return [
        _sent(at, head + b"\x08" + rng.randbytes(8) + b"\x08" + rng.randbytes(8) + b"\x44\x92" + rng.randbytes(1170))
        for at in range(count)
    ]


_KEYS = ", with its key log"
KINDS: dict[str, Make] = {
    "Initials of distinct connections, one 4-tuple": _initials,
    "the same from 20,000 ports": _from_many_ports,
    "the same, every second one damaged": _damaged_initials,
    "the same, bytes behind every second one": _extended_initials,
    "short headers that no key opens, 1200 B": _short_junk,
    "short headers that no key opens, 40 B": _small_junk,
    "short headers that no key opens, 1200 B" + _KEYS: _short_junk,
    "short headers that no key opens, 40 B" + _KEYS: _small_junk,
    "Handshake packets of no connection": _handshake_junk,
}
