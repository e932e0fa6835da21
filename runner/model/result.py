"""The result of a job: outcome, findings and their codes, numbers, diagnoses, the files of the job; events."""

import tomllib
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from runner.model.facts import PacketPlace
from runner.model.link import RealLinkEvidence
from runner.model.run import Job, Kind
from runner.model.stack import Crossing, Middlebox, PageLoad, Role, same_fields
from runner.units import NARROW, format_digits

# The reasons why a transfer was slow: its limits over time, and unwanted events.


class Limit(StrEnum):
    """The factor that limited a transfer at one moment."""

    HANDSHAKE = "handshake"  # handshake and request: the server had no request yet
    RECEIVE_WINDOW = "receive window"  # the client's MAX_DATA or MAX_STREAM_DATA was used up
    CONGESTION_WINDOW = "congestion window"  # the server waited for ACKs, or paced itself below the link's data rate
    PACING = "pacing"  # the window was not full, but the server sent a burst and then paused, once per RTT
    LINK = "link"  # the forward link was full, which is the best case
    APPLICATION = "application"  # nothing limited the server, and it sent nothing
    OUTAGE = "outage"  # the path carried nothing: a configured outage, confirmed by the simulator's counters
    RECOVERY = "recovery"  # all data had been sent once, and some had to be sent again
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Span:
    """The limit during one part of a transfer. Times are seconds since the client's first Initial, as seen at the
    client."""

    limit: Limit
    start: float
    end: float


@dataclass(frozen=True)
class Pattern:
    """A pattern that a detector can find. It is declared once, at the detector. `meaning`: a sentence without numbers.
    `section`: sources, such as `RFC 9002 §7.7, thesis §5.6.5`."""

    code: str
    meaning: str
    section: str
    over_tcp: str = ""  # section of an RFC about TCP when the pattern also exists over TCP; empty: only over QUIC


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """An unwanted event or limit in a transfer. `code` never changes its meaning; the numbers are in the sentence."""

    code: str  # code of a `Pattern` of the same detector
    sentence: str
    start: float  # seconds since the client's first Initial, as on the axis of the plots
    end: float
    share: float | None = None  # fraction 0…1 of the time, the bytes or the packets that the sentence counts
    packets: tuple[int, ...] = ()  # QUIC packet numbers of the first packets that prove it
    vantage: str = ""  # client or server: the sender of these packets
    section: str = ""  # of its `Pattern`


# The numbers of an iteration: field, formula, unit. `numbers.toml` declares each number once.


@dataclass(frozen=True, kw_only=True)
class Number:
    """A field of `Sample` or of `PageLoad`. It is stored in SI units and printed in the unit `shown_in`. Label, formula
    and note are plain text."""

    key: str
    label: str
    short: str  # a shorter label, for narrow columns
    shown_in: str = ""  # the printed unit, one of UNITS
    formula: str
    note: str = ""
    whole: bool = False  # True: the number is a count and is printed without decimals
    group: str
    since: int = 1  # the first version of the definitions that has this formula
    at_sender: bool = False  # True: the number needs a capture at the sender

    @property
    def factor(self) -> float:
        """The factor that converts a value in SI units to the printed unit."""
        return UNITS[self.shown_in]

    def number(self, value: float) -> str:
        """The value without its unit."""
        scaled = value * self.factor
        return f"{scaled:,.0f}" if self.whole else format_digits(scaled)

    def text(self, value: float | None) -> str:
        """The value with its unit, after a narrow no-break space; `–` when the value is unknown."""
        if value is None:
            return "–"
        return f"{self.number(value)}{NARROW}{self.shown_in}".rstrip(NARROW)


UNITS = {
    "Mbit/s": 1e-6,
    "kbit/s": 1e-3,
    "%": 100.0,
    "s": 1.0,
    "ms": 1e3,
    "kB": 1e-3,
    "B": 1.0,
    "packets": 1.0,
    "": 1.0,
}
"""Printed unit → the factor by which a value in SI units is multiplied."""

