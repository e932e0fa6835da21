"""Mutates JSON documents of a run by their structure: any value at any place, values that the schema allows but
bentpipe never writes, names that lead to other files, and text that no parser should accept."""

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

from runner.store.runs import schemas

ALARM = "<script>alert('bentpipe')</script>"  # must not occur unescaped in any page
NAMES = (
    *(
        "..",
        "../../precious",
        "/srv/canary/precious",
        "a/b",
        "",
        ".hidden",
        "a\nb",
        "x" * 300,
        "\x1b[31m",
        "a\\b",
        "\x00",
    ),
    *("quinn", "alpha", "handshake", "goodput", "-rf", "--help", "con", "é" * 200, "\udc80", "\u202e", "%2e%2e%2f"),
    # Paths that lead to the folder of another run, or to the canaries, from a run, a pair or a case.
    *("../good", "../good/quinn", "../../good/quinn_quinn", "../../../../srv/canary/run/quinn"),
    *(
        "../../../../../../srv/canary/precious",
        "[bold]",
        "[/]",
        "{{7*7}}",
        "a_b",
        "_",
        "__proto__",
        ALARM,
        f'"><img src=x onerror={ALARM}',
        "'+alert(1)+'",
    ),
)
NUMBERS = (
    *(0, 1, -1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30),
    *(0.0, -0.0, 0.5, -0.5, 1.0, 1e-300, 5e-324, 1e18, 1e300, -1e300, 1.7976931348623157e308, 1e-9, 253402300800.0),
)
_TEXTS = (*NAMES, "x" * 100_000, "\x1b]52;c;cm0gLXJm\x07", "RFC 9000 §99", "https://x/?a=1&b=<", "javascript:alert(1)")
_RAW = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400, b"1e9" * 2, b"nul", b'"\\ud800"', b"0x10", b"1" * 5000)


def value(rng: Random, depth: int = 0) -> Any:
    """Any JSON value."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind in (1, 2):
        return rng.choice(NUMBERS)
    if kind in (3, 4, 5):
        return rng.choice(_TEXTS)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))]
    if kind == 7:
        return {str(rng.choice(NAMES)): value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))}
    repeated = value(rng, 3)
    return [repeated] * (rng.choice((100, 5000)) if len(str(repeated)) < 1000 else 20)


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every place of the document: the list or dict, and the index or key."""
    documents, waiting = [], [document]
    while waiting:
        node = waiting.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            documents.append((node, key))
            waiting.append(node[key])
    return documents


def _change(rng: Random, document: Any) -> None:
    """Make one change at one place. Mostly it replaces a value by another value of the same type."""
    every = places(document)
    if not every:
        return
    node, key = rng.choice(every)
    before = node[key]
    kind = rng.randrange(10)
    if kind <= 3:
        node[key] = _of_the_same_type(rng, before)
    elif kind <= 5:
        node[key] = value(rng)
    elif kind == 6:
        other, place = rng.choice(every)
        node[key] = copy.deepcopy(other[place])
    elif kind == 7:
        del node[key]
    elif kind == 8 and isinstance(node, list):
        node[key:key] = [
            copy.deepcopy(before) for _ in range(rng.choice((1, 2, 2000)) if len(str(before)) < 1000 else 3)
        ]
    elif isinstance(node, dict):
        node[str(rng.choice(NAMES))] = copy.deepcopy(before)
    else:
        node[key] = None


def _of_the_same_type(rng: Random, before: Any) -> Any:
    if isinstance(before, bool):
        return not before
    if isinstance(before, int):
        return rng.choice([number for number in NUMBERS if isinstance(number, int)] + [before + 1, -before])
    if isinstance(before, float):
        return rng.choice(NUMBERS)
    if isinstance(before, str):
        return rng.choice((*_TEXTS, before + rng.choice(NAMES), before[:1], before.upper()))
    if isinstance(before, list):
        return rng.choice(([], before[::-1], before * 2, before[:1] * (1000 if len(str(before[:1])) < 1000 else 3)))
    if isinstance(before, dict):
        return rng.choice(({}, dict(reversed(before.items()))))
    return value(rng)


@cache
def _schemas() -> dict[str, dict[str, Any]]:
    return schemas()


def _grow(rng: Random, document: Any, name: str) -> None:
    """Set fields of the schema to values that the schema allows, including fields that the document lacks."""
    schema = _schemas().get(name)
    if schema is None or not isinstance(document, dict):
        _change(rng, document)
        return
    fields = list(_fields(document, schema, schema))
    for node, key, part in rng.sample(fields, min(len(fields), rng.choice((1, 1, 2, 4)))):
        node[key] = _allowed(rng, part, schema, 0)


