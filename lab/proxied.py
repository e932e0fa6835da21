"""Makes the third labelled set, real stacks over a proxy in user space: `python -m lab.proxied FOLDER
--part look|held`.

quic-go, quinn and aioquic serve from their unchanged images; `proxy.py` is the link. The detectors treat each transfer
as a transfer over a real link: its contract states a data rate that the link doesn't have, and delay, queue and truth
are unknown. Labels follow from the settings, or from the records of the proxy. A transfer is made again when a busy
host delayed the proxy. `python -m lab.diagnoses FOLDER --part PART` judges the set.
"""

import argparse
import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.proxied_pair import Pair, ProxiedError, transfer
from runner.decode import Trace, decode_capture, load_tables, save_tables

Array = NDArray[np.float64]
PARTS = {"look": (100, 1), "held": (50_000, 2)}
"""Per part: a seed, and the number of transfers for each cause and server."""
SERVERS = ("quic-go", "quinn", "aioquic")
CLIENTS = ("quic-go", "quinn")
LATE = (0.005, 0.08)
"""Seconds by which the proxy may be late: for 99 of 100 datagrams, and at most."""
_ALMOST_ALL = 0.99
_TRIES = 3
_SECONDS = 60.0
_ALWAYS_UNSURE = {"queue-overflow", "mtu-black-hole", "dense-acks"}
"""Without the link's truth these diagnoses can't be made."""
_AFTER_FALL = {"window-after-loss", "retransmitted-tail", "spurious-retransmissions", "standing-queue"}
"""Diagnoses that may follow when the data rate falls or packets are lost for a while."""


@dataclass
class Cause:
    """The settings of one transfer, and the diagnoses that they must lead to."""

    pair: Pair
    wanted: set[str]
    unsure: set[str]


def _base(random: Random, server: str, queue: float = 2.0) -> Cause:
    """A link of 3 to 7 Mbit/s with an RTT of 60 to 240 ms. `queue` in BDP. Only the link limits the transfer."""
    rate, rtt = round(random.uniform(3e6, 7e6), -4), random.uniform(0.06, 0.24)
    bdp = rate * rtt / 8
    spec: dict[str, Any] = {
        "seed": random.randrange(1 << 31),
        "size": round(max(random.uniform(12, 16) * bdp, 1_300_000)),
        "forward": {"rate": rate, "delay": rtt / 2, "queue": max(6, round(queue * bdp / 1400))},
        "return": {"rate": rate / 2, "delay": rtt / 2, "queue": 300},
        "path": {},
    }
    return Cause(Pair(server, random.choice(CLIENTS), spec), set(), set(_ALWAYS_UNSURE))


def _clean(random: Random, server: str) -> Cause:
    return _base(random, server)


def _step_down(random: Random, server: str) -> Cause:
    cause = _base(random, server)
    link = cause.pair.spec["forward"]
    begin = random.uniform(0.3, 0.5) * 8 * cause.pair.spec["size"] / link["rate"]
    link["changes"] = [(begin, random.uniform(0.35, 0.5) * link["rate"])]
    cause.unsure |= _AFTER_FALL
    return cause


def _policer(random: Random, server: str) -> Cause:
    cause = _base(random, server)
    link = cause.pair.spec["forward"]
    bdp = link["rate"] * 2 * link["delay"] / 8
    link |= {"policer": (link["rate"], round(random.uniform(0.15, 0.4) * bdp) + 6_000), "rate": 4 * link["rate"]}
    # While the sender pauses, the policer's bucket fills. Afterwards the link seems faster for a moment.
    cause.unsure |= _AFTER_FALL - {"window-after-loss", "standing-queue"} | {"bursts", "slow-start-left-early"}
    return cause


def _outage(random: Random, server: str) -> Cause:
    cause = _base(random, server)
    begin = random.uniform(0.3, 0.5) * 8 * cause.pair.spec["size"] / cause.pair.spec["forward"]["rate"]
    for name in ("forward", "return"):
        cause.pair.spec[name]["outages"] = [(begin, random.uniform(0.9, 2.0))]
    cause.unsure |= _AFTER_FALL
    return cause


