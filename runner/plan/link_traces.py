"""Traces of links: reads them, and makes them of measurements."""

import csv
import errno
import gzip
import io
import json
import os
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from runner.errors import UsageError
from runner.files import not_json
from runner.model.link import LARGEST_DELAY, LARGEST_RATE, Direction, LinkChange
from runner.model.result import Artifacts
from runner.store.runs import load_evidence

# Traces of links: how delay, data rate and loss of a link change with time, read from files and made into links.
#
# A trace is a table with a column `time` (seconds) and columns of `COLUMNS`, in SI units (docs/link-traces.md),
# as CSV or Parquet; or two files of mahimahi, which list the ms in which a packet of 1500 bytes may leave. A line holds
# until the next line. Every mistake in a file is a UsageError with the number of the line.

QUANTITIES = {"delay": LARGEST_DELAY, "data_rate": float(LARGEST_RATE), "loss": 1.0}
"""Name of a quantity → its largest value. Delay: seconds one way. Data rate: bit/s of IP packets. Loss: a fraction."""

WAYS = ("forward", "return")
COLUMNS = (*QUANTITIES, *(f"{way}_{name}" for way in WAYS for name in QUANTITIES), "handover")
"""The columns of a table besides `time`. A column without a direction in its name is for both directions."""

MOST_CHANGES = 100_000  # of a trace: 1,000 s with 100 changes a second
_TOO_LONG = f"a trace has at most {MOST_CHANGES:,} lines: cut it, or thin it out"
_MOST_OPPORTUNITIES = 20_000_000
_LARGEST_FILE = 512 << 20  # bytes
_GAP, _GAP_STEPS = 1.0, 20  # a step that is longer than 1 s and than 20 usual steps is a gap
_UNEQUAL = 0.05  # share by which the lengths of both directions may differ
_PACKET_BITS = 1500 * 8  # of a delivery opportunity of mahimahi
_TOLERANCE = 1.0  # packets by which the straight pieces may differ from the opportunities of mahimahi

Column = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class LinkTrace:
    """A trace. `columns`: values by `forward_delay`, `return_loss`, …, and `handover`; all have the length of `times`.
    `times`: seconds, the first is 0. `length`: seconds after which the trace begins again when it is looped."""

    name: str
    times: Column
    columns: Mapping[str, Column]
    length: float

    def changes(self, way: str, direction: Direction) -> tuple[LinkChange, ...]:
        """The changes of one direction. The direction has the values of the columns that the trace lacks."""
        width = len(self.times)
        delays, rates, losses = (
            self.columns.get(f"{way}_{name}", (getattr(direction, name),) * width) for name in QUANTITIES
        )
        handovers = self.columns.get("handover", (0.0,) * width)
        rows = zip(self.times, delays, rates, losses, handovers, strict=True)
        changes = [LinkChange(time, delay, round(rate), loss, bool(over)) for time, delay, rate, loss, over in rows]
        return tuple(each for number, each in enumerate(changes) if not number or each[1:] != changes[number - 1][1:])

    def mean(self, column: str) -> float:
        """The mean of a column over the time."""
        if self.length <= 0:
            return self.columns[column][0]
        return fmean(self.columns[column], [end - begin for begin, end in pairwise((*self.times, self.length))])


def with_trace(forward: Direction, return_: Direction, trace: LinkTrace, *, loop: bool) -> tuple[Direction, Direction]:
    """Both directions with the changes of a trace. Each direction gets the means of the trace as its own values. A
    looped trace begins at a time that the job's seed chooses."""

    def direction(way: str, plain: Direction) -> Direction:
        means = {name: trace.mean(f"{way}_{name}") for name in QUANTITIES if f"{way}_{name}" in trace.columns}
        if "data_rate" in means:
            means["data_rate"] = round(means["data_rate"])
        changes = trace.changes(way, plain)
        if not loop and not changes[-1].data_rate:
            raise ValueError(
                f"{trace.name}, line {len(trace.times) + 1}: the {way} data rate is 0 from here on for ever, so no "
                "packet passes any more: add a line with a rate, or let the trace loop"
            )
        impairments = replace(
            plain.impairments,
            changes=changes,
            changes_period=trace.length if loop else 0.0,
            changes_start=None if loop and len(changes) > 1 else 0.0,
        )
        return replace(plain, **means, impairments=impairments)  # type: ignore[arg-type]

    return direction("forward", forward), direction("return", return_)


