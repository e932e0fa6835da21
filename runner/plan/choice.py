"""Makes a selection from the options and from the run that they extend, and a catalogue with everything in it: stacks,
cases with their sizes, links and losses, middleboxes."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from runner.errors import UsageError
from runner.model.link import LinkRecord, RealLink, RealLinkRecord
from runner.model.run import CaseRecord, ClientKind, Kind, Run
from runner.model.stack import Role, transport_of
from runner.plan.catalog import (
    Catalog,
    Selection,
    doubts,
    iterations_of,
    named,
    requested_variants,
    split,
    with_requested,
    with_variants_of,
)
from runner.plan.links import EMULATED_LINKS, declared_links, is_link_text, load_links, parse_link, select_links
from runner.plan.options import MatrixOptions
from runner.units import KIB, format_data_rate, format_duration, format_size
from testcases.base import Case
from testcases.links import LOSS_SWEEP
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


# Makes declarations and records from cases × sizes × links × losses, which come from options or from a stored run.
# Pure.

_LEAST_TIMEOUT = 120.0  # seconds: time-out of a measurement over another link than its own
_SMALLEST, _LARGEST = 1000, 1e9  # bytes


@dataclass(frozen=True, kw_only=True)
class CaseVariant:
    """A declared case with the user's changes.

    `size`: bytes; None: the declared size. `link`: the name of a link; empty: the case's own link. `loss`: a fraction
    in both directions of the satellite segment; 0: the declared loss of the link. `beside`: the second flow; empty: the
    declared second flow, if the case has one.
    """

    declared: str
    size: int | None = None
    warm: bool = False
    link: str = ""
    loss: float = 0.0
    beside: str = ""

    @classmethod
    def of(cls, record: CaseRecord) -> "CaseVariant":
        """The variant of a record."""
        declared = record.declared or record.case
        beside = record.added_beside
        sized = record.case.removesuffix(f"+{beside}").removesuffix("+warm") != declared
        link, lossy, _ = record.link_name.partition("+loss=")
        return cls(
            declared=declared,
            size=record.file_sizes[0] if sized else None,
            warm=record.warm,
            link=link,
            loss=record.forward.loss if lossy else 0.0,
            beside=beside,
        )

    def case(self, cases: Mapping[str, Case]) -> Case:
        """The case's declaration with these changes."""
        case = cases[self.declared]
        case = case if self.size is None else case.sized(self.size)
        case = case.warmed() if self.warm else case
        return case.accompanied(self.beside) if self.beside not in ("", case.beside) else case

    def record(self, cases: Mapping[str, Case], links: Mapping[str, LinkRecord]) -> CaseRecord:
        """The record of the case over its link. `links`: emulated and real links by name. Raises UsageError
        when the case can't run over that link."""
        case = self.case(cases)
        record, link_name = case.record(), case.link.name.lower()
        if case.is_real:
            if link_name not in links or links[link_name].real is None:
                raise UsageError(f"--case {case.name} runs over a real link: name a link of links.json with --link.")
            record = replace(record, link=replace(links[link_name], name=record.link.name))
        name = "" if self.link == link_name else self.link
        if not name and not self.loss:
            return record if self.size is None else _described(record, sized=True, other_link=False)
        _require_other_link(case, self)
        link = replace(_link(links, name) if name else record.link, name=name or link_name)
        if self.loss:
            link = _lossy(link, self.loss)
        if record.kind is Kind.MEASUREMENT:
            record = replace(record, timeout=max(record.timeout, _LEAST_TIMEOUT))
        return _described(record.over(link), sized=self.size is not None, other_link=True)


def _described(record: CaseRecord, *, sized: bool, other_link: bool) -> CaseRecord:
    """The record with a description of its actual size and link. `sized`: True when the size is not the declared size.
    `other_link`: True when the link is not the declared link."""
    size, link = _size(record.file_sizes[0]), f"the link {record.link.name}: {_of_link(record.link)}"
    if record.kind is Kind.MEASUREMENT and record.client is ClientKind.STACK and len(record.file_sizes) == 1:
        beside = f", beside {record.beside}" if record.beside else ""
        return replace(record, description=f"{size} over {link}{beside}.")
    sentences = [record.description, f"The file has {size}." if sized else "", f"Over {link}." if other_link else ""]
    return replace(record, description=" ".join(filter(None, sentences)))


