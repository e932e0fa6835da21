"""`run --path … --workload … --link …`: names resolved, cases made, the record of a run of paths."""

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

import testcases.workloads
from runner.catalog import IMPLEMENTATIONS, load_knobs, load_paths, split
from runner.errors import UsageError
from runner.model.implementation import Implementation
from runner.model.knob import Knob
from runner.model.path import ORIGIN, PathEntry
from runner.model.run import CaseRecord, Kind, WorkloadRecord
from runner.variants import assignments, sweep, taken
from testcases.base import link_parameters
from testcases.pathlinks import LINKS, LOSS_SWEEP, PathLink
from testcases.reference_page import TOTAL
from testcases.workloads.base import Workload

DEFAULT_WORKLOADS = ("goodput", "page")
DEFAULT_LINKS = ("geo",)
PAGE_TIMEOUT = 120.0  # s
_SLOWEST = 200_000  # bit/s: what a transfer must reach within its time-out
_EXAMPLE = "write PATH:NAME=VALUE,… such as pep-split:CCA=bbr,IW=100"


@dataclass(frozen=True, kw_only=True)
class PathCatalog:
    """Everything that a selection of paths can name. `knobs`: of each path, what a variant may set."""

    paths: dict[str, PathEntry]
    knobs: dict[str, dict[str, Knob]]
    workloads: dict[str, Workload]
    links: dict[str, PathLink]


@dataclass(frozen=True, kw_only=True)
class PathOptions:
    """What was typed. `sizes`: `all` for the whole sweep, or bytes; `losses`: `all`, or fractions.

    `warm`: every path carries the same once before, uncounted.
    """

    paths: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    iterations: int | None = None
    warm: bool = False

    @property
    def given(self) -> bool:
        """Whether anything of it asks for paths rather than for pairs."""
        return bool(self.paths or self.workloads or self.sizes or self.losses or self.warm)


@dataclass(frozen=True, kw_only=True)
class PathSelection:
    """Resolved: paths with their variants, cases in order."""

    paths: dict[str, PathEntry]
    cases: dict[str, CaseRecord]


