"""Recipes over real links: the detectors know only the data rate of a contract; delay, queue and loss are unknown."""

from random import Random

from lab import link_recipes
from lab.ground import LOSS_BASED, Ground, Recipe
from lab.recipes import RECIPES, recipe

assert link_recipes  # its recipes run over real links, too


def _advertised(settings: Recipe, random: Random) -> Recipe:
    settings.advertised = random.choice((0.8, 1.5, 2.5, 3.0))
    # Only the counts of the simulator are certain evidence of these, and a real link has no simulator.
    settings.unsure |= {"outage", "queue-overflow", "mtu-black-hole"}
    # The share of the return link that ACKs take is known only where they fill the link.
    settings.unsure |= {"dense-acks"}
    return settings


def _over_real(name: str) -> None:
    def make(ground: Ground, random: Random) -> Recipe:
        return _advertised(RECIPES[name](ground, random), random)

    RECIPES[f"real-{name}"] = make


for _name in (
    "clean-fixed",
    "clean-cubic",
    "application-smooth",
    "application-chunks",
    "application-pauses",
    "credit-small",
    "never-grows",
    "lingers",
    "collapses",
    "loss",
    "bufferbloat",
    "tail-lost",
    "bursts-of-the-window",
    "reordered",
    "acks-for-all",
    "acks-fill-return",
):
    _over_real(_name)


@recipe
def _real_policer(ground: Ground, random: Random) -> Recipe:
    """The link could carry four times as much. A policer drops packets above the contract, without a queue."""
    settings = RECIPES["clean-cubic"](ground, random)
    settings.spec["server"]["controller"] = random.choice((*LOSS_BASED, "bbr"))
    settings.spec["forward"] |= {
        "rate": 4 * ground.rate,
        "policer": (ground.rate, round(random.uniform(0.1, 0.5) * ground.bdp) + 15_000),
    }
    settings.advertised = 0.25  # share of the link's rate; the policer lets this rate pass
    settings.unsure |= {"queue-overflow", "bursts", "slow-start-left-early", "rate-collapse"}
    return settings


@recipe
def _real_outage(ground: Ground, random: Random) -> Recipe:
    return _advertised(RECIPES["outage"](ground, random), random)
