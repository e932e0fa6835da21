"""The fuzzer of flights, with aioquic in memory as the stacks."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from aioquic.quic.connection import QuicConnection

from runner.check.flights import load_rows, parse_flight
from runner.check.fuzzer import Answers, Found, fuzz, mutate, row_text
from runner.model.stack import Role
from runner.tests.hostile import in_memory
from runner.tests.hostile.test_flights import Careless

_ROWS = load_rows()
_FEW = {name: _ROWS[name] for name in ("unknown-frame", "max-data-lower")}


def _ask(folder: Path, stacks: Mapping[str, type[QuicConnection]], asked: list[str]) -> Any:
    def ask(rows: Mapping[str, dict[str, Any]]) -> Answers:
        asked.extend(str(row["send"]) for row in rows.values())
        flights = {name: (row | {"name": name}, parse_flight(name, row)) for name, row in rows.items()}
        in_memory.ROWS.update({name: row for name, (row, _) in flights.items()})
        in_memory.FLIGHTS.update({name: flight for name, (_, flight) in flights.items()})
        return {
            stack: {name: in_memory.meet(name, Role.SERVER, folder, connection=connection)[0] for name in flights}
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


def test_every_mutant_is_a_flight_and_a_finding_is_a_row() -> None:
    rng, corpus = Random(1), [{**row, "parent": name} for name, row in _ROWS.items() if "send" in row]
    for _ in range(300):
        row = mutate(rng, corpus)
        for text in row["send"]:
            compile(text, "a mutant", "eval")
        found = Found("quick", row, "continues", "closes", "the connection continued")
        path = Path("fuzz.toml")
        assert load_rows_of(row_text(found, "fuzz-1"), path)
        (again,) = tomllib.loads(row_text(found, "fuzz-1")).values()
        kept = {key: row[key] for key in row.keys() - {"parent", "must", "level", "then", "rule", "h3spec", "needs"}}
        assert kept.items() <= again.items()  # what was sent is what can be sent again


def load_rows_of(text: str, path: Path) -> bool:
    """Whether the text is a table of flights."""
    return all(parse_flight(name, row, path.name) for name, row in tomllib.loads(text).items())