def _fields(node: Any, part: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Each place of the document for which the schema has a rule."""
    for choice in _choices(part, schema):
        if isinstance(node, dict) and "properties" in choice:
            for key, below in choice["properties"].items():
                yield node, key, below
                yield from _fields(node.get(key), below, schema)
        elif isinstance(node, dict) and isinstance(choice.get("additionalProperties"), dict):
            for key in node:
                yield node, key, choice["additionalProperties"]
                yield from _fields(node[key], choice["additionalProperties"], schema)
        elif isinstance(node, list) and isinstance(choice.get("items"), dict):
            for index, entry in enumerate(node[:20]):
                yield node, index, choice["items"]
                yield from _fields(entry, choice["items"], schema)


def _choices(part: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a part of a schema, with references resolved."""
    if "$ref" in part:
        return _choices(schema["$defs"][part["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in part:
        return [choice for alternative in part["anyOf"] for choice in _choices(alternative, schema)]
    return [part]


def _allowed(rng: Random, part: dict[str, Any], schema: dict[str, Any], depth: int) -> Any:
    """A value that the schema allows, often at the edge of its range."""
    choices = _choices(part, schema)
    choice = rng.choice([choice for choice in choices if choice.get("type") != "null"] or choices)
    if depth and len(choices) > 1 and rng.randrange(3) == 0:
        choice = rng.choice(choices)
    if "enum" in choice:
        return rng.choice(choice["enum"])
    makers: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.choice([number for number in NUMBERS if isinstance(number, int)]),
        "number": lambda: rng.choice(NUMBERS),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
        "string": lambda: rng.choice(_TEXTS),
        "array": lambda: _array(rng, choice, schema, depth),
        "object": lambda: _object(rng, choice, schema, depth),
    }
    return makers.get(str(choice.get("type")), lambda: value(rng))()


def _array(rng: Random, choice: dict[str, Any], schema: dict[str, Any], depth: int) -> list[Any]:
    if "prefixItems" in choice:
        return [_allowed(rng, item, schema, depth + 1) for item in choice["prefixItems"]]
    below = choice.get("items") or {}
    return [_allowed(rng, below, schema, depth + 1) for _ in range(rng.choice((0, 1, 2, 5)) if depth < 6 else 0)]


def _object(rng: Random, choice: dict[str, Any], schema: dict[str, Any], depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, below in choice.get("properties", {}).items():
        if key in choice.get("required", ()) or rng.random() < (0.5 if depth < 4 else 0.1):
            made[key] = _allowed(rng, below, schema, depth + 1)
    others = choice.get("additionalProperties")
    if isinstance(others, dict):
        for _ in range(rng.choice((0, 1, 3))):
            made[str(rng.choice(NAMES))] = _allowed(rng, others, schema, depth + 1)
    return made


def mutated_text(rng: Random, text: bytes) -> bytes:
    """The document as changed text: cut off, with other bytes, with tokens that are not JSON, deeply nested, or
    replaced."""
    kind = rng.randrange(9)
    if kind == 0:
        return text[: rng.randrange(len(text) + 1)]
    if kind == 1:
        depth = rng.choice((200, 3000, 100_000))
        return b'{"schema": 1, "a":' + b"[" * depth + b"]" * depth + b"}"
    if kind == 2:
        return rng.choice(
            (b"", b"null", b"[]", b"{}", b"\xef\xbb\xbf" + text, text.decode().encode("utf-16"), b"\x00" * 64)
        )
    if kind == 3:
        return text + text
    if kind == 4:
        return text.replace(b"{", b'{"schema": 1, "schema": 7, ', 1)
    changed = bytearray(text)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(changed) + 1)
        if kind in (5, 6):
            while at < len(changed) and not chr(changed[at]).isdigit():
                at += 1
            end = at
            while end < len(changed) and chr(changed[end]) in "0123456789.eE+-":
                end += 1
            changed[at:end] = rng.choice(_RAW)
        else:
            changed[at : at + rng.choice((1, 1, 8))] = rng.randbytes(rng.choice((0, 1, 3)))
    return bytes(changed)


def mutated(rng: Random, text: bytes, name: str) -> bytes:
    """The JSON document `text` of the file `name`, with a few changes."""
    kind = rng.randrange(10)
    if kind == 0:
        return mutated_text(rng, text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return mutated_text(rng, text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if kind <= 5:
            _grow(rng, document, name)
        else:
            _change(rng, document)
    made = json.dumps(document, indent=1, sort_keys=kind % 2 == 0, allow_nan=True)
    return (made + "\n").encode("utf-8", "surrogatepass" if rng.randrange(4) == 0 else "replace")
