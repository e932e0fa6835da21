"""The effects in a generated transfer, measured in the records of the generator's link and application.

Each effect is a number. Its diagnosis is required when the number is at least `certain`, and wrong when the number is
at most `absent`. Between the two the diagnosis does not count, because each detector has its own threshold.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.decode import Trace

Array = NDArray[np.float64]
_STEP = 0.005  # step of the time grid in seconds
_FULL = 0.9  # the link counts as full from this share of its data rate on, over one RTT


@dataclass(frozen=True)
class Effect:
    """The size of an effect, and the two bounds between which its diagnosis does not count."""

    amount: float
    absent: float
    certain: float

    @property
    def wanted(self) -> bool:
        return self.amount >= self.certain

    @property
    def unsure(self) -> bool:
        return self.absent < self.amount < self.certain


class Passages:
    """One direction of `link.csv`: times in seconds, sizes in bytes."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        def column(name: str) -> Array:
            return np.array([float(row[name]) for row in rows])

        self.sent = column("sent_ns") / 1e9
        self.arrival = column("arrival_ns") / 1e9
        self.wait = column("wait_ns") / 1e9
        self.waiting = column("waiting")
        self.length = column("length")
        self.fate = np.array([row["fate"] for row in rows])
        self.held_back = int(sum(column("held_back")))

    def count(self, *fates: str) -> int:
        return int(np.isin(self.fate, fates).sum())

    @property
    def delivered(self) -> NDArray[np.bool_]:
        return np.isin(self.fate, ("delivered", "marked"))


