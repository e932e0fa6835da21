"""Makes the description of one job, for a lane, a guest or the hosts of a real link, from the run's record."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from runner.inputs.inputs import environment, request_urls, served_files
from runner.inputs.loads import load
from runner.lanes.network import box_environment
from runner.lanes.request import EndpointSpec, LaneJob
from runner.model.beside import KERNEL_CONTROLLERS, BesideFlow, BesideRole
from runner.model.implementation import Role
from runner.model.job import Job, job_seed
from runner.model.middlebox import Box, Middlebox
from runner.model.protocol import transport_of
from runner.model.run import CaseRecord, ClientKind, Run
from runner.model.topology import Topology
from runner.units import MIB

_HTTPS = 443
_LARGEST_BESIDE = 256 * MIB  # largest file of a second flow, in bytes: its client keeps the file in memory
_TUN = "/dev/net/tun:/dev/net/tun:rwm"

Specs = Mapping[tuple[str, Role], EndpointSpec]


def lane_job(run: Run, job: Job, folder: Path, *, specs: Specs = MappingProxyType({}), port: int = 443) -> LaneJob:
    """The description of `job`, ready to run. `port`: the server's UDP port. `specs`: endpoints that are not plain
    images, by stack and role; the environment of the job is added to their environment.
    """
    case = run.case(job)
    topology = Topology(
        link=case.link, middlebox=run.middleboxes[job.via] if job.via else None, beside=bool(case.beside)
    )
    if case.client is ClientKind.STACK:
        planned = _stack_job(run, job, folder, topology, specs=specs, port=port)
    else:
        planned = _workload_job(run, job, folder, topology)
    if case.beside:
        planned = _add_second_flow(planned, run, case)
    return planned if topology.middlebox is None else _add_boxes(planned, topology.middlebox)


def _add_boxes(planned: LaneJob, middlebox: Middlebox) -> LaneJob:
    spec = EndpointSpec(
        image=middlebox.image,
        entrypoint=("/run_box.sh",),
        environment={
            **box_environment(),
            "SSLKEYLOGFILE": "/logs/keys.log",
            "QLOGDIR": "/logs/qlog/",
            **middlebox.parameters,
        },
        devices=(_TUN,),
    )
    return replace(planned, boxes=dict.fromkeys(middlebox.boxes, spec), controllers=_controllers(middlebox))


def _controllers(middlebox: Middlebox) -> dict[str, str]:
    """TCP's congestion controller at both routers; empty unless a variant sets a controller of the kernel."""
    controller = middlebox.parameters.get("CCA", "")
    return {box.value: controller for box in Box if controller in KERNEL_CONTROLLERS}


def _stack_job(run: Run, job: Job, folder: Path, topology: Topology, *, specs: Specs, port: int) -> LaneJob:
    case, wire_names = run.case(job), run.wire_names(job)
    files = served_files(run.seed, case.file_sizes, name_length=case.name_length)

    def endpoint(stack: str, role: Role, requests: str = "") -> EndpointSpec:
        entry = run.implementations[stack]
        spec = specs.get((stack, role)) or EndpointSpec(image=entry.image)
        variables = environment(role, testcase=wire_names[role.value], requests=requests, parameters=entry.parameters)
        return replace(spec, environment={**spec.environment, **variables})

    return LaneJob(
        job=job,
        folder=folder,
        client=endpoint(job.client, Role.CLIENT, request_urls(files, host=case.host, port=port)),
        server=endpoint(job.server, Role.SERVER),
        topology=topology,
        chain_length=case.chain_length,
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=files,
        server_port=_HTTPS if transport_of(run.protocol(job)) == "tcp" else None,
        content_seed=run.seed,
    )


def _add_second_flow(planned: LaneJob, run: Run, case: CaseRecord) -> LaneJob:
    """Add a second flow to the job: a download that would take the whole time-out of the case if nothing else used the
    link."""
    flow = BesideFlow.of(case.beside)
    size = min(_LARGEST_BESIDE, round(case.forward.data_rate * case.timeout / 8))
    files = served_files(run.seed, (size,))

    def endpoint(role: BesideRole) -> EndpointSpec:
        requests = request_urls(files) if role is BesideRole.CLIENT else ""
        stack = run.implementations[flow.stacks[role]]
        parameters = {**stack.parameters, **flow.parameters}
        variables = environment(role.role, testcase=flow.wire_name, requests=requests, parameters=parameters)
        return EndpointSpec(image=stack.image, environment=variables)

    return replace(
        planned,
        beside={role: endpoint(role) for role in BesideRole},
        beside_files=files,
        beside_over_tcp=flow.over_tcp,
    )


def _workload_job(run: Run, job: Job, folder: Path, topology: Topology) -> LaneJob:
    """A download by curl or a page load by a browser, from the origin."""
    case = run.case(job)
    workload = load(case, run.seed)
    return LaneJob(
        job=job,
        folder=folder,
        client=EndpointSpec(image=run.implementations[job.client].image, environment=workload.environment),
        server=EndpointSpec(image=run.implementations[job.server].image),
        topology=topology,
        seed=job_seed(run.seed, job),
        timeout=case.timeout,
        files=workload.files,
        expected=workload.expected,
        server_port=workload.server_port,
        content_seed=run.seed,
        own_server=True,
    )
