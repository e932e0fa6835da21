import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from runner.compare.rankings import LEAST_RANKED_PAIRS, groups, ranking, spearman


def test_the_best_median_comes_first_and_equals_share_a_rank() -> None:
    cells = {
        **{("a", client): [value] * 2 for client, value in zip("wxyz", (1.0, 2.0, 3.0, 100.0), strict=True)},
        **{("b", client): [0.5, 0.7] for client in "wxyz"},
        **{("c", client): [2.5] * 2 for client in "wxyz"},
    }
    places = ranking(cells, place=0, others="clients")
    assert [(place.name, place.rank) for place in places] == [("b", 1), ("a", 2), ("c", 2)]
    assert [place.summary.n for place in places] == [4, 4, 4]
    assert places[0].summary.median == pytest.approx(0.6)
    for place in places:
        assert place.rank_low is not None and place.rank_high is not None
        assert place.rank_low <= place.rank <= place.rank_high


def test_ranks_are_sure_when_every_client_agrees_and_not_when_they_do_not() -> None:
    agreed = {(server, f"c{j}"): [(1.0 + i) * (1 + j)] * 3 for i, server in enumerate("abc") for j in range(6)}
    assert [(stack.rank_low, stack.rank, stack.rank_high) for stack in ranking(agreed, place=0, others="clients")] == [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
    ]
    random = np.random.default_rng(2)
    noise = {(server, f"c{j}"): random.lognormal(size=3).tolist() for server in "abc" for j in range(6)}
    assert {(stack.rank_low, stack.rank_high) for stack in ranking(noise, place=0, others="clients")} == {(1, 3)}


def test_iterations_that_scatter_widen_the_ranks() -> None:
    """The same servers, 10 % apart, with and without noise between the iterations of a cell."""
    random = np.random.default_rng(4)

    def wide(noise: float) -> int:
        cells = {
            (server, f"c{j}"): [1.1**i * float(np.exp(random.normal(0, noise))) for _ in range(3)]
            for i, server in enumerate("abc")
            for j in range(4)
        }
        places = ranking(cells, place=0, others="clients")
        return sum((place.rank_high or 0) - (place.rank_low or 0) for place in places)

    assert wide(0.001) == 0
    assert wide(0.5) == 6


@pytest.mark.parametrize(("servers", "clients", "interaction"), [(3, 3, 0.05), (6, 5, 0.3), (9, 9, 0.1)])
def test_the_interval_holds_the_rank_as_often_as_it_says(servers: int, clients: int, interaction: float) -> None:
    random = np.random.default_rng(servers)
    held = []
    for _ in range(150):
        effect, client = random.normal(0, 0.1, servers), random.normal(0, 0.3, clients)
        cells = {
            (f"s{i}", f"c{j}"): np.exp(
                effect[i] + client[j] + random.normal(0, interaction) + random.normal(0, 0.05, 4)
            ).tolist()
            for i in range(servers)
            for j in range(clients)
        }
        true = {f"s{i}": 1 + int((effect < effect[i]).sum()) for i in range(servers)}
        for stack in ranking(cells, place=0, others="clients"):
            assert stack.rank_low is not None and stack.rank_high is not None
            held.append(stack.rank_low <= true[stack.name] <= stack.rank_high)
    assert np.mean(held) >= 0.94


def test_holes_are_left_out_and_what_can_not_rank_says_so() -> None:
    cells = {("a", "x"): [5.0] * 2, ("b", "x"): [9.0] * 2, ("b", "y"): [2.0] * 2, ("b", "z"): [1.0] * 2}
    places = {stack.name: stack for stack in ranking(cells, place=0, others="clients")}
    assert (places["a"].summary.n, places["a"].summary.spread, places["a"].rank_low) == (1, None, None)
    assert places["a"].why_not == "only 1 of the clients"
    assert (places["b"].summary.median, places["b"].rank) == (2.0, 1)
    assert [stack.name for stack in ranking(cells, place=1, others="servers")] == ["z", "y", "x"]
    assert ranking({}, place=0, others="clients") == []
    once = {(server, client): [float(ord(server))] for server in "ab" for client in "xyz"}
    assert {stack.why_not for stack in ranking(once, place=0, others="clients")} == {"only 1 iteration of each pair"}


@given(st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), min_size=4, max_size=30))
def test_the_correlation_is_scipys(points: list[tuple[float, float]]) -> None:
    first, second = ([point[index] for point in points] for index in (0, 1))
    correlation = spearman(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert correlation is None
        return
    assert correlation is not None
    assert correlation.rho == pytest.approx(scipy.stats.spearmanr(first, second).statistic, abs=1e-9)
    if len(first) < LEAST_RANKED_PAIRS:
        assert correlation.low is correlation.high is None
        return
    assert correlation.low is not None
    assert correlation.high is not None
    assert correlation.low <= correlation.rho + 1e-9
    assert correlation.rho <= correlation.high + 1e-9


def test_the_interval_of_a_correlation_is_that_of_bonett_and_wright() -> None:
    first = [float(value) for value in range(1, 17)]
    second = [2.0, 1.0, 4.0, 3.0, 7.0, 8.0, 6.0, 5.0, 10.0, 9.0, 12.0, 11.0, 14.0, 13.0, 16.0, 15.0]
    correlation = spearman(first, second)
    assert correlation is not None
    rho = 1 - 6 * sum((x - y) ** 2 for x, y in zip(first, second, strict=True)) / (16 * 255)
    half = scipy.stats.norm.ppf(0.975) * ((1 + rho**2 / 2) / 13) ** 0.5
    assert correlation.rho == pytest.approx(rho)
    assert (correlation.low, correlation.high) == pytest.approx(
        (np.tanh(np.arctanh(rho) - half), np.tanh(np.arctanh(rho) + half))
    )
    assert spearman(first[:2], second[:2]) is None
    three = spearman(first[:3], second[:3])
    assert three is not None
    assert three.low is None


def test_groups_have_their_own_medians() -> None:
    medians = groups([("cubic", 1.0), ("bbr", 5.0), ("cubic", 3.0), ("bbr", 7.0), ("newreno", 4.0)])
    assert [(name, first.n, first.median) for name, first in medians] == [
        ("cubic", 2, 2.0),
        ("newreno", 1, 4.0),
        ("bbr", 2, 6.0),
    ]