def load_path_catalog(path: Path = IMPLEMENTATIONS) -> PathCatalog:
    """implementations.json, the modules of testcases.workloads, the links of testcases.pathlinks."""
    package = testcases.workloads
    modules = [import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    found: list[Workload] = [module.WORKLOAD for module in modules if hasattr(module, "WORKLOAD")]
    found.sort(key=lambda one: (one.page, one.name))
    return PathCatalog(
        paths=load_paths(path),
        knobs=load_knobs(path),
        workloads={one.name: one for one in found},
        links=dict(LINKS),
    )


def select_paths(catalog: PathCatalog, options: PathOptions) -> PathSelection:
    """Names resolved. Raises UsageError with the choices when one is unknown."""
    if not catalog.paths:
        raise UsageError("implementations.json has no `paths`: add an entry as implementations/_path/README.md says.")
    names = _named(options.paths, list(catalog.paths), option="--path", what="path")
    paths = {name: catalog.paths[name] for name in names}
    for text in (one for given in options.variants for one in sweep(given)):
        variant = path_variant(text, catalog)
        if variant.variant_of not in paths:
            raise UsageError(f"--variant {text}: {variant.variant_of} is not selected: add it to --path.")
        paths[variant.name] = variant
    asked = options.workloads or DEFAULT_WORKLOADS
    workloads = _named(asked, list(catalog.workloads), option="--workload", what="workload")
    links = _named(options.links or DEFAULT_LINKS, list(catalog.links), option="--link", what="link")
    over = [one for name in links for one in _with_losses(catalog.links[name], options.losses)]
    cases = [
        _case(catalog.workloads[name], size, link, options)
        for name in workloads
        for size in _sizes(catalog.workloads[name], options.sizes)
        for link in over
    ]
    return PathSelection(paths=_beside(paths), cases={case.name: case for case in cases})


def _named(given: Iterable[str], choices: Sequence[str], *, option: str, what: str) -> list[str]:
    wanted = split(given)
    for name in wanted:
        if name not in choices:
            near = get_close_matches(name, choices, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(f"{option}: there is no {what} '{name}'.{hint} Choices: {', '.join(choices)}.")
    return [name for name in choices if not wanted or name in wanted]


def _beside(paths: Mapping[str, PathEntry]) -> dict[str, PathEntry]:
    """Variants after their path."""
    bases = [entry.name for entry in paths.values() if not entry.variant_of]
    order = [name for base in bases for name in paths if name == base or paths[name].variant_of == base]
    return {name: paths[name] for name in order}


def path_variant(text: str, catalog: PathCatalog) -> PathEntry:
    """A path with other parameters, of `PATH:NAME=VALUE,…`. Raises UsageError for what the path can't be asked."""
    name, colon, rest = text.partition(":")
    if not colon or not rest.strip():
        raise UsageError(f"--variant {text}: {_EXAMPLE}.")
    if name not in catalog.paths:
        raise UsageError(f"--variant {text}: there is no path '{name}'. Choices: {', '.join(catalog.paths)}.")
    knobs = catalog.knobs[name]
    given = assignments(text, rest, knobs, unknown=f"{name} has no knob", example=_EXAMPLE)
    ordered = {knob: taken(text, knob, knobs[knob], given[knob]) for knob in knobs if knob in given}
    suffix = "+".join(f"{knob.lower().replace('_', '-')}={value}" for knob, value in ordered.items())
    return replace(catalog.paths[name], name=f"{name}+{suffix}", variant_of=name, parameters=ordered)


def _with_losses(link: PathLink, losses: Sequence[str]) -> list[PathLink]:
    if not losses:
        return [link]
    texts = split(losses)
    if texts == ["all"]:
        return [link, *(link.with_loss(loss) for loss in LOSS_SWEEP)]
    values = [_number(text, option="--loss", top=1.0, example="0,0.001,0.01, or all") for text in texts]
    return [link.with_loss(loss) if loss else link for loss in dict.fromkeys(values)]


def _sizes(workload: Workload, sizes: Sequence[str]) -> tuple[int, ...]:
    if workload.page:
        return (TOTAL,)
    texts = split(sizes)
    if not texts:
        return workload.sizes
    if texts == ["all"]:
        return workload.sweep or workload.sizes
    example = "500000,2000000 (bytes), or all"
    found = []
    for text in texts:
        value = _number(text, option="--size", top=1e9, example=example)
        if not value.is_integer():
            raise UsageError(f"--size {text}: write a whole number of bytes.")
        found.append(int(value))
    if min(found) < 1000:
        raise UsageError(f"--size {min(found)}: a transfer has at least 1000 bytes.")
    return tuple(dict.fromkeys(found))


def _number(text: str, *, option: str, top: float, example: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= top:
        raise UsageError(f"{option}: '{text}' is no number from 0 to {top:g}: write {option} {example}.")
    return value


def _in_name(size: int) -> str:
    """A size without rounding: two sizes never share a name."""
    return f"{size}B" if size % 1000 else f"{size // 1000}kB"


def _case(workload: Workload, size: int, link: PathLink, options: PathOptions) -> CaseRecord:
    what = workload.name if workload.page else f"{workload.name}-{_in_name(size)}"
    timeout = PAGE_TIMEOUT if workload.page else 60 + 8 * size / _SLOWEST
    if options.warm:
        what, timeout = f"{what}+warm", 2 * timeout
    satellite, ground = link.satellite, link.ground
    return CaseRecord(
        name=f"{what}-{link.name}",
        abbreviation=what,
        kind=Kind.MEASUREMENT,
        description=workload.description,
        scenario=link.name,
        forward=link_parameters(satellite, satellite.forward),
        return_=link_parameters(satellite, satellite.return_),
        wire_names={"client": workload.name, "server": ORIGIN},
        file_sizes=(size,),
        timeout=timeout,
        iterations=options.iterations or workload.iterations,
        host=workload.host,
        impairments=satellite.impairments,
        workload=WorkloadRecord(
            name=workload.name,
            protocol=workload.protocol,
            page=workload.page,
            encrypted=workload.encrypted,
            origins=workload.origins,
            link=link.name,
            ground_forward=link_parameters(ground, ground.forward),
            ground_return=link_parameters(ground, ground.return_),
            note=link.note,
            warm=options.warm,
        ),
    )


def as_stack(entry: PathEntry) -> Implementation:
    """A path as what images are built from."""
    return Implementation(name=entry.name, image=entry.image, url=entry.url, version=entry.version, build=entry.build)


def refusal(entry: PathEntry, case: CaseRecord) -> str | None:
    """Why a path can't be asked for a case, None when it can."""
    assert case.workload is not None
    transport = "udp" if case.workload.protocol == "h3" else "tcp"
    if transport in entry.carries:
        return None
    return f"{entry.name} carries {' and '.join(entry.carries)} only, and {case.workload.name} is {transport}"
