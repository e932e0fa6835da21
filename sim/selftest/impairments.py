"""Checks of the link's impairments: kinds of loss, corruption, outage, NAT, order, ECN."""

import itertools
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lane import CLIENT_V4, CLIENT_V6, SERVER_V4, SERVER_V6, Lane, finish
from measure import Finding, balanced, document

DATAGRAMS = Path(__file__).with_name("datagrams.py")
CE = 3


def short(
    *, forward: dict[str, Any] | None = None, return_: dict[str, Any] | None = None, loss: float = 0.0, **both: object
) -> dict[str, Any]:
    """A link with 20 Mbit/s and 10 ms in each direction. `forward`, `return_`, `both`: impairments; `loss`: of the
    forward direction."""
    plain = {"data_rate": 20_000_000, "delay": 0.01}
    return document(
        forward={**plain, "loss": loss, "impairments": forward or {}},
        return_={**plain, "impairments": return_ or {}},
        impairments=both,
    )


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One flow of datagrams: the arrived datagrams in the order of arrival, the numbers of the echoes that came back,
    and the link's truth."""

    sent: int
    numbers: list[int]
    intact: list[bool]
    sources: list[str]
    lengths: list[int]
    ecn: list[int]
    delays: list[float]
    echoed: list[int]
    truth: dict[str, Any]

    @property
    def missing(self) -> list[int]:
        return sorted(set(range(self.sent)) - set(self.numbers))


