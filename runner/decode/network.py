"""From captured frames to UDP datagrams: link layers, IPv4, IPv6, UDP."""

import ipaddress
from dataclasses import dataclass, field

from runner.decode.capture import CaptureFile

# tcpdump.org/linktypes.html
_ETHERNET, _PPP, _LOOP, _SLL, _SLL2 = 1, 9, 108, 113, 276
LINK_TYPES = {
    0: "NULL",
    _ETHERNET: "ETHERNET",
    _PPP: "PPP",
    12: "RAW",  # the DLT value, which some writers store
    50: "PPP_HDLC",
    101: "RAW",
    _LOOP: "LOOP",
    _SLL: "LINUX_SLL",
    228: "IPV4",
    229: "IPV6",
    _SLL2: "LINUX_SLL2",
}
_VLAN_TAGS = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
_UDP = 17
_IPV6_FRAGMENT, _IPV6_AUTHENTICATION = 44, 51
_IPV6_EXTENSIONS = (0, 43, 60, 135, 139, 140, _IPV6_AUTHENTICATION)


@dataclass(slots=True)
class Flow:
    """One direction of a 4-tuple."""

    number: int
    reverse: int
    """Number of the opposite direction."""
    src: str
    dst: str
    src_port: int
    dst_port: int
    ip_version: int


@dataclass(slots=True)
class Datagrams:
    """UDP datagrams of a capture as parallel lists, one entry per datagram in file order."""

    data: bytes
    """The file; `start` and `end` point into it."""
    flows: list[Flow] = field(default_factory=list)
    record: list[int] = field(default_factory=list)
    """Number of the record in the file, from 1."""
    time_ns: list[int] = field(default_factory=list)
    flow: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    payload_length: list[int] = field(default_factory=list)
    """As the UDP header says; longer than `end - start` when the capture kept only the beginning."""
    ip_length: list[int] = field(default_factory=list)
    ecn: list[int] = field(default_factory=list)
    records: int = 0
    fragments: int = 0
    snapped: int = 0
    link_types: set[int] = field(default_factory=set)
    first_time_ns: int | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    """Why UDP packets are not among the datagrams → how many."""

    def skip(self, why: str, count: int = 1) -> None:
        """Count UDP packets that are not read."""
        self.skipped[why] = self.skipped.get(why, 0) + count


def read_datagrams(file: CaptureFile) -> Datagrams:
    """All UDP datagrams of a capture. Never raises: what is no UDP over IP is only counted in `records`."""
    result = Datagrams(file.data)
    data = file.data
    flow_of: dict[bytes, int] = {}
    for time_ns, link_type, frame, end, wire_length in file.records():
        if result.records == 0:
            result.first_time_ns = time_ns
        result.records += 1
        result.link_types.add(link_type)
        result.snapped += end - frame < wire_length
        ip = _network_layer(data, frame, end, link_type)
        if ip < 0 or ip + 28 > end:
            continue
        if data[ip] >> 4 == 4:
            udp, ip_length = _ipv4(data, ip, result)
            key = data[ip + 12 : ip + 20] + data[udp : udp + 4]
            ecn = data[ip + 1] & 3
        else:
            udp, ip_length = _ipv6(data, ip, end, result)
            key = data[ip + 8 : ip + 40] + data[udp : udp + 4]
            ecn = data[ip + 1] >> 4 & 3
        start = udp + 8
        if udp < 0:
            continue
        if start > end:
            result.skip("cut off within the UDP header")
            continue
        flow = flow_of.get(key)
        if flow is None:
            flow = _add_flow(key, flow_of, result.flows)
        # Segmentation offload of very large packets leaves the length fields 0.
        length = int.from_bytes(data[udp + 4 : udp + 6]) - 8
        if length <= 0:
            result.skip("without payload" if length == 0 else "with a wrong UDP length")
            continue
        result.record.append(result.records)
        result.time_ns.append(time_ns)
        result.flow.append(flow)
        result.start.append(start)
        result.end.append(min(start + length, end))
        result.payload_length.append(length)
        result.ip_length.append(ip_length)
        result.ecn.append(ecn)
    return result


def _network_layer(data: bytes, frame: int, end: int, link_type: int) -> int:
    """Where the IP header starts in a frame; -1 when the frame carries no IP."""
    if link_type == _ETHERNET:
        position = frame + 14
        while data[position - 2 : position] in _VLAN_TAGS and position < end:
            position += 4
        ethertype = data[position - 2 : position]
        if ethertype not in (b"\x08\x00", b"\x86\xdd"):
            return -1
    elif link_type in (_SLL, _SLL2):
        position = frame + (16 if link_type == _SLL else 20)
        at = frame + (14 if link_type == _SLL else 0)
        if data[at : at + 2] not in (b"\x08\x00", b"\x86\xdd"):
            return -1
    elif link_type in (0, _LOOP):
        position = frame + 4
    elif link_type in (_PPP, 50):
        position = _after_ppp_header(data, frame)
    elif link_type in LINK_TYPES:
        position = frame
    else:
        return -1
    return position if position < end and data[position] >> 4 in (4, 6) else -1


def _after_ppp_header(data: bytes, frame: int) -> int:
    """RFC 1661, 1662: address and control may be there or not, the protocol may be compressed to one byte."""
    position = frame + 2 if data[frame : frame + 2] == b"\xff\x03" else frame
    return position + 1 if data[position : position + 1] in (b"\x21", b"\x57") else position + 2


def _ipv4(data: bytes, ip: int, result: Datagrams) -> tuple[int, int]:
    """Where the UDP header starts (-1: no whole UDP datagram) and the length of the IP packet (RFC 791)."""
    if data[ip + 9] != _UDP:
        return -1, 0
    if data[ip + 6] & 0x3F or data[ip + 7]:  # more fragments, or an offset
        result.fragments += 1
        result.skip("IP fragments")
        return -1, 0
    return ip + (data[ip] & 15) * 4, int.from_bytes(data[ip + 2 : ip + 4])


def _ipv6(data: bytes, ip: int, end: int, result: Datagrams) -> tuple[int, int]:
    """The same for IPv6 with its extension headers (RFC 8200 §4)."""
    length = int.from_bytes(data[ip + 4 : ip + 6]) + 40
    header, position = data[ip + 6], ip + 40
    while (header in _IPV6_EXTENSIONS or header == _IPV6_FRAGMENT) and position + 8 <= end:
        if header == _IPV6_FRAGMENT:
            # With offset 0 and no more fragments it is a whole packet, an atomic fragment (RFC 6946).
            if data[position + 2] or data[position + 3] & 0xF9:
                if data[position] == _UDP:
                    result.fragments += 1
                    result.skip("IP fragments")
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
    for way, own in ((key, number), (opposite, number + 1)):
        flow_of.setdefault(way, own)
        flows.append(
            Flow(
                number=own,
                reverse=number + 1 if own == number else number,
                src=str(ipaddress.ip_address(way[:size])),
                dst=str(ipaddress.ip_address(way[size:-4])),
                src_port=int.from_bytes(way[-4:-2]),
                dst_port=int.from_bytes(way[-2:]),
                ip_version=4 if size == 4 else 6,
            )
        )
    return number
