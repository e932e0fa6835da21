"""Groups of times against one of them."""

from math import inf

import pytest

from runner.stats.versus import versus

SLOW, FAST = [5.0, 5.1, 5.2, 5.3, 5.4], [2.5, 2.6, 2.7, 2.8, 2.9]


def test_half_the_time_is_minus_half() -> None:
    (found,) = versus([{"vpn": SLOW, "pep": FAST}], "vpn")
    one = found["pep"]
    assert one.change == pytest.approx(2.7 / 5.2 - 1)
    assert one.change is not None and one.low is not None and one.high is not None
    assert one.low < one.change < one.high < 0 and one.certain


def test_the_same_times_are_told_apart_by_nobody() -> None:
    (found,) = versus([{"vpn": SLOW, "pep": SLOW}], "vpn")
    assert (found["pep"].change, found["pep"].certain) == (0.0, False)


def test_who_fails_most_attempts_has_lost_however_fast_the_others_were() -> None:
    (found,) = versus([{"vpn": SLOW, "pep": [*FAST[:2], inf, inf, inf]}], "vpn")
    assert (found["pep"].change, found["pep"].lost, found["pep"].low) == (None, True, None)
    (found,) = versus([{"vpn": [*FAST[:2], inf, inf, inf], "pep": SLOW}], "vpn")
    assert (found["pep"].change, found["pep"].lost) == (None, False)


def test_one_failure_counts_as_the_longest_time() -> None:
    (found,) = versus([{"vpn": SLOW, "pep": [*FAST[:4], inf]}], "vpn")
    assert found["pep"].change == pytest.approx(2.7 / 5.2 - 1)
    assert found["pep"].p == pytest.approx(versus([{"vpn": SLOW, "pep": [*FAST[:4], 99.0]}], "vpn")[0]["pep"].p)


def test_a_question_without_the_reference_has_no_answer() -> None:
    assert versus([{"vpn": [], "pep": FAST}, {"pep": FAST}], "vpn") == [{}, {}]


def test_few_values_get_no_q_and_many_questions_a_larger_one() -> None:
    few, one, two = versus(
        [{"vpn": SLOW[:2], "pep": FAST[:2]}, {"vpn": SLOW, "pep": FAST}, {"vpn": SLOW, "pep": SLOW}], "vpn"
    )
    assert few["pep"].q is None
    assert one["pep"].q == pytest.approx(2 * one["pep"].p)
    assert two["pep"].q == pytest.approx(1.0)
