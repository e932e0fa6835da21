"""Runs beside an endpoint of a real link: capture, probes, and the ready port for which clients wait.

The runner puts this file into a container of the tools image. It needs only python3-minimal.

    capture_and_probe.py answer  LIFE TOKEN PORT…              answers probes on UDP ports of all addresses
    capture_and_probe.py find    LIFE TOKEN PORT ADDRESS…      prints which addresses answer, then ends
    capture_and_probe.py ready   LIFE TOKEN PORT ADDRESS       waits until a QUIC server answers, then ends
    capture_and_probe.py client  LIFE TOKEN PORT INTERFACE FILTER ADDRESS PERIOD
    capture_and_probe.py server  LIFE TOKEN PORT INTERFACE FILTER UDP_PORT
    capture_and_probe.py inner   LIFE TOKEN                    captures eth0 of a network that is wired later
    capture_and_probe.py router  LIFE TOKEN                    accepts connections on the ready port

Until SIGTERM, `client` captures and sends probes, `server` captures and answers probes, and `inner` captures. Then they
print `monitor ended` and keep their volumes until they are killed. Each mode ends after LIFE seconds at the latest.
PORT is the port of the probes. FILTER is a filter of tcpdump, as one argument.

A probe is TOKEN (16 bytes), number, time (ns since 1970), and zeros. Its answer has the same length. After the probe's
fields it has the times of receipt and of sending, and the sender's address, as in NTP (RFC 5905 §8).
"""

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import sys
import time
from types import FrameType

CAPTURE, PROBES = "/monitor/capture.pcap", "/monitor/probes.txt"
READY_PORT = 57832  # TCP: clients wait until `sim` accepts connections on this port
SIZES = (64, 1200, 1452)  # bytes of UDP payload: small, QUIC's minimum (RFC 9000 §14), a full IPv6 packet
ROUNDS = 4
ROUND_SECONDS = 1.0
LAST_ANSWERS = 2.5  # s
HEAD = struct.Struct(">16sQq")  # token, number, time of sending
ANSWER = struct.Struct(">16sQqqq46s")  # a probe's fields, times of receipt and sending, the sender's address
PROBE_SIZE = ANSWER.size
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_PROBE = 10, 23, 3  # Linux: don't fragment


def udp(family: int) -> socket.socket:
    """A UDP socket that never fragments and doesn't block."""
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    if family == socket.AF_INET:
        made.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
    else:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
    return made


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listeners(port: int) -> list[socket.socket]:
    """Sockets for a UDP port of all addresses, like those of a server without a bound address."""
    sockets = []
    for family, wildcard in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            made = udp(family)
            made.bind((wildcard, port))
            sockets.append(made)
        except OSError as error:
            print(f"port {port} {'IPv6' if family == socket.AF_INET6 else 'IPv4'} {error.strerror}", flush=True)
    return sockets


