"""The options of `run` and `plan` that ask for paths instead of pairs."""

import functools
from collections.abc import Callable
from typing import Any

import click

_OPTIONS = ("paths", "workloads", "sizes", "losses", "warm")


def path_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Paths and workloads; the links under them are named with `--link`, which each command has."""
    options = (
        click.option("--path", "paths", multiple=True, metavar="NAME", help="Instead of pairs: VPNs, PEPs. [all]"),
        click.option("--workload", "workloads", multiple=True, metavar="NAME", help="Over paths. [goodput, page]"),
        click.option("--size", "sizes", multiple=True, metavar="BYTES|all", help="Of downloads over paths."),
        click.option("--loss", "losses", multiple=True, metavar="0…1|all", help="On the satellite link of paths."),
        click.option("--warm", is_flag=True, help="Everything over paths twice; the second time counts."),
    )
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """The options of paths, taken out of `options`; `links` are those under paths only when paths are asked for."""
    found = {name: options.pop(name) for name in _OPTIONS}
    return {**found, "links": options.get("links", ())}
