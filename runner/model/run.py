"""`run.json`: the plan of a run with its jobs, their names, all parameters and the host; the cost of jobs; nights."""

import hashlib
import math
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

from runner.errors import UsageError
from runner.model.link import LinkParameters, LinkRecord, PathImpairments, RealLinkRecord, SegmentRecord
from runner.model.stack import WIRE_NAMES, BesideFlow, Middlebox, Role, protocol_of

# A job, the unit of work: server × client × via × link × case × iteration. Only this module defines its folder.


@dataclass(frozen=True, order=True, kw_only=True)
class Job:
    """One iteration of one pair in one case. `iteration` counts from 1.

    `via`: the middlebox; empty: no middlebox. `link`: the link; empty: the case's own link.
    """

    server: str
    client: str
    via: str = ""
    case: str
    link: str = ""
    iteration: int

    @property
    def pair(self) -> str:
        """`<server>_<client>`."""
        return f"{self.server}_{self.client}"

    @property
    def client_via(self) -> str:
        """`<client>[+via]`: the client with the middlebox, which is a column of the matrix."""
        return f"{self.client}+{self.via}" if self.via else self.client

    @property
    def case_link(self) -> str:
        """`<case>[@link]`: the key of `Run.cases`."""
        return f"{self.case}@{self.link}" if self.link else self.case

    @property
    def cell(self) -> str:
        """`<server>_<client>[+via]/<case>[@link]`: the folder with the job and its other iterations."""
        return f"{self.server}_{self.client_via}/{self.case_link}"

    @property
    def path(self) -> Path:
        """The job's folder, relative to the run's folder: `<server>_<client>[+via]/<case>[@link]/<iteration>`."""
        return Path(str(self))

    @property
    def ends(self) -> str:
        """`client → server`, `client → server via middlebox`."""
        return f"{self.client} → {self.server}" + (f" via {self.via}" if self.via else "")

    def __str__(self) -> str:
        return f"{self.cell}/{self.iteration}"


