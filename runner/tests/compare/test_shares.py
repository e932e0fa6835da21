"""Expected values come from a textbook's balanced analysis of variance, from tables whose shares are obvious, and from
simulations."""

import numpy as np
import pytest

from runner.compare.rankings import Shares, shares

Cells = dict[tuple[str, str], list[float]]


def simulated(
    random: np.random.Generator,
    *,
    servers: int,
    clients: int,
    iterations: int,
    deviations: tuple[float, float, float, float],
    missing: float = 0.0,
) -> Cells:
    """Values whose logarithms have the four standard deviations: server, client, pair, residual."""
    of_server, of_client, of_pair, of_rest = deviations
    server, client = random.normal(0, of_server, servers), random.normal(0, of_client, clients)
    return {
        (f"s{i}", f"c{j}"): list(
            np.exp(15 + server[i] + client[j] + random.normal(0, of_pair) + random.normal(0, of_rest, iterations))
        )
        for i in range(servers)
        for j in range(clients)
        if random.random() >= missing
    }


def test_a_balanced_table_is_the_analysis_of_variance() -> None:
    """Mean squares of a full table by the formulas of any textbook (Montgomery, two factors, random effects)."""
    cells = simulated(np.random.default_rng(1), servers=4, clients=3, iterations=5, deviations=(0.5, 0.4, 0.3, 0.2))
    y = np.log(np.array([[cells[f"s{i}", f"c{j}"] for j in range(3)] for i in range(4)]))
    grand, rows, columns, means = y.mean(), y.mean(axis=(1, 2)), y.mean(axis=(0, 2)), y.mean(axis=2)
    ms_rows = 15 * ((rows - grand) ** 2).sum() / 3
    ms_columns = 20 * ((columns - grand) ** 2).sum() / 2
    ms_pairs = 5 * ((means - rows[:, None] - columns[None, :] + grand) ** 2).sum() / 6
    ms_rest = ((y - means[:, :, None]) ** 2).sum() / 48
    variances = [(ms_rows - ms_pairs) / 15, (ms_columns - ms_pairs) / 20, (ms_pairs - ms_rest) / 5, ms_rest]
    assert min(variances) > 0
    result = shares(cells, seed=1)
    assert result is not None
    assert result.residual is not None
    parts = [part.share for part in (result.server, result.client, result.pair, result.residual)]
    assert parts == pytest.approx([variance / sum(variances) for variance in variances], rel=1e-9)
    assert result.deviation == pytest.approx(sum(variances) ** 0.5)
    assert (result.servers, result.clients, result.cells, result.values) == (4, 3, 12, 60)


def test_when_servers_alone_differ_the_server_decides() -> None:
    cells = {(f"s{i}", f"c{j}"): [2.0**i] * 3 for i in range(4) for j in range(4)}
    result = shares(cells, seed=1)
    assert result is not None
    assert result.server.share == pytest.approx(1.0)
    assert result.server.low == pytest.approx(1.0)
    assert result.client.high == pytest.approx(0.0, abs=1e-12)


def test_roles_are_exchangeable() -> None:
    cells = simulated(np.random.default_rng(3), servers=5, clients=4, iterations=3, deviations=(0.5, 0.2, 0.2, 0.1))
    part = shares(cells, seed=1)
    other = shares({(client, server): values for (server, client), values in cells.items()}, seed=1)
    assert part is not None
    assert other is not None
    assert part.server.share == pytest.approx(other.client.share)
    assert part.pair.share == pytest.approx(other.pair.share)


def averaged(missing: float) -> Shares:
    """The components of one large table with missing cells are near the true components."""
    cells = simulated(
        np.random.default_rng(8),
        servers=45,
        clients=45,
        iterations=2,
        deviations=(0.4, 0.3, 0.2, 0.1),
        missing=missing,
    )
    result = shares(cells, seed=2)
    assert result is not None
    return result


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_many_stacks_show_the_shares_that_were_put_in(missing: float) -> None:
    result = averaged(missing)
    assert result.residual is not None
    assert result.deviation**2 == pytest.approx(0.30, abs=0.07)
    assert result.server.share == pytest.approx(0.16 / 0.30, abs=0.12)
    assert result.client.share == pytest.approx(0.09 / 0.30, abs=0.12)
    assert result.pair.share == pytest.approx(0.04 / 0.30, abs=0.04)
    assert result.residual.share == pytest.approx(0.01 / 0.30, abs=0.02)


@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_the_intervals_hold_the_truth_as_often_as_they_say(missing: float) -> None:
    random = np.random.default_rng(4)
    deviations = (0.5, 0.3, 0.3, 0.2)
    truth = [deviation**2 / sum(each**2 for each in deviations) for deviation in deviations]
    held = np.zeros(4)
    for seed in range(150):
        cells = simulated(random, servers=5, clients=6, iterations=3, deviations=deviations, missing=missing)
        result = shares(cells, seed=seed)
        assert result is not None
        assert result.residual is not None
        parts = (result.server, result.client, result.pair, result.residual)
        held += [part.low <= true <= part.high for part, true in zip(parts, truth, strict=True)]
    assert min(held) / 150 >= 0.90, held / 150


def test_one_iteration_can_not_tell_the_pair_from_chance() -> None:
    cells = simulated(np.random.default_rng(5), servers=3, clients=3, iterations=1, deviations=(0.5, 0.1, 0.1, 0.1))
    result = shares(cells, seed=1)
    assert result is not None
    assert result.residual is None
    assert result.server.share + result.client.share + result.pair.share == pytest.approx(1.0)


@pytest.mark.parametrize(
    "cells",
    [
        {},
        {("s", "c"): [1.0, 2.0]},
        {("s", "c"): [1.0], ("s", "d"): [2.0]},
        {("s", "c"): [1.0], ("s", "d"): [2.0], ("t", "c"): [3.0]},
        {(f"s{i}", f"c{i}"): [1.0 + i] for i in range(5)},
        {(server, client): [3.0] * 4 for server in "st" for client in "cd"},
    ],
    ids=["nothing", "one cell", "one server", "a hole", "no crossing", "no variance"],
)
def test_a_table_that_can_not_answer_has_no_answer(cells: Cells) -> None:
    assert shares(cells, seed=1) is None
