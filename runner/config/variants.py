"""`--variant STACK:NAME=VALUE,…`: parsed once, checked against the catalogue, and put beside its stack."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product

from runner.config.catalog import Catalog
from runner.config.selection import Selection
from runner.errors import UsageError
from runner.model.implementation import Implementation, Role
from runner.model.knob import Knob
from runner.model.middlebox import Middlebox
from runner.model.run import Run
from runner.model.variant import PARAMETERS, Variant

_NUMBERS = {"IW": Knob.parse("1..10000 packets"), "ACK_FREQUENCY": Knob.parse("1..1000 ack-eliciting packets")}
_FREE = ("CLIENT_PARAMS", "SERVER_PARAMS")
_BOX_EXAMPLE = "write NAME:KNOB=VALUE,… such as pep-split:CCA=bbr,IW=100"
_EXAMPLE = "write STACK:NAME=VALUE,… such as quinn:CCA=bbr,IW=32"


@dataclass(frozen=True)
class Asked:
    """Every value of `--variant`, each variant once: of stacks, and of middleboxes by name."""

    stacks: tuple[Variant, ...]
    middleboxes: Mapping[str, Middlebox]

    @classmethod
    def parse(cls, texts: Iterable[str], catalog: Catalog, selection: Selection) -> "Asked":
        """A name that is both a stack and a middlebox means the one that is selected.

        Raises UsageError for what a stack or a middlebox can't be asked, and for a name that is selected as both.
        """
        stacks: dict[Variant, None] = {}
        boxes: dict[str, Middlebox] = {}
        for text in (one for given in texts for one in sweep(given)):
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
        return cls(tuple(stacks), boxes)


def middlebox_variant(text: str, catalog: Catalog) -> Middlebox:
    """A middlebox with other parameters, of `NAME:KNOB=VALUE,…`. Raises UsageError for what it can't be asked."""
    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise _wrong(text, f"{_BOX_EXAMPLE}.")
    knobs = catalog.knobs[name]
    given = assignments(text, rest, knobs, unknown=f"{name} has no knob", example=_BOX_EXAMPLE)
    ordered = {knob: taken(text, knob, knobs[knob], given[knob]) for knob in knobs if knob in given}
    suffix = "+".join(f"{knob.lower().replace('_', '-')}={value}" for knob, value in ordered.items())
    return replace(catalog.middleboxes[name], name=f"{name}+{suffix}", variant_of=name, parameters=ordered)


def sweep(text: str) -> list[str]:
    """One text for each of the values between slashes: `qpep:IW=10/32,CCA=bbr` asks for two variants.

    Free text may hold slashes of its own, and so may what is quoted.
    """
    stack, colon, rest = text.partition(":")
    choices = []
    for part in split_values(text, rest):
        name, equals, value = part.partition("=")
        plain = name.strip().upper() in _FREE or '"' in value
        choices.append([part] if plain else [f"{name}{equals}{one}" for one in value.split("/")])
    return [f"{stack}{colon}{','.join(chosen)}" for chosen in product(*choices)]


def parse(text: str, stacks: Mapping[str, Implementation]) -> Variant:
    """One value of `--variant`. Raises UsageError, with the choices, for what the stacks don't know.

    A value that holds a comma, a quote or spaces at its ends stands in double quotes; in them, a backslash makes the
    next character plain.
    """
    stack, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise _wrong(text, f"{_EXAMPLE}.")
    if stack not in stacks:
        raise _wrong(text, f"there is no stack '{stack}'.{_choices(stack, stacks)}")
    given = assignments(text, rest, PARAMETERS, unknown="there is no parameter", example=_EXAMPLE)
    found = {name: _checked(text, stacks[stack], name, value) for name, value in given.items()}
    return Variant.of(stack, found)


def assignments(text: str, rest: str, names: Collection[str], *, unknown: str, example: str) -> dict[str, str]:
    """NAME → value of `NAME=VALUE,…`, which is the `rest` of a variant's `text`.

    Raises UsageError for a name that isn't among `names` (`unknown` says so), stands twice, or has no value.
    """
    found: dict[str, str] = {}
    for part in split_values(text, rest):
        given, _, value = part.partition("=")
        name = given.strip().upper()
        if name not in names:
            raise _wrong(text, f"{unknown} '{given.strip()}'.{_choices(name, names)}")
        if name in found:
            raise _wrong(text, f"{name} is given twice.")
        found[name] = unquote(value.strip())
        if not found[name]:
            raise _wrong(text, f"{name} has no value: {example}.")
    return found


def taken(text: str, name: str, knob: Knob, value: str) -> str:
    """`value` as it is handed on. Raises UsageError with what `name` takes."""
    plain = knob.read(value)
    if plain is None:
        raise _wrong(text, f"{name} is {knob}, not '{value}'.")
    return plain


