"""Recordings that test the checks: how each recording was made, and the code with which a bad recording must fail.

A bad recording is in `bad/NAME`. It was made with two misbehaving endpoints, which tolerate each other's sins
(implementations/_misbehaving), so the packets show only the sin. Fields of the case's record are replaced, so that
files are small and time-outs are short.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.records import directed
from runner.model.run import CaseRecord
from runner.paths import ROOT

RECORDINGS = ROOT / "runner/tests/recordings"
Changes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Good:
    """A recording of real stacks that must pass its case."""

    server: str
    client: str
    case: str
    changes: Changes = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it is, below this folder."""
        return f"{self.server}_{self.client}/{self.case}"


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A recording that must fail its case with only `code`. `expected` and `actual` are regular expressions."""

    name: str
    case: str
    code: str
    role: str = ""
    section: str
    expected: str = "every packet of the endpoint keeps this rule"  # of a finding that a rule decides
    actual: str
    client: str = ""  # faults by their names in CLIENT_PARAMS; for `server`, in SERVER_PARAMS
    server: str = ""
    client_stack: str = ""  # the client's stack, when it is not misbehaving
    server_stack: str = ""
    also: frozenset[str] = frozenset()  # further codes of findings that this fault causes
    changes: Changes = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it is, below this folder."""
        return f"bad/{self.name}"


def changed(record: CaseRecord, changes: Changes) -> CaseRecord:
    """The record with changed fields. `data_rate` and `impaired` apply to both directions, `impaired_return` only to
    the return direction."""
    fields = dict(changes)
    link: dict[str, Any] = {}
    if "data_rate" in fields:
        link["data_rate"] = fields.pop("data_rate")
    if "impaired" in fields:
        link["impairments"] = fields.pop("impaired")
    back = {"impairments": fields.pop("impaired_return")} if "impaired_return" in fields else {}
    forward, return_ = replace(record.forward, **link), replace(record.return_, **link, **back)
    path = fields.pop("impairments", None)
    return replace(directed(record, forward=forward, return_=return_, impairments=path), **fields)


def sizes(*bytes_each: int) -> Changes:
    """Files of other sizes."""
    return {"file_sizes": bytes_each}
