"""The fuzzer of flights, with aioquic in memory as the stacks."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from aioquic.quic.connection import QuicConnection

from runner.check.flight_verdicts import FlightResult, FloodCost
from runner.check.flights import load_rows, parse_flight
from runner.check.fuzzer import Answers, Found, answer_of, fuzz, mutate, row_text
from runner.model.stack import Role
from runner.tests.hostile import in_memory
from runner.tests.hostile.test_flights import Careless

_ROWS = load_rows()
_FEW = {name: _ROWS[name] for name in ("unknown-frame", "max-data-lower")}


def _ask(folder: Path, stacks: Mapping[str, type[QuicConnection]], asked: list[str], role: Role = Role.SERVER) -> Any:
    def ask(rows: Mapping[str, dict[str, Any]]) -> Answers:
        asked.extend(str(row.get("send")) for row in rows.values())
        flights = {name: (row | {"name": name}, parse_flight(name, row)) for name, row in rows.items()}
        in_memory.ROWS.update({name: row for name, (row, _) in flights.items()})
        in_memory.FLIGHTS.update({name: flight for name, (_, flight) in flights.items()})
        return {
            stack: {name: in_memory.meet(name, role, folder, connection=connection)[0] for name in flights}
            for stack, connection in stacks.items()
        }

    return ask


def test_a_stack_that_answers_unlike_the_others_is_found_and_the_flight_shrinks(tmp_path: Path) -> None:
    stacks = {"one": QuicConnection, "careless": Careless, "two": QuicConnection}
    sent: list[str] = []
    found = list(fuzz(_FEW, _ask(tmp_path, stacks, sent), Role.SERVER, seed=2, most=3))
    assert {each.stack for each in found} == {"careless"}
    assert {(each.answer, each.others) for each in found} == {("continues", "closes")}
    assert all(len(each.row["send"]) == 1 for each in found)
    again: list[str] = []
    assert list(fuzz(_FEW, _ask(tmp_path, stacks, again), Role.SERVER, seed=2, most=3)) and again == sent


def test_a_client_is_tested_too_and_what_the_list_shows_is_left_out(tmp_path: Path) -> None:
    stacks = {"one": QuicConnection, "careless": Careless, "two": QuicConnection}
    tally = Counter[str]()
    found = list(fuzz(_FEW, _ask(tmp_path, stacks, [], Role.CLIENT), Role.CLIENT, seed=2, most=3, tally=tally))
    assert tally["known"] and tally["answered"]
    assert all((each.stack, each.answer, each.others) == ("careless", "continues", "closes") for each in found)
    assert all(each.row["parent"] != "unknown-frame" for each in found)  # Careless goes on after it


def test_parameters_messages_and_floods_are_mutated_too() -> None:
    rng, names = Random(1), ("parameter-udp-payload-1199", "alpn-unknown", "h3-settings-missing", "flood-stream-gaps")
    corpus = [{**_ROWS[name], "parent": name} for name in names]
    mutants = [mutate(rng, corpus) for _ in range(100)]
    changed = {key for row in mutants for key in row if row[key] != _ROWS[row["parent"]].get(key, row["parent"])}
    assert changed >= {"parameters", "messages", "control", "send"}
    assert any("times" in row for row in mutants)


def test_a_client_that_waits_for_its_handshake_does_not_hang() -> None:
    waits, hangs, large = (
        FlightResult(flight="x", role="client", verdict="note", seen=f"the connection went silent, {seen}", usage=usage)
        for seen, usage in (
            ("the client waited for its handshake", None),
            ("the client hung", None),
            ("exit code 1", FloodCost(before=0, most=100 << 20, after=(), cpu_s=0.1, datagrams=1, sent=1000)),
        )
    )
    assert [answer_of(each) for each in (waits, hangs, large)] == ["silence", "hang", "growth"]


def test_every_mutant_is_a_flight_and_a_finding_is_a_row() -> None:
    rng, corpus = (
        Random(1),
        [{**row, "parent": name} for name, row in _ROWS.items() if {"send", "parameters"} & row.keys()],
    )
    for _ in range(300):
        row = mutate(rng, corpus)
        for text in row.get("send", ()):
            compile(text, "a mutant", "eval")
        found = Found("quick", row, "continues", "closes", "the connection continued")
        path = Path("fuzz.toml")
        assert load_rows_of(row_text(found, "fuzz-1"), path)
        (again,) = tomllib.loads(row_text(found, "fuzz-1")).values()
        left_out = {"parent", "must", "level", "then", "rule", "h3spec", "needs", "knows"}
        kept = {key: row[key] for key in row.keys() - left_out}
        assert kept.items() <= again.items()  # what was sent is what can be sent again


def load_rows_of(text: str, path: Path) -> bool:
    """Whether the text is a table of flights."""
    return all(parse_flight(name, row, path.name) for name, row in tomllib.loads(text).items())
