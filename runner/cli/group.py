"""The group of commands. A command's module is imported when the command is called, so that `--help` is fast."""

from importlib import import_module
from pathlib import Path

import click

COMMANDS = {
    "analyse": ("reading", "Judge a stored run again, offline, and print the changed verdicts."),
    "build": ("hosting", "Build the images of NAMEs, stacks or middleboxes (all without any), the simulator and..."),
    "check": ("running", "Check an image or a local build before you submit it."),
    "compare": ("comparing", "Show the statistically significant changes from run A to run B."),
    "decode": ("reading", "Decode any capture of QUIC."),
    "demo": ("running", "Set everything up, run three stacks against each other over three links, draw the site."),
    "doctor": ("hosting", "Show what this host lacks, and how to mend it."),
    "history": ("comparing", "Show each matrix cell over all runs made like the newest one: trend, change, rate of..."),
    "list": ("hosting", "List the stacks, middleboxes, cases and links."),
    "night": ("nights", "Nightly runs: what night.json says (docs/nights.md)."),
    "plan": ("running", "Show the jobs of a selection with their time and disk space, and the volume of real links."),
    "render": ("reading", "Draw the site of the named runs (all without a name) from their results."),
    "run": ("running", "Run the matrix."),
    "schema": ("reading", "The JSON Schema of a file format: run, result, evidence, implementations, links,..."),
    "serve": ("reading", "Serve the rendered site."),
    "show": ("reading", "Show one job: verdict, evidence, numbers."),
    "test": ("hosting", "Set up what the tests need, then run the whole suite."),
}
"""Name → module of `runner.cli`, and the line of `--help`."""


class LazyGroup(click.Group):
    """Knows the names of its commands without having imported them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with its options; None: there is none of that name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            import_module(f"runner.cli.{COMMANDS[cmd_name][0]}")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, from `COMMANDS`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from runner.plan.runs import VERSION  # noqa: PLC0415 - slow to import

        click.echo(f"bentpipe, version {VERSION}")
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option(
    "--implementations",
    type=click.Path(dir_okay=False, path_type=Path),
    help="More stacks, beside those of implementations.json; a name of that list is replaced.",
)
@click.pass_context
def main(context: click.Context, implementations: Path | None) -> None:
    """Every QUIC client against every QUIC server over satellite links, judged from the packets."""
    from runner.config.catalog import IMPLEMENTATIONS  # noqa: PLC0415 - slow to import

    context.obj = implementations or IMPLEMENTATIONS
