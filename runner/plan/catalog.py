"""The catalogue of stacks, middleboxes and cases: implementations.json and the modules of `testcases`, validated;
variants of stacks and middleboxes (`--variant STACK:NAME=VALUE,…`)."""

import importlib
import json
import math
import pkgutil
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import testcases
from runner.errors import SetupError, UsageError
from runner.model.link import RealLink
from runner.model.run import CaseRecord, ClientKind, Kind, Run, name_problem
from runner.model.stack import (
    BOXES,
    FLOWS_OVER_TCP,
    FORMS,
    NO_VIA,
    PARAMETERS,
    Box,
    Implementation,
    Knob,
    Middlebox,
    Role,
    Variant,
    same_fields,
)
from runner.paths import IMPLEMENTATIONS, ROOT
from runner.units import UNPRINTABLE
from testcases.base import Case

# Resolves names and values of options. Error messages list the choices.


def split(names: Iterable[str]) -> list[str]:
    """The single names of an option that is written as `--x a --x b` or `--x a,b`."""
    return [part.strip() for name in names for part in name.split(",") if part.strip()]


def named(texts: Iterable[str], choices: Sequence[str], *, option: str, kind: str) -> tuple[str, ...]:
    """The named choices, in the order of `choices`; all choices when there is no name. Raises UsageError with the
    choices."""
    texts = list(texts)
    requested = split(texts)
    if texts and not requested:
        raise UsageError(f"{option} names no {kind}. Choices: {', '.join(choices)}.")
    for name in requested:
        if name not in choices:
            near = get_close_matches(name, choices, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"{option}: there is no {kind} '{name}'.{hint} Choices: {', '.join(choices)}.")
    return tuple(name for name in choices if not requested or name in requested)


CATALOG_SCHEMA = 1