def _small_queue(random: Random, server: str) -> Cause:
    cause = _base(random, server, queue=random.uniform(0.1, 0.25))
    cause.unsure |= {"retransmitted-tail", "spurious-retransmissions", "slow-start-left-early"}
    return cause


def _reorder(random: Random, server: str) -> Cause:
    cause = _base(random, server, queue=5.0)
    cause.pair.spec["forward"] |= {"reorder": random.uniform(0.01, 0.04), "reorder_delay": random.uniform(0.025, 0.04)}
    cause.unsure |= {"standing-queue", "retransmitted-tail"}
    return cause


def _slow_disk(random: Random, server: str) -> Cause:
    cause = _base(random, server)
    rate = cause.pair.spec["forward"]["rate"]
    cause.pair.spec["size"] = round(min(cause.pair.spec["size"], 2e6))
    cause.wanted |= {"application-idle"}
    # After a loss the link may be unused because of the disk or because of the window. The records don't show which.
    cause.unsure |= {"window-after-loss"}
    cause.pair = replace(cause.pair, read_rate=round(random.uniform(0.25, 0.5) * rate / 8))
    return cause


CAUSES: dict[str, Callable[[Random, str], Cause]] = {
    "clean": _clean,
    "step-down": _step_down,
    "policer": _policer,
    "outage": _outage,
    "small-queue": _small_queue,
    "reorder": _reorder,
    "slow-disk": _slow_disk,
}


class Forward:
    """The proxy's records of the direction to the client, in seconds since its first datagram."""

    def __init__(self, path: Path) -> None:
        with path.open() as file:
            rows = list(csv.DictReader(file))
        late = np.array([float(row["left"]) - float(row["due"]) for row in rows if float(row["left"])])
        self.late = (float(np.percentile(late, 99)), float(late.max())) if len(late) else (0.0, 0.0)
        mine = [row for row in rows if row["direction"] == "forward"]
        came = np.array([float(row["came"]) for row in mine])
        self.came, self.wait = came - came[0], np.array([float(row["wait"]) for row in mine])
        self.size, self.fate = np.array([int(row["size"]) for row in mine]), np.array([row["fate"] for row in mine])

    def count(self, *fates: str) -> int:
        return int(np.isin(self.fate, fates).sum())

    def standing(self, rtt: float) -> float:
        """The share of the time in which a datagram would have had to wait for at least an RTT."""
        spans = np.diff(self.came, append=self.came[-1])
        long = np.minimum(spans, np.maximum(self.wait - rtt, 0.0) + 0.01)[self.wait >= rtt]
        return float(long.sum()) / max(float(self.came[-1]), 1e-9)

    def use_after_loss(self, rate: float) -> float | None:
        """The share of the data rate that was used from the first drop to the end, including the packets that were in
        the queue at the first drop; None with fewer than three drops."""
        gone, passed = np.isin(self.fate, ("loss", "queue", "policer")), self.fate == "delivered"
        if gone.sum() < 3:
            return None
        leave, total = (self.came + self.wait)[passed], np.cumsum(self.size[passed])
        first, finish = float(self.came[gone][0]), float(leave[np.searchsorted(total, _ALMOST_ALL * total[-1])])
        bits = 8 * float(self.size[passed][(leave >= first) & (leave <= finish)].sum())
        return bits / max(rate * (finish - first), 1.0)


def label(cause: Cause, forward: Forward, server_side: Trace) -> dict[str, Any]:
    """The label of a transfer. It requires the diagnoses of the settings and those whose effects the proxy's records
    show."""
    wanted, unsure, link = set(cause.wanted), set(cause.unsure), cause.pair.spec["forward"]
    for code, amount, absent, certain in _measured(cause, forward, server_side):
        if code not in unsure:
            (wanted if amount >= certain else unsure if amount > absent else set()).add(code)
    return {
        "wanted": sorted(wanted - unsure),
        "unsure": sorted(unsure),
        "advertised": round(2.5 if link["rate"] > 5e6 else 0.8, 2),
        "limits": {},
    }


