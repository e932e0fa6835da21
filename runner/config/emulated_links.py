"""Reads and validates emulated-links.json. In this file, users declare links with the same fields as built-in links."""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from runner.config.catalog import Whole, read_as
from runner.errors import UsageError
from runner.model.impairments import NO_PATH_IMPAIRMENTS, PathImpairments
from runner.model.link import Direction, Link, Segment
from runner.paths import ROOT
from testcases.links import LINKS

EMULATED_LINKS = ROOT / "emulated-links.json"
EMULATED_LINKS_SCHEMA = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")  # the names become names of folders


class _Segment(BaseModel):
    """One segment of a link. `forward` carries the download, `return` carries the client's ACKs."""

    model_config = ConfigDict(extra="forbid")
    forward: Direction
    return_: Direction = Field(alias="return")
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS


class _Link(BaseModel):
    """A link with one segment, or with two: first the satellite segment, then the ground segment. `source`: the source
    of the parameters."""

    model_config = ConfigDict(extra="forbid")
    segments: list[_Segment] = Field(min_length=1, max_length=2)
    source: str = ""
    note: str = ""


class _File(BaseModel):
    """The content of emulated-links.json."""

    model_config = ConfigDict(extra="forbid")
    schema_: Whole = Field(alias="schema", ge=1, le=EMULATED_LINKS_SCHEMA)
    links: dict[str, _Link] = Field(min_length=1)


def emulated_links_schema() -> dict[str, Any]:
    """The JSON Schema of emulated-links.json."""
    return _File.model_json_schema(by_alias=True)


def load_emulated_links(path: Path = EMULATED_LINKS) -> dict[str, Link]:
    """The links of the file by name; empty when the file is missing. Raises UsageError with the file, the field and the
    mistake."""
    if not path.exists():
        return {}
    links = {}
    for name, entry in read_as(_File, path).links.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{path}, link '{name}': use at most 40 small letters, digits, '-' and '.' for a name, such as alpine."
            )
        try:
            links[name] = Link(
                name=name, segments=tuple(map(_segment, entry.segments)), source=entry.source, note=entry.note
            )
        except ValueError as error:
            raise UsageError(f"{path}, link '{name}': {error}.") from error
    return links


def declared_links(path: Path = EMULATED_LINKS) -> dict[str, Link]:
    """The built-in links and the links of the file. Raises UsageError when a link of the file has the name of a
    built-in link."""
    declared = load_emulated_links(path)
    for name in declared:
        if name in LINKS:
            raise UsageError(f"{path}, link '{name}': that is the name of a built-in link: give it another name.")
    return {**LINKS, **declared}


def _segment(entry: _Segment) -> Segment:
    return Segment(forward=entry.forward, return_=entry.return_, impairments=entry.impairments)