def read_passages(folder: Path) -> dict[str, Passages]:
    """The passages by direction: forward, return."""
    with (folder / "link.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: Passages([row for row in rows if row["direction"] == name]) for name in ("forward", "return")}


@dataclass(frozen=True)
class _First:
    """The first transmission of each byte of the response: times of the datagrams with new bytes, and the bytes of the
    response that had been sent by then. It also counts needless transmissions."""

    time: Array
    known: Array
    needless: int
    """Packets that carried bytes of which an earlier copy arrived."""
    needless_bytes: int
    last: int
    """Which of the forward packets has the last new byte, counted from 0."""


class Oracle:
    """The records of one transfer."""

    def __init__(self, folder: Path, spec: dict[str, Any], client_side: Trace, server_side: Trace) -> None:
        self.spec = spec
        passages = read_passages(folder)
        self.forward, self.back = passages["forward"], passages["return"]
        self.end = json.loads((folder / "end.json").read_bytes())
        self.first_1rtt = self.end["first_1rtt_ns"] / 1e9
        self.start = self.end["requested_ns"] / 1e9
        self.client_side, self.server_side = client_side, server_side
        self.sent = self._first_sent()
        self.finish = self._last_new_byte_arrives()
        with (folder / "application.csv").open() as file:
            self.application = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]

    # Times of the captures count from the transfer's beginning. Both captures have the same clock and all packets.

    def _first_sent(self) -> _First:
        datagrams, packets, frames = (
            self.server_side.datagrams,
            self.server_side.packets.to_pydict(),
            self.server_side.stream_frames.to_pydict(),
        )
        origin = self.client_side.meta.first_time_ns or 0
        # The n-th datagram that the server sent is the n-th datagram of the forward link, in any order of the capture.
        from_server = [row for row, sender in enumerate(datagrams.column("sender").to_pylist()) if sender == 1]
        number = {row: place for place, row in enumerate(from_server)}
        times, known, high = [], [], 0
        copies: dict[int, list[int]] = {}
        needless, needless_bytes, last = set[int](), 0, 0
        block = 64  # bytes: ranges are compared in blocks
        for packet, offset, length, sender, time in zip(
            *(frames[name] for name in ("packet", "offset", "length", "sender", "time_ns")), strict=True
        ):
            if sender != 1:
                continue
            place = number[packets["datagram"][packet]]
            blocks = range(offset // block, (offset + length) // block)
            if any(self.forward.delivered[copy] for each in blocks for copy in copies.get(each, ())):
                needless.add(packet)
                needless_bytes += length
            for each in blocks:
                copies.setdefault(each, []).append(place)
            if offset + length > high:
                high, last = offset + length, place
                times.append((time - origin) / 1e9)
                known.append(high)
        return _First(np.array(times), np.array(known, dtype=float), len(needless), needless_bytes, last)

    def _last_new_byte_arrives(self) -> float:
        frames = self.client_side.stream_frames.to_pydict()
        origin = self.client_side.meta.first_time_ns or 0
        missing = np.ones(self.spec["size"] // 64, dtype=bool)
        latest = 0.0
        for offset, length, sender, time in zip(
            *(frames[name] for name in ("offset", "length", "sender", "time_ns")), strict=True
        ):
            if sender == 1 and missing[offset // 64 : (offset + length) // 64].any():
                missing[offset // 64 : (offset + length) // 64] = False
                latest = (time - origin) / 1e9
        return latest

    def shares(self) -> dict[str, float]:
        """The share of each limit in the time from the request to the last new byte."""
        grid = np.arange(self.start, self.finish, _STEP)
        log = self.application
        place = np.searchsorted([row["time_ns"] / 1e9 for row in log], grid, side="right") - 1
        produced, written, blocked = (
            np.where(place < 0, 0.0, np.array([row[name] for row in log])[place])
            for name in ("produced", "written", "blocked")
        )
        at = np.searchsorted(self.sent.time, grid, side="right") - 1
        sent = np.where(at < 0, 0.0, self.sent.known[at])
        used = self._use(grid)
        limits = np.full(len(grid), "congestion window", dtype=object)
        limits[used >= _FULL] = "link"
        idle = used < _FULL
        size = self.spec["size"]
        limits[idle & (sent >= produced) & (produced < size)] = "application"
        limits[idle & (blocked > 0) & (sent >= written)] = "receive window"
        over = (sent >= size) & (grid > self.sent.time[-1] + self.spec["forward"]["delay"] + 0.01)
        limits[over & idle] = "recovery"
        for start, duration in self.spec["path"].get("outages", ()):
            begin = self.first_1rtt + start
            limits[(grid >= begin) & (grid < begin + duration)] = "outage"
        return {str(name): float((limits == name).mean()) for name in set(limits)}

    def _use(self, grid: Array) -> Array:
        """Per moment: the share of the forward link's capacity that was used in the round trip around it."""
        link = self.spec["forward"]
        passed = np.isin(self.forward.fate, ("delivered", "marked", "loss", "outage", "mtu"))
        leave = self.forward.sent[passed] + self.forward.wait[passed]
        total = np.concatenate([[0.0], np.cumsum(self.forward.length[passed] * 8)])
        half = max(link["delay"], 0.03)
        low, high = np.maximum(grid - half, self.start), np.minimum(grid + half, self.finish)
        bits = total[np.searchsorted(leave, high)] - total[np.searchsorted(leave, low)]
        rate = np.full(len(grid), link["policer"][0] if "policer" in link else link["rate"])
        for time, new_rate, _ in link.get("changes", ()):
            rate[grid >= time + self.spec["return"]["delay"]] = new_rate  # `time`: since this direction's first packet
        used: Array = bits / np.maximum((high - low) * rate, 1.0)
        return used

    def effects(self) -> Iterator[tuple[str, Effect]]:
        """The effects of every diagnosis in `ground.MEASURED`."""
        shares, duration = self.shares(), self.finish - self.start
        for code, limit in (("application-idle", "application"), ("receive-window", "receive window")):
            yield code, Effect(_if(shares.get(limit, 0.0), shares.get(limit, 0.0) * duration >= 0.4), 0.03, 0.12)
        yield from self._link_effects(duration)
        yield from self._data_effects()
        yield from self._ack_effects(duration)
        yield "window-after-loss", self._after_loss()
        yield "retransmitted-tail", self._tail(duration)

    def _link_effects(self, duration: float) -> Iterator[tuple[str, Effect]]:
        forward, rtt = self.forward, self.spec["forward"]["delay"] + self.spec["return"]["delay"]
        dropped = forward.count("queue")
        yield "queue-overflow", Effect(_if(dropped / len(forward.sent), dropped >= 12), 0.016, 0.025)
        inside = (forward.sent > self.start) & (forward.sent < self.finish) & (forward.fate != "queue")
        time, wait = forward.sent[inside], forward.wait[inside]
        spans = np.diff(time, append=self.finish)
        # The queue drains while nothing is sent.
        long = float(np.minimum(spans, np.maximum(wait - rtt, 0.0) + 0.01)[wait >= rtt].sum())
        yield "standing-queue", Effect(long / duration, 0.15, 0.37)
        outage = sum(direction.count("outage") for direction in (forward, self.back))
        yield "outage", Effect(outage, 0, 2)
        yield "mtu-black-hole", Effect(forward.count("mtu"), 0, 3)
        marked = forward.count("marked")
        yield "ecn-not-reported", Effect(marked if self.spec["client"].get("blind") else 0, 2, 5)

    def _data_effects(self) -> Iterator[tuple[str, Effect]]:
        sent, size = self.sent, self.spec["size"]
        share = sent.needless_bytes / size
        yield "sent-twice", Effect(share, 0.6, 0.9)
        few = 0.001 if sent.needless >= 4 else 0.0  # neither absent nor certain
        seldom = share if sent.needless >= 8 and share < 0.6 else few
        yield "spurious-retransmissions", Effect(seldom, 0.0004, 0.003)
        sizes = self._one_rtt_sizes()
        grown = bool(len(sizes)) and max(sizes) >= 1300
        yield "mtu-not-raised", Effect(0 if grown else len(sizes), 480, 520)

    def _one_rtt_sizes(self) -> list[int]:
        packets = self.server_side.packets.to_pydict()
        length = self.server_side.datagrams.column("ip_length").to_pylist()
        return [
            length[datagram]
            for datagram, sender, kind in zip(packets["datagram"], packets["sender"], packets["type"], strict=True)
            if sender == 1 and kind == "1rtt"
        ]

    def _ack_effects(self, duration: float) -> Iterator[tuple[str, Effect]]:
        acks = {
            packet
            for packet, sender, space in zip(
                *(self.client_side.ack_frames.column(name).to_pylist() for name in ("packet", "sender", "space")),
                strict=True,
            )
            if sender == 0 and space == "application"
        }
        data = {
            packet
            for packet, sender in zip(
                *(self.client_side.stream_frames.column(name).to_pylist() for name in ("packet", "sender")), strict=True
            )
            if sender == 1
        }
        ratio = len(acks) / max(len(data), 1)
        inside = (self.back.sent > self.start) & (self.back.sent < self.finish)
        rate = self.spec["return"]["rate"]
        share = float(self.back.length[inside].sum()) * 8 / rate / duration
        dense = _if(share, ratio >= 0.85)
        if 0.85 <= ratio < 0.95:
            dense = min(dense, 0.1)
        yield "dense-acks", Effect(dense, 0.08, 0.13)
        # Steps of about half a round trip, but at least 100 ms.
        step = max(self.spec["return"]["delay"], 0.1)
        edges = np.arange(self.start, self.finish + step, step)
        bits = np.histogram(self.back.sent, bins=edges, weights=self.back.length * 8)[0]
        full = float((bits / step >= 0.9 * rate).mean())
        some = float((bits / step >= 0.7 * rate).mean())
        yield "return-link-full", Effect(full if full >= 0.15 else 0.05 if some >= 0.03 else 0.0, 0.0, 0.15)

    def _after_loss(self) -> Effect:
        """The share of the transfer's time that comes after the first loss and in which the window was the limit, for a
        controller that reacts to losses."""
        lost = np.isin(self.forward.fate, ("loss", "queue", "policer", "outage", "mtu")) & (
            self.forward.sent > self.start
        )
        if lost.sum() < 3:  # even a single loss may halve the window
            return Effect(0.1 if lost.any() else 0.0, 0.05, 0.2)
        first = float(self.forward.sent[lost][0])
        grid = np.arange(first, self.finish, _STEP)
        # Soon after the first loss the link still counts as full, because the packets of the queue are being sent.
        idle = float((self._use(grid) < _FULL).mean()) * (self.finish - first) / (self.finish - self.start)
        others = sum(share for name, share in self.shares().items() if name not in ("link", "congestion window"))
        if self.spec["server"]["controller"] in ("fixed", "lingering"):
            return Effect(0.0, 0.05, 0.2)
        amount = idle if others < 0.05 else min(idle, 0.1)
        return Effect(min(amount, 0.1) if self.spec["server"]["controller"] == "bbr" else amount, 0.05, 0.2)

    def _tail(self, duration: float) -> Effect:
        """The share of the duration by which the last new byte arrived later than its first copy could have arrived.
        It measures the effect of a lost tail."""
        rtt = self.spec["forward"]["delay"] + self.spec["return"]["delay"]
        late = self.finish - float(self.forward.arrival[self.sent.last])
        share = late / duration
        if late < 1.2 * rtt or share < 0.035:
            return Effect(0.0, 0.0, 0.07)
        return Effect(share if late >= 1.8 * rtt else 0.05, 0.0, 0.07)


def _if(amount: float, condition: bool) -> float:
    return amount if condition else 0.0
