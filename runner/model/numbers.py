"""The numbers of an iteration: field, formula, unit. Each number is declared once."""

from dataclasses import dataclass

# A number of a job: its name, unit and formula, and the groups of numbers.

DATA_RATE, TIMES, RETURN_LINK = "Data rate", "Times", "Return link"
RETRANSMISSIONS, PATH, BESIDE = "Retransmissions", "Path", "Beside another flow"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A field of `Sample` or of `PageLoad`. It is stored in SI units and printed in the unit `shown_in`. Label, formula
    and note are plain text."""

    key: str
    label: str
    short: str  # a shorter label, for narrow columns
    shown_in: str  # the printed unit, one of UNITS
    formula: str
    note: str = ""
    whole: bool = False  # True: the number is a count and is printed without decimals
    group: str
    since: int = 1  # the first version of the definitions that has this formula


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


# The numbers of a pair's transfer. Each number is declared once, and pages, tables and documents use this declaration.
#
# `DEFINITIONS` is the version of the whole list. A result stores the version with which it was measured
# (`Sample.definitions`), so that numbers with the same name and different formulas are never compared.

DEFINITIONS = 2
"""In version 1, goodput ended at the last new byte. Since version 2, it ends at the server's last 1-RTT packet."""


DELIVERY_TIME = Number(
    key="ttlb",
    label="delivery time",
    short="delivery time",
    shown_in="s",
    group=TIMES,
    formula="t(last new byte of response data) − t(client's first packet)",
    note="The time that a user waits. Rankings, winners and comparisons use it. Also called TTLB.",
)
THROUGHPUT = Number(
    key="throughput",
    label="throughput",
    short="throughput",
    shown_in="Mbit/s",
    group=DATA_RATE,
    formula="throughput = 8 · file size / delivery time",
    note="The time includes the connection set-up.",
)
LINK_SHARE = Number(
    key="link_share",
    label="link share",
    short="link share",
    shown_in="%",
    group=DATA_RATE,
    formula="link share = throughput / data rate of the forward link",
    note="The data rate counts IP packets, and the time includes the connection set-up, so 100 % can't be reached.",
)

FAIRNESS = Number(
    key="fairness",
    label="Jain's fairness index",
    short="J",
    shown_in="",
    group=BESIDE,
    formula="J = (x + y)² / (2 · (x² + y²)); x, y: IP data rates of both flows in the shared time",
    note="1: both flows had the same data rate. 0.5: one flow had the whole data rate (Jain, Chiu and Hawe, 1984).",
)

FIRST_BYTES = tuple(
    Number(
        key=f"first_{size}_mb",
        label=f"time to {size} MB",
        short=f"{size} MB",
        shown_in="s",
        group=TIMES,
        formula=f"t({size},000,000th new byte of response data) − t(client's first packet)",
        note="draft-kuhn-quic-4-sat gives targets for these times.",
    )
    for size in (2, 10, 100)
)

