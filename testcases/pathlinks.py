"""The links under paths, one declaration each: a satellite segment, and a ground segment behind the gateway."""

from dataclasses import dataclass

from runner.model.impairments import LinkChange, LinkImpairments
from runner.model.scenario import Link, Queue, RealScenario, Scenario
from testcases import scenarios

_RATE, _RETURN_RATE = 20_000_000, 5_000_000
_ONE_BDP = Queue(bdp=1.0)
_GROUND = Link(data_rate=100_000_000, delay=0.040, queue=_ONE_BDP)
_STUDY = "QUIC-PEP paper (2022): 20 Mbit/s forward, 40 ms on the ground; the return link and queues of 1 BDP are ours"


@dataclass(frozen=True, kw_only=True)
class PathLink:
    """Two segments. Loss of the satellite segment takes packets of every protocol; the ground loses none."""

    name: str
    satellite: Scenario
    ground: Scenario
    note: str = ""

    @property
    def rtt(self) -> float:
        """Both ways through both segments in seconds, without queues and serialisation."""
        return self.satellite.rtt + self.ground.rtt


def _link(name: str, *, delay: float, forward: LinkImpairments, return_: LinkImpairments, note: str = "") -> PathLink:
    return PathLink(
        name=name,
        satellite=Scenario(
            name=f"{name}-satellite",
            forward=Link(data_rate=_RATE, delay=delay, queue=_ONE_BDP, impairments=forward),
            return_=Link(data_rate=_RETURN_RATE, delay=delay, queue=_ONE_BDP, impairments=return_),
            source=_STUDY,
        ),
        ground=Scenario(name="ground", forward=_GROUND, return_=_GROUND, source=_STUDY),
        note=note,
    )


def _steady(name: str, *, delay: float) -> PathLink:
    return _link(name, delay=delay, forward=LinkImpairments(), return_=LinkImpairments())


# One-way delays, s, from one satellite to the next: within the span of Iridium's that the QPEP paper used.
_ORBIT = (0.025, 0.050, 0.090, 0.140, 0.100, 0.060, 0.030, 0.075)
_STAYS = 5.0  # s; the paper's stay 30 s, longer than most transfers, so that no change would fall into one


def _changing(rate: int) -> LinkImpairments:
    steps = (
        LinkChange(time=_STAYS * number, delay=_ORBIT[number % len(_ORBIT)], data_rate=rate)
        for number in range(1, 1 + 8 * len(_ORBIT))
    )
    return LinkImpairments(changes=tuple(steps))


GEO = _steady("geo", delay=0.250)
LEO = _steady("leo", delay=0.016)
LEO_CHANGING = _link(
    "leo-changing",
    delay=_ORBIT[0],
    forward=_changing(_RATE),
    return_=_changing(_RETURN_RATE),
    note="delay 25 to 140 ms one way, another one every 5 s from the first UDP packet on; nobody overtakes",
)

# Every emulated link that `--link` can name.
LINKS: dict[str, Scenario | PathLink] = {
    "default": scenarios.DEFAULT,
    "terrestrial": scenarios.TERRESTRIAL,
    "longrtt": scenarios.LONGRTT,
    "sat": scenarios.SAT,
    "satloss": scenarios.SATLOSS,
    **{link.name: link for link in (GEO, LEO, LEO_CHANGING)},
}


def link_name(link: Scenario | RealScenario | PathLink) -> str:
    """What `--link` calls it."""
    return next((name for name, known in LINKS.items() if known == link), link.name.lower())


# The sweep of the QPEP paper: 28 values from 1e-9 to 1, evenly on a logarithmic scale.
LOSS_SWEEP = tuple(float(f"{10 ** (-9 + 9 * step / 27):.2g}") for step in range(28))
