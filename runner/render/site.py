"""Runs → a folder of static files. Works from `file://`, with scripts off, and fetches nothing from outside."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup

from runner.compare import RunMeans
from runner.errors import BentpipeError, UsageError
from runner.render import feed, parallel
from runner.render.cell_pages import draw_cells
from runner.render.manifest import MARKER, Manifest, digest, files_digest
from runner.render.pages import Asset, modules
from runner.render.view import Key, RunView, StoredRun, levels_of
from runner.render.writer import BADGES, LATEST, RESERVED, WEB, Writer
from runner.store import RunFolder


class UndrawableRunError(BentpipeError):
    """A run that can't be drawn, though it could be read: a fault of ours, which must cost that run alone."""

    def __init__(self, folder: RunFolder, error: Exception) -> None:
        super().__init__(
            f"{folder.path} can't be drawn ({type(error).__name__}: {error}), which is a fault of bentpipe."
        )
        self.folder = folder


def render(folders: Sequence[RunFolder], target: Path, *, progress: Callable[[str], None] | None = None) -> None:
    """Draw the site of `folders`, the newest first, into `target`.

    In an existing site only changed pages are drawn again; files that don't belong to it are removed. Raises
    UsageError when `target` holds something else, when it can't be written, or when two things have the same name, and
    UndrawableRunError.
    `progress` gets the name of the page being drawn, many times a second.
    """
    ordered = sorted(folders, key=lambda folder: folder.run.started_unix_s, reverse=True)
    repeated = {folder.name for folder in ordered if [other.name for other in ordered].count(folder.name) > 1}
    repeated |= {folder.name for folder in ordered if folder.name in RESERVED}
    if repeated:
        raise UsageError(f"Two things of the site would be called '{min(repeated)}': rename a run's folder.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not (target / MARKER).is_file():
        raise UsageError(f"{target} holds something else than a site of bentpipe: choose another --out.")
    try:
        _draw([StoredRun.of(folder) for folder in ordered], target, progress or (lambda _: None))
    except OSError as error:
        raise UsageError(f"The site can't be written to {target}: {error.strerror or error}.") from error


def _draw(folders: Sequence[StoredRun], target: Path, progress: Callable[[str], None]) -> None:
    """In place where the same program drew what is there, else beside it and then swapped."""
    before = Manifest.load(target, _program())
    if before.runs:
        (target / MARKER).write_text("")
        _Site(Writer(target, target), folders, before, progress).draw()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        _Site(Writer(staging, target), folders, before, progress).draw()
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        if target.exists():
            target.rename(old)
        staging.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _program() -> str:
    """Digest of what draws: another program draws everything anew."""
    here = Path(__file__).parents[1]
    code = [
        *here.glob("render/**/*.py"),
        *here.glob("stats/*.py"),
        *here.glob("compare/*.py"),
        *here.glob("model/*.py"),
    ]
    web = [path for folder in ("templates", "static") for path in (WEB / folder).iterdir()]
    return files_digest([*code, *web])


class _Site:
    """One drawing."""

    def __init__(
        self, writer: Writer, folders: Sequence[StoredRun], before: Manifest, progress: Callable[[str], None]
    ) -> None:
        self.progress = progress
        self.writer = writer
        self.folders = folders
        self.before = before
        self.after = Manifest(program=before.program, newest=folders[0].name)
        self.views: dict[str, RunView] = {}  # of the runs that are drawn

    def draw(self) -> None:
        """Everything that changed, then away with what is no longer part of the site."""
        if not self.before.runs:
            self.writer.static()
        states = {folder.name: self._state(folder) for folder in self.folders}
        for folder in self.folders:
            known = self.before.runs.get(folder.name)
            if known is not None and known["state"] == states[folder.name]:
                folder.levels = levels_of(known["levels"])
                folder.means = RunMeans.load(folder.run, known["means"])
        for folder in self.folders:
            try:
                self._run(folder, states)
            except (BentpipeError, OSError):
                raise
            except Exception as error:
                raise UndrawableRunError(folder, error) from error
        self._of_all()
        self.writer.tidy(set(self.after.cells), self._kept())
        self.after.save(self.writer.root)

    def _state(self, folder: StoredRun) -> str:
        return digest([(folder.path / "run.json").read_bytes(), *folder.states.items()])

    def _run(self, folder: StoredRun, states: dict[str, str]) -> None:
        """Draw the pages of one run, unless neither the run nor any run that its pages show has changed."""
        view = RunView(folder, self.folders)
        inputs = digest([states[one.name] for one in view.alike])
        known = self.before.runs.get(folder.name)
        prefix = f"{folder.name}/"
        moved = folder.name == self.after.newest != self.before.newest
        if known is not None and known["inputs"] == inputs and not moved:
            self.after.runs[folder.name] = known
            self.after.cells |= {key: one for key, one in self.before.cells.items() if key.startswith(prefix)}
            return
        self.views[folder.name] = view
        self.writer.load()
        kept = {key: one for key, one in self.before.cells.items() if key.startswith(prefix)}
        tell = self.progress
        drawn = draw_cells(view, self.writer, kept, lambda done, of: tell(f"{folder.name}: {done:,} of {of:,} cells"))
        tell(f"{folder.name}: its pages")
        self.after.cells |= drawn
        view.sparks |= {_key(view, name): Markup(spark) for name, (_, spark) in drawn.items()}
        told = feed.entry(view)  # here, as are the rankings, and not once in every process
        view.prepare()
        paths = parallel.every(modules(view.run), lambda module: self._module(view, module.name), least=2)
        self.after.runs[folder.name] = {
            "inputs": inputs,
            "state": states[folder.name],
            "levels": folder.levels,
            "means": folder.means.document(),
            "paths": sorted(path for some in paths for path in some),
            "entry": told,
        }

    def _module(self, view: RunView, name: str) -> list[str]:
        """Write the pages of one module and return their paths. The first page of the newest run is also the first
        page of the site."""
        (module,) = (one for one in modules(view.run) if one.name == name)
        found = []
        for one in module.pages(view):
            path = f"{view.name}/{one.path}"
            if isinstance(one, Asset):
                self.writer.file(path, one.content)
            else:
                opens = path == f"{self.after.newest}/index.html"
                self.writer.page(path, one.template, view, one.told, opens=opens)
            found.append(one.path)
        return found

    def _of_all(self) -> None:
        """The list of runs, the feed, and what is kept of the newest run under a name that stays."""
        if not self.views and self.after.runs.keys() == self.before.runs.keys():
            return
        newest = self.folders[0]
        view = self.views.get(newest.name) or RunView(newest, self.folders)
        runs = [(folder.name, folder.run, self.after.runs[folder.name]["entry"]) for folder in self.folders]
        self.writer.site_page("runs.html", "runs.html", view, {"every": runs})
        self.writer.file("atom.xml", feed.document(runs))
        self.writer.file("static/runs.js", feed.selector(runs))
        self.writer.file("logs.json", feed.public_list(runs))
        self.writer.remove(BADGES)
        of_run = self.writer.root / newest.name
        self.writer.file(f"{LATEST}/result.json", (of_run / "result.json").read_bytes())
        for path in self.after.runs[newest.name]["paths"]:
            if path.startswith(f"{BADGES}/"):
                self.writer.file(path, (of_run / path).read_bytes())

    def _kept(self) -> set[str]:
        return {f"{name}/{path}" for name, one in self.after.runs.items() for path in one["paths"]}


def _key(view: RunView, name: str) -> Key:
    """`<run>/<pair>/<case>` → its cell."""
    return view.keys_by_name[name.removeprefix(f"{view.name}/")]