# Tables.


def read_trace(path: Path) -> LinkTrace:
    """The trace in a table, CSV or Parquet. Raises UsageError with the line."""
    if path.suffix == ".parquet":
        names, rows = _parquet(path)
    else:
        names, rows = _csv(path)
    for name in names:
        if name != "time" and name not in COLUMNS:
            raise UsageError(f"{path}, line 1: there is no column '{name[:60]}'. Columns: time, {', '.join(COLUMNS)}.")
    if "time" not in names or len(names) < 2:
        raise UsageError(f"{path}, line 1: write the names of columns, such as time,delay,data_rate,loss.")
    if len(set(names)) < len(names):
        raise UsageError(f"{path}, line 1: a column is there twice: keep one of them.")
    times: list[float] = []
    columns: dict[str, list[float]] = {name: [] for name in names if name != "time"}
    for line, row in rows:
        if len(times) == MOST_CHANGES:
            raise UsageError(f"{path}, line {line}: {_TOO_LONG}.")
        if len(row) != len(names):
            hint = "the file ends early: copy it again" if len(row) < len(names) else "remove what is too much"
            raise UsageError(f"{path}, line {line}: {len(row)} values where {len(names)} are expected; {hint}.")
        for name, value in zip(names, row, strict=True):
            number = _number(path, line, name, value)
            (times if name == "time" else columns[name]).append(number)
        if len(times) > 1 and times[-1] <= times[-2]:
            raise UsageError(
                f"{path}, line {line}: time {times[-1]:g} is not after {times[-2]:g} of the line before: sort them."
            )
    if not times:
        raise UsageError(f"{path} has no line with values: write at least one line below the names of the columns.")
    _refuse_gaps(path, times)
    return checked(path, make_trace(path.stem, times, columns))


def make_trace(name: str, times: Sequence[float], columns: Mapping[str, Column], length: float = 0.0) -> LinkTrace:
    """A trace that begins at time 0, with a column for each direction. Without `length`, the last line holds as long as
    the line before it."""
    relative = [round(time - times[0], 9) for time in times]
    both = {f"{way}_{name}": column for name, column in columns.items() if name in QUANTITIES for way in WAYS}
    single = {name: column for name, column in columns.items() if name not in QUANTITIES}
    last = relative[-1] - relative[-2] if len(relative) > 1 else 0.0
    return LinkTrace(
        name=name, times=relative, columns={**both, **single}, length=round(length or relative[-1] + last, 9)
    )


def write_trace(trace: LinkTrace, path: Path) -> None:
    """Write a trace as CSV or as Parquet, by the name of the file. Raises UsageError."""
    table = {"time": trace.times, **trace.columns}
    try:
        if path.suffix == ".parquet":
            import pyarrow  # noqa: PLC0415 - its import takes longer than most commands
            import pyarrow.parquet  # noqa: PLC0415

            pyarrow.parquet.write_table(pyarrow.table({name: list(column) for name, column in table.items()}), path)
            return
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            writer.writerows([f"{value:.9g}" for value in row] for row in zip(*table.values(), strict=True))
    except OSError as error:
        raise UsageError(f"{path} can't be written: {os.strerror(error.errno or errno.EIO)}.") from error


def checked(path: Path, trace: LinkTrace) -> LinkTrace:
    """The trace. Raises UsageError when no packet could ever pass."""
    for way in WAYS:
        rates = trace.columns.get(f"{way}_data_rate")
        if rates is not None and not any(rates):
            raise UsageError(
                f"{path}, line 2: the {way} data rate is 0 from here to the end, so no packet ever passes."
            )
    return trace


