"""Finds the IP packet in a captured frame: link layers, headers of access networks (VLAN, PPPoE, MPLS), and tunnels
(GRE, IP in IP)."""

from runner.decode.columns import Data

# tcpdump.org/linktypes.html
ETHERNET, _PPP, _LOOP, _SLL, _SLL2, _PPP_ETHER, _ATM, _C_HDLC = 1, 9, 108, 113, 276, 51, 100, 104
LINK_TYPES = {
    0: "NULL",
    ETHERNET: "ETHERNET",
    _PPP: "PPP",
    12: "RAW",  # the DLT values, which some writers store
    14: "RAW",
    50: "PPP_HDLC",
    _PPP_ETHER: "PPP_ETHER",
    _ATM: "ATM_RFC1483",
    101: "RAW",
    _C_HDLC: "C_HDLC",
    _LOOP: "LOOP",
    _SLL: "LINUX_SLL",
    166: "PPP_PPPD",
    204: "PPP_WITH_DIR",
    228: "IPV4",
    229: "IPV6",
    _SLL2: "LINUX_SLL2",
}
"""The link types that are read → name as in libpcap, without LINKTYPE_."""

_UNREAD = {
    **{6: "Token Ring", 7: "ARCNET", 8: "SLIP", 10: "FDDI", 105: "IEEE 802.11 (Wi-Fi)", 107: "Frame Relay"},
    **{109: "OpenBSD encapsulation", 117: "OpenBSD PF log", 119: "IEEE 802.11 (Wi-Fi) with Prism header"},
    **{127: "IEEE 802.11 (Wi-Fi) with radiotap", 163: "IEEE 802.11 (Wi-Fi) with AVS header", 143: "DOCSIS"},
    **{187: "Bluetooth", 189: "USB", 192: "PPI", 195: "IEEE 802.15.4", 201: "Bluetooth", 220: "USB", 227: "CAN"},
    **{230: "IEEE 802.15.4", 239: "Linux NFLOG", 249: "USB", 251: "Bluetooth LE", 252: "Wireshark upper PDU"},
    **{253: "Linux netlink", 272: "nRF sniffer"},
}

ETHERNET_HEADER = 14  # bytes
TUNNELS = {4: "IP in IP", 41: "6in4", 47: "GRE"}
"""IP protocols that carry IP packets (RFC 2003, 4213, 2784) → name."""
DESTINATION_OPTIONS = 60  # IPv6 header that Linux puts before the inner packet of a tunnel (RFC 2473 §4.1.1)
_MOST_HEADERS = 16  # headers between link layer and IP; more of them are no network's, but an attack on the decoder

_IPV4, _IPV6, _MAC, _PPP_PROTOCOLS = 0x0800, 0x86DD, 0x6558, 0x880B
_VLANS = (0x8100, 0x88A8, 0x9100, 0x9200)  # IEEE 802.1Q, 802.1ad (QinQ), and two values of vendors from before
_PPPOE, _MPLS = 0x8864, (0x8847, 0x8848)
_ETHERTYPES = {
    **{0x0806: "ARP", 0x8035: "RARP", 0x8137: "IPX", 0x8809: "LACP", 0x8863: "PPPoE discovery", 0x888E: "EAPOL"},
    **{0x88CC: "LLDP", 0x88E5: "MACsec", 0x88F7: "PTP", 0x8902: "Ethernet OAM", 0x9000: "Ethernet loopback"},
}
_OF_PPP = {0x0021: _IPV4, 0x0057: _IPV6, 0x0281: 0x8847, 0x0283: 0x8848}  # IANA, PPP DLL protocol numbers
_CUT = "frames that are cut off before the IP header"


class _Other(Exception):  # noqa: N818 - no error
    """The frame carries no IP packet that can be read. The message names its content."""


def link_name(link_type: int) -> str:
    """The name of a link type for people."""
    return LINK_TYPES.get(link_type) or f"link type {link_type}, {_UNREAD.get(link_type, 'not known to bentpipe')}"


