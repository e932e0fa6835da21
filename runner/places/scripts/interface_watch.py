#!/usr/bin/python3 -ISB
"""Prints each change of the interface eth0 of its network namespace that keeps packets from an endpoint.

It runs in the keeper of an endpoint's namespace, as long as the keeper. A line has the number of the interface, the
time in seconds since 1970, a word and a value:

    NUMBER TIME on          the interface is switched on and has its addresses
    NUMBER TIME off|deleted
    NUMBER TIME mtu|mac VALUE
    NUMBER TIME address VALUE       this address is removed
    NUMBER TIME overrun     there were more changes than this program could read, or than it prints

Messages of the kernel: rtnetlink(7), Linux include/uapi/linux/rtnetlink.h and if_link.h.
"""

import errno
import socket
import struct
import time

NAME = b"eth0\0"
NEWLINK, DELLINK, DELADDR = 16, 17, 21
LINKS, ADDRESSES4, ADDRESSES6 = 0x1, 0x10, 0x100  # groups of messages
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU = 1, 3, 4
IFA_ADDRESS = 1
IFF_UP = 1
BUFFER = 4 << 20  # bytes of messages that wait
MOST = 100  # printed changes of one interface


class Watch:
    """The interface that was last switched on under the name eth0, and its state."""

    def __init__(self) -> None:
        self.number = 0  # 0: no interface yet
        self.printed = 0
        self.is_on = False
        self.mtu = 0
        self.mac = b""

    def say(self, *words: object) -> None:
        """Print one change."""
        self.printed += 1
        if self.printed <= MOST:
            last = ("overrun",) if self.printed == MOST else words
            print(self.number, f"{time.time():.3f}", *last, flush=True)

    def link(self, number: int, flags: int, attributes: dict[int, bytes]) -> None:
        """The kernel's message on a new or changed interface."""
        mtu, mac = struct.unpack("I", attributes[IFLA_MTU])[0], attributes.get(IFLA_ADDRESS, b"")
        if number != self.number:
            if attributes[IFLA_IFNAME] == NAME and flags & IFF_UP:
                self.number, self.printed, self.is_on, self.mtu, self.mac = number, 0, True, mtu, mac
                self.say("on")
            return
        if self.is_on and not flags & IFF_UP:
            self.say("off")
        if mtu != self.mtu:
            self.say("mtu", mtu)
        if mac != self.mac:
            self.say("mac", mac.hex(":"))
        self.is_on, self.mtu, self.mac = bool(flags & IFF_UP), mtu, mac

    def take(self, kind: int, body: bytes) -> None:
        """One message of the kernel."""
        if kind == NEWLINK:
            number, flags = struct.unpack_from("iI", body, 4)
            self.link(number, flags, attributes_of(body[16:]))
        elif kind == DELLINK and struct.unpack_from("i", body, 4)[0] == self.number:
            self.say("deleted")
        elif kind == DELADDR and struct.unpack_from("I", body, 4)[0] == self.number:
            address = attributes_of(body[8:]).get(IFA_ADDRESS, b"")
            if len(address) in (4, 16):
                self.say("address", socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))


def attributes_of(data: bytes) -> dict[int, bytes]:
    """The attributes of a message by their kind."""
    attributes = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        attributes[kind] = data[4:length]
        data = data[(length + 3) & ~3 or 4 :]
    return attributes


def main() -> None:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    kernel.bind((0, LINKS | ADDRESSES4 | ADDRESSES6))
    watch = Watch()
    print("watching", flush=True)
    while True:
        try:
            data = kernel.recv(1 << 16)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            watch.say("overrun")
            continue
        while len(data) >= 16:
            length, kind = struct.unpack_from("IH", data)
            watch.take(kind, data[16:length])
            data = data[(length + 3) & ~3 or 16 :]


if __name__ == "__main__":
    main()
