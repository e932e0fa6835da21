"""The description of a job for a lane, a guest or the hosts of a real link, made from the run's record."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner.inputs.inputs import ServedFile, environment, flood_limit, load, request_urls, served_files
from runner.model.link import NO_PATH_IMPAIRMENTS, LinkParameters, PathImpairments, Topology
from runner.model.run import CaseRecord, ClientKind, Job, Run, job_seed
from runner.model.stack import KERNEL_CONTROLLERS, BesideFlow, BesideRole, Box, Middlebox, Role, transport_of
from runner.places.network import LEFT_NETS, READY_PORT, RIGHT_NETS, box_environment
from runner.units import MIB

# The description of a job for a lane, and the result of a probe: frozen values, made by code that knows test cases.


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """The container of one endpoint. `environment` is complete except for ROLE, which the lane adds. `devices` are for
    middleboxes. `entrypoint` and `binds` (`host:container:mode`) are for a local build, which has no image.
    """

    image: str
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    binds: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # devices of the host, `path:path:rwm`


@dataclass(frozen=True, kw_only=True)
class EndpointLimits:
    """Limits of one endpoint. Beyond a limit, its calls fail or it is killed; the endpoint's record shows this."""

    memory: int = 2048 * MIB  # bytes of memory, without its volumes
    processes: int = 1024
    cpus: float | None = None  # cores; None: its fair share of all cores
    logs: int = 512 * MIB  # bytes in /logs: a server that logs at debug level writes about 200 MiB in SAT
    output: int = 16 * MIB  # bytes of output; with more, the endpoint is killed
    root: int = 1024 * MIB  # bytes written to the root file system; with more, the endpoint is killed
    declared: int = 256 * MIB  # bytes in each folder that its image declares as a volume
    largest_file: int = 1024 * MIB  # bytes of a single file


@dataclass(frozen=True, kw_only=True)
class LaneJob:
    """One job, ready to run. `folder` is empty and gets all artifacts; `timeout` in seconds from the client's start.
    `expected`: the files that the client must have in /downloads at the end; None: all of `files`. `boxes`: the
    middlebox's containers. `server_port`: the TCP port on which the server listens; None: QUIC on UDP port 443.
    """

    job: Job
    folder: Path
    client: EndpointSpec
    server: EndpointSpec
    topology: Topology
    seed: int  # seed of the links
    timeout: float
    files: tuple[ServedFile, ...]  # all files that the server serves
    expected: tuple[ServedFile, ...] | None = None
    limits: EndpointLimits = EndpointLimits()
    chain_length: int = 1  # number of certificates in cert.pem
    wait_for_server: bool = True  # True: wait until the server sends Version Negotiation or, over TCP, listens
    server_port: int | None = None
    boxes: Mapping[Box, EndpointSpec] = field(default_factory=dict)
    content_seed: int = 0  # seed of the served content, for the judge of a middlebox
    controllers: Mapping[str, str] = field(default_factory=dict)  # TCP's congestion controller by role
    own_server: bool = False  # True: the server belongs to the harness, so its early end is an error of the harness
    beside: Mapping[BesideRole, EndpointSpec] = field(default_factory=dict)  # a second flow, through the first segment
    beside_files: tuple[ServedFile, ...] = ()  # the file that the second flow downloads
    beside_over_tcp: bool = False

    @property
    def required_files(self) -> tuple[ServedFile, ...]:
        """The files that the client must have at the end."""
        return self.files if self.expected is None else self.expected

    @property
    def lose_all(self) -> bool:
        """True when losses take packets of every protocol, not only UDP: the link carries other packets than those of
        end-to-end QUIC."""
        return self.topology.routed or self.server_port is not None

    @property
    def flood(self) -> int | None:
        """The bytes of one side after which a segment carries nothing more. None: there is no limit, because the origin
        is trusted, or because a second flow sends as long as the job's own flow."""
        return None if self.own_server or self.beside else flood_limit([file.size for file in self.files])

    @property
    def forward(self) -> LinkParameters:
        """The forward direction of the first segment."""
        return self.topology.link.satellite.forward

    @property
    def return_(self) -> LinkParameters:
        """The return direction of the first segment."""
        return self.topology.link.satellite.return_

    @property
    def path(self) -> PathImpairments:
        """The impairments of both directions of the first segment."""
        return self.topology.link.satellite.impairments


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The result of an image with an unknown TESTCASE. `seconds`: from the container's start to its end."""

    image: str
    role: str
    exit_code: int | None  # None: it was still running at the end, or never started
    seconds: float
    output: str  # the last lines of output
    problem: str = ""  # a sentence that says why the image isn't compliant; empty when it is compliant

    @property
    def compliant(self) -> bool:
        return not self.problem


# Makes the description of one job, for a lane, a guest or the hosts of a real link, from the run's record.

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


# Turns the parameters of a segment into the simulator's JSON document (sim/README.md). Only this module knows the
# document's form.

LOGS = "/logs"
TRUTH = "truth.json"
PACKETS = "packets.bin"


def link_documents(job: LaneJob) -> dict[str, dict[str, Any]]:
    """The documents of a job's segments, by the name of the segment. Each segment has its own seed, which also chooses
    where changes that repeat begin; they are written out for the time of the job."""
    link = job.topology.link.begun(job.seed, job.timeout)
    return {
        name: link_document(
            forward=segment.forward,
            return_=segment.return_,
            seed=job.seed ^ number,
            path=segment.impairments,
            lose_all=job.lose_all,
            flood=job.flood,
        )
        for number, (name, segment) in enumerate(replace(job.topology, link=link).segments.items())
    }


def _direction(way: LinkParameters) -> dict[str, Any]:
    """One direction of the document. The simulator gets changes that happen once."""
    document = asdict(way)
    impairments = document["impairments"]
    del impairments["changes_period"], impairments["changes_start"]
    return document


def link_document(
    *,
    forward: LinkParameters,
    return_: LinkParameters,
    seed: int,
    path: PathImpairments = NO_PATH_IMPAIRMENTS,
    lose_all: bool = False,
    flood: int | None = None,
) -> dict[str, Any]:
    """The document for a simulator whose eth0 leads to the client and whose eth1 leads to the server.

    `lose_all`: losses affect packets of every protocol, not only UDP. `flood`: bytes, counted as in a capture; when one
    side sends more, the link carries nothing more. Directions and impairments are written with the field names of their
    dataclasses, so that each of them has the same name everywhere.
    """
    return {
        "left": {"interface": "eth0", "foreign": RIGHT_NETS},
        "right": {"interface": "eth1", "foreign": LEFT_NETS},
        "forward": _direction(forward),
        "return": _direction(return_),
        "impairments": asdict(path),
        "loss_protocol": "any" if lose_all else "udp",
        "seed": seed,
        "flood": flood or 0,
        "truth": f"{LOGS}/{TRUTH}",
        "packets": f"{LOGS}/{PACKETS}",
        "ready_port": READY_PORT,
    }
