#!/usr/bin/env python3
"""Checks the properties of the link program that sim/README.md describes, in separate network namespaces.

Needs root, iproute2, nsenter, ethtool and tcpdump; with --image also Docker and the image bentpipe/base:trixie.

    check.py --program sim/build/bentpipe-link          the program on this host
    check.py --image bentpipe/sim:5                     the container, as the runner starts it

Prints one line per finding. Exit code 1 when a finding failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import impairments
from lane import CLIENT_V4, CLIENT_V6, SERVER_MAC, SERVER_V4, SERVER_V6, Lane, finish
from measure import DELIVER, HEADER, RECORD, Finding, balanced, document, drops, flow

SHORT: dict[str, dict[str, Any]] = {"forward": {"delay": 0.01}, "return_": {"delay": 0.01}}

# Packets that a router would change or refuse: ECN and DSCP with TTL 1, IPv4 options, fragments, no checksum, IPv6
# traffic class and extension headers.
ODD_PACKETS = """
import socket
def send(family, options, size):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        for level, option, value in options:
            sock.setsockopt(level, option, value)
        to = "193.167.100.100" if family == socket.AF_INET else "fd00:cafe:cafe:100::100"
        sock.sendto(bytes(size), (to, 5000))
send(socket.AF_INET, [(0, 1, 0xB9), (0, 2, 1)], 100)
send(socket.AF_INET, [(0, 4, bytes([7, 7, 4, 0, 0, 0, 0, 0]))], 3)
send(socket.AF_INET, [(0, 10, 0)], 4000)
send(socket.AF_INET, [(1, 11, 1)], 7)
send(socket.AF_INET6, [(41, 67, 3), (41, 16, 1)], 400)
send(socket.AF_INET6, [], 4000)
send(socket.AF_INET6, [(41, 59, bytes([0, 0, 1, 4, 0, 0, 0, 0]))], 6)
"""


def check_isolation(lane: Lane) -> list[Finding]:
    """Packets for the simulator's own kernel don't cross the link. ARP and neighbour discovery find the gateway."""
    link = lane.link(document())
    connect = "import socket, sys; socket.create_connection((sys.argv[1], 57832), 3).close()"
    addresses = ("193.167.0.2", "193.167.100.2", "fd00:cafe:cafe:0::2", "fd00:cafe:cafe:100::2")
    commands = [lane.enter("client", sys.executable, "-c", connect, address) for address in addresses]
    accepted = sum(
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0 for command in commands
    )
    gateway = [
        lane.traffic("client", "ping", "--to", to, "--count", "3") for to in ("193.167.0.2", "fd00:cafe:cafe:0::2")
    ]
    neighbours = lane.inside("client", "ip", "neigh", "show", "dev", "eth0")
    time.sleep(0.5)
    truth = link.stop()
    crossed = truth["forward"]["packets_in"] + truth["return"]["packets_in"]
    resolved = [line for line in neighbours.splitlines() if SERVER_MAC in line]
    return [
        Finding(
            name="readiness port answers on v4 and v6",
            passed=accepted == len(addresses),
            measured=f"{accepted} of {len(addresses)} addresses, open after {link.ready_s:.2f} s",
        ),
        Finding(
            name="gateway answers ping itself",
            passed=all(reply["received"] == 3 and reply["rtt_s"]["p50"] < 0.01 for reply in gateway),
            measured=", ".join(f"{reply['received']} of 3" for reply in gateway),
        ),
        Finding(
            name="ARP and ND give the server's MAC", passed=len(resolved) >= 2, measured=f"{len(resolved)} neighbours"
        ),
        Finding(name="no packet of these crosses the link", passed=crossed == 0, measured=f"{crossed} packets"),
        Finding(
            name="SIGTERM while idle",
            passed=link.exit_code == 0 and link.stop_s < (0.2 if lane.image is None else 1.0),
            measured=f"exit {link.exit_code} after {link.stop_s * 1e3:.0f} ms",
        ),
    ]


def check_delay(lane: Lane) -> list[Finding]:
    """The round-trip time is propagation plus serialisation, for IPv4 and IPv6. tcpdump beside the link sees the
    packets, too."""
    link = lane.link(document())
    captures = [
        subprocess.Popen(
            lane.enter("sim", "tcpdump", "-Z", "root", "-n", "--immediate-mode", "-l", "-i", interface, "icmp"),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for interface in ("eth0", "eth1")
    ]  # fmt: skip
    time.sleep(1.0)
    v4 = lane.traffic("client", "ping", "--to", SERVER_V4, "--count", "20")
    v6 = lane.traffic("client", "ping", "--to", SERVER_V6, "--count", "20")
    seen = []
    for capture in captures:
        capture.terminate()
        lines = (capture.communicate(timeout=5)[0]).splitlines()
        seen.append([sum(kind in line for line in lines) for kind in ("echo request", "echo reply")])
    truth = link.stop()
    findings = []
    for name, reply, length in (("IPv4", v4, 84), ("IPv6", v6, 104)):
        ideal = 0.6 + length * 8 / 20e6 + length * 8 / 2e6
        excess = reply["rtt_s"]["p50"] - ideal if reply["received"] else float("inf")
        spread = reply.get("rtt_s", {})
        findings.append(
            Finding(
                name=f"round-trip time, {name}",
                passed=reply["received"] == 20 and 0 <= excess < 0.003,
                measured=f"median {excess * 1e3:+.3f} ms on {ideal * 1e3:.3f}, max {spread.get('max', 0) * 1e3:.2f} ms",
            )
        )
    exact = truth["forward"]["packets_out"] == truth["return"]["packets_out"] == 40
    findings.append(
        Finding(name="each ping crosses once", passed=exact, measured=f"{truth['forward']['packets_out']} replies")
    )
    whole = seen == [[20, 20], [20, 20]]
    findings.append(Finding(name="tcpdump sees both ways on both interfaces", passed=whole, measured=str(seen)))
    return findings


def check_unchanged(lane: Lane) -> list[Finding]:
    """Frames of the client arrive at the server with the same bytes, Ethernet header included."""
    link = lane.link(document(**SHORT))
    dump = ("tcpdump", "-Z", "root", "-n", "-t", "-xx", "--immediate-mode", "-U", "-i", "eth0")
    wanted = "udp or ip6 proto 44 or ip6 proto 60 or ip[6:2] & 0x1fff != 0"
    captures = [
        subprocess.Popen(
            lane.enter(end, *dump, "-Q", way, wanted), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for end, way in (("client", "out"), ("server", "in"))
    ]
    time.sleep(1.0)
    lane.inside("client", sys.executable, "-c", ODD_PACKETS)
    time.sleep(1.0)
    seen = []
    for capture in captures:
        capture.terminate()
        seen.append([line for line in capture.communicate(timeout=5)[0].splitlines() if "0x" in line])
    crossed = link.stop()["return"]["packets_out"]
    same = seen[0] == seen[1]
    return [
        Finding(
            name="packets cross unchanged",
            passed=same and crossed == 11,
            measured=f"{crossed} of 11, {'identical' if same else 'different'}",
        )
    ]


def check_rate(lane: Lane) -> list[Finding]:
    """The received rate and the drops of a small queue are right at 1.3 times the data rate, in both directions and for
    IPv4 and IPv6."""
    findings = []
    for name, to, rate, count in (
        ("forward, IPv4", CLIENT_V4, 20e6, 13_000),
        ("return, IPv4", SERVER_V4, 2e6, 1_300),
        ("forward, IPv6", CLIENT_V6, 20e6, 6_500),
    ):
        link = lane.link(document(forward={"queue_packets": 125}, return_={"queue_packets": 125}))
        got = flow(lane, to=to, rate=1.3 * rate, ip_length=1500, count=count)
        cpu = link.cpu_s()
        truth = link.stop()
        counts = truth["forward" if to in (CLIENT_V4, CLIENT_V6) else "return"]
        error = got["rate_bps"] / rate - 1
        longest, dropped = counts["queue_max_packets"], counts["dropped_queue"]
        exact = longest == 125 and dropped == count - got["received"] and balanced(counts)
        late = "/".join(f"{truth['lateness_s'][key] * 1e3:.2f}" for key in ("p50", "p99", "max"))
        received_late = truth["receive_lateness_s"]["p99"] * 1e3
        findings.append(
            Finding(
                name=f"rate at 1.3 times the load, {name}",
                passed=abs(error) < 0.001 and exact,
                measured=f"{error * 100:+.4f} %, queue max {longest}, mean {counts['queue_mean_packets']:.1f}, "
                f"dropped {dropped}, cpu {cpu:.2f} s, late p50/p99/max {late} ms, received p99 {received_late:.2f} ms",
            )
        )
    return findings


def check_loss(lane: Lane) -> list[Finding]:
    """With a loss of 1 %, the losses of 100 000 small packets are in the 99 % interval. Losses in the queue, the socket
    and the model are counted separately."""
    count, fraction = 100_000, 0.01
    link = lane.link(document(forward={"loss": fraction}))
    got = flow(lane, to=CLIENT_V4, rate=6e6, ip_length=100, count=count)
    truth = link.stop()
    forward = truth["forward"]
    lost = forward["dropped_loss"]
    half = 2.576 * (count * fraction * (1 - fraction)) ** 0.5
    kernel = truth["sockets"]["left"]["kernel_drops"] + truth["sockets"]["right"]["kernel_drops"]
    return [
        Finding(
            name="uniform loss of 1 %",
            passed=forward["packets_in"] == count and abs(lost - count * fraction) <= half,
            measured=f"{lost / count * 100:.3f} % of {forward['packets_in']} (99 %: +-{half / count * 100:.3f})",
        ),
        Finding(
            name="truth agrees with the receiver",
            passed=got["received"] == forward["packets_out"] and balanced(forward) and kernel == 0,
            measured=f"{got['received']} received, {forward['packets_out']} delivered, {kernel} lost in sockets",
        ),
    ]


def check_loss_protocol(lane: Lane) -> list[Finding]:
    """With a loss of 1, `udp` lets pings pass and `any` does not."""
    findings = []
    for protocol, expected in (("udp", (3, 0)), ("any", (0, 0))):
        lossy = {"delay": 0.01, "loss": 1}
        link = lane.link(document(forward=lossy, return_={"delay": 0.01}, loss_protocol=protocol))
        pings = lane.traffic("client", "ping", "--to", SERVER_V4, "--count", "3", "--timeout", "0.5")
        received = flow(lane, to=CLIENT_V4, rate=1e6, ip_length=200, count=20, timeout=1.0)["received"]
        link.stop()
        got = (pings["received"], received)
        measured = f"{got[0]} of 3 pings, {got[1]} of 20 UDP packets"
        findings.append(Finding(name=f"loss of {protocol}", passed=got == expected, measured=measured))
    return findings


def check_seed(lane: Lane) -> list[Finding]:
    """The same seed drops the same packets, and another seed drops other packets. Pings at the same time change
    nothing. The two directions lose different packets."""
    patterns = []
    for seed, pings in ((7, 0), (7, 3), (8, 0)):
        lossy = {"data_rate": 20_000_000, "delay": 0.01, "loss": 0.02}
        link = lane.link(document(forward=lossy, return_=lossy, seed=seed))
        if pings:
            lane.traffic("client", "ping", "--to", SERVER_V4, "--count", str(pings))
        received = [flow(lane, to=to, rate=8e6, ip_length=200, count=10_000) for to in (CLIENT_V4, SERVER_V4)]
        link.stop()
        patterns.append([got["missing"] for got in received])
    same, different = patterns[0] == patterns[1], patterns[0][0] != patterns[2][0]
    lost = [len(missing) for missing in patterns[0]]
    return [
        Finding(name="same seed, same losses", passed=same and min(lost) > 100, measured=f"{lost} of 10000 lost"),
        Finding(name="another seed, other losses", passed=different, measured=f"{len(patterns[2][0])} lost"),
        Finding(name="directions are independent", passed=patterns[0][0] != patterns[0][1], measured=f"{lost}"),
    ]


def check_flows(lane: Lane) -> list[Finding]:
    """The losses of a flow depend on its place among the flows, and not on the number of packets of earlier flows."""
    missing = []
    for first_flow in (3, 40):
        lossy = {"data_rate": 20_000_000, "delay": 0.01, "loss": 0.3}
        link = lane.link(document(forward=lossy, return_={"delay": 0.01}))
        received = [flow(lane, to=CLIENT_V4, rate=2e6, ip_length=200, count=count) for count in (first_flow, 300)]
        link.stop()
        missing.append([number for number in received[1]["missing"] if number < 290])
    same = missing[0] == missing[1]
    return [
        Finding(
            name="the second flow has the same losses after 3 and after 40 packets of the first flow",
            passed=same and len(missing[0]) > 50,
            measured=f"{[len(numbers) for numbers in missing]} of 290 lost",
        )
    ]


def check_packet_log(lane: Lane) -> list[Finding]:
    """The packet log agrees with the summary and with the receiver, record by record."""
    link = lane.link(document(forward={"loss": 0.05, "delay": 0.02}, return_={"delay": 0.02}))
    got = flow(lane, to=CLIENT_V4, rate=4e6, ip_length=300, count=5_000)
    forward = link.stop()["forward"]
    path = lane.folder / "packets.bin"
    magic, origin_ns = HEADER.unpack_from(path.read_bytes())
    records = list(RECORD.iter_unpack(path.read_bytes()[HEADER.size :]))
    lost = [number for direction, number in drops(path) if direction == 0]
    delivered = sum(record[4] == DELIVER and record[3] == 0 for record in records)
    right_time = abs(origin_ns * 1e-9 - time.time()) < 60
    same_totals = (delivered, len(lost)) == (forward["packets_out"], forward["dropped_loss"])
    seen_lost = [number for number in lost if number < max(got["missing"], default=0) + 1]
    return [
        Finding(
            name="packet log matches the summary",
            passed=magic == b"BPLINK1\n" and right_time and same_totals,
            measured=f"{len(records)} records, {delivered} delivered, {len(lost)} lost",
        ),
        Finding(
            name="packet log names the lost packets",
            passed=len(lost) > 0 and got["missing"] == seen_lost,
            measured=f"{len(got['missing'])} missing at the receiver",
        ),
    ]


def check_stop(lane: Lane) -> list[Finding]:
    """On SIGTERM during traffic the program ends quickly, and the packets in flight are counted."""
    link = lane.link(document())
    sizes = ("--ip-length", "1500", "--count", "2500")
    receiving = lane.start_traffic("client", "receive", "--port", "4000", "--idle", "1")
    time.sleep(0.5)
    sending = lane.start_traffic("server", "send", "--to", CLIENT_V4, "--port", "4000", "--rate", "26e6", *sizes)
    time.sleep(1.2)
    forward = link.stop()["forward"]
    finish(sending)
    finish(receiving)
    return [
        Finding(
            name="SIGTERM under traffic",
            passed=link.exit_code == 0 and link.stop_s < (0.2 if lane.image is None else 1.0),
            measured=f"exit {link.exit_code} after {link.stop_s * 1e3:.0f} ms",
        ),
        Finding(
            name="packets in flight are counted",
            passed=forward["in_flight"] > 500 and balanced(forward),
            measured=f"{forward['in_flight']} of {forward['packets_in']}",
        ),
    ]


def check_refusals(lane: Lane) -> list[Finding]:
    """With a bad document or a forwarding kernel, the program ends with 2 and one sentence. Packets of an endpoint with
    offloads on are counted."""
    link = lane.link(document(**SHORT))
    lane.offload("client", on=True)
    flow(lane, to=SERVER_V4, rate=1e6, ip_length=200, count=50)
    lane.offload("client", on=False)
    missing = link.stop()["sockets"]["left"]["checksum_missing"]
    findings = [
        Finding(name="an offload that is on is noticed", passed=missing == 50, measured=f"{missing} without checksum")
    ]
    if lane.program is None:
        return findings
    whole = {"left": {"interface": "eth0"}, "right": {"interface": "eth1"}, "truth": f"{lane.folder}/bad.json"}
    cases: dict[str, dict[str, Any]] = {
        "a rate with a unit": document(forward={"data_rate": "20M"}),
        "a queue without a limit": document(return_={"queue_packets": 0}),
        "a loss above 1": document(forward={"loss": 1.5}),
        "an unknown field": document(return_={"impairments": {"corupption": 0.1}}),
        "a missing interface": document(left={"interface": "eth9"}),
        "a kernel that forwards": document(),
    }
    lane.sysctl("sim", "ipv4.conf.eth0.forwarding", 1)
    for name, faulty in cases.items():
        command = lane.enter("sim", str(lane.program), json.dumps({**whole, **faulty}))
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        clear = done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        findings.append(Finding(name=f"refuses {name}", passed=clear, measured=done.stderr.strip()))
    lane.sysctl("sim", "ipv4.conf.eth0.forwarding", 0)
    return findings


CHECKS: dict[str, Callable[[Lane], list[Finding]]] = {
    "isolation": check_isolation,
    "delay": check_delay,
    "unchanged": check_unchanged,
    "rate": check_rate,
    "loss": check_loss,
    "protocol": check_loss_protocol,
    "seed": check_seed,
    "flows": check_flows,
    "log": check_packet_log,
    "stop": check_stop,
    "refusals": check_refusals,
    **impairments.CHECKS,
}


def main() -> int:
    """Runs the selected checks, all in the same lane, each with a new link."""
    parser = argparse.ArgumentParser(description="Checks the link program in separate network namespaces.")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--program", type=Path, help="the program on this host")
    target.add_argument("--image", help="the container image")
    parser.add_argument("--only", choices=CHECKS, action="append", help="run only this check; may be repeated")
    chosen = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="bpsim-") as folder:
        program = chosen.program.resolve() if chosen.program else None
        with Lane(folder=Path(folder), program=program, image=chosen.image) as lane:
            for name in chosen.only or CHECKS:
                for finding in CHECKS[name](lane):
                    print(f"{'ok  ' if finding.passed else 'FAIL'}  {finding.name}: {finding.measured}", flush=True)
                    failed += not finding.passed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
