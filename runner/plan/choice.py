"""Makes a selection from the options and from the run that they extend, and a catalogue with everything in it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from runner.errors import UsageError
from runner.model.link import LinkRecord, RealLink, RealLinkRecord
from runner.model.run import CaseRecord, Run
from runner.model.stack import Role, transport_of
from runner.plan.catalog import Catalog, Selection, iterations_of, named, split
from runner.plan.links import EMULATED_LINKS, declared_links, is_link_text, load_links, parse_link, select_links
from runner.plan.options import MatrixOptions
from runner.plan.variants import (
    CaseVariant,
    case_variants,
    doubts,
    requested_variants,
    with_requested,
    with_variants_of,
)
from testcases.base import Case
from testcases.measurements import measurement

# Makes a measurement for each real link. Pure.


def with_measurements(catalog: Catalog, links: Iterable[RealLink]) -> Catalog:
    """The catalogue with a measurement for each link. A measurement that is declared with the link's name is kept. For
    other links a measurement is made from links.json."""
    cases = dict(catalog.cases)
    for link in links:
        if link.name in catalog.cases:
            if not catalog.cases[link.name].is_real:
                raise UsageError(
                    f"links.json, link '{link.name}': that is the name of a test case: give the link another name."
                )
            continue
        case = measurement_of(link)
        taken = {known.abbreviation.lower(): known.name for known in cases.values()}
        if other := taken.get(case.abbreviation.lower()):
            raise UsageError(
                f"links.json, link '{link.name}': its abbreviation {case.abbreviation} is also that of {other}: "
                "give the link another `abbreviation`."
            )
        cases[link.name] = case
    return replace(catalog, cases=cases)


def measurement_of(link: RealLink) -> Case:
    """A measurement of 10 MiB over this link, with the number of iterations in links.json."""
    access = " ".join(filter(None, (link.provider, link.tariff))) or link.name
    return measurement(
        name=link.name,
        abbreviation=link.abbreviation or link.name.replace("-", "")[:4].upper(),
        description=f"10 MiB over {access}, a real link.",
        link=LinkRecord.advertised(link.name.upper(), link.forward_rate, link.return_rate, source="links.json"),
        timeout=link.timeout,
        iterations=link.iterations,
    )


def declaration(cases: Mapping[str, Case], record: CaseRecord) -> Case | None:
    """The declaration of a recorded case, which is needed to judge a job again; None when the declaration was deleted.
    A measurement of a real link is made from the record, because this host's links.json may not have the link.
    """
    case = cases.get(record.declared or record.case)
    if case is not None:
        return replace(case, name=record.case, files=record.file_sizes)
    if record.real_link is None:
        return None
    return measurement(
        name=record.case,
        abbreviation=record.abbreviation,
        description=record.description,
        link=replace(record.link, real=None),
        timeout=record.timeout,
        iterations=record.iterations,
    )


def real_record(link: RealLink) -> LinkRecord:
    """A real link as `run.json` stores it. Only its advertised data rates are known before a job."""
    advertised = LinkRecord.advertised(link.name, link.forward_rate, link.return_rate)
    return replace(advertised, real=RealLinkRecord.of(link))


# Makes a selection from the options and from the run that they extend, and a catalogue that contains everything in the
# selection.

_OVER_ANY_LINK = "goodput"  # the default case of stacks when a link is named without a case


def choose(options: MatrixOptions, catalog: Catalog, run: Run | None) -> Selection:
    """Resolve the options. Options that the user leaves out keep the values of the existing `run`. Raises UsageError
    for an unknown name, and for options that can't be combined.
    """
    links = _links(options, run)
    catalog = with_measurements(catalog, links.real.values())
    catalog = with_variants_of(catalog, run) if run else catalog
    variants = _case_variants(options, catalog, run, links)
    cases = {case.name: case for case in (variant.case(catalog.cases) for variant in variants)}
    catalog = replace(catalog, cases={**catalog.cases, **cases})
    stored = _iterations(run) if run else {}
    records, iterations = {}, {}
    for variant, origin in variants.items():
        record = variant.record(catalog.cases, links.records)
        records[record.name] = record
        iterations[record.name] = iterations_of(record, options.iterations, stored.get(origin))
    _require_one_kind_of_link(list(records.values()))
    kinds = {case.client for case in cases.values()}
    used = {record.real_link.name for record in records.values() if record.real_link is not None}
    selection = Selection(
        catalog=catalog,
        servers=_stacks(
            options.servers, catalog, Role.SERVER, {kind.server for kind in kinds}, run.servers if run else ()
        ),
        clients=_stacks(
            options.clients, catalog, Role.CLIENT, {str(kind) for kind in kinds}, run.clients if run else ()
        ),
        vias=catalog.select_vias(options.vias) if options.vias or run is None else run.vias,
        cases=records,
        iterations=iterations,
        real=select_links(dict(links.real), tuple(used)) if used else (),
        timeout_scale=_timeout_scale(options.timeout_scale, run),
    )
    stacks, boxes = requested_variants(options.variants, selection)
    selection = with_requested(selection, stacks, boxes)
    _require_jobs(selection)
    _require_room_beside(selection)
    doubtful = (sentence for variant in stacks for sentence in doubts(variant, catalog.implementations[variant.stack]))
    return replace(selection, doubts=(*doubtful, *_uncarried(selection, cases.values())))


@dataclass(frozen=True, kw_only=True)
class _Links:
    """Every link that can be selected. `emulated` and `real`: the links by name. `requested`: the names of the links in
    the options."""

    emulated: Mapping[str, LinkRecord]
    real: Mapping[str, RealLink]
    requested: tuple[str, ...]

    @property
    def records(self) -> dict[str, LinkRecord]:
        """Every link by name, as `run.json` stores it."""
        return {**self.emulated, **{name: real_record(link) for name, link in self.real.items()}}

    @property
    def requested_real(self) -> tuple[str, ...]:
        """The names of the requested real links."""
        return tuple(name for name in self.requested if name in self.real)


def _links(options: MatrixOptions, run: Run | None) -> _Links:
    """The declared links, the links that are written on the command line, and the links of the run. An emulated link
    and a real link can't have the same name."""
    file = options.links_file.with_name(EMULATED_LINKS.name)
    typed = [parse_link(text) for text in options.links if is_link_text(text)]
    named_links = [text for text in options.links if not is_link_text(text)]
    declared = declared_links(file)
    for link in typed:
        if link.name in declared:
            raise UsageError(f"--link name={link.name}: a declared link has this name: choose another name.")
        declared[link.name] = link
    emulated: dict[str, LinkRecord] = dict(declared)
    for name, record in _stored_links(run).items():
        if emulated.setdefault(name, record) != record:
            raise UsageError(
                f"--link {name}: the run has another link of this name: begin a new run, or rename the link."
            )
    stored = [case.real_link.name for case in run.cases.values() if case.real_link] if run else []
    unknown = [name for name in split(named_links) if name not in emulated]
    known = load_links(options.links_file) if stored or (unknown and options.links_file.exists()) else {}
    if twice := [name for name in known if name in emulated]:
        raise UsageError(f"links.json, link '{twice[0]}': that is the name of an emulated link: give it another name.")
    requested = named(named_links, [*emulated, *known], option="--link", kind="link") if named_links else ()
    of_run = requested if options.links else tuple(dict.fromkeys(stored))
    return _Links(
        emulated=emulated,
        real={name: known[name] for name in of_run if name in known},
        requested=(*requested, *(link.name for link in typed)),
    )