def _size(size: int) -> str:
    """The size in the more readable unit: `10 MiB`, or `2 MB` for a multiple of a decimal unit only."""
    if size % KIB:
        for factor, unit in ((10**6, "MB"), (10**3, "kB")):
            if size % factor == 0:
                return f"{size // factor} {unit}"
    return format_size(size)


def _of_link(link: LinkRecord) -> str:
    """`20 Mbit/s forward, 2 Mbit/s return, 600 ms RTT, 1 % loss`; for a real link, only its advertised data rates."""
    satellite = link.satellite
    forward, return_ = (format_data_rate(way.data_rate) for way in (satellite.forward, satellite.return_))
    rates = f"{forward} both ways" if forward == return_ else f"{forward} forward, {return_} return"
    if link.real is not None:
        return f"{rates}, as advertised"
    losses = [f"{100 * way.loss:g} %" for way in (satellite.forward, satellite.return_)]
    lost = losses[0] if losses[0] == losses[1] else f"{losses[0]} forward, {losses[1]} return"
    loss = f", {lost} loss" if satellite.forward.loss or satellite.return_.loss else ", no loss"
    return f"{rates}, {format_duration(link.rtt)} RTT{loss}"


def _link(links: Mapping[str, LinkRecord], name: str) -> LinkRecord:
    """The link with this name. Raises UsageError when a stored run has the link and it is no longer declared."""
    if name not in links:
        raise UsageError(f"--link: the run has a link '{name}' that is no longer declared: write it again with --link.")
    return links[name]


def _require_other_link(case: Case, variant: CaseVariant) -> None:
    option = f"--link {variant.link}" if variant.link else f"--loss {variant.loss:g}"
    if case.is_real:
        raise UsageError(f"--case {case.name}: it is a transfer over a real link: use {option} with --case goodput.")
    if not case.is_clean:
        raise UsageError(
            f"--case {case.name}: it tests its own link, which loses or changes packets: leave out {option}."
        )


def _lossy(link: LinkRecord, loss: float) -> LinkRecord:
    """The link with `loss` in both directions of the satellite segment. Raises UsageError for a real link."""
    if link.real is not None:
        raise UsageError(
            f"--loss {loss:g}: losses can't be set on a real link such as {link.name}: leave out --loss or --link."
        )
    segment = link.satellite
    digits = repr(float(loss)).removesuffix(".0")  # all digits, so that each loss has its own name
    lossy = replace(segment, forward=replace(segment.forward, loss=loss), return_=replace(segment.return_, loss=loss))
    return replace(link, name=f"{link.name}+loss={digits}", segments=(lossy, *link.segments[1:]))


def case_variants(
    cases: Collection[Case],
    *,
    links: tuple[str, ...],
    sizes: tuple[int, ...] | None,
    losses: tuple[float, ...],
    besides: tuple[str, ...],
    warm: bool,
    stored: Collection[CaseVariant] = (),
) -> dict[CaseVariant, CaseVariant | None]:
    """The variants of `cases`, each with the `stored` variant from which it comes, or None for a new case. Empty
    `links`, `sizes`, `losses` and `besides` keep those of the stored variants; `sizes` is None for every size of a
    case. Raises UsageError for an option that applies to none of the cases.
    """
    names = ", ".join(case.name for case in list(cases)[:5]) + (", …" if len(cases) > 5 else "")
    if sizes != () and not any(map(_can_size, cases)):
        raise UsageError(
            f"--size is for measurements of one file, not for {names}: leave it out, or add --case goodput."
        )
    if warm and not any(map(_can_warm, cases)):
        raise UsageError(
            f"--warm is for downloads and page loads, not for {names}: a stack can't load its files twice. Leave "
            "it out, or add --case download."
        )
    if besides and not any(map(_can_share, cases)):
        raise UsageError(
            f"--beside is for measurements of stacks, not for {names}: leave it out, or add --case goodput."
        )
    new = [replace(variant, declared="", size=None, warm=False) for variant in stored] or [CaseVariant(declared="")]
    variants: dict[CaseVariant, CaseVariant | None] = {}
    for case in cases:
        known = [variant for variant in stored if variant.declared == case.name]
        for before in known or new:
            variant = replace(before, declared=case.name, warm=_can_warm(case) and (warm or before.warm))
            axes = product(
                (before.size,) if known and (sizes == () or not _can_size(case)) else _sizes_of(case, sizes),
                links or (before.link,),
                losses or (before.loss,),
                (besides or (before.beside,)) if _can_share(case) else ("",),
            )
            for size, link, loss, beside in axes:
                changed = replace(variant, size=size, link=link, loss=loss, beside=beside)
                variants.setdefault(changed, before if known else None)
    return variants


