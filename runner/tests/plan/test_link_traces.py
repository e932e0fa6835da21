"""Traces of links: tables, mahimahi, importers, and one sentence with the line for each kind of mistake."""

import gzip
import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from runner.cli.group import main
from runner.errors import UsageError
from runner.model.link import MOST_CHANGES, LinkChange, LinkImpairments, LinkRecord, Topology
from runner.places.lane_job import link_documents
from runner.plan import link_traces as importers
from runner.plan.link_traces import opportunities, read_mahimahi, read_trace, write_trace
from runner.plan.links import load_emulated_links, parse_link
from runner.store.runs import to_json
from runner.tests.guests.test_description import job as handshake

HEAD = "time,delay,data_rate,loss\n"
_ROWS = "".join(f"{n / 100:g},{0.02 + n % 3 / 1000:g},{20_000_000 + n},0\n" for n in range(200))


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_table_becomes_changes_of_both_directions(tmp_path: Path) -> None:
    text = "time,delay,forward_data_rate,return_data_rate,handover\n"
    text += "10,0.02,5e6,1e6,0\n10.01,0.03,0,1e6,1\n10.03,0.02,7e6,2e6,0\n"
    trace = read_trace(_write(tmp_path / "sky.csv", text))
    link = parse_link(f"trace={tmp_path}/sky.csv,queue=50p")
    forward, return_ = link.satellite.forward, link.satellite.return_
    assert forward.impairments.changes == (
        LinkChange(0, 0.02, 5_000_000),
        LinkChange(0.01, 0.03, 0, 0.0, True),
        LinkChange(0.03, 0.02, 7_000_000),
    )
    assert return_.impairments.changes[2] == LinkChange(0.03, 0.02, 2_000_000)
    assert trace.length == forward.impairments.changes_period == 0.05
    assert forward.data_rate == round((5e6 * 1 + 0 * 2 + 7e6 * 2) / 5)  # the mean over the time, not over the lines
    assert link.name == "sky-50p"
    assert link.is_clean, "parameters that change don't make a link lossy"


def test_a_table_with_losses_is_not_clean_and_keeps_the_columns_that_it_lacks(tmp_path: Path) -> None:
    _write(tmp_path / "sky.csv", "time,loss\n0,0\n1,0.5\n")
    with pytest.raises(UsageError, match=r"rate is missing, and sky has no column data_rate"):
        parse_link(f"trace={tmp_path}/sky.csv,delay=5ms")
    link = parse_link(f"trace={tmp_path}/sky.csv,delay=5ms/7ms,rate=10M,loop=no")
    assert not link.is_clean
    assert link.satellite.return_.impairments.changes == (
        LinkChange(0, 0.007, 10_000_000), LinkChange(1, 0.007, 10_000_000, 0.5),
    )  # fmt: skip
    assert link.satellite.return_.impairments.changes_period == 0


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_is_written_is_read_again(tmp_path: Path, suffix: str) -> None:
    trace = read_trace(_write(tmp_path / "sky.csv", HEAD + _ROWS))
    write_trace(trace, tmp_path / f"again.{suffix}")
    again = read_trace(tmp_path / f"again.{suffix}")
    assert again == replace(trace, name="again")


