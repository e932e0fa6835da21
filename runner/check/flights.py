"""The list of flights (implementations/hostile/source/flights.toml), and the names of error codes.

`python -m runner.check.flights` writes the table of h3spec's cases into docs/hostile.md.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from runner.decode.wire import NAMES_OF_FRAMES
from runner.errors import UsageError
from runner.model.rules import BY_ID, RULES_OF_CODES, TRANSPORT
from runner.model.stack import HTTP3, WIRE_NAMES, Role
from runner.paths import ROOT

PAGE = ROOT / "docs" / "hostile.md"
_MARK = "<!-- h3spec -->"
LIST = ROOT / "implementations" / "hostile" / "source" / "flights.toml"

ALERTS = {
    "unexpected_message": 10,
    "handshake_failure": 40,
    "bad_certificate": 42,
    "illegal_parameter": 47,
    "unknown_ca": 48,
    "decode_error": 50,
    "decrypt_error": 51,
    "protocol_version": 70,
    "internal_error": 80,
    "missing_extension": 109,
    "unsupported_extension": 110,
    "no_application_protocol": 120,
}
"""TLS alerts (RFC 8446 §6). Their error code is 0x100 and the alert (RFC 9001 §4.8)."""
_APPLICATION = """H3_NO_ERROR H3_GENERAL_PROTOCOL_ERROR H3_INTERNAL_ERROR H3_STREAM_CREATION_ERROR
H3_CLOSED_CRITICAL_STREAM H3_FRAME_UNEXPECTED H3_FRAME_ERROR H3_EXCESSIVE_LOAD H3_ID_ERROR H3_SETTINGS_ERROR
H3_MISSING_SETTINGS H3_REQUEST_REJECTED H3_REQUEST_CANCELLED H3_REQUEST_INCOMPLETE H3_MESSAGE_ERROR H3_CONNECT_ERROR
H3_VERSION_FALLBACK"""
APPLICATION = {name: code for code, name in enumerate(_APPLICATION.split(), start=0x100)} | {
    "QPACK_DECOMPRESSION_FAILED": 0x200,
    "QPACK_ENCODER_STREAM_ERROR": 0x201,
    "QPACK_DECODER_STREAM_ERROR": 0x202,
}
"""RFC 9114 §8.1, RFC 9204 §6."""
GENERIC = {"PROTOCOL_VIOLATION", "INTERNAL_ERROR", "internal_error", "H3_GENERAL_PROTOCOL_ERROR", "H3_INTERNAL_ERROR"}
"""Codes that an endpoint may always use instead of a specific one (RFC 9000 §11, RFC 9114 §8.1)."""
VOLUMES = {"limited": 3.0, "smaller": 0.99, "unanswered": 0.0}
"""Answer → most bytes that a port gets, as a multiple of those that came from there."""
_WORKS = {
    "continues": "the connection goes on",
    "ignored": "the packet is dropped, and the connection goes on",
    "silent": "nothing more is sent",
    "validated": "more than three times the bytes that came from the new port, to that port",
    "there": "PATH_RESPONSE to the port of the challenge",
    "renewed": "another connection ID is used",
    "limited": "at most three times the bytes that came from that port",
    "smaller": "fewer bytes than came from that port",
    "unanswered": "no answer to that port",
    "acknowledged": "the packet is acknowledged",
    "answered": "a response on the stream of the flight",
    "speaks": "it goes on sending",
    "survives": "it goes on serving, or ends by itself",
}  # answers of an endpoint that does not close
ANSWERS = {
    "any-error": "CONNECTION_CLOSE with an error",
    "closed": "CONNECTION_CLOSE with an error, and no other packet after it",
    "any-alert": "CONNECTION_CLOSE with a TLS alert",
    "any-stream": "the stream is reset or stopped",
    "refused": "the message is refused (a status of 400 to 599; a client that fails)",
    "unread": "the rest of the request is left unread",
    **_WORKS,
}
"""Right answers other than an error code, with their texts (flights.toml explains them)."""
_MOST_TIMES = 2000  # datagrams of a flood take a millisecond each, and all of them are decoded
LEVELS = ("MUST", "SHOULD", "MAY")

_STATES = ("first", "initial-sent", "initial", "handshake", "complete", "confirmed", "answered")
_MOVES = ("first", "retried", "confirmed")
_CASES = ("handshake", "http3", "retry", "versionnegotiation", "zerortt")
_MESSAGES = ("client_hello", "server_hello", "encrypted_extensions", "certificate", "certificate_verify", "finished")
# Keys whose value is `true`.
_SWITCHES = {"alone", "deaf", "retries", "resumes", "replays", "small", "asks_certificate", "other_address"}
_PEER_KEYS = (
    *_SWITCHES,
    *("when", "moves", "send", "parameters", "earlier", "before", "messages", "control", "knows", "token"),
    *("retry_token", "id_length"),
)
"""Keys of a row that only the peer reads."""
_SENT = ("send", "parameters", "messages", "control", "small", "token", "retry_token", "asks_certificate")
"""Keys that change what is sent; a row has at least one."""

_PREPARED = ("moves", "before", "other_address")
"""Keys that change from where the flight is sent, or what comes before it."""


def code_name(code: int, *, application: bool) -> str:
    """The name of an error code, or the code."""
    names = {number: name for name, number in (APPLICATION if application else TRANSPORT).items()}
    if not application and 0x100 <= code < 0x200:
        return {number: name for name, number in ALERTS.items()}.get(code - 0x100, f"alert {code - 0x100}")
    return names.get(code, f"0x{code:x}")


def answer_text(answer: str) -> str:
    """A right answer of a row, for people."""
    if answer.startswith("stream "):
        return f"stream error {answer.removeprefix('stream ')}"
    if is_frame(answer):
        return f"a frame {answer.removeprefix('frame ').upper()}"
    return ANSWERS.get(answer, f"CONNECTION_CLOSE {answer}")


def is_frame(answer: str) -> bool:
    """True for `frame NAME` and `frame NAME VALUE`: the endpoint sends such a frame, with this limit or number."""
    found = re.fullmatch(r"frame (\w+)( \d+)?", answer)
    return found is not None and found[1] in NAMES_OF_FRAMES


@dataclass(frozen=True, kw_only=True)
class HostileFlight:
    """A row of the list, as far as a verdict needs it."""

    name: str
    section: str
    must: str
    then: tuple[str, ...]
    rule: str = ""  # id of the judge's rule that the flight breaks or makes visible
    asks: str = ""  # the role under test; empty: both
    case: str = "handshake"  # the wire name with which the endpoint under test is started
    level: str = LEVELS[0]
    h3spec: str = ""
    times: int = 0  # how often `send` is sent; above 0, memory and CPU time of the endpoint are measured
    needs: str = ""  # the flight applies only if this expression of the peer is true
    sent: str = ""  # what the peer sends, as it stands in the list

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(role for role in Role if self.asks in ("", role.value))

    @property
    def expected(self) -> str:
        """The right answers, for people."""
        return ", or ".join(map(answer_text, self.then))

    @property
    def tolerates(self) -> bool:
        """True when no right answer is an error."""
        return all(answer in _WORKS or is_frame(answer) for answer in self.then)

    @property
    def closes(self) -> bool:
        """True when the flight itself closes the connection: an error is allowed, and none is due."""
        return set(self.then) == {"silent", "any-error"}

    @property
    def is_http3(self) -> bool:
        return self.case == WIRE_NAMES[HTTP3]


def load_rows(path: Path = LIST) -> dict[str, dict[str, Any]]:
    """The rows of the list by name. Raises UsageError for a file that is no TOML."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path.name}: {error}.") from None