PAIR_NUMBERS: tuple[Number, ...] = (
    DELIVERY_TIME,
    *FIRST_BYTES,
    Number(
        key="ttfb",
        label="TTFB",
        short="TTFB",
        shown_in="ms",
        group=TIMES,
        formula="t(first new byte of response data) − t(client's first packet)",
    ),
    Number(
        key="handshake_time",
        label="handshake",
        short="handshake",
        shown_in="ms",
        group=TIMES,
        formula="t(client receives HANDSHAKE_DONE) − t(client's first packet)",
        note="The handshake is then confirmed (RFC 9001 §4.1.2). Over TCP: the client receives the first record that "
        "the server sends under its application keys (RFC 8446 §7.1).",
    ),
    Number(
        key="first_server_1rtt",
        label="first 1-RTT packet of the server",
        short="first 1-RTT",
        shown_in="ms",
        group=TIMES,
        formula="t(first 1-RTT packet of the server) − t(client's first packet)",
        note="The interval of goodput begins here.",
    ),
    Number(
        key="last_server_1rtt",
        label="last 1-RTT packet of the server",
        short="last 1-RTT",
        shown_in="s",
        group=TIMES,
        formula="t(last 1-RTT packet of the server) − t(client's first packet)",
        note="The interval of goodput ends here.",
        since=2,
    ),
    Number(
        key="goodput",
        label="goodput",
        short="goodput",
        shown_in="Mbit/s",
        group=DATA_RATE,
        formula="goodput = 8 · file size / (t(last 1-RTT packet of the server) − t(first 1-RTT packet of the server))",
        note="Both times are from the client-side trace. Packets without data count, too. This is the formula of the "
        "public interop runner and of the thesis (eq. 4.1), for comparison with published matrices. When a server "
        "sends a 1-RTT packet before the request arrives, the time in between counts, too. Over HTTP/3 the bytes of "
        "the file count, but not the framing. Over TCP the interval goes from the first TLS record under the server's "
        "application keys to the last byte of the response.",
        since=2,
    ),
    Number(
        key="efficiency",
        label="efficiency η",
        short="η",
        shown_in="%",
        group=DATA_RATE,
        formula="η = goodput / data rate of the forward link",
        note="Thesis eq. 4.2. The data rate counts IP packets, so headers keep η a little below 100 %. On a link whose "
        "data rate changes, it is the mean in the time of the goodput.",
        since=2,
    ),
    Number(
        key="efficiency_exact",
        label="η_exact",
        short="η_exact",
        shown_in="%",
        group=DATA_RATE,
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
        group=DATA_RATE,
        formula="delivery rate = 8 · file size / (t(last new byte) − t(first new byte))",
    ),
    Number(
        key="slow_start_bound",
        label="slow-start bound η_ss",
        short="η_ss",
        shown_in="%",
        group=DATA_RATE,
        formula="η_ss = delivery rate of ideal loss-free doubling from the observed initial window / data rate of the "
        "forward link",
        note="RFC 9002 §7.3.1. No sender with slow start can exceed this bound on this link with this file size. On a "
        "link whose data rate changes, the doubling meets the rates of its time.",
    ),
    Number(
        key="efficiency_of_bound",
        label="share of the slow-start bound",
        short="of η_ss",
        shown_in="%",
        group=DATA_RATE,
        formula="delivery rate / data rate of the forward link / η_ss",
        note="Both rates are from the first new byte to the last new byte. 100 %: as fast as slow start allows.",
    ),
    Number(
        key="steady_state_efficiency",
        label="steady-state η",
        short="steady η",
        shown_in="%",
        group=DATA_RATE,
        formula="8 · bytes / time / data rate of the forward link; bytes and time between the arrival of 50 % and of "
        "95 % of the response",
    ),
    Number(
        key="return_data_rate",
        label="return data rate",
        short="return",
        shown_in="kbit/s",
        group=RETURN_LINK,
        formula="8 · IP bytes sent by the client / time, both from the first 1-RTT packet of the server to the last "
        "new byte",
    ),
    Number(
        key="ack_ratio",
        label="ACKs per data packet",
        short="ACKs",
        shown_in="",
        group=RETURN_LINK,
        formula="packets with an ACK frame sent by the client / data packets received",
    ),
    Number(
        key="retransmission_ratio",
        label="retransmission ratio",
        short="retrans.",
        shown_in="%",
        group=RETRANSMISSIONS,
        formula="stream bytes sent by the server / unique bytes − 1",
    ),
    Number(
        key="retransmitted_bytes",
        label="retransmitted",
        short="retrans.",
        shown_in="kB",
        group=RETRANSMISSIONS,
        formula="stream bytes sent more than once, counted by byte ranges",
    ),
    Number(
        key="spurious_bytes",
        label="spurious",
        short="spurious",
        shown_in="kB",
        group=RETRANSMISSIONS,
        formula="retransmitted bytes whose first copy had arrived at the client's side of the link",
    ),
    Number(
        key="lost_packets",
        label="lost data packets",
        short="lost",
        shown_in="",
        whole=True,
        group=RETRANSMISSIONS,
        formula="data packets seen at the server's vantage point, never at the client's",
    ),
    Number(
        key="data_packets",
        label="data packets",
        short="packets",
        shown_in="",
        whole=True,
        group=RETRANSMISSIONS,
        formula="packets with stream data sent by the server",
    ),
    Number(
        key="stream_bytes_sent",
        label="stream bytes sent",
        short="sent",
        shown_in="kB",
        group=RETRANSMISSIONS,
        formula="stream bytes sent by the server, retransmissions included",
    ),
    Number(
        key="initial_window_bytes",
        label="initial window",
        short="IW",
        shown_in="B",
        whole=True,
        group=PATH,
        formula="response bytes sent before an ACK of any of them could have come back",
        note="Observed at the server's vantage point, not read from a configuration.",
    ),
    Number(
        key="first_flight_packets",
        label="first flight",
        short="1st flight",
        shown_in="packets",
        group=PATH,
        formula="1-RTT bytes of the server from the request until the first ACK of any of them / size of a full "
        "datagram",
        note="The initial window in packets (RFC 9002 §7.2), unless pacing, flow control or a short file made it "
        "smaller.",
    ),
    Number(
        key="rtt_min",
        label="RTT, lowest",
        short="RTT min",
        shown_in="ms",
        group=PATH,
        formula="lowest RTT of 1-RTT packets, seen at the server's vantage point",
    ),
    Number(
        key="rtt_median",
        label="RTT, median",
        short="RTT med.",
        shown_in="ms",
        group=PATH,
        formula="median RTT of 1-RTT packets, seen at the server's vantage point",
        note="The difference to the lowest RTT comes from queues and from delayed ACKs.",
    ),
    Number(
        key="one_way_delay_median",
        label="one-way delay, median",
        short="delay",
        shown_in="ms",
        group=PATH,
        formula="median of t(packet at the client) − t(packet at the server)",
        note="Over an emulated link, both captures have the same clock.",
    ),
    FAIRNESS,
    Number(
        key="bottleneck_share",
        label="share of the bottleneck",
        short="share",
        shown_in="%",
        group=BESIDE,
        formula="IP bytes of the job's own flow / IP bytes of both flows, in the shared time",
        note="Packets with payload towards the clients, counted where they leave the forward link.",
    ),
    Number(
        key="beside_goodput",
        label="goodput of the second flow",
        short="beside",
        shown_in="Mbit/s",
        group=BESIDE,
        formula="8 · payload bytes of the second flow that arrived for the first time in the shared time / shared time",
        note="TCP: payload bytes, each sequence number counted once. QUIC: payload bytes of UDP.",
    ),
    Number(
        key="shared_time",
        label="shared time",
        short="shared",
        shown_in="s",
        group=BESIDE,
        formula="min(t(last packet) of both flows) − max(t(first packet) of both flows)",
        note="Packets with payload towards the clients, seen where they leave the forward link.",
    ),
)
"""Numbers of a transfer between a client and a server stack. All times are from the client-side trace unless a formula
names another vantage point."""