MISTAKES = {
    "empty": ("", "is empty: write a line such as time,delay,data_rate,loss"),
    "no line": (HEAD, "has no line with values"),
    "no header": ("0,0.02,1e6,0\n", "line 1: there is no column '0'"),
    "no time": ("delay\n1\n", "line 1: write the names of columns"),
    "a column twice": ("time,delay,delay\n0,1,1\n", "line 1: a column is there twice"),
    "backwards": (HEAD + "0,0,1e6,0\n0.2,0,1e6,0\n0.1,0,1e6,0\n", "line 4: time 0.1 is not after 0.2"),
    "ends early": (HEAD + "0,0.02,1e6,0\n0.1,0.0", "line 3: 2 values where 4 are expected; the file ends early"),
    "too many values": (HEAD + "0,0,1e6,0,7\n", "line 2: 5 values where 4 are expected; remove"),
    "no number": (HEAD + "0,fast,1e6,0\n", "line 2: delay is a number from 0 to 60, not 'fast'"),
    "no value": (HEAD + "0,,1e6,0\n", "line 2: delay is a number from 0 to 60, not ''"),
    "nan": (HEAD + "0,nan,1e6,0\n", "line 2: delay is a number"),
    "negative": (HEAD + "0,-1,1e6,0\n", "line 2: delay is a number"),
    "loss in percent": (HEAD + "0,0,1e6,50\n", "line 2: loss is a number from 0 to 1, not '50'"),
    "gap": (HEAD + _ROWS + "40,0.02,1e6,0\n", "line 202: there is a gap of 38 s before it"),
    "rate 0 for ever": (HEAD + "0,0.02,0,0\n1,0.02,0,0\n", "line 2: the forward data rate is 0 from here to the end"),
    "a million changes": (
        HEAD + "".join(f"{n},0,1e6,0\n" for n in range(100_001)),
        "line 100002: a trace has at most 100,000",
    ),
    "a picture": ("\x89PNG\udcff", "is not a text file"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_table_is_one_sentence_with_its_line(tmp_path: Path, name: str) -> None:
    text, expected = MISTAKES[name]
    path = tmp_path / "sky.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as refused:
        parse_link(f"trace={path}")
    assert expected in str(refused.value) and str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_trace_that_ends_with_rate_0_must_loop(tmp_path: Path) -> None:
    _write(tmp_path / "sky.csv", HEAD + "0,0.02,1e6,0\n1,0.02,0,0\n")
    parse_link(f"trace={tmp_path}/sky.csv")
    with pytest.raises(UsageError, match=r"line 3: the forward data rate is 0 from here on for ever"):
        parse_link(f"trace={tmp_path}/sky.csv,loop=no")


def _opportunities(rates: list[float]) -> list[int]:
    """One ms for each packet, for data rates in packets per ms of successive seconds."""
    stamps, owed = [], 0.0
    for ms in range(1000 * len(rates)):
        owed += rates[ms // 1000]
        stamps += [ms + 1] * int(owed)
        owed -= int(owed)
    return stamps


def test_mahimahi_keeps_the_data_rate_of_each_second_and_the_time_of_changes(tmp_path: Path) -> None:
    rates = [Random(second).uniform(2.5, 6.0) for second in range(30)]  # 30 to 72 Mbit/s
    stamps = _opportunities(rates)
    path = _write(tmp_path / "cell.down", "\n".join(map(str, stamps)))
    *pieces, (end, _) = opportunities(path)
    assert end == stamps[-1] / 1000

    def sent(until: float) -> float:
        """Bits that the pieces send until a time."""
        ends = [begin for begin, _ in pieces[1:]] + [end]
        each = zip(pieces, ends, strict=True)
        return sum(rate * (min(stop, until) - begin) for (begin, rate), stop in each if begin < until)

    for ms in range(0, round(end * 1000), 7):
        held = sum(stamp <= ms for stamp in stamps) if ms < 700 else None
        assert held is None or abs(sent(ms / 1000) / 12_000 - held) <= 1.0 + 1e-6
    for second, rate in enumerate(rates[:-1]):
        measured = (sent(second + 1) - sent(second)) / 12e6
        assert measured == pytest.approx(rate, rel=0.001)
        if second and abs(rate - rates[second - 1]) > 1:  # smaller changes need longer to be worth a packet
            assert any(abs(begin - second) <= 0.002 for begin, _ in pieces), f"the change after {second} s"
    constant = opportunities(_write(tmp_path / "constant", "\n".join(map(str, range(1, 1001)))))
    assert constant == [(0.0, 12_000_000.0), (1.0, 0.0)]


MAHIMAHI_MISTAKES = {
    "empty": ("", "down is empty"),
    "backwards": ("1\n5\n4\n", "down, line 3: 4 ms is before 5 ms"),
    "no number": ("1\n2.5\n", "down, line 2: '2.5' is not a number of ms"),
    "ends early": ("".join(f"{ms}\n" for ms in range(1, 501)), "down, line 500: the file ends early, after 0.5 s"),
    "at once": ("0\n0\n", "down, line 2: the file ends early, at 0 ms"),
}


@pytest.mark.parametrize("name", MAHIMAHI_MISTAKES)
def test_a_mistake_in_a_file_of_mahimahi_is_one_sentence_with_its_line(tmp_path: Path, name: str) -> None:
    text, expected = MAHIMAHI_MISTAKES[name]
    down = _write(tmp_path / "down", text)
    up = _write(tmp_path / "up", "".join(f"{ms}\n" for ms in range(1, 10_001)))
    with pytest.raises(UsageError) as refused:
        read_mahimahi(down, up)
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_links_of_mahimahi_and_of_the_file(tmp_path: Path) -> None:
    for name, step in (("c.down", 1), ("c.up", 4)):
        _write(tmp_path / name, "".join(f"{ms}\n" for ms in range(step, 8001, step)))
    link = parse_link(f"down={tmp_path}/c.down,up={tmp_path}/c.up,delay=25ms,discipline=fq-codel")
    assert (link.satellite.forward.data_rate, link.satellite.return_.data_rate) == (12_000_000, 3_000_000)
    assert link.satellite.forward.queue_discipline == "fq-codel"
    way = {"data_rate": 1000, "delay": 0.02, "queue": {"packets": 9, "discipline": "codel"}}
    segment = {"forward": way, "return": way, "trace": {"down": "c.down", "up": "c.up", "loop": False}}
    file = _write(
        tmp_path / "emulated-links.json", json.dumps({"schema": 1, "links": {"cell": {"segments": [segment]}}})
    )
    declared = load_emulated_links(file)["cell"].satellite
    assert declared.return_.data_rate == 3_000_000 and declared.return_.delay == 0.02
    segment["trace"] = {"down": "c.down"}
    _write(file, json.dumps({"schema": 1, "links": {"cell": {"segments": [segment]}}}))
    with pytest.raises(UsageError, match="a trace is one table, or the two files down and up"):
        load_emulated_links(file)


# The seed, the record and the simulator's document.

_LOOPED = LinkImpairments(
    changes=(LinkChange(0, 0.01, 1000), LinkChange(2, 0.02, 2000), LinkChange(5, 0.03, 3000)),
    changes_period=6.0,
    changes_start=None,
)


def test_the_seed_chooses_where_a_looped_trace_begins_and_the_job_meets_what_is_written_out(tmp_path: Path) -> None:
    starts = {_LOOPED.begun(seed).changes_start for seed in range(20)}
    assert len(starts) == 20 and all(0 <= start < 6 for start in starts if start is not None)
    later = replace(_LOOPED, changes_start=4.5).unrolled(9)
    assert [(change.time, change.data_rate) for change in later.changes] == [
        (0.0, 2000), (0.5, 3000), (1.5, 1000), (3.5, 2000), (6.5, 3000), (7.5, 1000),
    ]  # fmt: skip
    wrapped = replace(_LOOPED, changes=_LOOPED.changes[1:], changes_start=1.0).unrolled(3)
    assert [(change.time, change.data_rate) for change in wrapped.changes] == [(0.0, 3000), (1.0, 2000)]
    _write(tmp_path / "sky.csv", HEAD + _ROWS)
    record = parse_link(f"trace={tmp_path}/sky.csv")
    job = replace(handshake(), topology=Topology(link=record))
    way = json.loads(json.dumps(link_documents(job)))["sim"]["forward"]["impairments"]
    assert "changes_period" not in way and way["changes"][0][0] == 0.0
    assert way["changes"][-1][0] > job.timeout and len(way["changes"]) > 100 * job.timeout
    assert way["changes"][1][3:] == [0.0, False]


def test_the_changes_of_a_strangers_link_are_bounded() -> None:
    """A stored link may repeat its changes each microsecond, from a late moment on."""
    hasty = replace(_LOOPED, changes=_LOOPED.changes[:1], changes_period=1e-6, changes_start=1e6)
    assert len(hasty.unrolled(1e9).changes) <= MOST_CHANGES + 2


def test_a_record_with_changes_survives_the_store_and_older_records_are_read(tmp_path: Path) -> None:
    _write(tmp_path / "sky.csv", HEAD + _ROWS)
    record, adapter = parse_link(f"trace={tmp_path}/sky.csv"), TypeAdapter(LinkRecord)
    assert adapter.validate_json(to_json(record, adapter)) == record
    older = {"time": 5.0, "delay": 0.1, "data_rate": 7000, "loss": 0.5}
    assert TypeAdapter(LinkChange).validate_json(json.dumps(older)) == LinkChange(5.0, 0.1, 7000, 0.5)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"changes": (LinkChange(0, 61, 1000),)}, "delay of a change is 0 to 60, not 61"),
        ({"changes": (LinkChange(2, 0, 1000),), "changes_period": 2.0}, "changes_period must be more than 2"),
        ({"changes_start": None}, "changes_start can only be null"),
    ],
)
def test_changes_that_make_no_sense_are_refused(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        LinkImpairments(**fields)  # type: ignore[arg-type]


# Importers.


def _pings(lost: set[int], count: int = 1000, interval: float = 0.01) -> str:
    lines = ["PING 100.64.0.1 (100.64.0.1) 56(84) bytes of data."]
    for number in range(1, count + 1):
        if number not in lost:
            rtt = 40.0 if number <= count // 2 else 60.0
            stamp = 1_700_000_000 + number * interval + rtt / 1e3
            lines.append(f"[{stamp:.6f}] 64 bytes from 100.64.0.1: icmp_seq={number % 65_536} ttl=64 time={rtt:.1f} ms")
    return "\n".join([*lines, "", "--- 100.64.0.1 ping statistics ---"])


def _iperf3(reverse: int, rates: list[float]) -> str:
    sums = [
        {"start": float(n), "end": n + 1.0, "bits_per_second": rate, "omitted": False} for n, rate in enumerate(rates)
    ]
    start = {
        "timestamp": {"timesecs": 1_700_000_000},
        "test_start": {"protocol": "TCP", "reverse": reverse, "blksize": 131072},
    }
    return json.dumps({"start": start, "intervals": [{"sum": each} for each in sums]})


def test_pings_and_iperf3_make_a_trace(tmp_path: Path) -> None:
    measured = importers.Measurement()
    lost = set(range(201, 220))  # 19 of the 100 pings of the third second
    importers.add_pings(measured, _write(tmp_path / "ping.txt", _pings(lost)))
    for reverse, name, rate in ((1, "down.json", 1448e4), (0, "up.json", 1448e3)):
        importers.add_iperf3(measured, _write(tmp_path / name, _iperf3(reverse, [rate * n for n in range(1, 11)])))
    trace = measured.trace(tmp_path / "ping.txt")
    assert trace.columns["forward_delay"][0] == trace.columns["return_delay"][0] == 0.02
    assert trace.columns["forward_delay"][-1] == 0.03
    assert max(trace.columns["forward_data_rate"]) == pytest.approx(15e7)  # 1500 bytes of IP for 1448 of TCP
    assert max(trace.columns["return_data_rate"]) == pytest.approx(15e6)
    worst = max(trace.columns["forward_loss"])
    assert 1 - (1 - worst) ** 2 == pytest.approx(0.19, abs=0.001)
    assert trace.length == pytest.approx(9.99, abs=0.03)


def test_the_sequence_number_of_ping_may_wrap(tmp_path: Path) -> None:
    measured = importers.Measurement()
    importers.add_pings(measured, _write(tmp_path / "ping.txt", _pings(set(), count=66_000, interval=0.005)))
    assert len(measured.echoes) == 66_000 and not any(echo.lost for echo in measured.echoes)


def test_irtt_with_other_clocks_makes_one_way_delays(tmp_path: Path) -> None:
    trips = []
    for number in range(500):
        up, down = (0.030, 0.020) if number < 250 else (0.045, 0.020)
        lost = {100: "true_up", 101: "true_down", 102: "true"}.get(number, "false")
        delay = (
            {} if lost != "false" else {"send": (up + 10) * 1e9, "receive": (down - 10) * 1e9, "rtt": (up + down) * 1e9}
        )
        wall = 1_700_000_000_000_000_000 + number * 10_000_000
        trips.append(
            {"seqno": number, "lost": lost, "delay": delay, "timestamps": {"client": {"send": {"wall": wall}}}}
        )
    measured = importers.Measurement()
    importers.add_irtt(measured, _write(tmp_path / "irtt.json", json.dumps({"round_trips": trips})))
    trace = measured.trace(tmp_path / "irtt.json")
    assert trace.columns["return_delay"][-1] - trace.columns["return_delay"][0] == pytest.approx(0.015)
    assert trace.columns["forward_delay"][0] == pytest.approx(0.025) == trace.columns["return_delay"][0]
    assert trace.columns["forward_loss"][110] == trace.columns["return_loss"][110] == pytest.approx(0.015, abs=0.001)


def test_leocc_has_a_delay_for_each_10_ms(tmp_path: Path) -> None:
    rates = _write(tmp_path / "bw_1.txt", "".join(f"{ms}\n" * 3 for ms in range(2000)))
    delays = _write(tmp_path / "delay_1.txt", "".join(f"{24 if n < 100 else 41}\n" for n in range(200)))
    trace = importers.read_leocc(rates, rates, delays)
    at = dict(zip(trace.times, trace.columns["forward_delay"], strict=True))
    assert (at[0.99], at[1.0]) == (0.024, 0.041)
    assert trace.mean("forward_data_rate") == pytest.approx(36e6, rel=0.001)
    with pytest.raises(UsageError, match=r"delay_2.txt, line 50: the file ends early, after 0.5 s"):
        importers.read_leocc(rates, rates, _write(tmp_path / "delay_2.txt", "24\n" * 50))


def test_the_probes_of_a_real_link_are_replayed_without_those_of_its_transfer(tmp_path: Path) -> None:
    """The recorded job: quinn, 3 MB over 3/0.5 Mbit/s, RTT 60 ms; its transfer filled the queue, RTT 162 ms."""
    probes = Path(__file__).parent / "recordings" / "real-link" / "sim" / "probes.txt"
    command = ["link-trace", "--probes", str(probes), "--save", f"{tmp_path}/sky.csv"]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    trace = read_trace(tmp_path / "sky.csv")
    assert trace.length == pytest.approx((19 + 16) * 0.2, abs=0.01), "80 probes, of which 45 beside the transfer"
    assert max(trace.columns["forward_delay"]) == pytest.approx(0.0319, abs=0.0001)
    assert trace.columns["return_delay"][0] == pytest.approx(trace.columns["forward_delay"][0], abs=0.001)
    assert max(trace.columns["forward_loss"]) == max(trace.columns["return_loss"]) == 0
    assert parse_link(f"trace={tmp_path}/sky.csv,rate=20M/2M").satellite.forward.data_rate == 20_000_000
    with pytest.raises(UsageError, match="name one table"):
        CliRunner().invoke(main, [*command, "--ping", str(probes)], catch_exceptions=False)
    job = tmp_path / "job"
    shutil.copytree(probes.parent.parent, job)
    lines = probes.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if line.startswith("r 70 "))  # a probe after the transfer
    _, probe, sent, *rest = lines[number].split()
    lines[number] = " ".join(["r", probe, str(int(sent) + 10**12), *rest])
    (job / "sim" / "probes.txt").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=rf"probes.txt, line {number + 1}: there is a gap of 1000 s before it"):
        importers.add_probes(importers.Measurement(), job / "sim" / "probes.txt")


