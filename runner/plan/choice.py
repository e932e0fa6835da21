"""Makes a selection from the options and from the run that they extend, and a catalogue with everything in it: stacks,
cases with their sizes, links and losses, middleboxes."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from runner.errors import SetupError, UsageError, did_you_mean
from runner.model.link import LinkRecord, RealLink
from runner.model.run import CaseRecord, ClientKind, Kind, Run
from runner.model.stack import (
    FLOWS_OVER_TCP,
    NO_VIA,
    PARAMETERS,
    Implementation,
    Middlebox,
    Role,
    Variant,
    transport_of,
)
from runner.plan.catalog import Catalog, Knob, with_measurements
from runner.plan.links import (
    EMULATED_LINKS,
    declared_links,
    is_link_text,
    load_links,
    parse_link,
    real_record,
    refuse_shared_ports,
)
from runner.plan.options import MatrixOptions
from runner.units import KIB, format_data_rate, format_duration, format_size
from testcases.base import Case
from testcases.links import LOSS_SWEEP

# Resolves names and values of options. Error messages list the choices.


def split(names: Iterable[str]) -> list[str]:
    """The single names of an option that is written as `--x a --x b` or `--x a,b`."""
    return [part.strip() for name in names for part in name.split(",") if part.strip()]


def named(texts: Iterable[str], choices: Sequence[str], *, option: str, kind: str) -> tuple[str, ...]:
    """The named choices, in the order of `choices`; without names, all of them. Raises UsageError."""
    texts = list(texts)
    requested = split(texts)
    if texts and not requested:
        raise UsageError(f"{option} names no {kind}. Choices: {', '.join(choices)}.")
    for name in requested:
        if name not in choices:
            raise UsageError(f"{option}: there is no {kind} '{name}'.{_choices(name, choices)}")
    return tuple(name for name in choices if not requested or name in requested)


def named_implementations(
    catalog: Catalog, names: Iterable[str], role: Role, kinds: Collection[str] = ("stack",)
) -> tuple[str, ...]:
    """The named implementations, in the order of the catalogue. Without names: all implementations of these kinds
    that aren't absent, but no stacks that speak only over TCP. Raises UsageError with the choices for an unknown
    name, and SetupError for an absent stack."""
    able = [name for name, entry in catalog.implementations.items() if role in entry.roles]
    chosen = named(names, able, kind=role.value, option=f"--{role.value}")
    if split(names):
        for name in chosen:
            if name in catalog.absent:
                raise SetupError(catalog.absent[name])
        return chosen
    entries = (catalog.implementations[name] for name in chosen if name not in catalog.absent)
    return tuple(
        entry.name for entry in entries if entry.kind in kinds and not (entry.kind == "stack" and entry.is_over_tcp)
    )


def named_or_none(texts: Sequence[str], choices: Iterable[str], *, option: str, kind: str) -> tuple[str, ...]:
    """As `named`, where `none` is one of the choices and becomes an empty name; empty without names."""
    chosen = named(texts, [NO_VIA, *choices], option=option, kind=kind) if texts else ()
    return tuple("" if name == NO_VIA else name for name in chosen)


def named_cases(catalog: Catalog, names: Iterable[str]) -> tuple[str, ...]:
    """The cases that are named by name or abbreviation. Without names: all cases for stacks, except cases that must
    be named (`Case.needs_a_name`). Raises UsageError with the choices."""
    by_abbreviation = {case.abbreviation.lower(): name for name, case in catalog.cases.items()}
    requested = [by_abbreviation.get(name.lower(), name) for name in split(names)]
    if not requested:
        stacks = (case for case in catalog.cases.values() if case.client is ClientKind.STACK)
        return tuple(case.name for case in stacks if not case.needs_a_name)
    return named(requested, list(catalog.cases), kind="case", option="--case")


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

    @property
    def images_of(self) -> list[Implementation]:
        """The stacks and middleboxes whose images are needed. For a variant, this is its base, which has the same
        image. Raises SetupError when no stack is left."""
        entries, boxes = self.catalog.implementations, self.catalog.middleboxes
        if not (self.servers and self.clients):
            missing = ", ".join(stack.image for stack in entries.values())
            raise SetupError(
                f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`."
            )
        beside = (name for record in self.cases.values() for name in record.beside_stacks)
        names = dict.fromkeys(entries[name].variant_of or name for name in (*self.servers, *self.clients, *beside))
        bases = dict.fromkeys(boxes[via].variant_of or via for via in self.vias if via)
        needed = (boxes[name].as_stack() for name in bases if name not in names)
        return [*(entries[name] for name in names), *needed]


def iterations_of(case: CaseRecord, requested: int | None, stored: int | None = None) -> int:
    """The number of iterations of a case. A case that declares one iteration has one. Other cases have the requested
    number; without it, the number of the stored run; without both, the declared number."""
    return 1 if case.iterations == 1 else requested or stored or case.iterations


# Variants of stacks and middleboxes (`--variant STACK:NAME=VALUE,…`).

_NUMBERS = {"IW": Knob.parse("1..10000 packets"), "ACK_FREQUENCY": Knob.parse("1..1000 ack-eliciting packets")}
_FREE = ("CLIENT_PARAMS", "SERVER_PARAMS")
_BOX_EXAMPLE = "write NAME:KNOB=VALUE,… such as pep-split:CCA=bbr,IW=100"
_EXAMPLE = "write STACK:NAME=VALUE,… such as quinn:CCA=bbr,IW=32"


def requested_variants(texts: Iterable[str], selection: Selection) -> tuple[tuple[Variant, ...], dict[str, Middlebox]]:
    """Parse the values of `--variant`: the variants of stacks, and the variants of middleboxes by name, without
    repetitions. When a stack and a middlebox have the same name, the variant is made of the one that is selected.
    Raises UsageError when both are selected, and for a parameter that a stack or middlebox lacks."""
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
    """The middlebox's variant of `NAME:KNOB=VALUE,…`. Raises UsageError for a knob that it lacks."""
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
    variants. In free text and in quoted values, slashes are normal characters."""
    stack, colon, rest = text.partition(":")
    choices = []
    for part in split_values(text, rest):
        name, equals, value = part.partition("=")
        plain = name.strip().upper() in _FREE or '"' in value
        choices.append([part] if plain else [f"{name}{equals}{alternative}" for alternative in value.split("/")])
    return [f"{stack}{colon}{','.join(chosen)}" for chosen in product(*choices)]


def parse(text: str, stacks: Mapping[str, Implementation]) -> Variant:
    """Parse one variant of a stack. Raises UsageError, with the choices, for an unknown stack, parameter or value. A
    value with a comma, with a quote, or with spaces at its beginning or end must be in double quotes. Inside the
    quotes, the character after a backslash has no special meaning."""
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
    name that is repeated or has no value, and, with the text `unknown`, for a name that isn't in `names`."""
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


