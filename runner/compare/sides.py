"""One cell in one run: a side of a comparison, or a point of a history."""

from collections.abc import Iterator, Mapping, Sequence

from runner.compare.changes import Key
from runner.model.job import Job
from runner.model.numbers import is_current
from runner.model.result import Outcome, Result
from runner.model.run import CaseRecord, Kind

_NO_RUN = (Outcome.UNSUPPORTED, Outcome.SKIPPED)


def key_of(job: Job) -> Key:
    """Server, client with its via, and case with its link."""
    return job.server, job.client_via, job.case_link


def by_cell(results: Mapping[Job, Result]) -> dict[Key, list[Result]]:
    """The results by cell; within a cell in the order of the jobs."""
    results_by_key: dict[Key, list[Result]] = {}
    for job, result in results.items():
        results_by_key.setdefault(key_of(job), []).append(result)
    return results_by_key


def is_random(case: CaseRecord) -> bool:
    """True when chance affects the result: in every measurement, and in a test case with losses, jitter, or several
    iterations."""
    return case.kind is Kind.MEASUREMENT or case.iterations > 1 or case.has_chance


class Side:
    """The iterations of one cell in one run. Errors are faults of the harness, so they are left out."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = [result for result in results if result.outcome is not Outcome.ERROR]
        protocols = [result.protocol for result in self.results if result.protocol]
        self.protocol = max(protocols, key=protocols.count, default="")
        outcomes = [result.outcome for result in self.results]
        self.judged = (
            outcomes.count(Outcome.SUCCEEDED),
            sum(outcome not in _NO_RUN for outcome in outcomes),
        )
        order = (Outcome.FAILED, Outcome.SUCCEEDED, *_NO_RUN)
        self.outcome = next((outcome for outcome in order if outcome in outcomes), None)
        self.why = next(
            (f"{finding.code}: {finding.actual}" for result in self.results for finding in result.findings), ""
        )

    def values(self, metric: str, *, current: bool = True) -> list[float]:
        """The values of the iterations that succeeded over the cell's protocol. With `current`: only values by the
        present formula, otherwise only values by an older formula. When the formula of a number never changed, all its
        values are by the present formula.
        """
        return [
            value
            for result in self.results
            if result.outcome is Outcome.SUCCEEDED and result.sample and result.protocol in ("", self.protocol)
            if (value := getattr(result.sample, metric)) is not None
            and is_current(metric, result.sample.definitions) is current
        ]


class Outdated:
    """Counts cells whose numbers were measured by an older formula and can't be computed again, because their packets
    are gone."""

    def __init__(self, before: str, after: str) -> None:
        self._names = before, after
        self._alone: dict[tuple[str, str], int] = {}  # cells that are left out, because their formulas differ
        self._both: dict[str, int] = {}  # cells that are compared by the older formula, which both runs have

    def values(self, metric: str, earlier: Side, later: Side) -> tuple[list[float], list[float]]:
        """The values of both sides by the same formula. It is the present formula when at least one side has it."""
        current = [side.values(metric) for side in (earlier, later)]
        older = [side.values(metric, current=False) for side in (earlier, later)]
        if all(older) and not any(current):
            self._both[metric] = self._both.get(metric, 0) + 1
            return older[0], older[1]
        for name, values in zip(self._names, older, strict=True):
            if values:
                self._alone[name, metric] = self._alone.get((name, metric), 0) + 1
        return current[0], current[1]

    def sentences(self) -> Iterator[str]:
        """Sentences about numbers that were left out, and about numbers that were compared by an older formula."""
        for (name, metric), cells in self._alone.items():
            yield (
                f"{metric} of {name} was measured by an older formula in {cells} cells, and their packets are gone: "
                "these values are left out."
            )
        for metric, cells in self._both.items():
            yield f"{metric} of both runs was measured by an older formula in {cells} cells; these values are compared."