def _measured(cause: Cause, forward: Forward, server_side: Trace) -> Iterator[tuple[str, float, float, float]]:
    """Each diagnosis with the size of its effect, the largest size at which the diagnosis is wrong, and the smallest
    size at which it is required."""
    link = cause.pair.spec["forward"]
    yield "standing-queue", forward.standing(2 * link["delay"]), 0.15, 0.37
    yield "outage", forward.count("outage"), 0, 6
    used = forward.use_after_loss(link["policer"][0] if "policer" in link else link["rate"])
    yield "window-after-loss", 0.0 if used is None else 1 - used, 0.07, 0.25
    packets, sizes = server_side.packets.to_pydict(), server_side.datagrams.column("payload_length").to_pylist()
    mine = [
        sizes[datagram]
        for datagram, sender, kind in zip(packets["datagram"], packets["sender"], packets["type"], strict=True)
        if sender == 1 and kind == "1rtt"
    ]
    frames = server_side.stream_frames.to_pydict()
    if not forward.count("outage", "policer", "queue", "loss"):  # without a loss, each repeated byte is needless
        sent = sum(length for length, sender in zip(frames["length"], frames["sender"], strict=True) if sender == 1)
        yield "spurious-retransmissions", sent / cause.pair.spec["size"] - 1, 0.0004, 0.003
    if not cause.wanted & {"application-idle"}:
        yield "application-idle", _answered_after(server_side), 0.2, float("inf")
    yield "mtu-not-raised", 0 if max(mine) >= 1300 else len(mine), 480, 520


def _answered_after(server_side: Trace) -> float:
    """Seconds from the request to the first byte of the response. They are long when a busy host opens a file late."""
    frames = server_side.stream_frames.to_pydict()
    first = {
        sender: min(time for time, each in zip(frames["time_ns"], frames["sender"], strict=True) if each == sender)
        for sender in (0, 1)
    }
    return float(first[1] - first[0]) / 1e9


def make(folder: Path, name: str, cause: Cause) -> str:
    """Make one transfer. Returns its name, with the reason when it couldn't be made. An existing transfer is labelled
    again."""
    if (folder / "label.json").exists():
        forward, server_side = Forward(folder / "passages.csv"), load_tables(folder / "server_tables")
        (folder / "label.json").write_text(json.dumps(label(cause, forward, server_side), indent=1))
        return name
    why = ""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            transfer(cause.pair, folder, "bpx", _SECONDS)
        except ProxiedError as error:
            why = str(error)
            continue
        forward = Forward(folder / "passages.csv")
        if forward.late[0] > LATE[0] or forward.late[1] > LATE[1]:
            usual, most = (f"{1e3 * late:.1f} ms" for late in forward.late)
            why = f"the proxy was {usual} late in 1 of 100 datagrams, {most} at most"
            continue
        sides = {role: decode_capture(folder / f"{role}.pcap", [folder / "keys.log"]) for role in ("client", "server")}
        for role, side in sides.items():
            save_tables(side, folder / f"{role}_tables")
        (folder / "label.json").write_text(json.dumps(label(cause, forward, sides["server"]), indent=1))
        return name
    return f"{name}: {why}"


def main(arguments: list[str]) -> int:
    """Make a part of the set. Returns 0 when every transfer was made."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=sorted(PARTS), required=True)
    parser.add_argument("--only", default="", help="causes, separated by commas")
    options = parser.parse_args(arguments)
    seed, count = PARTS[options.part]
    chosen = [name for name in CAUSES if not options.only or name in options.only.split(",")]
    failed = 0
    for number in range(count):
        for name in chosen:
            for server in SERVERS:
                full = f"{name}-{server}-{number}"
                cause = CAUSES[name](Random(f"{full}/{seed}"), server)
                line = make((options.folder / options.part / full).resolve(), full, cause)
                failed += ":" in line
                print(line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