def require_free(*ports: int) -> None:
    """End this process with a sentence when another process uses one of the UDP ports."""
    for port in ports:
        for family, wildcard in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            try:
                with udp(family) as made:
                    made.bind((wildcard, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    print(
                        f"UDP port {port} is in use: end the program that uses it (`ss -ulpn` shows the program), "
                        "or give the link another port.",
                        flush=True,
                    )
                    os._exit(4)


def answer(listener: socket.socket, token: bytes) -> None:
    """Answer the datagrams that wait in a socket. Datagrams without the token get no answer."""
    while True:
        try:
            data, peer = listener.recvfrom(2048)
        except OSError:
            return
        came = time.time_ns()
        if len(data) < ANSWER.size or data[:16] != token:
            continue
        _, number, sent = HEAD.unpack_from(data)
        reply = ANSWER.pack(token, number, sent, came, time.time_ns(), str(peer[0]).encode()[:46])
        try:
            listener.sendto(reply.ljust(len(data), b"\0"), peer)
        except OSError:
            continue


def find(token: bytes, port: int, addresses: list[str]) -> None:
    """Probe every address; print `address RTT_ns LARGEST_PAYLOAD SOURCE OUR_ADDRESS` for each, `-` for unknown values.
    Ends as soon as all addresses have answered in every size."""
    sockets = {family: udp(family) for family in {family_of(address) for address in addresses}}
    for family, made in sockets.items():
        made.bind(("0.0.0.0" if family == socket.AF_INET else "::", 0))
    sizes = [max(size, ANSWER.size) for size in SIZES]
    best: dict[int, tuple[int, int, str, str]] = {}

    def complete() -> bool:
        return len(best) == len(addresses) and all(largest == sizes[-1] for _, largest, _, _ in best.values())

    def listen(until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not complete():
            for ready in select.select(list(sockets.values()), [], [], left)[0]:
                try:
                    data, source = ready.recvfrom(2048)
                except OSError:
                    continue
                came = time.time_ns()
                if data[:16] != token or len(data) < ANSWER.size:
                    continue
                _, number, sent, _, _, client = ANSWER.unpack_from(data)
                rtt, largest, _, _ = best.get(number, (came - sent, 0, "", ""))
                where, ours = str(source[0]), client.rstrip(b"\0").decode(errors="replace")
                best[number] = (min(rtt, came - sent), max(largest, len(data)), where, ours)

    for _ in range(ROUNDS):
        if complete():
            break
        for number, address in enumerate(addresses):
            for size in sizes:
                head = HEAD.pack(token, number, time.time_ns())
                try:
                    sockets[family_of(address)].sendto(head.ljust(size, b"\0"), (address, port))
                except OSError:
                    continue  # no route, or longer than the MTU
        listen(time.monotonic() + ROUND_SECONDS)
    listen(time.monotonic() + LAST_ANSWERS)
    for number, address in enumerate(addresses):
        rtt, largest, source, ours = best.get(number, (-1, 0, "-", "-"))
        print(address, rtt, largest, source or "-", ours or "-", flush=True)
    print("found", flush=True)


def wait_for_server(address: str, port: int) -> None:
    """Send long headers of an unknown version until Version Negotiation comes (RFC 9000 §6.1); print `server ready`."""
    destination, source = os.urandom(8), os.urandom(8)
    question = struct.pack(">BI", 0xC0, 0x1A2A3A4A) + b"\x08" + destination + b"\x08" + source
    echoed = bytes(4) + b"\x08" + source + b"\x08" + destination
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as asking:  # an answer may take longer than the time-out
        asking.settimeout(0.1)
        while True:
            try:
                asking.connect((address, port))
                asking.send(question.ljust(1200, b"\0"))
                reply = asking.recv(2048)
            except OSError:
                time.sleep(0.05)
                continue
            if reply[:1] >= b"\x80" and reply[1 : 1 + len(echoed)] == echoed:
                print("server ready", flush=True)
                return


def open_listener(address: str) -> socket.socket:
    """Open the port for which clients wait."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEPORT, 1
    )  # a job of another link may use the port on this host
    listener.bind((address, READY_PORT))
    listener.listen(16)
    return listener


def await_network() -> None:
    """Return when eth0 is up. It is wired into this network after the container's start."""
    while True:
        with contextlib.suppress(OSError), open("/sys/class/net/eth0/operstate") as state:  # noqa: PTH123
            if state.read().strip() == "up":
                return
        time.sleep(0.02)


class CaptureAndProbe:
    """A capture, with probes at the same time, until SIGTERM."""

    def __init__(self, interface: str, capture_filter: str) -> None:
        self.over = False
        command = ["tcpdump", "-Z", "root", "-n", "-i", interface, "--immediate-mode", "-s", "2048", "-B", "16384"]
        command += ["--time-stamp-precision=nano", "-w", CAPTURE, capture_filter]
        self.capture = os.posix_spawnp(command[0], command, os.environ)

    def stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is Python's
        """End the probes. Then `hold` ends the capture, which prints its statistics."""
        self.over = True

    def hold(self) -> None:
        """End the capture, and keep the volumes until this process is killed."""
        os.kill(self.capture, signal.SIGTERM)
        os.waitpid(self.capture, 0)
        print("monitor ended", flush=True)
        while True:
            signal.pause()

    def serve(self, token: bytes, port: int) -> None:
        """Answer probes."""
        sockets = listeners(port)
        print("monitor ready", flush=True)
        while not self.over:
            for ready in select.select(sockets, [], [], 0.2)[0]:
                answer(ready, token)

    def probe(self, token: bytes, port: int, address: str, period: float) -> None:
        """Probe `address` every `period` seconds, and record the times of probes and answers. Accept connections on
        the ready port."""
        asking = udp(family_of(address))
        asking.connect((address, port))
        listener = open_listener("127.0.0.1")
        print("monitor ready", flush=True)
        number, due = 0, time.monotonic()
        with open(PROBES, "w", buffering=1) as log:  # noqa: PTH123 - pathlib is slow to import
            while not self.over:
                if time.monotonic() >= due:
                    now = time.time_ns()
                    log.write(f"s {number} {now}\n")
                    with contextlib.suppress(OSError):  # when the link is down, this probe is lost
                        asking.send(HEAD.pack(token, number, now).ljust(PROBE_SIZE, b"\0"))
                    number += 1
                    due = max(due + period, time.monotonic())
                for ready in select.select([asking, listener], [], [], max(0.0, due - time.monotonic()))[0]:
                    if ready is listener:
                        listener.accept()[0].close()
                        continue
                    try:
                        data = asking.recv(2048)
                    except OSError:
                        continue  # an ICMP error of an earlier probe
                    came = time.time_ns()
                    if data[:16] == token and len(data) >= ANSWER.size:
                        _, which, sent, received, replied, _ = ANSWER.unpack_from(data)
                        log.write(f"r {which} {sent} {received} {replied} {came}\n")


def main(mode: str, life: str, token: str, *rest: str) -> None:
    signal.signal(signal.SIGALRM, lambda *_: os._exit(3))
    signal.alarm(int(life))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    secret = bytes.fromhex(token)
    if mode == "answer":
        sockets = [made for port in rest for made in listeners(int(port))]
        print("monitor ready", flush=True)
        while True:
            for ready in select.select(sockets, [], [])[0]:
                answer(ready, secret)
    if mode == "find":
        find(secret, int(rest[0]), list(rest[1:]))
        return
    if mode == "ready":
        wait_for_server(rest[1], int(rest[0]))
        return
    if mode == "router":
        listener = open_listener("0.0.0.0")
        print("monitor ready", flush=True)
        while True:
            listener.accept()[0].close()
    if mode == "server":
        require_free(int(rest[0]), int(rest[3]))
    if mode == "inner":
        await_network()
        rest = ("0", "eth0", f"not tcp port {READY_PORT}")
    monitor = CaptureAndProbe(rest[1], rest[2])
    signal.signal(signal.SIGTERM, monitor.stop)
    if mode == "inner":
        print("monitor ready", flush=True)
        while not monitor.over:
            time.sleep(0.2)
    elif mode == "client":
        monitor.probe(secret, int(rest[0]), rest[3], float(rest[4]))
    else:
        monitor.serve(secret, int(rest[0]))
    monitor.hold()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("The disk of this host is full: make room on it, then resume the run.", file=sys.stderr)
        sys.exit(errno.ENOSPC)  # the container's output needs disk space, too
