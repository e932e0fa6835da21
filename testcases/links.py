"""The built-in links, one declaration each. `--link` takes their names. Delays are one-way; `forward` is the direction
of the download.

docs/references.md lists the sources. Users declare links of the same form in emulated-links.json.
"""

from dataclasses import replace

from runner.model.link import (
    NO_LINK_IMPAIRMENTS,
    NO_PATH_IMPAIRMENTS,
    Direction,
    LinkChange,
    LinkImpairments,
    LinkRecord,
    MtuFall,
    Outage,
    PathImpairments,
    Queue,
    Rebinding,
    SegmentRecord,
)
from testcases.skies import SKIES

_25_PACKETS = Queue(packets=25)
# The thesis states 25 packets; its simulator ran with about 125 (12 % of the BDP). We use 125 packets.
_125_PACKETS = Queue(packets=125)
_ONE_BDP = Queue(bdp=1.0)


def _symmetric(name: str, *, data_rate: int, delay: float, source: str, loss: float = 0.0) -> LinkRecord:
    direction = Direction(data_rate=data_rate, delay=delay, queue=_25_PACKETS, loss=loss)
    return LinkRecord.declared(name, forward=direction, return_=direction, source=source)


def _geostationary(name: str, *, loss: float, source: str) -> LinkRecord:
    return LinkRecord.declared(
        name,
        forward=Direction(data_rate=20_000_000, delay=0.300, queue=_125_PACKETS, loss=loss),
        return_=Direction(data_rate=2_000_000, delay=0.300, queue=_125_PACKETS, loss=loss),
        source=source,
    )


DEFAULT = _symmetric("default", data_rate=10_000_000, delay=0.015, source="public runner's default link")
LOSS_2 = _symmetric("loss-2", data_rate=10_000_000, delay=0.015, loss=0.02, source="public runner, transferloss")
TERRESTRIAL = _symmetric("terrestrial", data_rate=20_000_000, delay=0.015, source="follow-up paper of the thesis")
LONGRTT = _symmetric("longrtt", data_rate=10_000_000, delay=0.750, source="public runner, longrtt")
SAT = _geostationary("sat", loss=0.0, source="thesis, table 4.3")
SATLOSS = _geostationary("satloss", loss=0.01, source="thesis, table 4.3")


# For each of these links, links.json can have an entry of the same name, with the terminal's host and the tariff.
ASTRA = LinkRecord.advertised("ASTRA", 20_000_000, 2_000_000, source="thesis, table 4.4")
EUTELSAT = LinkRecord.advertised("EUTELSAT", 50_000_000, 5_000_000, source="thesis, table 4.4")
STARLINK = LinkRecord.advertised("STARLINK", 150_000_000, 150_000_000, source="thesis, section 2.1.1.1")


def _impaired(
    name: str,
    *,
    both: LinkImpairments = NO_LINK_IMPAIRMENTS,
    return_: LinkImpairments | None = None,
    path: PathImpairments = NO_PATH_IMPAIRMENTS,
    loss: float = 0.0,
    source: str,
) -> LinkRecord:
    """The default link with impairments of both directions, of the return direction, or of the whole segment."""
    plain = DEFAULT.satellite.forward
    forward = replace(plain, loss=loss, impairments=NO_LINK_IMPAIRMENTS if return_ else both)
    return LinkRecord.single(name, forward, replace(plain, loss=loss, impairments=return_ or both), path, source=source)


