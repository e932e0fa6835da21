"""The import fences of the design, checked on the source: who may import whom, and who owns which third party."""

import ast
import sys
from pathlib import Path

import pytest

from runner.catalog import ROOT

# area → areas that it must not import
FORBIDDEN = {
    "runner.render": (
        "testcases",
        "runner.decode",
        "runner.deploy",
        "runner.trace",
        "runner.diagnose",
        "runner.explain",
        "runner.analyse",
    ),
    "runner.deploy": ("testcases", "runner.analyse", "runner.run", "runner.cli", "runner.render"),
    "runner.store": ("testcases", "runner.deploy", "runner.decode", "runner.trace", "runner.diagnose"),
    "runner.model": ("runner.store", "runner.deploy", "runner.decode", "runner.trace", "runner.diagnose", "testcases"),
    "runner.decode": ("runner.trace", "runner.deploy", "runner.store", "runner.render", "testcases"),
    "runner.trace": (
        "runner.deploy",
        "runner.store",
        "runner.render",
        "runner.diagnose",
        "runner.analyse",
        "testcases",
    ),
    "runner.diagnose": (
        "runner.deploy",
        "runner.store",
        "runner.render",
        "runner.explain",
        "runner.analyse",
        "testcases",
    ),
    "runner.explain": ("runner.deploy", "runner.store", "runner.render", "runner.analyse", "testcases"),
    "testcases": ("runner.deploy", "runner.store", "runner.render", "runner.run", "runner.analyse", "runner.decode"),
    "runner.paths": ("runner.deploy", "runner.render", "runner.run", "runner.cli"),
    "runner.analyse": ("runner.deploy", "runner.render", "runner.run", "runner.cli"),
    "runner.stats": ("runner.store", "runner.deploy", "runner.decode", "runner.trace", "runner.render", "testcases"),
    "runner.compare": ("runner.deploy", "runner.decode", "runner.trace", "runner.render", "runner.run", "testcases"),
}
OWNERS = {
    "click": ("runner.cli",),
    "docker": ("runner.deploy",),
    "paramiko": ("runner.deploy.remote",),
    "jinja2": ("runner.render",),
    "plotly": ("runner.render",),
    "cryptography": ("runner.decode", "runner.inputs", "runner.links"),
    "pydantic": ("runner.store", "runner.catalog", "runner.links"),
}
SOURCES = sorted(
    path
    for package in ("runner", "testcases")
    for path in (ROOT / package).rglob("*.py")
    if not {"tests", "benchmarks", "validation"} & set(path.parts)
)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _inside(module: str, area: str) -> bool:
    return module == area or module.startswith(area + ".")


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_imports_go_downwards_only(path: Path) -> None:
    module = _module(path)
    for area, forbidden in FORBIDDEN.items():
        if _inside(module, area):
            crossed = {name for name in _imports(path) for fence in forbidden if _inside(name, fence)}
            assert not crossed, f"{module} must not import {', '.join(sorted(crossed))}"


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_third_parties_have_one_owner(path: Path) -> None:
    module = _module(path)
    for library, owners in OWNERS.items():
        if any(_inside(name, library) for name in _imports(path)):
            assert any(_inside(module, owner) for owner in owners), f"{library} belongs to {', '.join(owners)}"


def test_the_model_needs_the_standard_library_alone() -> None:
    for path in (ROOT / "runner" / "model").glob("*.py"):
        outside = {name.split(".")[0] for name in _imports(path)} - sys.stdlib_module_names - {"runner"}
        assert not outside, f"{path.name} imports {outside}"
