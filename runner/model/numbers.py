"""Every number of a job: its name, unit and formula. Declared here once; pages, tables and documents print from here.

`DEFINITIONS` counts versions of the whole list. A result carries the version by which it was measured
(`Sample.definitions`), so that nobody compares two numbers that share a name and not a formula.
"""

from dataclasses import dataclass

DEFINITIONS = 2
"""Version 2: goodput ends at the server's last 1-RTT packet (version 1: at the last new byte)."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A field of `Sample` (or of `PageLoad`), stored in SI units and printed in `shown_in`. Texts are plain."""

    key: str
    label: str
    short: str  # where there is little room
    shown_in: str  # unit that is printed, one of UNITS
    formula: str
    note: str = ""
    whole: bool = False  # a count: no decimals
    group: str
    since: int = 1  # version of the definitions from which the formula holds


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
"""Unit that is printed → the factor from SI to it."""

_RATE, _TIME, _RETURN, _AGAIN, _PATH = "Data rate", "Times", "Return link", "Retransmissions", "Path"

DELIVERY_TIME = Number(
    key="ttlb",
    label="delivery time",
    short="delivery time",
    shown_in="s",
    group=_TIME,
    formula="t(last new byte of response data) − t(client's first packet)",
    note="What a user waits for. Rankings, winners and comparisons go by it. Also called TTLB.",
)
THROUGHPUT = Number(
    key="throughput",
    label="throughput",
    short="throughput",
    shown_in="Mbit/s",
    group=_RATE,
    formula="throughput = 8 · file size / delivery time",
    note="Connecting counts.",
)
LINK_SHARE = Number(
    key="link_share",
    label="link share",
    short="link share",
    shown_in="%",
    group=_RATE,
    formula="link share = throughput / data rate of the forward link",
    note="The data rate counts IP packets and the time counts connecting, so 100 % can't be reached.",
)

PAIR_NUMBERS: tuple[Number, ...] = (
    DELIVERY_TIME,
    Number(
        key="ttfb",
        label="TTFB",
        short="TTFB",
        shown_in="ms",
        group=_TIME,
        formula="t(first new byte of response data) − t(client's first packet)",
    ),
    Number(
        key="handshake_time",
        label="handshake",
        short="handshake",
        shown_in="ms",
        group=_TIME,
        formula="t(client receives HANDSHAKE_DONE) − t(client's first packet)",
        note="Handshake confirmed, RFC 9001 §4.1.2. Over TCP: the client receives the first record that the server "
        "sends under its application keys (RFC 8446 §7.1).",
    ),
    Number(
        key="first_server_1rtt",
        label="first 1-RTT packet of the server",
        short="first 1-RTT",
        shown_in="ms",
        group=_TIME,
        formula="t(first 1-RTT packet of the server) − t(client's first packet)",
        note="The interval of goodput begins here.",
    ),
    Number(
        key="last_server_1rtt",
        label="last 1-RTT packet of the server",
        short="last 1-RTT",
        shown_in="s",
        group=_TIME,
        formula="t(last 1-RTT packet of the server) − t(client's first packet)",
        note="The interval of goodput ends here.",
        since=2,
    ),
    Number(
        key="goodput",
        label="goodput",
        short="goodput",
        shown_in="Mbit/s",
        group=_RATE,
        formula="goodput = 8 · file size / (t(last 1-RTT packet of the server) − t(first 1-RTT packet of the server))",
        note="Both packets on the client-side trace, whatever they carry: the formula of the public interop runner and "
        "of the thesis (eq. 4.1), for comparison with published matrices. A server that sends a 1-RTT packet before "
        "the request arrives is charged the wait. Over HTTP/3 the file counts, not its framing. Over TCP the interval "
        "goes from the first TLS record under the server's application keys to the last byte of the response.",
        since=2,
    ),
    Number(
        key="efficiency",
        label="efficiency η",
        short="η",
        shown_in="%",
        group=_RATE,
        formula="η = goodput / data rate of the forward link",
        note="Thesis eq. 4.2. The data rate counts IP packets, so headers keep η a little below 100 %.",
        since=2,
    ),
    Number(
        key="efficiency_exact",
        label="η_exact",
        short="η_exact",
        shown_in="%",
        group=_RATE,
        formula="η_exact = η / (1 − loss of the forward link)",
        note="Thesis eq. 4.3.",
        since=2,
    ),
    THROUGHPUT,
    LINK_SHARE,
    Number(
        key="delivery_rate",
        label="delivery rate",
        short="delivery rate",
        shown_in="Mbit/s",
        group=_RATE,
        formula="delivery rate = 8 · file size / (t(last new byte) − t(first new byte))",
    ),
    Number(
        key="slow_start_bound",
        label="slow-start bound η_ss",
        short="η_ss",
        shown_in="%",
        group=_RATE,
        formula="η_ss = delivery rate / data rate of ideal loss-free doubling from the observed initial window",
        note="RFC 9002 §7.3.1. No sender that starts slowly can beat it on this link with this file size.",
    ),
    Number(
        key="efficiency_of_bound",
        label="share of the slow-start bound",
        short="of η_ss",
        shown_in="%",
        group=_RATE,
        formula="delivery rate / data rate of the forward link / η_ss",
        note="Both count from the first new byte to the last. 100 %: as fast as slow start allows.",
    ),
    Number(
        key="steady_state_efficiency",
        label="steady-state η",
        short="steady η",
        shown_in="%",
        group=_RATE,
        formula="8 · bytes / time between the moments when 50 % and 95 % of them had arrived / data rate of the "
        "forward link",
    ),
    Number(
        key="return_data_rate",
        label="return data rate",
        short="return",
        shown_in="kbit/s",
        group=_RETURN,
        formula="8 · IP bytes sent by the client from the first 1-RTT packet of the server to the last new byte / that "
        "time",
    ),
    Number(
        key="ack_ratio",
        label="ACKs per data packet",
        short="ACKs",
        shown_in="",
        group=_RETURN,
        formula="packets with an ACK frame sent by the client / data packets received",
    ),
    Number(
        key="retransmission_ratio",
        label="retransmission ratio",
        short="retrans.",
        shown_in="%",
        group=_AGAIN,
        formula="stream bytes sent by the server / unique bytes − 1",
    ),
    Number(
        key="retransmitted_bytes",
        label="retransmitted",
        short="retrans.",
        shown_in="kB",
        group=_AGAIN,
        formula="stream bytes sent more than once, counted by byte ranges",
    ),
    Number(
        key="spurious_bytes",
        label="spurious",
        short="spurious",
        shown_in="kB",
        group=_AGAIN,
        formula="retransmitted bytes whose first copy had arrived at the client's side of the link",
    ),
    Number(
        key="lost_packets",
        label="lost data packets",
        short="lost",
        shown_in="",
        whole=True,
        group=_AGAIN,
        formula="data packets seen at the server's vantage point, never at the client's",
    ),
    Number(
        key="data_packets",
        label="data packets",
        short="packets",
        shown_in="",
        whole=True,
        group=_AGAIN,
        formula="packets with stream data sent by the server",
    ),
    Number(
        key="stream_bytes_sent",
        label="stream bytes sent",
        short="sent",
        shown_in="kB",
        group=_AGAIN,
        formula="stream bytes sent by the server, retransmissions included",
    ),
    Number(
        key="initial_window_bytes",
        label="initial window",
        short="IW",
        shown_in="B",
        whole=True,
        group=_PATH,
        formula="response bytes sent before an ACK of any of them could have come back",
        note="Observed at the server's vantage point, not read from a configuration.",
    ),
    Number(
        key="first_flight_packets",
        label="first flight",
        short="1st flight",
        shown_in="packets",
        group=_PATH,
        formula="1-RTT bytes of the server, from the request until an ACK of any of them came back / full datagram",
        note="The initial window in packets (RFC 9002 §7.2), unless pacing, flow control or a short file made it less.",
    ),
    Number(
        key="rtt_min",
        label="RTT, lowest",
        short="RTT min",
        shown_in="ms",
        group=_PATH,
        formula="lowest RTT of 1-RTT packets, seen at the server's vantage point",
    ),
    Number(
        key="rtt_median",
        label="RTT, median",
        short="RTT med.",
        shown_in="ms",
        group=_PATH,
        formula="median RTT of 1-RTT packets, seen at the server's vantage point",
        note="What is above the lowest RTT is queueing and delayed acknowledgement.",
    ),
    Number(
        key="one_way_delay_median",
        label="one-way delay, median",
        short="delay",
        shown_in="ms",
        group=_PATH,
        formula="median of t(packet at the client) − t(packet at the server)",
        note="Both captures have one clock when the link is emulated.",
    ),
)
"""Numbers of a pair's transfer. All instants are those of the client-side trace where nothing else is said."""

