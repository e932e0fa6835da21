"""Verdicts of the link's self-test on numbers at their limits, and the self-test itself in a real lane."""

from typing import Any

import pytest

from runner.check import link_selftest
from runner.check.link_selftest import FORWARD_RATE, LOSS_FLOW, RTT_ERROR

IDEAL = 0.6 + 84 * 8 / 20e6 + 84 * 8 / 2e6


def measured(
    *, rtt: float = IDEAL, rate: float = FORWARD_RATE, dropped: int = 100, received: int | None = None
) -> dict[str, Any]:
    arrived = LOSS_FLOW.count - dropped if received is None else received
    return {
        "rtt_samples_s": [rtt, rtt - 0.1, rtt + 0.3],
        "flow": {"rate_bps": rate, "received": arrived},
        "truth": {"packets_in": LOSS_FLOW.count, "dropped_loss": dropped},
    }


@pytest.mark.parametrize(("error", "ok"), [(0.0, True), (0.9, True), (1.1, False), (-0.9, True), (-1.1, False)])
def test_rtt_is_judged_by_the_worst_lane(error: float, ok: bool) -> None:
    lanes = [measured(), measured(rtt=IDEAL + error * RTT_ERROR), measured()]
    assert link_selftest._rtt(3, lanes).ok is ok


def test_lane_without_echoes_is_no_rtt() -> None:
    assert not link_selftest._rtt(2, [measured(), measured() | {"rtt_samples_s": []}]).ok


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (1.009, True), (0.991, True), (1.011, False), (0.0, False)])
def test_rate_is_judged_by_the_worst_lane(factor: float, ok: bool) -> None:
    assert link_selftest._rate(2, [measured(), measured(rate=factor * FORWARD_RATE)]).ok is ok


@pytest.mark.parametrize(
    ("dropped", "ok"), [(100, True), (75, True), (125, True), (73, False), (127, False), (0, False)]
)
def test_loss_is_judged_by_its_interval(dropped: int, ok: bool) -> None:
    """n = 10 000, p = 0.01: 99 % of all runs drop 100 ± 25.6 packets."""
    assert link_selftest._loss(2, [measured(), measured(dropped=dropped)]).ok is ok


def test_packets_that_only_the_endpoint_lost_are_no_loss_of_the_link() -> None:
    check = link_selftest._loss(1, [measured(dropped=100, received=LOSS_FLOW.count - 130)])
    assert not check.ok
    assert check.what.endswith("30 more lost by an endpoint that waited for a CPU")


@pytest.mark.docker
@pytest.mark.slow
def test_link_keeps_its_promises_in_a_lane() -> None:
    checks = link_selftest.selftest(lanes=1, progress=lambda _: None)
    assert [check.name for check in checks] == ["RTT, 1 lane", "data rate, 1 lane", "loss, 1 lane"]
    rtt, rate, loss = (float(check.what.split()[0].rstrip("%")) for check in checks)
    # A machine shared with others makes endpoints wait. What it can't do: make the link faster, forget a delay or
    # change which packets a seed drops.
    assert abs(rtt) < 20, checks[0].what
    assert -20 < rate < 1, checks[1].what
    assert abs(loss - 1.0) < 0.26, checks[2].what
