"""The jobs of a run in lanes: from the run's record to what a lane is asked to do."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.lanes.lane_job import lane_job
from runner.lanes.lanes import Lanes
from runner.lanes.request import EndpointSpec
from runner.model.artifacts import Evidence
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.run import Run
from runner.store import write_atomically


class Emulated:
    """A deployment whose links are simulated, over lanes that are open, or with lanes of its own by `open`."""

    def __init__(self, run: Run, lanes: Lanes, specs: Mapping[tuple[str, Role], EndpointSpec]) -> None:
        self._run = run
        self._lanes = lanes
        self._specs = specs

    @classmethod
    @contextmanager
    def open(
        cls,
        run: Run,
        *,
        lanes: int,
        specs: Mapping[tuple[str, Role], EndpointSpec] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator["Emulated"]:
        """Up to `lanes` jobs at once. First removes what a killed runner left; at the end, everything of this one.

        `say`: told a sentence when the engine goes away, and when it is back.

        `specs`: endpoints that are no plain images, by stack and role; a job's environment is added to theirs.
        """
        with Lanes.open(run.name, lanes=lanes, say=say) as opened:
            yield cls(run, opened, specs or {})

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt has the same seed
        """Run `job` in a free lane. Raises LaneError when the harness can't."""
        return self._lanes.run(lane_job(self._run, job, folder, specs=self._specs))

    def probe(self, record: Path, jobs: Iterable[Job]) -> dict[tuple[str, Role], str]:
        """Why stacks of `jobs` break the contract, by name and role; empty when none does.

        Each image is asked once per role: `record` (JSON, by image id) keeps the answers over the run's sessions.
        """
        wanted = {(job.server, Role.SERVER) for job in jobs} | {(job.client, Role.CLIENT) for job in jobs}
        known: dict[str, dict[str, object]] = json.loads(record.read_bytes()) if record.is_file() else {}
        problems = {}
        for name, role in sorted(wanted):
            stack = self._run.implementations[name]
            key = f"{stack.variant_of or name}/{role.value}/{stack.image_id}"  # a variant has the image of its stack
            if key not in known:
                answer = self._lanes.probe(stack.image, role)
                known[key] = {"exit_code": answer.exit_code, "seconds": answer.seconds, "problem": answer.problem}
                write_atomically(record, json.dumps(known, indent=1, sort_keys=True).encode())
            if problem := str(known[key]["problem"]):
                problems[name, role] = problem
        return problems

    def stop(self) -> None:
        """Make running jobs end soon."""
        self._lanes.stop()
