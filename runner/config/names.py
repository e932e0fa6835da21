"""Resolves names and values of options. Error messages list the choices."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from runner.errors import UsageError


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


def values(arguments: Sequence[str], *, option: str, example: str) -> list[str]:
    """The values of an option; empty when the option is not used. `all` can't be combined with other values. Raises
    UsageError."""
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