def _stored_links(run: Run | None) -> dict[str, LinkRecord]:
    """The emulated links in the names of a run's cases, without links that `--loss` made."""
    records = [record for record in run.cases.values() if record.real_link is None] if run else []
    return {
        record.link_name: record.link for record in records if record.link_name and "+loss=" not in record.link_name
    }


def _case_variants(
    options: MatrixOptions, catalog: Catalog, run: Run | None, links: _Links
) -> dict[CaseVariant, CaseVariant | None]:
    """The cases of this call with their changes, each with the variant of the stored run from which it comes, or None
    for a new case."""
    besides, names = catalog.select_besides(options.besides), links.requested
    if run is not None and run.cases:
        stored = [CaseVariant.of(record) for record in run.cases.values()]
        declared = dict.fromkeys(variant.declared for variant in stored if variant.declared in catalog.cases)
        chosen = catalog.select_cases(options.cases) if options.cases else tuple(declared)
        cases = [catalog.cases[name] for name in chosen]
        return case_variants(options, cases, links=names, besides=besides, stored=stored)
    if links.requested_real == names != () and not options.cases:
        return case_variants(options, [catalog.cases[name] for name in names], links=(), besides=besides)
    cases = _cases(options, catalog, linked=bool(names))
    return case_variants(options, cases, links=names, besides=besides)


def _iterations(run: Run) -> dict[CaseVariant | None, int]:
    """The number of planned iterations of each case variant of a stored run."""
    names = {record.name: CaseVariant.of(record) for record in run.cases.values()}
    counts: dict[CaseVariant | None, int] = {}
    for job in run.order:
        variant = names[job.case_link]
        counts[variant] = max(counts.get(variant, 0), job.iteration)
    return counts