def job_seed(run_seed: int, job: Job) -> int:
    """The seed of a job's link, with 31 bits. It is the same for every attempt of the job in a run with this seed."""
    digest = hashlib.sha256(f"{run_seed}/{job}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


# `run.json`: the plan of a run with all parameters and the host. It is written before the first job.

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
    beside: str = ""  # the second flow (model/stack.py); empty: the job has the link for itself
    upload: bool = False  # True: the client sends the files

    @property
    def sender(self) -> Role:
        """The endpoint that sends the files."""
        return Role.CLIENT if self.upload else Role.SERVER

    @property
    def satellite(self) -> SegmentRecord:
        """The satellite segment; its forward direction carries the files."""
        return self.link.satellite.mirrored if self.upload else self.link.satellite

    @property
    def forward(self) -> LinkParameters:
        """The direction of the satellite segment that carries the files."""
        return self.satellite.forward

    @property
    def return_(self) -> LinkParameters:
        """The direction of the satellite segment that carries the ACKs of the files."""
        return self.satellite.return_

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
    parameters: dict[str, str] = field(default_factory=dict)  # environment variables of a variant (model/stack.py)


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
    clocks: dict[str, str] = field(default_factory=dict)  # with clock auto: real or virtual, by case or by `Job.cell`
    guest: dict[str, str] = field(default_factory=dict)  # in virtual time: epoch, charge, noise in seconds
    protocols: dict[str, str] = field(default_factory=dict)  # ALPN by `Job.cell`, when it isn't the case's ALPN
    vias: tuple[str, ...] = ("",)  # names of middleboxes; an empty name: no middlebox
    middleboxes: dict[str, Middlebox] = field(default_factory=dict)  # records of `vias`
    old_folders: dict[str, str] = field(default_factory=dict)  # of a run that began with schema 1, by `Job.cell`

    @cached_property
    def cells(self) -> dict[str, tuple[Job, ...]]:
        """The jobs of the plan by `Job.cell`, in the plan's order. They are grouped only once, because a plan may have
        100,000 jobs."""
        cells: dict[str, list[Job]] = {}
        for job in self.order:
            cells.setdefault(job.cell, []).append(job)
        return {cell: tuple(jobs) for cell, jobs in cells.items()}

    @property
    def elsewhere(self) -> "Run":
        """The run for the engines of other hosts, which may have the same images under other ids."""
        entries = {name: replace(entry, image_id="") for name, entry in self.implementations.items()}
        return replace(self, implementations=entries)

    def case(self, job: Job) -> CaseRecord:
        """The case of a job over the job's link. Raises KeyError when the run has no such case."""
        return self.cases[job.case_link]

    def folder(self, job: Job) -> Path:
        """The job's folder, relative to the run's folder."""
        return Path(self.folder_name(job))

    def folder_name(self, job: Job) -> str:
        """The same as a text."""
        return f"{self.old_folders.get(job.cell, job.cell)}/{job.iteration}"

    def clock_of(self, case: str, cell: str = "") -> str:
        """The clock of a case, or of one cell of the case. A cell has its own clock when the verdicts of one of its
        stacks differ by clock."""
        return self.clocks.get(cell) or self.clocks.get(case, self.clock)

    def parts_by_clock(self, todo: Iterable[Job]) -> Iterator[tuple[str, tuple[Job, ...]]]:
        """The jobs of each clock. Virtual time comes first: its jobs are cheap, and the handshakes are among them."""
        for clock in (VIRTUAL, REAL):
            if jobs := tuple(job for job in todo if self.clock_of(job.case_link, job.cell) == clock):
                yield clock, jobs

    def protocol(self, job: Job) -> str:
        """The ALPN that is requested from the job's endpoints."""
        return self.protocols.get(job.cell, self.case(job).protocol)

    def wire_names(self, job: Job) -> dict[str, str]:
        """TESTCASE by role. A job over another protocol than its case's gets the TESTCASE of that protocol."""
        case, protocol = self.case(job), self.protocol(job)
        if protocol != case.protocol and protocol in WIRE_NAMES:
            return dict.fromkeys(case.wire_names, WIRE_NAMES[protocol])
        return case.wire_names


# Names of stacks, cases, middleboxes and runs. They are parts of folder names, so one rule decides which names are
# valid.

LONGEST_NAME = 120  # bytes; the folder `<server>_<client>` must stay below the 255 bytes of a file name
LARGEST_ITERATION = 1_000_000


@lru_cache(maxsize=1024)
def name_problem(name: str) -> str | None:
    """The reason why `name` can't be the name of a folder; None when `name` is valid. A valid name can't lead to
    another folder, and it has no control characters."""
    if not name:
        return "it is empty"
    if len(name.encode(errors="replace")) > LONGEST_NAME:
        return f"it is longer than {LONGEST_NAME} bytes"
    if name.startswith("."):
        return "it begins with a dot"
    if "/" in name or "\\" in name:
        return "it contains a slash"
    if not name.isprintable():
        return "it contains a character that can't be printed"
    return None


def iteration_problem(iteration: int) -> str | None:
    """The reason why `iteration` is not a valid iteration; None when it is valid."""
    return None if 1 <= iteration <= LARGEST_ITERATION else f"an iteration is a number from 1 to {LARGEST_ITERATION}"


# Facts about the host that runs jobs.


def host_facts() -> dict[str, str]:
    """The facts about this host. They are stored in `run.json`; the facts about a worker's host in its results."""
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
    }


