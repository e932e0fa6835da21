"""Every code is declared once, and is used: in the registry, or by the only case or the detector that has it."""

import ast
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import pytest

import testcases
from runner.diagnose.explain import DETECTORS
from runner.model.result import CODES, Matter, another_attempt_helps
from runner.paths import ROOT

MAKERS = {"LaneError", "harness"}  # their first argument is a code
BUILT = re.compile(
    r"^(client|server)-(exit|not-started)$|^(terminal|gateway|server)-ended$|^guest-not-started$"
)  # codes that the program puts together from two parts, or that guest/init writes
OUTSIDE = {"tests", "site"}


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


def _used(tree: ast.Module) -> set[str]:
    """The codes that calls of a module name; the declarations of a detector aside."""
    used = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        maker = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        values = [keyword.value for keyword in call.keywords if keyword.arg == "code" and maker != "Pattern"]
        values += call.args[:1] if maker in MAKERS else []
        used |= {text for value in values for text in _texts(value)}
    return used


@cache
def _own() -> dict[str, dict[str, str]]:
    """File of a case or a detector → the codes that it declares, with their meanings."""
    codes_by_file: dict[str, dict[str, str]] = {}
    for module in pkgutil.iter_modules(testcases.__path__):
        codes = getattr(import_module(f"testcases.{module.name}"), "CODES", {})
        codes_by_file[f"testcases/{module.name}.py"] = codes
    for patterns, detect in DETECTORS.values():
        codes = codes_by_file.setdefault(f"{detect.__module__.replace('.', '/')}.py", {})
        codes.update({pattern.code: pattern.meaning for pattern in patterns})
    return codes_by_file


def _named() -> set[str]:
    """Every text of the program, the registry aside."""
    return {
        node.value
        for name, tree in _sources().items()
        if name != "runner/model/result.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("file", sorted(_sources()))
def test_every_code_that_is_used_is_declared(file: str) -> None:
    undeclared = _used(_sources()[file]) - CODES.keys() - _own().get(file, {}).keys()
    assert not undeclared, "declare them in runner/model/result.py, or in the case or the detector that alone has them"


@pytest.mark.parametrize("file", sorted(_own()))
def test_a_case_and_a_detector_use_what_they_declare(file: str) -> None:
    assert _own()[file].keys() <= _used(_sources()[file])


def test_a_code_is_declared_once() -> None:
    counted = Counter([*CODES, *(code for codes in _own().values() for code in codes)])
    assert [code for code, count in counted.items() if count > 1] == []


def test_every_declared_code_is_used() -> None:
    named = _named()
    assert not [name for name in CODES if name not in named and not BUILT.match(name)]


@pytest.mark.parametrize(
    "meaning",
    [*(code.meaning for code in CODES.values()), *(text for codes in _own().values() for text in codes.values())],
)
def test_a_meaning_is_a_sentence(meaning: str) -> None:
    assert meaning[0].isupper() or meaning.startswith("0-RTT")
    assert meaning.endswith(".")


def test_only_errors_of_the_harness_are_tried_again() -> None:
    assert all(code.matter is Matter.HARNESS for code in CODES.values() if code.again)
    assert all(
        another_attempt_helps(code.name) == code.again for code in CODES.values() if code.matter is Matter.HARNESS
    )
