"""Plot series of small tables whose answers can be read off."""

import json
from dataclasses import replace

import pytest

from runner.decode.columns import CLIENT, SERVER
from runner.tests.trace.tables import Packet, Stream, trace
from runner.tests.trace.transfer import FILE, captures, draw


def _sums(deltas: list[int]) -> list[int]:
    total, values = 0, []
    for delta in deltas:
        total += delta
        values.append(total)
    return values


def test_series_of_both_captures() -> None:
    document = draw(*captures())
    assert json.loads(json.dumps(document)) == document
    server, client = document["server"], document["client"]
    assert _sums(server["t_us"]) == [300_000, 310_000, 320_000, 550_000, 560_000, 570_000, 700_000]
    assert _sums(server["offset"]) == [0, 1000, 2000, 3000, 1500, 2800, 4000]
    assert server["length"] == [1000, 1000, 1000, 1000, 1300, 200, 1000]
    assert server["kind"] == [0, 0, 0, 0, 2, 1, 0]
    assert _sums(client["offset"]) == [0, 1000, 3000, 1500, 2800, 4000]
    assert client["kind"] == [0, 0, 0, 2, 1, 0]
    assert _sums(document["lost"]["t_us"]) == [320_000]
    assert _sums(document["lost"]["offset"]) == [2000]
    assert sum(document["rate"]["forward_goodput"]) * document["rate"]["interval_s"] == pytest.approx(8 * FILE)
    assert document["marks"]["request"] == pytest.approx(0.2)
    assert document["bounds"]["ideal"] == [[0.3, 0], [0.4, 0], [0.44, FILE]]
    assert document["bounds"]["slow_start"][-1] == [pytest.approx(0.4 + 0.2 + 2000 * 8 / 1e6), FILE]
    assert document["spark"][0] == [500, 200]
    assert document["spark"][-1] == [1000, 1000]


def test_a_long_series_stays_small_and_keeps_every_byte() -> None:
    count, size = 30_000, 100
    packets = [Packet(0.0, CLIENT, 0, type="initial")]
    packets += [Packet(1 + 0.003 * n, SERVER, n, (Stream(0, n * size, size),), length=140) for n in range(count)]
    again = [replace(packet, number=count + n, time=packet.time + 90) for n, packet in enumerate(packets[1:201])]
    document = draw(trace(packets + again), trace(packets + again))
    assert len(document["server"]["t_us"]) < 3000
    kinds = dict.fromkeys((0, 1, 2), 0)
    for length, kind in zip(document["server"]["length"], document["server"]["kind"], strict=True):
        kinds[kind] += length
    assert kinds == {0: count * size, 1: 0, 2: 200 * size}
    assert len(document["rate"]["forward_raw"]) <= 600
    assert sum(document["rate"]["forward_goodput"]) * document["rate"]["interval_s"] == pytest.approx(8 * count * size)
    assert len(document["spark"]) == 40
