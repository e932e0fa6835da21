"""Makes traces of links from the files of measurements of real links: pings, irtt, iperf3, LeoCC, and our own probes.

docs/link-traces.md names the public data sets of these forms and their licences.
"""

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.plan.link_traces import WAYS, LinkTrace, checked, merged, opportunities, read_text

_LEOCC_STEP = 0.01  # s for which each line of LeoCC's file of delays holds
_LOSS_WINDOW = 1.0  # s over which losses are counted
_PAUSE = 60.0  # s without a packet after which a measurement is taken for two measurements
_PING = re.compile(r"\[(\d+\.\d+)\].*icmp_seq=(\d+).*time=(\d+(?:\.\d+)?) ms")
_IRTT = {"false": "", "true": "unknown", "true_up": "return", "true_down": "forward"}
_TCP_SEGMENT, _TCP_PACKET, _UDP_HEADERS = 1448, 1500, 28  # bytes

Track = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Echo:
    """One probe and its answer. `time`: seconds since 1970. `forward` and `return_`: delays in seconds by clocks that
    may differ; None: unknown. `lost`: the direction in which a packet was lost; empty: none was lost; `unknown`: one of
    the directions."""

    time: float
    forward: float | None = None
    return_: float | None = None
    lost: str = ""


@dataclass(kw_only=True)
class Measurement:
    """What the files of one measurement say. `rates`: by direction, the time since 1970 and bit/s of IP packets."""

    echoes: list[Echo] = field(default_factory=list)
    rates: dict[str, Track] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)

    def trace(self, path: Path) -> LinkTrace:
        """The trace of the time for which all files have values. Raises UsageError."""
        begins = [track[0][0] for track in (self.echoes_track(), *self.rates.values()) if track]
        begin, end = max(begins), min(self.ends)
        if end <= begin:
            raise UsageError(f"{path}: the files have no time in common: name files of the same measurement.")
        tracks = {f"{way}_data_rate": track for way, track in self.rates.items()}
        if self.echoes:
            tracks |= _delays(self.echoes) | _losses(self.echoes)
        shifted = {name: _from(track, begin) for name, track in tracks.items()}
        return checked(path, merged(path.stem.removesuffix(".json"), shifted, round(end - begin, 9)))

    def echoes_track(self) -> Track:
        """The time of each echo."""
        return [(echo.time, 0.0) for echo in self.echoes]


def _from(track: Track, begin: float) -> Track:
    """The track with times since `begin`. Its last earlier value becomes the first value."""
    before = [value for time, value in track if time <= begin]
    return [*([(0.0, before[-1])] if before else []), *((time - begin, value) for time, value in track if time > begin)]


def _delays(echoes: Sequence[Echo]) -> dict[str, Track]:
    """The one-way delays. The clocks of both ends are compared as if the shortest delays of both directions were equal,
    as NTP does (RFC 5905 §8)."""
    ways: dict[str, Track] = {
        "forward": [(echo.time, echo.forward) for echo in echoes if echo.forward is not None],
        "return": [(echo.time, echo.return_) for echo in echoes if echo.return_ is not None],
    }
    least = {way: min(delay for _, delay in track) for way, track in ways.items()}
    middle = sum(least.values()) / 2
    return {
        f"{way}_delay": [(time, round(delay - least[way] + middle, 6)) for time, delay in track]
        for way, track in ways.items()
    }


def _losses(echoes: Sequence[Echo]) -> dict[str, Track]:
    """The loss in each second."""
    tracks: dict[str, Track] = {f"{way}_loss": [] for way in WAYS}
    begin = echoes[0].time
    windows: dict[int, list[Echo]] = {}
    for echo in echoes:
        windows.setdefault(int((echo.time - begin) / _LOSS_WINDOW), []).append(echo)
    for number, window in windows.items():
        unknown = sum(echo.lost == "unknown" for echo in window) / len(window)
        each = 1 - (1 - unknown) ** 0.5  # as if both directions lost the same share
        for way in WAYS:
            known = sum(echo.lost == way for echo in window) / len(window)
            tracks[f"{way}_loss"].append((begin + number * _LOSS_WINDOW, round(min(1.0, each + known), 6)))
    return tracks


def _settled(path: Path, echoes: list[Echo], lines: Sequence[int]) -> list[Echo]:
    """The echoes. Raises UsageError for files without an answer, for times that go backwards, and for long pauses."""
    if not any(echo.forward is not None for echo in echoes) or not any(echo.return_ is not None for echo in echoes):
        raise UsageError(f"{path} has no answered probe: name the output of a measurement of a link that worked.")
    for number, (before, after) in enumerate(pairwise(echoes)):
        where = f"{path}, line {lines[number + 1]}" if lines else f"{path}, probe {number + 2}"
        if after.time < before.time:
            raise UsageError(f"{where}: its time is before that of the line before: sort the lines.")
        if after.time - before.time > _PAUSE:
            raise UsageError(
                f"{where}: there is a gap of {after.time - before.time:.0f} s before it: cut the file there."
            )
    return echoes