def _cases(options: MatrixOptions, catalog: Catalog, *, linked: bool) -> list[Case]:
    """The named cases. Without names, all cases for the kinds of the named clients and servers; when a link is named
    for stacks, only the default case."""
    if options.cases:
        return [catalog.cases[name] for name in catalog.select_cases(options.cases)]
    ends = {
        catalog.implementations[name].kind
        for name in split((*options.servers, *options.clients))
        if name in catalog.implementations
    } or {"stack"}
    cases = [case for case in catalog.cases.values() if {str(case.client), case.client.server} & ends]
    if linked and ends == {"stack"}:
        return [catalog.cases[_OVER_ANY_LINK]]
    return [case for case in cases if not case.needs_a_name]


def _stacks(
    names: tuple[str, ...], catalog: Catalog, role: Role, kinds: set[str], stored: tuple[str, ...]
) -> tuple[str, ...]:
    """The named stacks. Without names, the stacks of the run and, for a kind that the run lacks, all stacks of that
    kind."""
    if names or not stored:
        return catalog.select_implementations(names, role, kinds)
    if unknown := [name for name in stored if name not in catalog.implementations]:
        raise UsageError(
            f"run.json has the {role.value} {unknown[0]!a}, which is not in implementations.json: add it, or name "
            f"others with --{role.value}."
        )
    known = {catalog.implementations[name].kind for name in stored}
    lacking = kinds - known
    return (*stored, *(catalog.select_implementations((), role, lacking) if lacking else ()))


def _require_one_kind_of_link(records: list[CaseRecord]) -> None:
    real = {record.real_link.name for record in records if record.real_link is not None}
    if real and any(record.real_link is None for record in records):
        raise UsageError(
            f"--link {','.join(sorted(real))}: real and emulated links need separate calls: use the same --run "
            "in both calls."
        )


def _require_jobs(selection: Selection) -> None:
    """Raise UsageError for a case whose kind of client or server is not selected."""
    catalog = selection.catalog
    ends = [
        (Role.CLIENT, {catalog.implementations[name].kind for name in selection.clients}),
        (Role.SERVER, {catalog.implementations[name].kind for name in selection.servers}),
    ]
    for record in selection.cases.values():
        for role, kinds in ends:
            needed = str(record.client) if role is Role.CLIENT else record.client.server
            if kinds and needed not in kinds:
                able = [
                    name
                    for name, stack in catalog.implementations.items()
                    if stack.kind == needed and role in stack.roles
                ]
                raise UsageError(
                    f"--case {record.case}: it needs a {role.value} of another kind: add --{role.value} "
                    f"{','.join(able[:3])}{', …' if len(able) > 3 else ''}."
                )


def _require_room_beside(selection: Selection) -> None:
    """Raise UsageError for a second flow that can't run, because its stack is not in the catalogue or because a
    middlebox would carry the second flow, too."""
    for record in selection.cases.values():
        if record.beside and any(selection.vias):
            raise UsageError(
                f"--case {record.name}: the second flow would also cross the middlebox: leave out --via, or choose a "
                "case without a second flow."
            )
        for name in record.beside_stacks:
            if name not in selection.catalog.implementations:
                raise UsageError(
                    f"--case {record.name}: its second flow needs the stack '{name}', which does not exist."
                )


def _uncarried(selection: Selection, cases: Iterable[Case]) -> Iterator[str]:
    """For each middlebox that carries none of the cases, a sentence with cases that the middlebox carries."""
    catalog = selection.catalog
    transports = {transport_of(protocol) for case in cases for protocol in case.protocols}
    for box in (catalog.middleboxes[via] for via in selection.vias if via):
        if not transports & set(box.carries) and not box.variant_of:
            able = [
                case.name
                for case in catalog.cases.values()
                if not case.declared and transport_of(case.protocols[0]) in box.carries
            ]
            first = ",".join(sorted(able)[:3])
            yield f"{box.name} carries {' and '.join(box.carries)} only: add a case such as --case {first}."


def _timeout_scale(scale: float, run: Run | None) -> float:
    """The scale of time-outs. Raises UsageError when it differs from the run's."""
    before = run.options.get("timeout_scale", "1") if run else f"{scale:g}"
    if scale != 1 and f"{scale:g}" != before:
        raise UsageError(f"--timeout-scale {scale:g}: the run began with {before}, and keeps it.")
    return float(before)