Protocol = Literal["hq-interop", "h3", "h2", "http/1.1"]
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
# Variables of a middlebox that only bentpipe sets (implementations/_middlebox), and those of the dynamic linker.
_OWN_VARIABLES = re.compile(
    r"LD_\w+|PATH|ROLE|SSLKEYLOGFILE|QLOGDIR|LINK_PORT|(TERMINAL|GATEWAY|CLIENT|SERVER)_\w+|DOCKER_\w+"
)
_LARGEST_FILE = 4 << 20  # bytes
_LONGEST = 80  # characters of a wrong value that a message shows
# A name of an image (distribution/reference): registry and folders, then a tag or a digest.
_IMAGE = re.compile(
    r"(?P<name>[a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(?P<tag>:[\w][\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_SHIPPED = ROOT / "implementations"  # files of the project itself
_OWN_IMAGES = "bentpipe/"
_HUB = re.compile(r"((index|registry-1)\.)?docker\.io/(library/)?")  # the registry of names without a registry


class _CongestionControl(BaseModel):
    """The congestion controllers of a stack. `default`: empty when unknown. `options`: the allowed values of `CCA`.
    `source`: the source of these facts; empty when this project found them."""

    model_config = ConfigDict(extra="forbid")
    default: str
    options: list[str] = []
    implemented: list[str] = []
    hystart: bool | None = None
    source: str = ""


class _InitialWindow(BaseModel):
    model_config = ConfigDict(extra="allow")
    packets: int | None = Field(default=None, gt=0)
    settable: bool = False


class _Entry(BaseModel):
    """One implementation as its submitter writes it. Without `build`, its image is published and is pulled.

    `like`: another entry with the same image. Fields that this entry lacks are taken from that entry (see `_SHARED`).
    For example, a stack that speaks QUIC and TCP has one entry for each transport. `withdrawn`: the image is the last
    known image, and its registry may no longer have it; `note` explains this. `real_time`: the roles whose verdicts
    differ in virtual time; `--clock auto` runs their jobs in real time.
    """

    model_config = ConfigDict(extra="forbid")
    like: str | None = None
    image: str = Field(min_length=1)
    build: str | None = None
    withdrawn: bool = False
    note: str = ""
    real_time: list[Role] = []
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
            raise ValueError(f"'{name}' is not the name of a variable: write capitals, digits and '_'")
        if _OWN_VARIABLES.fullmatch(name):
            raise ValueError(f"'{name}' is set by bentpipe or read by the dynamic linker: take another name")
        try:
            Knob.parse(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return texts


class _Middlebox(BaseModel):
    """One middlebox. `boxes`: the boxes where its image runs. `splits`: the boxes where TCP connections end.
    `splits_quic`: the boxes where QUIC connections end. `carries`: the transports that the middlebox handles.
    `link_port`: between each other, its boxes use only one UDP port of the gateway, so that they work at the ends of a
    real link. `knobs`: the variables that a variant may set, with their allowed values (model/stack.py).
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
    encrypts: bool = False
    link_port: bool = False
    poses_as_server: bool = False
    knobs: Annotated[dict[str, str], AfterValidator(_knobs)] = Field(default={}, description=f"such as {FORMS}")


_SHARED = ("image", "build", "url", "version", "language", "roles")  # fields that an entry takes from `like`


def _completed(entries: Any) -> Any:
    """The entries. An entry with `like` also has the shared fields of the entry that `like` names."""
    if not isinstance(entries, dict):
        return entries
    whole = {}
    for name, entry in entries.items():
        whole[name] = entry
        base = entry.get("like") if isinstance(entry, dict) else None
        if base is None:
            continue
        model = entries.get(base)
        if not isinstance(model, dict) or "like" in model:
            raise ValueError(f"{name} is like '{base}', which is not an entry of this file with its own image")
        whole[name] = {field: model[field] for field in _SHARED if field in model} | entry
    return whole


class _File(BaseModel):
    """The content of implementations.json."""

    model_config = ConfigDict(extra="forbid")
    schema_: int = Field(alias="schema", ge=1, le=CATALOG_SCHEMA)
    implementations: Annotated[dict[str, _Entry], BeforeValidator(_completed)] = Field(min_length=1)
    middleboxes: dict[str, _Middlebox] = {}


def implementations_schema() -> dict[str, Any]:
    """The JSON Schema of implementations.json."""
    return _File.model_json_schema(by_alias=True)


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that a selection can name. `absent`: stacks that can't run on this host, each with a sentence about
    the reason."""

    implementations: dict[str, Implementation]
    cases: dict[str, Case]
    absent: Mapping[str, str] = field(default_factory=dict)
    middleboxes: Mapping[str, Middlebox] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Knob]] = field(default_factory=dict)  # by middlebox: variables of variants

    def select_implementations(
        self, names: Iterable[str], role: Role, kinds: Collection[str] = ("stack",)
    ) -> tuple[str, ...]:
        """The named implementations, in the order of the catalogue. Without names: all implementations of these kinds
        that aren't absent, but no stacks that speak only over TCP. Raises UsageError with the choices for an unknown
        name, and SetupError for an absent stack.
        """
        able = [name for name, entry in self.implementations.items() if role in entry.roles]
        chosen = named(names, able, kind=role.value, option=f"--{role.value}")
        if split(names):
            for name in chosen:
                if name in self.absent:
                    raise SetupError(self.absent[name])
            return chosen
        entries = (self.implementations[name] for name in chosen if name not in self.absent)
        return tuple(
            entry.name for entry in entries if entry.kind in kinds and not (entry.kind == "stack" and entry.is_over_tcp)
        )

    def select_vias(self, names: Iterable[str]) -> tuple[str, ...]:
        """The named middleboxes; `none` becomes an empty name. Without names, the result has only the empty name.
        Raises UsageError."""
        if not list(names):
            return ("",)
        chosen = named(names, [NO_VIA, *self.middleboxes], option="--via", kind="middlebox")
        return tuple("" if name == NO_VIA else name for name in chosen)

    def select_besides(self, names: Iterable[str]) -> tuple[str, ...]:
        """The named second flows; `none` becomes an empty name. Without names, the result is empty. Raises UsageError
        with the choices."""
        if not list(names):
            return ()
        stacks = [name for name, stack in self.implementations.items() if stack.is_a_pair]
        chosen = named(names, [NO_VIA, *FLOWS_OVER_TCP, *stacks], option="--beside", kind="flow")
        return tuple("" if name == NO_VIA else name for name in chosen)

    def select_cases(self, names: Iterable[str]) -> tuple[str, ...]:
        """The cases that are named by name or abbreviation. Without names: all cases for stacks, except cases that must
        be named (`Case.needs_a_name`). Raises UsageError with the choices.
        """
        by_abbreviation = {case.abbreviation.lower(): name for name, case in self.cases.items()}
        requested = [by_abbreviation.get(name.lower(), name) for name in split(names)]
        if not requested:
            stacks = (case for case in self.cases.values() if case.client is ClientKind.STACK)
            return tuple(case.name for case in stacks if not case.needs_a_name)
        return named(requested, list(self.cases), kind="case", option="--case")