def _choices(name: str, choices: Collection[str]) -> str:
    return f"{did_you_mean(name, choices)} Choices: {', '.join(choices) or 'none'}."


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
    Raises UsageError for a variant that has no such role."""
    catalog = replace(selection.catalog, middleboxes={**selection.catalog.middleboxes, **boxes})
    for name, box in boxes.items():
        selection = replace(selection, vias=_with_variant(selection.vias, name, box.variant_of))
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
        if Role.SERVER in roles:
            selection = replace(selection, servers=_with_variant(selection.servers, variant.name, variant.stack))
        if Role.CLIENT in roles:
            selection = replace(selection, clients=_with_variant(selection.clients, variant.name, variant.stack))
    return replace(selection, catalog=catalog)


def _with_variant(names: tuple[str, ...], variant: str, base: str) -> tuple[str, ...]:
    """The names with the variant after its base, a stack or a middlebox, and after the base's other variants."""
    if variant in names:
        return names
    stem = re.compile(rf"{re.escape(base)}(\+[a-z0-9-]+=.*)?")  # a stack's own name may contain a plus
    family = [at for at, name in enumerate(names) if stem.fullmatch(name)]
    return (*names[: family[-1] + 1], variant, *names[family[-1] + 1 :])


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
    order = _with_variant(tuple(others), variant.name, variant.stack)
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


# Makes declarations and records from cases × sizes × links × losses, which come from options or from a stored run.
# Pure.

