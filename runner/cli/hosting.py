"""Commands about this host and its stacks: doctor, list, build, test."""

import os
import sys
from pathlib import Path

import click

from runner.cli.base import TEST_STACKS, cas_option, err, out, yes_option
from runner.cli.group import main
from runner.config.catalog import load_catalog, load_implementations
from runner.config.emulated_links import declared_links
from runner.paths import IMPLEMENTATIONS, ROOT
from runner.terminal import tables
from runner.terminal.middleboxes import emulated_links_table, knobs_table, middleboxes_table


@main.command()
@click.option("--link", is_flag=True, help="Measure the emulated link: RTT, data rate, loss, with 1 and with N lanes.")
@click.option("--lanes", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of lanes for --link.")
@click.pass_obj
def doctor(implementations: Path, link: bool, lanes: int) -> None:
    """Show what this host lacks, and how to install it."""
    from runner.images import doctor as examination  # noqa: PLC0415 - docker is slow to import

    checks = examination.examine(load_implementations(implementations))
    if link:
        from runner.check.link_selftest import selftest  # noqa: PLC0415

        checks += selftest(lanes=lanes, progress=lambda line: out.print(f"[dim]{line}[/dim]"))
    out.print(tables.checks_table(checks))
    sys.exit(0 if all(check.ok for check in checks) else 3)


@main.command("list")
@click.pass_obj
def list_(implementations: Path) -> None:
    """List the stacks, middleboxes, cases and links."""
    from runner.campaign import stacks  # noqa: PLC0415 - docker is slow to import

    catalog = load_catalog(implementations)
    entries = catalog.implementations.values()
    boxes = {name: stacks.as_stack(entry) for name, entry in catalog.middleboxes.items()}
    sizes = stacks.image_sizes(stack.image for stack in (*entries, *boxes.values()))
    built = stacks.built_table([stack for stack in entries if stack.build is not None], sizes)
    published = stacks.published_table([stack for stack in entries if stack.build is None], sizes, width=out.width)
    cases = tables.cases_table(case.record() for case in catalog.cases.values())
    where = {name: stacks.where(box, sizes) for name, box in boxes.items()}
    out.print(built, "", published, "", cases, sep="\n")
    out.print("", middleboxes_table(catalog.middleboxes.values(), where), "", knobs_table(catalog.knobs), sep="\n")
    out.print("", emulated_links_table({name: link.record() for name, link in declared_links().items()}), sep="\n")


@main.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--pull", is_flag=True, help="Pull published images instead of building.")
@yes_option
@cas_option
@click.pass_obj
def build(implementations: Path, names: tuple[str, ...], pull: bool, yes: bool, extra_cas: Path | None) -> None:
    """Build the images of stacks and middleboxes, the simulator and the tools. Without NAME: all of them."""
    from runner.campaign import stacks  # noqa: PLC0415

    chosen = stacks.choose(load_catalog(implementations), names, pull=pull)
    stacks.build(chosen, pull=pull, yes=yes, extra_cas=extra_cas, out=out, err=err)


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--all", "everything", is_flag=True, help="Run the slow tests, too.")
@click.option("--yes", "-y", is_flag=True, help="Install and start missing programs without a question.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST ARGUMENTS]...")
def test(everything: bool, yes: bool, arguments: tuple[str, ...]) -> None:
    """Install what the tests need, then run the test suite."""
    from runner.campaign.stacks import as_stack, load_present  # noqa: PLC0415
    from runner.images.setup import prepare, prepare_tests  # noqa: PLC0415

    prepare_tests(assume_yes=yes, console=err)
    catalog = load_present(IMPLEMENTATIONS)
    stacks = [catalog.implementations[name] for name in TEST_STACKS]
    if everything:
        stacks = [stack for name, stack in catalog.implementations.items() if name not in catalog.absent]
        stacks += [as_stack(box) for box in catalog.middleboxes.values()]
    prepare(stacks, assume_yes=yes, extra_cas=None, console=err, guests=everything)
    marks = () if everything else ("-m", "not slow")
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *marks, *arguments])
