"""Numbers of older definitions measured again: from a stored job's own packets, without judging it anew."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from runner import store
from runner.decode import Trace, cached_decode, load_tables
from runner.errors import CaptureError
from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.numbers import DEFINITIONS
from runner.model.result import Result
from runner.store import RunFolder
from runner.trace.measure import renewed


class RenewedRun(RunFolder):
    """A stored run whose numbers have today's formulas where its packets are still there. Nothing is written."""

    @classmethod
    def of(cls, folder: RunFolder) -> "RenewedRun":
        """The same run."""
        return cls(folder.path, folder.run, folder.skip)

    @cached_property
    def _results(self) -> dict[Job, Result]:
        return dict(self._renewed(super().results()))

    def results(self) -> dict[Job, Result]:
        """As of the first call. A sample that could not be measured again keeps its older version of definitions."""
        return self._results

    def _renewed(self, stored: dict[Job, Result]) -> Iterator[tuple[Job, Result]]:
        for job, result in stored.items():
            sample, case = result.sample, self.run.cases.get(job.case)
            if sample is None or case is None or sample.definitions >= DEFINITIONS:
                yield job, result
                continue
            client_side = _client_side(self.artifacts(job))
            if client_side is not None:
                sample = renewed(sample, client_side, case.forward)
            yield job, replace(result, sample=sample)


def _client_side(artifacts: Artifacts) -> Trace | None:
    """The trace at the client: its tables, or its capture; None when neither is left, or can be read."""
    try:
        if artifacts.client_tables.is_dir():
            return load_tables(artifacts.client_tables)
    except CaptureError:
        pass  # of another decoder: the capture may be there
    evidence = store.load_evidence(artifacts)
    if evidence is None or not artifacts.client_capture.is_file():
        return None
    try:
        drops = evidence.capture_drops
        return cached_decode(artifacts.client_capture, artifacts.key_logs, artifacts.client_tables, kernel_drops=drops)
    except CaptureError:
        return None