def _number(path: Path, line: int, name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    largest = QUANTITIES.get(name.removeprefix("forward_").removeprefix("return_"), 1e12 if name == "time" else 1.0)
    if not 0 <= number <= largest:
        raise UsageError(f"{path}, line {line}: {name} is a number from 0 to {largest:g}, not '{value}'.")
    return number


def _csv(path: Path) -> tuple[list[str], Iterable[tuple[int, Sequence[object]]]]:
    text = read_text(path)
    reader = csv.reader(io.StringIO(text))
    names = [name.strip() for name in next(reader, [])]
    if not names:
        raise UsageError(f"{path} is empty: write a line such as time,delay,data_rate,loss and the values below it.")
    return names, ((reader.line_num, row) for row in reader if row)


def _parquet(path: Path) -> tuple[list[str], Iterable[tuple[int, Sequence[object]]]]:
    import pyarrow  # noqa: PLC0415 - its import takes longer than most commands
    import pyarrow.parquet  # noqa: PLC0415

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if file.metadata.num_rows > MOST_CHANGES:
            raise UsageError(f"{path}, line {MOST_CHANGES + 2}: {_TOO_LONG}.")
        table = file.read()
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"{path} can't be read as Parquet: {str(error).splitlines()[0].rstrip('.')}.") from error
    columns = [column.to_pylist() for column in table.columns]
    return table.column_names, ((line, list(row)) for line, row in enumerate(zip(*columns, strict=True), start=2))


