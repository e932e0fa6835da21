"""Measures stored jobs again when their numbers have older definitions. Verdicts don't change."""

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
    """A stored run whose numbers follow today's definitions, as far as its packets still exist. Results on disk don't
    change."""

    @classmethod
    def of(cls, folder: RunFolder) -> "RenewedRun":
        """The run of `folder`."""
        return cls(folder.path, folder.run, folder.skip)

    @cached_property
    def _results(self) -> dict[Job, Result]:
        return dict(self._renewed(super().results()))

    def results(self) -> dict[Job, Result]:
        """The results, measured again at the first call. A sample that can't be measured again keeps its older
        definitions."""
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
    """The trace at the client, from its tables or its capture; None when neither can be read."""
    try:
        if artifacts.client_tables.is_dir():
            return load_tables(artifacts.client_tables)
    except CaptureError:
        pass  # another version of the decoder wrote the tables; the capture may still exist
    evidence = store.load_evidence(artifacts)
    if evidence is None or not artifacts.client_capture.is_file():
        return None
    try:
        drops = evidence.capture_drops
        return cached_decode(artifacts.client_capture, artifacts.key_logs, artifacts.client_tables, kernel_drops=drops)
    except CaptureError:
        return None
