"""The table of rules: one row for each MUST or MUST NOT of the QUIC and HTTP/3 RFCs, and where bentpipe checks it."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from runner.paths import ROOT
from runner.plan.catalog import load_cases
from testcases.base import EVERY_CASE

_TRANSPORT = """NO_ERROR INTERNAL_ERROR CONNECTION_REFUSED FLOW_CONTROL_ERROR STREAM_LIMIT_ERROR STREAM_STATE_ERROR
FINAL_SIZE_ERROR FRAME_ENCODING_ERROR TRANSPORT_PARAMETER_ERROR CONNECTION_ID_LIMIT_ERROR PROTOCOL_VIOLATION
INVALID_TOKEN APPLICATION_ERROR CRYPTO_BUFFER_EXCEEDED KEY_UPDATE_ERROR AEAD_LIMIT_REACHED NO_VIABLE_PATH
VERSION_NEGOTIATION_ERROR"""
TRANSPORT = {name: code for code, name in enumerate(_TRANSPORT.split())}
"""RFC 9000 §20.1, RFC 9368 §10.2."""
_NAMES = {code: name for name, code in TRANSPORT.items()} | {0x53F8: "VERSION_NEGOTIATION_ERROR"}  # neqo's, of a draft


def error_name(code: int) -> str:
    """The name of an error code of CONNECTION_CLOSE (0x1c), as rules use it; empty when the code is unknown."""
    return "TLS alert" if 0x100 <= code < 0x200 else _NAMES.get(code, "")


# A rule: one MUST or MUST NOT of an RFC, or a recommendation, and where bentpipe checks it.


class Who(StrEnum):
    """The endpoint that must keep a rule."""

    CLIENT = "client"
    SERVER = "server"
    ENDPOINT = "endpoint"  # client and server


class Where(StrEnum):
    """Where a rule is checked."""

    INVARIANT = "invariant"  # in every job, on every connection whose packets can be read
    NOTE = "note"  # in every job; the RFC has no MUST, so that a violation is only a note
    CASE = "case"  # by the test cases named in `cases`
    UNCHECKED = "unchecked"  # packets could show a violation, but bentpipe does not check the rule; see `reason`
    UNSEEN = "unseen"  # packets can't show a violation; see `reason`


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table."""

    rfc: int
    section: str
    """Number of the section, without the section sign, such as `12.3`."""
    name: str
    """A few words with hyphens that describe the violation."""
    who: Who
    requirement: str
    """The requirement of the RFC, in our own words."""
    where: Where
    cases: tuple[str, ...] = ()
    """Names of the test cases that check the rule, for `Where.CASE`."""
    reason: str = ""
    """Why nothing checks the rule, for `Where.UNCHECKED` and `Where.UNSEEN`."""
    finding: str = ""
    """The code of the finding when the rule decides a test case; empty: the rule's id."""
    answer: tuple[str, ...] = ()
    """What the peer does after a violation: it closes the connection with one of these errors (names of transport
    errors, `TLS alert`, `HTTP/3 error`), sends a `stateless reset`, or discards the packet (`discard`). A violation
    explains every later end of the peer."""
    seldom: tuple[str, ...] = ()
    """The same words, for a rule that many peers don't enforce: a violation explains only an end that is listed.
    `discard` means here that the handshake was not completed."""

    @property
    def id(self) -> str:
        """The stable name of the rule, such as `rfc9000-12.3-number-reused`. Findings use it as their code."""
        return f"rfc{self.rfc}-{self.section}-{self.name}"

    @property
    def reference(self) -> str:
        """The RFC and the section, such as `RFC 9000 §12.3`."""
        return f"RFC {self.rfc} §{self.section}"

    @property
    def checked(self) -> bool:
        """Whether bentpipe checks the rule."""
        return self.where in (Where.INVARIANT, Where.NOTE, Where.CASE)


def _rule(rfc: str, key: str, row: dict[str, str | list[str] | bool]) -> Rule:
    section, _, name = key.partition("-")
    where = next((where for where in Where if where in row), Where.INVARIANT)
    detail = row.get(where)
    return Rule(
        rfc=int(rfc),
        section=section,
        name=name,
        who=Who(str(row["who"])),
        requirement=str(row["must"]),
        where=where,
        cases=_words(detail),
        reason=detail if isinstance(detail, str) else "",
        finding=str(row.get("finding", "")),
        answer=_words(row.get("answer")),
        seldom=_words(row.get("seldom")),
    )


