"""Captures that are made to be slow cost the decoder a bounded number of steps for each packet."""

from cProfile import Profile
from pathlib import Path
from pstats import Stats
from random import Random

import pytest

from runner.decode.tables import decode_capture
from runner.tests.decode.floods import KINDS
from runner.tests.decode.rewrite import write_pcap

_FEW, _MANY = 300, 1200
_LINEAR = 1.25  # the most by which the calls for each packet may grow, when there are four times as many packets


def _calls(kind: str, packets: int, folder: Path) -> float:
    """Python calls for each packet."""
    capture = write_pcap(folder / f"{packets}.pcap", KINDS[kind](Random(kind), packets))
    decode_capture(capture, ())  # so that modules are loaded
    with Profile() as profile:
        decode_capture(capture, ())
    calls: int = Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls / packets


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_for_a_packet_does_not_grow_with_their_number(kind: str, tmp_path: Path) -> None:
    assert _calls(kind, _MANY, tmp_path) < _LINEAR * _calls(kind, _FEW, tmp_path)


def test_a_damaged_initial_packet_is_tried_with_few_keys(tmp_path: Path) -> None:
    kind = "Initials of distinct connections, one 4-tuple"
    honest, damaged = (_calls(each, _MANY, tmp_path) for each in (kind, "the same, every second one damaged"))
    assert damaged < 1.5 * honest