def add_pings(into: Measurement, path: Path) -> None:
    """Add the output of `ping -D`, as the data set LENS has it."""
    answered: dict[int, tuple[float, float]] = {}
    lines: dict[int, int] = {}
    turn, last = 0, -1
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        if match := _PING.search(text):
            time, number, rtt = float(match[1]), int(match[2]), float(match[3]) / 1e3
            if number < last - 30_000:  # the sequence number has 16 bits
                turn += 65_536
            last = number
            answered.setdefault(turn + number, (time - rtt, rtt))
            lines.setdefault(turn + number, line)
    if not answered:
        raise UsageError(
            f"{path} has no line such as `[1700000000.123456] … icmp_seq=1 … time=38.2 ms`: use `ping -D`."
        )
    numbers = list(answered)
    echoes: list[Echo] = []
    at: list[int] = []
    for before, after in pairwise([numbers[0] - 1, *numbers]):
        (begin, _), (end, rtt) = answered.get(before, answered[after]), answered[after]
        missing = max(0, after - before - 1)
        for lost in range(1, missing + 1):
            echoes.append(Echo(time=begin + (end - begin) * lost / (missing + 1), lost="unknown"))
            at.append(lines[after])
        echoes.append(Echo(time=end, forward=rtt / 2, return_=rtt / 2))
        at.append(lines[after])
    into.echoes = _settled(path, echoes, at)
    into.ends.append(echoes[-1].time)


def add_irtt(into: Measurement, path: Path) -> None:
    """Add the JSON of irtt, as LENS has it, also compressed with gzip."""
    document = _json(path)
    echoes = []
    try:
        for trip in document["round_trips"]:
            delay = trip["delay"]
            echoes.append(
                Echo(
                    time=trip["timestamps"]["client"]["send"]["wall"] / 1e9,
                    forward=delay["receive"] / 1e9 if "receive" in delay else None,
                    return_=delay["send"] / 1e9 if "send" in delay else None,
                    lost=_IRTT[trip["lost"]],
                )
            )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is no JSON of irtt: {error} is missing or has another form.") from error
    into.echoes = _settled(path, echoes, ())
    into.ends.append(echoes[-1].time)


def add_iperf3(into: Measurement, path: Path) -> None:
    """Add the data rates of `iperf3 --json`. With `--reverse` they are of the download, otherwise of the upload."""
    document = _json(path)
    try:
        test, begin = document["start"]["test_start"], float(document["start"]["timestamp"]["timesecs"])
        headers = _TCP_PACKET / _TCP_SEGMENT if test["protocol"] == "TCP" else 1 + _UDP_HEADERS / test["blksize"]
        sums = [interval["sum"] for interval in document["intervals"] if not interval["sum"].get("omitted")]
        track = [(begin + each["start"], each["bits_per_second"] * headers) for each in sums]
        end = begin + sums[-1]["end"]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UsageError(f"{path} is no output of `iperf3 --json`: {error} is missing or has another form.") from error
    way = "forward" if test.get("reverse") else "return"
    into.rates[way] = track
    into.ends.append(end)


def add_probes(into: Measurement, path: Path) -> None:
    """Add the probes of a job over a real link (`sim/probes.txt`)."""
    found: dict[int, Echo] = {}
    lines: dict[int, int] = {}
    for line, text in enumerate(read_text(path).splitlines(), start=1):
        words = text.split()
        if not all(word.lstrip("-").isdigit() for word in words[1:]):
            continue
        numbers = [int(word) for word in words[1:]]
        if words[:1] == ["s"] and len(numbers) == 2:
            found.setdefault(numbers[0], Echo(time=numbers[1] / 1e9, lost="unknown"))
        elif words[:1] == ["r"] and len(numbers) == 5:
            number, sent, received, replied, back = numbers
            found[number] = Echo(time=sent / 1e9, forward=(back - replied) / 1e9, return_=(received - sent) / 1e9)
        if numbers:
            lines.setdefault(numbers[0], line)
    echoes = [found[number] for number in sorted(found)]
    into.echoes = _settled(path, echoes, [lines[number] for number in sorted(found)])
    into.ends.append(echoes[-1].time)


def read_leocc(down: Path, up: Path, delays: Path) -> LinkTrace:
    """The data rates of two files of mahimahi, and a file with the one-way delay of each 10 ms in ms (LeoCC)."""
    values = []
    for line, text in enumerate(read_text(delays).splitlines(), start=1):
        if not re.fullmatch(r"\d{1,5}(\.\d+)?", text.strip()):
            raise UsageError(f"{delays}, line {line}: '{text[:40]}' is not a delay in ms, such as 24.")
        values.append(float(text) / 1e3)
    if not values:
        raise UsageError(f"{delays} is empty: write the one-way delay of each 10 ms, in ms.")
    tracks: dict[str, Track] = {
        f"{way}_data_rate": opportunities(path) for way, path in zip(WAYS, (down, up), strict=True)
    }
    length = min(track[-1][0] for track in tracks.values())
    end = len(values) * _LEOCC_STEP
    if end < length / 1.05 - 1.0:
        raise UsageError(
            f"{delays}, line {len(values)}: the file ends early, after {end:g} s, and the data rates last {length:g} s."
        )
    length = min(length, end)
    steps: Track = [(round(number * _LEOCC_STEP, 9), value) for number, value in enumerate(values)]
    tracks |= {f"{way}_delay": steps for way in WAYS}
    return checked(down, merged(down.stem, {name: _until(track, length) for name, track in tracks.items()}, length))


def _until(track: Iterable[tuple[float, float]], end: float) -> Track:
    return [step for step in track if step[0] < end]


def _json(path: Path) -> Any:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt") as file:
                return json.load(file)
        return json.loads(read_text(path))
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON: {str(error).rstrip('.')}.") from error
