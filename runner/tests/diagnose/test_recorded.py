"""Every detector, on recordings whose cause was set: it reports its own cause and nothing else.

The recordings are transfers between two endpoints of `implementations/_misbehaving` in virtual time, but for
`few-acks`, which has msquic's server and noq's client. `causes.json` has the settings and the case record of each, the
diagnoses that the settings must lead to, and those that they may lead to.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from runner.decode.columns import CLIENT, SERVER
from runner.decode.tables import load_tables
from runner.diagnose import detectors
from runner.diagnose.explain import Explanation, explain
from runner.judge.execution import load_truth
from runner.model.result import Artifacts, Limit
from runner.model.run import CaseRecord
from runner.trace.establish import facts
from runner.trace.handshake import CE
from runner.trace.measure import sample
from runner.trace.recording import Recording
from runner.trace.streams import Transfer

CAUSES = Path(__file__).parents[1] / "recordings" / "causes"


@dataclass(frozen=True)
class Labelled:
    """One transfer. `server`, `client`: the parameters of misbehaving, or a real stack."""

    server: str
    client: str
    expected: frozenset[str]
    allowed: frozenset[str]
    record: CaseRecord


RECORDED = TypeAdapter(dict[str, Labelled]).validate_python(json.loads((CAUSES / "causes.json").read_bytes()))


@cache
def explanation(name: str) -> Explanation:
    return _explained(Artifacts(CAUSES / name), RECORDED[name].record)


def _explained(artifacts: Artifacts, record: CaseRecord, *, marked_by_server: bool = False) -> Explanation:
    client, server = load_tables(artifacts.client_tables), load_tables(artifacts.server_tables)
    if marked_by_server:
        column = server.datagrams.schema.get_field_index("ecn")
        marks = pa.array([CE] * server.datagrams.num_rows, type=server.datagrams.schema.field(column).type)
        server = replace(server, datagrams=server.datagrams.set_column(column, "ecn", marks))
    trace_facts = facts(client, server)
    transfer, truth = Transfer(client, server), load_truth(artifacts.link_truth)
    numbers = sample(
        transfer, trace_facts, file_sizes=record.file_sizes, forward=record.forward, return_=record.return_
    )
    return explain(transfer, trace_facts, numbers, record.link.satellite, truth=truth)


def codes(name: str) -> set[str]:
    return {diagnosis.code for diagnosis in explanation(name).diagnoses}


@cache
def departures(name: str, sender: str) -> dict[int, list[float]]:
    """The times when an endpoint sent packets, by packet number, in any packet number space. Seconds on the time axis
    of the plots."""
    artifacts, code = Artifacts(CAUSES / name), {"client": CLIENT, "server": SERVER}[sender]
    recording = Recording(load_tables(artifacts.client_tables), load_tables(artifacts.server_tables))
    near = recording.near(code)
    assert near is not None and recording.origin_ns is not None
    times = defaultdict(list)
    for row in np.flatnonzero(near.packets["sender"] == code):
        time = (int(near.packet_time[row]) - recording.origin_ns) / 1e9
        times[int(near.packets["packet_number"][row])].append(time)
    return times


@pytest.mark.parametrize("name", RECORDED)
def test_a_set_cause_is_found_and_nothing_else(name: str) -> None:
    label, explained_ = RECORDED[name], explanation(name)
    record = label.record
    slack = max(2 * (record.forward.delay + record.return_.delay), 0.12)  # time in transit, in a queue, until few ACKs
    assert label.expected <= codes(name) <= label.expected | label.allowed
    assert explained_.limits.get("unknown", 0.0) < 0.1
    for diagnosis in explained_.diagnoses:
        assert explained_.spans[0].start <= diagnosis.start <= diagnosis.end
        assert diagnosis.section
        assert diagnosis.packets
        sent = departures(name, diagnosis.vantage)
        for number in diagnosis.packets:
            assert any(diagnosis.start - slack <= time <= diagnosis.end + slack for time in sent[number]), diagnosis
        assert re.search(r"\d", diagnosis.sentence)


@pytest.mark.parametrize("name", ["ecn-ignored", "ecn-not-reported"])
def test_marks_that_the_server_sets_are_no_congestion(name: str) -> None:
    explanation = _explained(Artifacts(CAUSES / name), RECORDED[name].record, marked_by_server=True)
    assert name in codes(name)
    assert not {"ecn-ignored", "ecn-not-reported"} & {diagnosis.code for diagnosis in explanation.diagnoses}


def test_every_code_has_a_recording_with_it_and_one_without() -> None:
    source = "".join(path.read_text() for path in Path(detectors.__path__[0]).glob("*.py"))
    known = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source)) | {"bursts", "outage"}
    known.remove("waited-for-grant")  # the link's truth alone shows it: test_made.py
    known.remove("send-buffer")  # TCP alone: test_over_tcp.py
    expected = {code for value in RECORDED.values() for code in value.expected}
    assert known == expected
    for code in known:
        assert any(code in codes(name) for name in RECORDED)
        assert any(code not in codes(name) for name in RECORDED)


def test_the_sentence_says_that_the_server_asked_for_few_acks() -> None:
    (found,) = (each for each in explanation("few-acks").diagnoses if each.code == "sparse-acks")
    assert found.sentence.endswith("The server had asked for few ACKs (ACK_FREQUENCY).")


@pytest.mark.parametrize(
    ("name", "limit", "least"),
    [
        ("clean", Limit.LINK, 0.7),
        ("window-third", Limit.RECEIVE_WINDOW, 0.8),
        ("never-grows", Limit.CONGESTION_WINDOW, 0.8),
        ("stalls", Limit.APPLICATION, 0.1),
        ("answers-late", Limit.APPLICATION, 0.2),
        ("outage", Limit.OUTAGE, 0.15),
        ("tail-lost", Limit.RECOVERY, 0.1),
    ],
)
def test_most_of_what_was_lost_goes_to_the_limit_that_was_set(name: str, limit: Limit, least: float) -> None:
    limits = explanation(name).limits
    assert limits[limit] > least
    assert sum(limits.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        # 10 MB over `ietf-large`: the server raises its datagrams three times. For a round trip after the probe's ACK,
        # it still sends the smaller ones, each with as much data as fits.
        pytest.param("raised-mtu", 0.001, id="datagrams of the size before"),
        # SATLOSS, 1 % loss: a lost packet's data need one datagram and a few bytes of a second one. 10 datagrams do end
        # with the application's data: they end at a multiple of 64 KiB.
        pytest.param("rest-of-a-lost-packet", 0.06, id="the rest of repeated data"),
    ],
)
def test_short_datagrams_of_a_server_that_has_data_are_no_lack_of_data(name: str, idle: float) -> None:
    """Two transfers from msquic's server, in virtual time."""
    artifacts = Artifacts(CAUSES.parent / name)
    record = TypeAdapter(CaseRecord).validate_json((artifacts.folder / "record.json").read_bytes())
    explained = _explained(artifacts, record)
    assert "application-idle" not in {each.code for each in explained.diagnoses}
    assert explained.limits.get(Limit.APPLICATION.value, 0.0) < idle


def test_acks_of_packets_without_data_make_no_room_in_a_full_window() -> None:
    """60 MB from quiche over `ietf-large`, in virtual time: the server sends DATA_BLOCKED while its window is full, and
    the ACKs of these packets let no data go. The buffer of the application was never empty (the server's qlog)."""
    artifacts = Artifacts(CAUSES.parent / "window-after-control-acks")
    record = TypeAdapter(CaseRecord).validate_json((artifacts.folder / "record.json").read_bytes())
    explained = _explained(artifacts, record)
    assert {each.code for each in explained.diagnoses} == {"dense-acks", "receive-window", "return-link-full"}
    assert explained.limits[Limit.APPLICATION.value] < 0.01
