"""The consoles, and options and functions that several commands share."""

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.types import FuncParamType
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment

from runner.errors import UsageError
from runner.model.run import Pause
from runner.paths import HOME, INSTALLED, LOGS
from runner.plan.options import JobOptions
from runner.units import format_size, printable

if TYPE_CHECKING:
    from runner.store.runs import RunFolder

T = TypeVar("T", bound=JobOptions)
SITE = HOME / "web" / "site"
_MOST_SENTENCES = 10
DEMO_STACKS = ("quic-go", "quinn", "aioquic")
TEST_STACKS = (*DEMO_STACKS, "qpep")  # the images that the default test suite needs


class SafeConsole(Console):
    """Prints text from untrusted files without the text's control characters. The console's own colours stay. Sentences
    name the command of a checkout, `./bentpipe`; an installed program has no dot in front. Sentences are not wrapped: a
    terminal does that, and a path or a command in two lines can't be copied."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        """Print as `Console` does; texts with soft wrap."""
        texts = all(isinstance(each, str) for each in objects)
        super().print(*objects, soft_wrap=texts if soft_wrap is None else soft_wrap, **how)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        command = "bentpipe" if INSTALLED else "./bentpipe"
        shown = (
            segment
            if segment.control
            else Segment(printable(segment.text.replace("./bentpipe", command)), segment.style)
            for segment in buffer
        )
        return super()._render_buffer(shown)


_FILE = 132  # columns of tables in a file or in the log of a CI; rich's 80 would wrap most rows


def _columns() -> int | None:
    """The width of output that no terminal shows; None when a terminal or the user decides."""
    chosen = "COLUMNS" in os.environ or any(os.isatty(descriptor) for descriptor in range(3))
    return None if chosen else _FILE


out = SafeConsole(highlight=False, emoji=False, width=_columns())  # an IPv6 address like fd00::100:1 is no emoji
err = SafeConsole(stderr=True, highlight=False, emoji=False, width=_columns())


def options_of(
    declared: type[T],
    names: Collection[str] | None = None,
    arguments: Collection[str] = (),
    **changes: Mapping[str, Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that the dataclass `declared` has; with `names`, only these fields. The command gets them as one
    object, its first argument.

    `arguments`: parameters of the command itself that are fields of this object, too; all others stay parameters of the
    command. `changes`: other metadata or another default for this command, by field.
    """
    hints, own, common = get_type_hints(declared), fields(declared), {entry.name for entry in fields(JobOptions)}
    wanted = [entry for entry in own if "help" in entry.metadata and (names is None or entry.name in names)]
    wanted.sort(key=lambda entry: entry.name in common)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.pass_obj
        @functools.wraps(command)
        def called(implementations: Path, /, **parsed: Any) -> None:
            values = {name: parsed.pop(name) for name in (*(entry.name for entry in wanted), *arguments)}
            command(declared(implementations=implementations, **values), **parsed)

        for entry in reversed(wanted):
            how = {"default": entry.default, **entry.metadata, **changes.get(entry.name, {})}
            called = click_option(entry.name, hints[entry.name], **how)(called)
        return called

    return decorate


def click_option(name: str, hint: Any, **how: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option of a field, from its name, its type and its metadata (`runner.plan.options.option`)."""
    kinds = get_args(hint) or (hint,)
    many = get_origin(hint) is tuple
    kind: Any = kinds[0]
    if choices := how.get("choices"):
        kind = click.Choice(choices)
    elif kind is Path:
        file, folder = how.get("file", False), how.get("folder", False)
        kind = click.Path(exists=how.get("exists", False), file_okay=not folder, dir_okay=not file, path_type=Path)
    elif limits := how.get("limits"):
        kind = (click.IntRange if kind is int else click.FloatRange)(*limits)
    more: dict[str, Any] = {"multiple": True} if many else {"default": how["default"]}
    if how.get("required"):
        more = {"required": True}
    if kind is bool:
        more |= {"is_flag": True}
    if kind is Pause:
        kind = FuncParamType(Pause.parse)
    if "alone" in how:
        more |= {"is_flag": False, "flag_value": how["alone"]}
    return click.option(
        *(how["names"] or (f"--{name.replace('_', '-')}",)),
        name,
        type=kind,
        help=how["help"],
        metavar=how.get("metavar"),
        show_default=how.get("shown", False),
        **more,
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
        err.print(f"bentpipe: {text}", markup=False)


def draw_site(folders: "list[RunFolder]", target: Path, skip: Callable[[str], None] | None = None) -> Path:
    """Draw the site of `folders` into `target`. Returns the path of its first page.

    A run that can't be drawn is left out, and `skip` is called with a sentence. Without `skip`, such a run is an error.
    """
    from runner.site import UndrawableRunError

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


def write_single(folder: "RunFolder", path: Path) -> str:
    """Draw one run into the HTML file `path`. Returns a sentence with its size."""
    from runner.site.writer import single

    with TemporaryDirectory(prefix="bentpipe-") as drawn:
        _draw([folder], Path(drawn, "site"))
        content = single(Path(drawn, "site", folder.name), folder.run)
    write_output(path, content)
    return f"{path} ({format_size(len(content))})"


def write_output(path: Path, content: bytes) -> None:
    """Write a file that the user named: all of it, or nothing. Raises UsageError when it can't be written."""
    from runner.store.runs import write_atomically

    target = path.resolve()
    try:
        if target.is_file() or not target.exists():
            write_atomically(target, content)
        else:
            target.write_bytes(content)  # a device, such as /dev/stdout
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}.") from error


def _draw(folders: "list[RunFolder]", target: Path) -> None:
    from runner.nights.night import newest_records
    from runner.site import render

    nights = newest_records(LOGS)
    if err.is_terminal:
        with err.status("drawing the site") as status:
            render(folders, target, nights=nights, progress=lambda page: status.update(f"drawing {escape(page)}"))
    else:
        render(folders, target, nights=nights)