_LEAST_TIMEOUT = 120.0  # seconds: time-out of a measurement over another link than its own
_SMALLEST, _LARGEST = 1000, 1e9  # bytes


@dataclass(frozen=True, kw_only=True)
class CaseVariant:
    """A declared case with the user's changes. `size`: bytes; None: the declared size. `link`: the name of a link;
    empty: the case's own link. `loss`: a fraction in both directions of the satellite segment; 0: the declared loss of
    the link. `beside`: the second flow; empty: the declared second flow, if the case has one."""

    declared: str
    size: int | None = None
    warm: bool = False
    link: str = ""
    loss: float = 0.0
    beside: str = ""

    @classmethod
    def of(cls, record: CaseRecord) -> "CaseVariant":
        """The variant of a record."""
        declared = record.declared or record.case
        beside = record.added_beside
        sized = record.case.removesuffix(f"+{beside}").removesuffix("+warm") != declared
        link, lossy, _ = record.link_name.partition("+loss=")
        return cls(
            declared=declared,
            size=record.file_sizes[0] if sized else None,
            warm=record.warm,
            link=link,
            loss=record.forward.loss if lossy else 0.0,
            beside=beside,
        )

    def case(self, cases: Mapping[str, Case]) -> Case:
        """The case's declaration with these changes."""
        case = cases[self.declared]
        case = case if self.size is None else case.sized(self.size)
        case = case.warmed() if self.warm else case
        return case.accompanied(self.beside) if self.beside not in ("", case.beside) else case

    def record(self, cases: Mapping[str, Case], links: Mapping[str, LinkRecord]) -> CaseRecord:
        """The record of the case over its link, one of `links`. Raises UsageError when it can't run over it."""
        case = self.case(cases)
        record, link_name = case.record(), case.link.name.lower()
        if case.is_real:
            if link_name not in links or links[link_name].real is None:
                raise UsageError(f"--case {case.name} runs over a real link: name a link of links.json with --link.")
            record = replace(record, link=replace(links[link_name], name=record.link.name))
        name = "" if self.link == link_name else self.link
        if not name and not self.loss:
            return record if self.size is None else _described(record, sized=True, other_link=False)
        _require_other_link(case, self)
        link = replace(_link(links, name) if name else record.link, name=name or link_name)
        if self.loss:
            link = _lossy(link, self.loss)
        if record.kind is Kind.MEASUREMENT:
            record = replace(record, timeout=max(record.timeout, _LEAST_TIMEOUT))
        return _described(record.over(link), sized=self.size is not None, other_link=True)


def _described(record: CaseRecord, *, sized: bool, other_link: bool) -> CaseRecord:
    """The record with a description of its actual size and link. `sized`: True when the size is not the declared size.
    `other_link`: True when the link is not the declared link."""
    size, link = _size(record.file_sizes[0]), f"the link {record.link.name}: {_of_link(record.link)}"
    if record.kind is Kind.MEASUREMENT and record.client is ClientKind.STACK and len(record.file_sizes) == 1:
        beside = f", beside {record.beside}" if record.beside else ""
        what = f"The client sends {size}" if record.upload else size
        return replace(record, description=f"{what} over {link}{beside}.")
    sentences = [record.description, f"The file has {size}." if sized else "", f"Over {link}." if other_link else ""]
    return replace(record, description=" ".join(filter(None, sentences)))


def _size(size: int) -> str:
    """The size in the more readable unit: `10 MiB`, or `2 MB` for a multiple of a decimal unit only."""
    if size % KIB:
        for factor, unit in ((10**6, "MB"), (10**3, "kB")):
            if size % factor == 0:
                return f"{size // factor} {unit}"
    return format_size(size)


