"""A UDP socket that reads ECN marks, instead of asyncio's transport; and the sins that are about datagrams."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from acks import Acknowledgements
from sins import Chosen

Address = tuple[Any, ...]
_ECT0 = 2
_MARK = 3  # bits of the traffic class
_LARGEST = 65535
_AT_ONCE = 64  # datagrams per turn of the event loop
_HELD_SECONDS = 0.05  # the longest time for which a datagram is held back
_LONG_HEADER = 0x80


class Wire:
    """One port for IPv4 and IPv6. `deliver(data, address)` is called for each received datagram."""

    def __init__(self, port: int, deliver: Callable[[bytes, Address], None], *, sin: Chosen, marked: bool) -> None:
        self._deliver = deliver
        self._sin = sin
        self._marked = marked
        self._count = 0
        self._held: deque[tuple[int, bytes, Address]] = deque()
        self._socket = self._open(port)

    @property
    def port(self) -> int:
        """The local port."""
        return int(self._socket.getsockname()[1])

    def move(self) -> None:
        """Change to another local port."""
        before, self._socket = self._socket, self._open(0)
        asyncio.get_running_loop().remove_reader(before)
        before.close()

    def close(self) -> None:
        """Close the socket."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def sendto(self, data: bytes, address: Address) -> None:
        """Send a datagram: once, twice or later."""
        if not self._sin("out-of-order") or data[0] & _LONG_HEADER:
            for _ in range(2 if self._sin("sends-twice") else 1):
                self._socket.sendto(data, address)
            return
        self._count += 1
        if self._count % int(self._sin.value("every")) == 0:
            self._held.append((self._count + int(self._sin.value("by")), data, address))
            asyncio.get_running_loop().call_later(_HELD_SECONDS, self._release, self._count)
        else:
            self._socket.sendto(data, address)
        self._release(0)

    def _release(self, held_at: int) -> None:
        """Send held datagrams after enough later datagrams. Datagrams held at `held_at` or before are sent anyway."""
        while self._held and (self._held[0][0] <= self._count or self._held[0][0] <= held_at + self._sin.value("by")):
            _, data, address = self._held.popleft()
            self._socket.sendto(data, address)

    def _open(self, port: int) -> socket.socket:
        opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        if self._marked:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, _ECT0)
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _ECT0)
        opened.bind(("::", port))
        asyncio.get_running_loop().add_reader(opened, self._read, opened)
        return opened

    def _read(self, opened: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, ancillary, _, address = opened.recvmsg(_LARGEST, socket.CMSG_SPACE(4) * 2, socket.MSG_DONTWAIT)
            except OSError:  # no more datagrams, or an ICMP error for an earlier datagram
                return
            Acknowledgements.arriving = next((mark[0] & _MARK for _, _, mark in ancillary if mark), 0)
            self._deliver(data, address)
