"""Recipes of the independent labelled set, by name.

A recipe gets a link and a source of random numbers, and returns settings. When the settings give the sender a
behaviour, its diagnosis is required. For effects that can be measured in the generator's records (`ground.MEASURED`)
the oracle decides.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from lab.ground import Ground, Recipe, any_sender, transfer

Maker = Callable[[Ground, Random], Recipe]
RECIPES: dict[str, Maker] = {}

_BBR_MAY = {"slow-start-left-early", "rate-collapse", "bursts"}
"""BBR causes these when it probes: it drains its queue, and keeps only 4 packets in flight for 200 ms."""

_INITIAL_WINDOW = 14_720  # bytes (RFC 9002 §7.2)


def recipe(make: Maker) -> Maker:
    """Add a recipe under its function's name."""
    RECIPES[make.__name__.strip("_").replace("_", "-")] = make
    return make


def plain(ground: Ground, random: Random, **server: Any) -> Recipe:
    """The recipe on which others are based. Diagnoses that BBR causes by itself don't count."""
    settings = transfer(ground, random, **server)
    if server.get("controller") == "bbr":
        settings.unsure |= _BBR_MAY
    return settings


def any_controller(ground: Ground, random: Random) -> Recipe:
    """A sender that can fill the link, with any controller."""
    return plain(ground, random, **any_sender(ground, random))


@recipe
def _clean_fixed(ground: Ground, random: Random) -> Recipe:
    return plain(ground, random)


@recipe
def _clean_cubic(ground: Ground, random: Random) -> Recipe:
    return plain(ground, random, controller="cubic", initial_window=random.choice((0, 40_000)))


@recipe
def _clean_newreno(ground: Ground, random: Random) -> Recipe:
    return plain(ground, random, controller="newreno")


@recipe
def _clean_bbr(ground: Ground, random: Random) -> Recipe:
    return plain(ground, random, controller="bbr")


@recipe
def _unpaced_cubic(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller="cubic", paced=False)
    settings.unsure |= {"bursts"}
    return settings


@recipe
def _datagrams_of_1200(ground: Ground, random: Random) -> Recipe:
    return plain(ground, random, discovers_mtu=False)


@recipe
def _few_acks(ground: Ground, random: Random) -> Recipe:
    return plain(ground, random, ack_every=random.randint(8, 20), ack_delay=0.02)


# The application


@recipe
def _application_smooth(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    rate = random.uniform(0.25, 0.7) * ground.rate
    settings.spec["application"] = {"writes": (round(rate / 800), 0.01)}
    return settings


@recipe
def _application_paced(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    rate, size = random.uniform(0.3, 0.7) * ground.rate, random.randint(1000, 2800)
    settings.spec["application"] = {"writes": (size, size * 8 / rate)}
    return settings


@recipe
def _application_chunks(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    rate, every = random.uniform(0.2, 0.65) * ground.rate, random.uniform(0.1, 0.4)
    settings.spec["application"] = {"writes": (round(rate * every / 8), every)}
    return settings


@recipe
def _application_pauses(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    pause = max(random.uniform(0.8, 3.0), 2.5 * ground.rtt)
    bytes_before = round(random.uniform(0.3, 0.6) * ground.size)
    # All these bytes are produced at once, so the pause must also last until the stack has sent them.
    settings.spec["application"] = {"pauses": [(bytes_before, pause + 8 * bytes_before / ground.rate + 2 * ground.rtt)]}
    return settings


@recipe
def _application_late(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    settings.spec["application"] = {"delay": random.uniform(0.8, 3.0)}
    return settings


@recipe
def _application_fast(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["application"] = {"writes": (round(random.uniform(1.5, 3) * ground.rate / 800), 0.01)}
    return settings


# The client's credit


@recipe
def _credit_small(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    settings.spec["client"] = {"window": round(random.uniform(0.2, 0.65) * ground.bdp)}
    return settings


@recipe
def _credit_slow_reader(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    settings.spec["client"] = {
        "window": round(random.uniform(0.5, 0.9) * ground.bdp),
        "reads": random.uniform(0.3, 0.6) * ground.rate / 8,
    }
    return settings


@recipe
def _credit_ample(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["client"] = {"window": round(random.uniform(3, 5) * ground.bdp)}
    return settings


# The congestion window


@recipe
def _never_grows(ground: Ground, random: Random) -> Recipe:
    window = round(random.uniform(0.2, 0.55) * ground.bdp)
    settings = plain(ground, random, controller="fixed", window=window, initial_window=window)
    settings.wanted |= {"window-never-grew"}
    settings.unsure |= {"slow-start-left-early"}
    return settings


@recipe
def _lingers(ground: Ground, random: Random) -> Recipe:
    window = max(round(random.uniform(0.15, 0.45) * ground.bdp), 26_000)
    settings = plain(ground, random, controller="lingering", window=window, growth=random.uniform(0.1, 0.8))
    settings.wanted |= {"slow-start-left-early"}
    return settings


@recipe
def _collapses(ground: Ground, random: Random) -> Recipe:
    window = max(round(random.uniform(0.06, 0.3) * ground.bdp), 3_000)
    settings = plain(ground, random, collapse=(round(random.uniform(0.4, 0.6) * ground.size), window))
    settings.wanted |= {"rate-collapse"}
    return settings


@recipe
def _bursts_of_the_window(ground: Ground, random: Random) -> Recipe:
    share = random.uniform(0.4, 0.8)
    settings = plain(
        ground,
        random,
        controller="fixed",
        window=round(share * ground.bdp),
        paced=False,
        ack_every=5000,
        ack_delay=share * ground.rtt,
    )
    # ACKs may divide the window into two bursts. A sender may send an initial window at once (RFC 9002 §7.7).
    (settings.wanted if settings.spec["server"]["window"] > 2 * _INITIAL_WINDOW else settings.unsure).add("bursts")
    settings.unsure |= {"slow-start-left-early", "window-never-grew"}
    return settings


@recipe
def _bursts_of_a_frame(ground: Ground, random: Random) -> Recipe:
    settings = plain(
        ground, random, controller="fixed", window=round(random.uniform(0.6, 0.9) * ground.bdp), paced=False
    )
    settings.spec["return"]["frame"] = max(random.uniform(0.3, 1.0) * ground.rtt, 30_000 * 8 / ground.rate)
    settings.wanted |= {"bursts"}
    settings.unsure |= {"slow-start-left-early", "window-never-grew"}
    return settings


@recipe
def _paced_over_frames(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller="fixed", window=round(random.uniform(1.8, 2.2) * ground.bdp))
    settings.spec["return"]["frame"] = random.uniform(0.2, 0.5) * ground.rtt
    return settings