def _of_link(link: LinkRecord) -> str:
    """`20 Mbit/s forward, 2 Mbit/s return, 600 ms RTT, 1 % loss`; for a real link, only its advertised data rates."""
    satellite = link.satellite
    forward, return_ = (format_data_rate(way.data_rate) for way in (satellite.forward, satellite.return_))
    rates = f"{forward} both ways" if forward == return_ else f"{forward} forward, {return_} return"
    if link.real is not None:
        return f"{rates}, as advertised"
    losses = [f"{100 * way.loss:g} %" for way in (satellite.forward, satellite.return_)]
    lost = losses[0] if losses[0] == losses[1] else f"{losses[0]} forward, {losses[1]} return"
    loss = f", {lost} loss" if satellite.forward.loss or satellite.return_.loss else ", no loss"
    return f"{rates}, {format_duration(link.rtt)} RTT{loss}"


def _link(links: Mapping[str, LinkRecord], name: str) -> LinkRecord:
    """The link with this name. Raises UsageError when a stored run has the link and it is no longer declared."""
    if name not in links:
        raise UsageError(f"--link: the run has a link '{name}' that is no longer declared: write it again with --link.")
    return links[name]


def _require_other_link(case: Case, variant: CaseVariant) -> None:
    option = f"--link {variant.link}" if variant.link else f"--loss {variant.loss:g}"
    if case.is_real:
        raise UsageError(f"--case {case.name}: it is a transfer over a real link: use {option} with --case goodput.")
    if not case.is_clean:
        raise UsageError(
            f"--case {case.name}: it tests its own link, which loses or changes packets: leave out {option}."
        )


def _lossy(link: LinkRecord, loss: float) -> LinkRecord:
    """The link with `loss` in both directions of the satellite segment. Raises UsageError for a real link."""
    if link.real is not None:
        raise UsageError(
            f"--loss {loss:g}: losses can't be set on a real link such as {link.name}: leave out --loss or --link."
        )
    segment = link.satellite
    digits = repr(float(loss)).removesuffix(".0")  # all digits, so that each loss has its own name
    lossy = replace(segment, forward=replace(segment.forward, loss=loss), return_=replace(segment.return_, loss=loss))
    return replace(link, name=f"{link.name}+loss={digits}", segments=(lossy, *link.segments[1:]))


def case_variants(
    cases: Collection[Case],
    *,
    links: tuple[str, ...],
    sizes: tuple[int, ...] | None,
    losses: tuple[float, ...],
    besides: tuple[str, ...],
    warm: bool,
    stored: Collection[CaseVariant] = (),
) -> dict[CaseVariant, CaseVariant | None]:
    """The variants of `cases`, each with the `stored` variant from which it comes, or None for a new case. Empty
    `links`, `sizes`, `losses` and `besides` keep those of the stored variants; `sizes` is None for every size of a
    case. Raises UsageError for an option that applies to none of the cases."""
    names = ", ".join(case.name for case in list(cases)[:5]) + (", …" if len(cases) > 5 else "")
    if sizes != () and not any(map(_can_size, cases)):
        raise UsageError(
            f"--size is for measurements of one file, not for {names}: leave it out, or add --case goodput."
        )
    if warm and not any(map(_can_warm, cases)):
        raise UsageError(
            f"--warm is for downloads and page loads, not for {names}: a stack can't load its files twice. Leave "
            "it out, or add --case download."
        )
    if besides and not any(map(_can_share, cases)):
        raise UsageError(
            f"--beside is for measurements of stacks, not for {names}: leave it out, or add --case goodput."
        )
    new = [replace(variant, declared="", size=None, warm=False) for variant in stored] or [CaseVariant(declared="")]
    variants: dict[CaseVariant, CaseVariant | None] = {}
    for case in cases:
        known = [variant for variant in stored if variant.declared == case.name]
        for before in known or new:
            variant = replace(before, declared=case.name, warm=_can_warm(case) and (warm or before.warm))
            axes = product(
                (before.size,) if known and (sizes == () or not _can_size(case)) else _sizes_of(case, sizes),
                links or (before.link,),
                losses or (before.loss,),
                (besides or (before.beside,)) if _can_share(case) else ("",),
            )
            for size, link, loss, beside in axes:
                changed = replace(variant, size=size, link=link, loss=loss, beside=beside)
                variants.setdefault(changed, before if known else None)
    return variants


def _sizes_of(case: Case, requested: tuple[int, ...] | None) -> tuple[int | None, ...]:
    """The sizes of a case: the requested sizes, or the declared ones. None in the result: the case's own files."""
    if not _can_size(case):
        return (None,)
    if requested is None:
        return case.sweep or case.sizes or (None,)
    return requested or case.sizes or (None,)


