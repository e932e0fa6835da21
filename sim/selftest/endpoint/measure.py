#!/usr/bin/env python3
"""Measures a lane's link from inside, with only the rights of a stack's endpoint.

`measure.py server` echoes UDP on port 443 and sends a flow to each client that requests a flow. `measure.py client`
takes a JSON object in CLIENT_PARAMS, with `echoes`, `rate` (bit/s of IP bytes), `ip_length` (bytes), `count` (packets
of the flow), `ecn` (their ECN field) and `each` (whether to record every packet). It writes `rtt_samples_s` and `flow`
(the result of `traffic.receive`) to /logs/measured.json.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import traffic

SERVER = ("server4", 443)
FLOW_PORT = 4000
MEASURED = Path("/logs/measured.json")
ECHO, FLOW = b"echo", b"flow"
ECHO_PAYLOAD = 56  # bytes of UDP payload
STAMPS = struct.Struct(">QQ")  # when an echo arrived at the server and when it left, ns since 1970
INTERVAL = 0.05  # s between an echo and the next
ATTEMPTS = 3  # requests for a flow, because the link may lose a request


def serve() -> None:
    """Echo, and answer each request for a flow once. Ends with SIGTERM, which needs a handler in the first process of a
    container."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    answered = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, traffic.SO_TIMESTAMPNS, 1)
        sock.bind(("", SERVER[1]))
        while True:
            data, ancillary, _, address = sock.recvmsg(2048, 256)
            if data.startswith(ECHO):
                stamps = STAMPS.pack(traffic.arrival_ns(ancillary), time.time_ns())
                sock.sendto(data[: -STAMPS.size] + stamps, address)
            elif data.startswith(FLOW) and (address, data) not in answered:
                answered.add((address, data))
                wanted = json.loads(data.removeprefix(FLOW))
                traffic.send(
                    address[0], FLOW_PORT, wanted["rate"], wanted["ip_length"], wanted["count"], ecn=wanted["ecn"]
                )


def round_trips(sock: socket.socket, count: int) -> list[float]:
    """Times in s of `count` echoes; each has 84 bytes of IP. Echoes that don't come back within 2 s are left out.

    The kernel gives the times of arrival, and the time that an echo spent at the server is subtracted. So the result
    doesn't include the time for which a measuring endpoint had to wait for a CPU.
    """
    samples = []
    sock.settimeout(2.0)
    sock.setsockopt(socket.SOL_SOCKET, traffic.SO_TIMESTAMPNS, 1)
    for number in range(count):
        question = ECHO + number.to_bytes(4)
        sent = time.time_ns()
        sock.send(question.ljust(ECHO_PAYLOAD, b"\0"))
        try:
            answer, ancillary, _, _ = sock.recvmsg(2048, 256)
            while not answer.startswith(question):
                answer, ancillary, _, _ = sock.recvmsg(2048, 256)
        except TimeoutError:
            continue
        arrived, left = STAMPS.unpack(answer[-STAMPS.size :])
        samples.append((traffic.arrival_ns(ancillary) - sent - (left - arrived)) * 1e-9)
        time.sleep(INTERVAL)
    return samples


def ask(parameters: dict[str, Any]) -> None:
    """Measure round trips, then one flow from the server, and write both results to a file."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(SERVER)
        samples = round_trips(sock, parameters["echoes"])
        flow: dict[str, Any] = {}
        receiver = threading.Thread(
            target=lambda: flow.update(traffic.receive(FLOW_PORT, 10.0, 2.0, socket.AF_INET, each=parameters["each"]))
        )
        receiver.start()
        time.sleep(0.2)
        for _ in range(ATTEMPTS):
            sock.send(FLOW + json.dumps(parameters, sort_keys=True).encode())
        receiver.join()
    MEASURED.write_text(json.dumps({"rtt_samples_s": samples, "flow": flow}))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve()
    else:
        ask(json.loads(os.environ["CLIENT_PARAMS"]))
