"""The jobs of a run of paths in lanes: from the run's record to what a path's lane is asked to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.inputs.inputs import Material
from runner.lanes.lanes import Lanes
from runner.lanes.path_request import PathJob, SegmentSpec
from runner.lanes.path_wiring import path_environment
from runner.lanes.request import EndpointSpec
from runner.model.artifacts import Evidence
from runner.model.job import Job, job_seed
from runner.model.path import ORIGIN, PathEvidence, Side
from runner.model.run import CaseRecord, Run

KERNEL_CONTROLLERS = ("bbr", "cubic", "reno")  # of TCP, on every kernel that bentpipe runs on
_TUN = "/dev/net/tun:/dev/net/tun:rwm"


class PathEmulated:
    """A deployment whose jobs cross a path between two simulated segments. Construct with `open`."""

    def __init__(self, run: Run, lanes: Lanes, material: Callable[[CaseRecord, int], Material]) -> None:
        self._run = run
        self._lanes = lanes
        self._material = material

    @classmethod
    @contextmanager
    def open(
        cls,
        run: Run,
        *,
        lanes: int,
        material: Callable[[CaseRecord, int], Material],
        say: Callable[[str], None] = lambda _: None,
    ) -> Iterator["PathEmulated"]:
        """Up to `lanes` jobs at once. First removes what a killed runner left; at the end, everything of this one.

        `say`: told a sentence when the engine goes away, and when it is back.
        """
        with Lanes.open(run.name, lanes=lanes, say=say) as opened:
            yield cls(run, opened, material)

    def run(self, job: Job, folder: Path, *, attempt: int) -> Evidence:  # noqa: ARG002 - every attempt has the same seed
        """Run `job` in a lane of its own. Raises LaneError when the harness can't."""
        case, entry = self._run.cases[job.case], self._run.paths[job.client]
        workload, material = case.workload, self._material(case, self._run.seed)
        assert workload is not None, "a run of paths has workloads"
        side = EndpointSpec(
            image=entry.image,
            entrypoint=("/run_path.sh",),
            environment={
                **path_environment(),
                "SSLKEYLOGFILE": "/logs/keys.log",
                "QLOGDIR": "/logs/qlog/",
                **entry.parameters,
            },
            devices=(_TUN,),
        )
        controller = entry.parameters.get("CCA", "")
        return self._lanes.run_path(
            PathJob(
                job=job,
                folder=folder,
                client=EndpointSpec(image=material.image, environment=material.client),
                server=EndpointSpec(image=self._run.implementations[ORIGIN].image),
                sides=dict.fromkeys(entry.sides, side),
                satellite=SegmentSpec(forward=case.forward, return_=case.return_, path=case.impairments),
                ground=SegmentSpec(forward=workload.ground_forward, return_=workload.ground_return),
                seed=job_seed(self._run.seed, job),
                timeout=case.timeout,
                files=material.files,
                expected=material.expected,
                server_port=material.server_port,
                controllers={one.value: controller for one in Side if controller in KERNEL_CONTROLLERS},
                evidence=PathEvidence(entry=entry, seed=self._run.seed),
            )
        )

    def stop(self) -> None:
        """Make running jobs end soon."""
        self._lanes.stop()