def _can_size(case: Case) -> bool:
    return case.kind is Kind.MEASUREMENT and len(case.files) == 1 and case.client is not ClientKind.BROWSER


def _can_share(case: Case) -> bool:
    """True when a second flow may run beside the case."""
    return case.kind is Kind.MEASUREMENT and case.client is ClientKind.STACK


def _can_warm(case: Case) -> bool:
    return case.client is not ClientKind.STACK


def _sizes(texts: tuple[str, ...]) -> tuple[int, ...] | None:
    example = "500000,2000000 (bytes), or all"
    requested = values(texts, option="--size", example=example)
    if requested == ["all"]:
        return None
    sizes = []
    for text in requested:
        value = number(text, option="--size", top=_LARGEST, example=example)
        if not value.is_integer():
            raise UsageError(f"--size {text}: write a whole number of bytes.")
        if value < _SMALLEST:
            raise UsageError(f"--size {text}: a transfer has at least {_SMALLEST} bytes.")
        sizes.append(int(value))
    return tuple(dict.fromkeys(sizes))


def _losses(texts: tuple[str, ...]) -> tuple[float, ...]:
    example = "0,0.001,0.01, or all"
    losses = values(texts, option="--loss", example=example)
    if losses == ["all"]:
        return (0.0, *LOSS_SWEEP)
    return tuple(dict.fromkeys(number(text, option="--loss", top=1.0, example=example) for text in losses))


def values(arguments: Sequence[str], *, option: str, example: str) -> list[str]:
    """The values of an option; empty without it. `all` stands alone. Raises UsageError."""
    texts = split(arguments)
    if arguments and not texts:
        raise UsageError(f"{option} has no value: write {option} {example}.")
    if "all" in texts and set(texts) != {"all"}:
        raise UsageError(f"{option} {','.join(texts)}: write `all` without other values.")
    return list(dict.fromkeys(texts))


def number(text: str, *, option: str, top: float, example: str) -> float:
    """A number from 0 to `top`. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= top:
        raise UsageError(f"{option}: '{text}' is not a number from 0 to {top:g}: write {option} {example}.")
    return value


# Makes a selection from the options and from the run that they extend, and a catalogue that contains everything in the
# selection.

_OVER_ANY_LINK = "goodput"  # the default case of stacks when a link is named without a case


def choose(options: MatrixOptions, catalog: Catalog, run: Run | None) -> Selection:
    """Resolve the options. Options that the user leaves out keep the values of the existing `run`. Raises UsageError
    for an unknown name, and for options that can't be combined."""
    links = _links(options, run)
    catalog = with_measurements(catalog, links.real.values())
    catalog = with_variants_of(catalog, run) if run else catalog
    variants = _case_variants(options, catalog, run, links)
    cases = {case.name: case for case in (variant.case(catalog.cases) for variant in variants)}
    catalog = replace(catalog, cases={**catalog.cases, **cases})
    stored = _iterations(run) if run else {}
    records, iterations = {}, {}
    for variant, origin in variants.items():
        record = variant.record(catalog.cases, links.records)
        records[record.name] = record
        iterations[record.name] = iterations_of(record, options.iterations, stored.get(origin))
    _require_one_kind_of_link(list(records.values()))
    kinds = {case.client for case in cases.values()}
    used = dict.fromkeys(record.real_link.name for record in records.values() if record.real_link is not None)
    real = tuple(links.real[name] for name in used)
    refuse_shared_ports(real)
    selection = Selection(
        catalog=catalog,
        servers=_stacks(
            options.servers, catalog, Role.SERVER, {kind.server for kind in kinds}, run.servers if run else ()
        ),
        clients=_stacks(
            options.clients, catalog, Role.CLIENT, {str(kind) for kind in kinds}, run.clients if run else ()
        ),
        vias=named_or_none(options.vias, catalog.middleboxes, option="--via", kind="middlebox")
        or (run.vias if run else ("",)),
        cases=records,
        iterations=iterations,
        real=real,
        timeout_scale=_timeout_scale(options.timeout_scale, run),
    )
    stacks, boxes = requested_variants(options.variants, selection)
    selection = with_requested(selection, stacks, boxes)
    _require_jobs(selection)
    _require_room_beside(selection)
    doubtful = (sentence for variant in stacks for sentence in doubts(variant, catalog.implementations[variant.stack]))
    return replace(selection, doubts=(*doubtful, *_uncarried(selection, cases.values())))