def host_cpu() -> str:
    """The name of this host's CPU; `unknown` when the kernel doesn't report it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return "unknown"


# Hours of the day in which no job starts, for example because people use the terminal by day.

_FORMAT = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)$")


class Retention(StrEnum):
    """Values of `--keep-captures`. `median`: captures of failed jobs and of the median iteration of each cell."""

    ALL = "all"
    FAILED = "failed"
    MEDIAN = "median"
    NONE = "none"


@dataclass(frozen=True)
class Pause:
    """The hours from `begin` to `end`, in local time. They may include midnight."""

    begin: time
    end: time
    now: Callable[[], datetime] = datetime.now

    @classmethod
    def parse(cls, text: str, now: Callable[[], datetime] = datetime.now) -> "Pause":
        """Parse hours such as `18:00-23:00`. Raises UsageError for another form, and when begin and end are equal."""
        match = _FORMAT.match(text.strip())
        if match is None or match[1] + match[2] == match[3] + match[4]:
            raise UsageError(f"--pause: '{text}' is not a span of hours: write it as 18:00-23:00.")
        return cls(time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4])), now)

    def holds(self, clock: time) -> bool:
        """True when no job may start at this time of day."""
        inside = (self.begin <= clock, clock < self.end)
        return all(inside) if self.begin < self.end else any(inside)

    def seconds_left(self) -> float:
        """The seconds until the end of the pause; 0 when there is no pause now."""
        moment = self.now()
        if not self.holds(moment.time()):
            return 0.0
        over = datetime.combine(moment.date(), self.end)
        if over <= moment:
            over += timedelta(days=1)
        return (over - moment).total_seconds()


# The result of one check of this host.


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check of this host. `what`: the result in words. `fix`: a sentence with the remedy when the
    check is not `ok`."""

    name: str
    ok: bool
    what: str
    fix: str = ""
    blocks: bool = True  # True: no job can run when this check fails


# The record of one night: its stages, and the changes that it found.

_RUN = "run "  # name of a stage that is a run


class NightState(StrEnum):
    """The state in which a stage ended."""

    DONE = "done"
    STOPPED = "stopped"  # stopped at the end of the night's time; the run can be resumed
    FAILED = "failed"
    LEFT_OUT = "left out"  # not begun, because no time was left


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a night. `seconds`: wall-clock time. `message`: one sentence when the stage isn't done."""

    name: str
    state: NightState
    seconds: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class NightRecord:
    """One night. `stamp`: the local time of its beginning, `YYYY-MM-DDTHHMM`, which is a part of its runs' names."""

    stamp: str
    began_unix_s: float
    stages: tuple[Stage, ...] = ()
    ended_unix_s: float | None = None
    news: tuple[str, ...] = field(default=())  # lines about the changes, at most ten lines for each run

    def has(self, stage: str) -> bool:
        """True when the stage needs no second attempt, because it is done or no time was left for it."""
        return any(done.name == stage and done.state is not NightState.FAILED for done in self.stages)

    def with_stage(self, stage: Stage) -> "NightRecord":
        """The record with this stage. It replaces an earlier attempt of the stage with the same name."""
        others = tuple(earlier for earlier in self.stages if earlier.name != stage.name)
        return replace(self, stages=(*others, stage))

    def runs(self, night: str) -> dict[str, str]:
        """The folder of each run with a stage, by the run's name in night.json. `night`: the night's name."""
        names = [stage.name.removeprefix(_RUN) for stage in self.stages if stage.name.startswith(_RUN)]
        return {name: run_name(night, name, self.stamp) for name in names}


def run_stage(run: str) -> str:
    """The name of a run's stage."""
    return f"{_RUN}{run}"


def run_name(night: str, run: str, stamp: str) -> str:
    """The folder of a run of the night that began at `stamp`."""
    return f"{night}-{run}-{stamp}"


# The estimated cost of jobs: seconds with one lane, and bytes on disk. Pure.

