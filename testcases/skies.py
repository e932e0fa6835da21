"""Links of real skies: parameters that change with time, capacity on demand, and the paths of the IETF's satellite
draft.

Each link is one declaration; docs/links.md describes them, and docs/references.md lists the sources.
`testcases/links.py` adds them to its links. Delays are one-way, data rates are those of IP packets.
"""

from collections.abc import Iterator
from random import Random

from runner.model.link import Dama, Direction, LinkChange, LinkImpairments, LinkRecord, Queue

_ONE_BDP = Queue(bdp=1.0)


def _sky(
    name: str, *, forward: list[LinkChange], return_: list[LinkChange], period: float, source: str, note: str
) -> LinkRecord:
    """A link whose changes repeat after `period` seconds, from a time on that the seed of each job chooses."""

    def direction(changes: list[LinkChange]) -> Direction:
        ends = [change.time for change in changes[1:]] + [period]

        def mean(name: str) -> float:
            steps = zip(changes, ends, strict=True)
            return float(sum(getattr(change, name) * (end - change.time) for change, end in steps)) / period

        return Direction(
            data_rate=round(mean("data_rate")),
            delay=round(mean("delay"), 4),
            loss=round(mean("loss"), 6),
            queue=_ONE_BDP,
            impairments=LinkImpairments(changes=tuple(changes), changes_period=period, changes_start=None),
        )

    return LinkRecord.declared(name, forward=direction(forward), return_=direction(return_), source=source, note=note)


# Starlink reassigns its satellites every 15 s. Then the delay has a peak, the data rate changes, packets get lost.
_GRID, _TURNS, _STEP = 15.0, 10, 0.2  # s between reassignments, number of them, s between changes
_JITTER = (0.0055, 0.0205)  # s forward and return: successive RTTs then differ by 6.7 ms on average
_GONE = 0.04  # s of a handover in which no packet arrives; until the next step, 10 % are lost: 5.6 % of that second
# The delays of the turns are nearly equal. After a handover, packets wait longer by the peak, until _PEAK_END.
_DELAYS = (0.0080, 0.0070, 0.0080, 0.0085, 0.0075, 0.0090, 0.0085, 0.0070, 0.0090, 0.0080)  # s
_PEAKS = (0.028, 0.039, 0.024, 0.051, 0.031, 0.059, 0.025, 0.044, 0.027, 0.034)  # s, forward
_PEAK_END = 0.1  # s
_LEAP = 23.6 / 73  # the largest step of the data rate from second to second, of the largest rate


def _starlink(
    rates: tuple[int, int], *, jitter: float, peaks: tuple[float, ...], loss: float, seed: int
) -> list[LinkChange]:
    """One direction: the range of data rates, the jitter, the peak of each turn, the loss between handovers."""
    random = Random(seed)
    changes, rate, leap = [], sum(rates) / 2, _LEAP * rates[1]
    for turn, (delay, peak) in enumerate(zip(_DELAYS, peaks, strict=True)):
        begin, rate = turn * _GRID, random.uniform(max(rates[0], rate - leap), min(rates[1], rate + leap))
        for number in range(round(_GRID / _STEP)):
            time = round(number * _STEP, 3)
            if number and number % round(1 / _STEP) == 0:  # each second a step, with the median that LeoCC reports
                rate = min(max(rate + random.gauss(0.0, 0.042) * rates[1], rates[0]), rates[1])
            now = LinkChange(round(begin + time, 3), round(delay + random.uniform(0.0, jitter), 5), round(rate), loss)
            if number:
                changes.append(now)
            else:
                over = now._replace(loss=0.1, handover=True)
                late = over._replace(time=begin + _GONE, delay=round(delay + peak, 5))
                changes += [over._replace(loss=1.0), late, over._replace(time=begin + _PEAK_END)]
    return changes


