"""Selection + catalogue → jobs in order; jobs − done → what is left. Pure."""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from runner.catalog import Catalog
from runner.model.implementation import Implementation, Role
from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result
from runner.model.run import CaseRecord, Kind

# Seconds per job beside the transfer: holders, wiring, readiness, tear-down. benchmarks/line.py measures it.
_OVERHEAD = 2.0
# The same of a job over a real link: probes of the link alone, SSH, files. benchmarks/real_link.py measures it.
_REAL_OVERHEAD = 14.0
_REAL_RTT = 0.6  # s, of a geostationary satellite: a real link's own is unknown until it has been used
# A transfer over a clean link takes about this multiple of its lower bound: slow start and an average stack.
_TRANSFER_FACTOR = 1.6
# A connection with one request, and what the loss of one of its flights costs it: the initial probe time-out, RFC 9002
# §6.2.2, before there is a sample of the RTT.
_FLIGHTS, _TIME_OUT = 4, 1.0
_WAITING, _LITTLE = 4 * _OVERHEAD, 1_000_000  # seconds of a transfer; bytes of files
_DATAGRAM = 1200  # bytes, RFC 9000 §14: the least that every path carries
# Bytes on disk, measured over 27 cases of five stacks; `python -m runner.benchmarks.disk RUN` shows how well they fit.
_CAPTURES_PER_BYTE = 2.2  # both captures per byte of file: headers, ACKs, retransmissions
_CAPTURES_PER_CONNECTION = 25_000
_CAPTURES_PER_FILE = 280  # its request
_RECORDS = 185_000  # tables, series, evidence, logs of any job
_RECORDS_PER_BYTE = 0.31  # per byte of file: tables 0.16, compressed qlogs 0.09, the simulator's list of packets 0.06
_RECORDS_PER_FILE = 370


MULTICONNECT = "multiconnect"  # wire name: a connection for each file

# The case that every pair is asked first: when it fails, the others would fail for the same reason.
GATE = "handshake"
GATE_FAILED = "handshake-failed"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the user asked for, resolved to names of the catalogue."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    cases: tuple[str, ...]
    iterations: int | None = None  # None: what each case declares


def jobs(selection: Selection, cases: Mapping[str, CaseRecord], *, shuffle_seed: int | None = None) -> tuple[Job, ...]:
    """Every job of the selection. Iterations are the outer loop, so that an interrupted run has whole matrices.

    Handshakes come first, for the other cases of a pair that fails it are skipped.

    With `shuffle_seed` the order is random and reproducible: neighbours in time are then no neighbours in the matrix.
    """
    ordered = [
        Job(server=server, client=client, case=case, iteration=iteration)
        for case in selection.cases
        for iteration in range(1, iterations_of(selection, cases[case]) + 1)
        for server in selection.servers
        for client in selection.clients
    ]
    ordered.sort(key=lambda job: job.iteration)
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(ordered)
    ordered.sort(key=lambda job: job.case != GATE)
    return tuple(ordered)


def gate(job: Job) -> Job:
    """The job that must not fail before `job` is worth running."""
    return replace(job, case=GATE, iteration=1)


# Findings of the case `handshake` after which nothing else can succeed: no file, or an endpoint that didn't end well.
# All others say that the file arrived, in a way that this case forbids, such as after Retry.
_NOTHING_ARRIVED = frozenset(
    {
        "client-exit",
        "client-hello-unanswered",
        "client-not-started",
        "files-differ",
        "output-flood",
        "packet-flood",
        "server-exit",
        "server-not-ready",
        "server-not-started",
        "timeout",
        "volume-full",
        "wrong-alpn",
    }
)


def cannot_talk(handshake: Result) -> bool:
    """Whether the pair of this result gets no file through, so that asking it anything else is in vain."""
    codes = {finding.code for finding in handshake.findings}
    return handshake.outcome is Outcome.FAILED and (not codes or not codes.isdisjoint(_NOTHING_ARRIVED))


def gated(job: Job, done: Mapping[Job, Result]) -> Finding | None:
    """Why `job` is to be skipped: its pair can't shake hands. None when it may run."""
    before = done.get(gate(job))
    if job.case == GATE or before is None or not cannot_talk(before):
        return None
    why = f"{before.findings[0].code}: {before.findings[0].actual}" if before.findings else before.outcome.value
    return Finding(
        code=GATE_FAILED,
        requirement="The client gets a file from the server before the pair is asked anything else.",
        expected=f"the file of `{GATE}`",
        actual=why,
    )


def iterations_of(selection: Selection, case: CaseRecord) -> int:
    """How often the case runs: once for a test case unless it declares more, `--iterations` for the others."""
    if selection.iterations is None or case.iterations == 1:
        return case.iterations
    return selection.iterations


def remaining(order: Iterable[Job], done: Mapping[Job, Result], retry: frozenset[Outcome]) -> tuple[Job, ...]:
    """Jobs without a result, those whose outcome is to be tried again, and those whose gate is, or has passed since."""
    left = {job for job in order if job not in done or done[job].outcome in retry}

    def reopened(job: Job) -> bool:
        codes = [finding.code for finding in done[job].findings]
        return GATE_FAILED in codes and (gate(job) in left or gated(job, done) is None)

    return tuple(job for job in order if job in left or reopened(job))


