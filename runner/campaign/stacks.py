"""Stacks and middleboxes for `run`, `build` and `list`: the states of their images, how to get them, and the user's
choice among them."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runner.engine import engine
from runner.errors import BentpipeError, SetupError, UsageError
from runner.images import images, setup
from runner.images.images import Build, BuildHistory
from runner.images.pulling import SavedImages
from runner.images.setup import machine
from runner.model.deployment import REAL
from runner.model.stack import HTTP09, HTTP1, Implementation, Middlebox
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.choice import Selection, choose, split
from runner.plan.options import JobOptions, MatrixOptions
from runner.store.runs import RunFolder
from runner.units import format_duration, format_size


def load_present(path: Path, saved: SavedImages | None = None) -> Catalog:
    """The catalogue. Stacks whose image isn't here are marked as absent: published images that the engine lacks, or
    images that the archives `saved` lack. Starts no engine."""
    catalog = load_catalog(path)
    stacks = catalog.implementations.values()
    if saved is None:
        return replace(catalog, absent=images.absent(stacks))
    return replace(
        catalog, absent={stack.name: saved.missing(stack.image) for stack in stacks if stack.image not in saved}
    )


def ready(
    stacks: Sequence[Implementation],
    options: JobOptions,
    *,
    clock: str,
    console: Console,
    saved: SavedImages | None = None,
) -> setup.Ready:
    """Make everything ready for jobs of `stacks` with this clock: build and pull what is missing, or find it in the
    archives `saved`. Raises SetupError when this machine can't run the jobs, UsageError for an image that no archive
    has."""
    if saved is None:
        return setup.prepare(
            stacks, assume_yes=options.yes, extra_cas=options.extra_cas, console=console, guests=clock != REAL
        )
    setup.require([machine(platform.system(), platform.machine())])
    for needed in (images.SIMULATOR, *images.GUEST):
        saved.image_id(needed)
    return setup.Ready(ids={stack.name: saved.image_id(stack.image) for stack in stacks}, digests={})


def with_images(catalog: Catalog, texts: Iterable[str]) -> Catalog:
    """The catalogue, in which each `NAME=IMAGE` replaces the image of a stack by a local image. Raises UsageError."""
    replaced = {}
    for text in texts:
        name, equals, image = text.partition("=")
        if not equals or not image:
            raise UsageError(f"--image {text}: write NAME=IMAGE, such as quinn=example/quinn:pr-12.")
        if name not in catalog.implementations:
            near = get_close_matches(name, catalog.implementations, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" Choices: {', '.join(catalog.implementations)}."
            raise UsageError(f"--image {text}: there is no stack '{name}'.{hint}")
        if not image_sizes([image]):
            raise UsageError(f"--image {text}: this host has no image '{image}'. `docker images` lists its images.")
        replaced[name] = replace(catalog.implementations[name], image=image, build=None, version="", note="")
    left = {name: why for name, why in catalog.absent.items() if name not in replaced}
    return replace(catalog, implementations={**catalog.implementations, **replaced}, absent=left)


def as_stack(entry: Middlebox) -> Implementation:
    """A middlebox in the form that the image builder takes."""
    return Implementation(name=entry.name, image=entry.image, url=entry.url, version=entry.version, build=entry.build)


def choose_stacks(catalog: Catalog, names: Sequence[str], *, pull: bool) -> list[Implementation]:
    """The stacks and middleboxes that `build NAMES` builds or `build --pull NAMES` fetches; without names, all that can
    be built or fetched. A withdrawn image is fetched only when it is named. Raises UsageError for a published image
    that should be built, and for an image built here that should be fetched.
    """
    boxes = [as_stack(box) for box in catalog.middleboxes.values()]
    every = [*catalog.implementations.values(), *boxes]
    choices = {entry.name: entry for entry in every}
    requested = split(names)
    for name in requested:
        if name not in choices:
            raise UsageError(f"There is no stack or middlebox '{name}'. Choices: {', '.join(choices)}.")
        if pull and choices[name].build is not None:
            hint = f"; the published image is {name}-public" if f"{name}-public" in choices else ""
            raise UsageError(f"{name} is built here: run `./bentpipe build {name}`{hint}.")
        if not pull and choices[name].build is None:
            raise UsageError(f"{name} is a published image: run `./bentpipe build --pull {name}`.")
    of_kind = [entry for entry in every if (entry.build is None) is pull]
    return [entry for entry in of_kind if entry.name in requested or not (requested or entry.withdrawn)]


def build(chosen: Sequence[Implementation], options: JobOptions, *, pull: bool, out: Console, err: Console) -> None:
    """Build or fetch the images of `chosen`. Then print the sizes of their images, also when some images failed."""
    failure: BentpipeError | None = None
    try:
        if pull:
            setup.pull(chosen, assume_yes=options.yes, console=err)
        else:
            setup.prepare(chosen, assume_yes=options.yes, extra_cas=options.extra_cas, console=err)
    except SetupError as error:
        failure = error
    tags = [stack.image for stack in chosen] if pull else [image.tag for image in images.images_of(chosen)]
    if sizes := image_sizes(tags):
        out.print(_size_table(sizes, pulled=pull))
    if failure is not None:
        raise failure


def image_sizes(tags: Iterable[str]) -> dict[str, int] | None:
    """Sizes of the images on this host, in bytes by tag. None when no engine runs. Raises SilentEngineError."""
    try:
        client = engine.client()
    except engine.SilentEngineError:
        raise
    except SetupError:
        return None
    held = {tag: images.held(client, tag) for tag in tags}
    return {tag: image.size for tag, image in held.items() if image is not None}


def _size_table(sizes: Mapping[str, int], *, pulled: bool) -> Table:
    builds = BuildHistory().builds()
    table = Table("image", "size", "" if pulled else "build time", box=None)
    for tag, size in sizes.items():
        table.add_row(tag, format_size(size), "" if pulled else _time(builds.get(tag)))
    return table


def _time(build: Build | None) -> str:
    if build is None:
        return ""
    reused = "" if build.full else f", {build.reused} of {build.steps} steps reused"
    return f"{format_duration(build.seconds)}{reused}"


_NARROW = 132  # below this width in columns, tables leave out facts that another command prints


def built_table(stacks: Iterable[Implementation], sizes: Mapping[str, int] | None) -> Table:
    """The stacks that are built here, within 80 columns, and their notes below. `sizes`: bytes by tag; None without an
    engine."""
    stacks = tuple(stacks)
    notes = {stack.note: [each.name for each in stacks if each.note == stack.note] for stack in stacks if stack.note}
    below = [LEGEND, *(f"{', '.join(names)}: {escape(note)}" for note, names in notes.items())]
    table = Table(box=None, padding=(0, 1, 0, 0), caption="\n".join(below), caption_justify="left")
    for column in ("stack", "version", "language", "role", "speaks", "CCA", "IW", "image"):
        table.add_column(column, no_wrap=True, justify="right" if column == "IW" else "left")
    for stack in stacks:
        window = str(stack.initial_window) if stack.initial_window else ""
        about = (stack.name, stack.version, stack.language, _roles(stack), _protocols(stack))
        table.add_row(*about, stack.congestion_control, window, where(stack, sizes))
    return table


_SHORT = {HTTP09: "hq", HTTP1: "h1"}
LEGEND = "hq: HTTP/0.9 over QUIC (hq-interop) · h1: HTTP/1.1 · CCA: congestion controller · IW: initial window, packets"


def published_table(stacks: Iterable[Implementation], sizes: Mapping[str, int] | None, *, width: int) -> Table:
    """The published images of the catalogue, and which of them are on this host. The names of images need 132
    columns."""
    wide = width >= _NARROW
    caption = "" if wide else f"implementations.json and terminals with {_NARROW} columns show the names of the images."
    table = Table(box=None, caption=caption or None, caption_justify="left")
    for column in ("stack", "role", "CCA", "also has", "image", *(("published as",) if wide else ())):
        table.add_column(column, no_wrap=column != "also has", overflow="fold")
    for stack in stacks:
        others = [name for name in stack.congestion_implemented if name != stack.congestion_control]
        more = [*others, *(["HyStart"] if stack.hystart else [])]
        control = stack.congestion_control or ("unknown" if others else "")
        row = (
            stack.name,
            _roles(stack),
            control,
            ", ".join(more),
            where(stack, sizes),
            *((stack.image,) if wide else ()),
        )
        table.add_row(*row)
    return table


def _protocols(stack: Implementation) -> str:
    return " ".join(_SHORT.get(name, name) for name in stack.speaks)


def _roles(stack: Implementation) -> str:
    return "both" if len(stack.roles) == 2 else ", ".join(stack.roles)


def where(stack: Implementation, sizes: Mapping[str, int] | None) -> str:
    """The size of the stack's or middlebox's image, or the reason why this host doesn't have the image."""
    if sizes is None:
        return "no engine"
    if stack.image in sizes:
        return format_size(sizes[stack.image])
    if stack.build is not None:
        return "not built"
    return "withdrawn" if stack.withdrawn else "not pulled"


