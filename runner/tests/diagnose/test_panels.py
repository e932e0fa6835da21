"""The curves of the plots agree with the settings of the transfer."""

from typing import Any

import numpy as np

from runner.diagnose.explain import Panels
from runner.tests.diagnose.made import Cause, Made

RTT = 2 * Cause().delay


def panels(cause: Cause) -> Panels:
    drawn = Made(cause).explained().panels
    assert drawn is not None
    return drawn


def test_a_capped_window_is_what_is_in_flight() -> None:
    drawn = panels(Cause(cap=60_000))
    assert 55_000 < drawn.in_flight.max() <= 66_000
    assert drawn.rtt.min() >= RTT - 1e-6
    assert drawn.in_flight[0] == 0.0
    assert np.all(drawn.queue >= -1e-9)


def test_the_receive_window_is_the_ceiling_and_is_not_passed() -> None:
    drawn = panels(Cause(receive_window=100_000, cap=100_000))
    known = drawn.in_flight > 0
    assert np.all(drawn.ceiling >= drawn.in_flight)
    assert np.median(drawn.ceiling[known]) < 130_000
    assert np.all(panels(Cause(receive_window=1 << 50, cap=60_000)).ceiling > 1 << 34)


def test_a_full_queue_shows_in_delay_and_rtt() -> None:
    empty, full = panels(Cause(cap=60_000)), panels(Cause(cap=600_000, size=4_000_000))
    assert empty.queue.max() < 0.1 * full.queue.max()
    assert full.rtt.max() > RTT + 0.5 * full.queue.max()


def _summed(values: list[int]) -> list[int]:
    return [int(value) for value in np.cumsum(values)]


def _repeated(values: list[int]) -> list[int]:
    return [int(value) for value in np.repeat(values[::2], values[1::2])]


def test_the_document_says_the_same() -> None:
    drawn = panels(Cause(receive_window=100_000, cap=100_000, back=20))
    document: dict[str, Any] = drawn.document()
    packets = document["packets"]
    assert _summed(_repeated(packets["number"])) == drawn.packet_number.tolist()
    assert _repeated(packets["length"]) == drawn.packet_length.tolist()
    assert np.allclose(np.array(_summed(packets["t_us"])) / 1e6, drawn.packet_time, atol=1e-6)
    assert len(document["rtt"]["t_us"]) == len(document["rtt"]["us"]) == len(drawn.rtt)
    assert len(document["in_flight"]["bytes"]) == len(document["in_flight"]["ceiling"])
    unlimited: dict[str, Any] = panels(Cause(receive_window=1 << 50, cap=60_000)).document()
    assert unlimited["in_flight"]["ceiling"] == []