def job_seed(run_seed: int, job: Job) -> int:
    """The seed of a job's link: 31 bits, the same whenever the job runs in this run."""
    digest = hashlib.sha256(f"{run_seed}/{job}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def declared_unsupported(catalog: Catalog, job: Job) -> str | None:
    """Why the pair can't run the case by its own declaration, None when it can."""
    if protocol(catalog, job) is not None:
        return None
    case, server, client = catalog.cases[job.case], *_pair(catalog, job)
    shared = [name for name in server.alpn if name in client.alpn]
    if not shared:
        return f"{job.server} speaks {', '.join(server.alpn)}, {job.client} speaks {', '.join(client.alpn)}"
    possible = [name for name in case.protocols if name in shared]
    if not possible:
        asked = " or ".join(case.protocols)
        return f"{job.server} and {job.client} share {', '.join(shared)} only, and {job.case} is asked over {asked}"
    role, stack = next(
        (role, stack)
        for role, stack in ((Role.SERVER, server), (Role.CLIENT, client))
        if not all(stack.claims(role, case.wire(role, name)) for name in possible)
    )
    lacking = [case.wire(role, name) for name in possible if not stack.claims(role, case.wire(role, name))]
    names = " and ".join(f"'{name}'" for name in lacking)
    return f"{stack.name} declares no support of {names} as {role.value}"


def protocol(catalog: Catalog, job: Job) -> str | None:
    """The ALPN over which the pair is asked: the case's first that both speak and claim. None: unsupported."""
    case, server, client = catalog.cases[job.case], *_pair(catalog, job)
    for name in case.protocols:
        spoken = name in server.alpn and name in client.alpn
        wire_server, wire_client = case.wire(Role.SERVER, name), case.wire(Role.CLIENT, name)
        if spoken and server.claims(Role.SERVER, wire_server) and client.claims(Role.CLIENT, wire_client):
            return name
    return None


def _pair(catalog: Catalog, job: Job) -> tuple[Implementation, Implementation]:
    return catalog.implementations[job.server], catalog.implementations[job.client]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan costs: seconds with one lane; bytes on disk without captures, of all captures, and of the captures
    that `--keep-captures median` keeps when no job fails."""

    seconds: float
    records: int
    captures: int
    median_captures: int

    def disk(self, keep_captures: str) -> int:
        """Bytes on disk with this value of `--keep-captures`, when no job fails."""
        return self.records + {"all": self.captures, "median": self.median_captures}.get(keep_captures, 0)


def estimate(order: Iterable[Job], cases: Mapping[str, CaseRecord]) -> Estimate:
    """Sums over the jobs. The time is an estimate for average stacks: a slow server takes up to its time-out."""
    seconds, records, captures, median_captures = 0.0, 0.0, 0.0, 0.0
    for job in order:
        case = cases[job.case]
        size = sum(case.file_sizes)
        seconds += _transfer(case) + (_REAL_OVERHEAD if case.forward.is_real else _OVERHEAD)
        records += _RECORDS + size * _RECORDS_PER_BYTE + len(case.file_sizes) * _RECORDS_PER_FILE
        opened = _connections(case) * _CAPTURES_PER_CONNECTION + len(case.file_sizes) * _CAPTURES_PER_FILE
        both = size * _CAPTURES_PER_BYTE + opened
        captures += both
        median_captures += both / max(1, case.iterations)
    return Estimate(
        seconds=seconds, records=round(records), captures=round(captures), median_captures=round(median_captures)
    )


def waits(case: CaseRecord) -> bool:
    """Whether jobs of the case mostly wait, for time-outs or for a distant peer, and so leave the CPU to others."""
    return case.kind is Kind.TEST_CASE and sum(case.file_sizes) < _LITTLE and _transfer(case) > _WAITING


def _transfer(case: CaseRecord) -> float:
    """Seconds that the endpoints of an average pair take, connections one after the other."""
    rtt = _REAL_RTT if case.forward.is_real else case.forward.delay + case.return_.delay
    lower_bound = 8 * sum(case.file_sizes) / _attainable(case) + 4 * rtt
    connections = _connections(case)
    lost = sum(link.loss + link.impairments.corruption for link in (case.forward, case.return_)) / 2
    rounds = 2 if case.workload is not None and case.workload.warm else 1
    once = lower_bound * _TRANSFER_FACTOR + connections * _FLIGHTS * lost * _TIME_OUT
    return min(case.timeout, rounds * once)


def _connections(case: CaseRecord) -> int:
    """How many connections the client opens."""
    return len(case.file_sizes) if MULTICONNECT in case.wire_names.values() else 1


def _attainable(case: CaseRecord) -> float:
    """Bit/s that a loss-based controller reaches: the data rate, or on a lossy link what Mathis et al. (1997) give."""
    forward, rtt = case.forward, case.forward.delay + case.return_.delay
    if not forward.loss:
        return float(forward.data_rate)
    return min(float(forward.data_rate), 8 * _DATAGRAM * math.sqrt(1.5 / forward.loss) / rtt)