@pytest.mark.parametrize(
    ("add", "text", "expected"),
    [
        (importers.add_pings, "", "has no line such as"),
        (
            importers.add_pings,
            _pings(set()) + "\n[1700009999.0] 64 bytes: icmp_seq=1001 ttl=64 time=1.0 ms",
            "there is a gap of",
        ),
        (importers.add_irtt, "{", "is not JSON: it ends too early"),
        (importers.add_irtt, "{}", "is no JSON of irtt: 'round_trips'"),
        (importers.add_irtt, '{"round_trips": []}', "has no answered probe"),
        (importers.add_iperf3, '{"start": {}, "intervals": []}', "is no output of `iperf3 --json`"),
        (importers.add_probes, "s 1 5\n", "is not sim/probes.txt of a job over a real link"),
    ],
)
def test_a_file_of_another_form_is_one_sentence(tmp_path: Path, add: object, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        add(importers.Measurement(), _write(tmp_path / "file", text))  # type: ignore[operator]
    assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_the_command_names_what_belongs_together(tmp_path: Path) -> None:
    down = _write(tmp_path / "down", "1\n2\n")
    done = CliRunner().invoke(main, ["link-trace", "--down", str(down), "--ping", str(down)])
    assert isinstance(done.exception, UsageError) and "name one table" in str(done.exception)


# The models.


def test_the_starlink_model_has_the_published_statistics() -> None:
    from testcases.skies import STARLINK_MODEL  # noqa: PLC0415 - only this test needs it

    ways = STARLINK_MODEL.satellite.forward.impairments, STARLINK_MODEL.satellite.return_.impairments
    pairs = [(one, other) for one, other in zip(ways[0].changes, ways[1].changes, strict=True) if not one.handover]
    rtts = [forward.delay + return_.delay for forward, return_ in pairs]
    steps = [abs(after - before) for before, after in pairwise(rtts)]
    assert sum(steps) / len(steps) == pytest.approx(0.0067, abs=0.0003)  # Huston: 6.7 ms between successive RTTs
    turns = [sorted(one.delay for one, _ in pairs if one.time // 15 == turn) for turn in range(10)]
    middles = [turn[len(turn) // 2] for turn in turns]
    assert max(abs(after - before) for before, after in pairwise(middles)) < 0.003  # LeoCC: 2 ms from turn to turn
    peaks = [
        change.delay - middles[int(change.time // 15)]
        for change in ways[0].changes
        if round(change.time % 15, 3) == 0.04
    ]
    assert (min(peaks), max(peaks)) == pytest.approx((0.022, 0.058), abs=0.002)  # LeoCC: at a reassignment
    rates = [change.data_rate for change in ways[0].changes if change.time % 1 == 0]
    changes = sorted(abs(after - before) for before, after in pairwise(rates))
    assert changes[len(changes) // 2] == pytest.approx(2.2e6, rel=0.1)  # LeoCC: median step of a second
    assert max(*changes, abs(rates[0] - rates[-1])) == pytest.approx(23.6e6, rel=0.1)  # LeoCC: the largest step
    delays = [change.delay for change in ways[0].changes]
    assert (min(delays), max(delays)) == pytest.approx((0.007, 0.068), abs=0.002)  # LeoCC: one way, download
    assert {round(change.time % 15, 3) for change in ways[0].changes if change.handover} == {0.0, 0.04, 0.1}


@pytest.mark.parametrize("name", ["long.csv", "long.json.gz"])
def test_a_file_is_read_up_to_its_limit_whatever_its_size_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A device and a pipe have the size 0, and a small compressed file may hold gigabytes."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(bytes(4 << 20)) if path.suffix == ".gz" else b"")
    monkeypatch.setattr(importers, "_LARGEST_FILE", 1 << 20)
    with pytest.raises(UsageError, match="has more than 1 MiB"):
        importers.read_text(path if path.suffix == ".gz" else Path("/dev/zero"))
