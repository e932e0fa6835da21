"""From the run's record to what a lane, or a real link, is asked to do for one job of a pair."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from runner.inputs.inputs import environment, request_urls, served_files
from runner.lanes.request import EndpointSpec, LaneJob
from runner.model.implementation import Role
from runner.model.job import Job, job_seed
from runner.model.protocol import OVER_TCP
from runner.model.run import Run


def pair_request(
    run: Run,
    job: Job,
    folder: Path,
    *,
    specs: Mapping[tuple[str, Role], EndpointSpec] = MappingProxyType({}),
    port: int = 443,
) -> LaneJob:
    """`job`, ready to run. `port`: UDP, at which the client finds the server.

    `specs`: endpoints that are no plain images, by stack and role; a job's environment is added to theirs.
    """
    case, wire_names = run.cases[job.case], run.wire_names(job)
    files = served_files(run.seed, case.file_sizes, name_length=case.name_length)

    def endpoint(stack: str, role: Role, requests: str = "") -> EndpointSpec:
        entry = run.implementations[stack]
        spec = specs.get((stack, role)) or EndpointSpec(image=entry.image)
        asked = environment(role, testcase=wire_names[role.value], requests=requests, asked=entry.parameters)
        return replace(spec, environment={**spec.environment, **asked})

    return LaneJob(
        job=job,
        folder=folder,
        client=endpoint(job.client, Role.CLIENT, request_urls(files, host=case.host, port=port)),
        server=endpoint(job.server, Role.SERVER),
        forward=case.forward,
        return_=case.return_,
        path=case.impairments,
        chain_length=case.chain_length,
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=files,
        over_tcp=run.protocol(job) in OVER_TCP,
    )