REAL, VIRTUAL = "real", "virtual"  # clocks
# Seconds per job in addition to the transfer: the lane's containers and wiring, readiness of the server, tear-down.
_OVERHEAD = 2.0
# The same for a job over a real link: probes before and after the transfer, SSH, files (measured in
# November 2026).
_REAL_OVERHEAD = 14.0
_REAL_RTT = 0.6  # seconds, RTT of a geostationary satellite; a real link's RTT is unknown before its first job
# A transfer over a clean link takes about this multiple of its lower bound, because of slow start and average stacks.
_TRANSFER_FACTOR = 1.6
# The number of flights of a connection with one request, and the seconds that the loss of a flight costs: the initial
# probe time-out (RFC 9002 §6.2.2), which holds until the first RTT sample.
_FLIGHTS, _TIME_OUT = 4, 1.0
_WAITING, _LITTLE = 4 * _OVERHEAD, 1_000_000  # seconds of a transfer; bytes of files
_DATAGRAM = 1200  # bytes, RFC 9000 §14: every path carries datagrams of this size
# Bytes on disk, measured over 27 cases of five stacks.
_CAPTURES_PER_BYTE = 2.2  # bytes of both captures per byte of file, with headers, ACKs and retransmissions
_CAPTURES_PER_CONNECTION = 25_000
_CAPTURES_PER_FILE = 280  # bytes of a request
_RECORDS = 145_000  # tables, series, evidence and logs of a job, whatever its size
_RECORDS_PER_BYTE = 0.18  # per byte of file: tables 0.03, compressed qlogs 0.09, the simulator's list of packets 0.06
_RECORDS_PER_FILE = 370

# CPU seconds of this host for a job in a guest: for the boot, for each megabyte of files, for each connection, and for
# each minute of virtual time. They are fitted to jobs of eight stacks over 29 cases; the median error was a quarter.
_GUEST, _GUEST_PER_MEGABYTE, _GUEST_PER_CONNECTION, _GUEST_PER_MINUTE = 0.45, 0.8, 0.025, 0.1
# The same with its container, its simulator, the captures, the runner and the judge, and for each further connection
# and file. They are fitted to 57 jobs over 29 cases and to SAT of the field on a quiet host (28 November 2026).
_JOB, _JOB_PER_MEGABYTE, _JOB_PER_CONNECTION, _JOB_PER_FILE, _JOB_PER_MINUTE = 1.65, 0.7, 0.13, 0.003, 0.29
# The engine's work for the containers of a guest, which no result counts: 58 SAT jobs with 8.7 s each kept a core busy
# for 10.3 s, and 9 handshakes with 0.85 s for 1.5 s.
_ENGINE, _ENGINE_SHARE = 0.6, 0.1
_BOXED = 1.8  # a job with a middlebox takes this multiple of one without (SAT, 115 jobs of five middleboxes)
_CPU_BINDS = 15e6  # bit/s that a slow stack does not reach on one core in real time

MULTICONNECT = "multiconnect"  # wire name: a connection for each file


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated cost of a plan: time, and bytes on disk."""

    seconds: float  # seconds with one lane
    guest_seconds: float  # seconds with one guest: on an idle core
    records: int  # bytes on disk without captures
    captures: int  # bytes of all captures
    median_captures: int  # bytes of the captures that `--keep-captures median` keeps when no job fails

    def disk(self, keep_captures: str) -> int:
        """Bytes on disk with this value of `--keep-captures`, when no job fails."""
        return self.records + {"all": self.captures, "median": self.median_captures}.get(keep_captures, 0)


def core_seconds(cpu_s: float) -> float:
    """Seconds of a core for a job in virtual time, from the CPU seconds that its result counts (`Result.cpu_s`)."""
    return _ENGINE + (1 + _ENGINE_SHARE) * cpu_s


PaceGroup = tuple[str, bool, str]  # case, whether a middlebox stands between the endpoints, server; "": all


def estimate(
    order: Iterable[Job],
    cases: Mapping[str, CaseRecord],
    pace: Mapping[PaceGroup, float] = MappingProxyType({}),
) -> Estimate:
    """The sums over the jobs. The time is for average stacks; a job with a slow server may take its whole time-out.
    `pace`: how many times more CPU time guests take. The nearest group decides."""
    seconds, guests, records, captures, median_captures = 0.0, 0.0, 0.0, 0.0, 0.0
    for (name, boxed, server), count in Counter((job.case_link, bool(job.via), job.server) for job in order).items():
        case = cases[name]
        size = sum(case.file_sizes)
        seconds += count * (_transfer(case) + (_REAL_OVERHEAD if case.forward.is_real else _OVERHEAD))
        groups = (name, boxed, server), (name, boxed, ""), ("", boxed, server), ("", boxed, ""), ("", False, "")
        measured = next((pace[group] for group in groups if group in pace), 1.0)
        guests += count * _whole_in_guest(case) * (_BOXED if boxed else 1) * measured
        records += count * (_RECORDS + size * _RECORDS_PER_BYTE + len(case.file_sizes) * _RECORDS_PER_FILE)
        opened = _connections(case) * _CAPTURES_PER_CONNECTION + len(case.file_sizes) * _CAPTURES_PER_FILE
        both = count * (size * _CAPTURES_PER_BYTE + opened)
        captures += both
        median_captures += both / max(1, case.iterations)
    return Estimate(
        seconds=seconds,
        guest_seconds=guests,
        records=round(records),
        captures=round(captures),
        median_captures=round(median_captures),
    )


def best_clock(case: CaseRecord) -> str:
    """The better clock for the case. It is virtual for cases that mostly wait. It is real when the CPU time of a slow
    stack can limit the case, when the case takes less time in a lane, or when guests can't run the case."""
    binds = case.kind is Kind.MEASUREMENT and _attainable(case) > _CPU_BINDS
    cheaper = _in_guest(case) < _transfer(case) + _OVERHEAD
    refused = case.beside or case.forward.is_real or case.client is not ClientKind.STACK
    return VIRTUAL if cheaper and not (binds or refused) else REAL