def _sizes_of(case: Case, requested: tuple[int, ...] | None) -> tuple[int | None, ...]:
    """The sizes of a case: the requested sizes, or the declared ones. None in the result: the case's own files."""
    if not _can_size(case):
        return (None,)
    if requested is None:
        return case.sweep or case.sizes or (None,)
    return requested or case.sizes or (None,)


def _can_size(case: Case) -> bool:
    return case.kind is Kind.MEASUREMENT and len(case.files) == 1 and case.client is not ClientKind.BROWSER


def _can_share(case: Case) -> bool:
    """True when a second flow may run beside the case."""
    return case.kind is Kind.MEASUREMENT and case.client is ClientKind.STACK


def _can_warm(case: Case) -> bool:
    return case.client is not ClientKind.STACK


def _sizes(texts: tuple[str, ...]) -> tuple[int, ...] | None:
    example = "500000,2000000 (bytes), or all"
    requested = values(texts, option="--size", example=example)
    if requested == ["all"]:
        return None
    sizes = []
    for text in requested:
        value = number(text, option="--size", top=_LARGEST, example=example)
        if not value.is_integer():
            raise UsageError(f"--size {text}: write a whole number of bytes.")
        if value < _SMALLEST:
            raise UsageError(f"--size {text}: a transfer has at least {_SMALLEST} bytes.")
        sizes.append(int(value))
    return tuple(dict.fromkeys(sizes))


def _losses(texts: tuple[str, ...]) -> tuple[float, ...]:
    example = "0,0.001,0.01, or all"
    losses = values(texts, option="--loss", example=example)
    if losses == ["all"]:
        return (0.0, *LOSS_SWEEP)
    return tuple(dict.fromkeys(number(text, option="--loss", top=1.0, example=example) for text in losses))


def values(arguments: Sequence[str], *, option: str, example: str) -> list[str]:
    """The values of an option; empty when the option is not used. `all` can't be combined with other values. Raises
    UsageError."""
    texts = split(arguments)
    if arguments and not texts:
        raise UsageError(f"{option} has no value: write {option} {example}.")
    if "all" in texts and set(texts) != {"all"}:
        raise UsageError(f"{option} {','.join(texts)}: write `all` without other values.")
    return list(dict.fromkeys(texts))


def number(text: str, *, option: str, top: float, example: str) -> float:
    """A number from 0 to `top`. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= top:
        raise UsageError(f"{option}: '{text}' is not a number from 0 to {top:g}: write {option} {example}.")
    return value


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
    names = links.requested
    stored = [CaseVariant.of(record) for record in run.cases.values()] if run else []
    if options.cases:
        cases = catalog.select_cases(options.cases)
    elif stored:
        cases = tuple(dict.fromkeys(variant.declared for variant in stored if variant.declared in catalog.cases))
    elif links.requested_real == names != ():
        cases, names = names, ()
    else:
        cases = _default_cases(split((*options.servers, *options.clients)), catalog, linked=bool(names))
    return case_variants(
        [catalog.cases[name] for name in cases],
        links=names,
        sizes=_sizes(options.sizes),
        losses=_losses(options.losses),
        besides=catalog.select_besides(options.besides),
        warm=options.warm,
        stored=stored,
    )


def _iterations(run: Run) -> dict[CaseVariant | None, int]:
    """The number of planned iterations of each case variant of a stored run."""
    names = {record.name: CaseVariant.of(record) for record in run.cases.values()}
    counts: dict[CaseVariant | None, int] = {}
    for job in run.order:
        variant = names[job.case_link]
        counts[variant] = max(counts.get(variant, 0), job.iteration)
    return counts


def _default_cases(stacks: Iterable[str], catalog: Catalog, *, linked: bool) -> tuple[str, ...]:
    """All cases for the kinds of the named `stacks`; when a link is named for QUIC stacks, only the default case."""
    ends = {catalog.implementations[name].kind for name in stacks if name in catalog.implementations} or {"stack"}
    if linked and ends == {"stack"}:
        return (_OVER_ANY_LINK,)
    cases = (case for case in catalog.cases.values() if {str(case.client), case.client.server} & ends)
    return tuple(case.name for case in cases if not case.needs_a_name)


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
