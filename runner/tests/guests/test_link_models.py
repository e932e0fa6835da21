"""Models of the link, measured by endpoints in virtual time, where the load of this host changes no time."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import docker
import pytest

from runner.check import link_selftest
from runner.model.link import Dama, LinkChange, LinkImpairments, LinkParameters, LinkRecord
from runner.places.guests.guests import GuestHost

pytestmark = [pytest.mark.docker, pytest.mark.slow]

WAY = LinkParameters(data_rate=20_000_000, delay=0.01, queue_packets=100_000, loss=0.0)
MARKED = 3  # CE
_RECORD = struct.Struct("<QIIBBHHH")  # sim/README.md: of the packet log

Measure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def measure(lanes: GuestHost, engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """Sends a flow over a link with this forward direction. Returns the packets that arrived, the forward direction's
    truth, and the time at which the first packet left the return direction's transmitter."""
    engine.images.build(path=str(link_selftest.IMAGE.context), tag=link_selftest.IMAGE.tag, rm=True)

    def run(forward: LinkParameters, **flow: Any) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("model") / "job"
        link = LinkRecord.single("model", forward, WAY)
        sent = link_selftest.TestFlow(echoes=0, each=True, **flow)
        measured = link_selftest.measure_flow(lanes, folder, link, sent, seed=4)
        return {**measured, "began": _began(folder / "sim" / "packets.bin")}

    return run


def _began(log: Path) -> float:
    data = log.read_bytes()
    (origin,) = struct.unpack_from("<Q", data, 8)
    enqueued, _, _, direction, event, _, length, _ = _RECORD.unpack_from(data, 16)
    assert (direction, event) == (1, 0), "the client's request is the first packet"
    return float((origin + enqueued) / 1e9 + length * 8 / WAY.data_rate)


def ideal(sent: list[float], size: int, changes: list[LinkChange]) -> list[float]:
    """The arrivals that an ideal link has: every bit takes the time of the data rate of its moment, and a packet takes
    the delay of the moment at which it leaves. Times in seconds since the changes began, `size` in bytes."""
    ends = [*(change.time for change in changes[1:]), float("inf")]
    at, now, arrivals = 0, 0.0, [0.0]
    for time in sent:
        now, left = max(now, time), 8.0 * size
        while True:
            while ends[at] <= now:
                at += 1
            rate = changes[at].data_rate
            if rate and now + left / rate < ends[at]:
                now += left / rate
                break
            left, now = left - (ends[at] - now) * rate, ends[at]
        arrivals.append(max(arrivals[-1], now + changes[at].delay))
    return arrivals[1:]


def test_a_trace_is_replayed_exactly(measure: Measure) -> None:
    """100 changes of delay and data rate a second; for 0.1 s the data rate is 0. The packets of 1,200 bytes are at most
    0.1 % of a second's."""
    random = Random(4)
    changes = [
        LinkChange(n / 100, 0.02 + 0.03 * random.random(), random.randrange(10_000_000, 30_000_000)) for n in range(900)
    ]
    changes[90:100] = [change._replace(data_rate=0) for change in changes[90:100]]
    way = replace(WAY, impairments=LinkImpairments(changes=tuple(changes)))
    got = measure(way, rate=40e6, ip_length=1200, count=12_000)
    packets = got["flow"]["packets"]
    assert [packet[0] for packet in packets] == list(range(12_000))
    arrived = [packet[2] / 1e9 - got["began"] for packet in packets]
    sent = [packet[1] / 1e9 - got["began"] for packet in packets]
    expected = ideal(sent, 1200, changes)
    apart = sorted(abs(one - other) for one, other in zip(arrived, expected, strict=True))
    assert apart[int(0.99 * len(apart))] <= 0.0005
    moved = [
        ideal(sent, 1200, [change._replace(time=change.time + late) for change in changes])
        for late in (-0.002, -0.0001, 0.0001, 0.002)
    ]
    for times in zip(arrived, expected, *moved, strict=True):
        assert min(times[1:]) - 0.0005 <= times[0] <= max(times[1:]) + 0.0005, "every change happens within 2 ms"
    first = expected[0]
    for second in range(int(expected[-1] - first)):
        carried, ought = (
            sum(first + second <= time < first + second + 1 for time in times) for times in (arrived, expected)
        )
        assert abs(carried - ought) <= max(1, 0.001 * ought)


