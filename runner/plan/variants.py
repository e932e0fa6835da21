"""Variants of stacks and middleboxes (`--variant STACK:NAME=VALUE,…`)."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import product

from runner.errors import UsageError
from runner.model.run import Run
from runner.model.stack import PARAMETERS, Implementation, Knob, Middlebox, Role, Variant
from runner.plan.catalog import Catalog, Selection

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
