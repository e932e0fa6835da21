"""How often printed 95 % intervals contain the true value: `.venv/bin/python -m lab.coverage`.

Simulates samples whose true value is known, from distributions that are similar to those of iterations (normal,
log-normal, heavy tails, exponential, two modes), and counts the intervals that contain the true value. Exit code 1 when
an interval contains the true value in less than 95 % of the samples, beyond the noise of the simulation.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from runner.compare.rankings import LEAST_RANKED_PAIRS, ranking, shares, spearman, versus
from runner.compare.stats import (
    CONFIDENCE,
    Attempts,
    median_interval,
    rate_interval,
    shift_interval,
    signed_rank_interval,
)

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Values]
out = Console(highlight=False)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many of the intervals of a setting contained the true value."""

    interval: str
    setting: str
    contained: int
    of: int

    @classmethod
    def of_intervals(
        cls, interval: str, setting: str, intervals: Sequence[tuple[float, float] | None], *, true: float
    ) -> "Coverage":
        """Count the intervals that contain the true value; a missing interval doesn't."""
        contained = sum(bounds is not None and bounds[0] <= true <= bounds[1] for bounds in intervals)
        return cls(interval=interval, setting=setting, contained=contained, of=len(intervals))

    @property
    def rate(self) -> float:
        return self.contained / self.of

    @property
    def holds(self) -> bool:
        """True when the rate reaches 95 %, within three standard errors of the simulation."""
        error = sqrt(CONFIDENCE * (1 - CONFIDENCE) / self.of)
        return self.rate >= CONFIDENCE - 3 * error


def _two_modes(random: np.random.Generator, n: int) -> Values:
    centre: Values = np.where(random.random(n) < 0.5, -3.0, 3.0) + random.normal(0, 1, n)
    return centre


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda random, n: random.normal(0, 1, n),
    "log-normal": lambda random, n: random.lognormal(0, 1, n) - 1,
    "heavy tails": lambda random, n: random.standard_t(2, n),
    "exponential": lambda random, n: random.exponential(1, n) - np.log(2),
    "two modes": _two_modes,
}
"""Each distribution has the median 0."""


def of_medians(
    random: np.random.Generator, times: int, sizes: Sequence[int] = (6, 7, 8, 10, 15, 30)
) -> Iterator[Coverage]:
    """Coverage of the median's interval (order statistics), by distribution and number of values."""
    for size in sizes:
        for name, draw in DISTRIBUTIONS.items():
            intervals = [median_interval(np.sort(draw(random, size))) for _ in range(times)]
            yield Coverage.of_intervals("median", f"{name}, n = {size}", intervals, true=0.0)


