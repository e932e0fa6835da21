"""The deployment in lanes of this host. It makes a job for a lane from the run's record, and runs this job."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from runner.lanes.lane_job import lane_job
from runner.lanes.lanes import Lanes
from runner.lanes.request import EndpointSpec
from runner.model.artifacts import Evidence
from runner.model.deployment import Deployment
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.run import ClientKind, Run
from runner.store import write_atomically


class Emulated(Deployment):
    """A deployment whose links are simulated. Construct it with open lanes, or with `open`, which opens lanes."""

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
        """Run up to `lanes` jobs at the same time. Removes leftovers of killed runners at the start and everything of
        this runner at the end. `say` is called with a sentence when the engine stops answering, and when it answers
        again. `specs`: endpoints that are not plain images, by stack and role; the environment of a job is added to
        their environment.
        """
        with Lanes.open(run.name, lanes=lanes, say=say) as opened:
            yield cls(run, opened, specs or {})

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt has the same seed
        """Run `job` in a free lane. Raises LaneError when the harness can't run it."""
        return self._lanes.run(lane_job(self._run, job, folder, specs=self._specs))

    def probe(self, record: Path, jobs: Iterable[Job]) -> dict[tuple[str, Role], str]:
        """The reasons why stacks of `jobs` break the contract, by name and role. Each image is probed once per role;
        the file `record` (JSON, by image id) stores the results for later calls.
        """
        # The downloader, the browser and the origin of this project have another contract.
        stack_jobs = [job for job in jobs if self._run.case(job).client is ClientKind.STACK]
        endpoints = {(job.server, Role.SERVER) for job in stack_jobs} | {
            (job.client, Role.CLIENT) for job in stack_jobs
        }
        known: dict[str, dict[str, object]] = json.loads(record.read_bytes()) if record.is_file() else {}
        problems = {}
        for name, role in sorted(endpoints):
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
