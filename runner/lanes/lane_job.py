"""From the run's record to what a lane, a guest or the hosts of a real link are asked to do for one job."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from runner.inputs.inputs import environment, request_urls, served_files
from runner.inputs.loads import load
from runner.lanes.network import box_environment
from runner.lanes.request import EndpointSpec, LaneJob
from runner.model.implementation import Role
from runner.model.job import Job, job_seed
from runner.model.middlebox import Box, Middlebox
from runner.model.protocol import transport_of
from runner.model.run import CaseRecord, ClientKind, Run
from runner.model.topology import Topology

KERNEL_CONTROLLERS = ("bbr", "cubic", "reno")  # of TCP, on every kernel that bentpipe runs on
_HTTPS = 443
_TUN = "/dev/net/tun:/dev/net/tun:rwm"

Specs = Mapping[tuple[str, Role], EndpointSpec]


def lane_job(run: Run, job: Job, folder: Path, *, specs: Specs = MappingProxyType({}), port: int = 443) -> LaneJob:
    """`job`, ready to run. `port`: UDP, at which the client finds the server.

    `specs`: endpoints that are no plain images, by stack and role; a job's environment is added to theirs.
    """
    case = run.case(job)
    asked = _of_stacks(run, job, folder, specs, port) if case.client is ClientKind.STACK else _of_load(run, job, folder)
    box = run.middleboxes[job.via] if job.via else None
    if box is None:
        return asked
    spec = EndpointSpec(
        image=box.image,
        entrypoint=("/run_path.sh",),
        environment={
            **box_environment(),
            "SSLKEYLOGFILE": "/logs/keys.log",
            "QLOGDIR": "/logs/qlog/",
            **box.parameters,
        },
        devices=(_TUN,),
    )
    return replace(
        asked,
        topology=Topology(link=case.link, middlebox=box),
        boxes=dict.fromkeys(box.boxes, spec),
        controllers=_controllers(box),
        lose_all=True,
    )


def _controllers(box: Middlebox) -> dict[str, str]:
    """TCP's congestion controller at both routers, where a variant asks for one of the kernel's."""
    controller = box.parameters.get("CCA", "")
    return {one.value: controller for one in Box if controller in KERNEL_CONTROLLERS}


def _of_stacks(run: Run, job: Job, folder: Path, specs: Specs, port: int) -> LaneJob:
    case, wire_names = run.case(job), run.wire_names(job)
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
        topology=Topology(link=case.link),
        chain_length=case.chain_length,
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=files,
        server_port=_HTTPS if transport_of(run.protocol(job)) == "tcp" else None,
        content_seed=run.seed,
        lose_all=_loses_all(case, run.protocol(job)),
    )


def _of_load(run: Run, job: Job, folder: Path) -> LaneJob:
    """A download by curl or a page load by a browser, from the origin."""
    case = run.case(job)
    asked = load(case, run.seed)
    return LaneJob(
        job=job,
        folder=folder,
        client=EndpointSpec(image=run.implementations[job.client].image, environment=asked.environment),
        server=EndpointSpec(image=run.implementations[job.server].image),
        topology=Topology(link=case.link),
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=asked.files,
        expected=asked.expected,
        server_port=asked.server_port,
        content_seed=run.seed,
        own_server=True,
        lose_all=True,
    )


def _loses_all(case: CaseRecord, protocol: str) -> bool:
    """Whether the link's losses take TCP too: what crosses it is not QUIC between both ends alone."""
    return transport_of(protocol) == "tcp" or len(case.link.segments) > 1