STARLINK_MODEL = _sky(
    "starlink-model",
    forward=_starlink((30_000_000, 73_000_000), jitter=_JITTER[0], peaks=_PEAKS, loss=0.0001, seed=1),
    return_=_starlink((8_000_000, 15_000_000), jitter=_JITTER[1], peaks=(0.0,) * _TURNS, loss=0.002, seed=2),
    period=_GRID * _TURNS,
    source="Huston 2024 (period, jitter), LeoCC (delays, peaks, data rates, losses); the losses of handovers are ours",
    note="every 15 s a new rate and a peak of the delay; a handover loses all packets for 40 ms, then 10 % for 160 ms",
)


def _pass(rate: int) -> Iterator[LinkChange]:
    """Passes of satellites of a polar orbit: the delay falls and rises again, then all packets are lost in the gap."""
    for number in range(4):
        begin, lowest = 30.0 * number, (0.025, 0.060, 0.040, 0.090)[number]
        for second in range(30):
            height = ((second - 15) / 15) ** 2
            yield LinkChange(begin + second, round(lowest + height * (0.140 - lowest), 4), rate)
        yield LinkChange(begin + 29.5, 0.140, rate, 1.0, handover=True)


LEO_POLAR = _sky(
    "leo-polar",
    forward=list(_pass(20_000_000)),
    return_=list(_pass(5_000_000)),
    period=120.0,
    source="delays and 30 s per satellite: QPEP paper (Iridium, 25 to 140 ms); the gap of 0.5 s is ours",
    note="a satellite passes in 30 s; in the gap of 0.5 s between two satellites all packets are lost",
)

# A terminal without constant capacity: each burst after a silence waits until its request was granted.
GEO_DAMA = LinkRecord.declared(
    "geo-dama",
    forward=Direction(data_rate=50_000_000, delay=0.260, queue=_ONE_BDP),
    return_=Direction(
        data_rate=10_000_000,
        delay=0.260,
        queue=Queue(bytes=650_000),
        impairments=LinkImpairments(dama=Dama(superframe=0.045, grant_delay=0.540, rbdc=2_000_000)),
    ),
    source="DVB-RCS2 (ETSI EN 301 545-2); a grant after two hops of 250 ms and 40 ms of scheduling: ours",
)

# Bits per symbol (ETSI EN 302 307-1, table 13): QPSK 1/2, 3/4, 8PSK 2/3, 3/4, 16APSK 3/4, 5/6, 32APSK 4/5.
_MODCODS = (0.989, 1.487, 1.980, 2.228, 2.967, 3.300, 3.952)
_FADE = (6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5)  # MODCOD in each 2 s after a clear sky


def _fade(symbols: int) -> LinkImpairments:
    """A fade of 30 s that begins 5 s after the first packet. At each step down 2 % of the packets are lost for 0.6 s,
    the time of the terminal's report and of the new MODCOD."""
    changes = [LinkChange(0.0, 0.260, round(symbols * _MODCODS[-1]))]
    for number, modcod in enumerate(_FADE):
        time, rate = 5.0 + 2.0 * number, round(symbols * _MODCODS[modcod])
        if rate < changes[-1].data_rate:
            changes.append(LinkChange(time, 0.260, changes[-1].data_rate, 0.02))
            time += 0.6
        changes.append(LinkChange(time, 0.260, rate))
    changes.append(LinkChange(35.0, 0.260, round(symbols * _MODCODS[-1])))
    return LinkImpairments(changes=tuple(changes), changes_period=60.0)


def _rainy(symbols: int, queue: Queue) -> Direction:
    return Direction(
        data_rate=round(symbols * _MODCODS[-1]), delay=0.260, queue=queue, loss=0.002, impairments=_fade(symbols)
    )


GEO_RAIN = LinkRecord.declared(
    "geo-rain",
    forward=_rainy(5_000_000, _ONE_BDP),
    return_=_rainy(500_000, Queue(bytes=130_000)),
    source="MODCODs: ETSI EN 302 307-1 (DVB-S2), table 13; 5 Msymbol/s forward, 0.5 return; the fade is ours",
)

