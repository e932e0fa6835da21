"""The files of a job under fixed names, and the harness's record of the job."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from runner.model.implementation import Role
from runner.model.middlebox import Middlebox
from runner.model.real_link import RealLinkEvidence

EVIDENCE_SCHEMA = 3


class InterfaceChangeKind(StrEnum):
    """A change of an endpoint's interface eth0 that can keep packets from the endpoint."""

    OFF = "off"
    DELETED = "deleted"
    MTU = "mtu"
    MAC = "mac"
    ADDRESS = "address"  # an address was removed
    OVERRUN = "overrun"  # more changes than can be noted


@dataclass(frozen=True, kw_only=True)
class InterfaceChange:
    """A change that was made while the endpoint ran. In a lane, only the endpoint can have made it."""

    kind: InterfaceChangeKind
    value: str = ""  # the new MTU in bytes, the new MAC address, or the removed address
    time: float  # seconds since the job began


@dataclass(frozen=True, kw_only=True)
class EndpointRecord:
    """The engine's record of one endpoint's container."""

    image: str
    image_id: str
    exit_code: int | None = None  # None: the container never started, or was still running when the job ended
    timed_out: bool = False  # True: it was killed because the case's time-out had passed
    oom_killed: bool = False
    stopped_by_us: bool = False  # True, no verdict: the server ended by SIGTERM, or the client after the server's end
    output_flooded: bool = False  # True: it was killed because it printed more than the limit
    started: float | None = None  # seconds since the job began
    ended: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    cpu_s: float = 0.0  # CPU seconds until the last measurement (one every 2 s); 0 when it ended before the first one
    throttled_s: float = 0.0  # seconds of CPU throttling by the engine; above the limit the job is disturbed
    cpu_pressure: float | None = None  # share of its time until the last measurement in which it waited for a CPU
    skipped_files: tuple[str, ...] = ()  # files that were not copied from its folders: links, devices, over the limit
    volumes_full: tuple[str, ...] = ()  # folders whose quota was used up, such as `/logs`
    interface_changes: tuple[InterfaceChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One requested file. The harness compared it with the server's file. Sizes are in bytes; `received` is None when
    the file is missing."""

    name: str
    size: int
    received: int | None
    equal: bool


@dataclass(frozen=True, kw_only=True)
class GuestEvidence:
    """The guest of a job in virtual time: its kernel, the inputs of its random numbers, and its cost on this host."""

    kernel: str  # version of the guest's kernel
    epoch_unix_s: int  # virtual time when the guest booted
    seed: int
    charge: str = ""  # virtual time that the endpoints' CPU work takes (guest/README.md); empty: no time
    virtual_s: float = 0.0  # virtual seconds from the guest's start to its end
    host_s: float = 0.0  # seconds that the guest ran on this host
    cpu_s: float = 0.0  # CPU seconds that the guest used on this host
    memory_left: int = 0  # free bytes of the guest's memory at the end
    work: dict[str, dict[str, float]] = field(default_factory=dict)  # by role: syscalls, faults, cpu_s
    least_s: float = 0.0  # shortest uninterrupted time of an endpoint in user code; 0: CPU work was not measured
    captures: dict[str, str] = field(default_factory=dict)  # SHA-256 of each capture, by the nearest endpoint

    @property
    def speed(self) -> float:
        """Virtual seconds of the guest per second of the host."""
        return self.virtual_s / self.host_s if self.host_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`evidence.json`: the harness's record of a job. A judge reads it together with captures, key logs and qlogs."""

    schema: int = EVIDENCE_SCHEMA
    started_unix_s: float
    wall_s: float  # seconds of the whole job
    transfer_s: float  # seconds from the client's start to its end
    stages_s: dict[str, float]  # seconds of each stage, by name
    client: EndpointRecord
    server: EndpointRecord
    boxes: dict[str, EndpointRecord] = field(default_factory=dict)  # boxes of the middlebox, by name
    beside: dict[str, EndpointRecord] = field(default_factory=dict)  # endpoints of the second flow, by BesideRole
    server_ready: bool | None  # None: readiness was not checked
    server_udp_ports: tuple[int, ...] = ()  # UDP ports of a server that did not become ready
    files: tuple[FileRecord, ...]
    flooded: bool = False  # True: the harness ended the job, because it had far more packets than the files need
    extra_files: tuple[str, ...] = ()  # files in /downloads that were never requested
    capture_drops: int | None = None  # packets that the kernel dropped before the captures, both sides
    host_steal: float = 0.0  # fraction of CPU time stolen from this host during the job
    cpu_pressure: float | None = None  # share of the job's time in which some task of the host waited for a CPU
    real_link: RealLinkEvidence | None = None  # for a job over a real link, which has no simulator
    via: Middlebox | None = None  # the middlebox between client and server
    content_seed: int | None = None  # seed of the served files, for whose contents a judge searches on the link
    guest: GuestEvidence | None = None  # for a job in virtual time
    host: dict[str, str] = field(default_factory=dict)  # facts of the worker's host; empty: the runner's own host
    error: dict[str, str] = field(default_factory=dict)  # code and message when the harness could not do its part

    @property
    def endpoint_pressures(self) -> dict[Role, float]:
        """By endpoint: `cpu_pressure` times the number of CPUs that the endpoint used. The factor is there because
        waiting matters only for an endpoint that has work. Endpoints with unknown pressure are left out. With a
        middlebox the result is empty, because the middlebox's own work loads the host.
        """
        if self.via is not None:
            return {}
        seconds = max(self.transfer_s, 1.0)
        sides = {Role.CLIENT: self.client, Role.SERVER: self.server}
        return {
            role: record.cpu_pressure * record.cpu_s / seconds
            for role, record in sides.items()
            if record.cpu_pressure is not None
        }


@dataclass(frozen=True)
class Artifacts:
    """The files in a job's folder, by name. Every file may be missing: the judge reports that."""

    folder: Path

    @property
    def evidence(self) -> Path:
        return self.folder / "evidence.json"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def series(self) -> Path:
        return self.folder / "series.json"

    @property
    def link_captures(self) -> tuple[Path, Path]:
        """The captures at both ends of the satellite segment."""
        return self._capture("sim", "left"), self._capture("sim", "right")

    @property
    def client_capture(self) -> Path:
        """The capture at the client: of the client's own network when there are boxes, otherwise of the client's end of
        the link. It is a pcapng file with the job's secrets, or the original capture when that file does not exist.
        """
        at_client = self._capture("client", "client")
        return at_client if at_client.is_file() else self.link_captures[0]

    @property
    def server_capture(self) -> Path:
        """The capture at the server, with the same choice of file as for the client."""
        behind = self._capture("ground", "right")
        at_server = self._capture("server", "server")
        return next((path for path in (at_server, behind) if path.is_file()), self.link_captures[1])

    def _capture(self, folder: str, name: str) -> Path:
        with_secrets = self.folder / folder / f"{name}.pcapng"
        return with_secrets if with_secrets.is_file() else with_secrets.with_suffix(".pcap")

    @property
    def link_truth(self) -> Path:
        return self.folder / "sim" / "truth.json"

    @property
    def captures(self) -> tuple[Path, ...]:
        """All captures that a job may have."""
        ground = self._capture("ground", "left"), self._capture("ground", "right")
        return tuple(dict.fromkeys((*self.link_captures, self.client_capture, self.server_capture, *ground)))

    @property
    def ground_truth(self) -> Path:
        return self.folder / "ground" / "truth.json"

    @property
    def key_logs(self) -> tuple[Path, ...]:
        """The key logs that exist and are not empty, the client's first."""
        paths = (self.folder / "client" / "keys.log", self.folder / "server" / "keys.log")
        return tuple(path for path in paths if path.is_file() and path.stat().st_size)

    @property
    def client_tables(self) -> Path:
        return self.folder / "tables" / "client"

    @property
    def server_tables(self) -> Path:
        return self.folder / "tables" / "server"

    @property
    def output_log(self) -> Path:
        return self.folder / "output.log"

    @property
    def attempts_log(self) -> Path:
        """The log with the reason why each earlier attempt of a repeated job did not count, and the tools' output."""
        return self.folder / "attempts.log"
