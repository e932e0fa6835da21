"""The input of a run's pages: the run with its cells, the factors that decide its numbers, the other runs of the
site."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import combinations
from math import exp
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from runner.compare import compare
from runner.compare.compare import Comparison, RunMeans, run_means
from runner.compare.conditions import differences
from runner.compare.rankings import Correlation, RankedStack, Share, Shares, groups, ranking, shares, spearman
from runner.compare.stats import Summary
from runner.errors import UsageError
from runner.model.result import BY_KEY, Outcome, Result
from runner.model.run import CaseRecord, ImplementationRecord, Job, Kind, Run
from runner.site.cells import Cell, Cells, cells, names, ordered_cases, tells_rates
from runner.store.runs import RunFolder

# Explains why goodput and delivery time rank stacks differently: their intervals begin and end at different
# packets.

_KEYS = ("ttlb", "goodput", "first_server_1rtt", "last_server_1rtt")
_LEAST = 0.002  # fraction of a goodput; smaller differences don't count as a different order


def other_order(cells: Sequence[Cell], role: str, places: Sequence[RankedStack]) -> str:
    """Sentences about the stacks of `role` (`server` or `client`) that goodput and delivery time rank differently.
    Empty when both orders agree.

    Delivery time = first 1-RTT packet + interval of goodput − (last 1-RTT packet − last new byte), each as a median
    over the stack's cells. Two stacks can differ in the first term and in the term in brackets. The sentences give the
    term with the larger difference as the reason.
    """
    known = {place.name: values for place in places if (values := _medians(cells, role, place.name)) is not None}
    names = [place.name for place in places if place.name in known]
    swapped = [
        (slow, fast)
        for fast, slow in combinations(names, 2)
        if known[fast]["ttlb"] < known[slow]["ttlb"] and known[slow]["goodput"] > known[fast]["goodput"] * (1 + _LEAST)
    ]
    if not swapped:
        return ""
    order = sorted(names, key=lambda name: -known[name]["goodput"])
    slow, fast = max(swapped, key=lambda pair: known[pair[0]]["goodput"] / known[pair[1]]["goodput"])
    return f"By goodput the order of the {role}s is different: {', '.join(order)}. {_why(known, slow, fast)}"


def _medians(cells: Sequence[Cell], role: str, name: str) -> dict[str, float] | None:
    chosen = [cell for cell in cells if getattr(cell, role) == name and not cell.outdated]
    medians = {key: [cell.summaries[key].median for cell in chosen if key in cell.summaries] for key in _KEYS}
    return {key: median(values) for key, values in medians.items()} if all(medians.values()) else None


def _why(known: Mapping[str, Mapping[str, float]], slow: str, fast: str) -> str:
    """A sentence that explains why `slow`, which delivers later, has more goodput than `fast`."""
    begin = {name: known[name]["first_server_1rtt"] for name in (slow, fast)}
    tail = {name: known[name]["last_server_1rtt"] - known[name]["ttlb"] for name in (slow, fast)}
    goodput = BY_KEY["goodput"]
    has = f"{slow} has {goodput.text(known[slow]['goodput'])} and {fast} {goodput.text(known[fast]['goodput'])}"
    if begin[slow] - begin[fast] >= tail[fast] - tail[slow]:
        return (
            f"{has}, although {fast} delivers earlier: goodput counts only from the server's first 1-RTT packet on, "
            f"which comes after {begin[slow]:.2f} s with {slow} and after {begin[fast]:.2f} s with {fast}."
        )
    return (
        f"{has}, although {fast} delivers earlier: goodput counts up to the server's last 1-RTT packet, which comes "
        f"{tail[fast]:.2f} s after the last new byte with {fast} and {tail[slow]:.2f} s after it with {slow}."
    )


# The factors that decide a measurement's delivery time: shares of the variance, rankings, congestion controllers,
# agreement between measurements.
#
# Cells of different protocols are never mixed. Only iterations that succeeded count.


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One measurement over one protocol. `shares` is None when the table of cells is too small to compute shares."""

    case: CaseRecord
    label: str
    shares: Shares | None
    servers: list[RankedStack]
    clients: list[RankedStack]
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


# The inputs from which a site was drawn, so that the next drawing draws only changed pages again.
#
# Inputs are compared by name, size and modification time of their files; the contents are not read. The manifest is the
# site's marker file. It is emptied before a drawing changes any page, and written at the end of the drawing. After an
# interrupted drawing it is empty, so the next drawing draws all pages.

MARKER = ".bentpipe-site"  # bentpipe never replaces a folder without this file


