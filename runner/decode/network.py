"""Finds UDP datagrams in captured frames: reads IPv4, IPv6 and UDP. `link_layers` finds the IP packets."""

import ipaddress
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from runner.decode.capture import CaptureFile
from runner.decode.columns import Bools, Integers, no_integers
from runner.decode.file_bytes import Data, NumbersAt, release
from runner.decode.link_layers import DESTINATION_OPTIONS, ETHERNET, ETHERNET_HEADER, TUNNELS, find_ip
from runner.decode.schema import FRAGMENTS

_ROWS = 1 << 13  # records whose headers are read at once

_UDP = 17
_PROTOCOLS = {1: "ICMP", 2: "IGMP", 6: "TCP", 33: "DCCP", 50: "ESP (IPsec)", 51: "AH (IPsec)", 58: "ICMPv6"} | {
    88: "EIGRP",
    89: "OSPF",
    103: "PIM",
    112: "VRRP",
    115: "L2TP",
    132: "SCTP",
    136: "UDP-Lite",
    **TUNNELS,
}  # iana.org/assignments/protocol-numbers
_IPV6_FRAGMENT, _IPV6_AUTHENTICATION = 44, 51
_IPV6_EXTENSIONS = (0, 43, 60, 135, 139, 140, _IPV6_AUTHENTICATION)


@dataclass(slots=True)
class Flow:
    """One direction of a 4-tuple."""

    number: int
    reverse: int
    """Number of the flow in the opposite direction."""
    src: str
    dst: str
    src_port: int
    dst_port: int
    ip_version: int


