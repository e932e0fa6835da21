"""The consoles, and options and functions that several commands share."""

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from runner.errors import UsageError
from runner.nights.night import newest_records
from runner.paths import HOME, INSTALLED
from runner.plan.jobs import LOGS
from runner.store.runs import RunFolder
from runner.units import format_size, printable

SITE = HOME / "web" / "site"
_MOST_SENTENCES = 10
DEMO_STACKS = ("quic-go", "quinn", "aioquic")
TEST_STACKS = (*DEMO_STACKS, "qpep")  # the images that the default test suite needs


def _commands(text: str) -> str:
    return text.replace("./bentpipe", "bentpipe") if INSTALLED else text


class SafeConsole(Console):
    """Prints text from untrusted files without the text's control characters. The console's own colours stay. Sentences
    name the command of a checkout, `./bentpipe`; an installed program has no dot in front."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        shown = (
            segment if segment.control else Segment(printable(_commands(segment.text)), segment.style)
            for segment in buffer
        )
        return super()._render_buffer(shown)


out = SafeConsole(highlight=False)
err = SafeConsole(stderr=True, highlight=False)


yes_option = click.option("--yes", "-y", is_flag=True, help="Install and start missing programs without a question.")
cas_option = click.option(
    "--extra-cas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of *.crt files that the base image trusts in addition. [/usr/local/share/ca-certificates]",
)

rootless_option = click.option(
    "--rootless",
    type=click.Path(path_type=Path),
    is_flag=False,
    flag_value="images.tar",
    metavar="[ARCHIVE|FOLDER]",
    help="With --clock virtual: run without Docker and without root, with the images of an archive that `docker save` "
    "wrote, or of all *.tar in FOLDER. [without a value: images.tar]",
)


def lanes_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--lanes` of commands that run jobs."""
    return click.option(
        "--lanes",
        default=default,
        show_default=True,
        metavar="N|auto",
        help="Number of jobs at the same time. auto: as many as this host can run undisturbed.",
    )


class Skipped:
    """Prints a sentence for each unreadable part of a stored run: each sentence once, and at most ten sentences. Then
    one sentence says that there are more."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def __call__(self, sentence: str) -> None:
        if sentence in self._printed or len(self._printed) > _MOST_SENTENCES:
            return
        self._printed.add(sentence)
        text = (
            "more files were left out for similar reasons."
            if len(self._printed) > _MOST_SENTENCES
            else f"left out: {sentence}"
        )
        err.print(f"bentpipe: {text}", soft_wrap=True, markup=False)


def draw_site(folders: list[RunFolder], target: Path, skip: Callable[[str], None] | None = None) -> Path:
    """Draw the site of `folders` into `target`. Returns the path of its first page.

    A run that can't be drawn is left out, and `skip` is called with a sentence. Without `skip`, such a run is an error.
    """
    from runner.site import UndrawableRunError  # noqa: PLC0415 - plotly is slow to import

    drawable = list(folders)
    while True:
        if not drawable:
            raise UsageError("There is no run to draw in logs/: make one with ./bentpipe run or ./bentpipe demo.")
        try:
            _draw(drawable, target)
            return target / "index.html"
        except UndrawableRunError as error:
            if skip is None or len(drawable) == 1:
                raise
            skip(str(error))
            drawable = [folder for folder in drawable if folder.path != error.folder.path]


def write_single(folder: RunFolder, path: Path) -> str:
    """Draw one run into the HTML file `path`. Returns a sentence with its size."""
    from runner.site.writer import single  # noqa: PLC0415

    with TemporaryDirectory(prefix="bentpipe-") as drawn:
        _draw([folder], Path(drawn, "site"))
        content = single(Path(drawn, "site", folder.name), folder.run)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error
    return f"{path} ({format_size(len(content))})"


def _draw(folders: list[RunFolder], target: Path) -> None:
    from runner.site import render  # noqa: PLC0415

    nights = newest_records(LOGS)
    if err.is_terminal:
        with err.status("drawing the site") as status:
            render(folders, target, nights=nights, progress=lambda page: status.update(f"drawing {escape(page)}"))
    else:
        render(folders, target, nights=nights)
