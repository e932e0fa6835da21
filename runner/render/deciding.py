"""The factors that decide a measurement's delivery time: shares of the variance, rankings, congestion controllers,
agreement between measurements.

Cells of different protocols are never mixed. Only iterations that succeeded count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import exp

from runner.model.result import Outcome
from runner.model.run import CaseRecord, ImplementationRecord, Kind, Run
from runner.render.cells import Cell, Cells, ordered_cases
from runner.render.orders import other_order
from runner.stats import Summary
from runner.stats.ranking import Correlation, Place, groups, ranking, spearman
from runner.stats.shares import Share, Shares, shares


@dataclass(frozen=True)
class Definition:
    """A term of the section on shares and ranks, with its definition in plain text."""

    label: str
    formula: str
    note: str


DEFINITIONS = (
    Definition(
        "share of the variance",
        "log delivery time = mean + server + client + pair + residual, all random; share = its variance / sum of the "
        "four",
        "From mean squares of the cells' means (unweighted means, Henderson's method 3; Searle, Casella and McCulloch, "
        "1992); a value below 0 counts as 0. The residual is the difference between iterations of one cell; when each "
        "cell has one iteration, it can't be separated from the pair. Interval: 95 %, generalised (Weerahandi, 1993), "
        "with the run's seed. "
        "The shares hold for the stacks of this matrix; other stacks have other shares.",
    ),
    Definition(
        "median over the opposite role",
        "of a server: median of its cells' median delivery times over all clients; of a client: over all servers",
        "In brackets: the exact 95 % interval over n cells (order statistics); for n below 6, the range.",
    ),
    Definition(
        "rank",
        "1 + number of stacks with a shorter median delivery time",
        "Interval: 95 %. Two stacks are compared by a paired t test on the logarithms of their cells' medians, with a "
        "pair for each stack of the opposite role. So the test includes the noise of the iterations and of the "
        "opposite role. All comparisons of a stack share the 5 % (Bonferroni; Mogstad et al., Inference for Ranks, "
        "2024). With one iteration of each pair, or one stack in the opposite role, there are no ranks.",
    ),
    Definition(
        "congestion controller",
        "median of the cells' median delivery times, by the controller that the server's entry or variant names",
        "Controllers of the same name differ between stacks. n counts cells.",
    ),
    Definition(
        "Spearman's ρ of two measurements",
        "correlation of the ranks that the pairs' median delivery times have in both",
        "Interval: 95 %, Fisher's z with the variance of Bonett and Wright (2000), from n = 16 on. n counts pairs.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One measurement over one protocol. `shares` is None when the table of cells is too small to compute shares."""

    case: CaseRecord
    label: str
    shares: Shares | None
    servers: list[Place]
    clients: list[Place]
    controllers: list[tuple[str, Summary]]
    other_orders: list[str]  # sentences about roles whose order by goodput is different, with the reason

    @property
    def why_not(self) -> str:
        """The reasons why stacks have no rank, by role; empty when all stacks have a rank."""
        roles = []
        for role, places in (("servers", self.servers), ("clients", self.clients)):
            if reasons := sorted({place.why_not for place in places if place.why_not}):
                some = "" if all(place.why_not for place in places) else "some "
                roles.append(f"{some}{role}, {'; '.join(reasons)}")
        return "; ".join(roles)

    @property
    def parts(self) -> list[tuple[str, str, Share]]:
        """CSS class, words and share of each component that can be separated."""
        if self.shares is None:
            return []
        residual = self.shares.residual
        last = [("residual", "iteration", residual)] if residual is not None else []
        pair = "pair" if residual is not None else "pair or iteration"
        return [
            ("server", "server", self.shares.server),
            ("client", "client", self.shares.client),
            ("pair", pair, self.shares.pair),
            *last,
        ]

    @property
    def factor(self) -> float:
        """The factor by which delivery times differ from their geometric mean at one standard deviation."""
        return exp(self.shares.deviation) if self.shares is not None else 1.0


@dataclass(frozen=True)
class Agreement:
    """The agreement of two measurements over the same protocol."""

    first: CaseRecord
    other: CaseRecord
    label: str
    correlation: Correlation


def decisions(run: Run, table: Cells) -> list[Decision]:
    """One decision for each measurement and protocol in which at least two cells have a delivery time.

    Cells through a middlebox are compared on the page *Middleboxes*. They are never in one ranking with cells without a
    middlebox.
    """
    decisions = []
    for case in ordered_cases(run, Kind.MEASUREMENT):
        measured = [cell for cell in table.values() if cell.case == case and "ttlb" in cell.summaries]
        vias = {cell.via for cell in measured}
        measured = [cell for cell in measured if cell.via == min(vias)]  # "" (no middlebox) sorts first
        for label in sorted({cell.label for cell in measured}):
            group = [cell for cell in measured if cell.label == label]
            if len(group) > 1:
                decisions.append(_decision(run, case, label, group))
    return decisions


def _decision(run: Run, case: CaseRecord, label: str, group: list[Cell]) -> Decision:
    medians = {(cell.server, cell.client): cell.summaries["ttlb"].median for cell in group}
    times = {(cell.server, cell.client): list(_delivery_times(cell)) for cell in group}
    by_controller = ((controller(run.implementations, server), value) for (server, _), value in medians.items())
    servers, clients = ranking(times, place=0, others="clients"), ranking(times, place=1, others="servers")
    orders = (other_order(group, role, places) for role, places in (("server", servers), ("client", clients)))
    return Decision(
        case=case,
        label=label,
        shares=shares(times, seed=run.seed),
        servers=servers,
        clients=clients,
        controllers=groups(by_controller),
        other_orders=[sentence for sentence in orders if sentence],
    )


def _delivery_times(cell: Cell) -> Iterable[float]:
    """The delivery times, in seconds, of the iterations that count in the cell's summaries."""
    for result in cell.results:
        counts = result.outcome is Outcome.SUCCEEDED and result.protocol in ("", cell.protocol)
        if counts and result.sample is not None and result.sample.ttlb is not None:
            yield result.sample.ttlb


def controller(implementations: Mapping[str, ImplementationRecord], server: str) -> str:
    """The congestion controller of a stack, as its variant or its entry names it."""
    record = implementations.get(server)
    if record is None:
        return "unknown"
    return record.parameters.get("CCA") or record.congestion_control or "unknown"


def agreements(run: Run, table: Cells) -> list[Agreement]:
    """The agreement of every two measurements over the same protocol that have at least 3 pairs in common."""
    times: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for cell in table.values():
        if "ttlb" in cell.summaries and cell.case.kind is Kind.MEASUREMENT:
            of_case = times.setdefault((cell.label, cell.case.name), {})
            of_case[cell.server, cell.client] = cell.summaries["ttlb"].median
    shared_pairs = []
    cases = ordered_cases(run, Kind.MEASUREMENT)
    for label in sorted({label for label, _ in times}):
        for first, other in combinations(cases, 2):
            x, y = (times.get((label, case.name), {}) for case in (first, other))
            pairs = sorted(x.keys() & y.keys())
            correlation = spearman([x[pair] for pair in pairs], [y[pair] for pair in pairs])
            if correlation is not None:
                shared_pairs.append(Agreement(first, other, label, correlation))
    return shared_pairs