@dataclass(slots=True)
class Datagrams:
    """UDP datagrams of a capture as parallel columns, one entry per datagram in file order."""

    data: Data
    """The bytes of the file; `start` and `end` are positions in it."""
    flows: list[Flow] = field(default_factory=list)
    record: Integers = field(default_factory=no_integers)
    """Number of the record in the file, from 1."""
    time_ns: Integers = field(default_factory=no_integers)
    flow: Integers = field(default_factory=no_integers)
    start: Integers = field(default_factory=no_integers)
    end: Integers = field(default_factory=no_integers)
    payload_length: Integers = field(default_factory=no_integers)
    """Bytes of payload according to the UDP header. This is more than `end - start` when the capture contains only the
    beginning of the datagram."""
    ip_length: Integers = field(default_factory=no_integers)
    ecn: Integers = field(default_factory=no_integers)
    records: int = 0
    fragments: int = 0
    fragment_sources: Counter[str] = field(default_factory=Counter)
    """Source address → number of IP fragments of UDP packets."""
    snapped: int = 0
    link_types: set[int] = field(default_factory=set)
    first_time_ns: int | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason why UDP packets are not among the datagrams → number of packets."""
    not_udp: Counter[str] = field(default_factory=Counter)
    """What other records carry → number of records."""
    headers: Counter[str] = field(default_factory=Counter)
    """Header between the link layer and the IP packet that was read, such as `PPPoE` → number of records."""

    def skip_fragment(self, source: bytes, count: int = 1) -> None:
        """Count IP fragments from an address. They are not read."""
        self.fragments += count
        self.fragment_sources[_address(source)] += count
        self.skip(FRAGMENTS, count)

    def skip(self, why: str, count: int = 1) -> None:
        """Count UDP packets that are not read, by reason."""
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count


def read_datagrams(file: CaptureFile, *, tunnels: bool = False) -> Datagrams:
    """All UDP datagrams of a capture. Never raises: records without UDP over IP are only counted.

    `tunnels`: also read IP packets in GRE, in IP, and behind the headers of an access network (PPPoE, MPLS). The judge
    doesn't, because an endpoint can put packets of its peer into a tunnel.
    """
    return _Reader(file, tunnels=tunnels).read()


class _Reader:
    """Reads the headers of one capture. Usual headers are read for many records at once, unusual headers one by
    one."""

    def __init__(self, file: CaptureFile, *, tunnels: bool) -> None:
        self._tunnels = tunnels
        self._data = file.data
        self._records = file.read(file)
        self._numbers_at = NumbersAt(file.data)
        self._result = Datagrams(file.data)
        self._flow_of: dict[bytes, int] = {}

    def read(self) -> Datagrams:
        records, result = self._records, self._result
        result.records = len(records.start)
        result.first_time_ns = int(records.time_ns[0]) if result.records else None
        result.link_types = set(np.unique(records.link_type).tolist())
        result.snapped = int((records.end - records.start < records.wire_length).sum())
        pieces = [np.empty((7, 0), dtype=np.int64)]
        for first in range(0, result.records, _ROWS):
            pieces.append(self._piece(np.arange(first, min(first + _ROWS, result.records))))
            release(self._data)
        columns = np.concatenate(pieces, axis=1)
        row, *_ = columns
        result.record, result.time_ns = row + 1, records.time_ns[row]
        _, result.flow, result.start, result.end, result.payload_length, result.ip_length, result.ecn = columns
        return result

    def _piece(self, rows: Integers) -> Integers:
        """The datagrams in these records, as seven columns: row of the record, flow, start, end, payload length, IP
        length, ECN codepoint."""
        ip = self._network_layer(rows)
        rows, ip = rows[ip >= 0], ip[ip >= 0]
        end = self._records.end[rows]
        whole = ip + 28 <= end
        self._result.not_udp["IP packets of fewer than 28 bytes, or cut off before"] += int((~whole).sum())
        rows, ip, end = rows[whole], ip[whole], end[whole]
        is_v4: Bools = self._numbers_at(ip) >> 4 == 4
        udp, ip_length = self._udp(ip, end, is_v4)
        cut = (udp >= 0) & (udp + 8 > end)
        self._result.skip("cut off within the UDP header", int(cut.sum()))
        kept = (udp >= 0) & ~cut
        rows, ip, end, udp, ip_length = (column[kept] for column in (rows, ip, end, udp, ip_length))
        is_v4 = is_v4[kept]
        flow = self._flows(ip, udp, is_v4)
        ecn = np.where(is_v4, self._numbers_at(ip + 1), self._numbers_at(ip + 1) >> 4) & 3
        # In very large packets of segmentation offload, the length fields are 0. Such packets are left out.
        length = self._numbers_at(udp + 4, 2) - 8
        self._result.skip("without payload", int((length == 0).sum()))
        self._result.skip("with a wrong UDP length", int((length < 0).sum()))
        start = udp + 8
        columns = np.stack((rows, flow, start, np.minimum(start + length, end), length, ip_length, ecn))
        return columns[:, length > 0]

    def _network_layer(self, rows: Integers) -> Integers:
        """Per record: position of the IP header; -1 when the frame carries no IP."""
        frame, end, link_type = (
            column[rows] for column in (self._records.start, self._records.end, self._records.link_type)
        )
        ip = frame + ETHERNET_HEADER
        usual = (link_type == ETHERNET) & (ip < end)
        ethertype, version = self._numbers_at(ip - 2, 2), self._numbers_at(ip) >> 4
        usual &= np.isin(ethertype, (0x0800, 0x86DD)) & ((version == 4) | (version == 6))
        if self._tunnels:  # read one by one, like all unusual records
            protocol = np.where(version == 4, self._numbers_at(ip + 9), self._numbers_at(ip + 6))
            usual &= ~np.isin(protocol, (*TUNNELS, DESTINATION_OPTIONS))
        for at in np.flatnonzero(~usual).tolist():
            found, headers = find_ip(
                self._data, int(frame[at]), int(end[at]), int(link_type[at]), tunnels=self._tunnels
            )
            if isinstance(found, str):
                self._result.not_udp[found] += 1
            else:
                self._result.headers.update(headers)
            ip[at] = -1 if isinstance(found, str) else found
        return ip

    def _udp(self, ip: Integers, end: Integers, is_v4: Bools) -> tuple[Integers, Integers]:
        """Per packet: position of the UDP header (-1: no whole UDP datagram), length of the IP packet in bytes."""
        numbers_at = self._numbers_at
        protocol = np.where(is_v4, numbers_at(ip + 9), numbers_at(ip + 6))
        # An IPv4 fragment has the flag More Fragments or an offset (RFC 791).
        fragment = is_v4 & (protocol == _UDP) & (numbers_at(ip + 6, 2) & 0x3FFF != 0)
        if fragment.any():
            sources, counts = np.unique(numbers_at.rows(ip[fragment] + 12, 4), axis=0, return_counts=True)
            for source, count in zip(sources, counts.tolist(), strict=True):
                self._result.skip_fragment(source.tobytes(), count)
        udp = ip + np.where(is_v4, (numbers_at(ip) & 15) * 4, 40)
        ip_length = np.where(is_v4, numbers_at(ip + 2, 2), numbers_at(ip + 4, 2) + 40)
        udp[(protocol != _UDP) | fragment] = -1
        extended = ~is_v4 & np.isin(protocol, (*_IPV6_EXTENSIONS, _IPV6_FRAGMENT))
        for at in np.flatnonzero(extended).tolist():
            udp[at], ip_length[at] = _ipv6(self._data, int(ip[at]), int(end[at]), self._result)
        for number, count in zip(*np.unique(protocol[(protocol != _UDP) & (udp < 0)], return_counts=True), strict=True):
            self._result.not_udp[_PROTOCOLS.get(int(number), f"IP protocol {number}")] += int(count)
        return udp, ip_length

    def _flows(self, ip: Integers, udp: Integers, is_v4: Bools) -> Integers:
        """Per datagram: the number of its flow. Flows are numbered in the order of their first datagrams."""
        keys = np.empty(len(ip), dtype=object)
        for chosen, offset, size in ((is_v4, 12, 8), (~is_v4, 8, 32)):
            if chosen.any():
                addresses = self._numbers_at.rows(ip[chosen] + offset, size)
                ports = self._numbers_at.rows(udp[chosen], 4)
                key = np.ascontiguousarray(np.concatenate((addresses, ports), axis=1))
                keys[chosen] = key.view(f"V{size + 4}").ravel().tolist()
        names = keys.tolist()
        for name in dict.fromkeys(names):
            if name not in self._flow_of:
                _add_flow(name, self._flow_of, self._result.flows)
        return np.fromiter(map(self._flow_of.__getitem__, names), dtype=np.int64, count=len(names))


def _ipv6(data: Data, ip: int, end: int, result: Datagrams) -> tuple[int, int]:
    """Position of the UDP header (-1: no whole UDP datagram) and length of an IPv6 packet with extension headers (RFC
    8200 §4) in bytes."""
    length = int.from_bytes(data[ip + 4 : ip + 6]) + 40
    header, position = data[ip + 6], ip + 40
    while (header in _IPV6_EXTENSIONS or header == _IPV6_FRAGMENT) and position + 8 <= end:
        if header == _IPV6_FRAGMENT:
            # An atomic fragment (RFC 6946) has offset 0 and no flag More Fragments: it is a whole packet.
            if data[position + 2] or data[position + 3] & 0xF9:
                if data[position] == _UDP:
                    result.skip_fragment(data[ip + 8 : ip + 24])
                return -1, 0
            size = 8
        elif header == _IPV6_AUTHENTICATION:
            size = (data[position + 1] + 2) * 4
        else:
            size = (data[position + 1] + 1) * 8
        header, position = data[position], position + size
    return (position, length) if header == _UDP else (-1, 0)


def _add_flow(key: bytes, flow_of: dict[bytes, int], flows: list[Flow]) -> int:
    size = (len(key) - 4) // 2
    src, dst, ports = key[:size], key[size:-4], key[-4:]
    opposite = dst + src + ports[2:] + ports[:2]
    number = len(flows)
    for way, flow in ((key, number), (opposite, number + 1)):
        flow_of.setdefault(way, flow)
        flows.append(
            Flow(
                number=flow,
                reverse=number + 1 if flow == number else number,
                src=_address(way[:size]),
                dst=_address(way[size:-4]),
                src_port=int.from_bytes(way[-4:-2]),
                dst_port=int.from_bytes(way[-2:]),
                ip_version=4 if size == 4 else 6,
            )
        )
    return number


@lru_cache(maxsize=64)
def _address(packed: bytes) -> str:
    """The text of an IP address. It is cached, because an address usually has many flows."""
    return str(ipaddress.ip_address(packed))
