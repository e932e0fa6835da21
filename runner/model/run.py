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
    """A test case asks a yes/no question; a measurement asks for numbers, several times."""

    TEST_CASE = "test case"
    MEASUREMENT = "measurement"


class ClientKind(StrEnum):
    """The kind of client that a case needs."""

    STACK = "stack"  # an endpoint that keeps the contract (docs/contract.md)
    DOWNLOADER = "downloader"  # curl, which gets the protocol and records its own times
    BROWSER = "browser"  # Chromium, which loads the reference page

    @property
    def server(self) -> str:
        """The kind of server that such a client needs (`Implementation.kind`)."""
        return "stack" if self is ClientKind.STACK else "origin"


@dataclass(frozen=True, kw_only=True)
class CaseRecord:
    """A case over its link, as it was when the run was planned, so that pages don't need the code of that day.

    `name` is `<case>[@link]`; `case` is the name of the question alone.
    """

    name: str
    case: str
    declared: str = ""  # the declaration's name, when `--size` or `--warm` changed the case
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
    chain_length: int = 1  # certificates of the server's chain
    chain_bytes: int = 0  # least number of iterations; 0: an older run
    client: ClientKind = ClientKind.STACK
    alpn: str = ""  # protocol of a downloader or browser: http/1.1, h2, h3
    encrypted: bool = True  # True: TLS between client and server
    origins: int = 1  # number of servers over which the objects of a page are spread
    warm: bool = False  # True: the client loads the same once before, uncounted
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
        """The real link over which the case runs; None when the link is emulated."""
        return self.link.real

    @property
    def page(self) -> bool:
        """True when a browser loads the reference page; otherwise `file_sizes` are downloaded."""
        return self.client is ClientKind.BROWSER

    @property
    def link_name(self) -> str:
        """The link of `name`; empty for the case's own."""
        return self.name.partition("@")[2]

    @property
    def title(self) -> str:
        """The declared name with `+warm` and an added second flow, but without size and link."""
        added = f"+{self.added_beside}" if self.added_beside else ""
        return f"{self.declared or self.case}{'+warm' if self.warm else ''}{added}"

    @property
    def beside_stacks(self) -> tuple[str, ...]:
        """The stacks of the second flow by name; empty without a second flow."""
        return tuple(BesideFlow.of(self.beside).stacks.values()) if self.beside else ()

    @property
    def added_beside(self) -> str:
        """The second flow that a user added to the declaration; empty without any."""
        return self.beside if self.case.endswith(f"+{self.beside}") else ""

    @property
    def protocol(self) -> str:
        """The ALPN that endpoints speak by default."""
        return self.alpn or protocol_of(self.wire_names["client"])

    @property
    def has_chance(self) -> bool:
        """True when another seed changes the fate of packets."""
        return self.forward.has_chance or self.return_.has_chance

    def asks_the_same(self, other: "CaseRecord") -> bool:
        """Whether only words for people differ."""
        return self == replace(other, description=self.description)

    def over(self, link: LinkRecord) -> "CaseRecord":
        """The case over another link, whose name becomes a part of the case's name."""
        return replace(
            self, name=f"{self.case}@{link.name}", abbreviation=f"{self.abbreviation}@{link.name}", link=link
        )


@dataclass(frozen=True, kw_only=True)
class ImplementationRecord:
    """A stack as it was run."""

    name: str
    version: str
    url: str
    image: str
    language: str = ""
    congestion_control: str = ""
    initial_window: int | None = None
    image_id: str = ""  # content digest that the engine gave; checked on resume
    image_digest: str = ""  # `NAME@sha256:…` in its registry; empty: built here
    variant_of: str = ""  # the stack beside which it stands; empty: it is one itself
    parameters: dict[str, str] = field(default_factory=dict)  # environment variables of a variant (model/variant.py)


@dataclass(frozen=True, kw_only=True)
class Run:
    """`run.json`. `order` is the order in which jobs were to run: shuffled by `seed` when it is set."""

    schema: int = RUN_SCHEMA
    name: str
    started_unix_s: float
    bentpipe_version: str
    host: dict[str, str]
    seed: int  # seed of links, file contents and, with `shuffled`, the order
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
    protocols: dict[str, str] = field(default_factory=dict)  # `Job.cell` → ALPN, where it isn't the case's
    vias: tuple[str, ...] = ("",)  # names of middleboxes; an empty name: no middlebox
    middleboxes: dict[str, Middlebox] = field(default_factory=dict)  # records of `vias`
    old_folders: dict[str, str] = field(
        default_factory=dict
    )  # `Job.cell` → its folder in a run that began with schema 1

    @cached_property
    def cells(self) -> dict[str, tuple[Job, ...]]:
        """The jobs of the plan by `Job.cell`, in the plan's order. Computed once: a plan may have 100,000 jobs."""
        cells: dict[str, list[Job]] = {}
        for job in self.order:
            cells.setdefault(job.cell, []).append(job)
        return {cell: tuple(jobs) for cell, jobs in cells.items()}

    def case(self, job: Job) -> CaseRecord:
        """The case of a job over the job's link. Raises KeyError when the run has no such case."""
        return self.cases[job.case_link]

    def folder(self, job: Job) -> Path:
        """The job's folder relative to the run's."""
        old = self.old_folders.get(job.cell)
        return job.path if old is None else Path(old) / str(job.iteration)

    def clock_of(self, case: str) -> str:
        """The clock of a case. All of its jobs have the same clock, so that no number mixes both."""
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
