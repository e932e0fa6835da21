"""Variants of stacks and middleboxes (`--variant STACK:NAME=VALUE,…`), and of cases (`--size`, `--link`, `--loss`)."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product

from runner.errors import UsageError
from runner.model.link import LinkRecord
from runner.model.run import CaseRecord, ClientKind, Kind, Run
from runner.model.stack import PARAMETERS, Implementation, Knob, Middlebox, Role, Variant
from runner.plan.catalog import Catalog, Selection, number, values
from runner.plan.options import MatrixOptions
from runner.units import KIB, format_data_rate, format_duration, format_size
from testcases.base import Case
from testcases.links import LOSS_SWEEP

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


# Makes declarations and records from cases × sizes × links × losses, which come from options or from a stored run.
# Pure.

_LEAST_TIMEOUT = 120.0  # seconds: time-out of a measurement over another link than its own
_SMALLEST, _LARGEST = 1000, 1e9  # bytes


@dataclass(frozen=True, kw_only=True)
class CaseVariant:
    """A declared case with the user's changes.

    `size`: bytes; None: the declared size. `link`: the name of a link; empty: the case's own link. `loss`: a fraction
    in both directions of the satellite segment; 0: the declared loss of the link. `beside`: the second flow; empty: the
    declared second flow, if the case has one.
    """

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
        """The record of the case over its link. `links`: emulated and real links by name. Raises UsageError
        when the case can't run over that link."""
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
        return replace(record, description=f"{size} over {link}{beside}.")
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
    options: MatrixOptions,
    cases: Collection[Case],
    *,
    links: tuple[str, ...],
    besides: tuple[str, ...],
    stored: Collection[CaseVariant] = (),
) -> dict[CaseVariant, CaseVariant | None]:
    """The variants of `cases` that the options ask for, each with the `stored` variant from which it comes, or None for
    a new case. Options that are not used keep the sizes, links, losses, warm rounds and second flows of the stored
    variants. `links` and `besides`: the resolved names of the options. Raises UsageError for an invalid size or loss,
    and for an option that applies to none of the cases.
    """
    sizes, losses = _sizes(options.sizes), _losses(options.losses)
    names = ", ".join(case.name for case in list(cases)[:5]) + (", …" if len(cases) > 5 else "")
    if sizes != () and not any(map(_can_size, cases)):
        raise UsageError(
            f"--size is for measurements of one file, not for {names}: leave it out, or add --case goodput."
        )
    if options.warm and not any(map(_can_warm, cases)):
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
            variant = replace(before, declared=case.name, warm=_can_warm(case) and (options.warm or before.warm))
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
