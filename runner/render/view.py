"""The input of a run's pages: the run with its cells, the previous run, and all runs of the site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from runner.compare import RunMeans, compare, run_means
from runner.compare.changes import Comparison
from runner.compare.conditions import differences
from runner.errors import UsageError
from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import Kind, Run
from runner.render.cells import Cell, Cells, cells, names, ordered_cases, tells_rates
from runner.render.deciding import Decision, decisions
from runner.render.manifest import digest, folder_state
from runner.store import RunFolder

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
