"""`run --path … --workload … --link …`: names resolved, cases made, the record of a run of paths."""

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from itertools import product
from pathlib import Path

import testcases.workloads
from runner.config.catalog import IMPLEMENTATIONS, load_knobs, load_paths, split
from runner.config.variants import assignments, sweep, taken
from runner.errors import UsageError
from runner.model.implementation import Implementation
from runner.model.knob import Knob
from runner.model.path import ORIGIN, PathEntry
from runner.model.run import CaseRecord, Kind, Run, WorkloadRecord
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

    @property
    def wider(self) -> bool:
        """Whether it asks a run of paths for more than a variant of what it has."""
        return bool(self.given or self.links or self.iterations)


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What tells one case from another. `size` in bytes; `link` without its loss, which is a fraction."""

    workload: str
    size: int
    link: str
    loss: float
    warm: bool

    @classmethod
    def of(cls, case: CaseRecord) -> "_Question":
        """That of a recorded case."""
        assert case.workload is not None
        link, lossy, _ = case.workload.link.partition("+loss=")
        loss = case.forward.loss if lossy else 0.0
        return cls(workload=case.workload.name, size=case.file_sizes[0], link=link, loss=loss, warm=case.workload.warm)


@dataclass(frozen=True, kw_only=True)
class PathSelection:
    """Resolved: paths with their variants, cases in order. `kept`: those of a run, with the time-outs that it has."""

    paths: dict[str, PathEntry]
    cases: dict[str, CaseRecord]
    kept: frozenset[str] = frozenset()


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
    """What a new run gets; names resolved. Raises UsageError with the choices when one is unknown."""
    if not catalog.paths:
        raise UsageError("implementations.json has no `paths`: add an entry as implementations/_path/README.md says.")
    links = _links(catalog, options.links or DEFAULT_LINKS)
    workloads = _workloads(catalog, options.workloads or DEFAULT_WORKLOADS)
    _refuse_sizes_of_pages(options.sizes, workloads)
    questions = [
        _Question(workload=workload.name, size=size, link=link, loss=loss, warm=options.warm)
        for workload in workloads
        for size in _sizes(workload, options.sizes)
        for link in links
        for loss in _losses(options.losses) or (0.0,)
    ]
    cases = [_case(catalog, question, options.iterations) for question in questions]
    return PathSelection(
        paths=_with_variants(catalog, _paths(catalog, options.paths), options.variants),
        cases={case.name: case for case in cases},
    )


def more_paths(catalog: PathCatalog, options: PathOptions, run: Run) -> PathSelection:
    """What is asked of a run that exists: paths, workloads, sizes, links and losses that aren't named are the run's.

    So are the iterations, and whether it is warm; a workload that is new to the run begins with its own sizes and
    iterations, cold. Raises UsageError as `select_paths` does.
    """
    paths = _paths(catalog, options.paths) if options.paths else {name: run.paths[name] for name in run.clients}
    stored = {_Question.of(case): case for case in run.cases.values()}
    counts = {name: case.iterations for name, case in run.cases.items()}
    for job in run.order:  # a case that got more later is recorded with those that it began with
        counts[job.case] = max(counts[job.case], job.iteration)
    kept, new = {}, {}
    for question, origin in _more_questions(catalog, options, list(stored)).items():
        if before := stored.get(question):
            kept[before.name] = replace(before, iterations=options.iterations or counts[before.name])
        else:
            case = _case(catalog, question, options.iterations or (counts[stored[origin].name] if origin else None))
            new[case.name] = case
    variants = _with_variants(catalog, paths, options.variants)
    return PathSelection(paths=variants, cases={**kept, **new}, kept=frozenset(kept))


def _more_questions(
    catalog: PathCatalog, options: PathOptions, stored: Sequence[_Question]
) -> dict[_Question, _Question | None]:
    """The questions that are asked, and the one of the run from which each comes; None: its workload is new."""
    known = dict.fromkeys(one.workload for one in stored)
    names = [one.name for one in _workloads(catalog, options.workloads)] if options.workloads else list(known)
    _refuse_sizes_of_pages(options.sizes, [catalog.workloads[name] for name in names if name in catalog.workloads])
    links, losses = _links(catalog, options.links) if options.links else (), _losses(options.losses)
    found: dict[_Question, _Question | None] = {}
    for name in names:
        workload = catalog.workloads.get(name)  # None: its module is gone
        asked = workload is not None and (name not in known or (bool(options.sizes) and not workload.page))
        sizes = _sizes(workload, options.sizes) if workload and asked else ()
        for one in stored:
            if name in known and one.workload != name:
                continue
            origin = one if name in known else None
            warm = options.warm or (origin is not None and one.warm)
            for size, link, loss in product(sizes or (one.size,), links or (one.link,), losses or (one.loss,)):
                found.setdefault(_Question(workload=name, size=size, link=link, loss=loss, warm=warm), origin)
    return found


def _paths(catalog: PathCatalog, names: Iterable[str]) -> dict[str, PathEntry]:
    return {name: catalog.paths[name] for name in _named(names, list(catalog.paths), option="--path", what="path")}


def _workloads(catalog: PathCatalog, names: Iterable[str]) -> list[Workload]:
    chosen = _named(names, list(catalog.workloads), option="--workload", what="workload")
    return [catalog.workloads[name] for name in chosen]


def _links(catalog: PathCatalog, names: Iterable[str]) -> list[str]:
    return _named(names, list(catalog.links), option="--link", what="link")


def _with_variants(
    catalog: PathCatalog, paths: Mapping[str, PathEntry], variants: Iterable[str]
) -> dict[str, PathEntry]:
    """Each variant after its path. Raises UsageError for one whose path isn't there."""
    found = dict(paths)
    for text in (one for given in variants for one in sweep(given)):
        variant = path_variant(text, catalog)
        if variant.variant_of not in paths:
            raise UsageError(f"--variant {text}: {variant.variant_of} is not selected: add it to --path.")
        found[variant.name] = variant
    return _beside(found)