def chosen(options: MatrixOptions, stored: RunFolder | None, saved: SavedImages | None = None) -> Selection:
    """The selection of the options, for a new run or for the stored one. `saved`: the images of --rootless. Raises
    UsageError."""
    catalog = with_images(load_present(options.implementations, saved), options.images)
    return choose(options, catalog, None if stored is None else stored.run)


def needed_stacks(selection: Selection) -> list[Implementation]:
    """The stacks and middleboxes whose images are needed. For a variant, this is its base, which has the same image."""
    catalog = selection.catalog
    if not (selection.servers and selection.clients):
        missing = ", ".join(stack.image for stack in catalog.implementations.values())
        raise SetupError(f"There is no stack to run: none of {missing} is here. Pull them: `./bentpipe build --pull`.")
    beside = [name for record in selection.cases.values() for name in record.beside_stacks]
    stacks = [catalog.implementations[name] for name in (*selection.servers, *selection.clients, *beside)]
    names = dict.fromkeys(stack.variant_of or stack.name for stack in stacks)
    boxes = [catalog.middleboxes[via] for via in selection.vias if via]
    bases = dict.fromkeys(box.variant_of or box.name for box in boxes)
    return [
        *(catalog.implementations[name] for name in names),
        *(as_stack(catalog.middleboxes[name]) for name in bases if name not in names),
    ]
