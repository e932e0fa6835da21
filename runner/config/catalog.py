"""What can be run: implementations.json and the modules of `testcases`, validated."""

import importlib
import json
import pkgutil
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import testcases
from runner.config.names import named, split
from runner.errors import SetupError, UsageError
from runner.model.implementation import Implementation, Role
from runner.model.knob import FORMS, Knob
from runner.model.middlebox import BOXES, NO_VIA, Box, Middlebox
from runner.model.run import ClientKind, Kind
from testcases.base import Case

ROOT = Path(__file__).resolve().parents[2]
IMPLEMENTATIONS = ROOT / "implementations.json"
CATALOG_SCHEMA = 1

# Numbers and truth as JSON has them: neither "20000000" nor true is a number, neither 1 nor "yes" is true.
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True)]
Truth = Annotated[bool, Field(strict=True)]
Protocol = Literal["hq-interop", "h3", "h2", "http/1.1"]
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")


class _CongestionControl(BaseModel):
    """`default`: empty where nobody knows. `options`: what `CCA` may ask for. `source`: who says so, when not we."""

    model_config = ConfigDict(extra="forbid")
    default: str
    options: list[str] = []
    implemented: list[str] = []
    hystart: Truth | None = None
    source: str = ""


class _InitialWindow(BaseModel):
    model_config = ConfigDict(extra="allow")
    packets: Whole | None = Field(default=None, gt=0)
    settable: Truth = False


class _Entry(BaseModel):
    """One implementation as its submitter writes it. Without `build`, its image is a published one that is pulled.

    `like`: the entry of the same image, whose fields this one has where it doesn't say otherwise: a stack that speaks
    QUIC and TCP has an entry for each, since they are different transports.

    `withdrawn`: the image is the last one known, and its registry may not have it any more; `note` says more.
    """

    model_config = ConfigDict(extra="forbid")
    like: str | None = None
    image: str = Field(min_length=1)
    build: str | None = None
    withdrawn: Truth = False
    note: str = ""
    url: str
    version: str = ""
    language: str = ""
    roles: list[Role] = Field(min_length=1)
    kind: Literal["stack", "downloader", "browser", "origin"] = "stack"
    speaks: list[Protocol] = Field(default=["hq-interop", "h3"], min_length=1)
    cases: dict[Role, list[str]] = {}
    congestion_controllers: _CongestionControl | None = None
    initial_window: _InitialWindow | None = None
    receive_window: dict[str, Any] = {}


