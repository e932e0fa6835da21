"""Recordings that test the checks: what each was made from, and what a bad one must be found guilty of.

A bad one is in `bad/NAME`: two misbehaving endpoints, which forgive each other (implementations/_misbehaving), so that
the packets show the sin and nothing else goes wrong. Files are small and waits short: fields of the case's record are
replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner.model.run import CaseRecord
from runner.tests.records import directed

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
    """A recording that must fail its case with `code` alone. `expected` and `actual` are regular expressions."""

    name: str
    case: str
    code: str
    role: str = ""
    section: str
    expected: str
    actual: str
    client: str = ""  # sins, as CLIENT_PARAMS and SERVER_PARAMS name them
    server: str = ""
    client_stack: str = ""  # where it is a real one
    server_stack: str = ""
    also: frozenset[str] = frozenset()  # codes that this sin brings with it
    changes: Changes = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it is, below this folder."""
        return f"bad/{self.name}"


def changed(record: CaseRecord, changes: Changes) -> CaseRecord:
    """The record with other fields; `data_rate` and `impaired` are of both directions, `impaired_return` of one."""
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
