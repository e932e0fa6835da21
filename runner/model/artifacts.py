"""The files that a job leaves, under fixed names, and the record of what happened while they were made."""

from dataclasses import dataclass, field
from pathlib import Path

from runner.model.implementation import Role
from runner.model.middlebox import Middlebox
from runner.model.real_link import RealLinkEvidence

EVIDENCE_SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class EndpointRecord:
    """The engine's record of one endpoint's container."""

    image: str
    image_id: str
    exit_code: int | None = None  # None: it never started, or was still running when the job ended
    timed_out: bool = False  # killed because the case's time-out had passed
    oom_killed: bool = False
    stopped_by_us: bool = False  # the server after SIGTERM, or the client after its server's end: no verdict then
    output_flooded: bool = False  # killed because it printed more than the limit
    started: float | None = None  # seconds since the job began
    ended: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    cpu_s: float = 0.0  # at the last measurement, one every 2 s; 0 for a shorter life
    throttled_s: float = 0.0  # the engine's CPU throttling; above the limit the job is disturbed
    cpu_pressure: float | None = None  # share of its life, until then, in which it stood still for want of a CPU
    skipped_files: tuple[str, ...] = ()  # members of its folders that were not copied out: links, devices, over budget
    volumes_full: tuple[str, ...] = ()  # its folders whose quota was used up, such as `/logs`


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One requested file, compared when the harness collected it. Sizes in bytes; `received` None: missing."""

    name: str
    size: int
    received: int | None
    equal: bool


@dataclass(frozen=True, kw_only=True)
class GuestEvidence:
    """Where a job in virtual time ran: the guest's kernel, what its chance follows from, what it cost this host."""

    kernel: str  # version
    epoch_unix_s: int  # virtual time when the guest booted
    seed: int
    charge: str = ""  # virtual time that endpoints pay for work (guest/README.md); empty: none
    virtual_s: float = 0.0  # of the guest's life
    host_s: float = 0.0
    cpu_s: float = 0.0  # of this host
    memory_left: int = 0  # bytes at the end, of what the guest has
    captures: dict[str, str] = field(default_factory=dict)  # SHA-256 of each as it was captured, by the role beside it

    @property
    def speed(self) -> float:
        """Guest seconds per host second."""
        return self.virtual_s / self.host_s if self.host_s else 0.0


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`evidence.json`: what a judge may know beside captures, key logs and qlogs."""

    schema: int = EVIDENCE_SCHEMA
    started_unix_s: float
    wall_s: float  # the whole job
    transfer_s: float  # from the client's start to its end
    stages_s: dict[str, float]  # seconds of each stage, by name
    client: EndpointRecord
    server: EndpointRecord
    boxes: dict[str, EndpointRecord] = field(default_factory=dict)  # of the middlebox, by the name of the box
    server_ready: bool | None  # None: readiness was not asked for
    server_udp_ports: tuple[int, ...] = ()  # what a server that did not become ready listened on instead
    files: tuple[FileRecord, ...]
    flooded: bool = False  # ended by us, because more packets were on the link than the files explain
    extra_files: tuple[str, ...] = ()  # in /downloads, but never requested
    capture_drops: int | None = None  # packets that the kernel dropped before the captures, both sides
    host_steal: float = 0.0  # fraction of CPU time stolen from this host during the job
    cpu_pressure: float | None = None  # share of the job's time in which some task of the host waited for a CPU
    real_link: RealLinkEvidence | None = None  # of a job over a real link, which has no simulator's truth
    via: Middlebox | None = None  # on the way
    content_seed: int | None = None  # of the served files, where a judge looks for their content
    guest: GuestEvidence | None = None  # of a job in virtual time
    error: dict[str, str] = field(default_factory=dict)  # code and message when the harness could not do its part

    @property
    def endpoint_pressures(self) -> dict[Role, float]:
        """`cpu_pressure` of an endpoint, times the CPUs that it used: to stand still costs only who has work to do.

        Empty where nobody knows, and with a middlebox, whose own work crowds the host.
        """
        if self.via is not None:
            return {}
        seconds = max(self.transfer_s, 1.0)
        sides = {Role.CLIENT: self.client, Role.SERVER: self.server}
        return {
            role: one.cpu_pressure * one.cpu_s / seconds for role, one in sides.items() if one.cpu_pressure is not None
        }


@dataclass(frozen=True)
class Artifacts:
    """The job's folder, by name. Every path may be missing: the judge says what is."""

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
        """Both ends of the satellite segment."""
        return self._capture("sim", "left"), self._capture("sim", "right")

    @property
    def client_capture(self) -> Path:
        """What the client sent and received, at its end of the link or, with boxes on the way, of its own network.

        With the job's secrets inside (pcapng) where it could be written so; else as it was captured.
        """
        own = self._capture("client", "client")
        return own if own.is_file() else self.link_captures[0]

    @property
    def server_capture(self) -> Path:
        """The same of the server."""
        behind = self._capture("ground", "right")
        own = self._capture("server", "server")
        return next((path for path in (own, behind) if path.is_file()), self.link_captures[1])

    def _capture(self, folder: str, name: str) -> Path:
        with_secrets = self.folder / folder / f"{name}.pcapng"
        return with_secrets if with_secrets.is_file() else with_secrets.with_suffix(".pcap")

    @property
    def link_truth(self) -> Path:
        return self.folder / "sim" / "truth.json"

    @property
    def captures(self) -> tuple[Path, ...]:
        """All that a job may have."""
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
        """Of a job that ran again: why each earlier attempt did not count, with what the tools printed."""
        return self.folder / "attempts.log"