@pytest.mark.parametrize("rate", [250_000_000, 1_000_000_000])
def test_high_data_rates_are_exact(measure: Measure, rate: int) -> None:
    """One second of packets at 1.3 times the data rate: the data rate within 0.1 %, the delays within 0.5 ms."""
    got = measure(replace(WAY, data_rate=rate), rate=1.3 * rate, ip_length=1500, count=rate // 12_000)
    packets = got["flow"]["packets"]
    assert got["flow"]["rate_bps"] == pytest.approx(rate, rel=0.001) and len(packets) == rate // 12_000
    sent, arrived = ([packet[side] / 1e9 - got["began"] for packet in packets] for side in (1, 2))
    expected = ideal(sent, 1500, [LinkChange(0.0, WAY.delay, rate)])
    apart = sorted(abs(one - other) for one, other in zip(arrived, expected, strict=True))
    assert apart[int(0.99 * len(apart))] <= 0.0005


@pytest.mark.parametrize(
    ("capacity", "shortest", "longest", "waited"),
    [
        (Dama(superframe=0.04, grant_delay=0.2, vbdc=True), 0.2, 0.28, 8),
        (Dama(superframe=0.04, grant_delay=0.2, cra=1_000_000, vbdc=False), 0.0, 0.06, 0),
    ],
    ids=["asked for", "constant"],
)
def test_after_a_silence_a_packet_waits_for_its_grant(
    measure: Measure, capacity: Dama, shortest: float, longest: float, waited: int
) -> None:
    got = measure(
        replace(WAY, impairments=LinkImpairments(dama=capacity)), rate=8 * 1200 / 0.7, ip_length=1200, count=8
    )
    delays = [(arrived - sent) / 1e9 - WAY.delay for _, sent, arrived, _, _ in got["flow"]["packets"]]
    assert len(delays) == 8 and shortest <= min(delays) and max(delays) <= longest
    assert got["truth"]["waited_grant"] == waited


def test_capacity_on_demand_carries_what_it_grants(measure: Measure) -> None:
    """A flow of 1 Mbit/s asks for a rate: from the first grant on it flows at this rate. With a largest rate of 0.5
    Mbit/s and no volume, half of it does."""
    for rbdc, share in ((2_000_000, 1.0), (500_000, 0.5)):
        capacity = Dama(superframe=0.04, grant_delay=0.2, rbdc=rbdc, vbdc=False)
        got = measure(replace(WAY, impairments=LinkImpairments(dama=capacity)), rate=1e6, ip_length=1000, count=1250)
        assert got["flow"]["rate_bps"] == pytest.approx(share * 1e6, rel=0.03)


def test_losses_of_a_handover_are_counted_apart(measure: Measure) -> None:
    changes = (LinkChange(0.5, 0.01, 20_000_000, 1.0, True), LinkChange(1.0, 0.01, 20_000_000, 0.0, False))
    got = measure(
        replace(WAY, impairments=LinkImpairments(changes=changes)), rate=8 * 1200 / 0.01, ip_length=1200, count=200
    )
    truth = got["truth"]
    missing = set(range(200)) - {packet[0] for packet in got["flow"]["packets"]}
    assert len(missing) == truth["dropped_handover"] and abs(len(missing) - 50) <= 1
    assert truth["dropped_loss"] == 0
    gone = [got["began"] + edge for edge in (0.5, 1.0)]  # losses are those of packets that would arrive then
    times = [packet[2] / 1e9 for packet in got["flow"]["packets"]]
    assert not [time for time in times if gone[0] + 0.001 < time < gone[1] - 0.001]


@pytest.mark.parametrize(
    ("discipline", "ecn"),
    [
        ("drop-tail", 2),
        ("codel", 0),
        ("codel", 2),
        ("fq-codel", 0),
        ("fq-codel", 2),
        ("dualpi2", 0),
        ("dualpi2", 1),
        ("dualpi2", 2),
    ],
)
def test_a_managed_queue_marks_or_drops(measure: Measure, discipline: str, ecn: int) -> None:
    """At 1.3 times the data rate, CoDel, FQ-CoDel and DualPI2 mark ECT packets, and drop others to keep the delay
    short. The truth counts all of it."""
    way = replace(WAY, data_rate=2_000_000, queue_packets=500, queue_discipline=discipline)
    got = measure(way, rate=2.6e6, ip_length=1200, count=2000, ecn=ecn)
    truth, packets = got["truth"], got["flow"]["packets"]
    marked = sum(packet[4] == MARKED for packet in packets)
    delays = [(arrived - sent) / 1e9 for _, sent, arrived, _, _ in packets]
    assert marked == truth["marked"] and len(packets) == 2000 - truth["dropped_queue"]
    assert (marked > 0) == (discipline != "drop-tail" and ecn > 0)
    if discipline != "drop-tail" and not ecn:
        assert truth["dropped_queue"] > 0 and sorted(delays)[len(delays) // 2] < 1.0
