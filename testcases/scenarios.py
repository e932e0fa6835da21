"""The links. Delay is one-way; `forward` carries the download. One declaration each; parameters and sources: README."""

from dataclasses import replace

from runner.model.impairments import (
    NO_LINK_IMPAIRMENTS,
    NO_PATH_IMPAIRMENTS,
    LinkImpairments,
    MtuFall,
    Outage,
    PathImpairments,
    Rebinding,
)
from runner.model.scenario import Link, Queue, RealScenario, Scenario

_25_PACKETS = Queue(packets=25)
# The thesis set 25 packets and ran with about 125, which is 12 % of the BDP: the compatible value is what ran.
_125_PACKETS = Queue(packets=125)


def _symmetric(name: str, *, data_rate: int, delay: float, source: str, loss: float = 0.0) -> Scenario:
    link = Link(data_rate=data_rate, delay=delay, queue=_25_PACKETS, loss=loss)
    return Scenario(name=name, forward=link, return_=link, source=source)


def _geo(name: str, *, loss: float, source: str) -> Scenario:
    return Scenario(
        name=name,
        forward=Link(data_rate=20_000_000, delay=0.300, queue=_125_PACKETS, loss=loss),
        return_=Link(data_rate=2_000_000, delay=0.300, queue=_125_PACKETS, loss=loss),
        source=source,
    )


DEFAULT = _symmetric("D", data_rate=10_000_000, delay=0.015, source="public runner's default link")
LOSS_2 = _symmetric("D-loss-2", data_rate=10_000_000, delay=0.015, loss=0.02, source="public runner, transferloss")
TERRESTRIAL = _symmetric("terrestrial", data_rate=20_000_000, delay=0.015, source="follow-up paper of the thesis")
LONGRTT = _symmetric("longrtt", data_rate=10_000_000, delay=0.750, source="public runner, longrtt")
SAT = _geo("SAT", loss=0.0, source="thesis, table 4.3")
SATLOSS = _geo("SATLOSS", loss=0.01, source="thesis, table 4.3")


def _real(name: str, *, forward_rate: int, return_rate: int, source: str) -> RealScenario:
    return RealScenario(name=name, forward_rate=forward_rate, return_rate=return_rate, source=source)


# Advertised data rates; a link of that name in links.json says where the terminal is, and what its tariff promises.
ASTRA = _real("ASTRA", forward_rate=20_000_000, return_rate=2_000_000, source="thesis, table 4.4")
EUTELSAT = _real("EUTELSAT", forward_rate=50_000_000, return_rate=5_000_000, source="thesis, table 4.4")
STARLINK = _real("STARLINK", forward_rate=150_000_000, return_rate=150_000_000, source="thesis, section 2.1.1.1")


def _impaired(
    name: str,
    *,
    both: LinkImpairments = NO_LINK_IMPAIRMENTS,
    return_: LinkImpairments | None = None,
    path: PathImpairments = NO_PATH_IMPAIRMENTS,
    loss: float = 0.0,
    source: str,
) -> Scenario:
    """The default link with impairments of both directions, of the return link alone, of the path."""
    plain = DEFAULT.forward
    return Scenario(
        name=name,
        forward=replace(plain, loss=loss, impairments=NO_LINK_IMPAIRMENTS if return_ else both),
        return_=replace(plain, loss=loss, impairments=return_ or both),
        source=source,
        impairments=path,
    )


# The public runner anchors its outage and its rebindings to the start of the simulator, whatever the endpoints do then.
BLACKHOLE = _impaired(
    "D-outage",
    path=PathImpairments(outage=Outage(start=1.0, duration=2.0)),
    source="public runner, blackhole; anchored to the first 1-RTT packet",
)
LOSS_30 = _impaired("D-loss-30", both=LinkImpairments(burst=3), loss=0.3, source="public runner, handshakeloss")
CORRUPTION_30 = _impaired(
    "D-corruption-30", both=LinkImpairments(corruption=0.3, burst=3), source="public runner, handshakecorruption"
)
CORRUPTION_2 = _impaired(
    "D-corruption-2", both=LinkImpairments(corruption=0.02), source="public runner, transfercorruption"
)
CLIENT_LOSS_2_7 = _impaired(
    "D-drop-client-2-7", return_=LinkImpairments(loss_list=((2, 7),)), source="public runner, amplificationlimit"
)
MARKING = _impaired(
    "D-ce",
    both=LinkImpairments(mark_packets=4),
    source="public runner, ecn; CE where packets wait, so that it is counted",
)
MTU_FALL = _impaired(
    "D-mtu-1280",
    path=PathImpairments(mtu_fall=MtuFall(size=1280, start=3.0)),
    source="ours; RFC 8200 §5 allows no path below",
)
REORDER_5 = _impaired(
    "D-reorder-5", both=LinkImpairments(reorder=0.05, reorder_delay=0.010), source="ours: 8 packets late of a full link"
)
REORDER_CLIENT = _impaired(
    "D-reorder-client",
    return_=LinkImpairments(loss_list=((1, 1),), reorder=0.5, reorder_delay=0.010),
    source="ours: the parts of a ClientHello arrive in any order, those of the first connection lack the beginning",
)
RETURN_LOSS_20 = _impaired(
    "D-return-loss-20", return_=LinkImpairments(gilbert_elliott=(0.125, 0.5)), source="ours: ACKs alone are lost"
)
REBIND_PORT = _impaired(
    "D-rebind-port",
    path=PathImpairments(rebinding=Rebinding(what="port", first=1.0, every=5.0)),
    source="public runner, rebind-port; anchored to the first 1-RTT packet",
)
REBIND_ADDRESS = _impaired(
    "D-rebind-addr",
    path=PathImpairments(rebinding=Rebinding(what="address", first=1.0, every=5.0)),
    source="public runner, rebind-addr; anchored to the first 1-RTT packet",
)
