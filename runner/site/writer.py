"""Renders templates on all cores and writes the files of the site."""

import gc
import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from runner.files import remove_tree
from runner.model.link import real_link_sentences
from runner.model.result import BY_KEY, Outcome
from runner.model.run import Run
from runner.model.stack import carried, exchanged
from runner.paths import ROOT
from runner.site import charts
from runner.site.charts import limit_class
from runner.site.pages import navigation
from runner.site.view import MARKER, NO_BREAK, STEPS, RunView, amount, case_href, moment, stack_href, step_of
from runner.units import format_data_rate, format_digits, format_duration, format_size, printable

WEB = ROOT / "web"
STATIC = "static"
BADGES = "badges"
LATEST = "latest"  # a page for each stack; the public runner's page also loads the newest result.json from here
TONIGHT = "tonight.html"
ROBUSTNESS = "robustness.html"
REPORTS = "robustness"  # folder of the stacks' reports
SITE_FILES = ("index.html", "runs.html", TONIGHT, ROBUSTNESS, "atom.xml", "logs.json", MARKER)
RUN_DOCUMENT = "downloads/run.json.gz"
"""The path of the whole run, relative to the run's folder. Compression makes it seven to ten times smaller."""
RESERVED = (STATIC, BADGES, LATEST, REPORTS, *SITE_FILES)
"""Names that the site's folder uses itself. No run may have one of these names."""


_SUBSCRIPT = re.compile(r"(?<=η)_(\w+)")


def host_text(host: Mapping[str, str]) -> str:
    """`lab-7, 2 cores, python 3.11.2, system Linux-6.1`: the name first, other properties after their keys."""
    others = {key: value for key, value in host.items() if key not in ("name", "cores")}
    named = [host["name"]] if "name" in host else []
    cores = [f"{host['cores']}{NO_BREAK}cores"] if "cores" in host else []
    return ", ".join([*named, *cores, *(f"{key} {value}" for key, value in others.items())])


@lru_cache(maxsize=512)  # every page has the same labels and formulas
def subscript(text: str) -> Markup:
    """`text` escaped; the index after `η_` becomes a subscript."""
    return Markup(_SUBSCRIPT.sub(r"<sub>\1</sub>", str(escape(text))))


# Characters of `units.UNPRINTABLE` as JSON escapes them. Surrogates are left out, because JSON escapes pairs of them.
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:[bfr]|u(?:00[01]|007f|00[89]|061c|200[ef]|202[89a-e]|206[6-9]|feff))")


def script_json(document: Any, **options: Any) -> str:
    """JSON for a script of a page, which shows its texts. See `units.printable`."""
    return printable_json(json.dumps(document, ensure_ascii=False, **options))


def printable_json(text: str) -> str:
    """The same JSON, with U+FFFD in the place of unprintable characters in its texts, escaped or not."""
    return _ESCAPED.sub("\\1\N{REPLACEMENT CHARACTER}", printable(text))


@cache
def _environment() -> Environment:
    """The templates. All writers share them, because compiling them takes longer than drawing a small run."""
    environment = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = script_json
    environment.filters |= {
        "moment": moment,
        "stamp": lambda unix_s: f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "duration": format_duration,
        "data_rate": format_data_rate,
        "size": format_size,
        "digits": format_digits,
        "url": quote,
        "host": host_text,
        "subscript": subscript,
        "limit_class": limit_class,
        "for_case": lambda text, case: type(text)(exchanged(text)) if case.upload else text,
        "shade": lambda fraction: f"e{step_of(fraction)}",
        "stack_href": stack_href,
        "case_href": case_href,
    }
    environment.globals |= {
        "real_link_sentences": real_link_sentences,
        "signs": {outcome: outcome.sign for outcome in Outcome},
        "by_key": BY_KEY,
        "steps": STEPS,
        "amount": amount,
        "carried": carried,
        "mark_of": charts.key,
        "run_document": RUN_DOCUMENT,
    }
    return environment


def rendered(template: str, context: Mapping[str, Any]) -> bytes:
    """The template with these variables, without characters that hide or reverse other text."""
    return printable(_environment().get_template(template).render(context)).encode()


class Writer:
    """Writes below `root`, the folder that later becomes `final`."""

    def __init__(self, root: Path, final: Path) -> None:
        self.root = root
        self.final = final

    def load(self) -> None:
        """Compile all templates now. Otherwise each forked process would have to compile them again."""
        for name in _environment().list_templates():
            _environment().get_template(name)

    def static(self) -> None:
        """Write the files that all pages load."""
        shutil.copytree(WEB / "static", self.root / STATIC, dirs_exist_ok=True)

    def page(self, path: str, template: str, view: RunView, context: Mapping[str, Any], *, of_run: bool = True) -> None:
        """Write a page of a run or, without `of_run`, a page about all runs, whose navigation is that of `view`. `path`
        is relative to the site."""
        root = "../" * path.count("/")
        here = path.partition("/")[2] if of_run else f"../{path}"
        base = "../" * here.count("/") if of_run else f"{root}{quote(view.name)}/"
        places = {"root": root, "base": base, "here": here}
        about = {"run": view.run, "folder": view.name, "view": view, "navigation": navigation(view.run)}
        self.file(path, rendered(template, {**places, **about, **context}))

    def file(self, path: str, content: bytes) -> None:
        """Replace the file atomically. A file that already has this content is not touched."""
        target = self.root / path
        if target.is_file() and target.read_bytes() == content:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(target)

    def remove(self, path: str) -> None:
        """Remove a folder of the site with its contents. Raises UsageError for a path that leads out of the site."""
        remove_tree(self.root, path)

    def keep_only(self, path: str, names: set[str]) -> None:
        """Remove everything in a folder of the site except `names`. The folder may be missing."""
        folder = self.root / path
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name in names:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def tidy(self, cells: Iterable[str], pages: Iterable[str]) -> None:
        """Remove files that don't belong to the site. `cells` as `<run>/<pair>/<case>`, `pages` as `<run>/<path>`."""
        kept: dict[str, set[str]] = {"": set(RESERVED)}
        for path in (*pages, *(f"{cell}.html" for cell in cells), *cells):
            parts = path.split("/")
            for deep in range(len(parts)):
                kept.setdefault("/".join(parts[:deep]), set()).add(parts[deep])
        # The files in a cell's folder are not checked, because a cell is always drawn as a whole.
        for folder, names in kept.items():
            self.keep_only(folder, names)