def read_text(path: Path) -> str:
    """The text of a file. Raises UsageError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise UsageError(f"{path} has more than {_LARGEST_FILE >> 20} MiB: cut it.")
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} can't be read: {getattr(error, 'strerror', None) or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: name a file of text, or a .parquet file.") from error


def _refuse_gaps(path: Path, times: Sequence[float]) -> None:
    """Raise UsageError when the lines pause for much longer than usual."""
    steps = [after - before for before, after in pairwise(times)]
    longest = max(_GAP, _GAP_STEPS * median(steps)) if steps else _GAP
    for number, step in enumerate(steps):
        if step > longest:
            raise UsageError(
                f"{path}, line {number + 3}: there is a gap of {step:.3g} s before it: add lines for this time, "
                "with loss 1 or data rate 0 when nothing passed."
            )


# Files of mahimahi: https://github.com/ravinet/mahimahi, mm-link(1).


def read_mahimahi(down: Path, up: Path) -> LinkTrace:
    """The data rates of two files of mahimahi: `down` is the download (forward), `up` the upload (return)."""
    pieces = {"forward": opportunities(down), "return": opportunities(up)}
    ends = {way: piece[-1][0] for way, piece in pieces.items()}
    length = min(ends.values())
    if max(ends.values()) > (1 + _UNEQUAL) * length + _GAP:
        short, long = (down, up) if ends["forward"] < ends["return"] else (up, down)
        raise UsageError(
            f"{short}, line {len(read_text(short).split())}: the file ends early, after {length:g} s, and {long} lasts "
            f"{max(ends.values()):g} s: cut both to the same time."
        )
    tracks = {f"{way}_data_rate": piece for way, piece in pieces.items()}
    return checked(down, merged(down.stem, tracks, length))


def opportunities(path: Path) -> list[tuple[float, float]]:
    """The straight pieces of one file: the time in seconds at which each begins, and its data rate in bit/s. The last
    entry is the end of the file. Each line of the file is the ms at which one packet of 1500 bytes can leave. At all
    times, the packets of the pieces differ by at most one packet from those of the file."""
    words = read_text(path).split()
    if not words:
        raise UsageError(f"{path} is empty: write the ms of one delivery opportunity in each line.")
    if len(words) > _MOST_OPPORTUNITIES:
        raise UsageError(
            f"{path}, line {_MOST_OPPORTUNITIES + 1}: a file has at most {_MOST_OPPORTUNITIES:,} lines: cut it."
        )
    for line, word in enumerate(words, start=1):
        if not (word.isascii() and word.isdigit() and len(word) < 10):
            raise UsageError(f"{path}, line {line}: '{word[:40]}' is not a number of ms, such as 12.")
    stamps = list(map(int, words))
    if line := next((line for line, (before, after) in enumerate(pairwise(stamps), start=2) if after < before), 0):
        raise UsageError(f"{path}, line {line}: {words[line - 1]} ms is before {words[line - 2]} ms: sort the lines.")
    if stamps[-1] == 0:
        raise UsageError(f"{path}, line {len(words)}: the file ends early, at 0 ms, so it has no data rate.")
    # An opportunity of the last ms still belongs to this ms, so the file ends 1 ms later; files that begin with 1 as
    # those of mahimahi end at their last number.
    first = 1 if stamps[0] > 0 else 0
    counts = [0] * (stamps[-1] + 1)
    for stamp in stamps:
        counts[stamp] += 1
    total = list(accumulate(counts[first:], initial=0))
    pieces = _straight(total)
    if len(pieces) > MOST_CHANGES:
        line = bisect_left(stamps, pieces[MOST_CHANGES][0] * 1000) + 1
        raise UsageError(
            f"{path}, line {line}: the data rate changes more than {MOST_CHANGES:,} times until here: cut the file."
        )
    return [*pieces, ((len(total) - 1) / 1000, 0.0)]


def _straight(values: Sequence[int]) -> list[tuple[float, float]]:
    """Pieces of constant data rate, for the number of packets that could leave until each ms."""
    pieces: list[tuple[float, float]] = []
    begin, packets = 0, 0.0  # the ms at which the present piece begins, and its packets until there
    low, high = 0.0, float("inf")  # slopes of the lines that are near enough to all points of the piece
    for ms in range(1, len(values)):
        steps = ms - begin
        least, most = (values[ms] - packets - _TOLERANCE) / steps, (values[ms] - packets + _TOLERANCE) / steps
        if max(low, least) > min(high, most):
            before = max(ms - 1 - begin, 1)
            slope = min(max((values[ms - 1] - packets) / before, low), high)
            pieces.append((begin / 1000, slope * _PACKET_BITS * 1000))
            begin, packets = ms - 1, packets + slope * before
            low, high = 0.0, float("inf")
            least, most = values[ms] - packets - _TOLERANCE, values[ms] - packets + _TOLERANCE
        low, high = max(low, least), min(high, most)
    slope = min(max((values[-1] - packets) / (len(values) - 1 - begin), low), high)
    pieces.append((begin / 1000, slope * _PACKET_BITS * 1000))
    return pieces


def merged(name: str, tracks: Mapping[str, Sequence[tuple[float, float]]], length: float) -> LinkTrace:
    """One trace of columns that each have their own times. `tracks`: column → time and value of each step. The first
    value of a column also holds before its time."""
    times = sorted({0.0, *(time for track in tracks.values() for time, _ in track if 0 <= time < length)})
    columns = {}
    for column, track in tracks.items():
        begins = [time for time, _ in track]
        columns[column] = [track[max(0, bisect_right(begins, time) - 1)][1] for time in times]
    return make_trace(name, times, columns, length)


# Makes traces of links from the files of measurements of real links: pings, irtt, iperf3, LeoCC, and our own probes.
#
# docs/link-traces.md names the public data sets of these forms and their licences.

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
        begins = [track[0][0] for track in self.rates.values() if track]
        begins += [echo.time for echo in self.echoes[:1]]
        begin, end = max(begins), min(self.ends)
        if end <= begin:
            raise UsageError(f"{path}: the files have no time in common: name files of the same measurement.")
        tracks = {f"{way}_data_rate": track for way, track in self.rates.items()}
        if self.echoes:
            tracks |= _delays(self.echoes) | _losses(self.echoes)
        shifted = {name: _from(track, begin) for name, track in tracks.items()}
        return checked(path, merged(path.stem.removesuffix(".json"), shifted, round(end - begin, 9)))


def _from(track: Track, begin: float) -> Track:
    """The track with times since `begin`. Its last earlier value becomes the first value."""
    before = [value for time, value in track if time <= begin]
    return [*([(0.0, before[-1])] if before else []), *((time - begin, value) for time, value in track if time > begin)]


def _delays(echoes: Sequence[Echo]) -> dict[str, Track]:
    """The one-way delays, as if the least ones of both directions were equal, as in NTP (RFC 5905 §8)."""
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


def _settle(into: Measurement, path: Path, echoes: list[Echo], lines: Sequence[int]) -> None:
    """Add the echoes. Raises UsageError for files without answers, for times that go backwards, and for long pauses."""
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
    into.echoes = echoes
    into.ends.append(echoes[-1].time)


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
    _settle(into, path, echoes, at)


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
    _settle(into, path, echoes, ())


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


@dataclass(frozen=True, kw_only=True)
class ProbeExchange:
    """One probe of a real link and its answer. Times in ns since 1970: `sent` and `back` by the client's clock,
    `received` and `replied` by the server's. The last three are None without an answer."""

    sent: int
    received: int | None = None
    replied: int | None = None
    back: int | None = None
    line: int = field(default=0, compare=False)  # of its last record in `probes.txt`, from 1

    @property
    def rtt(self) -> float | None:
        """Round-trip time in seconds, without the time that the server took."""
        if self.received is None or self.replied is None or self.back is None:
            return None
        return ((self.back - self.sent) - (self.replied - self.received)) / 1e9

    @property
    def offset(self) -> float | None:
        """Seconds by which the client's clock is ahead, if both directions had the same delay (RFC 5905 §8)."""
        if self.received is None or self.replied is None or self.back is None:
            return None
        return -((self.received - self.sent) + (self.replied - self.back)) / 2e9