def load_implementations(path: Path = IMPLEMENTATIONS) -> dict[str, Implementation]:
    """The entries by name. Entries whose image is built come first. Raises UsageError with the file, the field and the
    expected value."""
    entries = sorted(_read(path).implementations.items(), key=lambda item: item[1].build is None)
    return {name: _implementation(name, entry) for name, entry in entries}


def load_middleboxes(path: Path = IMPLEMENTATIONS) -> dict[str, Middlebox]:
    """The middleboxes by name. Raises UsageError as `load_implementations` does."""
    return {
        name: Middlebox(**(same_fields(Middlebox, entry) | {"name": name, "knobs": tuple(entry.knobs)}))
        for name, entry in _read(path).middleboxes.items()
    }


def load_knobs(path: Path = IMPLEMENTATIONS) -> dict[str, dict[str, Knob]]:
    """The values that a variant may set, by middlebox and variable. Raises UsageError as `load_implementations`
    does."""
    return {
        name: {knob: Knob.parse(text) for knob, text in entry.knobs.items()}
        for name, entry in _read(path).middleboxes.items()
    }


Document = TypeVar("Document", bound=BaseModel)
_RENAMED = {"alpn": "speaks"}
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_FORMS = {
    "object": "write an object, { … }",
    "array": "write a list, [ … ]",
    "integer": "write a whole number, without quotes",
    "number": "write a number, without quotes",
    "boolean": "write true or false, without quotes",
    "string": 'write text, in quotes, "…"',
}
"""Type of JSON Schema → what a person is told to write."""
_MISTAKES = {
    **dict.fromkeys(("model_type", "dataclass_type", "dataclass_exact_type", "dict_type"), _FORMS["object"]),
    **dict.fromkeys(("list_type", "tuple_type"), _FORMS["array"]),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _FORMS["integer"]),
    **dict.fromkeys(("float_type", "float_parsing"), _FORMS["number"]),
    "bool_type": _FORMS["boolean"],
    "string_type": _FORMS["string"],
    **dict.fromkeys(("literal_error", "enum"), "write %(expected)s"),
    "greater_than": "write a number above %(gt)s",
    "greater_than_equal": "write a number of at least %(ge)s",
    "less_than": "write a number below %(lt)s",
    "less_than_equal": "write a number of at most %(le)s",
    "too_short": "write at least %(min_length)s of them",
    "too_long": "write at most %(max_length)s of them",
}
"""Kind of a mistake, as pydantic calls it → what a person is told to write."""


