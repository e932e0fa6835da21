"""`run.json`: what was asked, of whom, with which parameters, on which host. Written before the first job."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from runner.model.impairments import PathImpairments
from runner.model.job import Job
from runner.model.link_record import LinkParameters, LinkRecord
from runner.model.middlebox import Middlebox
from runner.model.protocol import OVER_TCP, WIRE_NAMES, protocol_of
from runner.model.real_link import RealLinkRecord

RUN_SCHEMA = 2


class Kind(StrEnum):
    """A test case asks a yes/no question; a measurement asks for numbers, several times."""

    TEST_CASE = "test case"
    MEASUREMENT = "measurement"


class ClientKind(StrEnum):
    """The kind of client that a case needs."""

    STACK = "stack"  # an endpoint that keeps the contract (docs/contract.md)
    DOWNLOADER = "downloader"  # curl, which is told the protocol and records its own times
    BROWSER = "browser"  # it loads the reference page

    @property
    def server(self) -> str:
        """The kind of server that such a client asks (`Implementation.kind`)."""
        return "stack" if self is ClientKind.STACK else "origin"


@dataclass(frozen=True, kw_only=True)
class CaseRecord:
    """A case over its link, as it was when the run was planned, so that the page needs no code of that day.

    `name` is `<case>[@link]`; `case` is the name of the question alone.
    """

    name: str
    case: str
    declared: str = ""  # the declaration's name, where `--size` or `--warm` made another question of it
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
    chain_bytes: int = 0  # that it has at least; 0: nobody kept it
    client: ClientKind = ClientKind.STACK
    alpn: str = ""  # what a downloader or browser is told to speak: http/1.1, h2, h3
    encrypted: bool = True  # TLS end to end
    origins: int = 1  # over how many the objects of a page are spread
    warm: bool = False  # the client has loaded the same once before, uncounted

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
        """What the satellite segment does to both directions."""
        return self.link.satellite.impairments

    @property
    def real_link(self) -> RealLinkRecord | None:
        """The real link over which the case runs; None when the link is emulated."""
        return self.link.real

    @property
    def page(self) -> bool:
        """Whether a browser loads the reference page; otherwise `file_sizes` are downloaded."""
        return self.client is ClientKind.BROWSER

    @property
    def link_name(self) -> str:
        """The link of `name`; empty for the case's own."""
        return self.name.partition("@")[2]

    @property
    def title(self) -> str:
        """The declared name, and whether it is warm; without size and link."""
        return f"{self.declared or self.case}+warm" if self.warm else self.declared or self.case

    @property
    def protocol(self) -> str:
        """The ALPN that endpoints speak unless they share another one only."""
        return self.alpn or protocol_of(self.wire_names["client"])

    @property
    def has_chance(self) -> bool:
        """Whether another seed puts it to other packets."""
        return self.forward.has_chance or self.return_.has_chance

    def over(self, link: LinkRecord) -> "CaseRecord":
        """The same question over another link, which becomes a part of its name."""
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
    image_digest: str = ""  # `NAME@sha256:…` under which a registry has it; empty: built here
    variant_of: str = ""  # the stack beside which it stands; empty: it is one itself
    parameters: dict[str, str] = field(default_factory=dict)  # of a variant: environment variables (model/variant.py)


@dataclass(frozen=True, kw_only=True)
class Run:
    """`run.json`. `order` is the order in which jobs were to run: shuffled by `seed` when it is set."""

    schema: int = RUN_SCHEMA
    name: str
    started_unix_s: float
    bentpipe_version: str
    host: dict[str, str]
    seed: int  # of links, file contents and, with `shuffled`, of the order
    shuffled: bool
    clients: tuple[str, ...]
    servers: tuple[str, ...]
    cases: dict[str, CaseRecord]
    implementations: dict[str, ImplementationRecord]
    order: tuple[Job, ...]
    options: dict[str, str] = field(default_factory=dict)
    clock: str = "real"  # or virtual, or auto: each case has its own
    clocks: dict[str, str] = field(default_factory=dict)  # of a run whose clock is auto: real or virtual, by case
    guest: dict[str, str] = field(default_factory=dict)  # of virtual time: kernel, epoch, charge
    protocols: dict[str, str] = field(default_factory=dict)  # `Job.cell` → ALPN, where not the case's
    vias: tuple[str, ...] = ("",)  # middleboxes by name; empty: none on the way
    middleboxes: dict[str, Middlebox] = field(default_factory=dict)  # those of `vias`
    old_folders: dict[str, str] = field(
        default_factory=dict
    )  # `Job.cell` → its folder in a run that began with schema 1

    def case(self, job: Job) -> CaseRecord:
        """The case of a job over the job's link. Raises KeyError when the run has no such case."""
        return self.cases[job.case_link]

    def folder(self, job: Job) -> Path:
        """The job's folder relative to the run's."""
        old = self.old_folders.get(job.cell)
        return job.path if old is None else Path(old) / str(job.iteration)

    def clock_of(self, case: str) -> str:
        """The clock of a case: all its jobs have the same, so that no number is drawn from both."""
        return self.clocks.get(case, self.clock)

    def protocol(self, job: Job) -> str:
        """The ALPN of what the job's endpoints are asked to speak."""
        return self.protocols.get(job.cell, self.case(job).protocol)

    def pairs_over_tcp(self, *, clock: str) -> tuple[str, ...]:
        """`client with server` of all pairs that have a job over TCP in this clock, in alphabetical order."""
        jobs = (job for job in self.order if self.clock_of(job.case_link) == clock and self.protocol(job) in OVER_TCP)
        return tuple(sorted({f"{job.client} with {job.server}" for job in jobs}))

    def wire_names(self, job: Job) -> dict[str, str]:
        """TESTCASE by role. What runs over another protocol than its case asks for is sent as that protocol's name."""
        case, protocol = self.case(job), self.protocol(job)
        if protocol != case.protocol and protocol in WIRE_NAMES:
            return dict.fromkeys(case.wire_names, WIRE_NAMES[protocol])
        return case.wire_names