def parse_probes(text: str) -> list[ProbeExchange]:
    """The exchanges of `probes.txt`, in the order of sending, without a truncated last line."""
    exchanges_by_number: dict[int, ProbeExchange] = {}
    for line, record in enumerate(text.splitlines(), start=1):
        words = record.split()
        try:
            numbers = [int(word) for word in words[1:]]
        except ValueError:
            continue
        if words[:1] == ["s"] and len(numbers) == 2:
            exchanges_by_number.setdefault(numbers[0], ProbeExchange(sent=numbers[1], line=line))
        elif words[:1] == ["r"] and len(numbers) == 5:
            number, sent, received, replied, back = numbers
            exchanges_by_number[number] = ProbeExchange(
                sent=sent, received=received, replied=replied, back=back, line=line
            )
    return [exchanges_by_number[number] for number in sorted(exchanges_by_number)]


def add_probes(into: Measurement, path: Path) -> None:
    """Add the probes of a job over a real link (`sim/probes.txt`), without those of the transfer, which wait in the
    queue that it fills, and without those whose answers were on the link at the end. The probes after the transfer
    follow those before it. Raises UsageError."""
    echoes, probes = [], parse_probes(read_text(path))
    for probe in probes:
        echo = Echo(time=probe.sent / 1e9, lost="unknown")
        if probe.received is not None and probe.replied is not None and probe.back is not None:
            forward, return_ = (probe.back - probe.replied) / 1e9, (probe.received - probe.sent) / 1e9
            echo = replace(echo, forward=forward, return_=return_, lost="")
        echoes.append(echo)
    evidence = load_evidence(Artifacts(path.absolute().parent.parent))
    link = evidence.real_link if evidence is not None else None
    if link is None:
        raise UsageError(f"{path} is not sim/probes.txt of a job over a real link, with its evidence.json.")
    before, during, after = (phase.sent if phase else 0 for phase in (link.before, link.during, link.after))
    end = before + during
    pause = echoes[end].time - echoes[before].time if end < len(echoes) else 0.0
    later = [replace(echo, time=echo.time - pause) for echo in echoes[end : end + after]]
    kept = probes[:before] + probes[end : end + after]
    _settle(into, path, echoes[:before] + later, [probe.line for probe in kept])


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
    return checked(down, merged(down.stem, tracks, length))


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {not_json(error)}.") from error