DEFINITIONS = 2
"""The version of the whole list. A result stores the version with which it was measured (`Sample.definitions`), so that
numbers with the same name and different formulas are never compared. In version 1, goodput ended at the last new byte.
Since version 2, it ends at the server's last 1-RTT packet."""

_TABLE = tomllib.loads(Path(__file__).with_name("numbers.toml").read_text())


def _numbers(kind: str) -> tuple[Number, ...]:
    return tuple(Number(key=key, **{"short": row["label"], **row}) for key, row in _TABLE[kind].items())


PAIR_NUMBERS, PAGE_NUMBERS = _numbers("pair"), _numbers("page")
BY_KEY = {number.key: number for number in PAIR_NUMBERS}
DOWNLOAD_NUMBERS = (BY_KEY["ttlb"], BY_KEY["throughput"], BY_KEY["link_share"], *_numbers("download"))
AT_SENDER = tuple(number.key for number in PAIR_NUMBERS if number.at_sender)
"""Keys of the numbers that need a capture at the sender."""


def is_current(key: str, definitions: int) -> bool:
    """True when the formula of `key` in version `definitions` is the same as the formula in the current version."""
    return key not in BY_KEY or definitions >= BY_KEY[key].since


# The result of a job: outcome, findings, numbers. It is stored as `result.json`. Numbers are in SI units.

RESULT_SCHEMA = 4


class Outcome(StrEnum):
    """The outcome of a job. It shows who is responsible."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the implementation is responsible
    UNSUPPORTED = "unsupported"  # an endpoint ended with exit code 127, or declares that it lacks support
    ERROR = "error"  # the harness or the set-up is responsible, evidence is missing, or the job was disturbed
    SKIPPED = "skipped"  # a precondition did not hold

    @property
    def sign(self) -> str:
        """The character that stands for the outcome in tables; no text uses it as a separator."""
        return {"succeeded": "✓", "failed": "✗", "unsupported": "–", "error": "?", "skipped": "⊘"}[self]


_PROVING = 5  # packets of a finding


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The reason why a job did not succeed. `code` never changes its meaning. The texts are for people."""

    code: str
    requirement: str
    expected: str
    actual: str
    role: str = ""  # the endpoint at fault, or the endpoint with too little CPU time: client, server, or empty
    section: str = ""  # source, such as `RFC 9000 §8.1`
    packets: tuple[int, ...] = ()  # packets that prove it: numbers in the capture of `vantage`, as in Wireshark
    times: tuple[float, ...] = ()  # times of those packets, seconds since the client's first Initial; empty: unknown
    vantage: str = ""  # client or server
    log_tail: str = ""  # last lines of the endpoint's output, when they are useful

    def proven_by(self, *places: PacketPlace | None) -> "Finding":
        """The same finding with its proof: at most five of `places`, all from the vantage point of the first place."""
        known = [place for place in dict.fromkeys(places) if place is not None]
        chosen = [place for place in known if place.vantage == known[0].vantage][:_PROVING]
        times = [place.time for place in chosen if place.time is not None]
        return replace(
            self,
            packets=tuple(place.record for place in chosen),
            times=tuple(times) if len(times) == len(chosen) else (),
            vantage=chosen[0].vantage if chosen else "",
        )

    @property
    def places(self) -> str:
        """The packets with their times: `12 at 0.031 s, 15 at 0.035 s`."""
        times = self.times or (None,) * len(self.packets)
        return ", ".join(
            f"{packet}" if time is None else f"{packet} at {time:.3f} s"
            for packet, time in zip(self.packets, times, strict=False)
        )

    # The text of a finding is made here only; the terminal, reports and pages choose a length.

    @property
    def title(self) -> str:
        """`client-exit of the client`; the code alone when no endpoint is at fault."""
        return f"{self.code} of the {self.role}" if self.role else self.code

    @property
    def headline(self) -> str:
        """`client-exit: exit code 1`, in one line."""
        return f"{self.code}: {' '.join(self.actual.split())}"

    @property
    def rule(self) -> str:
        """The requirement with its source: `Data arrives once. (RFC 9000 §2.2)`."""
        return f"{self.requirement} ({self.section})" if self.section else self.requirement

    @property
    def evidence(self) -> str:
        """`exit code 1; packet 12 at 0.031 s, in the capture of the client`."""
        noun = "packets" if len(self.packets) > 1 else "packet"
        return f"{self.actual}; {noun} {self.parts()['packets']}" if self.packets else self.actual

    def parts(self, fix: str = "") -> dict[str, str]:
        """What stands below title and rule, by heading: expected, actual, packets, fix. Empty parts are left out."""
        packets = f"{self.places}, in the capture of the {self.vantage}" if self.packets else ""
        parts = {"expected": self.expected, "actual": self.actual, "packets": packets, "fix": fix}
        return {heading: text for heading, text in parts.items() if text}