def _knobs(texts: dict[str, str]) -> dict[str, str]:
    for name, text in texts.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"'{name}' is no variable: write capitals, digits and '_'")
        try:
            Knob.parse(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return texts


class _Middlebox(BaseModel):
    """One middlebox. `boxes`: where its image runs. `splits`: the boxes where TCP connections end; `splits_quic`:
    those where QUIC connections end; `carries`: what goes through it.

    `knobs`: variables that a variant may set, and what each takes (model/knob.py).
    """

    model_config = ConfigDict(extra="forbid")
    image: str = Field(min_length=1)
    build: str | None = None
    note: str = ""
    url: str = ""
    version: str = ""
    boxes: list[Box] = Field(default=list(BOXES), min_length=1)
    splits: list[Box] = []
    splits_quic: list[Box] = []
    carries: list[Literal["tcp", "udp"]] = Field(default=["tcp", "udp"], min_length=1)
    encrypts: Truth = False
    poses_as_server: Truth = False
    knobs: Annotated[dict[str, str], AfterValidator(_knobs)] = Field(default={}, description=f"such as {FORMS}")


_SHARED = ("image", "build", "url", "version", "language", "roles")  # by entries of one image


def _completed(entries: Any) -> Any:
    """The entries with what those have that are `like` another one of the file."""
    if not isinstance(entries, dict):
        return entries
    whole = {}
    for name, entry in entries.items():
        whole[name] = entry
        other = entry.get("like") if isinstance(entry, dict) else None
        if other is None:
            continue
        model = entries.get(other)
        if not isinstance(model, dict) or "like" in model:
            raise ValueError(f"{name} is like '{other}', which is no entry of this file with an image of its own")
        whole[name] = {field: model[field] for field in _SHARED if field in model} | entry
    return whole


class _File(BaseModel):
    """implementations.json."""

    model_config = ConfigDict(extra="forbid")
    schema_: Whole = Field(alias="schema", ge=1, le=CATALOG_SCHEMA)
    implementations: Annotated[dict[str, _Entry], BeforeValidator(_completed)] = Field(min_length=1)
    middleboxes: dict[str, _Middlebox] = {}


def implementations_schema() -> dict[str, Any]:
    """The JSON Schema of implementations.json."""
    return _File.model_json_schema(by_alias=True)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that a selection can name. `absent`: stacks that can't run on this host, and the sentence why."""

    implementations: dict[str, Implementation]
    cases: dict[str, Case]
    absent: Mapping[str, str] = field(default_factory=dict)
    middleboxes: Mapping[str, Middlebox] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Knob]] = field(default_factory=dict)  # of each middlebox: what a variant may set

    def select_implementations(
        self, names: Iterable[str], role: Role, kinds: Collection[str] = ("stack",)
    ) -> tuple[str, ...]:
        """The named stacks, in catalogue order; when none is named, all of these kinds that speak QUIC if they are
        stacks, and aren't absent.

        Raises UsageError with the choices for a name that isn't known, SetupError for one that is absent.
        """
        able = [name for name, entry in self.implementations.items() if role in entry.roles]
        chosen = named(names, able, what=role.value, option=f"--{role.value}")
        if split(names):
            for name in chosen:
                if name in self.absent:
                    raise SetupError(self.absent[name])
            return chosen
        entries = (self.implementations[name] for name in chosen if name not in self.absent)
        return tuple(one.name for one in entries if one.kind in kinds and not (one.kind == "stack" and one.is_over_tcp))

    def select_vias(self, names: Iterable[str]) -> tuple[str, ...]:
        """The named middleboxes, `none` as an empty name; no middlebox without names. Raises UsageError."""
        if not list(names):
            return ("",)
        found = named(names, [NO_VIA, *self.middleboxes], option="--via", what="middlebox")
        return tuple("" if name == NO_VIA else name for name in found)

    def select_cases(self, names: Iterable[str]) -> tuple[str, ...]:
        """The named cases, by name or abbreviation; without names, all that ask stacks over emulated links.

        Raises UsageError with the choices.
        """
        by_abbreviation = {case.abbreviation.lower(): name for name, case in self.cases.items()}
        given = [by_abbreviation.get(name.lower(), name) for name in split(names)]
        if not given:
            stacks = (case for case in self.cases.values() if case.client is ClientKind.STACK)
            return tuple(case.name for case in stacks if not case.is_real)
        return named(given, list(self.cases), what="case", option="--case")


def load_implementations(path: Path = IMPLEMENTATIONS) -> dict[str, Implementation]:
    """The entries by name, those that are built first. Raises UsageError naming file, field and what was expected."""
    entries = sorted(_read(path).implementations.items(), key=lambda item: item[1].build is None)
    return {name: _implementation(name, entry) for name, entry in entries}


def load_middleboxes(path: Path = IMPLEMENTATIONS) -> dict[str, Middlebox]:
    """The middleboxes by name. Raises UsageError as `load_implementations` does."""
    return {
        name: Middlebox(
            name=name,
            image=entry.image,
            url=entry.url,
            version=entry.version,
            build=entry.build,
            note=entry.note,
            boxes=tuple(entry.boxes),
            splits=tuple(entry.splits),
            splits_quic=tuple(entry.splits_quic),
            carries=tuple(entry.carries),
            encrypts=entry.encrypts,
            poses_as_server=entry.poses_as_server,
            knobs=tuple(entry.knobs),
        )
        for name, entry in _read(path).middleboxes.items()
    }


def load_knobs(path: Path = IMPLEMENTATIONS) -> dict[str, dict[str, Knob]]:
    """By middlebox and variable, what a variant may set. Raises UsageError as `load_implementations` does."""
    return {
        name: {knob: Knob.parse(text) for knob, text in entry.knobs.items()}
        for name, entry in _read(path).middleboxes.items()
    }


Document = TypeVar("Document", bound=BaseModel)
_RENAMED = {"alpn": "speaks"}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_FORMS = {
    "model_type": "write an object, { … }",
    "dataclass_type": "write an object, { … }",
    "dict_type": "write an object, { … }",
    "list_type": "write a list, [ … ]",
    "int_type": "write a whole number, without quotes",
    "int_parsing": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "float_parsing": "write a number, without quotes",
    "bool_type": "write true or false, without quotes",
    "string_type": 'write text, in quotes, "…"',
}