BY_KEY = {number.key: number for number in PAIR_NUMBERS}
_CHANGED_IN = {number.key: number.since for number in PAIR_NUMBERS if number.since > 1}
"""Key of each number whose formula has changed → the first version of the definitions with the current formula."""


def is_current(key: str, definitions: int) -> bool:
    """True when the formula of `key` in version `definitions` is the same as the formula in the current version."""
    return definitions >= _CHANGED_IN.get(key, 1)


# The numbers of downloads by curl and of page loads by a browser. Each number is declared once.

DOWNLOAD_NUMBERS: tuple[Number, ...] = (
    DELIVERY_TIME,
    THROUGHPUT,
    LINK_SHARE,
    Number(
        key="handshake_time",
        label="connected",
        short="connected",
        shown_in="ms",
        group=TIMES,
        formula="curl's time_appconnect; without TLS, curl's time_connect",
    ),
    Number(
        key="ttfb",
        label="TTFB",
        short="TTFB",
        shown_in="ms",
        group=TIMES,
        formula="curl's time_starttransfer: the first byte of the response",
    ),
)
"""Numbers of a download by curl. The delivery time is read from the capture at the client. Over HTTP/3 it is curl's own
time_total, because the last packets may carry no content. In the formulas, the forward link is the forward direction of
the satellite segment."""

PAGE_NUMBERS: tuple[Number, ...] = (
    Number(
        key="load",
        label="Page Load Time",
        short="load",
        shown_in="s",
        group=TIMES,
        formula="loadEventStart of the Navigation Timing API, from the start of the navigation",
    ),
    Number(
        key="response_start",
        label="Response Start",
        short="response",
        shown_in="s",
        group=TIMES,
        formula="responseStart of the Navigation Timing API, from the start of the navigation",
    ),
    Number(
        key="first_contentful_paint",
        label="First Contentful Paint",
        short="paint",
        shown_in="s",
        group=TIMES,
        formula="first-contentful-paint of the Paint Timing API",
    ),
    Number(
        key="completed",
        label="objects",
        short="objects",
        shown_in="",
        whole=True,
        group=TIMES,
        formula="objects of the page that arrived completely, with status 200",
    ),
)
"""Numbers of a page load by a browser: fields of `PageLoad`."""