def _words(value: str | list[str] | bool | None) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else ()


_TABLE = tomllib.loads(Path(__file__).with_name("rules.toml").read_text())

RULES: tuple[Rule, ...] = tuple(_rule(rfc, key, row) for rfc, rows in _TABLE.items() for key, row in rows.items())
"""All rules, ordered by RFC and section."""

RULES_OF_CODES = ("rfc9000-11-wrong-error-code", "rfc9001-4.8-alert-level", "rfc9114-8-wrong-error-code")
"""The rules about error codes of the transport, of TLS, and of HTTP/3."""

BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}


# Writes the table of rules as docs/rules.md: `python -m runner.judge.rules.rule_table`.

PAGE = ROOT / "docs" / "rules.md"

_HEAD = """# Rules of the RFCs, and where they are checked

Each row is a MUST or a MUST NOT, or a plain statement that leaves no choice, such as “a final size cannot change”. Rows
with *should* or *as a note* are only recommended. Where a part of a rule is not checked, its row says so. *Every
connection*: the rule is checked in every job. Rules about what arrived before, such as limits and acknowledgments, need
complete captures, and all packets of the connection must be readable. `./bentpipe show`, the page of the pair and
`result.json` (`violations`; the code is the rule's id) list broken rules, and matrices show them as §. A broken rule
makes the job fail only when the purpose of the case depends on the rule: *red in* names these cases. For rules that are
*unchecked* or *not visible*, the table gives the reason. An endpoint is judged by the packets that it sent and received
at its own end of the link. *Provoked* are rules that no ordinary job makes visible, by flights of
[the hostile peer](hostile.md).

This page is generated from `runner/judge/rules/rules.toml` by `python -m runner.judge.rules.rule_table`.
"""


def rule_lines(words: Sequence[str]) -> Iterator[str]:
    """Each rule whose line contains all `words`, in any case: id, role, sentence, and where it is checked."""
    depends = _depends()
    for rule in RULES:
        line = f"{rule.id}  {rule.who}: {rule.requirement} ({_where(rule, depends)})"
        if all(word.lower() in line.lower() for word in words):
            yield line


def _depends() -> dict[str, tuple[str, ...]]:
    """Case → beginnings of the ids of the rules on which its purpose depends."""
    return {name: case.depends for name, case in sorted(load_cases().items()) if case.depends}


def rules_page() -> str:
    """The page in Markdown."""
    checked, depends = sum(rule.checked for rule in RULES), _depends()
    provoked = sum(not rule.checked and "; provoked by" in _where(rule, depends) for rule in RULES)
    count = f"{checked} of {len(RULES)} rules are checked, and the hostile peer provokes {provoked} of the others."
    lines = [_HEAD, count, ""]
    for rfc, rules in groupby(RULES, key=lambda rule: rule.rfc):
        lines += [f"## RFC {rfc}", "", "| id | who | rule | checked |", "| --- | --- | --- | --- |"]
        lines += [f"| `{rule.id}` | {rule.who} | {rule.requirement} | {_where(rule, depends)} |" for rule in rules]
        lines.append("")
    return "\n".join(lines)


def _where(rule: Rule, depends: Mapping[str, tuple[str, ...]]) -> str:
    if rule.where is Where.INVARIANT:
        red = ", ".join(name for name, beginnings in depends.items() if rule.id.startswith(beginnings))
        red = "every case" if rule.id in EVERY_CASE else red
        return "every connection" + (f"; red in {red}" if red else "")
    if rule.where is Where.NOTE:
        return "every connection, as a note"
    if rule.where is Where.CASE:
        return "case " + ", ".join(rule.cases)
    flights = [name for name, flight in _flights().items() if flight.get("rule") == rule.id]
    text = f"{'unchecked' if rule.where is Where.UNCHECKED else 'not visible'}: {rule.reason}"
    if rule.id in (*RULES_OF_CODES, "rfc9000-11.1-error-not-signalled"):
        flights = ["all flights with an error code"]
    return text + (f"; provoked by {', '.join(flights)}" if flights else "")


@cache
def _flights() -> dict[str, dict[str, Any]]:
    """The rows of the hostile peer's list."""
    return tomllib.loads((ROOT / "implementations" / "hostile" / "source" / "flights.toml").read_text())


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(rules_page())