def load_flights(path: Path = LIST) -> dict[str, HostileFlight]:
    """The flights by name, in the order of the list. Raises UsageError for a row that can't be right."""
    return {name: parse_flight(name, row, path.name) for name, row in load_rows(path).items()}


def parse_flight(name: str, row: dict[str, Any], file: str = LIST.name) -> HostileFlight:
    """The flight of a row. Raises UsageError, which names the row and the key."""
    if mistake := next(_mistakes(row), ""):
        raise UsageError(f"{file}, [{name}]: {mistake}.")
    sent = "; ".join(f"{key}: {row[key]}" for key in (*_SENT, "times", *_PREPARED) if key in row)
    read = {key: row[key] for key in row.keys() & _KEYS} | {"then": tuple(row["then"]), "sent": sent}
    read.setdefault("rule", _rule_of_errors(row["then"]))
    return HostileFlight(name=name, **read)


_KEYS = {field.name for field in fields(HostileFlight)} - {"name", "sent"}


def _mistakes(row: dict[str, Any]) -> Iterator[str]:
    """What can't be right in a row, each with what to write instead. The peer finds the mistakes in expressions."""
    if unknown := row.keys() - _KEYS - {*_PEER_KEYS}:
        yield f"unknown key {min(unknown)}; known: {', '.join(sorted(_KEYS.union(_PEER_KEYS)))}"
    if missing := {"section", "must", "then"} - row.keys():
        yield f"write a value for {min(missing)}"
    if row.keys().isdisjoint(_SENT):
        yield "it sends nothing; write `send`, `parameters`, `messages` or `control`"
    yield from _wrong_values(row)
    if "times" in row and ("send" not in row or row["times"] not in range(1, _MOST_TIMES + 1)):
        yield f"times is 1 to {_MOST_TIMES}, and needs `send`"
    if "needs" in row and "send" not in row:
        yield "needs goes with `send`: what it asks for is not known when parameters and messages are sent"
    if "control" in row and row.get("case") != WIRE_NAMES[HTTP3]:
        yield 'control needs case = "http3"'


