"""The command `ci`: compares two builds of a stack."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from runner.cli.base import cas_option, draw_site, err, lanes_option, out, rootless_option, yes_option
from runner.cli.group import main
from runner.config.names import named, split
from runner.model.implementation import Role


@main.command()
@click.option("--base", required=True, metavar="IMAGE|COMMIT", help="The build before the change.")
@click.option("--head", required=True, metavar="IMAGE|COMMIT", help="The build with the change.")
@click.option(
    "--build", "command", metavar="COMMAND", help="Command that builds a commit's image and tags it as $IMAGE."
)
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    show_default="here",
    help="The git repository of --build.",
)
@click.option("--name", help="Name of the stack. [from the image's name]")
@click.option("--role", "roles", multiple=True, metavar="NAME", help="Roles of the stack: client, server. [both]")
@click.option(
    "--peer", "peers", multiple=True, metavar="NAME|all", help="Stacks to run against. [quic-go,quinn,aioquic]"
)
@click.option("--case", "cases", multiple=True, metavar="NAME", help="Cases to run. [all test cases, goodput, sat]")
@click.option(
    "--clock", type=click.Choice(["virtual", "real"]), default="virtual", show_default=True, help="As in `run`."
)
@rootless_option
@lanes_option("auto")
@click.option(
    "--least",
    type=click.FloatRange(0, 1000),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Report only delivery times that changed by at least PERCENT.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Seed of both builds. [random, recorded]")
@click.option("--run", metavar="DIR", help="Folder of the report and its evidence. [logs/ci/NAME-TIME]")
@click.option(
    "--url",
    default="",
    metavar="URL",
    help="URL at which the folder of --run will be published. Links of the report begin with it.",
)
@click.option(
    "--summary", type=click.Path(dir_okay=False, path_type=Path), help="Append the summary to this file, too."
)
@yes_option
@cas_option
@click.pass_obj
def ci(implementations: Path, /, base: str, head: str, **options: Any) -> None:
    """Compare two builds of a stack, and report what the change made worse.

    Both builds run the same jobs side by side. A failure of both builds does not count against the change.

    Exit codes: 0 nothing got worse · 1 something got worse · 2 bad input · 3 this host lacks something, or no cell
    could be decided.
    """
    from runner.check.builds import build_commits  # noqa: PLC0415 - docker is slow to import
    from runner.check.change_report import SITE  # noqa: PLC0415
    from runner.check.image_source import ArchivedImages, EngineImages  # noqa: PLC0415
    from runner.check.subject import PEERS  # noqa: PLC0415
    from runner.check.two_builds import BASE, HEAD, BuildOptions, compare_builds  # noqa: PLC0415

    rootless = options.pop("rootless")
    source = EngineImages() if rootless is None else ArchivedImages(rootless)
    catalog = source.catalog(implementations)
    peers = tuple(split(options.pop("peers"))) or PEERS
    if peers == ("all",):
        stacks = catalog.implementations.values()
        peers = tuple(stack.name for stack in stacks if stack.build and stack.kind == "stack" and not stack.is_over_tcp)
    images = {BASE: base, HEAD: head}
    command, repository = options.pop("command"), options.pop("repository")
    roles = named(options.pop("roles"), [role.value for role in Role], option="--role", kind="role")
    url, summary, least = options.pop("url"), options.pop("summary"), options.pop("least")
    if command:
        name = options["name"] or repository.resolve().name
        options["name"] = name
        images = build_commits(
            images,
            command=command,
            repository=repository,
            name=name.lower(),
            source=source,
            say=lambda text: out.print(text, markup=False),
        )
    chosen = BuildOptions(
        catalog=catalog,
        images=images,
        source=source,
        roles=tuple(map(Role, roles)),
        peers=peers,
        least=least / 100,
        **options,
    )
    report = replace(compare_builds(chosen, out=out, err=err), url=url)
    if report.changed:
        draw_site(list(report.folders.values()), report.path / SITE)
    paths = report.write()
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(report.markdown())
    for text in (report.markdown(), *map(str, paths)):
        out.print(text, soft_wrap=True, markup=False)
    sys.exit(report.verdict.value)