@dataclass(frozen=True, kw_only=True)
class _Links:
    """Every link that can be selected, by name. `requested`: the names of the links in the options."""

    emulated: Mapping[str, LinkRecord]
    real: Mapping[str, RealLink]
    requested: tuple[str, ...]

    @property
    def records(self) -> dict[str, LinkRecord]:
        """Every link by name, as `run.json` stores it."""
        return {**self.emulated, **{name: real_record(link) for name, link in self.real.items()}}


def _links(options: MatrixOptions, run: Run | None) -> _Links:
    """Links that are declared, typed, or of the run. No real link has the name of an emulated link."""
    file = options.links_file.with_name(EMULATED_LINKS.name)
    typed = [parse_link(text) for text in options.links if is_link_text(text)]
    named_links = [text for text in options.links if not is_link_text(text)]
    declared = declared_links(file)
    for link in typed:
        if link.name in declared:
            raise UsageError(f"--link name={link.name}: a declared link has this name: choose another name.")
        declared[link.name] = link
    emulated: dict[str, LinkRecord] = dict(declared)
    for name, record in _stored_links(run).items():
        if emulated.setdefault(name, record) != record:
            raise UsageError(
                f"--link {name}: the run has another link of this name: begin a new run, or rename the link."
            )
    stored = [case.real_link.name for case in run.cases.values() if case.real_link] if run else []
    unknown = [name for name in split(named_links) if name not in emulated]
    known = load_links(options.links_file) if stored or (unknown and options.links_file.exists()) else {}
    if twice := [name for name in known if name in emulated]:
        raise UsageError(f"links.json, link '{twice[0]}': that is the name of an emulated link: give it another name.")
    requested = named(named_links, [*emulated, *known], option="--link", kind="link") if named_links else ()
    of_run = requested if options.links else tuple(dict.fromkeys(stored))
    return _Links(
        emulated=emulated,
        real={name: known[name] for name in of_run if name in known},
        requested=(*requested, *(link.name for link in typed)),
    )


def _stored_links(run: Run | None) -> dict[str, LinkRecord]:
    """The emulated links in the names of a run's cases, without links that `--loss` made."""
    records = [record for record in run.cases.values() if record.real_link is None] if run else []
    return {
        record.link_name: record.link for record in records if record.link_name and "+loss=" not in record.link_name
    }


def _case_variants(
    options: MatrixOptions, catalog: Catalog, run: Run | None, links: _Links
) -> dict[CaseVariant, CaseVariant | None]:
    """The cases of this call with their changes, each with the stored variant from which it comes, or None."""
    names = links.requested
    stored = [CaseVariant.of(record) for record in run.cases.values()] if run else []
    if options.cases:
        cases = named_cases(catalog, options.cases)
    elif stored:
        cases = tuple(dict.fromkeys(variant.declared for variant in stored if variant.declared in catalog.cases))
    elif names and all(name in links.real for name in names):
        cases, names = names, ()
    else:
        cases = _default_cases(split((*options.servers, *options.clients)), catalog, linked=bool(names))
    pairs = [name for name, stack in catalog.implementations.items() if stack.is_a_pair]
    return case_variants(
        [catalog.cases[name] for name in cases],
        links=names,
        sizes=_sizes(options.sizes),
        losses=_losses(options.losses),
        besides=named_or_none(options.besides, [*FLOWS_OVER_TCP, *pairs], option="--beside", kind="flow"),
        warm=options.warm,
        stored=stored,
    )


def _iterations(run: Run) -> dict[CaseVariant | None, int]:
    """The number of planned iterations of each case variant of a stored run."""
    names = {record.name: CaseVariant.of(record) for record in run.cases.values()}
    counts: dict[CaseVariant | None, int] = {}
    for job in run.order:
        variant = names[job.case_link]
        counts[variant] = max(counts.get(variant, 0), job.iteration)
    return counts