def find_ip(
    data: Data, frame: int, end: int, link_type: int, *, tunnels: bool = False
) -> tuple[int | str, tuple[str, ...]]:
    """Position of the IP header in data[frame:end], or a name for what the frame carries instead; and the names of the
    headers before the IP header.

    `tunnels`: whether to read PPPoE, MPLS, SNAP, GRE and IP in IP, too. With them, the innermost IP header counts.
    """
    reader = _FrameReader(data, end, tunnels=tunnels)
    try:
        return reader.read(frame, link_type), tuple(dict.fromkeys(reader.headers))
    except _Other as other:
        return str(other), ()


class _FrameReader:
    """Reads the headers of one frame. Its methods return a position, and raise `_Other` where no IP packet begins."""

    __slots__ = ("_data", "_end", "_tunnels", "headers")

    def __init__(self, data: Data, end: int, *, tunnels: bool) -> None:
        self._data = data
        self._end = end
        self._tunnels = tunnels
        self.headers: list[str] = []

    def read(self, at: int, link_type: int) -> int:
        """Position of the IP header of a frame that begins at `at`."""
        if link_type == ETHERNET:
            return self._ethernet(at)
        if link_type in (_SLL, _SLL2):
            protocol = self._number(at + (14 if link_type == _SLL else 0), 2)
            return self._ethertype(protocol, at + (16 if link_type == _SLL else 20))
        if link_type == _C_HDLC:
            return self._ethertype(self._number(at + 2, 2), at + 4)
        if link_type == _ATM:
            return self._llc(at)
        if link_type == _PPP_ETHER:
            return self._ppp(at + 6)
        if link_type in (_PPP, 50, 166, 204):
            return self._ppp_frame(at + 1 if link_type == 204 else at)
        if link_type in (0, _LOOP):
            at += 4
        elif link_type not in LINK_TYPES:
            raise _Other(link_name(link_type))
        return self._ip(at)

    def _number(self, at: int, size: int) -> int:
        if at + size > self._end:
            raise _Other(_CUT)
        return int.from_bytes(self._data[at : at + size])

    def _enter(self, name: str, *, tunnel: bool = True) -> None:
        """Note a header. Raises `_Other` when it must not be read."""
        if tunnel and not self._tunnels:
            raise _Other(name)
        self.headers.append(name)
        if len(self.headers) > _MOST_HEADERS:
            raise _Other(f"more than {_MOST_HEADERS} headers before IP")

    def _ethernet(self, at: int) -> int:
        try:
            return self._ethertype(self._number(at + 12, 2), at + ETHERNET_HEADER)
        except _Other:
            # Drivers of mobile modems deliver IP packets without the Ethernet header that they announce.
            length = {4: self._number(at + 2, 2), 6: 40 + self._number(at + 4, 2)}.get(self._number(at, 1) >> 4)
            if not self._tunnels or length != self._end - at:
                raise
        self._enter("no Ethernet header")
        return self._ip(at)

    def _ethertype(self, ethertype: int, at: int) -> int:
        """Position of the IP header when a header before `at` has this EtherType or IEEE 802.3 length."""
        while ethertype in _VLANS:
            self._enter("VLAN", tunnel=False)
            ethertype, at = self._number(at + 2, 2), at + 4
        if ethertype in (_IPV4, _IPV6):
            return self._ip(at)
        if ethertype == _PPPOE:  # RFC 2516 §4
            self._enter("PPPoE")
            return self._ppp(at + 6)
        if ethertype in _MPLS:
            self._enter("MPLS")
            return self._mpls(at)
        if ethertype == _MAC:
            self._enter("Ethernet in a tunnel")
            return self._ethernet(at)
        if ethertype == _PPP_PROTOCOLS:
            self._enter("PPP in a tunnel")
            return self._ppp_frame(at)
        if ethertype <= 1500:
            return self._llc(at)
        raise _Other(_ETHERTYPES.get(ethertype, f"EtherType 0x{ethertype:04x}"))

    def _llc(self, at: int) -> int:
        """IEEE 802.2 LLC, with SNAP (RFC 1042) or without."""
        head = self._number(at, 3)
        if head != 0xAAAA03:
            names = {0x42: "Spanning Tree", 0xFE: "IS-IS", 0xE0: "IPX", 0xF0: "NetBEUI"}
            raise _Other(names.get(head >> 16, "LLC frames"))
        self._enter("SNAP")
        organization, protocol = self._number(at + 3, 3), self._number(at + 6, 2)
        if organization not in (0, 0xF8):
            raise _Other(f"SNAP of the organization {organization:06x}")
        return self._ethertype(protocol, at + 8)

    def _mpls(self, at: int) -> int:
        """RFC 3032: labels, of which the last has the bit S. Nothing tells what follows; IP begins with its version."""
        while not self._number(at, 4) >> 8 & 1:
            self._enter("MPLS")
            at += 4
        at += 4
        if self._number(at, 1) >> 4 not in (4, 6):  # Ethernet over MPLS, mostly with a control word (RFC 4448 §4.6)
            return self._ethernet(at + 4 if self._number(at, 1) >> 4 == 0 else at)
        return self._ip(at)

    def _ppp_frame(self, at: int) -> int:
        """PPP (RFC 1661, 1662): the fields address and control may be absent. Or Cisco HDLC on the same links."""
        head = self._number(at, 2)
        if head in (0x0F00, 0x8F00):
            return self._ethertype(self._number(at + 2, 2), at + 4)
        return self._ppp(at + 2 if head & 0xFF == 3 and head >> 8 in (0xFF, 0, 1) else at)

    def _ppp(self, at: int) -> int:
        """The PPP protocol field of one or two bytes, and what follows."""
        short = self._number(at, 1) & 1  # RFC 1661 §2: only the last byte of the field is odd
        protocol, at = (self._number(at, 1), at + 1) if short else (self._number(at, 2), at + 2)
        if protocol not in _OF_PPP:
            raise _Other("PPP control packets" if protocol >= 0x8000 else f"PPP protocol 0x{protocol:04x}")
        return self._ethertype(_OF_PPP[protocol], at)

    def _ip(self, at: int) -> int:
        """Position of the innermost IP header when one begins at `at`."""
        version = self._number(at, 1) >> 4
        if version not in (4, 6):
            raise _Other("no IP packet")
        if not self._tunnels or at + 20 > self._end:
            return at
        protocol = self._number(at + (9 if version == 4 else 6), 1)
        inner = at + (self._number(at, 1) & 15) * 4 if version == 4 else at + 40
        if version == 6 and protocol == DESTINATION_OPTIONS and inner + 2 <= self._end:
            protocol, inner = self._number(inner, 1), inner + (self._number(inner + 1, 1) + 1) * 8
        fragment = version == 4 and self._number(at + 6, 2) & 0x3FFF
        if protocol not in TUNNELS or fragment:
            return at
        self._enter("IP in IP" if (version, protocol) == (6, 41) else TUNNELS[protocol])
        return self._gre(inner) if protocol == 47 else self._ip(inner)

    def _gre(self, at: int) -> int:
        """GRE (RFC 2784, 2890) and its form in PPTP (RFC 2637)."""
        flags, protocol = self._number(at, 2), self._number(at + 2, 2)
        after = at + 4 + 4 * sum(bool(flags & bit) for bit in (0xC000, 0x2000, 0x1000))
        if flags & 7 == 1:
            after += 4 if flags & 0x80 else 0
        elif protocol in (0x88BE, 0x22EB):  # ERSPAN: type I has no header, type II has 8 bytes, type III 12 bytes
            return self._ethernet(after + (12 if protocol == 0x22EB else 8 if flags & 0x1000 else 0))
        return self._ethertype(protocol, after)
