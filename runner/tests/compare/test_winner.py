"""The best of several groups: its margin with an interval, and the answer when there are too few values."""

from math import inf

from runner.compare.rankings import winners


def test_the_margin_is_in_parts_of_the_runner_up() -> None:
    (winner,) = winners([({"a": [4.0, 4.1, 4.2, 4.3], "b": [2.0, 2.1, 2.2, 2.3], "c": [1.0]}, False)])
    assert winner is not None
    assert (winner.name, winner.second, winner.n, winner.second_n) == ("a", "b", 4, 4)
    assert winner.margin is not None and abs(winner.margin - 4.15 / 2.15 + 1) < 1e-12
    assert winner.low is not None and winner.high is not None and winner.low < winner.margin < winner.high
    assert winner.certain and winner.doubt == ""


def test_of_times_the_lowest_wins() -> None:
    (winner,) = winners([({"a": [4.0, 4.1, 4.2, 4.3], "b": [2.0, 2.1, 2.2, 2.3]}, True)])
    assert winner is not None
    assert (winner.name, winner.second) == ("b", "a")
    assert winner.margin is not None and abs(winner.margin - (1 - 2.15 / 4.15)) < 1e-12


def test_three_values_can_t_tell_anybody_apart() -> None:
    (winner,) = winners([({"a": [4.0, 4.1, 4.2], "b": [2.0, 2.1, 2.2]}, False)])
    assert winner is not None
    assert winner.q is None and not winner.certain
    assert winner.doubt == "too few iterations: n 3 and 3, 4 of each are needed"


def test_many_questions_at_once_make_each_answer_weaker() -> None:
    clear = ({"a": [4.0, 4.1, 4.2, 4.3], "b": [2.0, 2.1, 2.2, 2.3]}, False)
    mixed = ({"a": [1.0, 2.0, 3.0, 4.1], "b": [1.1, 2.1, 2.9, 4.0]}, False)
    few = ({"a": [4.0], "b": [2.0]}, False)
    first, *others, last = winners([clear, mixed, mixed, mixed, few])
    assert first is not None and last is not None and first.p is not None and first.q is not None
    assert first.q == 4 * first.p  # the group with too few values is not counted
    assert first.doubt.startswith("no significant difference, q 0.11")
    assert all(other is not None and not other.certain for other in others)
    assert last.low is None and last.high is None


def test_one_alone_has_no_margin_and_none_no_winner() -> None:
    alone, nobody = winners([({"a": [1.0, 2.0], "b": []}, False), ({"a": []}, True)])
    assert alone is not None and alone.margin is None and alone.doubt == "" and not alone.certain
    assert nobody is None


def test_nobody_wins_by_the_attempts_that_he_lost() -> None:
    fragile, steady = [4.0, 4.1, 4.2, 4.3, inf, inf, inf, inf, inf], [5.0 + 0.1 * step for step in range(9)]
    (winner,) = winners([({"fragile": fragile, "steady": steady}, True)])
    assert winner is not None
    assert (winner.name, winner.second, winner.margin) == ("steady", "fragile", None)
    assert winner.doubt == "which failed in most attempts"
    (winner,) = winners([({"fragile": [4.0, 0.0, 0.0], "steady": [1.0, 1.1, 1.2]}, False)])
    assert winner is not None and winner.name == "steady"
    assert winners([({"a": [inf, inf], "b": [inf]}, True)]) == [None]


def test_an_interval_needs_four_of_each_and_is_that_of_the_ratio() -> None:
    three, four = [4.0, 4.1, 4.2], [4.0, 4.1, 4.2, 4.3]
    (few,) = winners([({"a": three, "b": [2.0, 2.1, 2.2, 2.3]}, True)])
    assert few is not None and (few.low, few.high) == (None, None)
    (times,) = winners([({"a": four, "b": [2.0, 2.1, 2.2, 2.3]}, True)])
    # With 4 and 4 no shift within the range of all differences is refuted at 5 %.
    assert times is not None and times.low is not None and times.high is not None
    assert abs(times.low - (1 - 2.3 / 4.0)) < 1e-12 and abs(times.high - (1 - 2.0 / 4.3)) < 1e-12
