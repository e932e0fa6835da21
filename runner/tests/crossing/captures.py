"""Captures made by hand, packet by packet, for tests of the code that reads captures."""

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

CLIENT, SERVER = "193.167.0.100", "193.167.100.100"
CLIENT6, SERVER6 = "fd00:cafe:cafe:0::100", "fd00:cafe:cafe:100::100"
TERMINAL, GATEWAY = "10.55.0.100", "10.55.100.100"
SYN, SYN_ACK, ACK = 0x02, 0x12, 0x10


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One packet of a capture. `sequence`: None for UDP."""

    source: str
    destination: str
    ports: tuple[int, int]
    payload: bytes = b""
    sequence: int | None = None
    flags: int = ACK

    def ip(self) -> bytes:
        ends = ipaddress.ip_address(self.source).packed + ipaddress.ip_address(self.destination).packed
        if self.sequence is None:
            upper = struct.pack(">HHHH", *self.ports, 8 + len(self.payload), 1) + self.payload
        else:
            upper = struct.pack(">HHIIBBHHH", *self.ports, self.sequence, 0, 5 << 4, self.flags, 1000, 1, 0)
            upper += self.payload
        protocol = 17 if self.sequence is None else 6
        if ":" in self.source:
            return struct.pack(">IHBB", 6 << 28, len(upper), protocol, 64) + ends + upper
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(upper), 0, 0, 64, protocol, 0)
        return header + ends + upper


def write_capture(path: Path, packets: Sequence[Sent], *, every: float = 0.1) -> Path:
    """Write an Ethernet capture with times in nanoseconds, and with a packet every `every` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    for number, packet in enumerate(packets):
        frame = b"\x02" * 12 + (b"\x86\xdd" if ":" in packet.source else b"\x08\x00") + packet.ip()
        time_ns = round(number * every * 1e9)
        data += struct.pack("<IIII", time_ns // 10**9, time_ns % 10**9, len(frame), len(frame)) + frame
    path.write_bytes(data)
    return path


def connection(
    client: str, server: str, *, initials: tuple[int, int], request: bytes, response: bytes, port: int = 40000
) -> list[Sent]:
    """The packets of a TCP connection that a capture between its ends has."""
    mine, theirs = initials
    there = partial(Sent, source=client, destination=server, ports=(port, 80))
    back = partial(Sent, source=server, destination=client, ports=(80, port))
    pieces = [response[at : at + 1000] for at in range(0, len(response), 1000)]
    return [
        there(sequence=mine, flags=SYN),
        back(sequence=theirs, flags=SYN_ACK),
        there(sequence=mine + 1, payload=request),
        *(back(sequence=theirs + 1 + 1000 * at, payload=piece) for at, piece in enumerate(pieces)),
    ]
