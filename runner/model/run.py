"""`run.json`: the plan of a run with all parameters and the host. It is written before the first job."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from runner.model.beside import BesideFlow
from runner.model.impairments import PathImpairments
from runner.model.job import Job
from runner.model.link_record import LinkParameters, LinkRecord
from runner.model.middlebox import Middlebox
from runner.model.protocol import WIRE_NAMES, protocol_of
from runner.model.real_link import RealLinkRecord

RUN_SCHEMA = 2


class Kind(StrEnum):
    """The kind of a case. A test case gives a yes or a no. A measurement gives numbers and has several iterations."""

    TEST_CASE = "test case"
    MEASUREMENT = "measurement"


class ClientKind(StrEnum):
    """The kind of client that a case needs."""

    STACK = "stack"  # an endpoint that follows the contract (docs/contract.md)
    DOWNLOADER = "downloader"  # curl, which gets the protocol as an option and records its own times
    BROWSER = "browser"  # Chromium, which loads the reference page

    @property
    def server(self) -> str:
        """The kind of server that this kind of client needs (`Implementation.kind`)."""
        return "stack" if self is ClientKind.STACK else "origin"


@dataclass(frozen=True, kw_only=True)
class CaseRecord:
    """A case over its link, as it was when the run was planned. So pages don't need the case's code, which may have
    changed since.

    `name` is `<case>[@link]`; `case` is this name without the link.
    """

    name: str
    case: str
    declared: str = ""  # the declared name, when options such as `--size` or `--warm` changed the case
    abbreviation: str
    kind: Kind
    description: str
    link: LinkRecord
    wire_names: dict[str, str]  # role → TESTCASE
    file_sizes: tuple[int, ...]
    timeout: float
    iterations: int
    host: str = "server4"
    name_length: int = 16
    chain_length: int = 1  # number of certificates in the server's chain
    chain_bytes: int = 0  # least size of that chain in bytes; 0: no least size, or an older run
    client: ClientKind = ClientKind.STACK
    alpn: str = ""  # protocol of a downloader or browser: http/1.1, h2, h3
    encrypted: bool = True  # True: TLS between client and server
    origins: int = 1  # number of servers over which the objects of a page are spread
    warm: bool = False  # True: the client first loads the same files once, and this first round is not measured
    beside: str = ""  # the second flow (model/beside.py); empty: the job has the link for itself

    @property
    def forward(self) -> LinkParameters:
        """The forward direction of the satellite segment."""
        return self.link.satellite.forward

    @property
    def return_(self) -> LinkParameters:
        """The return direction of the satellite segment."""
        return self.link.satellite.return_

    @property
    def impairments(self) -> PathImpairments:
        """The impairments of both directions of the satellite segment."""
        return self.link.satellite.impairments

    @property
    def real_link(self) -> RealLinkRecord | None:
        """The real link over which the case runs; None for an emulated link."""
        return self.link.real

    @property
    def page(self) -> bool:
        """True when a browser loads the reference page; otherwise `file_sizes` are downloaded."""
        return self.client is ClientKind.BROWSER

    @property
    def link_name(self) -> str:
        """The name of the link in `name`; empty for the case's own link."""
        return self.name.partition("@")[2]

    @property
    def title(self) -> str:
        """The declared name, with `+warm` and an added second flow, without file size and link."""
        added = f"+{self.added_beside}" if self.added_beside else ""
        return f"{self.declared or self.case}{'+warm' if self.warm else ''}{added}"

    @property
    def beside_stacks(self) -> tuple[str, ...]:
        """The names of the second flow's stacks; empty when there is no second flow."""
        return tuple(BesideFlow.of(self.beside).stacks.values()) if self.beside else ()

    @property
    def added_beside(self) -> str:
        """The second flow that a user added to the declaration; empty when there is none."""
        return self.beside if self.case.endswith(f"+{self.beside}") else ""

    @property
    def protocol(self) -> str:
        """The ALPN that endpoints speak by default."""
        return self.alpn or protocol_of(self.wire_names["client"])

    @property
    def has_chance(self) -> bool:
        """True when the seed decides what happens to packets."""
        return self.forward.has_chance or self.return_.has_chance

    def asks_the_same(self, other: "CaseRecord") -> bool:
        """True when the records differ at most in their descriptions for people."""
        return self == replace(other, description=self.description)

    def over(self, link: LinkRecord) -> "CaseRecord":
        """The case over another link, whose name becomes a part of the case's name."""
        return replace(
            self, name=f"{self.case}@{link.name}", abbreviation=f"{self.abbreviation}@{link.name}", link=link
        )


