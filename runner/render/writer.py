"""Templates, and the files of the site under one root."""

import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from runner.files.safe_files import remove_tree
from runner.model.link_words import real_link_sentences
from runner.render import charts, colour, drawing, words
from runner.render.cells import SIGNS
from runner.render.manifest import MARKER
from runner.render.metrics import BY_KEY, digits
from runner.render.pages import navigation
from runner.render.view import RunView, case_href, stack_href
from runner.units import format_data_rate, format_duration, format_size

WEB = Path(__file__).resolve().parents[2] / "web"
STATIC = "static"
BADGES = "badges"
LATEST = "latest"  # where the public runner's page looks for the newest result.json
SITE_FILES = ("index.html", "runs.html", "atom.xml", "logs.json", MARKER)
RESERVED = (STATIC, BADGES, LATEST, *SITE_FILES)
"""Names in the site's folder that no run may have."""
_PLACES = ("\0root\0", "\0base\0")  # stand for the ways to the site's and to the run's folder


@cache
def _environment() -> Environment:
    """Once for all writers: compiling the templates takes longer than drawing a small run."""
    found = Environment(
        loader=FileSystemLoader(WEB / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "moment": words.moment,
        "duration": format_duration,
        "data_rate": format_data_rate,
        "size": format_size,
        "digits": digits,
        "url": quote,
        "host": words.host_text,
        "subscript": words.subscript,
        "limit_class": drawing.limit_class,
        "shade": lambda fraction: f"e{colour.step_of(fraction)}",
        "stack_href": stack_href,
        "case_href": case_href,
    }
    found.globals |= {
        "real_link_sentences": real_link_sentences,
        "signs": SIGNS,
        "by_key": BY_KEY,
        "steps": colour.STEPS,
        "amount": words.amount,
        "mark_of": charts.key,
    }
    return found


class Writer:
    """Writes below `root`, which is to become `final`."""

    def __init__(self, root: Path, final: Path) -> None:
        self.root = root
        self.final = final
        self.templates = _environment()

    def load(self) -> None:
        """Compile all templates now, before processes are forked that would each do it."""
        for name in self.templates.list_templates():
            self.templates.get_template(name)

    def static(self) -> None:
        """Write the files that all pages load."""
        shutil.copytree(WEB / "static", self.root / STATIC, dirs_exist_ok=True)
        (self.root / STATIC / "scale.css").write_text(colour.stylesheet())

    def page(self, path: str, template: str, view: RunView, told: Mapping[str, Any], *, opens: bool = False) -> None:
        """A page of a run, `path` relative to the site. With `opens` the site begins with it, too: `index.html`."""
        here = path.partition("/")[2]
        # Rendered once for both places: an overview takes seconds.
        root, base = _PLACES if opens else ("../" * path.count("/"), "../" * here.count("/"))
        text = self._rendered(template, {"root": root, "base": base, "here": here, **_of(view), **told})
        if opens:
            self._write("index.html", _moved(text, "", f"{quote(view.name)}/"))
            text = _moved(text, "../" * path.count("/"), "../" * here.count("/"))
        self._write(path, text)

    def site_page(self, path: str, template: str, view: RunView, told: Mapping[str, Any]) -> None:
        """Write a page about all runs; its navigation is that of `view`."""
        told = {"root": "", "base": f"{quote(view.name)}/", "here": path, **_of(view), **told}
        self._write(path, self._rendered(template, told))

    def _rendered(self, template: str, told: Mapping[str, Any]) -> str:
        return self.templates.get_template(template).render(told)

    def _write(self, path: str, text: str) -> None:
        # An endpoint may have written half a character.
        self.file(path, text.encode("utf-8", "replace"))

    def file(self, path: str, content: bytes) -> None:
        """Replace the file as a whole, so that nobody reads a part of it."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(content)
        temporary.replace(target)

    def remove(self, path: str) -> None:
        """Remove a folder of the site with all that it holds. Raises UsageError for a path that leads out of it."""
        remove_tree(self.root, path)

    def tidy(self, cells: Iterable[str], pages: Iterable[str]) -> None:
        """Remove what is no part of the site. `cells` as `<run>/<pair>/<case>`, `pages` as `<run>/<path>`."""
        kept: dict[str, set[str]] = {"": set(RESERVED)}
        for path in (*pages, *(f"{cell}.html" for cell in cells), *cells):
            parts = path.split("/")
            for deep in range(len(parts)):
                kept.setdefault("/".join(parts[:deep]), set()).add(parts[deep])
        # Folders of jobs are not named: their cell was drawn as a whole.
        for folder, names in kept.items():
            if (self.root / folder).is_dir():
                _only(self.root / folder, names)


def _moved(text: str, root: str, base: str) -> str:
    """The text that was rendered with `_PLACES`, with the URLs of a place."""
    for mark, href in zip(_PLACES, (root, base), strict=True):
        text = text.replace(mark, href)
    return text


def _only(folder: Path, kept: set[str]) -> None:
    for entry in folder.iterdir():
        if entry.name not in kept:
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _of(view: RunView) -> dict[str, Any]:
    return {"run": view.run, "folder": view.name, "view": view, "navigation": navigation(view.run)}