_CABIN = Direction(data_rate=1_890_000, delay=0.380, queue=Queue(packets=50), loss=0.06)
AIRCRAFT = LinkRecord.declared(
    "aircraft",
    forward=_CABIN,
    return_=_CABIN,
    source="measurements on board, thesis, reference A: RTT 760 ms, 1.89 Mbit/s, 6 % loss; the queue is ours",
)


def _jittery(name: str, *, data_rate: int, delay: float, jitter: float) -> LinkRecord:
    """A link with a delay of `delay` ± `jitter`."""
    way = Direction(
        data_rate=data_rate, delay=delay - jitter, queue=_ONE_BDP, impairments=LinkImpairments(jitter=2 * jitter)
    )
    return LinkRecord.declared(name, forward=way, return_=way, source="Starlink-class set; the queue of 1 BDP is ours")


def _variable(seed: int) -> list[LinkChange]:
    """RTT 100 to 600 ms, 5 to 50 Mbit/s, jitter 5 to 20 ms: every 5 s other values, every 0.1 s another jitter."""
    random, changes = Random(seed), []
    for turn in range(20):
        delay, rate, jitter = random.uniform(0.05, 0.3), round(random.uniform(5e6, 50e6)), random.uniform(0.005, 0.02)
        for number in range(50):
            now = max(0.05, min(0.3, delay + random.uniform(-jitter, jitter)))
            changes.append(LinkChange(round(5.0 * turn + 0.1 * number, 1), round(now, 5), rate))
    return changes


CLASS_GEO = _jittery("class-geo", data_rate=10_000_000, delay=0.250, jitter=0.010)
CLASS_LEO = _jittery("class-leo", data_rate=50_000_000, delay=0.050, jitter=0.005)
CLASS_VARIABLE = _sky(
    "class-variable",
    forward=_variable(3),
    return_=_variable(4),
    period=100.0,
    source="Starlink-class set: RTT 100 to 600 ms, 5 to 50 Mbit/s, jitter 5 to 20 ms; the period of 5 s is ours",
    note="every 5 s another delay, data rate and jitter",
)


# draft-kuhn-quic-4-sat-07 §4: RTT 650 ms, queues of 1 BDP of their direction. §4.4 repeats a transfer of §4.2.
_DRAFT = "draft-kuhn-quic-4-sat-07"


def _regression(
    name: str,
    section: str,
    rates: tuple[int, int],
    *,
    loss: float = 0.0,
    forward: LinkImpairments = LinkImpairments(),  # noqa: B008 - it is frozen
    return_: LinkImpairments = LinkImpairments(),  # noqa: B008
) -> LinkRecord:
    ways = (
        Direction(
            data_rate=rate, delay=0.325, queue=Queue(bytes=round(0.65 * rate / 8)), loss=loss, impairments=impairments
        )
        for rate, impairments in zip(rates, (forward, return_), strict=True)
    )
    return LinkRecord.declared(name, forward=next(ways), return_=next(ways), source=f"{_DRAFT} §{section}")


_BURSTS = LinkImpairments(gilbert_elliott=(0.018, 0.645))
_AFTER_5_S = LinkImpairments(changes=(LinkChange(5.0, 0.325, 10_000_000),))
IETF_SMALL = _regression("ietf-small", "4.1", (10_000_000, 2_000_000))
IETF_MEDIUM = _regression("ietf-medium", "4.2 and 4.4", (50_000_000, 10_000_000))
IETF_THIN = _regression("ietf-thin", "4.3", (50_000_000, 500_000))
IETF_STEP = _regression("ietf-step", "4.5", (50_000_000, 10_000_000), forward=_AFTER_5_S)
IETF_LARGE = _regression("ietf-large", "4.6", (250_000_000, 3_000_000))
IETF_LOSS = _regression("ietf-loss", "4.7", (250_000_000, 3_000_000), loss=0.01)
IETF_BURSTS = _regression("ietf-bursts", "4.7", (250_000_000, 3_000_000), forward=_BURSTS, return_=_BURSTS)

SKIES: dict[str, LinkRecord] = {link.name: link for link in list(globals().values()) if isinstance(link, LinkRecord)}
