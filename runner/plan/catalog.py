"""The catalogue of stacks, middleboxes and cases: implementations.json and the modules of `testcases`, validated."""

import importlib
import json
import math
import pkgutil
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

import testcases
from runner.errors import UsageError, did_you_mean
from runner.files import field_name, not_json, shown_value, wrong_field
from runner.images import images
from runner.images.pulling import SavedImages
from runner.model.link import LinkRecord, RealLink
from runner.model.run import CaseRecord, ClientKind, Kind, name_problem
from runner.model.stack import (
    BOXES,
    NO_VIA,
    Box,
    Implementation,
    Middlebox,
    Role,
    same_fields,
)
from runner.paths import IMPLEMENTATIONS, ROOT
from runner.units import UNPRINTABLE
from testcases.base import Case
from testcases.measurements import measurement

CATALOG_SCHEMA = 1

Protocol = Literal["hq-interop", "h3", "h2", "http/1.1"]
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
# Variables of a middlebox that only bentpipe sets (implementations/_middlebox), and those of the dynamic linker.
_OWN_VARIABLES = re.compile(
    r"LD_\w+|PATH|ROLE|SSLKEYLOGFILE|QLOGDIR|LINK_PORT|(TERMINAL|GATEWAY|CLIENT|SERVER)_\w+|DOCKER_\w+"
)
_LARGEST_FILE = 4 << 20  # bytes
# A name of an image (distribution/reference): registry and folders, then a tag or a digest.
_IMAGE = re.compile(
    r"(?P<name>[a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)"
    r"(?P<tag>:[\w][\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_SHIPPED = ROOT / "implementations"  # files of the project itself
_OWN_IMAGES = "bentpipe/"
_HUB = re.compile(r"((index|registry-1)\.)?docker\.io/(library/)?")  # the registry of names without a registry


# The values that a variable of a variant accepts. They are written as a text such as `cubic|newreno`,
# `1..10000 packets` or `5s..1h`.

FORMS = "cubic|newreno, 1..10000 packets, 0|1200..1452 bytes, 5s..1h"  # an example of each kind
_WORD = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_RANGE = re.compile(
    r"(?P<low>[0-9]+(?P<time>ms|s|m|h)?)\.\.(?P<high>[0-9]+(?(time)(ms|s|m|h)))( (?P<unit>[a-z][a-z -]*))?"
)
_WHOLE = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"([0-9]{1,9})|([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Knob:
    """The allowed values: one of `words`, or a whole number or time from `low` to `high`. A time is written as `25ms`,
    `8s`, `1.5m` or `1h`; a time without a unit is in ms."""

    text: str  # the text of its declaration
    words: tuple[str, ...] = ()
    low: str = ""  # empty: only words are allowed
    high: str = ""
    unit: str = ""  # unit of the numbers, for people
    timed: bool = False  # True: `low` and `high` are times

    @classmethod
    def parse(cls, text: str) -> "Knob":
        """Parse words and at most one range, separated by `|`. Raises ValueError for another form than FORMS."""
        *words, last = text.split("|")
        match = _RANGE.fullmatch(last)
        words += [] if match else [last]
        if not all(_WORD.fullmatch(word) for word in words):
            raise ValueError(f"'{text}' is neither choices nor a range")
        if match is None:
            return cls(text=text, words=tuple(words))
        knob = cls(
            text=text,
            words=tuple(words),
            low=match["low"],
            high=match["high"],
            unit=match["unit"] or "",
            timed=bool(match["time"]),
        )
        if knob._amount(knob.low) > knob._amount(knob.high):
            raise ValueError(f"'{text}' ends before it begins")
        return knob

    def read(self, value: str) -> str | None:
        """`value` in the form that the image gets; None when it isn't allowed. Numbers have no leading zeros."""
        if value in self.words:
            return value
        if not self.low or not (_TIME if self.timed else _WHOLE).fullmatch(value):
            return None
        if not self._amount(self.low) <= self._amount(value) <= self._amount(self.high):
            return None
        return value if self.timed else str(int(value))

    def _amount(self, value: str) -> float:
        """A time in seconds, or a number."""
        if not self.timed:
            return int(value)
        match = _TIME.fullmatch(value)
        assert match is not None
        return int(match[1]) * 1e-3 if match[1] else float(match[2]) * _SECONDS[match[3]]

    def __str__(self) -> str:
        """The allowed values as a part of a sentence: `cubic or newreno`, `a number of packets, 1 to 10000`."""
        kind = "a time" if self.timed else f"a number of {self.unit}" if self.unit else "a number"
        ranges = [f"{kind}, {self.low} to {self.high}"] if self.low else []
        return " or ".join((*self.words, *ranges))


class FileModel(BaseModel):
    """The base of everything that a file of the user contains. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class _CongestionControl(FileModel):
    """The congestion controllers of a stack. `default`: empty when unknown. `options`: the allowed values of `CCA`.
    `source`: the source of these facts; empty when this project found them."""

    default: str
    options: list[str] = []
    implemented: list[str] = []
    hystart: bool | None = None
    source: str = ""


class _InitialWindow(BaseModel):
    model_config = ConfigDict(extra="allow")
    packets: int | None = Field(default=None, gt=0)
    settable: bool = False


class _Entry(FileModel):
    """One implementation as its submitter writes it. Without `build`, its image is published and is pulled.

    `like`: another entry with the same image. Fields that this entry lacks are taken from that entry (see `_SHARED`).
    For example, a stack that speaks QUIC and TCP has one entry for each transport. `withdrawn`: the image is the last
    known image, and its registry may no longer have it; `note` explains this. `real_time`: where verdicts differ
    in virtual time, as `ROLE` or as `ROLE:CASE`; `--clock auto` runs these jobs in real time.
    """

    like: str | None = None
    image: str = Field(min_length=1)
    build: str | None = None
    withdrawn: bool = False
    note: str = ""
    real_time: list[Annotated[str, Field(pattern=r"^(client|server)(:[a-z0-9-]+)?$")]] = []
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


class _Middlebox(FileModel):
    """One middlebox. `boxes`: the boxes where its image runs. `splits`: the boxes where TCP connections end.
    `splits_quic`: the boxes where QUIC connections end. `carries`: the transports that the middlebox handles.
    `lacks`: the values of TESTCASE that don't work through it, whatever the endpoints can do. `link_port`: between each
    other, its boxes use only one UDP port of the gateway, so that they work at the ends of a real link. `knobs`:
    the variables that a variant may set, with their allowed values (model/stack.py)."""

    image: str = Field(min_length=1)
    build: str | None = None
    note: str = ""
    url: str = ""
    version: str = ""
    boxes: list[Box] = Field(default=list(BOXES), min_length=1)
    splits: list[Box] = []
    splits_quic: list[Box] = []
    carries: list[Literal["tcp", "udp"]] = Field(default=["tcp", "udp"], min_length=1)
    lacks: list[str] = []
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


class ImplementationsFile(FileModel):
    """The content of implementations.json."""

    schema_: int = Field(alias="schema", ge=1, le=CATALOG_SCHEMA)
    implementations: Annotated[dict[str, _Entry], BeforeValidator(_completed)] = Field(min_length=1)
    middleboxes: dict[str, _Middlebox] = {}


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Everything that a selection can name. `absent`: stacks that can't run on this host, each with a sentence about
    the reason. `saved`: the archives with the images, instead of an engine."""

    implementations: dict[str, Implementation]
    cases: dict[str, Case]
    absent: Mapping[str, str] = field(default_factory=dict)
    middleboxes: Mapping[str, Middlebox] = field(default_factory=dict)
    knobs: Mapping[str, Mapping[str, Knob]] = field(default_factory=dict)  # by middlebox: variables of variants
    saved: SavedImages | None = None


Document = TypeVar("Document", bound=BaseModel)


def read_as(schema: type[Document], path: Path, *, missing: str = "can't be read: no such file") -> Document:
    """Read a JSON file with this schema. Raises UsageError, with the text `missing` for a missing file."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise UsageError(f"{path}: '{name}' appears {count} times in one object: keep one of them.")
        return dict(pairs)

    def number(text: str) -> float:
        """The number of a JSON text. 2e7 is the integer 20000000: in JSON Schema it has no fraction."""
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
        raise UsageError(f"{path}, {wrong_field(error.errors(), schema.model_json_schema(by_alias=True))}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {not_json(error)}.") from error


def _require_plain(path: Path, value: Any, place: tuple[str | int, ...] = ()) -> None:
    """Raise UsageError for a text or a name that a terminal or a page would not show as it is: with control characters,
    with characters that reverse the direction of text, or with half a character; and for a number without a value."""
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{path}, {field_name(place)} is {json.dumps(value)}: write a finite number.")
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise UsageError(f"{path}, {field_name(place)} is {shown_value(value)}: write a number with at most 18 digits.")
    if isinstance(value, str) and (match := UNPRINTABLE.search(value)):
        raise UsageError(
            f"{path}, {field_name(place)} has the character U+{ord(match[0]):04X}, which is not shown: remove it."
        )
    if isinstance(value, dict):
        for name, part in value.items():
            if match := UNPRINTABLE.search(name):
                raise UsageError(
                    f"{path}, {field_name(place)}: a name has the character U+{ord(match[0]):04X}, which is not shown: "
                    "remove it."
                )
            _require_plain(path, part, (*place, name))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            _require_plain(path, part, (*place, index))


def _read(path: Path) -> ImplementationsFile:
    """The stacks and middleboxes of the file. Stacks and middleboxes of implementations.json that the file doesn't
    define are added. Such a file may be a stranger's: its entries must not replace images of this project, and only
    folders beside it are built."""
    file = read_as(ImplementationsFile, path)
    if path.resolve() != IMPLEMENTATIONS:
        shipped = read_as(ImplementationsFile, IMPLEMENTATIONS)
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
    """The catalogue from implementations.json and from all cases. Stacks whose image is built come first. Raises
    UsageError with the file, the field and the expected value."""
    file = _read(path)
    boxes = file.middleboxes
    stacks = sorted(file.implementations.items(), key=lambda item: item[1].build is None)
    return Catalog(
        implementations={name: _implementation(name, entry) for name, entry in stacks},
        cases=load_cases(),
        middleboxes={
            name: Middlebox(**(same_fields(Middlebox, entry) | {"name": name, "knobs": tuple(entry.knobs)}))
            for name, entry in boxes.items()
        },
        knobs={name: {knob: Knob.parse(text) for knob, text in entry.knobs.items()} for name, entry in boxes.items()},
    )


def load_present(path: Path, archives: Path | None = None, replacements: Iterable[str] = ()) -> Catalog:
    """The catalogue, in which each `NAME=IMAGE` of `replacements` replaces the image of a stack by a local image.
    Stacks whose image isn't here are marked as absent: published images that the engine lacks, or, with `archives`,
    images that these archives lack. Starts no engine. Raises UsageError."""
    catalog = load_catalog(path)
    saved = None if archives is None else SavedImages.open(archives)
    stacks = catalog.implementations.values()
    absent = (
        images.absent(stacks, "" if path == IMPLEMENTATIONS else f"--implementations {shlex.quote(str(path))} ")
        if saved is None
        else {stack.name: saved.missing(stack.image) for stack in stacks if stack.image not in saved}
    )
    replaced = {}
    for text in replacements:
        name, equals, image = text.partition("=")
        if not equals or not image:
            raise UsageError(f"--image {text}: write NAME=IMAGE, such as quinn=example/quinn:pr-12.")
        if name not in catalog.implementations:
            choices = f" Choices: {', '.join(catalog.implementations)}."
            hint = did_you_mean(name, catalog.implementations) or choices
            raise UsageError(f"--image {text}: there is no stack '{name}'.{hint}")
        if not images.sizes([image]):
            raise UsageError(f"--image {text}: this host has no image '{image}'. `docker images` lists its images.")
        replaced[name] = replace(catalog.implementations[name], image=image, build=None, version="", note="")
        absent.pop(name, None)
    return replace(catalog, implementations={**catalog.implementations, **replaced}, absent=absent, saved=saved)


# Makes a measurement for each real link. Pure.


def with_measurements(catalog: Catalog, links: Iterable[RealLink]) -> Catalog:
    """The catalogue with a measurement for each link. A measurement that is declared with the link's name is kept. For
    other links a measurement is made from links.json."""
    cases = dict(catalog.cases)
    for link in links:
        if link.name in catalog.cases:
            if not catalog.cases[link.name].is_real:
                raise UsageError(
                    f"links.json, link '{link.name}': that is the name of a test case: give the link another name."
                )
            continue
        case = measurement_of(link)
        taken = {known.abbreviation.lower(): known.name for known in cases.values()}
        if other := taken.get(case.abbreviation.lower()):
            raise UsageError(
                f"links.json, link '{link.name}': its abbreviation {case.abbreviation} is also that of {other}: "
                "give the link another `abbreviation`."
            )
        cases[link.name] = case
    return replace(catalog, cases=cases)


def measurement_of(link: RealLink) -> Case:
    """A measurement of 10 MiB over this link, with the number of iterations in links.json."""
    access = " ".join(filter(None, (link.provider, link.tariff))) or link.name
    return measurement(
        name=link.name,
        abbreviation=link.abbreviation or link.name.replace("-", "")[:4].upper(),
        description=f"10 MiB over {access}, a real link.",
        link=LinkRecord.advertised(link.name.upper(), link.forward_rate, link.return_rate, source="links.json"),
        timeout=link.timeout,
        iterations=link.iterations,
    )


def declaration(cases: Mapping[str, Case], record: CaseRecord) -> Case | None:
    """The declaration of a recorded case, which is needed to judge a job again; None when the declaration was deleted.
    A measurement of a real link is made from the record, because this host's links.json may not have the link."""
    case = cases.get(record.declared or record.case)
    if case is not None:
        return replace(case, name=record.case, files=record.file_sizes)
    if record.real_link is None:
        return None
    return measurement(
        name=record.case,
        abbreviation=record.abbreviation,
        description=record.description,
        link=replace(record.link, real=None),
        timeout=record.timeout,
        iterations=record.iterations,
    )
