"""The fuzzer: what it makes, that it finds what it is for, and a few thousand inputs of the million."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lab.fuzz import mutations
from lab.fuzz.campaign import Limits, State, campaign
from lab.fuzz.seeds import Seed, seeds
from lab.fuzz.target import Target
from runner.decode import decode_capture

SEED = 7  # other inputs than those of the long campaign
LIMITS = Limits(seconds=1.0, mebibytes=500)


def _untold(_: State) -> None:
    """Nobody looks at the progress."""


def test_two_thousand_inputs() -> None:
    state = State(seed=SEED)
    campaign(lambda folder: Target(folder, SEED), state, 2000, limits=Limits(), progress=_untold)
    assert state.findings == []
    assert state.done == 2000
    assert state.counts.keys() == {
        "bytes",
        "records",
        "frames",
        "keys",
        "qlogs",
        "tables",
        "in tables",
        "deep",
        "judged",
    }
    assert sum(count for kind, count in state.counts.items() if kind not in ("in tables", "deep", "judged")) == 2000


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: seed.name)
def test_packets_are_opened_and_sealed_again(seed: Seed) -> None:
    for side, data in enumerate(seed.captures):
        assert seed.opened[side]
        for packet in seed.opened[side]:
            assert packet.sealed(data, packet.plain) == data[packet.start : packet.end]


def test_changed_frames_are_read_by_the_decoder(tmp_path: Path) -> None:
    """A packet that is sealed again with PING alone is opened like any other."""
    seed = seeds()[0]
    packet = next(one for one in seed.opened[0] if not one.first & 0x80)
    data = bytearray(seed.captures[0])
    data[packet.start : packet.end] = packet.sealed(bytes(data), b"\x01" * len(packet.plain))
    (tmp_path / "left.pcap").write_bytes(data)
    (tmp_path / "keys.log").write_bytes(seed.keys)
    trace = decode_capture(tmp_path / "left.pcap", [tmp_path / "keys.log"])
    names = trace.frames["name"].to_pylist()
    assert names.count("ping") >= len(packet.plain)
    assert trace.packets["decrypted"].to_pylist() == seed.traces[0].packets["decrypted"].to_pylist()


def test_an_input_is_its_number() -> None:
    first, again = (mutations.of_records(Random("1/5"), seeds()[2]) for _ in range(2))
    assert first == again
    assert mutations.of_records(Random("1/6"), seeds()[2]) != first


def _campaign(inputs: Callable[[int], object], count: int, limits: Limits = LIMITS) -> State:
    state = State(seed=0)
    campaign(lambda _: inputs, state, count, limits=limits, progress=_untold)
    return state


def test_an_exception_is_found_and_the_rest_goes_on() -> None:
    state = _campaign(lambda number: [].clear() if number != 3 else [][number], 9)
    assert (state.done, state.finding_count) == (9, 1)
    assert (state.findings[0].number, state.findings[0].what) == (3, "exception")
    assert state.findings[0].text.startswith("IndexError: list index out of range (test_fuzz.py:")


def test_endless_work_is_ended_but_not_a_pause() -> None:
    def inputs(number: int) -> None:
        if number == 1:
            time.sleep(1.5)
        while number == 2:
            pass

    state = _campaign(inputs, 5)
    assert state.done == 5
    assert [(one.number, one.what) for one in state.findings] == [(2, "time")]


def test_memory_above_the_limit_is_found() -> None:
    def inputs(number: int) -> None:
        bytearray(600 * 2**20 if number == 4 else 1)[:] = b"x"

    state = _campaign(inputs, 6, replace(LIMITS, seconds=60.0))  # a busy host takes its time to give that much
    assert state.done == 6
    assert [(one.number, one.what) for one in state.findings] == [(4, "memory")]


def test_a_death_is_found() -> None:
    state = _campaign(lambda number: os._exit(9) if number == 2 else None, 4)
    assert state.done == 4
    assert [(one.number, one.what) for one in state.findings] == [(2, "death")]


def test_the_state_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = _campaign(abs, 10)
    state.save(path)
    assert State.load(path, 0) == state
    assert State.load(path, 1) == State(seed=1)
    seen: list[int] = []
    again = State.load(path, 0)
    campaign(lambda _: seen.append, again, 10, limits=LIMITS, progress=_untold)
    assert again.done == 10
