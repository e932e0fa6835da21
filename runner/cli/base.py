"""The consoles, and what several commands share."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from runner.config.catalog import ROOT
from runner.errors import UsageError
from runner.store import RunFolder

SITE = ROOT / "web" / "site"
_MOST_TOLD = 10  # sentences
DEMO_STACKS = ("quic-go", "quinn", "aioquic")
TEST_STACKS = (*DEMO_STACKS, "qpep")  # what the tests of the default suite run

# Control characters, those that turn the order of text round, and halves of characters, which no terminal's encoding
# has: images write them into logs, names and readings.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class SafeConsole(Console):
    """Prints what strangers wrote without letting it command the terminal; its own colours stay."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        shown = (
            one if one.control else Segment(_COMMANDS.sub("\N{REPLACEMENT CHARACTER}", one.text), one.style)
            for one in buffer
        )
        return super()._render_buffer(shown)


out = SafeConsole(highlight=False)
err = SafeConsole(stderr=True, highlight=False)


yes_option = click.option("--yes", "-y", is_flag=True, help="Install and start what is missing without asking.")
cas_option = click.option(
    "--extra-cas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of *.crt that the base image trusts too. [/usr/local/share/ca-certificates]",
)


class Skipped:
    """Tells, once each, what of a stored run is left out because it can't be read; beyond ten that there is more."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def __call__(self, sentence: str) -> None:
        if sentence in self._told or len(self._told) > _MOST_TOLD:
            return
        self._told.add(sentence)
        text = "more is left out for the like." if len(self._told) > _MOST_TOLD else f"left out: {sentence}"
        err.print(f"bentpipe: {text}", soft_wrap=True, markup=False)


def draw_site(folders: list[RunFolder], target: Path, skip: Callable[[str], None] | None = None) -> Path:
    """Draw the site of `folders` into `target`; the path of its first page.

    `skip`: told a sentence for each run that can't be drawn, which is then left out; None: such a run is an error.
    """
    from runner.render import UndrawableRunError  # noqa: PLC0415 - plotly is slow to import

    left = list(folders)
    while True:
        if not left:
            raise UsageError("There is no run to draw in logs/: begin one with ./bentpipe run, or ./bentpipe demo.")
        try:
            _draw(left, target)
            return target / "index.html"
        except UndrawableRunError as error:
            if skip is None or len(left) == 1:
                raise
            skip(str(error))
            left = [folder for folder in left if folder.path != error.folder.path]


def _draw(folders: list[RunFolder], target: Path) -> None:
    from runner.render import render  # noqa: PLC0415

    if err.is_terminal:
        with err.status("drawing the site") as status:
            render(folders, target, progress=lambda what: status.update(f"drawing {escape(what)}"))
    else:
        render(folders, target)
