"""Recipes of the independent labelled set, by name: behaviour of links and receivers, and single sins."""

from random import Random

from runner.validation.ground import LOSS_BASED, Ground, Recipe
from runner.validation.recipes import any_controller, plain, recipe

# Losses


@recipe
def _loss(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(LOSS_BASED))
    made.spec["forward"]["loss"] = random.uniform(0.005, 0.025)
    return made


@recipe
def _loss_in_bursts(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(LOSS_BASED))
    made.spec["forward"]["bursty_loss"] = (random.uniform(0.002, 0.006), random.uniform(0.2, 0.5))
    return made


@recipe
def _loss_borne(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random)
    made.spec["forward"]["loss"] = random.uniform(0.005, 0.02)
    return made


@recipe
def _overflows(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller="fixed", window=round(random.uniform(1.9, 2.4) * ground.bdp))
    made.spec["forward"]["queue"] = ground.packets(random.uniform(0.3, 0.6))
    made.spec["return"]["rate"] = max(5e6, ground.rate)
    return made


@recipe
def _shallow_queue(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(LOSS_BASED))
    made.spec["forward"]["queue"] = ground.packets(random.uniform(0.1, 0.35))
    return made


@recipe
def _stands(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller="fixed", window=round(random.uniform(2.5, 3.5) * ground.bdp))
    made.spec["forward"]["queue"] = ground.packets(4.5)
    return made


@recipe
def _bufferbloat(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(("cubic", "newreno", "bbr")))
    made.spec["forward"]["queue"] = ground.packets(random.uniform(4, 8))
    return made


@recipe
def _tail_lost(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(("fixed", "cubic")), window=round(1.3 * ground.bdp))
    made.tail = random.randint(6, 24)
    return made


# The link changes


@recipe
def _step_down(ground: Ground, random: Random) -> Recipe:
    made = any_controller(ground, random)
    time = random.uniform(0.3, 0.5) * 8 * ground.size / ground.rate
    made.spec["forward"]["changes"] = [(time, random.uniform(0.3, 0.5) * ground.rate, ground.rtt / 2)]
    made.spec["forward"]["queue"] = ground.packets(random.uniform(1.5, 4))
    return made


@recipe
def _step_up(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(("cubic", "bbr")))
    time = random.uniform(0.4, 0.6) * 8 * ground.size / ground.rate
    made.spec["forward"]["changes"] = [(time, random.uniform(1.4, 1.8) * ground.rate, ground.rtt / 2)]
    made.unsure |= {"slow-start-left-early"}
    return made


@recipe
def _outage(ground: Ground, random: Random) -> Recipe:
    made = any_controller(ground, random)
    start = random.uniform(0.3, 0.5) * 8 * ground.size / ground.rate
    made.spec["path"] = {"outages": [(start, random.uniform(0.8, 3.0))]}
    return made


@recipe
def _reordered(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice((*LOSS_BASED, "fixed")), window=round(1.3 * ground.bdp))
    made.spec["forward"] |= {"reorder": random.uniform(0.005, 0.05), "reorder_delay": random.uniform(0.015, 0.03)}
    return made


@recipe
def _reordered_seldom(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random)
    made.spec["forward"] |= {"reorder": random.uniform(0.003, 0.01), "reorder_delay": random.uniform(0.02, 0.05)}
    return made


@recipe
def _reordered_borne(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, packet_threshold=2000, time_threshold=3.0)
    made.spec["forward"] |= {"reorder": random.uniform(0.01, 0.05), "reorder_delay": 0.02}
    return made


@recipe
def _jitter(ground: Ground, random: Random) -> Recipe:
    made = any_controller(ground, random)
    made.spec["forward"]["jitter"] = random.uniform(0.003, 0.02)
    return made


# Single sins


@recipe
def _every_datagram_twice(ground: Ground, random: Random) -> Recipe:
    window = round(random.uniform(0.5, 0.6) * ground.bdp)
    made = plain(ground, random, controller="fixed", window=window, twice=random.choice((0.0, 0.5 * ground.rtt)))
    made.unsure |= {"window-never-grew", "slow-start-left-early"}
    return made


@recipe
def _small_datagrams(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random)
    made.spec["application"] = {"small": random.randint(250, 850)}
    made.spec["size"] = min(ground.size, 1_200_000)
    made.spec["return"]["rate"] = 4 * ground.rate
    made.wanted |= {"small-datagrams"}
    made.unsure |= {"mtu-not-raised", "application-idle"}
    return made


@recipe
def _path_mtu_falls(ground: Ground, random: Random) -> Recipe:
    made = any_controller(ground, random)
    start = random.uniform(0.3, 0.5) * 8 * ground.size / ground.rate
    made.spec["path"] = {"mtu_fall": (start, random.randint(1280, 1400))}
    return made


@recipe
def _marks_unseen(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random)
    made.spec["forward"]["mark"] = random.randint(3, 6)
    made.spec["client"] = {"blind": "ce"}
    return made


@recipe
def _marks_untold(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, initial_window=60_000, paced=random.random() < 0.5)
    made.spec["forward"]["mark"] = random.randint(2, 4)
    made.spec["client"] = {"blind": "all"}
    return made


@recipe
def _marks_ignored(ground: Ground, random: Random) -> Recipe:
    window = round(random.uniform(1.3, 1.7) * ground.bdp)
    made = plain(ground, random, controller="fixed", window=window, initial_window=random.choice((0, window)))
    made.spec["forward"]["mark"] = random.randint(3, 6)
    made.wanted |= {"ecn-ignored"}
    return made


@recipe
def _marks_heeded(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, controller=random.choice(LOSS_BASED))
    made.spec["forward"]["mark"] = max(5, ground.packets(random.uniform(0.1, 0.5)))
    made.unsure |= {"slow-start-left-early", "window-after-loss"}
    return made


# The return link


@recipe
def _acks_for_all(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, ack_every=1)
    made.spec["return"]["rate"] = random.uniform(0.1, 0.3) * ground.rate
    return made


@recipe
def _acks_fill_return(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random, ack_every=1)
    made.spec["return"]["rate"] = random.uniform(0.02, 0.035) * ground.rate
    return made


@recipe
def _acks_on_thin_return(ground: Ground, random: Random) -> Recipe:
    made = plain(ground, random)
    made.spec["return"]["rate"] = random.uniform(0.06, 0.1) * ground.rate
    return made
