"""`run.json`: what was asked, of whom, with which parameters, on which host. Written before the first job."""

from dataclasses import dataclass, field
from enum import StrEnum

from runner.model.impairments import NO_LINK_IMPAIRMENTS, NO_PATH_IMPAIRMENTS, LinkImpairments, PathImpairments
from runner.model.job import Job
from runner.model.path import PathEntry
from runner.model.protocol import WIRE_NAMES, protocol_of
from runner.model.real_link import RealLinkRecord

RUN_SCHEMA = 1


class Kind(StrEnum):
    """A test case asks a yes/no question; a measurement asks for numbers, several times."""

    TEST_CASE = "test case"
    MEASUREMENT = "measurement"


@dataclass(frozen=True, kw_only=True)
class LinkParameters:
    """One direction as it was run. SI units; the queue resolved to packets of 1500 B.

    Of a real link the data rate is the advertised one; delay, queue and loss are 0: nobody knows them beforehand.
    """

    data_rate: int
    delay: float
    queue_packets: int
    loss: float
    impairments: LinkImpairments = NO_LINK_IMPAIRMENTS

    @property
    def is_real(self) -> bool:
        """Whether this is a real link: an emulated one has a queue."""
        return self.queue_packets == 0

    @property
    def has_chance(self) -> bool:
        """Whether the seed decides what happens to a packet."""
        more = self.impairments
        return bool(self.loss or more.gilbert_elliott or more.corruption or more.jitter or more.reorder)


@dataclass(frozen=True, kw_only=True)
class WorkloadRecord:
    """What a case asks over paths: `forward` and `return_` of its case are then the satellite segment, of all packets.

    `page`: a browser loads the reference page, else `file_sizes` are downloaded. The ground segment is behind the
    gateway.
    """

    name: str
    protocol: str  # http/1.1, h2, h3
    page: bool
    encrypted: bool  # TLS end to end
    link: str  # name of both segments together
    ground_forward: LinkParameters
    ground_return: LinkParameters
    origins: int = 1  # of a page's objects
    note: str = ""
    warm: bool = False  # the path has carried the same once before, uncounted

    @property
    def title(self) -> str:
        """Its name, and whether it is warm."""
        return f"{self.name}+warm" if self.warm else self.name


@dataclass(frozen=True, kw_only=True)
class CaseRecord:
    """A case as it was when the run was planned, so that the page needs no code of that day."""

    name: str
    abbreviation: str
    kind: Kind
    description: str
    scenario: str
    forward: LinkParameters
    return_: LinkParameters
    wire_names: dict[str, str]  # role → TESTCASE
    file_sizes: tuple[int, ...]
    timeout: float
    iterations: int
    host: str = "server4"
    name_length: int = 16
    chain_length: int = 1  # certificates of the server's chain
    chain_bytes: int = 0  # that it has at least; 0: nobody kept it
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS
    workload: WorkloadRecord | None = None  # None: a case of pairs
    real_link: RealLinkRecord | None = None  # over which it runs; data rates are then the advertised ones

    @property
    def protocol(self) -> str:
        """What pairs speak unless they share something else only."""
        return protocol_of(self.wire_names["client"])

    @property
    def has_chance(self) -> bool:
        """Whether another seed puts it to other packets."""
        return self.forward.has_chance or self.return_.has_chance


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
    protocols: dict[str, str] = field(default_factory=dict)  # `<server>_<client>/<case>` → ALPN, where not the case's
    paths: dict[str, PathEntry] = field(default_factory=dict)  # not empty: a run of paths, which are its clients

    def clock_of(self, case: str) -> str:
        """The clock of a case: all its jobs have the same, so that no number is drawn from both."""
        return self.clocks.get(case, self.clock)

    def protocol(self, job: Job) -> str:
        """The ALPN of what the job's endpoints are asked to speak."""
        return self.protocols.get(protocol_key(job), self.cases[job.case].protocol)

    def wire_names(self, job: Job) -> dict[str, str]:
        """TESTCASE by role. What runs over another protocol than its case asks for is sent as that protocol's name."""
        case, protocol = self.cases[job.case], self.protocol(job)
        if protocol != case.protocol and protocol in WIRE_NAMES:
            return dict.fromkeys(case.wire_names, WIRE_NAMES[protocol])
        return case.wire_names


def protocol_key(job: Job) -> str:
    """The key of `Run.protocols`."""
    return f"{job.pair}/{job.case}"
