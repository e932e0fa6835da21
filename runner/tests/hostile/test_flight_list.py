"""The list of flights: its table in the docs, how flights are chosen, and mistakes in a row."""

from pathlib import Path
from typing import Any

import pytest

from runner.check.flight_verdicts import (
    ERROR,
)
from runner.check.flights import PAGE, load_flights, page, parse_flight
from runner.check.meeting import select_flights
from runner.errors import UsageError
from runner.model.stack import Role
from runner.tests.hostile.in_memory import FLIGHTS, ROWS, meet


def test_the_table_of_h3spec_is_current() -> None:
    assert PAGE.read_text() == page(PAGE.read_text())


def test_flights_are_selected_by_the_beginning_of_their_names() -> None:
    assert {flight.name for flight in select_flights(FLIGHTS, ["h3-goaway"])} > {"h3-goaway-higher"}
    with pytest.raises(UsageError, match="Did you mean unknown-frame"):
        select_flights(FLIGHTS, ["unknwn-frame"])


_ROW = {"section": "RFC 9000 §4", "must": "It must.", "then": ["silent"], "send": ["ping()"]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"then": ["FINAL_SIZE"]}, "'FINAL_SIZE' is no error code"),
        ({"then": ["frame reset"]}, "'frame reset' is no error code"),
        ({"then": "silent"}, "then is a list"),
        ({"send": None}, "it sends nothing"),
        ({"send": "ping()"}, "send is a list"),
        ({"times": 0}, "times is 1 to"),
        ({"must": None}, "write a value for must"),
        ({"sends": ["ping()"]}, "unknown key sends"),
        ({"asks": "both"}, "asks is client, server, not 'both'"),
        ({"case": "h3"}, "case is handshake, http3"),
        ({"when": "conected"}, "when is first, .*, not 'conected'"),
        ({"alone": "yes"}, "alone is true, or left out"),
        ({"rule": "rfc1"}, "no rule 'rfc1'"),
        ({"section": "9000 §4"}, "section is like"),
        ({"messages": {"clienthello": "message"}}, "'clienthello' is none of client_hello"),
        ({"control": "varint(0)"}, "control needs case"),
        ({"needs": "ids", "send": None, "control": "varint(0)", "case": "http3"}, "needs goes with `send`"),
    ],
)
def test_a_wrong_row_is_named(changes: dict[str, Any], sentence: str) -> None:
    row = {key: value for key, value in (_ROW | changes).items() if value is not None}
    with pytest.raises(UsageError, match=rf"flights.toml, \[row\]: .*{sentence}"):
        parse_flight("row", row)


def test_a_list_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "flights.toml").write_text("section = ")
    with pytest.raises(UsageError, match=r"flights\.toml"):
        load_flights(tmp_path / "flights.toml")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"send": ["nwe_token(b'')"]}, "`nwe_token(b'')`: name 'nwe_token' is not defined"),
        ({"send": ["max_data("]}, "`max_data(`: '(' was never closed"),
        ({"send": ["one_rtt(ping(), fase=1)"]}, "a packet has no fase; its fields are reserved, fixed"),
        ({"send": ["7"]}, "7 is no frames, no packet"),
        ({"needs": "peer.foo"}, "`peer.foo`: "),
        ({"parameters": {"max_dta": "1"}}, "`max_dta`: name 'max_dta' is not defined"),
        ({"messages": {"client_hello": "changd(message)"}}, "`changd(message)`: name 'changd'"),
        ({"control": "settngs()", "case": "http3"}, "`settngs()`: name 'settngs'"),
        ({"token": "tken"}, "`tken`: name 'tken'"),
    ],
)
def test_a_mistake_in_an_expression_is_told_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sentence: str
) -> None:
    row = _ROW | changes
    monkeypatch.setitem(ROWS, "row", row | {"name": "row"})
    monkeypatch.setitem(FLIGHTS, "row", parse_flight("row", row))
    (result,) = meet("row", Role.SERVER, tmp_path)
    assert result.verdict == ERROR and sentence in result.why, result
