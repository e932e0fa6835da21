"""Groups of times, compared with one reference group."""

from math import inf, log

import pytest

from runner.compare.rankings import versus
from runner.compare.stats import signed_rank_test

SLOW, FAST = [5.0, 5.1, 5.2, 5.3, 5.4], [2.5, 2.6, 2.7, 2.8, 2.9]


def test_half_the_time_is_minus_half() -> None:
    (comparison,) = versus([{"vpn": SLOW, "pep": FAST}], "vpn")
    pep = comparison["pep"]
    assert pep.change == pytest.approx(2.7 / 5.2 - 1)
    assert pep.change is not None and pep.low is not None and pep.high is not None
    assert pep.low < pep.change < pep.high < 0 and pep.certain


def test_equal_times_do_not_differ() -> None:
    (comparison,) = versus([{"vpn": SLOW, "pep": SLOW}], "vpn")
    assert (comparison["pep"].change, comparison["pep"].certain) == (0.0, False)


def test_who_fails_most_attempts_has_lost_however_fast_the_others_were() -> None:
    (comparison,) = versus([{"vpn": SLOW, "pep": [*FAST[:2], inf, inf, inf]}], "vpn")
    assert (comparison["pep"].change, comparison["pep"].lost, comparison["pep"].low) == (None, True, None)
    (comparison,) = versus([{"vpn": [*FAST[:2], inf, inf, inf], "pep": SLOW}], "vpn")
    assert (comparison["pep"].change, comparison["pep"].lost) == (None, False)


def test_one_failure_counts_as_the_longest_time() -> None:
    (comparison,) = versus([{"vpn": SLOW, "pep": [*FAST[:4], inf]}], "vpn")
    assert comparison["pep"].change == pytest.approx(2.7 / 5.2 - 1)
    assert comparison["pep"].p == pytest.approx(versus([{"vpn": SLOW, "pep": [*FAST[:4], 99.0]}], "vpn")[0]["pep"].p)


def test_a_question_without_the_reference_has_no_answer() -> None:
    assert versus([{"vpn": [], "pep": FAST}, {"pep": FAST}], "vpn") == [{}, {}]


def test_few_values_get_no_q_and_many_questions_a_larger_one() -> None:
    few, single, two = versus(
        [{"vpn": SLOW[:2], "pep": FAST[:2]}, {"vpn": SLOW, "pep": FAST}, {"vpn": SLOW, "pep": SLOW}], "vpn"
    )
    assert few["pep"].q is None
    assert single["pep"].q == pytest.approx(2 * single["pep"].p)
    assert two["pep"].q == pytest.approx(1.0)


WEATHER = [4.0, 9.0, 5.0, 20.0, 6.0, 12.0, 7.0]
BETTER = [0.9 * time for time in WEATHER]


def test_pairs_show_what_the_weather_hides() -> None:
    questions = [{"vpn": WEATHER, "pep": BETTER}]
    (alone,), (paired,) = (
        versus(questions, "vpn"),
        versus(questions, "vpn", [{"pep": [*zip(BETTER, WEATHER, strict=True)]}]),
    )
    pep = paired["pep"]
    assert not alone["pep"].certain and pep.certain and pep.pairs == 7
    assert [pep.change, pep.low, pep.high] == pytest.approx([-0.1] * 3)


@pytest.mark.parametrize("count", [3, 5])
def test_few_pairs_leave_the_rank_test(count: int) -> None:
    pairs = [*zip(BETTER, WEATHER, strict=True)][:count]
    (comparison,) = versus([{"vpn": WEATHER, "pep": BETTER}], "vpn", [{"pep": pairs}])
    assert comparison["pep"].pairs is None and comparison["pep"].q is not None


def test_pairs_of_failures_count_as_the_longest_difference_and_two_failures_as_none() -> None:
    pairs = [(inf, 4.0), (inf, 5.0), *((3.0, 3.1 + step) for step in range(8)), (inf, inf)]
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    (comparison,) = versus([{"vpn": theirs, "pep": ours}], "vpn", [{"pep": pairs}])
    pep = comparison["pep"]
    assert (pep.pairs, pep.low, pep.lost) == (11, None, False)
    finite = [log(ours / theirs) for ours, theirs in pairs[2:10]]
    assert pep.p == pytest.approx(signed_rank_test([inf, inf, *finite, 0.0]))
