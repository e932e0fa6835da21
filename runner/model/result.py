"""The result of a job: outcome, findings, numbers. It is stored as `result.json`, with numbers in SI units."""

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from runner.model.diagnosis import Diagnosis
from runner.model.job import Job
from runner.model.middlebox import Crossing, PageLoad
from runner.model.real_link import RealLinkEvidence

RESULT_SCHEMA = 3


class Outcome(StrEnum):
    """The outcome of a job, which says who is responsible."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the implementation
    UNSUPPORTED = "unsupported"  # exit code 127, or declared
    ERROR = "error"  # the harness, the set-up, missing evidence, or a disturbed job
    SKIPPED = "skipped"  # a precondition did not hold


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Why a job did not succeed. `code` is stable; the other fields are sentences for people."""

    code: str
    requirement: str
    expected: str
    actual: str
    role: str = ""  # the responsible endpoint, or the one that had too little CPU time: client, server, or empty
    section: str = ""  # source, such as `RFC 9000 §8.1`
    packets: tuple[int, ...] = ()  # numbers in the capture of `vantage` that prove it, from 1, as Wireshark counts
    times: tuple[float, ...] = ()  # times of those packets, seconds since the client's first Initial; empty: unknown
    vantage: str = ""  # client or server
    log_tail: str = ""  # last lines of the endpoint's output, if they help

    @property
    def places(self) -> str:
        """Its packets with their times: `12 at 0.031 s, 15 at 0.035 s`."""
        times = self.times or (None,) * len(self.packets)
        return ", ".join(
            f"{packet}" if time is None else f"{packet} at {time:.3f} s"
            for packet, time in zip(self.packets, times, strict=False)
        )


