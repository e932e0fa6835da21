"""Clocks and conditions from probes that are made by the numbers: what was put in must come out."""

import random

import numpy as np
import pytest

from runner.engine.containers import ContainerState
from runner.places.links.reach import clock, judge, probing, settled
from runner.plan.link_traces import ProbeExchange, parse_probes

BEGAN = 1_790_000_000.0  # seconds since 1970 by the server's clock


def _exchanges(
    *,
    seconds: float = 60.0,
    offset: float = 0.0,
    drift: float = 0.0,
    rtt: float = 0.6,
    queue: float = 0.0,
    loss: float = 0.0,
    down: tuple[float, float] = (0.0, 0.0),
    seed: int = 1,
) -> list[ProbeExchange]:
    """5 probes a second over equal ways; `queue`: most seconds of waiting on the forward one between 10 and 50 s."""
    dice = random.Random(seed)
    made = []
    for step in range(int(seconds * 5)):
        at = BEGAN + step / 5

        def ahead(time: float) -> float:
            return time + offset + drift * (time - BEGAN)

        there = at + rtt / 2 + dice.uniform(0, 0.0005)
        waited = dice.uniform(0, queue) if 10 < step / 5 < 50 else 0.0
        back = there + rtt / 2 + waited + dice.uniform(0, 0.0005)
        lost = dice.random() < loss or down[0] <= step / 5 < down[1]
        times = (there, there, ahead(back))
        made.append(
            ProbeExchange(sent=round(ahead(at) * 1e9))
            if lost
            else ProbeExchange(sent=round(ahead(at) * 1e9), **_answer(*times))
        )
    return made


def _answer(received: float, replied: float, back: float) -> dict[str, int]:
    return {"received": round(received * 1e9), "replied": round(replied * 1e9), "back": round(back * 1e9)}


def _client(started: float, ended: float) -> ContainerState:
    return ContainerState(pid=1, exit_code=0, oom_killed=False, started=BEGAN + started, ended=BEGAN + ended)


@pytest.mark.parametrize("offset", [0.0, 2.5, -0.040, 3600.0])
@pytest.mark.parametrize("drift", [0.0, 40e-6, -200e-6])
def test_offset_and_drift_are_found_beside_a_full_queue_and_loss(offset: float, drift: float) -> None:
    estimate = clock(_exchanges(offset=offset, drift=drift, queue=0.4, loss=0.01))
    assert estimate is not None
    for moment in (0.0, 30.0, 60.0):
        truth = offset + drift * moment
        assert estimate.ahead(BEGAN + moment) == pytest.approx(truth, abs=0.001)
    assert estimate.uncertainty < 0.002
    assert estimate.bound == pytest.approx(0.3, rel=0.01)


def test_unequal_ways_shift_the_offset_within_the_bound() -> None:
    longer_return = [
        ProbeExchange(
            sent=_exchange.sent,
            received=(_exchange.received or 0) + 100_000_000,
            replied=(_exchange.replied or 0) + 100_000_000,
            back=(_exchange.back or 0) + 100_000_000,
        )
        for _exchange in _exchanges()
    ]
    estimate = clock(longer_return)
    assert estimate is not None
    assert abs(estimate.offset) == pytest.approx(0.05, abs=0.002)  # probes can't show an asymmetric delay
    assert abs(estimate.offset) < estimate.bound


def test_a_short_job_has_no_drift_and_nothing_has_no_clock() -> None:
    estimate = clock(_exchanges(seconds=8, offset=0.1))
    assert estimate is not None
    assert estimate.drift == 0.0
    assert clock([]) is None
    assert clock([ProbeExchange(sent=1)]) is None


def test_what_the_probe_wrote_is_read_though_it_was_cut_off() -> None:
    text = "s 0 1000\ns 1 2000\nr 0 1000 50 60 1500\ns 2 3000\nr 1 2000 5"
    assert parse_probes(text) == [
        ProbeExchange(sent=1000, received=50, replied=60, back=1500),
        ProbeExchange(sent=2000),
        ProbeExchange(sent=3000),
    ]
    assert parse_probes("nonsense\n\ns x y\n") == []


def test_answers_that_were_under_way_are_no_losses() -> None:
    exchanges = _exchanges(seconds=10)
    cut = [exchange if number < 47 else ProbeExchange(sent=exchange.sent) for number, exchange in enumerate(exchanges)]
    assert probing(settled(cut), 0, float("inf")).loss == 0
    assert probing(cut, 0, float("inf")).loss > 0


def test_phases_are_told_apart() -> None:
    observed = judge(_exchanges(queue=0.4, loss=0.05), _client(10.0, 50.0))
    assert observed.problem == ""
    assert observed.during is not None
    assert observed.after is not None
    assert observed.before.rtt_median == pytest.approx(0.6, rel=0.02)
    assert observed.during.rtt_median == pytest.approx(0.8, rel=0.1)
    assert np.isclose(observed.before.sent + observed.during.sent + observed.after.sent, 300)


@pytest.mark.parametrize(
    ("down", "problem"),
    [
        ((0.0, 10.0), "none of 50 probes was answered before the transfer"),
        ((5.0, 9.0), "40% of the probes were lost before the transfer"),
        ((20.0, 26.0), "no probe was answered for 6.2 s during the transfer, limit 3.0 s"),
        ((52.0, 57.0), "after the transfer"),
        ((20.0, 21.5), ""),
    ],
)
def test_a_link_that_was_down_is_told(down: tuple[float, float], problem: str) -> None:
    text = judge(_exchanges(rtt=0.1, down=down), _client(10.0, 50.0)).problem
    assert problem in text
    assert bool(problem) == bool(text)
