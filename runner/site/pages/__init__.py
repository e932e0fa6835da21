"""The pages of a run. Every module of this package that has a function `pages(view)` adds its pages to the run. The
modules are found automatically; there is no list of them.

Two constants of such a module are optional. `NAV` is its place in the navigation: (order, words, URL relative to the
run's folder). `NEEDS` limits its pages to some runs: "stacks" (runs with a case that tests stacks), "vias" (runs with a
middlebox). A page is a template of `web/templates` with its variables. An asset is a finished file.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runner.model.run import ClientKind, Run
from runner.site.view import RunView


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


@dataclass(frozen=True)
class Module:
    """One module of this package. `needs`: its constant `NEEDS`; empty when every run has the pages of the module."""

    name: str
    pages: Callable[[RunView], Pages]
    nav: tuple[int, str, str] | None
    needs: str


@lru_cache(maxsize=1)
def _all() -> tuple[Module, ...]:
    modules = []
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        if hasattr(module, "pages"):
            nav, needs = getattr(module, "NAV", None), getattr(module, "NEEDS", "")
            modules.append(Module(entry.name, module.pages, nav, needs))
    return tuple(sorted(modules, key=lambda module: (module.nav or (99, "", ""), module.name)))


def has_stacks(run: Run) -> bool:
    """True when at least one case has a stack as its client, or when the run has no cases."""
    return any(case.client is ClientKind.STACK for case in run.cases.values()) or not run.cases


def modules(run: Run) -> tuple[Module, ...]:
    """Every module with pages for this run, in the order of the navigation."""
    kinds = ("", *(["stacks"] if has_stacks(run) else []), *(["vias"] if any(run.vias) else []))
    return tuple(module for module in _all() if module.needs in kinds)


def navigation(run: Run) -> list[tuple[str, str]]:
    """Words and URL of each entry of the navigation. URLs are relative to the run's folder."""
    return [(module.nav[1], module.nav[2]) for module in modules(run) if module.nav is not None]
