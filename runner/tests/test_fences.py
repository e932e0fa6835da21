"""The rooms of the design, checked on the source: who may import whom, and who owns which third party."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from runner.paths import ROOT

MOST_ROOMS = 18
MOST_MODULES = 128
MOST_FLOORS = 8
MOST_LINES = 900  # of a module; beyond, it is two subjects
BELOW_ALL = ("errors", "files", "paths", "units")  # modules that every room may import and that import no room
LOOSE = {"__init__", "__main__", "notebook", *BELOW_ALL}  # modules of `runner/` itself

JOBS = ("runner.places", "runner.engine", "runner.images")
LOOP = ("runner.campaign", "runner.check", "runner.terminal", "runner.cli")
# room → rooms that it must not import although they may stand below it
FORBIDDEN = {
    "runner.site": (*JOBS, *LOOP, "testcases", "runner.decode", "runner.trace", "runner.diagnose", "runner.judge"),
    "runner.compare": (*JOBS, *LOOP, "testcases", "runner.decode", "runner.trace", "runner.judge"),
    "runner.store.runs": (*JOBS, *LOOP, "testcases", "runner.decode", "runner.trace", "runner.diagnose"),
    "runner.judge": (*JOBS, *LOOP, "runner.site"),
    "testcases": (*JOBS, *LOOP, "runner.store", "runner.decode", "runner.judge", "runner.site"),
    **dict.fromkeys(JOBS, (*LOOP, "testcases", "runner.judge", "runner.site")),
    "runner.places.lanes": ("runner.decode",),
}
OWNERS = {
    "click": ("runner.cli",),
    "docker": (*JOBS, "runner.check"),
    "paramiko": ("runner.places.links",),
    "dask": ("runner.places.workers",),
    "distributed": ("runner.places.workers",),
    "jinja2": ("runner.site",),
    "cryptography": ("runner.decode", "runner.inputs", "runner.plan.links"),
    "pyshark": ("runner.notebook",),
    "pydantic": ("runner.store", "runner.plan", "runner.nights", "runner.site.exports"),
}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = sorted(
    path
    for package in ("runner", "testcases")
    for path in (ROOT / package).rglob("*.py")
    if not path.is_relative_to(ROOT / "runner" / "tests")
)
FILES = {_module(path): path for path in SOURCES}
TREES = {module: ast.parse(path.read_text()) for module, path in FILES.items()}
RUNNER = {module: path for module, path in FILES.items() if path.is_relative_to(ROOT / "runner")}


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _inside(module: str, area: str) -> bool:
    return module == area or module.startswith(area + ".")


def _room(module: str) -> str | None:
    """The room of a module: a package of `runner`, or `testcases`. None: not ours, or below all rooms."""
    first, _, rest = module.partition(".")
    if first == "testcases":
        return first
    room = rest.partition(".")[0]
    return room if first == "runner" and room and room not in LOOSE else None


@cache
def _arrows() -> dict[str, set[str]]:
    """Room → rooms that it imports."""
    arrows: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        if (room := _room(module)) is not None:
            arrows.setdefault(room, set()).update({_room(name) for name in _imports(tree)} - {room, None})  # type: ignore[arg-type]
    return arrows


def _floor(name: str, arrows: Mapping[str, set[str]], floors: dict[str, int], above: tuple[str, ...] = ()) -> int:
    """1 for a name that imports none. Fails on a circle."""
    assert name not in above, f"a circle: {' → '.join((*above, name))}"
    if name not in floors:
        below = (_floor(other, arrows, floors, (*above, name)) for other in sorted(arrows.get(name, set())))
        floors[name] = 1 + max(below, default=0)
    return floors[name]


def test_rooms_are_few_and_stand_on_few_floors_without_a_circle() -> None:
    floors: dict[str, int] = {}
    for room in _arrows():
        _floor(room, _arrows(), floors)
    assert len(floors.keys() - {"testcases"}) <= MOST_ROOMS, sorted(floors)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])


def test_modules_are_few_and_one_subject_each() -> None:
    modules = [path for path in RUNNER.values() if path.stem not in {"__init__", "__main__"}]
    assert len(modules) <= MOST_MODULES, "merge modules about the same subject"
    assert not [path for path in modules if len(path.read_text().splitlines()) > MOST_LINES], "split by subject"


def test_no_file_imports_itself_over_others() -> None:
    arrows = {module: {name for name in _imports(TREES[module]) if name in RUNNER} - {module} for module in RUNNER}
    for module, names in arrows.items():  # `from package import module` imports the module
        packages = {name for name in names if RUNNER[name].stem == "__init__"}
        names -= {package for package in packages if any(_inside(name, package) for name in names - {package})}
        names.discard(module)
    floors: dict[str, int] = {}
    for module in RUNNER:
        _floor(module, arrows, floors)


def test_no_class_and_no_module_has_the_name_of_another() -> None:
    classes = Counter(
        node.name
        for module in RUNNER
        for node in TREES[module].body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    modules = Counter(path.stem for path in RUNNER.values() if path.stem not in {"__init__", "__main__"})
    assert not [name for name, count in (classes + modules).items() if count > 1]


def test_no_module_lies_loose() -> None:
    assert {path.stem for path in (ROOT / "runner").glob("*.py")} <= LOOSE


@pytest.mark.parametrize("name", BELOW_ALL)
def test_the_lowest_modules_import_no_room(name: str) -> None:
    assert {_room(module) for module in _imports(TREES[f"runner.{name}"])} <= {None}


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_room_keeps_to_its_fences(module: str) -> None:
    imports = set(_imports(TREES[module]))
    assert not any(_inside(name, "lab") for name in imports), "lab examines the product and is no part of it"
    for area, forbidden in FORBIDDEN.items():
        if _inside(module, area):
            crossed = {name for name in imports for fence in forbidden if _inside(name, fence)}
            assert not crossed, f"{module} must not import {', '.join(sorted(crossed))}"
    for library, owners in OWNERS.items():
        if any(_inside(name, library) for name in imports):
            assert any(_inside(module, owner) for owner in owners), f"{library} belongs to {', '.join(owners)}"


def test_lab_imports_no_tests() -> None:
    for path in (ROOT / "lab").rglob("*.py"):
        names = _imports(ast.parse(path.read_text()))
        assert not any(_inside(name, "runner.tests") for name in names), f"{path} must not import tests"


def test_the_model_needs_the_standard_library_alone() -> None:
    for module in FILES:
        if _inside(module, "runner.model"):
            outside = {name.split(".")[0] for name in _imports(TREES[module])} - sys.stdlib_module_names - {"runner"}
            assert not outside, f"{module} imports {outside}"