def _default_cases(stacks: Iterable[str], catalog: Catalog, *, linked: bool) -> tuple[str, ...]:
    """All cases for the kinds of the named `stacks`; when a link is named for QUIC stacks, only the default case."""
    ends = {catalog.implementations[name].kind for name in stacks if name in catalog.implementations} or {"stack"}
    if linked and ends == {"stack"}:
        return (_OVER_ANY_LINK,)
    cases = (case for case in catalog.cases.values() if {str(case.client), case.client.server} & ends)
    return tuple(case.name for case in cases if not case.needs_a_name)


def _stacks(
    names: tuple[str, ...], catalog: Catalog, role: Role, kinds: set[str], stored: tuple[str, ...]
) -> tuple[str, ...]:
    """The named stacks. Without names, those of the run and, for a kind that the run lacks, all of that kind."""
    if names or not stored:
        return named_implementations(catalog, names, role, kinds)
    if unknown := [name for name in stored if name not in catalog.implementations]:
        raise UsageError(
            f"run.json has the {role.value} {unknown[0]!a}, which is not in implementations.json: add it, or name "
            f"others with --{role.value}."
        )
    known = {catalog.implementations[name].kind for name in stored}
    lacking = kinds - known
    return (*stored, *(named_implementations(catalog, (), role, lacking) if lacking else ()))


def _require_one_kind_of_link(records: list[CaseRecord]) -> None:
    real = {record.real_link.name for record in records if record.real_link is not None}
    if real and any(record.real_link is None for record in records):
        raise UsageError(
            f"--link {','.join(sorted(real))}: real and emulated links need separate calls: use the same --run "
            "in both calls."
        )


def _require_jobs(selection: Selection) -> None:
    """Raise UsageError for a case whose kind of client or server is not selected."""
    catalog = selection.catalog
    for record in selection.cases.values():
        for role, names, needed in (
            (Role.CLIENT, selection.clients, str(record.client)),
            (Role.SERVER, selection.servers, record.client.server),
        ):
            if names and all(catalog.implementations[name].kind != needed for name in names):
                able = [
                    name
                    for name, stack in catalog.implementations.items()
                    if stack.kind == needed and role in stack.roles
                ]
                raise UsageError(
                    f"--case {record.case}: it needs a {role.value} of another kind: add --{role.value} "
                    f"{','.join(able[:3])}{', …' if len(able) > 3 else ''}."
                )


def _require_room_beside(selection: Selection) -> None:
    """Raise UsageError for a second flow whose stack is unknown, or which a middlebox would carry, too."""
    for record in selection.cases.values():
        if record.beside and any(selection.vias):
            raise UsageError(
                f"--case {record.name}: the second flow would also cross the middlebox: leave out --via, or choose a "
                "case without a second flow."
            )
        for name in record.beside_stacks:
            if name not in selection.catalog.implementations:
                raise UsageError(
                    f"--case {record.name}: its second flow needs the stack '{name}', which does not exist."
                )


def _uncarried(selection: Selection, cases: Iterable[Case]) -> Iterator[str]:
    """For each middlebox that carries none of the cases, a sentence with cases that the middlebox carries."""
    catalog = selection.catalog
    transports = {transport_of(protocol) for case in cases for protocol in case.protocols}
    for box in (catalog.middleboxes[via] for via in selection.vias if via):
        if not transports & set(box.carries) and not box.variant_of:
            able = [
                case.name
                for case in catalog.cases.values()
                if not case.declared and transport_of(case.protocols[0]) in box.carries
            ]
            first = ",".join(sorted(able)[:3])
            yield f"{box.name} carries {' and '.join(box.carries)} only: add a case such as --case {first}."


def _timeout_scale(scale: float, run: Run | None) -> float:
    """The scale of time-outs. Raises UsageError when it differs from the run's."""
    before = run.options.get("timeout_scale", "1") if run else f"{scale:g}"
    if scale != 1 and f"{scale:g}" != before:
        raise UsageError(f"--timeout-scale {scale:g}: the run began with {before}, and keeps it.")
    return float(before)
