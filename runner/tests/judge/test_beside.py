"""How two flows shared a link, on packets that a second implementation counts byte by byte."""

import ipaddress
import random
import struct
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.decode.capture import TCP, UDP, IpPacket, read_packets
from runner.judge.loads import downloads, judge_sharing, shared
from runner.judge.readback import BESIDE, addresses
from runner.model.result import Artifacts, Outcome, Result, Sample
from runner.model.run import Job
from runner.plan.catalog import Catalog
from runner.tests.decode.rewrite import Record, write_pcap

OWN = addresses("server4", ())
SECOND = 1_000_000_000
JOB = Job(server="quinn", client="quinn", case="crosstraffic", iteration=1)


def frame(ends: tuple[bytes, bytes], size: int, *, sequence: int | None = None, back: bool = False) -> bytes:
    """An Ethernet frame with `size` bytes of payload from the server to the client; with `sequence` it is TCP."""
    source, destination = ends if back else ends[::-1]
    upper = struct.pack(">HH", 443, 50000)
    if sequence is None:
        upper += struct.pack(">HH", 8 + size, 0)
    else:
        upper += struct.pack(">IIBBHHH", sequence % (1 << 32), 0, 5 << 4, 0x10, 65535, 0, 0)
    protocol = UDP if sequence is None else TCP
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(upper) + size, 0, 0, 64, protocol, 0) + source + destination
    return bytes(12) + b"\x08\x00" + head + upper + bytes(size)


def capture(path: Path, frames: Iterable[tuple[float, bytes]]) -> list[IpPacket]:
    """The packets of a capture with these frames, by seconds."""
    ordered = sorted(frames, key=lambda item: item[0])
    write_pcap(path, [Record(round(time * SECOND), data, len(data)) for time, data in ordered])
    return read_packets(path)[1]


def steady(ends: tuple[bytes, bytes], begin: float, end: float, every: float, size: int) -> list[tuple[float, bytes]]:
    """Datagrams at a steady rate."""
    return [(begin + number * every, frame(ends, size)) for number in range(round((end - begin) / every) + 1)]


@pytest.mark.parametrize(("every", "share", "fairness"), [(0.01, 0.5, 1.0), (0.03, 0.25, 0.8), (0.005, 2 / 3, 0.9)])
def test_a_flow_of_another_rate_has_another_share(tmp_path: Path, every: float, share: float, fairness: float) -> None:
    frames = [*steady(OWN, 1.0, 31.0, every, 972), *steady(BESIDE, 0.0, 21.0, 0.01, 972)]
    frames += [(time, frame(BESIDE, 0, sequence=1, back=True)) for time in (0.5, 30.5)]  # ACKs are no download
    packets = capture(tmp_path / "left.pcap", frames)
    sharing = shared(downloads(packets, OWN), downloads(packets, BESIDE))
    assert sharing is not None
    assert sharing.time == pytest.approx(20.0)
    assert sharing.share == pytest.approx(share, abs=0.001)
    assert sharing.fairness == pytest.approx(fairness, abs=0.002)


@pytest.mark.parametrize("seed", range(30))
def test_bytes_of_tcp_count_once(tmp_path: Path, seed: int) -> None:
    """Retransmissions in any order, overlaps, and a sequence number that wraps, against a set of all bytes."""
    chance = random.Random(seed)
    first, segments, at = (1 << 32) - 20_000, [], 0
    while at < 60_000:
        size = chance.randint(1, 1400)
        segments.append((at, size))
        at += size
    segments += [(begin + chance.randint(0, 50), size) for begin, size in chance.sample(segments, 12)]
    times = sorted(chance.uniform(0, 10) for _ in segments)
    chance.shuffle(segments)
    frames = [
        (time, frame(BESIDE, size, sequence=first + begin)) for time, (begin, size) in zip(times, segments, strict=True)
    ]
    begin, end = 2.0, 9.0
    packets = capture(tmp_path / "left.pcap", [*frames, *steady(OWN, begin, end, 0.5, 1000)])
    sharing = shared(downloads(packets, OWN), downloads(packets, BESIDE))
    assert sharing is not None
    before: set[int] = set()
    inside: set[int] = set()
    for time, (offset, size) in zip(times, segments, strict=True):
        if time < begin:
            before.update(range(offset, offset + size))
        elif time <= end:
            inside.update(range(offset, offset + size))
    assert sharing.beside_new == len(inside - before)
    assert sharing.beside == sum(
        size + 40 for time, (_, size) in zip(times, segments, strict=True) if begin <= time <= end
    )


def test_a_flow_beside_that_was_not_there_is_an_error_of_ours(tmp_path: Path, catalog: Catalog) -> None:
    record, result = catalog.cases["crosstraffic"].record(), Result.of(JOB, Outcome.SUCCEEDED)
    result = replace(result, sample=Sample(file_size=1000, ttlb=10.0))
    (tmp_path / "sim").mkdir()
    late = steady(BESIDE, 9.5, 30.0, 0.01, 1000)
    for beside, outcome in ((late, Outcome.ERROR), ([], Outcome.ERROR), (steady(BESIDE, 1, 9, 0.01, 1000), None)):
        capture(tmp_path / "sim" / "left.pcap", [*steady(OWN, 0.0, 10.0, 0.01, 1000), *beside])
        judged = judge_sharing(Artifacts(tmp_path), record, result)
        assert judged.outcome is (outcome or Outcome.SUCCEEDED)
        assert [finding.code for finding in judged.findings] == (["beside-missing"] if outcome else [])
        assert judged.sample is not None
        assert (judged.sample.fairness is None) == (outcome is not None)
    failed = result.ending(Outcome.FAILED)
    assert judge_sharing(Artifacts(tmp_path), record, failed) == failed


def test_the_ends_are_those_of_the_lane() -> None:
    from runner.places import lane_job as lane  # noqa: PLC0415 - the judge itself must not import it

    assert tuple(ipaddress.ip_address(end).packed for end in (lane.BESIDE_CLIENT4, lane.BESIDE_SERVER4)) == BESIDE
