"""The table of rules: one row for each MUST or MUST NOT of the QUIC and HTTP/3 RFCs, and where bentpipe checks it."""

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

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

    document: str  # number of the RFC, or name of a draft of the QUIC working group, such as `ack-frequency`
    section: str  # number of the section, without the section sign, such as `12.3`
    name: str  # a few words with hyphens that describe the violation
    who: Who
    requirement: str  # the requirement of the RFC, in our own words
    where: Where
    cases: tuple[str, ...] = ()  # names of the test cases that check the rule, for `Where.CASE`
    reason: str = ""  # why nothing checks the rule, for `Where.UNCHECKED` and `Where.UNSEEN`
    finding: str = ""  # the code of the finding when the rule decides a test case; empty: the rule's id
    answer: tuple[str, ...] = ()
    """What the peer does after a violation: it closes the connection with one of these errors (names of transport
    errors, `TLS alert`, `HTTP/3 error`), sends a `stateless reset`, or discards the packet (`discard`). A violation
    explains every later end of the peer."""
    seldom: tuple[str, ...] = ()
    """The same words, for a rule that many peers don't enforce: a violation explains only an end that is listed.
    `discard` means here that the handshake was not completed; `give up`: that the peer ended it without an error."""

    @property
    def id(self) -> str:
        """The stable name of the rule, such as `rfc9000-12.3-number-reused`. Findings use it as their code."""
        prefix = "rfc" if self.document.isdigit() else ""
        return f"{prefix}{self.document}-{self.section}-{self.name}"

    @property
    def title(self) -> str:
        """The full name of the document, such as `RFC 9000`."""
        return f"RFC {self.document}" if self.document.isdigit() else f"draft-ietf-quic-{self.document}"

    @property
    def reference(self) -> str:
        """The document and the section, such as `RFC 9000 §12.3`."""
        return f"{self.title} §{self.section}"

    @property
    def consequence(self) -> str:
        """What the peer does after a violation, as a sentence; empty for a rule that is not checked in packets."""
        acts = self.answer or self.seldom
        errors = [_ERRORS.get(act, act) for act in acts if act not in _ACTS]
        ways = [f"closes with {' or '.join(errors)}"] if errors else []
        ways += [_ACTS[act] for act in acts if act in _ACTS]
        if not ways:
            return (
                "A violation ends no connection: the peer can't notice it, or must ignore it." if self.checked else ""
            )
        peer = "The peer" if self.answer or "give up" in acts else "Many peers don't enforce this rule; one that does"
        return f"{peer} {', or '.join(ways)}."

    @property
    def checked(self) -> bool:
        return self.where in (Where.INVARIANT, Where.NOTE, Where.CASE)


_ERRORS = {"TLS alert": "a TLS alert", "HTTP/3 error": "an HTTP/3 error"}
_ACTS = {
    "discard": "discards the packet",
    "give up": "gives up a handshake that can't go on",
    "stateless reset": "sends a stateless reset",
}


def _rule(document: str, key: str, row: dict[str, str | list[str] | bool]) -> Rule:
    section, _, name = key.partition("-")
    where = next((where for where in Where if where in row), Where.INVARIANT)
    detail = row.get(where)
    return Rule(
        document=document,
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

RULES: tuple[Rule, ...] = tuple(
    _rule(document, key, row) for document, rows in _TABLE.items() for key, row in rows.items()
)
"""All rules, ordered by document and section."""

RULES_OF_CODES = ("rfc9000-11-wrong-error-code", "rfc9001-4.8-alert-level", "rfc9114-8-wrong-error-code")
"""The rules about error codes of the transport, of TLS, and of HTTP/3."""

BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}