def _wrong(text: str, sentence: str) -> UsageError:
    return UsageError(f"--variant {text}: {sentence}")


def _choices(wanted: str, choices: Iterable[str]) -> str:
    names = list(choices)
    near = get_close_matches(wanted, names, n=1)
    return (f" Did you mean {near[0]}?" if near else "") + f" Choices: {', '.join(names) or 'none'}."


def split_values(text: str, rest: str) -> list[str]:
    """The parts between commas that are not quoted."""
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
    """What stands in the double quotes; a value without them as it is."""
    if not (len(value) >= 2 and value[0] == value[-1] == '"'):
        return value
    plain, escaped = "", False
    for character in value[1:-1]:
        escaped = character == "\\" and not escaped
        plain += "" if escaped else character
    return plain


def _checked(text: str, stack: Implementation, name: str, value: str) -> str:
    if not value.isprintable():
        raise _wrong(text, f"{name} holds a character that can't be printed.")
    if name == "CCA" and stack.congestion_controls and value not in stack.congestion_controls:
        choices = _choices(value, stack.congestion_controls)
        raise _wrong(text, f"{stack.name} can't be asked for congestion controller '{value}'.{choices}")
    if name in _NUMBERS:
        return taken(text, name, _NUMBERS[name], value)
    return value


def doubts(variant: Variant, stack: Implementation) -> list[str]:
    """What the catalogue says against it although it may be tried: a sentence each."""
    asked = dict(variant.parameters)
    sentences = []
    if "IW" in asked and not stack.initial_window_settable:
        sentences.append(f"{stack.name} does not declare that its initial window can be set")
    if "CCA" in asked and not stack.congestion_controls:
        sentences.append(f"{stack.name} does not declare which congestion controllers it can be asked for")
    return [f"{variant.name}: {one}; results say what was applied." for one in sentences]


@dataclass(frozen=True)
class Placed:
    """A catalogue that has the variants, and the selection with them beside their stacks."""

    catalog: Catalog
    selection: Selection


def place(catalog: Catalog, selection: Selection, asked: Asked) -> Placed:
    """Put each variant of a middlebox after it, and each variant of a stack after its stack.

    A stack's variant gets the roles in which its stack was selected and in which it differs from it. Raises UsageError
    for a variant that then has no role.
    """
    middleboxes = {**catalog.middleboxes, **asked.middleboxes}
    families = [via for via in selection.vias if not via or not middleboxes[via].variant_of]
    members = dict.fromkeys((*selection.vias, *asked.middleboxes))
    vias = [one for base in families for one in members if one == base or (one and middleboxes[one].variant_of == base)]
    catalog = replace(catalog, middleboxes=middleboxes)
    selection = replace(selection, vias=tuple(dict.fromkeys((*vias, *members))))
    for variant in asked.stacks:
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
            servers=_beside(selection.servers, variant) if Role.SERVER in roles else selection.servers,
            clients=_beside(selection.clients, variant) if Role.CLIENT in roles else selection.clients,
        )
    return Placed(catalog, selection)


def _beside(names: tuple[str, ...], variant: Variant) -> tuple[str, ...]:
    """`names` with the variant after its stack and that stack's other variants."""
    if variant.name in names:
        return names
    stem = re.compile(rf"{re.escape(variant.stack)}(\+[a-z-]+=.*)?")  # a stack's own name may hold a plus
    family = [at for at, name in enumerate(names) if stem.fullmatch(name)]
    return (*names[: family[-1] + 1], variant.name, *names[family[-1] + 1 :])


def with_variant(catalog: Catalog, variant: Variant, roles: tuple[Role, ...]) -> Catalog:
    """The catalogue with the variant as an entry of its own: the same image, other parameters."""
    before = catalog.implementations.get(variant.name)
    entry = replace(
        catalog.implementations[variant.stack],
        name=variant.name,
        roles=tuple(role for role in Role if role in roles or (before and role in before.roles)),
        variant_of=variant.stack,
        parameters=dict(variant.parameters),
    )
    others = {name: one for name, one in catalog.implementations.items() if name != variant.name}
    order = _beside(tuple(others), variant)
    return replace(catalog, implementations={name: others.get(name, entry) for name in order})


def with_variants_of(catalog: Catalog, run: Run) -> Catalog:
    """The catalogue with the variants that a run holds, so that it goes on without naming them again."""
    boxes = {name: one for name, one in run.middleboxes.items() if one.variant_of in catalog.middleboxes}
    catalog = replace(catalog, middleboxes={**catalog.middleboxes, **boxes})
    for record in run.implementations.values():
        if record.variant_of in catalog.implementations:
            variant = Variant.of(record.variant_of, record.parameters)
            named = {Role.SERVER: run.servers, Role.CLIENT: run.clients}
            catalog = with_variant(catalog, variant, tuple(role for role in Role if record.name in named[role]))
    return catalog
