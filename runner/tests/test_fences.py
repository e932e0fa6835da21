"""The rooms of the design, checked on the source: who may import whom, and who owns which third party."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from runner.paths import ROOT

MOST_ROOMS = 24
MOST_FLOORS = 9
BELOW_ALL = ("errors", "paths", "units")  # modules that every room may import and that import no room
LOOSE = {"__init__", "__main__", "collect", "store", *BELOW_ALL}  # modules of `runner/` itself
OUTSIDE = {"tests"}  # they import whatever they examine

JOBS = ("runner.lanes", "runner.guests", "runner.remote", "runner.workers", "runner.engine", "runner.images")
LOOP = ("runner.campaign", "runner.check", "runner.terminal", "runner.cli")
# room → rooms that it must not import although they may stand below it
FORBIDDEN = {
    "runner.render": (*JOBS, *LOOP, "testcases", "runner.decode", "runner.trace", "runner.diagnose", "runner.judge"),
    "runner.compare": (*JOBS, *LOOP, "testcases", "runner.decode", "runner.trace", "runner.judge"),
    "runner.store": (*JOBS, *LOOP, "testcases", "runner.decode", "runner.trace", "runner.diagnose"),
    "runner.judge": (*JOBS, *LOOP, "runner.render"),
    "testcases": (*JOBS, *LOOP, "runner.store", "runner.decode", "runner.judge", "runner.render"),
    **dict.fromkeys(JOBS, (*LOOP, "testcases", "runner.judge", "runner.render")),
}
OWNERS = {
    "click": ("runner.cli",),
    "docker": (*JOBS, "runner.check"),
    "paramiko": ("runner.remote",),
    "dask": ("runner.workers",),
    "distributed": ("runner.workers",),
    "jinja2": ("runner.render",),
    "cryptography": ("runner.decode", "runner.inputs", "runner.config.links"),
    "pydantic": ("runner.store", "runner.config", "runner.nights", "runner.render.exports"),
}
SOURCES = sorted(
    path
    for package in ("runner", "testcases")
    for path in (ROOT / package).rglob("*.py")
    if not OUTSIDE & set(path.parts)
)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _inside(module: str, area: str) -> bool:
    return module == area or module.startswith(area + ".")


def _room(module: str) -> str | None:
    """The room of a module: a package of `runner`, one of its loose modules, or `testcases`. None: not ours."""
    first, _, rest = module.partition(".")
    if first == "testcases":
        return first
    return rest.partition(".")[0] or None if first == "runner" else None


@cache
def _arrows() -> dict[str, set[str]]:
    """Room → rooms that it imports, without `BELOW_ALL`."""
    arrows: dict[str, set[str]] = {}
    for path in SOURCES:
        room = _room(_module(path))
        if room is not None and room not in {"__main__", *BELOW_ALL}:
            rooms = {_room(name) for name in _imports(path)}
            arrows.setdefault(room, set()).update(
                name for name in rooms if name is not None and name not in {room, *BELOW_ALL}
            )
    return arrows


def _floor(room: str, above: tuple[str, ...] = ()) -> int:
    """1 for a room that imports none. Fails on a circle."""
    assert room not in above, f"a circle: {' → '.join((*above, room))}"
    return 1 + max((_floor(below, (*above, room)) for below in _arrows().get(room, set())), default=0)


def test_rooms_are_few_and_stand_on_few_floors_without_a_circle() -> None:
    floors = {room: _floor(room) for room in _arrows()}
    assert len(floors.keys() - LOOSE) <= MOST_ROOMS, sorted(floors)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])


def test_no_module_lies_loose() -> None:
    assert {path.stem for path in (ROOT / "runner").glob("*.py")} <= LOOSE


@pytest.mark.parametrize("name", BELOW_ALL)
def test_the_lowest_modules_import_no_room(name: str) -> None:
    rooms = {_room(module) for module in _imports(ROOT / "runner" / f"{name}.py")} - {None, *BELOW_ALL}
    assert not rooms


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_a_room_keeps_to_its_fences(path: Path) -> None:
    module, imports = _module(path), set(_imports(path))
    for area, forbidden in FORBIDDEN.items():
        if _inside(module, area):
            crossed = {name for name in imports for fence in forbidden if _inside(name, fence)}
            assert not crossed, f"{module} must not import {', '.join(sorted(crossed))}"
    for library, owners in OWNERS.items():
        if any(_inside(name, library) for name in imports):
            assert any(_inside(module, owner) for owner in owners), f"{library} belongs to {', '.join(owners)}"


def test_the_model_needs_the_standard_library_alone() -> None:
    for path in (ROOT / "runner" / "model").glob("*.py"):
        outside = {name.split(".")[0] for name in _imports(path)} - sys.stdlib_module_names - {"runner"}
        assert not outside, f"{path.name} imports {outside}"


def test_lab_examines_the_product_and_is_no_part_of_it() -> None:
    for path in SOURCES:
        assert not any(_inside(name, "lab") for name in _imports(path)), f"{path} must not import lab"
    for path in (ROOT / "lab").rglob("*.py"):
        assert not any(_inside(name, "runner.tests") for name in _imports(path)), f"{path} must not import tests"