def read_as(schema: type[Document], path: Path, *, missing: str = "can't be read: no such file") -> Document:
    """Read a JSON file with this schema. Raises UsageError with the mistake. `missing`: the message for a missing
    file."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise UsageError(f"{path}: '{name}' appears {count} times in one object: keep one of them.")
        return dict(pairs)

    def number(text: str) -> float:
        """The number of a JSON text. 2e7 becomes the integer 20000000, because in JSON Schema every number without a
        fraction is an integer."""
        value = float(text)
        return int(value) if value.is_integer() else value

    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        if len(content) > _LARGEST_FILE:
            raise UsageError(f"{path} is larger than {_LARGEST_FILE >> 20} MiB: it is not a file of this kind.")
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=unique, parse_float=number)
        _require_plain(path, value)
        # Strict: "20000000" and true are no numbers, 1 and "yes" are no booleans; a list of JSON may be a tuple.
        return schema.model_validate_json(json.dumps(value), strict=True)
    except FileNotFoundError as error:
        raise UsageError(f"{path} {missing}.") from error
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    except ValidationError as error:
        raise UsageError(f"{path}, {_mistake(error, schema)}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error


def _require_plain(path: Path, value: Any, place: tuple[str | int, ...] = ()) -> None:
    """Raise UsageError for a text or a name that a terminal or a page would not show as it is: with control characters,
    with characters that reverse the direction of text, or with half a character; and for a number without a value."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{path}, {_field(place)} is {json.dumps(value)}: write a finite number.")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UsageError(f"{path}, {_field(place)} is {_shown(value)}: write a number with at most 18 digits.")
    if isinstance(value, str) and (match := UNPRINTABLE.search(value)):
        raise UsageError(
            f"{path}, {_field(place)} has the character U+{ord(match[0]):04X}, which is not shown: remove it."
        )
    if isinstance(value, dict):
        for name, part in value.items():
            if match := UNPRINTABLE.search(name):
                raise UsageError(
                    f"{path}, {_field(place)}: a name has the character U+{ord(match[0]):04X}, which is not shown: "
                    "remove it."
                )
            _require_plain(path, part, (*place, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _require_plain(path, part, (*place, index))


def _field(place: Sequence[str | int]) -> str:
    """What a message calls a place of a file: `field 'runs[0].name'`, or the file itself."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place if part != "[key]")
    return f"field '{''.join(parts).removeprefix('.')}'" if place else "the file"


def _shown(value: Any) -> str:
    """A wrong value as it is in the file; the beginning of a long value."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _mistake(error: ValidationError, schema: type[BaseModel]) -> str:
    """One mistake of a file: the field, its value and the expected value. An unknown field is reported first, because
    it may be a misspelling of a missing field."""
    first = min(error.errors(), key=lambda problem: problem["type"] not in _UNKNOWN)
    kind, place, value = first["type"], first["loc"], first["input"]
    field = _field(place)
    around = _properties(schema, [str(part) for part in place[:-1]])
    if kind in _UNKNOWN:
        name, known = str(place[-1]), list(around)
        near = _RENAMED.get(name) or next(iter(get_close_matches(name, known, n=1)), None)
        return f"{field} is not known: " + (f"did you mean {near}?" if near else f"there are {', '.join(known)}.")
    form = around.get(str(place[-1]), {}) if place else {}
    if kind == "missing":
        actual, expected = " is missing", _FORMS.get(form.get("type", ""), "add it")
    else:
        actual = "" if isinstance(value, dict | list) else f" is {_shown(value)}"
        expected = _MISTAKES.get(kind, "") % first.get("ctx", {}) or first["msg"].removeprefix("Value error, ")
    unit = form.get("description")
    return f"{field}{actual}: {expected}{f' ({unit})' if unit else ''}."


def _properties(schema: type[BaseModel], place: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema of each field of the object at `place` of a file."""
    form = schema.model_json_schema(by_alias=True)
    node: dict[str, Any] = form
    for part in place:
        node = node.get("properties", {}).get(part) or node.get("items") or node.get("additionalProperties") or {}
        node = node.get("anyOf", [node])[0]  # the second choice is null
        if reference := node.get("$ref"):
            node = form["$defs"][reference.rpartition("/")[2]]
    return dict(node.get("properties", {}))


def _read(path: Path) -> _File:
    """The stacks and middleboxes of the file. Stacks and middleboxes of implementations.json that the file doesn't
    define are added. Such a file may be a stranger's: its entries must not replace images of this project, and only
    folders beside it are built."""
    file = read_as(_File, path)
    if path.resolve() != IMPLEMENTATIONS:
        shipped = read_as(_File, IMPLEMENTATIONS)
        shipped_entries: list[_Entry | _Middlebox] = [*shipped.implementations.values(), *shipped.middleboxes.values()]
        ours = {(entry.image, entry.build) for entry in shipped_entries}
        for section in ("implementations", "middleboxes"):
            for name, entry in getattr(file, section).items():
                if (entry.image, entry.build) not in ours and not path.resolve().is_relative_to(_SHIPPED):
                    _bound(f"{path}, {section}.{name}", path, entry, {image for image, _ in ours})
        file.implementations = {**shipped.implementations, **file.implementations}
        file.middleboxes = {**shipped.middleboxes, **file.middleboxes}
    for name in (*file.implementations, *file.middleboxes):
        if name_problem(name) or set(name) & set("_/ @"):
            raise UsageError(
                f"{path}: '{name}' can't be a name, because folders are called after it: use no '_', '/', '@' or blank."
            )
    for name in file.middleboxes:
        if name == NO_VIA:
            raise UsageError(f"{path}: middleboxes.{name}: `--via {NO_VIA}` means no middlebox; take another name.")
    return file


def _bound(where: str, path: Path, entry: _Entry | _Middlebox, ours: Collection[str]) -> None:
    """Raise UsageError when an entry of a stranger's file names an image of this project that it must not have, or a
    folder outside of the file's own folder. The folder becomes an absolute path."""
    match = _IMAGE.fullmatch(entry.image)
    if match is None:
        raise UsageError(
            f"{where}: image '{entry.image}' is not the name of an image: write OWNER/NAME or OWNER/NAME:TAG."
        )
    plain = _HUB.sub("", entry.image.lower(), count=1) if _HUB.match(entry.image.lower()) else entry.image.lower()
    if plain.startswith(_OWN_IMAGES) and (entry.build is not None or entry.image not in ours):
        raise UsageError(
            f"{where}: image '{entry.image}': names with {_OWN_IMAGES} belong to the images of bentpipe itself: "
            "take another name, such as example/quic."
        )
    if entry.build is None:
        return
    if match["digest"]:
        raise UsageError(
            f"{where}: an image that is built has no digest: remove '{match['digest']}' from '{entry.image}'."
        )
    own = path.resolve().parent
    folder = (own / entry.build).resolve()
    if not folder.is_dir() and (ROOT / entry.build).is_dir():
        folder = (ROOT / entry.build).resolve()
    if not (folder.is_relative_to(own) or folder.is_relative_to(_SHIPPED)):
        raise UsageError(
            f"{where}: build '{entry.build}' leads to {folder}: only folders in {own}, the folder of the file, and in "
            f"{_SHIPPED} are built."
        )
    entry.build = str(folder)


def _implementation(name: str, entry: _Entry) -> Implementation:
    control, window = entry.congestion_controllers, entry.initial_window
    shared = same_fields(Implementation, entry) | {
        "name": name,
        "cases": {role: tuple(names) for role, names in entry.cases.items()},
        "initial_window": window.packets if window else None,
    }
    return Implementation(
        **shared,
        congestion_control=control.default if control else "",
        congestion_controls=tuple(control.options) if control else (),
        congestion_implemented=tuple(control.implemented) if control else (),
        congestion_source=control.source if control else "",
        hystart=control.hystart if control else None,
        initial_window_settable=window.settable if window else False,
    )


def load_cases() -> dict[str, Case]:
    """The cases of all modules of `testcases`: cases for stacks before cases for other clients, and test cases before
    measurements. In each group, cases with a short RTT, a short time-out and small files come first."""
    modules = [importlib.import_module(f"testcases.{info.name}") for info in pkgutil.iter_modules(testcases.__path__)]
    cases = [module.CASE for module in modules if hasattr(module, "CASE")]
    cases += [case for module in modules for case in getattr(module, "CASES", ())]
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
    """The catalogue from implementations.json and from all cases."""
    return Catalog(
        implementations=load_implementations(path),
        cases=load_cases(),
        middleboxes=load_middleboxes(path),
        knobs=load_knobs(path),
    )


# The user's selection: servers, clients, middleboxes, cases over their links, numbers of iterations.


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The jobs that one call selects. Names are names of `catalog`. `cases` and `iterations` are by name of the record,
    `<case>[@link]`. `real`: the real links of the jobs. `doubts`: warnings for the user."""

    catalog: Catalog
    servers: tuple[str, ...]
    clients: tuple[str, ...]
    vias: tuple[str, ...] = ("",)  # an empty name: no middlebox
    cases: Mapping[str, CaseRecord]
    iterations: Mapping[str, int]
    real: tuple[RealLink, ...] = ()
    timeout_scale: float = 1.0
    doubts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        catalog: Catalog,
        *,
        servers: tuple[str, ...],
        clients: tuple[str, ...],
        cases: Iterable[str],
        iterations: int | None = None,
    ) -> "Selection":
        """Declared cases over their own links. `iterations`: as in `iterations_of`."""
        records = {name: catalog.cases[name].record() for name in cases}
        counts = {name: iterations_of(record, iterations) for name, record in records.items()}
        return cls(catalog=catalog, servers=servers, clients=clients, cases=records, iterations=counts)


def iterations_of(case: CaseRecord, requested: int | None, stored: int | None = None) -> int:
    """The number of iterations of a case. A case that declares one iteration has one. Other cases have the requested
    number; without it, the number of the stored run; without both, the declared number."""
    return 1 if case.iterations == 1 else requested or stored or case.iterations


_NUMBERS = {"IW": Knob.parse("1..10000 packets"), "ACK_FREQUENCY": Knob.parse("1..1000 ack-eliciting packets")}
_FREE = ("CLIENT_PARAMS", "SERVER_PARAMS")
_BOX_EXAMPLE = "write NAME:KNOB=VALUE,… such as pep-split:CCA=bbr,IW=100"
_EXAMPLE = "write STACK:NAME=VALUE,… such as quinn:CCA=bbr,IW=32"


def requested_variants(texts: Iterable[str], selection: Selection) -> tuple[tuple[Variant, ...], dict[str, Middlebox]]:
    """Parse the values of `--variant`: the variants of stacks, and the variants of middleboxes by name, without
    repetitions. When a stack and a middlebox have the same name, the variant is made of the one that is selected.
    Raises UsageError when both are selected, and for a parameter that a stack or middlebox lacks.
    """
    catalog = selection.catalog
    stacks: dict[Variant, None] = {}
    boxes: dict[str, Middlebox] = {}
    for text in (variant for argument in texts for variant in sweep(argument)):
        name = text.partition(":")[0]
        as_box, as_stack = name in selection.vias, name in (*selection.servers, *selection.clients)
        if as_box and as_stack:
            raise _wrong(text, f"{name} is selected as a stack and with --via: run them in two calls.")
        if as_box or (name in catalog.middleboxes and name not in catalog.implementations):
            if not as_box:
                raise _wrong(text, f"{name} is not selected: add it to --via.")
            box = middlebox_variant(text, catalog)
            boxes[box.name] = box
        else:
            stacks[parse(text, catalog.implementations)] = None
    return tuple(stacks), boxes


def middlebox_variant(text: str, catalog: Catalog) -> Middlebox:
    """The variant of a middlebox that `NAME:KNOB=VALUE,…` describes. Raises UsageError for a knob that the middlebox
    lacks."""
    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise _wrong(text, f"{_BOX_EXAMPLE}.")
    knobs = catalog.knobs[name]
    values = assignments(text, rest, knobs, unknown=f"{name} has no knob", example=_BOX_EXAMPLE)
    ordered = {knob: taken(text, knob, knobs[knob], values[knob]) for knob in knobs if knob in values}
    suffix = "+".join(f"{knob.lower().replace('_', '-')}={value}" for knob, value in ordered.items())
    return replace(catalog.middleboxes[name], name=f"{name}+{suffix}", variant_of=name, parameters=ordered)


def sweep(text: str) -> list[str]:
    """One text for each combination of the values that are separated by slashes: `qpep:IW=10/32,CCA=bbr` makes two
    variants. In free text and in quoted values, slashes are normal characters.
    """
    stack, colon, rest = text.partition(":")
    choices = []
    for part in split_values(text, rest):
        name, equals, value = part.partition("=")
        plain = name.strip().upper() in _FREE or '"' in value
        choices.append([part] if plain else [f"{name}{equals}{alternative}" for alternative in value.split("/")])
    return [f"{stack}{colon}{','.join(chosen)}" for chosen in product(*choices)]


def parse(text: str, stacks: Mapping[str, Implementation]) -> Variant:
    """Parse one variant of a stack. Raises UsageError, with the choices, for an unknown stack, parameter or value.

    A value with a comma, with a quote, or with spaces at its beginning or end must be in double quotes. Inside the
    quotes, the character after a backslash has no special meaning.
    """
    stack, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise _wrong(text, f"{_EXAMPLE}.")
    if stack not in stacks:
        raise _wrong(text, f"there is no stack '{stack}'.{_choices(stack, stacks)}")
    values = assignments(text, rest, PARAMETERS, unknown="there is no parameter", example=_EXAMPLE)
    parameters = {name: _checked(text, stacks[stack], name, value) for name, value in values.items()}
    return Variant.of(stack, parameters)


def assignments(text: str, rest: str, names: Collection[str], *, unknown: str, example: str) -> dict[str, str]:
    """The values by name from `NAME=VALUE,…`, which is the part `rest` of a variant's `text`. Raises UsageError for a
    name that is repeated or has no value, and, with the text `unknown`, for a name that isn't in `names`.
    """
    parameters: dict[str, str] = {}
    for part in split_values(text, rest):
        key, _, value = part.partition("=")
        name = key.strip().upper()
        if name not in names:
            raise _wrong(text, f"{unknown} '{key.strip()}'.{_choices(name, names)}")
        if name in parameters:
            raise _wrong(text, f"{name} is given twice.")
        parameters[name] = unquote(value.strip())
        if not parameters[name]:
            raise _wrong(text, f"{name} has no value: {example}.")
    return parameters


def taken(text: str, name: str, knob: Knob, value: str) -> str:
    """`value` in the form that the image gets. Raises UsageError, with the allowed values, when it isn't allowed."""
    plain = knob.read(value)
    if plain is None:
        raise _wrong(text, f"{name} is {knob}, not '{value}'.")
    return plain


def _wrong(text: str, sentence: str) -> UsageError:
    return UsageError(f"--variant {text}: {sentence}")


def _choices(name: str, choices: Iterable[str]) -> str:
    names = list(choices)
    near = get_close_matches(name, names, n=1)
    return (f" Did you mean {near[0]}?" if near else "") + f" Choices: {', '.join(names) or 'none'}."


def split_values(text: str, rest: str) -> list[str]:
    """The parts of `rest` between commas. Commas inside double quotes don't separate parts."""
    parts, quoted, escaped = [""], False, False
    for character in rest:
        if escaped or character != "," or quoted:
            parts[-1] += character
        else:
            parts.append("")
        if escaped:
            escaped = False
        elif character == '"':
            quoted = not quoted
        elif character == "\\" and quoted:
            escaped = True
    if quoted:
        raise _wrong(text, "a double quote is not closed.")
    return parts


def unquote(value: str) -> str:
    """The text inside double quotes; a value without quotes stays unchanged."""
    if not (len(value) >= 2 and value[0] == value[-1] == '"'):
        return value
    plain, escaped = "", False
    for character in value[1:-1]:
        escaped = character == "\\" and not escaped
        plain += "" if escaped else character
    return plain


def _checked(text: str, stack: Implementation, name: str, value: str) -> str:
    if not value.isprintable():
        raise _wrong(text, f"{name} contains a character that can't be printed.")
    if name == "CCA" and stack.congestion_controls and value not in stack.congestion_controls:
        choices = _choices(value, stack.congestion_controls)
        raise _wrong(text, f"{stack.name} has no congestion controller '{value}' that can be set.{choices}")
    if name in _NUMBERS:
        return taken(text, name, _NUMBERS[name], value)
    return value


def doubts(variant: Variant, stack: Implementation) -> list[str]:
    """Reasons to doubt that the variant works, one sentence for each reason. The variant is not refused."""
    parameters = dict(variant.parameters)
    sentences = []
    if "IW" in parameters and not stack.initial_window_settable:
        sentences.append(f"{stack.name} does not declare that its initial window can be set")
    if "CCA" in parameters and not stack.congestion_controls:
        sentences.append(f"{stack.name} does not declare which congestion controllers can be set")
    return [f"{variant.name}: {sentence}; results say what was applied." for sentence in sentences]


def with_requested(selection: Selection, variants: Iterable[Variant], boxes: Mapping[str, Middlebox]) -> Selection:
    """The selection with each variant of a middlebox after the middlebox, and each variant of a stack after the stack.

    A variant of a stack gets the roles in which its stack is selected and in which the variant differs from the stack.
    Raises UsageError for a variant that has no such role.
    """
    catalog = selection.catalog
    middleboxes = {**catalog.middleboxes, **boxes}
    families = [via for via in selection.vias if not via or not middleboxes[via].variant_of]
    members = dict.fromkeys((*selection.vias, *boxes))
    vias = [
        member
        for base in families
        for member in members
        if member == base or (member and middleboxes[member].variant_of == base)
    ]
    catalog = replace(catalog, middleboxes=middleboxes)
    selection = replace(selection, vias=tuple(dict.fromkeys((*vias, *members))))
    for variant in variants:
        selected = {Role.SERVER: selection.servers, Role.CLIENT: selection.clients}
        roles = tuple(role for role in variant.roles if variant.stack in selected[role])
        if not roles:
            needed = " or ".join(role.value for role in variant.roles)
            raise UsageError(
                f"--variant {variant.name}: {variant.stack} is not selected as {needed}: add it there, or leave the "
                "variant out."
            )
        catalog = with_variant(catalog, variant, roles)
        selection = replace(
            selection,
            servers=_with_variant(selection.servers, variant) if Role.SERVER in roles else selection.servers,
            clients=_with_variant(selection.clients, variant) if Role.CLIENT in roles else selection.clients,
        )
    return replace(selection, catalog=catalog)


def _with_variant(names: tuple[str, ...], variant: Variant) -> tuple[str, ...]:
    """The names with the variant's name after its stack and after the other variants of that stack."""
    if variant.name in names:
        return names
    stem = re.compile(rf"{re.escape(variant.stack)}(\+[a-z-]+=.*)?")  # a stack's own name may contain a plus
    family = [at for at, name in enumerate(names) if stem.fullmatch(name)]
    return (*names[: family[-1] + 1], variant.name, *names[family[-1] + 1 :])


def with_variant(catalog: Catalog, variant: Variant, roles: tuple[Role, ...]) -> Catalog:
    """The catalogue with an entry for the variant, which has the image of its stack and other parameters."""
    before = catalog.implementations.get(variant.name)
    entry = replace(
        catalog.implementations[variant.stack],
        name=variant.name,
        roles=tuple(role for role in Role if role in roles or (before and role in before.roles)),
        variant_of=variant.stack,
        parameters=dict(variant.parameters),
    )
    others = {name: stack for name, stack in catalog.implementations.items() if name != variant.name}
    order = _with_variant(tuple(others), variant)
    return replace(catalog, implementations={name: others.get(name, entry) for name in order})


def with_variants_of(catalog: Catalog, run: Run) -> Catalog:
    """The catalogue with the variants of a run, so that users need not name them again to resume the run."""
    boxes = {name: box for name, box in run.middleboxes.items() if box.variant_of in catalog.middleboxes}
    catalog = replace(catalog, middleboxes={**catalog.middleboxes, **boxes})
    for record in run.implementations.values():
        if record.variant_of in catalog.implementations:
            variant = Variant.of(record.variant_of, record.parameters)
            named = {Role.SERVER: run.servers, Role.CLIENT: run.clients}
            catalog = with_variant(catalog, variant, tuple(role for role in Role if record.name in named[role]))
    return catalog
