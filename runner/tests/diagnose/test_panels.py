"""What the plots show of a made transfer is what was set."""

from typing import Any

import numpy as np

from runner.diagnose.panels import Panels
from runner.tests.diagnose.made import Cause, Made

RTT = 2 * Cause().delay


def panels(cause: Cause) -> Panels:
    found = Made(cause).explained().panels
    assert found is not None
    return found


def test_a_capped_window_is_what_is_in_flight() -> None:
    found = panels(Cause(cap=60_000))
    assert 55_000 < found.in_flight.max() <= 66_000
    assert found.rtt.min() >= RTT - 1e-6
    assert found.in_flight[0] == 0.0
    assert np.all(found.queue >= -1e-9)


def test_the_receive_window_is_the_ceiling_and_is_not_passed() -> None:
    found = panels(Cause(receive_window=100_000, cap=100_000))
    known = found.in_flight > 0
    assert np.all(found.ceiling >= found.in_flight)
    assert np.median(found.ceiling[known]) < 130_000
    assert np.all(panels(Cause(receive_window=1 << 50, cap=60_000)).ceiling > 1 << 34)


def test_a_full_queue_shows_in_delay_and_rtt() -> None:
    empty, full = panels(Cause(cap=60_000)), panels(Cause(cap=600_000, size=4_000_000))
    assert empty.queue.max() < 0.1 * full.queue.max()
    assert full.rtt.max() > RTT + 0.5 * full.queue.max()


def _summed(values: list[int]) -> list[int]:
    return [int(one) for one in np.cumsum(values)]


def _repeated(values: list[int]) -> list[int]:
    return [int(one) for one in np.repeat(values[::2], values[1::2])]


def test_the_document_says_the_same() -> None:
    found = panels(Cause(receive_window=100_000, cap=100_000, back=20))
    document: dict[str, Any] = found.document()
    packets = document["packets"]
    assert _summed(_repeated(packets["number"])) == found.packet_number.tolist()
    assert _repeated(packets["length"]) == found.packet_length.tolist()
    assert np.allclose(np.array(_summed(packets["t_us"])) / 1e6, found.packet_time, atol=1e-6)
    assert len(document["rtt"]["t_us"]) == len(document["rtt"]["us"]) == len(found.rtt)
    assert len(document["in_flight"]["bytes"]) == len(document["in_flight"]["ceiling"])
    unlimited: dict[str, Any] = panels(Cause(receive_window=1 << 50, cap=60_000)).document()
    assert unlimited["in_flight"]["ceiling"] == []