@dataclass(frozen=True, kw_only=True)
class PublicVerdict:
    """The verdict that the public QUIC Interop Runner would give to the same job. `why`: its reason for a failure."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """A statement that must hold for every trace. `holds` is None when it could not be checked."""

    name: str
    holds: bool | None
    expected: str
    actual: str


@dataclass(frozen=True, kw_only=True)
class ProtectedPackets:
    """The number of Initial, 0-RTT, Handshake and 1-RTT packets in both captures of a job, and the number of those that
    could not be decrypted."""

    packets: int
    unread: int

    @property
    def sentence(self) -> str:
        """`12 of 8,412 protected packets (0.14 %) could not be decrypted`."""
        if not self.unread:
            return f"all {self.packets:,} protected packets were decrypted"
        share = f"{100 * self.unread / self.packets:.2f} %"
        return f"{self.unread:,} of {self.packets:,} protected packets ({share}) could not be decrypted"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The numbers of one iteration; `numbers.toml` has the formulas. Data rates are in bit/s. Times are in
    seconds from the client's first packet. None: the number could not be measured.

    `definitions`: the version of the formulas with which the numbers were measured.
    """

    file_size: int
    definitions: int = 1
    goodput: float | None = None
    efficiency: float | None = None
    efficiency_exact: float | None = None
    throughput: float | None = None
    link_share: float | None = None
    delivery_rate: float | None = None
    slow_start_bound: float | None = None
    efficiency_of_bound: float | None = None
    steady_state_efficiency: float | None = None
    first_server_1rtt: float | None = None
    last_server_1rtt: float | None = None
    handshake_time: float | None = None
    ttfb: float | None = None
    ttlb: float | None = None
    first_2_mb: float | None = None
    first_10_mb: float | None = None
    first_100_mb: float | None = None
    repeat_pause: float | None = None
    repeat_2_mb: float | None = None
    repeat_10_mb: float | None = None
    initial_window_bytes: int | None = None
    first_flight_packets: float | None = None
    return_data_rate: float | None = None
    ack_ratio: float | None = None
    retransmission_ratio: float | None = None
    retransmitted_bytes: int | None = None
    spurious_bytes: int | None = None
    stream_bytes_sent: int | None = None
    rtt_min: float | None = None
    rtt_median: float | None = None
    one_way_delay_median: float | None = None
    data_packets: int | None = None
    shared_time: float | None = None
    bottleneck_share: float | None = None
    beside_goodput: float | None = None
    fairness: float | None = None
    lost_packets: int | None = None

    @property
    def from_client_alone(self) -> "Sample":
        """The sample without the numbers that need a capture at the sender. It is for a client whose connection ends at
        a proxy."""
        unknown: dict[str, Any] = dict.fromkeys(AT_SENDER)
        return replace(self, **unknown)

    def completed(self, data_rate: float) -> "Sample":
        """The sample with the rates that are computed from its times. Samples of version 1 lack these rates.
        `data_rate`: the data rate of the forward link, in bit/s.
        """
        if self.ttlb is None or self.ttlb <= 0 or data_rate <= 0:
            return self
        throughput = 8 * self.file_size / self.ttlb
        whole = replace(self, throughput=throughput, link_share=throughput / data_rate)
        if self.first_server_1rtt is None or self.ttfb is None or self.ttlb <= self.ttfb:
            return whole  # for a download by curl: its TTFB comes from curl, which has another clock
        rate = 8 * self.file_size / (self.ttlb - self.ttfb)
        bound = self.slow_start_bound
        return replace(whole, delivery_rate=rate, efficiency_of_bound=rate / data_rate / bound if bound else None)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The value of one parameter that an endpoint applied, according to one source, and the value that a variant
    requested."""

    role: str
    parameter: str  # CCA, IW in packets, ACK_FREQUENCY in ack-eliciting packets per ACK
    asked: str = ""  # the requested value; empty: the stack's own default
    found: str = ""  # the applied value; empty: no source has it
    source: str = ""  # output (the image's own report), qlog, first flight, ACKs on the wire
    holds: bool | None = None  # True: as requested; None: no value was requested, or the source does not show it
    detail: str = ""

    @property
    def read_back(self) -> str:
        """`first flight 32 packets`, `output cubic`, `not read back`."""
        unit = " packets" if self.parameter == "IW" else ""
        return f"{self.source} {self.found}{unit}" if self.source else "not read back"

    @property
    def sentence(self) -> str:
        """`requested IW=10, first flight 32 packets`."""
        return (
            f"requested {self.parameter}={self.asked}, {self.read_back}"
            if self.asked
            else f"{self.parameter}: {self.read_back}"
        )


@dataclass(frozen=True, kw_only=True)
class DirectionTruth:
    """The simulator's counts of packets and IP bytes for one direction. Queue lengths are in packets."""

    packets_in: int
    bytes_in: int
    packets_out: int
    bytes_out: int
    dropped_queue: int
    dropped_loss: int
    queue_max_packets: float
    queue_mean_packets: float
    # Effects of impairments. In a sentence, `words` follow the number of packets. Older simulators have fewer
    # counters.
    dropped_outage: int = field(default=0, metadata={"words": "dropped by the outage"})
    dropped_mtu: int = field(default=0, metadata={"words": "dropped for their length"})
    corrupted: int = field(default=0, metadata={"words": "corrupted"})  # delivered, unless also lost
    marked: int = field(default=0, metadata={"words": "marked with CE"})
    held_back: int = field(default=0, metadata={"words": "held back"})
    translated: int = field(default=0, metadata={"words": "translated by the NAT"})
    dropped_handover: int = field(default=0, metadata={"words": "lost in a handover"})
    waited_grant: int = field(default=0, metadata={"words": "that waited for a grant"})  # for a superframe or longer


