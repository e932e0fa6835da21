"""The pages of a run. Every module of this package has a function `pages(view)`, which adds its pages to the run. The
modules are found automatically; there is no list of them.

Two constants of such a module are optional. `NAV` is its place in the navigation: (order, words, URL relative to the
run's folder). `NEEDS` limits its pages to some runs: "stacks" (runs with a case that tests stacks), "vias" (runs with a
middlebox). A page is a template of `web/templates` with its variables. An asset is a finished file.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from runner.model.run import ClientKind, Run


@dataclass(frozen=True)
class Page:
    """A page to draw. `path` is relative to the run's folder."""

    path: str
    template: str
    context: dict[str, Any]


@dataclass(frozen=True)
class Asset:
    """A file beside the pages."""

    path: str
    content: bytes


Pages = Iterator[Page | Asset]


@lru_cache(maxsize=1)
def _all() -> tuple[ModuleType, ...]:
    modules = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    return tuple(sorted(modules, key=lambda module: (getattr(module, "NAV", (99, "", "")), module.__name__)))


def has_stacks(run: Run) -> bool:
    """True when at least one case has a stack as its client, or when the run has no cases."""
    return any(case.client is ClientKind.STACK for case in run.cases.values()) or not run.cases


def modules(run: Run) -> tuple[ModuleType, ...]:
    """Every module with pages for this run, in the order of the navigation."""
    kinds = ("", *(["stacks"] if has_stacks(run) else []), *(["vias"] if any(run.vias) else []))
    return tuple(module for module in _all() if getattr(module, "NEEDS", "") in kinds)


def navigation(run: Run) -> list[tuple[str, str]]:
    """Words and URL of each entry of the navigation. URLs are relative to the run's folder."""
    return [module.NAV[1:] for module in modules(run) if hasattr(module, "NAV")]