# Applies a function to many items on all cores.

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]  # called with the number of finished items and the number of all items
_CHUNKS = 32  # per process; small chunks let all processes end at nearly the same time

_work: Callable[[Any], Any] | None = None


def every(things: Sequence[T], work: Callable[[T], R], *, least: int, progress: Progress | None = None) -> list[R]:
    """Apply `work` to each item and return the results in the order of the items.

    With fewer than `least` items, or with one core, this process does all the work. Otherwise it forks one process for
    each core. Because the processes are forked, `work` may be any function, and it can read this process's memory. Its
    return value is pickled. Ctrl-C ends all these processes.
    """
    cores = len(os.sched_getaffinity(0))
    if cores < 2 or len(things) < least:
        return list(_counted(map(work, things), len(things), progress))
    global _work  # noqa: PLW0603 - a forked process inherits it, so the function needs no pickling
    _work = work
    gc.freeze()  # garbage collection writes to all objects, so each forked process would copy their memory pages
    try:
        with multiprocessing.get_context("fork").Pool(cores, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            size = max(1, len(things) // (cores * _CHUNKS))
            return list(_counted(pool.imap(_call, things, chunksize=size), len(things), progress))
    finally:
        _work = None
        gc.unfreeze()


def _counted(results: Iterable[R], of: int, progress: Progress | None) -> Iterator[R]:
    for number, result in enumerate(results, start=1):
        if progress is not None:
            progress(number, of)
        yield result


def _call(thing: Any) -> Any:
    assert _work is not None  # set before the fork
    return _work(thing)


# One HTML file with the pages of a run, for papers, issues and mails.

_LEFT_OUT = ("compare.html", "downloads/index.html")  # about other runs, and lists of files
_MAIN = re.compile(r"<main[^>]*>(.*)</main>", re.DOTALL)
_TAG = re.compile(r"<[a-zA-Z][^<>]*>")
_IDS = re.compile(r' (id|for|aria-labelledby|aria-describedby|aria-controls)="([^"]*)"')
_HREF = re.compile(r' href="([^"]*)"')


def single(folder: Path, run: Run) -> bytes:
    """One HTML file, which loads nothing, with the pages of the run drawn in `folder`, but not its cells. A link
    to a page that is not in the file becomes plain text."""
    folders = dict.fromkeys(dirname(href) for _, href in navigation(run) if href not in _LEFT_OUT)
    paths = [
        path
        for place in folders
        for path in sorted((folder / place).glob("*.html"), key=lambda path: (path.name != "index.html", path.name))
    ]
    pages = {path.relative_to(folder).as_posix(): path.read_text() for path in paths}
    for path in _LEFT_OUT:
        pages.pop(path, None)
    slugs = {path: re.sub(r"\W+", "-", path.removesuffix(".html")) for path in pages} | {"index.html": "main"}
    sections = [
        (slugs[path], Markup(_within(path, match[1], slugs)))
        for path, text in pages.items()
        if (match := _MAIN.search(text))
    ]
    static = folder.parent / STATIC
    style, scripts = (
        [Markup((static / name).read_text()) for name in names]
        for names in (("style.css", "scale.css"), ("theme.js", "run.js"))
    )
    template = _environment().get_template("single.html")
    places = [(words, slugs[href]) for words, href in navigation(run) if href in slugs]
    return template.render(
        name=folder.name, run=run, style=style, scripts=scripts, navigation=places, sections=sections
    ).encode()


def _within(path: str, html: str, slugs: Mapping[str, str]) -> str:
    """The HTML of a page as a section: its links lead to other sections, and its ids are those of this page alone."""

    def tag(match: re.Match[str]) -> str:
        return _HREF.sub(lambda link: _section_link(path, link[1], slugs), _IDS.sub(named, match[0]))

    def named(match: re.Match[str]) -> str:
        ids = " ".join(_own(path, each, slugs) for each in match[2].split())
        return f' {match[1]}="{ids}"'

    return _TAG.sub(tag, html)


def _own(path: str, name: str, slugs: Mapping[str, str]) -> str:
    return name if path == "index.html" else f"{slugs[path]}--{name}"


def _section_link(path: str, href: str, slugs: Mapping[str, str]) -> str:
    """The attribute `href` within the file; empty when the page that it names doesn't come along."""
    if href.startswith(("https:", "http:")):
        return f' href="{href}"'
    where, _, fragment = href.partition("#")
    target = _target(path, where) if where else path
    if target not in slugs:
        return ""
    if "=" in fragment:  # the state of the overview
        return f' href="#{fragment}"'
    return f' href="#{_own(target, fragment, slugs) if fragment else slugs[target]}"'


def _target(path: str, href: str) -> str:
    """The page, relative to the run's folder, to which a link on the page `path` leads."""
    return normpath(f"{dirname(path)}/{unquote(href)}").lstrip("/")