IMPAIRED = {counter.name: counter.metadata["words"] for counter in fields(DirectionTruth) if counter.metadata}
"""Name of each counter of an impairment → its words in a sentence."""

DROPS = tuple(counter.name for counter in fields(DirectionTruth) if counter.name.startswith("dropped_"))
"""Names of the counters of packets that did not arrive."""


@dataclass(frozen=True, kw_only=True)
class NatMapping:
    """A mapping that the simulator's NAT made. `inner` and `outer` have the form `address:port`, with IPv6 addresses in
    brackets."""

    time: float  # seconds since the start of the simulation
    inner: str  # the client's own address
    outer: str  # the address that the server sees
    packets: int  # number of packets from the client


@dataclass(frozen=True, kw_only=True)
class LinkTruth:
    """The simulator's summary of a job (sim/README.md). Lateness is in seconds, drops are in packets."""

    seed: int
    forward: DirectionTruth
    return_: DirectionTruth
    lateness_p99: float  # real minus nominal time when a packet leaves
    lateness_max: float
    receive_lateness_p99: float = 0.0  # from the kernel's receipt to the simulator's; long when it lacks CPU time
    receive_lateness_max: float = 0.0
    socket_drops: int = 0  # packets that the kernel dropped before the simulator read them
    malformed: int = 0  # packets longer than the MTU, or without a checksum: an offload was not switched off
    malformed_client: int = 0  # those of them that came from the client's side
    malformed_server: int = 0
    unsent_client: int = 0  # packets that the simulator could not send to the client's side
    unsent_server: int = 0
    spoofed_client: int = 0  # dropped packets from the client's side with an address of the server's side
    spoofed_server: int = 0
    clock_step: float = 0.0  # seconds by which the wall clock was changed against the steady clock
    first_1rtt: float | None = None  # first 1-RTT packet, in seconds of the simulation; PathImpairments count from it
    mappings: tuple[NatMapping, ...] = ()

    @property
    def send_errors(self) -> int:
        return self.unsent_client + self.unsent_server

    @property
    def mirrored(self) -> "LinkTruth":
        """The same counts as an upload sees them: `forward` carries the files."""
        return replace(self, forward=self.return_, return_=self.forward)


