"""The slow-start bound against the published values and against a simulation packet by packet."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.link import LinkChange, LinkImpairments, LinkParameters
from runner.trace.measure import rate_bound, slow_start_bound
from runner.units import MIB

_DATAGRAM = 1200  # bytes of the smallest datagram size that QUIC allows (RFC 9000 §14)


def _way(rate: float, *changes: tuple[float, int]) -> LinkParameters:
    """One direction of a link without a delay. `changes`: seconds and the data rate from then on."""
    impairments = LinkImpairments(changes=tuple(LinkChange(time, 0.0, new) for time, new in changes))
    return LinkParameters(data_rate=rate, delay=0.0, queue_packets=1, loss=0.0, impairments=impairments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("packets", "percent"), [(10, 54), (32, 61)])
def test_10_mib_over_sat_as_published(packets: int, percent: int) -> None:
    bound = slow_start_bound(file_size=10 * MIB, way=_way(20e6), rtt=0.6, initial_window=packets * _DATAGRAM)
    assert round(100 * bound.efficiency) == percent


def test_a_file_within_the_initial_window_takes_its_serialisation() -> None:
    bound = slow_start_bound(file_size=10_000, way=_way(8e6), rtt=0.6, initial_window=12_000)
    assert bound.time == pytest.approx(0.01)
    assert bound.efficiency == pytest.approx(1)


def test_without_delay_the_rate_is_the_bound() -> None:
    bound = slow_start_bound(file_size=MIB, way=_way(1e6), rtt=0, initial_window=1)
    assert bound.time == pytest.approx(rate_bound(file_size=MIB, way=_way(1e6)).time)


def _ack_clocked(file_size: int, byte_rate: float, rtt: float, window: int, packet: int) -> float:
    """Seconds from the first byte's arrival to the last one's, when every acknowledged byte releases two."""
    acks: list[tuple[float, int]] = [(0.0, window)]  # (time at the sender, bytes that may be sent)
    link_free, sent, end = 0.0, 0, 0.0
    while sent < file_size:
        now, credit = heapq.heappop(acks)
        while credit >= packet and sent < file_size:
            size = min(packet, file_size - sent)
            link_free = max(link_free, now) + size / byte_rate
            heapq.heappush(acks, (link_free + rtt, 2 * packet))
            sent, credit, end = sent + size, credit - packet, link_free
    return end


@given(
    file_packets=st.integers(1, 3000),
    rate=st.floats(1e5, 1e8),
    rtt=st.floats(0.001, 2),
    window=st.integers(1, 100),
)
def test_no_ack_clocked_sender_beats_the_bound(file_packets: int, rate: float, rtt: float, window: int) -> None:
    size = file_packets * _DATAGRAM
    bound = slow_start_bound(file_size=size, way=_way(rate), rtt=rtt, initial_window=window * _DATAGRAM)
    simulated = _ack_clocked(size, rate / 8, rtt, window * _DATAGRAM, _DATAGRAM)
    assert simulated >= bound.time * (1 - 1e-9)
    # The simulated packet is acknowledged when it has arrived whole: one serialisation per round that fills no link.
    rounds = len(bound.line)
    assert simulated <= bound.time + rounds * _DATAGRAM * 8 / rate + 1e-9


@given(size=st.integers(1, 10**8), rate=st.floats(1e4, 1e9), rtt=st.floats(0, 3), window=st.integers(1, 10**6))
def test_the_line_is_monotone_and_ends_with_the_file(size: int, rate: float, rtt: float, window: int) -> None:
    bound = slow_start_bound(file_size=size, way=_way(rate), rtt=rtt, initial_window=window)
    times, sizes = zip(*bound.line, strict=True)
    assert list(times) == sorted(times)
    assert list(sizes) == sorted(sizes)
    assert (times[-1], sizes[-1]) == (bound.time, size)
    assert 0 < bound.efficiency <= 1 + 1e-12


@pytest.mark.parametrize("change", [{"file_size": 0}, {"data_rate": 0.0}, {"rtt": -1.0}, {"initial_window": 0}])
def test_nonsense_is_refused(change: dict[str, float]) -> None:
    arguments = {"file_size": 1, "data_rate": 1.0, "rtt": 0.0, "initial_window": 1} | change
    way = _way(arguments.pop("data_rate"))
    with pytest.raises(ValueError, match="positive"):
        slow_start_bound(way=way, **arguments)  # type: ignore[arg-type]


def test_the_bounds_of_a_link_whose_rate_changes() -> None:
    way = _way(8e6, (1.0, 16_000_000), (2.0, 0), (3.0, 8_000_000))  # 1 MB, 2 MB, nothing, then 1 MB/s
    assert [way.mean_rate(*times) for times in ((0, 1), (0, 2), (1.5, 2.5), (2, 3), (-1, 4))] == [
        8e6,
        12e6,
        8e6,
        0,
        8e6,
    ]
    full = rate_bound(file_size=4_000_000, way=way)
    assert full.line == ((0, 0), (1, 1e6), (2, 3e6), (3, 3e6), (4, 4e6))
    assert rate_bound(file_size=2_000_000, way=way, begin=1.5).time == pytest.approx(2.5)
    # The first round is half full: 50 kB are missing after 2 s, and come when the link carries packets again.
    bound = slow_start_bound(file_size=3_000_000, way=way, rtt=0.1, initial_window=50_000)
    assert bound.time == pytest.approx(3.05)
    assert bound.efficiency == pytest.approx(3 / 3.05)
    assert (
        slow_start_bound(file_size=8_000_000, way=_way(8e6, (1.0, 0)), rtt=0.1, initial_window=50_000).efficiency == 0
    )