@dataclass(frozen=True, kw_only=True)
class PublicVerdict:
    """The verdict that the public QUIC Interop Runner would give to the same job. `why`: its reason for a failure."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """A statement that must hold on every trace. `holds` None: it could not be checked."""

    name: str
    holds: bool | None
    expected: str
    actual: str


@dataclass(frozen=True, kw_only=True)
class ProtectedPackets:
    """Initial, 0-RTT, Handshake and 1-RTT packets in both captures of a job, and how many of them no key opened."""

    packets: int
    unread: int

    @property
    def unread_share(self) -> float:
        """The unread packets as a fraction, 0 to 1; 0 without packets."""
        return self.unread / self.packets if self.packets else 0.0

    @property
    def sentence(self) -> str:
        """`12 of 8,412 protected packets (0.14 %) could not be decrypted`."""
        if not self.unread:
            return f"all {self.packets:,} protected packets were decrypted"
        share = f"{100 * self.unread_share:.2f} %"
        return f"{self.unread:,} of {self.packets:,} protected packets ({share}) could not be decrypted"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The numbers of one iteration; formulas are in `runner.model.numbers`. Data rates in bit/s, times in s from the
    client's first packet; None: not measurable.

    `definitions`: the version of the formulas by which they were measured.
    """

    file_size: int
    definitions: int = 1
    goodput: float | None = None  # the field's formula, eq. 4.1; None where no QUIC connection was read
    efficiency: float | None = None  # goodput / forward data rate, eq. 4.2
    efficiency_exact: float | None = None  # … / (1 - loss), eq. 4.3
    throughput: float | None = None  # 8 · file size / ttlb
    link_share: float | None = None  # throughput / forward data rate
    delivery_rate: float | None = None  # 8 · file size / (ttlb - ttfb)
    slow_start_bound: float | None = None  # delivery rate / data rate of ideal doubling from the observed window
    efficiency_of_bound: float | None = None  # delivery rate / forward data rate / slow_start_bound
    steady_state_efficiency: float | None = None  # between 50 % and 95 % of the bytes
    first_server_1rtt: float | None = None
    last_server_1rtt: float | None = None
    handshake_time: float | None = None  # until the client receives HANDSHAKE_DONE (RFC 9001 §4.1.2)
    ttfb: float | None = None
    ttlb: float | None = None  # the delivery time
    initial_window_bytes: int | None = None  # response bytes sent before an ACK of any could have come
    first_flight_packets: float | None = None  # all of the server's 1-RTT bytes in that time, in full datagrams
    return_data_rate: float | None = None  # IP bytes of the return link · 8 / duration of the transfer
    ack_ratio: float | None = None  # ACK packets sent by the client per data packet received
    retransmission_ratio: float | None = None  # stream bytes sent by the server / unique bytes - 1
    retransmitted_bytes: int | None = None
    spurious_bytes: int | None = None  # retransmitted bytes whose first copy had arrived
    stream_bytes_sent: int | None = None
    rtt_min: float | None = None  # RTT of 1-RTT packets at the server's vantage point
    rtt_median: float | None = None
    one_way_delay_median: float | None = None  # server to client, both captures have one clock
    data_packets: int | None = None
    shared_time: float | None = None  # seconds in which a second flow shared the link; None: there was no second flow
    bottleneck_share: float | None = None  # the job's part of the IP bytes of both flows
    beside_goodput: float | None = None  # goodput of the second flow
    fairness: float | None = None  # Jain's index of both flows' data rates
    lost_packets: int | None = None  # sent by the server, never seen at the client's vantage point

    @property
    def from_client_alone(self) -> "Sample":
        """The sample without the numbers that need a capture at the sender, for a client whose peer is a proxy."""
        return replace(
            self,
            slow_start_bound=None,
            efficiency_of_bound=None,
            initial_window_bytes=None,
            first_flight_packets=None,
            retransmission_ratio=None,
            retransmitted_bytes=None,
            spurious_bytes=None,
            stream_bytes_sent=None,
            rtt_min=None,
            rtt_median=None,
            one_way_delay_median=None,
            data_packets=None,
            lost_packets=None,
        )

    def completed(self, data_rate: float) -> "Sample":
        """The sample with the rates that follow from its times. `data_rate`: the forward link's, in bit/s. Samples of
        version 1 lack these rates.
        """
        if self.ttlb is None or self.ttlb <= 0 or data_rate <= 0:
            return self
        throughput = 8 * self.file_size / self.ttlb
        whole = replace(self, throughput=throughput, link_share=throughput / data_rate)
        if self.first_server_1rtt is None or self.ttfb is None or self.ttlb <= self.ttfb:
            return whole  # over a path: its TTFB is curl's, on another clock
        rate = 8 * self.file_size / (self.ttlb - self.ttfb)
        bound = self.slow_start_bound
        return replace(whole, delivery_rate=rate, efficiency_of_bound=rate / data_rate / bound if bound else None)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The value of one parameter that an endpoint applied, according to one source, with the value that a variant
    requested."""

    role: str
    parameter: str  # CCA, IW in packets, ACK_FREQUENCY in ack-eliciting packets per ACK
    asked: str = ""  # empty: the stack's own default
    found: str = ""  # empty: it could not be read anywhere
    source: str = ""  # output (the image's own report), qlog, first flight, ACKs on the wire
    holds: bool | None = None  # True: as requested; None: no value was requested, or the source can't tell
    detail: str = ""

    @property
    def read_back(self) -> str:
        """`first flight 32 packets`, `output cubic`, `not read back`."""
        unit = " packets" if self.parameter == "IW" else ""
        return f"{self.source} {self.found}{unit}" if self.source else "not read back"

    @property
    def sentence(self) -> str:
        """`asked IW=10, first flight 32 packets`."""
        return (
            f"asked {self.parameter}={self.asked}, {self.read_back}"
            if self.asked
            else f"{self.parameter}: {self.read_back}"
        )


@dataclass(frozen=True, kw_only=True)
class DirectionTruth:
    """The simulator's counts for one direction. Packets and IP bytes; queue lengths in packets."""

    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int
    dropped_queue: int
    dropped_loss: int
    queue_max_packets: float
    queue_mean_packets: float
    # Effects of impairments; `words` follow a number of packets. Older simulators have fewer counters.
    dropped_outage: int = field(default=0, metadata={"words": "dropped by the outage"})
    dropped_mtu: int = field(default=0, metadata={"words": "dropped for their length"})
    corrupted: int = field(default=0, metadata={"words": "corrupted"})  # delivered unless they were lost too
    marked: int = field(default=0, metadata={"words": "marked with CE"})
    held_back: int = field(default=0, metadata={"words": "held back"})
    translated: int = field(default=0, metadata={"words": "translated by the NAT"})


IMPAIRED = {counter.name: counter.metadata["words"] for counter in fields(DirectionTruth) if counter.metadata}
"""The counters of impairments, and how a sentence says each."""

DROPS = tuple(counter.name for counter in fields(DirectionTruth) if counter.name.startswith("dropped_"))
"""The counters of packets that did not arrive."""


@dataclass(frozen=True, kw_only=True)
class NatMapping:
    """A mapping that the simulator's NAT made. `inner` and `outer` as `address:port`, IPv6 in brackets."""

    time: float  # seconds of the simulation
    inner: str  # the client's own
    outer: str  # the address that the server sees
    packets: int  # number of packets from the client


