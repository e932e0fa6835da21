"""Links and senders for the independent labelled set, drawn from a seed.

The set is made without the detectors. A recipe (`recipes.py`) sets what is done to a transfer, the generator (`quinn/`)
makes the transfer, and `oracle.py` measures the effects in the generator's own records.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

MEASURED = frozenset(
    {
        "application-idle",
        "dense-acks",
        "ecn-not-reported",
        "mtu-black-hole",
        "mtu-not-raised",
        "outage",
        "queue-overflow",
        "receive-window",
        "retransmitted-tail",
        "return-link-full",
        "sent-twice",
        "spurious-retransmissions",
        "standing-queue",
        "window-after-loss",
    }
)
"""Diagnoses for which the oracle measures the truth in every transfer, with any recipe."""

LOSS_BASED = ("cubic", "newreno")


@dataclass(frozen=True)
class Ground:
    """A link without impairments: bit/s, seconds, bytes."""

    rate: float
    rtt: float
    size: int

    @property
    def bdp(self) -> int:
        return round(self.rate * self.rtt / 8)

    def packets(self, share: float) -> int:
        """The number of full packets in a share of the bandwidth-delay product; at least 4."""
        return max(4, round(share * self.bdp / 1480))

    @staticmethod
    def draw(random: Random) -> "Ground":
        """Draw a link with 2 to 16 Mbit/s, an RTT of 40 to 620 ms, and a BDP of 35 to 500 kB. The file has the size of
        12 to 20 BDP, but at least 1 MB and at most 5 MB."""
        while True:
            rate = 2e6 * 8 ** random.random()
            rtt = 0.04 * 15.5 ** random.random()
            bdp = rate * rtt / 8
            if 35_000 <= bdp <= 500_000:
                break
        size = min(max(random.uniform(12, 20) * bdp, 1_000_000), 5_000_000)
        return Ground(rate=round(rate, -4), rtt=round(rtt, 3), size=round(size))


@dataclass
class Recipe:
    """The settings of one transfer. `spec` goes to the generator as JSON."""

    spec: dict[str, Any]
    wanted: set[str] = field(default_factory=set)
    """The diagnoses that the settings must lead to. The oracle adds those whose effects it measures."""
    unsure: set[str] = field(default_factory=set)
    """Diagnoses that are neither required nor wrong."""
    advertised: float | None = None
    """The data rate in a real link's contract, divided by the forward link's data rate; None: the link is emulated."""
    tail: int = 0
    """Number of datagrams that are lost at the end: the datagram with the last new byte, and those before it."""
    generator: str = "quinn"


def transfer(ground: Ground, random: Random, **server: Any) -> Recipe:
    """The recipe on which others are based: the server fills the link with a window of 1.15 to 1.5 BDP, and the link
    has a queue of 1 to 2 BDP."""
    if "controller" not in server:
        server = {"controller": "fixed", "window": round(random.uniform(1.15, 1.5) * ground.bdp)} | server
    return Recipe(
        spec={
            "seed": random.randrange(1 << 31),
            "size": ground.size,
            "limit": 900.0,
            "forward": {
                "rate": ground.rate,
                "delay": ground.rtt / 2,
                "queue": ground.packets(random.uniform(1.0, 2.0)),
            },
            "return": {"rate": max(2e6, ground.rate / 2), "delay": ground.rtt / 2, "queue": 300},
            "server": {"interface": random.choice((1e8, 1e9))} | server,
            "path": {},
            "client": {},
            "application": {},
        }
    )


def any_sender(ground: Ground, random: Random) -> dict[str, Any]:
    """A sender that can fill the link: the controller of a real stack, or a window larger than the path."""
    name = random.choice(("cubic", "newreno", "bbr", "fixed"))
    if name == "fixed":
        return {"controller": "fixed", "window": round(random.uniform(1.15, 1.6) * ground.bdp)}
    return {"controller": name}