def of_shifts(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """Coverage of the interval of the shift between two groups (margins, changes)."""
    for before, after in ((4, 4), (5, 5), (10, 10), (4, 10)):
        for name, draw in DISTRIBUTIONS.items():
            intervals = [shift_interval(draw(random, before), draw(random, after) + 0.5) for _ in range(times)]
            yield Coverage.of_intervals("margin", f"{name}, n = {before} and {after}", intervals, true=0.5)


def _alike(random: np.random.Generator, draw: Draw, groups: int, size: int) -> Values:
    """Logarithms of the times of equal groups. All groups share the effect of the hour, which drifts."""
    hours = np.cumsum(random.normal(0, 0.3, size)) + np.sin(np.arange(size))
    return np.array([hours + 0.1 * draw(random, size) for _ in range(groups)])


def of_pairs(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """Coverage of the interval of the difference between two kinds of jobs, measured in pairs of jobs of the same hour.
    The true difference is 0.5."""
    for size in (6, 7, 10, 30):
        for name, draw in DISTRIBUTIONS.items():
            drawn = (_alike(random, draw, 2, size) for _ in range(times))
            intervals = [signed_rank_interval((longer - shorter + 0.5).tolist()) for longer, shorter in drawn]
            yield Coverage.of_intervals("pair", f"{name}, {size} pairs", intervals, true=0.5)


def of_alike_vias(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """How often, in runs of equal middleboxes, none of them is reported to have shorter or longer times."""
    for size, lost in ((6, 0.0), (10, 0.0), (10, 0.2), (30, 0.05)):
        for name, draw in DISTRIBUTIONS.items():
            quiet, rounds = 0, max(20, times // 10)
            for _ in range(rounds):
                questions, pairs = [], []
                for _ in range(4):
                    logs = _alike(random, draw, 3, size)
                    seconds = np.where(random.random(logs.shape) < lost, np.inf, np.exp(logs))
                    groups = dict(zip(("none", "one", "other"), seconds.tolist(), strict=True))
                    questions.append(groups)
                    pairs.append({via: list(zip(groups[via], groups["none"], strict=True)) for via in groups})
                answers = versus(questions, "none", pairs)
                quiet += not any(comparison.certain for answer in answers for comparison in answer.values())
            setting = f"{name}, {size} pairs, {lost:.0%} failed"
            yield Coverage(interval="alike middleboxes", setting=setting, contained=quiet, of=rounds)


def of_rates(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """Coverage of the interval of the rate of success."""
    for rate in (0.02, 0.2, 0.5, 0.95):
        for attempts in (3, 5, 10, 50):
            good = random.binomial(attempts, rate, times)
            ends = [rate_interval(Attempts(successes=k, attempts=attempts)) or (0.0, 1.0) for k in range(attempts + 1)]
            contained = sum(ends[k][0] <= rate <= ends[k][1] for k in good)
            yield Coverage(interval="rate", setting=f"{rate:.0%} of {attempts} attempts", contained=contained, of=times)


def _cells(
    random: np.random.Generator, size: tuple[int, int, int], deviations: tuple[float, float, float], effect: Values
) -> dict[tuple[str, str], list[float]]:
    """Times by server and client. `effect`: the effect of each server on the logarithm of the time. Each client, pair
    (heavy tails) and iteration adds a random effect."""
    servers, clients, iterations = size
    of_client, of_pair, inside = deviations
    client = random.normal(0, of_client, clients)
    return {
        (f"s{i}", f"c{j}"): np.exp(
            effect[i] + client[j] + of_pair * random.standard_t(4) / sqrt(2) + random.normal(0, inside, iterations)
        ).tolist()
        for i in range(servers)
        for j in range(clients)
    }


def of_ranks(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """Coverage of the ranks of a matrix's servers. The true rank is the rank of the server's effect. In a quarter of
    the settings all servers are equal."""
    for size in ((3, 3, 2), (3, 3, 10), (6, 5, 4), (9, 9, 10), (17, 17, 5)):
        for of_server, of_pair, inside in ((0.1, 0.02, 0.02), (0.1, 0.2, 0.05), (0.0, 0.1, 0.1), (0.3, 0.1, 0.5)):
            contained = total = 0
            for _ in range(max(20, times // (5 * size[0]))):
                effect = random.normal(0, of_server, size[0]) if of_server else np.zeros(size[0])
                true = [1 + int((effect < value).sum()) for value in effect]
                cells = _cells(random, size, (0.3, of_pair, inside), effect)
                for place in ranking(cells, place=0, others="clients"):
                    assert place.rank_low is not None and place.rank_high is not None
                    contained += place.rank_low <= true[int(place.name[1:])] <= place.rank_high
                    total += 1
            setting = (
                f"{size[0]} × {size[1]}, {size[2]} iterations, servers {of_server}, pairs {of_pair}, inside {inside}"
            )
            yield Coverage(interval="rank", setting=setting, contained=contained, of=total)


def of_correlations(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """Coverage of the interval of Spearman's ρ of two normal variables. Its true value is 6/π · asin(ρ/2)."""
    for pairs in (LEAST_RANKED_PAIRS, 25, 80):
        for rho in (0.0, 0.5, 0.9):
            true = 6 / np.pi * np.arcsin(rho / 2)
            contained = known = 0
            for _ in range(times):
                x = random.normal(0, 1, pairs)
                y = rho * x + sqrt(1 - rho**2) * random.normal(0, 1, pairs)
                measured = spearman(x.tolist(), y.tolist())
                assert measured is not None
                if measured.low is not None and measured.high is not None:
                    known += 1
                    contained += measured.low <= true <= measured.high
            yield Coverage(interval="Spearman's ρ", setting=f"ρ {rho}, {pairs} pairs", contained=contained, of=known)


def of_shares(random: np.random.Generator, times: int) -> Iterator[Coverage]:
    """Coverage of the intervals of the shares of the variance that are due to server, client, pair and iteration."""
    for servers, clients, iterations in ((3, 3, 4), (5, 6, 3), (9, 9, 10)):
        deviations = np.array([0.5, 0.3, 0.3, 0.2])
        truth = deviations**2 / (deviations**2).sum()
        contained = np.zeros(4, dtype=int)
        rounds = max(20, times // 10)
        for seed in range(rounds):
            server = random.normal(0, deviations[0], servers)
            client = random.normal(0, deviations[1], clients)
            cells = {
                (f"s{i}", f"c{j}"): np.exp(
                    server[i]
                    + client[j]
                    + random.normal(0, deviations[2])
                    + random.normal(0, deviations[3], iterations)
                ).tolist()
                for i in range(servers)
                for j in range(clients)
            }
            measured = shares(cells, seed=seed)
            assert measured is not None and measured.residual is not None
            parts = (measured.server, measured.client, measured.pair, measured.residual)
            contained += [part.low <= true <= part.high for part, true in zip(parts, truth, strict=True)]
        for name, count in zip(("server", "client", "pair", "iteration"), contained, strict=True):
            setting = f"{name}, {servers} × {clients}, {iterations} iterations"
            yield Coverage(interval="share", setting=setting, contained=int(count), of=rounds)


KINDS = {
    "median": of_medians,
    "margin": of_shifts,
    "pair": of_pairs,
    "alike middleboxes": of_alike_vias,
    "rate": of_rates,
    "rank": of_ranks,
    "rho": of_correlations,
    "share": of_shares,
}


@click.command()
@click.option("--times", default=2000, show_default=True, help="Samples of each setting; fewer of whole matrices.")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", type=click.Choice(list(KINDS)), help="One kind of interval. [all]")
@click.option("--all", "everything", is_flag=True, help="Every setting, not only the worst of each kind.")
def main(times: int, seed: int, only: str | None, everything: bool) -> None:
    """Print how often each kind of interval contains the true value, the worst setting first."""
    random = np.random.default_rng(seed)
    table = Table("interval", "settings", "contain it, mean", "worst", "in", "", box=None)
    wrong = 0
    for name, measure in KINDS.items():
        if only not in (None, name):
            continue
        rates = sorted(measure(random, times), key=lambda setting: setting.rate)
        wrong += sum(not setting.holds for setting in rates)
        mean = sum(setting.contained for setting in rates) / sum(setting.of for setting in rates)
        for setting in rates if everything else rates[:1]:
            verdict = "[green]✓[/green]" if setting.holds else "[red]✗ below 95 %[/red]"
            table.add_row(
                name, str(len(rates)), f"{mean:.1%}", f"{setting.rate:.1%} of {setting.of}", setting.setting, verdict
            )
    out.print(table)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