PATH_DOWNLOAD_NUMBERS: tuple[Number, ...] = (
    DELIVERY_TIME,
    THROUGHPUT,
    LINK_SHARE,
    Number(
        key="handshake_time",
        label="connected",
        short="connected",
        shown_in="ms",
        group=_TIME,
        formula="curl's time_appconnect, without TLS its time_connect",
    ),
    Number(
        key="ttfb",
        label="TTFB",
        short="TTFB",
        shown_in="ms",
        group=_TIME,
        formula="curl's time_starttransfer: the first byte of the response",
    ),
)
"""Numbers of a download over a path. Delivery time is read from the capture at the client; over HTTP/3 it is curl's
own time_total, because the last packets may hold no content. The forward link is the satellite segment's."""

PATH_PAGE_NUMBERS: tuple[Number, ...] = (
    Number(
        key="load",
        label="Page Load Time",
        short="load",
        shown_in="s",
        group=_TIME,
        formula="loadEventStart of the Navigation Timing API, from the start of the navigation",
    ),
    Number(
        key="response_start",
        label="Response Start",
        short="response",
        shown_in="s",
        group=_TIME,
        formula="responseStart of the Navigation Timing API, from the start of the navigation",
    ),
    Number(
        key="first_contentful_paint",
        label="First Contentful Paint",
        short="paint",
        shown_in="s",
        group=_TIME,
        formula="first-contentful-paint of the Paint Timing API",
    ),
    Number(
        key="completed",
        label="objects",
        short="objects",
        shown_in="",
        whole=True,
        group=_TIME,
        formula="objects of the page that arrived whole, with status 200",
    ),
)
"""Numbers of a page load over a path: fields of `PageLoad`."""

BY_KEY = {number.key: number for number in PAIR_NUMBERS}
_CHANGED_IN = {number.key: number.since for number in PAIR_NUMBERS if number.since > 1}
"""Keys whose formula has changed → the version of the definitions that has today's."""


def is_current(key: str, definitions: int) -> bool:
    """True when `key`, measured by version `definitions`, has today's formula."""
    return definitions >= _CHANGED_IN.get(key, 1)
