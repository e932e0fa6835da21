"""The pages of a run. A module here with `pages(view)` adds its own; nothing else has to know of it.

`NAV`, when it has one, is its place in the navigation: (order, words, URL relative to the run's folder). `OF`, when it
has one, says of which runs its pages are: "stacks" (some case asks stacks), "loads" (none does), "vias".
A page is a template of `web/templates` and what it is told; an asset is a file as it is.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from runner.model.run import ClientKind, Run
from runner.render.view import RunView


@dataclass(frozen=True)
class Page:
    """`path` is relative to the run's folder."""

    path: str
    template: str
    told: dict[str, Any]


@dataclass(frozen=True)
class Asset:
    """A file beside the pages."""

    path: str
    content: bytes


Pages = Iterator[Page | Asset]


@dataclass(frozen=True)
class Module:
    """One module of this package. `of`: of which runs its pages are, empty: of all."""

    name: str
    pages: Callable[[RunView], Pages]
    nav: tuple[int, str, str] | None
    of: str


@lru_cache(maxsize=1)
def _all() -> tuple[Module, ...]:
    found = []
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        if hasattr(module, "pages"):
            found.append(Module(entry.name, module.pages, getattr(module, "NAV", None), getattr(module, "OF", "")))
    return tuple(sorted(found, key=lambda one: (one.nav or (99, "", ""), one.name)))


def modules(run: Run) -> tuple[Module, ...]:
    """Every module with pages of such a run, in the order of the navigation."""
    stacks = any(case.client is ClientKind.STACK for case in run.cases.values()) or not run.cases
    kinds = ("", "stacks" if stacks else "loads", *(["vias"] if any(run.vias) else []))
    return tuple(one for one in _all() if one.of in kinds)


def navigation(run: Run) -> list[tuple[str, str]]:
    """Words and URL of each place, relative to the run's folder."""
    return [(one.nav[1], one.nav[2]) for one in modules(run) if one.nav is not None]
