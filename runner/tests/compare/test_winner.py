"""The best of several groups of times: its lead with an interval, and the answer when there are too few times."""

from math import inf

from runner.compare.rankings import winners

SLOW, FAST = [4.0, 4.1, 4.2, 4.3], [2.0, 2.1, 2.2, 2.3]


def test_the_lowest_wins_and_the_lead_is_in_parts_of_the_runner_up() -> None:
    (winner,) = winners([{"a": SLOW, "b": FAST, "c": [9.0]}])
    assert winner is not None and winner.lead is not None
    assert (winner.name, winner.second, winner.n, winner.lead.reference_n) == ("b", "a", 4, 4)
    assert winner.lead.change is not None and abs(winner.lead.change - (2.15 / 4.15 - 1)) < 1e-12
    assert winner.lead.low is not None and winner.lead.high is not None
    assert winner.lead.low < winner.lead.change < winner.lead.high
    assert winner.lead.certain and winner.lead.doubt == ""


def test_three_values_can_t_tell_anybody_apart() -> None:
    (winner,) = winners([{"a": SLOW[:3], "b": FAST[:3]}])
    assert winner is not None and winner.lead is not None
    assert winner.lead.q is None and not winner.lead.certain
    assert winner.lead.doubt == "too few iterations: n 3 and 3, 4 of each are needed"


def test_many_questions_at_once_make_each_answer_weaker() -> None:
    mixed = {"a": [1.0, 2.0, 3.0, 4.1], "b": [1.1, 2.1, 2.9, 4.0]}
    answers = winners([{"a": SLOW, "b": FAST}, mixed, mixed, mixed, {"a": [4.0], "b": [2.0]}])
    first, *others, last = (answer.lead for answer in answers if answer is not None)
    assert first is not None and last is not None and first.q is not None
    assert first.q == 4 * first.p  # the group with too few values is not counted
    assert first.doubt.startswith("no significant difference, q 0.11")
    assert all(other is not None and not other.certain for other in others)
    assert last.low is None and last.high is None


def test_one_alone_has_no_lead_and_none_no_winner() -> None:
    alone, nobody = winners([{"a": [1.0, 2.0], "b": []}, {"a": []}])
    assert alone is not None and alone.lead is None and alone.second == ""
    assert nobody is None


def test_nobody_wins_by_the_attempts_that_he_lost() -> None:
    fragile, steady = [*SLOW, inf, inf, inf, inf, inf], [5.0 + 0.1 * step for step in range(9)]
    (winner,) = winners([{"fragile": fragile, "steady": steady}])
    assert winner is not None and winner.lead is not None
    assert (winner.name, winner.second, winner.lead.change) == ("steady", "fragile", None)
    assert winner.lead.doubt == "which failed in most attempts"
    assert winners([{"a": [inf, inf], "b": [inf]}]) == [None]


def test_an_interval_needs_four_of_each_and_is_that_of_the_ratio() -> None:
    (few,) = winners([{"a": SLOW[:3], "b": FAST}])
    assert few is not None and few.lead is not None and (few.lead.low, few.lead.high) == (None, None)
    (times,) = winners([{"a": SLOW, "b": FAST}])
    # With 4 and 4 no shift within the range of all differences is refuted at 5 %.
    assert times is not None and times.lead is not None
    assert times.lead.low is not None and times.lead.high is not None
    assert abs(times.lead.high - (2.3 / 4.0 - 1)) < 1e-12 and abs(times.lead.low - (2.0 / 4.3 - 1)) < 1e-12