@dataclass(frozen=True, kw_only=True)
class LinkTruth:
    """The simulator's summary of a job (sim/README.md). Latenesses in seconds, drops in packets."""

    seed: int
    forward: DirectionTruth
    return_: DirectionTruth
    lateness_p99: float  # real minus nominal time when a packet leaves
    lateness_max: float
    receive_lateness_p99: float = 0.0  # from the kernel's receipt to the simulator's; shows a starved reader
    receive_lateness_max: float = 0.0
    socket_drops: int = 0  # the kernel dropped them before the simulator saw them
    malformed: int = 0  # longer than the MTU, or without a checksum: an offload was left on
    send_errors: int = 0
    spoofed_client: int = 0  # dropped packets from the client's side with an address of the server's side
    spoofed_server: int = 0
    clock_step: float = 0.0  # seconds by which the wall clock was changed against the steady clock
    first_1rtt: float | None = None  # seconds of the simulation; impairments of the path count from it
    mappings: tuple[NatMapping, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Result:
    """`result.json`."""

    schema: int = RESULT_SCHEMA
    server: str
    client: str
    via: str = ""  # the middlebox; empty: none
    case: str
    link: str = ""  # empty: the case's own
    iteration: int
    outcome: Outcome
    protocol: str = ""  # requested ALPN; empty: nothing was run, or an older result
    findings: tuple[Finding, ...] = ()
    public: PublicVerdict | None = None  # None: it doesn't have this case, or packets could not be read
    violations: tuple[Finding, ...] = ()  # rules of RFCs that an endpoint broke, whatever the case asks; code: rule id
    notes: tuple[
        Finding, ...
    ] = ()  # notes beside the verdict, which rest on less than a MUST or a rule of the contract
    sample: Sample | None = None
    truth: LinkTruth | None = None
    real_link: RealLinkEvidence | None = None  # for a real link, instead of a simulator's truth
    invariants: tuple[Invariant, ...] = ()
    protected: ProtectedPackets | None = None  # None: no capture was read, or an older result
    attempts: int = 1  # runs of this job, disturbed ones included
    disturbed: tuple[str, ...] = ()  # why earlier attempts did not count
    started_unix_s: float = 0.0
    clock: str = "real"  # real or virtual; numbers of different clocks are never pooled
    guest_speed: float | None = None  # guest seconds per host second; None: the clock was real
    host: dict[str, str] = field(default_factory=dict)  # facts of the worker's host; empty: `Run.host`
    wall_s: float = 0.0
    transfer_s: float = 0.0
    overhead_s: float = 0.0  # wall - transfer, analysis included
    stages_s: dict[str, float] = field(default_factory=dict)
    cpu_pressure: float | None = None  # share of the job's time in which some task of the host waited for a CPU
    applied: dict[str, str] = field(default_factory=dict)  # by role: CCA and IW that the endpoint reported as applied
    readings: tuple[Reading, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)  # limit → its part of the transfer's time
    diagnoses: tuple[Diagnosis, ...] = ()  # diagnoses in order of time
    captures_kept: bool = True
    reused_from: str = ""  # the run in which the job ran, when a later run took the result over
    page: PageLoad | None = None  # for a browser
    crossing: Crossing | None = None  # for a job with boxes on the way
    ground: LinkTruth | None = None  # the segment behind the gateway; `truth` is the satellite's

    @classmethod
    def of(cls, job: Job, outcome: Outcome, *findings: Finding) -> "Result":
        """A result with a verdict on `job` and nothing else."""
        return cls(
            server=job.server,
            client=job.client,
            via=job.via,
            case=job.case,
            link=job.link,
            iteration=job.iteration,
            outcome=outcome,
            findings=findings,
        )

    @property
    def job(self) -> Job:
        """The job of the result."""
        return Job(
            server=self.server,
            client=self.client,
            via=self.via,
            case=self.case,
            link=self.link,
            iteration=self.iteration,
        )

    def ending(self, outcome: Outcome, *findings: Finding) -> "Result":
        """The result with another verdict."""
        return replace(self, outcome=outcome, findings=findings)

    @property
    def refuted(self) -> tuple[Reading, ...]:
        """The readings that contradict a request: the last one by role and parameter, which is the one from packets."""
        last = {(reading.role, reading.parameter): reading for reading in self.readings if reading.holds is False}
        return tuple(last.values())
