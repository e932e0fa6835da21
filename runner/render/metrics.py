"""Every number of the page: its unit, its digits, its definition. One declaration per field of `Sample`."""

from dataclasses import dataclass

from runner.model.result import Sample

NARROW = "\u202f"  # narrow no-break space, between a number and its unit


def digits(value: float) -> str:
    """Three significant digits and at most two decimals: `0.04`, `9.41`, `18.9`, `1,204`."""
    size = abs(value)
    return f"{value:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


@dataclass(frozen=True)
class Unit:
    """A unit as it is printed, and the factor from SI to it."""

    name: str
    factor: float


_PERCENT, _MS, _KB, _PLAIN = Unit("%", 100.0), Unit("ms", 1e3), Unit("kB", 1e-3), Unit("", 1.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a field of `Sample` is shown. `formula` and `note` are plain text."""

    key: str
    label: str
    short: str  # where there is little room
    unit: Unit
    formula: str
    note: str = ""
    whole: bool = False  # a count: no decimals
    group: str

    def number(self, value: float) -> str:
        """The value without its unit."""
        scaled = value * self.unit.factor
        return f"{scaled:,.0f}" if self.whole else digits(scaled)

    def text(self, value: float | None) -> str:
        """The value with its unit, `–` when it is unknown."""
        if value is None:
            return "–"
        return f"{self.number(value)}{NARROW}{self.unit.name}".rstrip(NARROW)


_RATE, _TIME, _RETURN, _AGAIN, _PATH = "Data rate", "Times", "Return link", "Retransmissions", "Path"
_FROM_INITIAL = "All times count from the client's first Initial on the client-side trace."

METRICS: tuple[Metric, ...] = (
    Metric(
        key="efficiency",
        label="efficiency η",
        short="η",
        unit=_PERCENT,
        group=_RATE,
        formula="η = goodput / data rate of the forward link",
        note="Thesis eq. 4.2. The data rate counts IP packets, so headers keep η a little below 100 %.",
    ),
    Metric(
        key="goodput",
        label="goodput",
        short="goodput",
        unit=Unit("Mbit/s", 1e-6),
        group=_RATE,
        formula="goodput = 8 · file size / (t(last new byte) − t(first 1-RTT packet of the server))",
        note="Both instants on the client-side trace; thesis eq. 4.1 and the public interop runner. Over HTTP/3 the "
        "file counts, not what frames it.",
    ),
    Metric(
        key="slow_start_bound",
        label="slow-start bound η_ss",
        short="η_ss",
        unit=_PERCENT,
        group=_RATE,
        formula="η_ss = η of ideal loss-free doubling from the observed initial window (RFC 9002 §7.3.1)",
        note="What no sender that starts slowly can beat on this link and file size.",
    ),
    Metric(
        key="efficiency_of_bound",
        label="η of the slow-start bound",
        short="η / η_ss",
        unit=_PERCENT,
        group=_RATE,
        formula="η / η_ss",
        note="What is left of the difference to the line when slow start is not held against anybody.",
    ),
    Metric(
        key="steady_state_efficiency",
        label="steady-state η",
        short="steady η",
        unit=_PERCENT,
        group=_RATE,
        formula="η between the moments when 50 % and 95 % of the bytes had arrived",
    ),
    Metric(
        key="efficiency_exact",
        label="η_exact",
        short="η_exact",
        unit=_PERCENT,
        group=_RATE,
        formula="η_exact = η / (1 − loss of the forward link)",
        note="Thesis eq. 4.3.",
    ),
    Metric(
        key="handshake_time",
        label="handshake",
        short="handshake",
        unit=_MS,
        group=_TIME,
        formula="t(client receives HANDSHAKE_DONE) − t(first Initial)",
        note=f"Handshake confirmed, RFC 9001 §4.1.2. {_FROM_INITIAL}",
    ),
    Metric(
        key="first_server_1rtt",
        label="first 1-RTT packet of the server",
        short="first 1-RTT",
        unit=_MS,
        group=_TIME,
        formula="t(first 1-RTT packet from the server) − t(first Initial)",
        note="Where the interval of goodput begins.",
    ),
    Metric(
        key="ttfb",
        label="TTFB",
        short="TTFB",
        unit=_MS,
        group=_TIME,
        formula="t(first new byte of response data) − t(first Initial)",
    ),
    Metric(
        key="ttlb",
        label="TTLB",
        short="TTLB",
        unit=Unit("s", 1.0),
        group=_TIME,
        formula="t(last new byte of response data) − t(first Initial)",
    ),
    Metric(
        key="return_data_rate",
        label="return data rate",
        short="return",
        unit=Unit("kbit/s", 1e-3),
        group=_RETURN,
        formula="8 · IP bytes sent by the client / duration of the transfer",
    ),
    Metric(
        key="ack_ratio",
        label="ACKs per data packet",
        short="ACKs",
        unit=_PLAIN,
        group=_RETURN,
        formula="packets with an ACK frame sent by the client / data packets received",
    ),
    Metric(
        key="retransmission_ratio",
        label="retransmission ratio",
        short="retrans.",
        unit=_PERCENT,
        group=_AGAIN,
        formula="stream bytes sent by the server / unique bytes − 1",
    ),
    Metric(
        key="retransmitted_bytes",
        label="retransmitted",
        short="retrans.",
        unit=_KB,
        group=_AGAIN,
        formula="stream bytes sent more than once, counted by byte ranges",
    ),
    Metric(
        key="spurious_bytes",
        label="spurious",
        short="spurious",
        unit=_KB,
        group=_AGAIN,
        formula="of the retransmitted bytes, those whose first copy had arrived",
    ),
    Metric(
        key="lost_packets",
        label="lost data packets",
        short="lost",
        unit=_PLAIN,
        whole=True,
        group=_AGAIN,
        formula="data packets seen at the server's vantage point, never at the client's",
    ),
    Metric(
        key="data_packets",
        label="data packets",
        short="packets",
        unit=_PLAIN,
        whole=True,
        group=_AGAIN,
        formula="packets with stream data sent by the server",
    ),
    Metric(
        key="stream_bytes_sent",
        label="stream bytes sent",
        short="sent",
        unit=_KB,
        group=_AGAIN,
        formula="stream bytes sent by the server, retransmissions included",
    ),
    Metric(
        key="initial_window_bytes",
        label="initial window",
        short="IW",
        unit=Unit("B", 1.0),
        whole=True,
        group=_PATH,
        formula="response bytes sent before an ACK of any of them could have come back",
        note="Observed at the server's vantage point, not read from a configuration.",
    ),
    Metric(
        key="first_flight_packets",
        label="first flight",
        short="1st flight",
        unit=Unit("packets", 1.0),
        group=_PATH,
        formula="1-RTT bytes of the server, from the request until an ACK of any of them came back / full datagram",
        note="The initial window in packets (RFC 9002 §7.2), unless pacing, flow control or a short file made it less.",
    ),
    Metric(
        key="rtt_min",
        label="RTT, lowest",
        short="RTT min",
        unit=_MS,
        group=_PATH,
        formula="lowest RTT of 1-RTT packets, seen at the server's vantage point",
    ),
    Metric(
        key="rtt_median",
        label="RTT, median",
        short="RTT med.",
        unit=_MS,
        group=_PATH,
        formula="median RTT of 1-RTT packets, seen at the server's vantage point",
        note="What is above the lowest RTT is queueing and delayed acknowledgement.",
    ),
    Metric(
        key="one_way_delay_median",
        label="one-way delay, median",
        short="delay",
        unit=_MS,
        group=_PATH,
        formula="median of t(packet at the client) − t(packet at the server)",
        note="Both captures have one clock when the link is emulated.",
    ),
)
BY_KEY: dict[str, Metric] = {metric.key: metric for metric in METRICS}

# What the matrix can show in its cells. The first is what it shows with scripts off, and what is coloured.
SWITCHABLE = ("efficiency", "goodput", "ttlb", "retransmission_ratio", "handshake_time")
STATISTICS = ("median", "mean")
"""Of the iterations of a cell, as fields of `Summary`. The first is what stands there with scripts off."""


def value(sample: Sample | None, key: str) -> float | None:
    """The metric's value in SI units; None when it could not be measured."""
    found: float | None = getattr(sample, key) if sample is not None else None
    return found
