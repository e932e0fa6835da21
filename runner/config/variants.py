"""`--variant STACK:NAME=VALUE,…`: parsed once, checked against the catalogue, and put beside its stack."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product

from runner.config.catalog import Catalog
from runner.config.selection import Selection
from runner.errors import UsageError
from runner.model.implementation import Implementation, Role
from runner.model.knob import Knob
from runner.model.run import Run
from runner.model.variant import PARAMETERS, Variant

_NUMBERS = {"IW": Knob.parse("1..10000 packets"), "ACK_FREQUENCY": Knob.parse("1..1000 ack-eliciting packets")}
_FREE = ("CLIENT_PARAMS", "SERVER_PARAMS")
_EXAMPLE = "write STACK:NAME=VALUE,… such as quinn:CCA=bbr,IW=32"


def parse_all(texts: Iterable[str], stacks: Mapping[str, Implementation]) -> tuple[Variant, ...]:
    """Every value of `--variant`, each variant once."""
    return tuple(dict.fromkeys(parse(one, stacks) for text in texts for one in sweep(text)))


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


def place(catalog: Catalog, selection: Selection, variants: Sequence[Variant]) -> Placed:
    """Put each variant into the roles in which its stack was selected and in which it differs from it.

    Raises UsageError for one that then is nowhere.
    """
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
    for record in run.implementations.values():
        if record.variant_of in catalog.implementations:
            variant = Variant.of(record.variant_of, record.parameters)
            named = {Role.SERVER: run.servers, Role.CLIENT: run.clients}
            catalog = with_variant(catalog, variant, tuple(role for role in Role if record.name in named[role]))
    return catalog