@dataclass
class Manifest:
    """The inputs of a drawing. `program`: digest of the program that drew.

    `cells` by `<run>/<pair>/<case>`. `runs` by name: digests of the inputs, and values that later drawings need.
    """

    program: str = ""
    cells: dict[str, tuple[str, str]] = field(default_factory=dict)  # digest, sparkline
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, site: Path, program: str) -> "Manifest":
        """The manifest of `site`; an empty manifest when `site` has none, or when another version of the program drew
        the site."""
        try:
            document = json.loads((site / MARKER).read_text(encoding="utf-8"))
            manifest = cls(**document)
            manifest.cells = {key: (value[0], value[1]) for key, value in manifest.cells.items()}
        except (OSError, ValueError, TypeError, IndexError):
            return cls(program=program)
        return manifest if manifest.program == program else cls(program=program)

    def save(self, site: Path) -> None:
        (site / MARKER).write_text(json.dumps(asdict(self), separators=(",", ":"), sort_keys=True), encoding="utf-8")


def digest(parts: Iterable[object]) -> str:
    """A digest of the parts, in their order."""
    digest_of_all = blake2b(digest_size=16)
    for part in parts:
        digest_of_all.update(repr(part).encode())
        digest_of_all.update(b"\0")
    return digest_of_all.hexdigest()


def files_digest(paths: Iterable[Path]) -> str:
    """A digest of names and contents of files. It is used only for the files of the program, which are few."""
    return digest((path.name, path.read_bytes()) for path in sorted(paths))


def folder_state(folder: Path, *, depth: int) -> list[tuple[str, int, int]]:
    """Name, size and modification time of every file in `folder`, and in its subfolders down to `depth`."""
    files: list[tuple[str, int, int]] = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return files
    for entry in entries:
        about = entry.stat(follow_symlinks=False)
        files.append((entry.name, about.st_size, about.st_mtime_ns))
        if depth > 1 and entry.is_dir(follow_symlinks=False):
            files += folder_state(Path(entry.path), depth=depth - 1)
    return files


# The input of a run's pages: the run with its cells, the previous run, and all runs of the site.

Key = tuple[str, str, str]  # server, client with its via, case with its link
_ALIKE = 0.5  # share of a run's cells that another run of the same plan must exceed


class Level(NamedTuple):
    """The level of a server in one case, over `cells` cells.

    `delivery`: the median of the cells' median delivery times, in seconds. `goodput`: the mean of the cells' mean
    goodputs, in bit/s; None when a cell was measured by an older formula.
    """

    delivery: float
    goodput: float | None
    cells: int

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> "Level":
        """The level over these cells. There is at least one cell, and each cell has both numbers."""
        delivery = median(cell.summaries["ttlb"].median for cell in cells)
        goodput = fmean(cell.summaries["goodput"].mean for cell in cells)
        return cls(delivery, None if any(cell.outdated for cell in cells) else goodput, len(cells))


Levels = Mapping[str, Mapping[str, Level]]  # by case and server


def levels_of(document: Mapping[str, Mapping[str, Sequence[Any]]]) -> Levels:
    """Levels from a JSON document."""
    return {case: {name: Level(*level) for name, level in some.items()} for case, some in document.items()}


class StoredRun(RunFolder):
    """A stored run that reads its results only once."""

    @classmethod
    def of(cls, folder: RunFolder) -> "StoredRun":
        """The run of `folder`."""
        return cls(folder.path, folder.run, folder.skip)

    @cached_property
    def _results(self) -> dict[Job, Result]:
        return super().results()

    def results(self) -> dict[Job, Result]:
        """The results as they were at the first call."""
        return self._results

    @cached_property
    def table(self) -> Cells:
        """The run's cells. Pages of later runs show them as well."""
        return cells(self.run, self.results())

    @cached_property
    def levels(self) -> Levels:
        """The levels that pages of later runs show. When an earlier drawing stored the levels, this run's results need
        not be read."""
        table: dict[str, dict[str, list[Cell]]] = {}
        for cell in self.table.values():
            known = "goodput" in cell.summaries and "ttlb" in cell.summaries
            if known and tells_rates(cell.case) and not cell.label:
                table.setdefault(cell.case.name, {}).setdefault(cell.server, []).append(cell)
        return {case: {server: Level.of(cells) for server, cells in some.items()} for case, some in table.items()}

    @cached_property
    def means(self) -> RunMeans:
        """The means that comparisons of later runs need. The manifest stores them, too."""
        return run_means(self)

    @cached_property
    def states(self) -> dict[str, str]:
        """Digest of names, sizes and times of all files of each cell, by `<pair>/<case>`."""
        cells = sorted(path for path in self.path.glob("*_*/*/") if not (path.is_symlink() or path.parent.is_symlink()))
        digests = {path.relative_to(self.path).as_posix(): digest(folder_state(path, depth=3)) for path in cells}
        return digests | {new: digests[old] for new, old in self.run.old_folders.items() if old in digests}

    @cached_property
    def planned(self) -> frozenset[Key]:
        """The cells that were planned."""
        return frozenset((job.server, job.client_via, job.case_link) for job in self.run.order)


