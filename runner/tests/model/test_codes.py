"""The registry of codes is complete, and has no code that nothing uses."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from runner.config.catalog import ROOT
from runner.model.codes import CODES, Code, Matter

MAKERS = {"LaneError", "harness"}  # their first argument is a code
BUILT = re.compile(r"^(client|server)-(exit|not-started)$|^(terminal|gateway)-ended$")  # put together from two parts
OUTSIDE = {"tests", "benchmarks", "validation", "render"}


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)


@cache
def _sources() -> dict[str, ast.Module]:
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
        for package in ("runner", "testcases")
        for path in (ROOT / package).rglob("*.py")
        if not OUTSIDE & set(path.parts)
    }


def _used() -> dict[str, str]:
    """Code that a call names → the file of the call."""
    used: dict[str, str] = {}
    for name, tree in _sources().items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            maker = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            values = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
            values += call.args[:1] if maker in MAKERS else []
            used |= {text: name for value in values for text in _texts(value)}
    return used


def _named() -> set[str]:
    """Every text of the program, the registry aside."""
    return {
        node.value
        for name, tree in _sources().items()
        if name != "runner/model/codes.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_code_that_is_used_is_declared() -> None:
    undeclared = {code: file for code, file in _used().items() if code not in CODES}
    assert not undeclared, "declare them in runner/model/codes.py"


def test_every_declared_code_is_used() -> None:
    named = _named()
    assert not [name for name in CODES if name not in named and not BUILT.match(name)]


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.name)
def test_a_meaning_is_a_sentence(code: Code) -> None:
    meaning = code.meaning
    assert meaning[0].isupper() or meaning.startswith("0-RTT")
    assert meaning.endswith(".")


def test_only_errors_of_the_harness_are_tried_again() -> None:
    assert all(code.matter is Matter.HARNESS for code in CODES.values() if code.again)
