import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from runner.stats.ranking import groups, ranking, spearman


def test_the_best_median_comes_first_and_equals_share_a_rank() -> None:
    cells = {
        **{("a", client): value for client, value in zip("wxyz", (1.0, 2.0, 3.0, 100.0), strict=True)},
        **{("b", client): 9.0 for client in "wxyz"},
        **{("c", client): 2.5 for client in "wxyz"},
    }
    places = ranking(cells, place=0, seed=1, more_is_better=True)
    assert [(one.name, one.rank, one.summary.median) for one in places] == [("b", 1, 9.0), ("a", 2, 2.5), ("c", 2, 2.5)]
    assert places[0].summary.n == 4
    assert [one.name for one in ranking(cells, place=0, seed=1, more_is_better=False)][-1] == "b"


def test_ranks_are_sure_when_every_client_agrees_and_not_when_they_do_not() -> None:
    agreed = {(server, f"c{j}"): 10.0 * i + j for i, server in enumerate("abc") for j in range(6)}
    for one in ranking(agreed, place=0, seed=1, more_is_better=True):
        assert one.rank_low == one.rank == one.rank_high
    random = np.random.default_rng(2)
    noise = {(server, f"c{j}"): float(random.normal()) for server in "abc" for j in range(6)}
    assert any(one.rank_high - one.rank_low >= 1 for one in ranking(noise, place=0, seed=1, more_is_better=True))


def test_holes_are_left_out_and_the_number_of_cells_says_so() -> None:
    cells = {("a", "x"): 5.0, ("b", "x"): 1.0, ("b", "y"): 7.0, ("b", "z"): 8.0}
    places = {one.name: one for one in ranking(cells, place=0, seed=1, more_is_better=True)}
    assert (places["a"].summary.n, places["a"].summary.low) == (1, None)
    assert (places["b"].summary.median, places["b"].rank) == (7.0, 1)
    assert [one.name for one in ranking(cells, place=1, seed=1, more_is_better=True)] == ["z", "y", "x"]
    assert ranking({}, place=0, seed=1, more_is_better=True) == []


@given(st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), min_size=4, max_size=30))
def test_the_correlation_is_scipys(points: list[tuple[float, float]]) -> None:
    one, other = ([point[index] for point in points] for index in (0, 1))
    found = spearman(one, other)
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert found is None
        return
    assert found is not None
    assert found.rho == pytest.approx(scipy.stats.spearmanr(one, other).statistic, abs=1e-9)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.rho + 1e-9
    assert found.rho <= found.high + 1e-9


def test_the_interval_of_a_correlation_is_that_of_bonett_and_wright() -> None:
    one = [float(value) for value in range(1, 11)]
    other = [2.0, 1.0, 4.0, 3.0, 7.0, 8.0, 6.0, 5.0, 10.0, 9.0]
    found = spearman(one, other)
    assert found is not None
    rho = 1 - 6 * sum((x - y) ** 2 for x, y in zip(one, other, strict=True)) / 990
    half = scipy.stats.norm.ppf(0.975) * ((1 + rho**2 / 2) / 7) ** 0.5
    assert found.rho == pytest.approx(rho)
    assert (found.low, found.high) == pytest.approx((np.tanh(np.arctanh(rho) - half), np.tanh(np.arctanh(rho) + half)))
    assert spearman(one[:2], other[:2]) is None
    three = spearman(one[:3], other[:3])
    assert three is not None
    assert three.low is None


def test_groups_have_their_own_medians() -> None:
    found = groups([("cubic", 1.0), ("bbr", 5.0), ("cubic", 3.0), ("bbr", 7.0), ("newreno", 4.0)], seed=1)
    assert [(name, one.n, one.median) for name, one in found] == [
        ("bbr", 2, 6.0),
        ("newreno", 1, 4.0),
        ("cubic", 2, 2.0),
    ]
