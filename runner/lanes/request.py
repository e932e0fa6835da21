"""The description of a job for a lane, and the result of a probe: frozen values, made by code that knows test cases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.inputs.inputs import ServedFile, flood_limit
from runner.model.beside import BesideRole
from runner.model.impairments import PathImpairments
from runner.model.job import Job
from runner.model.link_record import LinkParameters
from runner.model.middlebox import Box
from runner.model.topology import Topology
from runner.units import MIB


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
class Limits:
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
    limits: Limits = Limits()
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
