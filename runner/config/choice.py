"""From typed options, and the run that they extend, to a selection over a catalogue that has everything in it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from runner.config.catalog import Catalog
from runner.config.emulated_links import EMULATED_LINKS, declared_links
from runner.config.link_text import is_link_text, parse_link
from runner.config.links import load_links, select_links
from runner.config.names import named, split
from runner.config.options import MatrixOptions
from runner.config.over_links import with_measurements
from runner.config.questions import Asked, Question
from runner.config.selection import Selection
from runner.config.variants import Asked as AskedVariants
from runner.config.variants import doubts, place, with_variants_of
from runner.errors import UsageError
from runner.model.implementation import Role
from runner.model.link_record import LinkRecord
from runner.model.protocol import transport_of
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord, Run
from testcases.base import Case

_OVER_ANY_LINK = "goodput"  # what stacks are asked when a link is named and no case


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one call runs. `records` by name; `real`: the real links of the jobs; `doubts`: sentences for the user."""

    catalog: Catalog
    selection: Selection
    records: Mapping[str, CaseRecord]
    real: tuple[RealLink, ...]
    timeout_scale: float
    doubts: tuple[str, ...]


def choose(options: MatrixOptions, catalog: Catalog, run: Run | None) -> Choice:
    """Resolve the options. Those that are left out keep the values of `run`, the one that exists.

    Raises UsageError with one sentence for an unknown name and for what can't be combined.
    """
    links = _links(options, run)
    catalog = with_measurements(catalog, links.real.values())
    catalog = with_variants_of(catalog, run) if run else catalog
    questions = _questions(options, catalog, run, links)
    cases = {case.name: case for case in (one.case(catalog.cases) for one in questions)}
    catalog = replace(catalog, cases={**catalog.cases, **cases})
    named_records = {one: one.record(catalog.cases, links.emulated, links.real) for one in questions}
    records = {record.name: record for record in named_records.values()}
    stored = _iterations(run) if run else {}
    counts = {named_records[one].name: stored[origin] for one, origin in questions.items() if origin in stored}
    _require_one_kind_of_link(list(records.values()))
    kinds = {case.client for case in cases.values()}
    selection = Selection(
        servers=_stacks(
            options.servers, catalog, Role.SERVER, {kind.server for kind in kinds}, run.servers if run else ()
        ),
        clients=_stacks(
            options.clients, catalog, Role.CLIENT, {str(kind) for kind in kinds}, run.clients if run else ()
        ),
        vias=catalog.select_vias(options.vias) if options.vias or run is None else run.vias,
        cases=tuple(records),
        iterations=options.iterations,
        counts=counts,
    )
    asked = AskedVariants.parse(options.variants, catalog, selection)
    placed = place(catalog, selection, asked)
    _require_jobs(placed.catalog, placed.selection, records.values())
    used = {record.real_link.name for record in records.values() if record.real_link is not None}
    return Choice(
        catalog=placed.catalog,
        selection=placed.selection,
        records=records,
        real=select_links(dict(links.real), tuple(used)) if used else (),
        timeout_scale=_timeout_scale(options.timeout_scale, run),
        doubts=(
            *(
                sentence
                for variant in asked.stacks
                for sentence in doubts(variant, catalog.implementations[variant.stack])
            ),
            *_uncarried(placed.catalog, placed.selection, cases.values()),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Links:
    """Every link that can be asked for. `emulated` and `real` by name; `asked`: those that the options name."""

    emulated: Mapping[str, LinkRecord]
    real: Mapping[str, RealLink]
    asked: tuple[str, ...]

    @property
    def asked_real(self) -> tuple[str, ...]:
        """The real ones of them."""
        return tuple(name for name in self.asked if name in self.real)


def _links(options: MatrixOptions, run: Run | None) -> _Links:
    """Emulated and real links have one namespace: declared, written on the command line, or those of the run."""
    file = options.links_file.with_name(EMULATED_LINKS.name)
    typed = [parse_link(text) for text in options.links if is_link_text(text)]
    named_links = [text for text in options.links if not is_link_text(text)]
    declared = declared_links(file)
    for link in typed:
        if link.name in declared:
            raise UsageError(f"--link name={link.name}: a declared link has that name: take another one.")
        declared[link.name] = link
    emulated: dict[str, LinkRecord] = {name: link.record() for name, link in declared.items()}
    for name, record in _stored_links(run).items():
        if emulated.setdefault(name, record) != record:
            raise UsageError(f"--link {name}: the run has another link of that name: begin a new run, or rename one.")
    stored = [case.real_link.name for case in run.cases.values() if case.real_link] if run else []
    wanted = [name for name in split(named_links) if name not in emulated]
    known = load_links(options.links_file) if stored or (wanted and options.links_file.exists()) else {}
    if twice := [name for name in known if name in emulated]:
        raise UsageError(f"links.json, link '{twice[0]}': that is the name of an emulated link: give it another name.")
    asked = named(named_links, [*emulated, *known], option="--link", what="link") if named_links else ()
    of_run = asked if options.links else tuple(dict.fromkeys(stored))
    return _Links(
        emulated=emulated,
        real={name: known[name] for name in of_run if name in known},
        asked=(*asked, *(link.name for link in typed)),
    )


def _stored_links(run: Run | None) -> dict[str, LinkRecord]:
    """The emulated links of a run that its cases name, without those that `--loss` made."""
    records = [record for record in run.cases.values() if record.real_link is None] if run else []
    return {
        record.link_name: record.link for record in records if record.link_name and "+loss=" not in record.link_name
    }


def _questions(
    options: MatrixOptions, catalog: Catalog, run: Run | None, links: _Links
) -> dict[Question, Question | None]:
    """What is asked, and of a stored run the question from which each comes."""
    asked = Asked.parse(links=links.asked, sizes=options.sizes, losses=options.losses, warm=options.warm)
    if run is None or not run.cases:
        if links.asked_real == links.asked != () and not options.cases:
            return dict.fromkeys(replace(asked, links=()).new(catalog.cases[name] for name in links.asked))
        return dict.fromkeys(asked.new(_cases(options, catalog, linked=bool(asked.links))))
    stored = [Question.of(record) for record in run.cases.values()]
    if options.cases:
        names = catalog.select_cases(options.cases)
    else:
        names = tuple(dict.fromkeys(one.declared for one in stored if one.declared in catalog.cases))
    return asked.more((catalog.cases[name] for name in names), stored)


def _iterations(run: Run) -> dict[Question | None, int]:
    """How often a stored run asks each of its questions: at least as often as it began with."""
    names = {record.name: Question.of(record) for record in run.cases.values()}
    counts: dict[Question | None, int] = {}
    for job in run.order:
        question = names[job.case_link]
        counts[question] = max(counts.get(question, 0), job.iteration)
    return counts


def _cases(options: MatrixOptions, catalog: Catalog, *, linked: bool) -> list[Case]:
    """The named cases; without names those for the kinds of clients and servers that are named."""
    if options.cases:
        return [catalog.cases[name] for name in catalog.select_cases(options.cases)]
    ends = {
        catalog.implementations[name].kind
        for name in split((*options.servers, *options.clients))
        if name in catalog.implementations
    } or {"stack"}
    found = [case for case in catalog.cases.values() if {str(case.client), case.client.server} & ends]
    if linked and ends == {"stack"}:
        return [catalog.cases[_OVER_ANY_LINK]]
    return [case for case in found if not case.is_real]


def _stacks(
    names: tuple[str, ...], catalog: Catalog, role: Role, kinds: set[str], stored: tuple[str, ...]
) -> tuple[str, ...]:
    """The named stacks; those of the run and, for a kind that it hasn't, all of that kind."""
    if names or not stored:
        return catalog.select_implementations(names, role, kinds)
    known = {catalog.implementations[name].kind for name in stored if name in catalog.implementations}
    lacking = kinds - known
    return (*stored, *(catalog.select_implementations((), role, lacking) if lacking else ()))


def _require_one_kind_of_link(records: list[CaseRecord]) -> None:
    real = {record.real_link.name for record in records if record.real_link is not None}
    if real and any(record.real_link is None for record in records):
        raise UsageError(
            f"--link {','.join(sorted(real))}: real and emulated links run in calls of their own: name the same --run "
            "in both."
        )


def _require_jobs(catalog: Catalog, selection: Selection, records: Iterable[CaseRecord]) -> None:
    """Raise UsageError for a case that no selected client or server can be asked."""
    ends = [
        (Role.CLIENT, {catalog.implementations[name].kind for name in selection.clients}),
        (Role.SERVER, {catalog.implementations[name].kind for name in selection.servers}),
    ]
    for record in records:
        for role, kinds in ends:
            needed = str(record.client) if role is Role.CLIENT else record.client.server
            if kinds and needed not in kinds:
                able = [n for n, one in catalog.implementations.items() if one.kind == needed and role in one.roles]
                raise UsageError(
                    f"--case {record.case}: it needs a {role.value} of another kind: add --{role.value} "
                    f"{','.join(able[:3])}{', …' if len(able) > 3 else ''}."
                )


def _uncarried(catalog: Catalog, selection: Selection, cases: Iterable[Case]) -> Iterator[str]:
    """A sentence for each middlebox that carries nothing of the cases: which cases it carries."""
    asked = {transport_of(protocol) for case in cases for protocol in case.protocols}
    for box in (catalog.middleboxes[via] for via in selection.vias if via):
        if not asked & set(box.carries) and not box.variant_of:
            able = [
                case.name
                for case in catalog.cases.values()
                if not case.declared and transport_of(case.protocols[0]) in box.carries
            ]
            first = ",".join(sorted(able)[:3])
            yield f"{box.name} carries {' and '.join(box.carries)} only: add a case such as --case {first}."


def _timeout_scale(asked: float, run: Run | None) -> float:
    """The scale of the run. Raises UsageError when another one is asked for."""
    before = run.options.get("timeout_scale", "1") if run else f"{asked:g}"
    if asked != 1 and f"{asked:g}" != before:
        raise UsageError(f"--timeout-scale {asked:g}: the run began with {before}, and keeps it.")
    return float(before)