@dataclass(frozen=True, kw_only=True)
class JobVerdict:
    """The part of `result.json` that says how the job ended. It is read in a third of the time of a Result."""

    schema: int = RESULT_SCHEMA
    server: str
    client: str
    via: str = ""  # the middlebox; empty: no middlebox
    case: str
    link: str = ""  # empty: the case's own link
    iteration: int
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    violations: tuple[Finding, ...] = ()  # broken rules of RFCs, even if the case does not test them; code: rule id
    delivered: bool | None = None  # whether a requested file arrived whole; None: nothing was run, or not recorded
    notes: tuple[Finding, ...] = ()  # remarks without effect on the verdict
    sample: Sample | None = None
    started_unix_s: float = 0.0
    wall_s: float = 0.0

    @property
    def job(self) -> Job:
        return Job(**same_fields(Job, self))

    @property
    def cause(self) -> Finding | None:
        """The finding that explains the outcome: the first that names a role, otherwise the first. None without a
        finding."""
        return next((finding for finding in self.findings if finding.role), next(iter(self.findings), None))

    @property
    def culprit(self) -> str:
        """The endpoint at fault for a failed job: `client` or `server`. Empty when the job did not fail, or when the
        packets do not show whose fault it is."""
        return self.cause.role if self.outcome is Outcome.FAILED and self.cause is not None else ""

    @property
    def without_keys(self) -> bool:
        """True when the job was judged although no key log opened any of its packets."""
        return any(note.code == "judged-without-keys" for note in self.notes)