def _in_guest(case: CaseRecord) -> float:
    """CPU seconds of a job in virtual time."""
    megabytes, minutes = sum(case.file_sizes) / 1e6, _transfer(case) / 60
    work = _GUEST_PER_MEGABYTE * megabytes + _GUEST_PER_CONNECTION * _connections(case)
    return _GUEST + work + _GUEST_PER_MINUTE * minutes


def _whole_in_guest(case: CaseRecord) -> float:
    """Seconds of a core for a job in virtual time, with everything that the harness does for it."""
    work = _JOB_PER_MEGABYTE * sum(case.file_sizes) / 1e6 + _JOB_PER_FILE * (len(case.file_sizes) - 1)
    work += _JOB_PER_CONNECTION * (_connections(case) - 1)
    return _JOB + work + _JOB_PER_MINUTE * _transfer(case) / 60


def waits(case: CaseRecord) -> bool:
    """True when jobs of the case mostly wait for time-outs or for a distant peer, so that other jobs can use the
    CPU."""
    return case.kind is Kind.TEST_CASE and sum(case.file_sizes) < _LITTLE and _transfer(case) > _WAITING


def _transfer(case: CaseRecord) -> float:
    """The seconds that the endpoints of an average pair take, with one connection after the other."""
    rtt = _REAL_RTT if case.forward.is_real else case.link.rtt
    lower_bound = 8 * sum(case.file_sizes) / _attainable(case) + 4 * rtt
    connections = _connections(case)
    lost = sum(link.loss + link.impairments.corruption for link in (case.forward, case.return_)) / 2
    rounds = 2 if case.warm else 1
    once = lower_bound * _TRANSFER_FACTOR + connections * _FLIGHTS * lost * _TIME_OUT
    return min(case.timeout, rounds * once)


def _connections(case: CaseRecord) -> int:
    return len(case.file_sizes) if MULTICONNECT in case.wire_names.values() else 1


def _attainable(case: CaseRecord) -> float:
    """The bit/s that a loss-based congestion controller reaches: the data rate or, with a second flow, half of it. On a
    lossy link it is at most the bound of Mathis et al. (1997)."""
    forward, rtt = case.forward, case.link.rtt
    most = forward.data_rate / 2 if case.beside else float(forward.data_rate)
    if not forward.loss:
        return most
    return min(most, 8 * _DATAGRAM * math.sqrt(1.5 / forward.loss) / rtt)
