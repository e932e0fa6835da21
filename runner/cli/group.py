"""The group of all commands. A command's module is imported only when the command is called, so that `--help` is
fast."""

import sys
from importlib import import_module
from pathlib import Path

import click

from runner.files import without_collection
from runner.paths import IMPLEMENTATIONS, VERSION

COMMANDS = {
    "analyse": ("read_commands", "Judge a stored run again, offline, and print the changed verdicts."),
    "build": ("host_commands", "Build the images of stacks and middleboxes, the simulator and the tools."),
    "check": ("run_commands", "Check an image or a local build before you submit it."),
    "ci": ("host_commands", "Compare two builds of a stack, and report what the change made worse."),
    "compare": ("read_commands", "Show the statistically significant changes from run A to run B."),
    "decode": ("decoding", "Decode the QUIC packets of any capture file."),
    "demo": (
        "run_commands",
        "Set everything up, run three stacks against each other over three links, and draw the site.",
    ),
    "doctor": ("host_commands", "Show what this host lacks, and how to install it."),
    "export": ("read_commands", "Write all results of a run, without packets, into one compressed file."),
    "history": ("read_commands", "Show each matrix cell over all runs: trend, change, rate of success."),
    "import": ("read_commands", "Make a run of a file of results, or add the file to a run."),
    "link-trace": ("read_commands", "Check a trace of a link, or make one of measurements, and print what is in it."),
    "list": ("host_commands", "List the stacks, middleboxes, cases and links."),
    "night": ("host_commands", "Run the matrix every night, as night.json describes (docs/nights.md)."),
    "packets": ("read_commands", "Show the decrypted packets of one job, as tshark reads them."),
    "plan": ("run_commands", "Show the jobs of a selection, with time, disk space and the data volume on real links."),
    "render": ("read_commands", "Draw the site from the results of runs."),
    "rules": ("read_commands", "List the rules of the RFCs, and where they are checked."),
    "run": ("run_commands", "Run the matrix."),
    "schema": ("read_commands", "Print the JSON Schema of a file format."),
    "serve": ("read_commands", "Serve the rendered site."),
    "show": ("read_commands", "Show one job: verdict, evidence, numbers."),
    "worker": ("host_commands", "Run jobs on many hosts (docs/workers.md)."),
    "test": ("host_commands", "Install what the tests need, then run the test suite."),
}
"""Name of a command → its module in `runner.cli`, and its line in `--help`."""


class LazyGroup(click.Group):
    """A group that knows the names of its commands before it imports them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with its options, or None when there is no command of that name."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            with without_collection():  # it takes a tenth of the start of `decode`
                import_module(f"runner.cli.{COMMANDS[cmd_name][0]}")
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Call the command. click ends with 1 when nobody reads the output, and in `compare` this has a meaning."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(3)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands from `COMMANDS`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(COMMANDS.items())])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="bentpipe")
@click.option(
    "--implementations",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with more stacks. Its entries are added to implementations.json and replace entries of the same name.",
)
@click.pass_context
def main(context: click.Context, implementations: Path | None) -> None:
    """Runs every QUIC client against every QUIC server over satellite links and judges both from their packets."""
    context.obj = implementations or IMPLEMENTATIONS