def _wrong_values(row: dict[str, Any]) -> Iterator[str]:
    if not re.fullmatch(r"RFC \d+ §\d+(\.\d+)*", row["section"]):
        yield f"section is like 'RFC 9000 §19.11', not '{row['section']}'"
    for key in ("then", "send"):
        if not isinstance(row.get(key, []), list):
            yield f"{key} is a list: write [ ] around its value"
    for answer in row["then"]:
        code = answer.removeprefix("stream ")
        named = code in TRANSPORT or code in ALERTS or code in APPLICATION
        if not (named or answer in ANSWERS or is_frame(answer)):
            words = f"{', '.join(sorted(ANSWERS))}, stream CODE, frame NAME, frame NAME VALUE"
            yield f"then: '{answer}' is no error code and none of {words}"
    for key, values in {"level": LEVELS, "when": _STATES, "moves": _MOVES, "case": _CASES, "asks": tuple(Role)}.items():
        if key in row and row[key] not in values:
            yield f"{key} is {', '.join(values)}, not '{row[key]}'"
    for key in sorted(row.keys() & _SWITCHES):
        if row[key] is not True:
            yield f"{key} is true, or left out"
    if unknown := row.get("messages", {}).keys() - set(_MESSAGES):
        yield f"messages: '{min(unknown)}' is none of {', '.join(_MESSAGES)}"
    if row.get("rule", "") not in {"", *BY_ID}:
        yield f"docs/rules.md has no rule '{row['rule']}'"


def _rule_of_errors(then: Iterable[str]) -> str:
    """The rule about errors of a flight that names no other rule: about its first code, or about any error."""
    for answer in then:
        code = answer.removeprefix("stream ")
        if code in TRANSPORT or code in ALERTS or code in APPLICATION:
            return RULES_OF_CODES[0 if code in TRANSPORT else 1 if code in ALERTS else 2]
    return RULES_OF_CODES[1] if "any-alert" in then else ""


def h3spec_table(flights: Iterable[HostileFlight]) -> str:
    """The cases of h3spec and the flights that cover them, as Markdown."""
    rows = sorted((flight.h3spec, flight.name) for flight in flights if flight.h3spec)
    return "\n".join(["| h3spec | flight |", "| --- | --- |", *(f"| {case} | `{name}` |" for case, name in rows), ""])


def page(text: str) -> str:
    """docs/hostile.md with the present table."""
    return text.partition(_MARK)[0] + f"{_MARK}\n{h3spec_table(load_flights().values())}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
