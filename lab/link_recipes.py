"""Recipes of the independent labelled set, by name: behaviour of links and receivers, and single sins."""

from random import Random

from lab.ground import LOSS_BASED, Ground, Recipe
from lab.recipes import any_controller, plain, recipe

# Losses


@recipe
def _loss(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(LOSS_BASED))
    settings.spec["forward"]["loss"] = random.uniform(0.005, 0.025)
    return settings


@recipe
def _loss_in_bursts(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(LOSS_BASED))
    settings.spec["forward"]["bursty_loss"] = (random.uniform(0.002, 0.006), random.uniform(0.2, 0.5))
    return settings


@recipe
def _loss_borne(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["forward"]["loss"] = random.uniform(0.005, 0.02)
    return settings


@recipe
def _overflows(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller="fixed", window=round(random.uniform(1.9, 2.4) * ground.bdp))
    settings.spec["forward"]["queue"] = ground.packets(random.uniform(0.3, 0.6))
    settings.spec["return"]["rate"] = max(5e6, ground.rate)
    return settings


@recipe
def _shallow_queue(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(LOSS_BASED))
    settings.spec["forward"]["queue"] = ground.packets(random.uniform(0.1, 0.35))
    return settings


@recipe
def _stands(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller="fixed", window=round(random.uniform(2.5, 3.5) * ground.bdp))
    settings.spec["forward"]["queue"] = ground.packets(4.5)
    return settings


@recipe
def _bufferbloat(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(("cubic", "newreno", "bbr")))
    settings.spec["forward"]["queue"] = ground.packets(random.uniform(4, 8))
    return settings


@recipe
def _tail_lost(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(("fixed", "cubic")), window=round(1.3 * ground.bdp))
    settings.tail = random.randint(6, 24)
    return settings


# The link changes


@recipe
def _step_down(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    time = random.uniform(0.3, 0.5) * 8 * ground.size / ground.rate
    settings.spec["forward"]["changes"] = [(time, random.uniform(0.3, 0.5) * ground.rate, ground.rtt / 2)]
    settings.spec["forward"]["queue"] = ground.packets(random.uniform(1.5, 4))
    return settings


@recipe
def _step_up(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(("cubic", "bbr")))
    time = random.uniform(0.4, 0.6) * 8 * ground.size / ground.rate
    settings.spec["forward"]["changes"] = [(time, random.uniform(1.4, 1.8) * ground.rate, ground.rtt / 2)]
    settings.unsure |= {"slow-start-left-early"}
    return settings


@recipe
def _outage(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    start = random.uniform(0.3, 0.5) * 8 * ground.size / ground.rate
    settings.spec["path"] = {"outages": [(start, random.uniform(0.8, 3.0))]}
    return settings


@recipe
def _reordered(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice((*LOSS_BASED, "fixed")), window=round(1.3 * ground.bdp))
    settings.spec["forward"] |= {"reorder": random.uniform(0.005, 0.05), "reorder_delay": random.uniform(0.015, 0.03)}
    return settings


@recipe
def _reordered_seldom(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["forward"] |= {"reorder": random.uniform(0.003, 0.01), "reorder_delay": random.uniform(0.02, 0.05)}
    return settings


@recipe
def _reordered_borne(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, packet_threshold=2000, time_threshold=3.0)
    settings.spec["forward"] |= {"reorder": random.uniform(0.01, 0.05), "reorder_delay": 0.02}
    return settings


@recipe
def _jitter(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    settings.spec["forward"]["jitter"] = random.uniform(0.003, 0.02)
    return settings


# Single sins


@recipe
def _every_datagram_twice(ground: Ground, random: Random) -> Recipe:
    window = round(random.uniform(0.5, 0.6) * ground.bdp)
    settings = plain(ground, random, controller="fixed", window=window, twice=random.choice((0.0, 0.5 * ground.rtt)))
    settings.unsure |= {"window-never-grew", "slow-start-left-early"}
    return settings


@recipe
def _small_datagrams(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["application"] = {"small": random.randint(250, 850)}
    settings.spec["size"] = min(ground.size, 1_200_000)
    settings.spec["return"]["rate"] = 4 * ground.rate
    settings.wanted |= {"small-datagrams"}
    settings.unsure |= {"mtu-not-raised", "application-idle"}
    return settings


@recipe
def _path_mtu_falls(ground: Ground, random: Random) -> Recipe:
    settings = any_controller(ground, random)
    start = random.uniform(0.3, 0.5) * 8 * ground.size / ground.rate
    settings.spec["path"] = {"mtu_fall": (start, random.randint(1280, 1400))}
    return settings


@recipe
def _marks_unseen(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["forward"]["mark"] = random.randint(3, 6)
    settings.spec["client"] = {"blind": "ce"}
    return settings


@recipe
def _marks_untold(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, initial_window=60_000, paced=random.random() < 0.5)
    settings.spec["forward"]["mark"] = random.randint(2, 4)
    settings.spec["client"] = {"blind": "all"}
    return settings


@recipe
def _marks_ignored(ground: Ground, random: Random) -> Recipe:
    window = round(random.uniform(1.3, 1.7) * ground.bdp)
    settings = plain(ground, random, controller="fixed", window=window, initial_window=random.choice((0, window)))
    settings.spec["forward"]["mark"] = random.randint(3, 6)
    settings.wanted |= {"ecn-ignored"}
    return settings


@recipe
def _marks_heeded(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, controller=random.choice(LOSS_BASED))
    settings.spec["forward"]["mark"] = max(5, ground.packets(random.uniform(0.1, 0.5)))
    settings.unsure |= {"slow-start-left-early", "window-after-loss"}
    return settings


# The return link


@recipe
def _acks_for_all(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, ack_every=1)
    settings.spec["return"]["rate"] = random.uniform(0.1, 0.3) * ground.rate
    return settings


@recipe
def _acks_fill_return(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random, ack_every=1)
    settings.spec["return"]["rate"] = random.uniform(0.02, 0.035) * ground.rate
    return settings


@recipe
def _acks_on_thin_return(ground: Ground, random: Random) -> Recipe:
    settings = plain(ground, random)
    settings.spec["return"]["rate"] = random.uniform(0.06, 0.1) * ground.rate
    return settings