@dataclass(frozen=True, kw_only=True)
class ImplementationRecord:
    """A stack or middlebox as it was run."""

    name: str
    version: str
    url: str
    image: str
    language: str = ""
    congestion_control: str = ""
    initial_window: int | None = None
    image_id: str = ""  # digest of the image from the engine; it must be the same when the run is resumed
    image_digest: str = ""  # `NAME@sha256:…` in its registry; empty: the image was built here
    variant_of: str = ""  # the stack or middlebox of which this is a variant; empty: this is no variant
    parameters: dict[str, str] = field(default_factory=dict)  # environment variables of a variant (model/variant.py)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The content of `run.json`. `order`: the planned order of the jobs. With `shuffled` it is random, by `seed`."""

    schema: int = RUN_SCHEMA
    name: str
    started_unix_s: float
    bentpipe_version: str
    host: dict[str, str]
    seed: int  # seed of links, file contents and, with `shuffled`, the order of the jobs
    shuffled: bool
    clients: tuple[str, ...]
    servers: tuple[str, ...]
    cases: dict[str, CaseRecord]
    implementations: dict[str, ImplementationRecord]
    order: tuple[Job, ...]
    options: dict[str, str] = field(default_factory=dict)
    clock: str = "real"  # real, virtual, or auto: each case has its own clock
    clocks: dict[str, str] = field(default_factory=dict)  # with clock auto: real or virtual, by case
    guest: dict[str, str] = field(default_factory=dict)  # in virtual time: kernel, epoch, charge
    protocols: dict[str, str] = field(default_factory=dict)  # ALPN by `Job.cell`, when it isn't the case's ALPN
    vias: tuple[str, ...] = ("",)  # names of middleboxes; an empty name: no middlebox
    middleboxes: dict[str, Middlebox] = field(default_factory=dict)  # records of `vias`
    old_folders: dict[str, str] = field(
        default_factory=dict
    )  # folders of a run that began with schema 1, by `Job.cell`

    @cached_property
    def cells(self) -> dict[str, tuple[Job, ...]]:
        """The jobs of the plan by `Job.cell`, in the plan's order. They are grouped only once, because a plan may have
        100,000 jobs."""
        cells: dict[str, list[Job]] = {}
        for job in self.order:
            cells.setdefault(job.cell, []).append(job)
        return {cell: tuple(jobs) for cell, jobs in cells.items()}

    def case(self, job: Job) -> CaseRecord:
        """The case of a job over the job's link. Raises KeyError when the run has no such case."""
        return self.cases[job.case_link]

    def folder(self, job: Job) -> Path:
        """The job's folder, relative to the run's folder."""
        old = self.old_folders.get(job.cell)
        return job.path if old is None else Path(old) / str(job.iteration)

    def clock_of(self, case: str) -> str:
        """The clock of a case. All jobs of a case have the same clock, so that no summary mixes both clocks."""
        return self.clocks.get(case, self.clock)

    def protocol(self, job: Job) -> str:
        """The ALPN that is requested from the job's endpoints."""
        return self.protocols.get(job.cell, self.case(job).protocol)

    def wire_names(self, job: Job) -> dict[str, str]:
        """TESTCASE by role. A job over another protocol than its case's gets the TESTCASE of that protocol."""
        case, protocol = self.case(job), self.protocol(job)
        if protocol != case.protocol and protocol in WIRE_NAMES:
            return dict.fromkeys(case.wire_names, WIRE_NAMES[protocol])
        return case.wire_names