def read_as(schema: type[Document], path: Path, *, missing: str = "can't be read: no such file") -> Document:
    """A JSON file of this form. Raises UsageError with what is wrong; `missing` says it of a file that isn't there."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise UsageError(f"{path}: '{name}' stands {count} times in one object: keep one of them.")
        return dict(pairs)

    def number(text: str) -> float:
        """2e7 is 20000000: to JSON Schema, every number without a fraction is an integer."""
        value = float(text)
        return int(value) if value.is_integer() else value

    try:
        text = path.read_text("utf-8-sig")
        return schema.model_validate(json.loads(text, object_pairs_hook=unique, parse_float=number))
    except FileNotFoundError as error:
        raise UsageError(f"{path} {missing}.") from error
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        raise UsageError(f"{path}, {_mistake(error, schema)}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error


def _mistake(error: ValidationError, schema: type[BaseModel]) -> str:
    """One mistake of a file: the field, what it is, what was expected. A name that isn't known comes first: it may be
    the one that is missing."""
    first = min(error.errors(), key=lambda one: one["type"] not in _UNKNOWN)
    place, value = [str(part) for part in first["loc"]], first["input"]
    field = f"field '{'.'.join(place) or 'the whole file'}'"
    around = _properties(schema, place[:-1])
    if first["type"] in _UNKNOWN:
        known = list(around)
        near = _RENAMED.get(place[-1]) or next(iter(get_close_matches(place[-1], known, n=1)), None)
        return f"{field} is not known: " + (f"did you mean {near}?" if near else f"there are {', '.join(known)}.")
    if first["type"] == "missing":
        return f"{field} is missing."
    expected = _FORMS.get(first["type"], first["msg"].removeprefix("Value error, "))
    unit = around.get(place[-1], {}).get("description") if place else None
    found = "" if isinstance(value, dict | list) else f" is {json.dumps(value)}"
    return f"{field}{found}: {expected}{f' ({unit})' if unit else ''}."


def _properties(schema: type[BaseModel], place: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema of each field of the object at `place` of a file."""
    form = schema.model_json_schema(by_alias=True)
    node: dict[str, Any] = form
    for part in place:
        node = node.get("properties", {}).get(part) or node.get("items") or node.get("additionalProperties") or {}
        node = node.get("anyOf", [node])[0]  # or null
        if reference := node.get("$ref"):
            node = form["$defs"][reference.rpartition("/")[2]]
    return dict(node.get("properties", {}))


def _read(path: Path) -> _File:
    """The stacks and middleboxes of the file, and those of implementations.json that it doesn't name itself."""
    file = read_as(_File, path)
    if path.resolve() != IMPLEMENTATIONS:
        own = read_as(_File, IMPLEMENTATIONS)
        file.implementations = {**own.implementations, **file.implementations}
        file.middleboxes = {**own.middleboxes, **file.middleboxes}
    for name in (*file.implementations, *file.middleboxes):
        if not name or set(name) & set("_/ @") or name.startswith("."):
            raise UsageError(f"{path}: '{name}' can't be a name: folders carry it, so no '_', '/', '@' or blank.")
    for name in file.middleboxes:
        if name == NO_VIA:
            raise UsageError(f"{path}: middleboxes.{name}: `--via {NO_VIA}` means no middlebox; take another name.")
    return file


def _implementation(name: str, entry: _Entry) -> Implementation:
    control, window = entry.congestion_controllers, entry.initial_window
    return Implementation(
        name=name,
        image=entry.image,
        build=entry.build,
        withdrawn=entry.withdrawn,
        note=entry.note,
        url=entry.url,
        version=entry.version,
        language=entry.language,
        roles=tuple(entry.roles),
        kind=entry.kind,
        speaks=tuple(entry.speaks),
        cases={role: tuple(names) for role, names in entry.cases.items()},
        congestion_control=control.default if control else "",
        congestion_controls=tuple(control.options) if control else (),
        congestion_implemented=tuple(control.implemented) if control else (),
        congestion_source=control.source if control else "",
        hystart=control.hystart if control else None,
        initial_window=window.packets if window else None,
        initial_window_settable=window.settable if window else False,
    )


def load_cases() -> dict[str, Case]:
    """Every module of `testcases` that has a CASE: test cases first, then measurements; short links and files first."""
    modules = [importlib.import_module(f"testcases.{info.name}") for info in pkgutil.iter_modules(testcases.__path__)]
    cases = [module.CASE for module in modules if hasattr(module, "CASE")]
    cases.sort(
        key=lambda case: (
            case.client is not ClientKind.STACK,
            case.kind is Kind.MEASUREMENT,
            case.link.rtt,
            case.timeout,
            sum(case.files),
            case.name,
        )
    )
    return {case.name: case for case in cases}


def load_catalog(path: Path = IMPLEMENTATIONS) -> Catalog:
    """implementations.json and all cases."""
    return Catalog(
        implementations=load_implementations(path),
        cases=load_cases(),
        middleboxes=load_middleboxes(path),
        knobs=load_knobs(path),
    )