@dataclass(frozen=True, kw_only=True)
class Result(JobVerdict):
    """The content of `result.json`."""

    protocol: str = ""  # requested ALPN; empty: nothing was run, or the result is older
    public: PublicVerdict | None = None  # None: the public runner lacks this case, or packets could not be read
    truth: LinkTruth | None = None
    real_link: RealLinkEvidence | None = None  # for a real link, which has no simulator and so no `truth`
    invariants: tuple[Invariant, ...] = ()
    protected: ProtectedPackets | None = None  # None: no capture was read, or the result is older
    attempts: int = 1  # number of attempts of this job, including disturbed attempts
    disturbed: tuple[str, ...] = ()  # reasons why earlier attempts did not count
    clock: Literal["real", "virtual"] = "real"  # numbers of different clocks are never pooled
    guest_speed: float | None = None  # guest seconds per host second; None: the clock was real
    host: dict[str, str] = field(default_factory=dict)  # facts of the worker's host; empty: `Run.host`
    transfer_s: float = 0.0
    overhead_s: float = 0.0  # wall_s - transfer_s, including the analysis
    cpu_s: float = 0.0  # CPU seconds of the judge, the runner and, in virtual time, the guest
    stages_s: dict[str, float] = field(default_factory=dict)
    cpu_pressure: float | None = None  # share of the job's time in which some task of the host waited for a CPU
    applied: dict[str, str] = field(default_factory=dict)  # by role: CCA and IW that the endpoint reported as applied
    readings: tuple[Reading, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)  # fraction of the transfer's time, by limit
    diagnoses: tuple[Diagnosis, ...] = ()  # diagnoses in order of time
    captures_kept: bool = True
    reused_from: str = ""  # the earlier run in which the job ran, when this run took over its result
    page: PageLoad | None = None  # for a page load by a browser
    crossing: Crossing | None = None  # for a job with boxes between client and server
    ground: LinkTruth | None = None  # for the ground segment; `truth` is for the satellite segment

    @classmethod
    def of(cls, job: Job, outcome: Outcome, *findings: Finding) -> "Result":
        """A result that has only a verdict on `job`."""
        return cls(**same_fields(cls, job), outcome=outcome, findings=findings)

    def ending(self, outcome: Outcome, *findings: Finding) -> "Result":
        """The result with another verdict."""
        return replace(self, outcome=outcome, findings=findings)

    @property
    def refuted(self) -> tuple[Reading, ...]:
        """The readings that contradict a request. For each role and parameter, this is the last such reading, because
        readings from packets come last."""
        last = {(reading.role, reading.parameter): reading for reading in self.readings if reading.holds is False}
        return tuple(last.values())


# Codes of findings and errors. `result.json` and `evidence.json` contain codes with sentences. The sentences may
# change; the codes stay the same. Rules of the RFCs have their own ids (`runner/judge/rules`).

FOR_GOOD = frozenset(
    {
        "analysis-limit",
        "bypassed",
        "cpu-limit",
        "early-data-unread",
        "impairment-missed",
        "no-capture",
        "no-connection",
        "no-evidence",
        "no-key-log",
        "offload",
        "secrets-missing",
        "spins",
    }
)
"""Codes of the harness after which another attempt can't succeed."""

LINK_BROKEN = ("link-died", "link-failed", "captures-died", "captures-not-ended", "no-truth")
"""Codes of the harness that an endpoint can cause: the interface of the simulator ends together with the endpoint's."""


def another_attempt_helps(name: str) -> bool:
    """True when a job that ended as an error with this code may succeed in another attempt."""
    return name not in FOR_GOOD


# The files of a job under fixed names, and the harness's record of the job.

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
    noise_s: float = 0.0  # each segment delayed each packet by a random time from 0 to this
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
    certificates: tuple[str, ...] = ()  # SHA-256 of each certificate in /certs/cert.pem; empty: not recorded
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


class _In:
    """A path under a fixed name in a job's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, artifacts: "Artifacts", _: object) -> Path:
        return artifacts.folder / self._name


@dataclass(frozen=True)
class Artifacts:
    """The files in a job's folder, by name. Every file may be missing: the judge reports that."""

    folder: Path

    evidence, result, series = _In("evidence.json"), _In("result.json"), _In("series.json")
    link_truth, ground_truth = _In("sim/truth.json"), _In("ground/truth.json")
    packet_log = _In("sim/packets.bin")
    client_tables, server_tables = _In("tables/client"), _In("tables/server")
    output_log = _In("output.log")
    attempts_log = _In("attempts.log")  # why each earlier attempt of a repeated job did not count; the tools' output

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
    def captures(self) -> tuple[Path, ...]:
        """All captures that a job may have."""
        ground = self._capture("ground", "left"), self._capture("ground", "right")
        return tuple(dict.fromkeys((*self.link_captures, self.client_capture, self.server_capture, *ground)))

    @property
    def key_logs(self) -> tuple[Path, ...]:
        """The key logs that exist and are not empty, the client's first."""
        paths = (self.folder / "client" / "keys.log", self.folder / "server" / "keys.log")
        return tuple(path for path in paths if path.is_file() and path.stat().st_size)


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