@dataclass
class RunView:
    """One run with everything that its pages show. `folders`: all runs of the site, the newest first. `sparks`: the
    sparklines by cell, after they have been drawn."""

    folder: StoredRun
    folders: Sequence[StoredRun]
    sparks: dict[Key, Markup] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def run(self) -> Run:
        return self.folder.run

    @property
    def results(self) -> dict[Job, Result]:
        return self.folder.results()

    @property
    def table(self) -> Cells:
        return self.folder.table

    @cached_property
    def servers(self) -> list[str]:
        return names(self.run.servers, {server for server, _, _ in self.table})

    @cached_property
    def clients(self) -> list[str]:
        """The clients, each with each of its middleboxes: `quinn`, `quinn+openvpn`."""
        clients = {client for _, client, _ in self.table}
        named = [f"{client}+{via}" if via else client for client in self.run.clients for via in self.run.vias]
        return names([name for name in named if name in clients or not any(self.run.vias)], clients)

    @cached_property
    def stacks(self) -> list[str]:
        """Every stack of either role."""
        return list(dict.fromkeys((*self.servers, *self.clients)))

    @cached_property
    def measured(self) -> list[Cell]:
        """The cells with a goodput, of cases with meaningful data rates."""
        return [cell for cell in self.table.values() if "goodput" in cell.summaries and tells_rates(cell.case)]

    @cached_property
    def outdated(self) -> int:
        """The number of cells whose numbers were measured by an older formula."""
        return sum(cell.outdated for cell in self.table.values())

    @cached_property
    def by_stack(self) -> dict[tuple[str, str], list[Cell]]:
        """The cells by role and name of the stack."""
        cells_by_pair: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.table.values():
            cells_by_pair.setdefault(("server", cell.server), []).append(cell)
            cells_by_pair.setdefault(("client", cell.client), []).append(cell)
        return cells_by_pair

    @cached_property
    def keys_by_name(self) -> dict[str, Key]:
        """The key of each cell, by `<pair>/<case>`."""
        return {f"{cell.pair}/{cell.case.name}": key for key, cell in self.table.items()}

    def cells_of(self, case: str) -> list[Cell]:
        """The cells of a case, in the order of servers and clients."""
        cells = ((server, client, case) for server in self.servers for client in self.clients)
        return [self.table[key] for key in cells if key in self.table]

    @cached_property
    def decided(self) -> list[Decision]:
        """The factors that decide each measurement."""
        return decisions(self.run, self.table)

    def prepare(self) -> None:
        """Compute the values that several pages show. Later the pages are drawn in several processes, which can't share
        computed values."""
        _ = self.decided, self.changes, self.before and self.before.measured, [folder.levels for folder in self.alike]

    @cached_property
    def previous(self) -> StoredRun | None:
        """The newest earlier run of the same plan, made under the same conditions."""
        return previous(self.folder, self.folders)

    @cached_property
    def changes(self) -> Comparison | None:
        """Changes since `previous`. None when there is no previous run, or when the two runs have nothing in common
        that can be compared."""
        if self.previous is None:
            return None
        try:
            others = [folder.means for folder in self.alike if folder not in (self.previous, self.folder)]
            return compare(self.previous, self.folder, others=others)
        except UsageError:
            return None

    @cached_property
    def alike(self) -> list[StoredRun]:
        """This run and all earlier runs of the same plan under the same conditions, the oldest first."""
        alike = [folder for folder in self.folders if folder is self.folder or same_plan(folder, self.folder)]
        earlier = [folder for folder in alike if folder.run.started_unix_s <= self.run.started_unix_s]
        return sorted(earlier, key=lambda folder: folder.run.started_unix_s)

    @cached_property
    def before(self) -> "RunView | None":
        """The view of the previous run."""
        return None if self.previous is None else RunView(self.previous, [self.previous])

    @cached_property
    def scenarios(self) -> list[str]:
        """Names of the cases that have a page: measurements first, then the test cases."""
        return [case.name for kind in (Kind.MEASUREMENT, Kind.TEST_CASE) for case in ordered_cases(self.run, kind)]


def previous(folder: StoredRun, folders: Sequence[StoredRun]) -> StoredRun | None:
    """The newest run among `folders` that is older than `folder` and has the same plan and conditions."""
    older = [other for other in folders if other.run.started_unix_s < folder.run.started_unix_s]
    ordered = sorted(older, key=lambda other: -other.run.started_unix_s)
    return next((other for other in ordered if same_plan(other, folder)), None)


def same_plan(first: StoredRun, other: StoredRun) -> bool:
    """True when `first` has more than half of the cells of `other`'s plan and was made under the same conditions."""
    shared = len(first.planned & other.planned)
    return shared > _ALIKE * len(other.planned) and not differences(first.run, other.run)


def stack_path(name: str) -> str:
    """Path of a stack's page in the run's folder."""
    return f"implementations/{name}.html"


def stack_href(name: str) -> str:
    """URL of a stack's page, relative to the run's folder."""
    return quote(stack_path(name))


def case_path(name: str) -> str:
    """Path of a case's page in the run's folder."""
    return f"scenarios/{name}.html"


def case_href(name: str) -> str:
    """URL of a case's page, relative to the run's folder."""
    return quote(case_path(name))
