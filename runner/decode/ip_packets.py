"""The IP packets of an Ethernet capture as plain records, with the positions of their headers in the file."""

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner.decode.capture import CaptureFile, open_capture
from runner.decode.file_bytes import Data, NumbersAt, release

TCP, UDP = 6, 17
_SYN, _ACK = 0x02, 0x10
_ETHERNET = 14  # bytes of the Ethernet header
_MOST_PAIRS = 64  # pairs of addresses whose packets are counted by name
_ROWS = 1 << 13  # records whose headers are read at once
# Ethertype → offset of the source address in the IP header, bytes of source and destination, bytes of the header
_ADDRESSES = {0x0800: (12, 8, 20), 0x86DD: (8, 32, 40)}


@dataclass(frozen=True, slots=True)
class Packet:
    """One IP packet. `number`: its number in Wireshark. `time_ns`: since 1970. `payload`: bytes of TCP or UDP payload.

    `ip_at`, `upper_at` and `payload_at` are the positions of the headers and the payload in the file. Ports are 0 in
    protocols without ports.
    """

    number: int
    time_ns: int
    source: bytes
    destination: bytes
    protocol: int
    source_port: int
    destination_port: int
    sequence: int
    flags: int
    length: int  # bytes of the IP packet
    payload: int  # bytes according to the headers; the capture may contain fewer bytes
    ip_at: int
    upper_at: int
    payload_at: int
    end: int  # position after the captured bytes
    ecn: int  # RFC 3168: 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE

    @property
    def time(self) -> float:
        """Seconds since 1970."""
        return self.time_ns / 1e9

    @property
    def is_ipv4(self) -> bool:
        """Whether the packet is IPv4."""
        return len(self.source) == 4

    @property
    def syn(self) -> bool:
        """Whether the packet is a TCP SYN or SYN-ACK."""
        return self.protocol == TCP and bool(self.flags & _SYN)

    @property
    def answers(self) -> bool:
        """Whether the packet is a TCP SYN-ACK."""
        return self.syn and bool(self.flags & _ACK)


def offsets(segments: Sequence[Packet]) -> list[int]:
    """The offset of each segment in one TCP stream, in bytes. The first segment gets offset 2 GiB.

    Sequence numbers wrap (RFC 9293 §3.4), and the first captured segment need not be the first of the stream, so
    offsets below 2 GiB occur. No stream has more than 2 GiB.
    """
    base = segments[0].sequence - (1 << 31)
    return [(segment.sequence - base) % (1 << 32) for segment in segments]


def read_packets(path: Path) -> tuple[Data, list[Packet]]:
    """The bytes of the file and its IP packets. Raises CaptureError when the file is no capture."""
    file, _ = open_capture(path)
    return file.data, packets_of(file)


def packets_by_addresses(file: CaptureFile) -> dict[str, int]:
    """`source destination` → number of IP packets that Ethernet carries to a single receiver. Rare pairs of addresses
    are counted together under "", because a hostile endpoint can use any number of addresses."""
    records, numbers_at = file.read(file), NumbersAt(file.data)
    counts: Counter[tuple[int, bytes]] = Counter()
    for first in range(0, len(records.start), _ROWS):
        rows = slice(first, first + _ROWS)
        start, end = records.start[rows], records.end[rows]
        ethertype, unicast = numbers_at(start + _ETHERNET - 2, 2), numbers_at(start) & 1 == 0
        unicast &= records.link_type[rows] == 1
        for kind, (offset, size, header) in _ADDRESSES.items():
            chosen = start[unicast & (ethertype == kind) & (end - start >= _ETHERNET + header)]
            pairs, numbers = np.unique(numbers_at.rows(chosen + _ETHERNET + offset, size), axis=0, return_counts=True)
            for pair, number in zip(pairs, numbers.tolist(), strict=True):
                counts[size, pair.tobytes()] += number
        release(file.data)
    named = dict(counts.most_common(_MOST_PAIRS))
    texts = {
        " ".join(str(ipaddress.ip_address(address)) for address in (pair[: size // 2], pair[size // 2 :])): number
        for (size, pair), number in named.items()
    }
    rest = counts.total() - sum(named.values())
    return texts | ({"": rest} if rest else {})


def packets_of(file: CaptureFile) -> list[Packet]:
    """The IP packets of a capture, in the order of the file."""
    return list(_packets(file.data, file.records()))


def _packets(data: Data, records: Iterator[tuple[int, int, int, int, int]]) -> Iterator[Packet]:
    for number, (time_ns, _, start, end, _) in enumerate(records, start=1):
        ip = start + _ETHERNET
        if end - ip < 20:
            continue
        version = data[ip] >> 4
        if version == 4:
            size, protocol, length = (data[ip] & 15) * 4, data[ip + 9], int.from_bytes(data[ip + 2 : ip + 4])
            source, destination = data[ip + 12 : ip + 16], data[ip + 16 : ip + 20]
            ecn = data[ip + 1] & 3
        elif version == 6 and end - ip >= 40:
            size, protocol, length = 40, data[ip + 6], int.from_bytes(data[ip + 4 : ip + 6]) + 40
            source, destination = data[ip + 8 : ip + 24], data[ip + 24 : ip + 40]
            ecn = data[ip + 1] >> 4 & 3
        else:
            continue
        upper = ip + size
        ports, sequence, flags, header = (0, 0), 0, 0, 0
        if protocol in (TCP, UDP) and end - upper >= 8:
            ports = int.from_bytes(data[upper : upper + 2]), int.from_bytes(data[upper + 2 : upper + 4])
            header = 8
            if protocol == TCP and end - upper >= 20:
                sequence, flags = int.from_bytes(data[upper + 4 : upper + 8]), data[upper + 13]
                header = (data[upper + 12] >> 4) * 4
        payload = max(0, length - size - header)
        yield Packet(
            number, time_ns, source, destination, protocol, *ports, sequence, flags, length, payload, ip, upper,
            min(end, upper + header), min(end, ip + length), ecn,
        )  # fmt: skip
