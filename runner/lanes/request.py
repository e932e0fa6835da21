"""What a lane is asked to do, and what a probe answers: plain frozen values, made by whoever knows test cases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.inputs.inputs import ServedFile
from runner.model.impairments import PathImpairments
from runner.model.job import Job
from runner.model.link_record import LinkParameters
from runner.model.middlebox import Box
from runner.model.topology import Topology
from runner.units import MIB


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """One endpoint's container. `environment` is complete but for ROLE, which the lane adds.

    `devices` are for middleboxes; `entrypoint` and `binds` (`host:container:mode`, the engine's words) for a local
    build, which has no image.
    """

    image: str
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None
    binds: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # of the host, `path:path:rwm`


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one endpoint may use. Beyond it, the engine refuses or kills; the record says so."""

    memory: int = 2048 * MIB  # bytes, without what it writes to its volumes
    processes: int = 1024
    cpus: float | None = None  # cores; None: as many as there are, its fair share of them
    logs: int = 512 * MIB  # bytes in /logs: a server that logs at debug level writes some 200 MiB in SAT
    output: int = 16 * MIB  # bytes printed before it counts as a flood and is killed
    root: int = 1024 * MIB  # bytes written to its root file system; beyond, it is killed
    declared: int = 256 * MIB  # bytes in each folder that its image declares as a volume
    largest_file: int = 1024 * MIB  # bytes of any file that it writes


@dataclass(frozen=True, kw_only=True)
class LaneJob:
    """One job, ready to run. `folder` is empty and gets all artifacts; `timeout` in seconds from the client's start.

    `expected`: what the client must have in /downloads at the end, None: all of `files`. `boxes`: where the middlebox
    of the topology runs. `server_port`: TCP, on which the server is ready; None: UDP port 443 of QUIC.
    """

    job: Job
    folder: Path
    client: EndpointSpec
    server: EndpointSpec
    topology: Topology
    seed: int  # of the links
    timeout: float
    files: tuple[ServedFile, ...]  # all that the server serves
    expected: tuple[ServedFile, ...] | None = None
    limits: Limits = Limits()
    chain_length: int = 1  # certificates in cert.pem
    wait_for_server: bool = True  # until it answers with Version Negotiation, over TCP until it listens
    server_port: int | None = None
    boxes: Mapping[Box, EndpointSpec] = field(default_factory=dict)
    content_seed: int = 0  # of the served content, for the judge of a middlebox
    controllers: Mapping[str, str] = field(default_factory=dict)  # TCP's congestion controller by role
    own_server: bool = False  # it is the harness's: its early end is no verdict
    lose_all: bool = False  # losses take packets of every protocol, not UDP alone

    @property
    def wanted(self) -> tuple[ServedFile, ...]:
        """What the client must have at the end."""
        return self.files if self.expected is None else self.expected

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
        """What the first segment does to both directions."""
        return self.topology.link.satellite.impairments


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """How an image answered a TESTCASE that nobody knows. `seconds` from the container's start to its end."""

    image: str
    role: str
    exit_code: int | None  # None: still running when the time was over, or never started
    seconds: float
    output: str  # the last lines
    problem: str = ""  # why it isn't compliant, a sentence; empty when it is

    @property
    def compliant(self) -> bool:
        return not self.problem