# In the public runner, the times of outage and rebindings count from the simulator's start. Here they count from the
# first 1-RTT packet, so that they always affect the transfer.
BLACKHOLE = _impaired(
    "outage",
    path=PathImpairments(outage=Outage(start=1.0, duration=2.0)),
    source="public runner, blackhole; anchored to the first 1-RTT packet",
)
LOSS_30 = _impaired("loss-30", both=LinkImpairments(burst=3), loss=0.3, source="public runner, handshakeloss")
CORRUPTION_30 = _impaired(
    "corruption-30", both=LinkImpairments(corruption=0.3, burst=3), source="public runner, handshakecorruption"
)
CORRUPTION_2 = _impaired(
    "corruption-2", both=LinkImpairments(corruption=0.02), source="public runner, transfercorruption"
)
CLIENT_LOSS_2_7 = _impaired(
    "drop-client-2-7", return_=LinkImpairments(loss_list=((2, 7),)), source="public runner, amplificationlimit"
)
MARKING = _impaired(
    "ce",
    both=LinkImpairments(mark_packets=4),
    source="public runner, ecn; the link sets CE when packets wait, so that endpoints must count it",
)
MTU_FALL = _impaired(
    "mtu-1280",
    path=PathImpairments(mtu_fall=MtuFall(size=1280, start=3.0)),
    source="ours; the minimum of IPv6 (RFC 8200 §5)",
)
REORDER_5 = _impaired(
    "reorder-5",
    both=LinkImpairments(reorder=0.05, reorder_delay=0.010),
    source="ours: 10 ms are 8 packets of a full link",
)
REORDER_CLIENT = _impaired(
    "reorder-client",
    return_=LinkImpairments(loss_list=((1, 1),), reorder=0.5, reorder_delay=0.010),
    source="ours: parts of a ClientHello arrive in any order; the first connection loses the first part",
)
RETURN_LOSS_20 = _impaired(
    "return-loss-20", return_=LinkImpairments(gilbert_elliott=(0.125, 0.5)), source="ours: only ACKs are lost"
)
REBIND_PORT = _impaired(
    "rebind-port",
    path=PathImpairments(rebinding=Rebinding(what="port", first=1.0, every=5.0)),
    source="public runner, rebind-port; anchored to the first 1-RTT packet",
)
REBIND_ADDRESS = _impaired(
    "rebind-addr",
    path=PathImpairments(rebinding=Rebinding(what="address", first=1.0, every=5.0)),
    source="public runner, rebind-addr; anchored to the first 1-RTT packet",
)

_RATE, _RETURN_RATE = 20_000_000, 5_000_000
_STUDY = "QUIC-PEP paper (2022): 20 Mbit/s forward, 40 ms on the ground; the return link and queues of 1 BDP are ours"
_GROUND_DIRECTION = Direction(data_rate=100_000_000, delay=0.040, queue=_ONE_BDP)
_GROUND = SegmentRecord.declared(_GROUND_DIRECTION, _GROUND_DIRECTION)


def _grounded(
    name: str, *, delay: float, forward: LinkImpairments, return_: LinkImpairments, note: str = ""
) -> LinkRecord:
    """A satellite segment and a ground segment behind the gateway."""
    satellite = SegmentRecord.declared(
        forward=Direction(data_rate=_RATE, delay=delay, queue=_ONE_BDP, impairments=forward),
        return_=Direction(data_rate=_RETURN_RATE, delay=delay, queue=_ONE_BDP, impairments=return_),
    )
    return LinkRecord.of(name, (satellite, _GROUND), source=_STUDY, note=note)


def _steady(name: str, *, delay: float) -> LinkRecord:
    return _grounded(name, delay=delay, forward=NO_LINK_IMPAIRMENTS, return_=NO_LINK_IMPAIRMENTS)


# One-way delays in seconds of successive satellites, within the range of Iridium that the QPEP paper used.
_ORBIT = (0.025, 0.050, 0.090, 0.140, 0.100, 0.060, 0.030, 0.075)
_STAYS = 5.0  # s per satellite. With the paper's 30 s, most transfers would end before the first change


def _changing(rate: int) -> LinkImpairments:
    steps = (
        LinkChange(time=_STAYS * number, delay=_ORBIT[number % len(_ORBIT)], data_rate=rate)
        for number in range(1, 1 + 8 * len(_ORBIT))
    )
    return LinkImpairments(changes=tuple(steps))


GEO = _steady("geo", delay=0.250)
LEO = _steady("leo", delay=0.016)
LEO_CHANGING = _grounded(
    "leo-changing",
    delay=_ORBIT[0],
    forward=_changing(_RATE),
    return_=_changing(_RETURN_RATE),
    note="one-way delay 25 to 140 ms, changes every 5 s after the first UDP packet; packets stay in order",
)

LINKS: dict[str, LinkRecord] = {
    link.name: link for link in list(globals().values()) if isinstance(link, LinkRecord) and not link.is_real
} | SKIES
"""All built-in links, by name."""

# The loss ratios of the QPEP paper: 28 values from 1e-9 to 1, evenly on a logarithmic scale.
LOSS_SWEEP = tuple(float(f"{10 ** (-9 + 9 * step / 27):.2g}") for step in range(28))