def flow(lane: Lane, link: dict[str, Any], *, to: str, echo: bool = False, **sending: object) -> Flow:
    """Runs a link with one flow to the client or to the server. `sending`: options of `datagrams.py send`."""
    receiver, sender = ("client", "server") if to in (CLIENT_V4, CLIENT_V6) else ("server", "client")
    options = [word for name, value in sending.items() for word in (f"--{name}", str(value))]
    flags = (["--echo"] if echo else []) + (["--ipv6"] if ":" in to else [])
    running = lane.link(link)
    receiving = subprocess.Popen(
        lane.enter(receiver, "python3", str(DATAGRAMS), "receive", "--port", "4000", *flags),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    _wait_for_port(lane, receiver)
    sender_process = subprocess.Popen(
        lane.enter(sender, "python3", str(DATAGRAMS), "send", "--to", to, "--port", "4000", *options),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    sent, received = finish(sender_process), finish(receiving)
    rows = received["datagrams"]
    numbers, intact, sources, lengths, ecn, delays = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 6
    )
    return Flow(
        sent=sent["sent"], numbers=numbers, intact=intact, sources=sources, lengths=lengths, ecn=ecn, delays=delays,
        echoed=sent["echoed"], truth=running.stop(),
    )  # fmt: skip


def _wait_for_port(lane: Lane, end: str) -> None:
    """Waits until a receiver listens on UDP port 4000."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        if ":0FA0 " in lane.inside(end, "cat", "/proc/net/udp", "/proc/net/udp6"):
            return
        time.sleep(0.05)
    raise RuntimeError("the receiver did not open its port within 20 s")


def longest_run(numbers: list[int]) -> int:
    """The longest run of consecutive numbers."""
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    return max((len(list(run)) for _, run in runs), default=0)


def check_corruption(lane: Lane) -> list[Finding]:
    """30 % of the packets are corrupted, at most 3 in a row, and all of them are delivered with a right checksum."""
    findings = []
    impairment = {"corruption": 0.3, "burst": 3}
    for to, way, link in (
        (CLIENT_V4, "forward", short(forward=impairment)),
        (SERVER_V6, "return", short(return_=impairment)),
    ):
        got = flow(lane, link, to=to, count=1000, length=333)
        # Packets are identified by their place, because corruption may have changed the number. The order is kept.
        broken = [place for place, intact in enumerate(got.intact) if not intact]
        counted = got.truth[way]["corrupted"]
        findings.append(
            Finding(
                name=f"corrupted packets arrive, {way} to {to}",
                passed=len(got.intact) == got.sent
                and len(broken) == counted
                and 180 < counted < 340
                and longest_run(broken) == 3,
                measured=f"{len(broken)} of {got.sent} changed, truth {counted}, longest run {longest_run(broken)}, "
                f"{got.sent - len(got.intact)} missing",
            )
        )
    return findings


def check_losses(lane: Lane) -> list[Finding]:
    """The right packets are lost with a loss list, with a limit of bursts, and with the two states."""
    listed = flow(lane, short(return_={"loss_list": [[2, 7], [10, 10]]}), to=SERVER_V4, count=20)
    limited = flow(lane, short(loss=0.5, forward={"burst": 3}), to=CLIENT_V6, count=1000)
    states = short(forward={"gilbert_elliott": [0.05, 0.5]})
    bursts = flow(lane, states, to=CLIENT_V4, count=4000, interval=0.001)
    share, runs = len(bursts.missing) / bursts.sent, _runs(bursts.missing)
    mean = len(bursts.missing) / max(1, runs)
    return [
        Finding(
            name="losses of a list",
            passed=listed.missing == [1, 2, 3, 4, 5, 6, 9] and listed.truth["return"]["dropped_loss"] == 7,
            measured=f"{[number + 1 for number in listed.missing]}",
        ),
        Finding(
            name="bursts of at most 3",
            passed=longest_run(limited.missing) == 3 and len(limited.missing) > 300,
            measured=f"{len(limited.missing)} of {limited.sent} lost, longest run {longest_run(limited.missing)}",
        ),
        Finding(
            name="Gilbert-Elliott 0.05, 0.5",
            passed=0.06 < share < 0.13 and 1.6 < mean < 2.5,
            measured=f"{share:.1%} lost (9.1 %), {mean:.2f} packets a burst (2)",
        ),
    ]


def _runs(numbers: list[int]) -> int:
    return sum(number - 1 not in numbers for number in numbers)


def check_outage(lane: Lane) -> list[Finding]:
    """No packet passes for 0.6 s, from 0.5 s after the first short header on. Without a short header all packets
    pass."""
    findings = []
    for name, first, expected in (
        ("after a 1-RTT packet", "0x40", 60),
        ("after a 1-RTT packet with a greased fixed bit", "0x00", 60),
        ("without a 1-RTT packet", "0xc0", 0),
    ):
        link = short(outage={"start": 0.5, "duration": 0.6})
        got = flow(lane, link, to=CLIENT_V6, count=200, interval=0.01, first=first)
        dropped = got.truth["forward"]["dropped_outage"]
        where = (got.missing[0], got.missing[-1]) if got.missing else None
        right = abs(dropped - expected) <= 2 and longest_run(got.missing) == len(got.missing) == dropped
        findings.append(
            Finding(
                name=f"outage {name}",
                passed=right and balanced(got.truth["forward"]),
                measured=f"{dropped} dropped, {where} missing, first 1-RTT packet at {got.truth['first_1rtt_s']}",
            )
        )
    return findings


def check_mtu_fall(lane: Lane) -> list[Finding]:
    """Packets longer than the new MTU are dropped; other packets are not."""
    sizes = {1200: 0, 1300: 150}
    findings = []
    for length, expected in sizes.items():
        link = short(mtu_fall={"size": 1280, "start": 0.5})
        got = flow(lane, link, to=CLIENT_V4, count=200, interval=0.01, length=length)
        dropped = got.truth["forward"]["dropped_mtu"]
        findings.append(
            Finding(
                name=f"MTU falls to 1280, {length} bytes of payload",
                passed=abs(dropped - expected) <= 2 and len(got.missing) == dropped,
                measured=f"{dropped} of {got.sent} dropped",
            )
        )
    return findings


def check_rebinding(lane: Lane) -> list[Finding]:
    """The server sees new ports, or new addresses, and all its answers reach the client."""
    findings = []
    for what, to in (("port", SERVER_V4), ("port", SERVER_V6), ("address", SERVER_V4), ("address", SERVER_V6)):
        link = short(rebinding={"what": what, "first": 0.3, "every": 0.5})
        got = flow(lane, link, to=to, echo=True, count=150, interval=0.01)
        sources = list(dict.fromkeys(got.sources))
        mappings = got.truth["mappings"]
        ports = len({source.split()[1] for source in sources})
        hosts = len({source.split()[0] for source in sources})
        right = (ports, hosts) == ((4, 1) if what == "port" else (1, 4))
        findings.append(
            Finding(
                name=f"rebinding of the {what} towards {to}",
                passed=right and len(mappings) == 3 and sorted(got.echoed) == list(range(150)) and all(got.intact),
                measured=f"{' → '.join(sources)}; {len(got.echoed)} of {got.sent} answers, {len(mappings)} mappings",
            )
        )
    return findings


def check_order(lane: Lane) -> list[Finding]:
    """Jitter keeps the order unless `overtaking` is true. Other packets overtake packets that are held back."""
    steady = flow(lane, short(forward={"jitter": 0.05}), to=CLIENT_V4, count=300)
    loose = flow(lane, short(forward={"jitter": 0.05}, overtaking=True), to=CLIENT_V4, count=300)
    held = flow(lane, short(forward={"reorder": 0.1, "reorder_delay": 0.03}), to=CLIENT_V4, count=500)
    late = sum(later < earlier for earlier, later in itertools.pairwise(held.numbers))
    counted = held.truth["forward"]["held_back"]
    return [
        Finding(
            name="jitter in order",
            passed=steady.numbers == sorted(steady.numbers) and max(steady.delays) > 0.04,
            measured=f"delay {min(steady.delays) * 1e3:.0f} to {max(steady.delays) * 1e3:.0f} ms, in order",
        ),
        Finding(
            name="jitter that overtakes",
            passed=loose.numbers != sorted(loose.numbers) and not loose.missing,
            measured=f"{sum(b < a for a, b in itertools.pairwise(loose.numbers))} of {loose.sent} out of order",
        ),
        Finding(
            name="10 % held back by 30 ms",
            passed=30 < counted < 75 and 0 < late <= counted and not held.missing,
            measured=f"{counted} held back, {late} times a number fell, nothing lost",
        ),
    ]


def check_marking(lane: Lane) -> list[Finding]:
    """A queue with 10 or more packets marks ECT packets, and no other packets."""
    findings = []
    for name, to, ecn in (("ECT(0)", CLIENT_V4, 2), ("ECT(0) on IPv6", CLIENT_V6, 2), ("not ECT", CLIENT_V4, 0)):
        link = document(
            forward={"data_rate": 2_000_000, "delay": 0.01, "impairments": {"mark_packets": 10}},
            return_={"data_rate": 20_000_000, "delay": 0.01},
        )
        got = flow(lane, link, to=to, count=300, interval=0.003, length=1200, ecn=ecn)
        marked, counted = got.ecn.count(CE), got.truth["forward"]["marked"]
        right = marked == counted and (counted > 50 if ecn else counted == 0) and not got.missing
        findings.append(
            Finding(name=f"CE for {name}", passed=right, measured=f"{marked} of {got.sent}, truth {counted}")
        )
    return findings


def check_changes(lane: Lane) -> list[Finding]:
    """Delay, data rate and loss change at their times. When the delay becomes shorter, no packet overtakes another."""
    steps = [
        (when, delay, 20_000_000, loss, False)
        for when, delay, loss in ((0.5, 0.06, 0.0), (1.0, 0.01, 0.0), (1.5, 0.01, 1.0))
    ]
    got = flow(lane, short(forward={"changes": steps}), to=CLIENT_V4, count=200, interval=0.01)
    windows = [
        [d for n, d in zip(got.numbers, got.delays, strict=True) if low <= n < high]
        for low, high in ((5, 45), (55, 90), (110, 145))
    ]
    medians = [sorted(window)[len(window) // 2] for window in windows]
    right = all(abs(median - wanted) < 0.02 for median, wanted in zip(medians, (0.01, 0.06, 0.01), strict=True))
    lost = [number for number in got.missing if number >= 152]
    return [
        Finding(
            name="changes of delay and loss",
            passed=right and got.numbers == sorted(got.numbers) and len(lost) == 48,
            measured=f"{' → '.join(f'{median * 1e3:.1f} ms' for median in medians)}, then {len(lost)} of 48 lost",
        )
    ]


CHECKS: dict[str, Callable[[Lane], list[Finding]]] = {
    "corruption": check_corruption,
    "losses": check_losses,
    "outage": check_outage,
    "mtu-fall": check_mtu_fall,
    "rebinding": check_rebinding,
    "order": check_order,
    "marking": check_marking,
    "changes": check_changes,
}
