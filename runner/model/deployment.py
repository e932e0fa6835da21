"""A place where jobs run, as the loop over jobs sees it: its events, and the estimated cost of jobs."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from runner.model.result import Result
from runner.model.run import CaseRecord, ClientKind, Job, Kind

# A place where jobs run, as the loop over jobs sees it.


class Deployment(ABC):
    """A place where jobs run: lanes of this host, guests, real links, or the replay of recorded jobs.

    The campaign has numbered lanes, each of which runs one job at a time. Methods are called from many threads.
    """

    @abstractmethod
    def run(self, job: Job, folder: Path, *, attempt: int) -> object:
        """Run `job` and write its artifacts to `folder`, `evidence.json` as the last file. `attempt` counts from 1.

        Raises LaneError when the harness can't run the job. After a BudgetError or a HostRefusedError, this lane ends
        and the other lanes continue.
        """

    @abstractmethod
    def stop(self) -> None:
        """Make running jobs end soon."""

    def lane_of(self, job: Job) -> int | None:  # noqa: ARG002 - for deployments whose lanes differ
        """The only lane that may run `job`; None when every lane may run it."""
        return None

    def resting(self, lane: int) -> str:  # noqa: ARG002 - for deployments whose lanes differ
        """A sentence with the reason why the lane starts no job now, and with the time until which it waits. Empty when
        the lane may start jobs."""
        return ""


# The events that the campaign loop reports.


@dataclass(frozen=True, kw_only=True)
class Progress:
    """An event of the campaign loop. `event`: started, finished, retried or paused."""

    event: str
    done: int
    total: int
    running: tuple[Job, ...]
    lanes: int
    seconds_left: float  # 0: no job is left
    job: Job | None = None
    kind: Kind = Kind.TEST_CASE  # kind of the job's case; TEST_CASE when the event has no job
    result: Result | None = None
    message: str = ""


class Observer(Protocol):
    """A receiver of the events of a campaign."""

    def report(self, progress: Progress) -> None:
        """Receive an event. The threads of all lanes call this method, but never two threads at the same time."""


class Silent:
    """An observer that shows nothing."""

    def report(self, progress: Progress) -> None:
        """Ignore the event."""


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
# and file. They are fitted to 590 jobs of seven stacks over 30 cases (26 November 2026), and divided by 3, because the
# host was busy and these jobs took longer than on a quiet host.
_JOB, _JOB_PER_MEGABYTE, _JOB_PER_CONNECTION, _JOB_PER_FILE, _JOB_PER_MINUTE = 1.65, 0.33, 0.13, 0.003, 0.29
_CPU_BINDS = 15e6  # bit/s that a slow stack does not reach on one core in real time

MULTICONNECT = "multiconnect"  # wire name: a connection for each file


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated cost of a plan: time, and bytes on disk."""

    seconds: float  # seconds with one lane
    guest_seconds: float  # seconds with one guest: on an idle core, or at the pace of earlier jobs of this host
    records: int  # bytes on disk without captures
    captures: int  # bytes of all captures
    median_captures: int  # bytes of the captures that `--keep-captures median` keeps when no job fails

    def disk(self, keep_captures: str) -> int:
        """Bytes on disk with this value of `--keep-captures`, when no job fails."""
        return self.records + {"all": self.captures, "median": self.median_captures}.get(keep_captures, 0)


def estimate(
    order: Iterable[Job], cases: Mapping[str, CaseRecord], pace: Mapping[str, float] = MappingProxyType({})
) -> Estimate:
    """The sums over the jobs. The time is for average stacks; a job with a slow server may take its whole time-out.
    `pace`: how many times longer guests take, by case; under an empty name, that of the other cases."""
    seconds, guests, records, captures, median_captures = 0.0, 0.0, 0.0, 0.0, 0.0
    for name, count in Counter(job.case_link for job in order).items():
        case = cases[name]
        size = sum(case.file_sizes)
        seconds += count * (_transfer(case) + (_REAL_OVERHEAD if case.forward.is_real else _OVERHEAD))
        guests += count * _whole_in_guest(case) * pace.get(name, pace.get("", 1.0))
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
    """The number of connections that the client opens."""
    return len(case.file_sizes) if MULTICONNECT in case.wire_names.values() else 1


def _attainable(case: CaseRecord) -> float:
    """The bit/s that a loss-based congestion controller reaches: the data rate or, with a second flow, half of it. On a
    lossy link it is at most the bound of Mathis et al. (1997)."""
    forward, rtt = case.forward, case.link.rtt
    most = forward.data_rate / 2 if case.beside else float(forward.data_rate)
    if not forward.loss:
        return most
    return min(most, 8 * _DATAGRAM * math.sqrt(1.5 / forward.loss) / rtt)