def _named(given: Iterable[str], choices: Sequence[str], *, option: str, what: str) -> list[str]:
    given = list(given)
    wanted = split(given)
    if given and not wanted:
        raise UsageError(f"{option} names no {what}. Choices: {', '.join(choices)}.")
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


def _losses(losses: Sequence[str]) -> tuple[float, ...]:
    """Fractions, 0 for the link as it is declared; empty when none is given."""
    example = "0,0.001,0.01, or all"
    texts = _values(losses, option="--loss", example=example)
    if texts == ["all"]:
        return (0.0, *LOSS_SWEEP)
    values = (_number(text, option="--loss", top=1.0, example=example) for text in texts)
    return tuple(dict.fromkeys(values))


def _sizes(workload: Workload, sizes: Sequence[str]) -> tuple[int, ...]:
    if workload.page:
        return (TOTAL,)
    example = "500000,2000000 (bytes), or all"
    texts = _values(sizes, option="--size", example=example)
    if not texts:
        return workload.sizes
    if texts == ["all"]:
        return workload.sweep or workload.sizes
    found = []
    for text in texts:
        value = _number(text, option="--size", top=1e9, example=example)
        if not value.is_integer():
            raise UsageError(f"--size {text}: write a whole number of bytes.")
        found.append(int(value))
    if min(found) < 1000:
        raise UsageError(f"--size {min(found)}: a transfer has at least 1000 bytes.")
    return tuple(dict.fromkeys(found))


def _refuse_sizes_of_pages(sizes: Sequence[str], workloads: Sequence[Workload]) -> None:
    if sizes and all(workload.page for workload in workloads):
        names = ", ".join(workload.name for workload in workloads)
        raise UsageError(f"--size is of downloads, not of {names}: leave it out, or add a workload such as goodput.")


def _values(given: Sequence[str], *, option: str, example: str) -> list[str]:
    """The texts of an option, none when it isn't there; `all` is the only one."""
    texts = split(given)
    if given and not texts:
        raise UsageError(f"{option} has no value: write {option} {example}.")
    if "all" in texts and set(texts) != {"all"}:
        raise UsageError(f"{option} {','.join(texts)}: all stands alone.")
    return list(dict.fromkeys(texts))


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


def _case(catalog: PathCatalog, question: _Question, iterations: int | None) -> CaseRecord:
    """The case of a question. Raises UsageError when a run asks for what the catalogue has no more."""
    (workload,), (name,) = _workloads(catalog, (question.workload,)), _links(catalog, (question.link,))
    size, link = question.size, catalog.links[name]
    link = link.with_loss(question.loss) if question.loss else link
    what = workload.name if workload.page else f"{workload.name}-{_in_name(size)}"
    timeout = PAGE_TIMEOUT if workload.page else 60 + 8 * size / _SLOWEST
    if question.warm:
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
        iterations=iterations or workload.iterations,
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
            warm=question.warm,
        ),
    )


def as_stack(entry: PathEntry) -> Implementation:
    """A path as what images are built from."""
    return Implementation(name=entry.name, image=entry.image, url=entry.url, version=entry.version, build=entry.build)


def uncarried(catalog: PathCatalog, selection: PathSelection) -> list[str]:
    """A sentence for each path that carries nothing of the selection: which workloads it carries."""
    sentences = []
    for entry in selection.paths.values():
        if not entry.variant_of and all(refusal(entry, case) for case in selection.cases.values()):
            able = [one.name for one in catalog.workloads.values() if one.transport in entry.carries]
            sentences.append(
                f"{entry.name} carries {' and '.join(entry.carries)} only: add --workload {','.join(able)}"
            )
    return sentences


def refusal(entry: PathEntry, case: CaseRecord) -> str | None:
    """Why a path can't be asked for a case, None when it can."""
    assert case.workload is not None
    transport = "udp" if case.workload.protocol == "h3" else "tcp"
    if transport in entry.carries:
        return None
    return f"{entry.name} carries {' and '.join(entry.carries)} only, and {case.workload.name} is {transport}"
