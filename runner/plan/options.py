"""The options of `run` and `plan` as the user wrote them, the selection that they mean, and cases with the user's
changes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from runner.errors import UsageError
from runner.model.link import LinkRecord
from runner.model.run import CaseRecord, ClientKind, Kind, Pause
from runner.paths import IMPLEMENTATIONS
from runner.plan.catalog import number, values
from runner.plan.links import LINKS_FILE
from runner.units import KIB, format_data_rate, format_duration, format_size
from testcases.base import Case
from testcases.links import LOSS_SWEEP

# The options of `run` and `plan` as the user wrote them.


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """The options. Names are not resolved yet; a text may contain several names with commas between them."""

    implementations: Path = IMPLEMENTATIONS
    servers: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    vias: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()  # sizes in bytes, or `all`
    losses: tuple[str, ...] = ()  # losses as fractions, or `all`
    warm: bool = False
    besides: tuple[str, ...] = ()  # the flows that run beside the job's own flow; empty: none
    iterations: int | None = None
    variants: tuple[str, ...] = ()
    seed: int | None = None
    shuffle: bool = False
    name: str | None = None
    lanes: str = "1"
    retry: tuple[str, ...] = ()
    pause: str | None = None
    timeout_scale: float = 1.0
    keep_captures: str = "median"
    reuse: str | None = None  # a run whose results are taken over for jobs in which nothing changed
    links_file: Path = LINKS_FILE
    images: tuple[str, ...] = ()  # NAME=IMAGE: a local image instead of the stack's own image
    clock: str | None = None  # real, virtual or auto; None: the clock of the run, or real for a new run
    cpu_model: str | None = None  # none, calibrated or measured; None: the model of the run, or none for a new run
    rootless: Path | None = None  # archives of images, for guests without Docker
    markdown: bool = False  # print the matrix as Markdown
    on: str | None = None  # the scheduler of the workers; None: jobs run on this host
    spread: str = "any"  # how the iterations of a cell are distributed over workers
    store: str = ""  # URL of a folder that workers and runner share; empty: files are sent through the scheduler
    yes: bool = False
    extra_cas: Path | None = None

    @property
    def selects(self) -> bool:
        """True when the options extend the stored run by a selection. `--variant` does not count: it adds rows or
        columns to the stored run."""
        axes = (self.servers, self.clients, self.vias, self.cases, self.links, self.sizes, self.losses, self.besides)
        return any(axes) or self.warm or self.iterations is not None

    def parsed_pause(self) -> Pause | None:
        """The hours in which no job starts; None without `--pause`. Raises UsageError."""
        return Pause.parse(self.pause) if self.pause else None


# The user's selection: servers, clients, middleboxes, cases over their links, numbers of iterations.


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The user's selection, resolved to names of the catalogue. `cases` are names of records, `<case>[@link]`."""

    servers: tuple[str, ...]
    clients: tuple[str, ...]
    vias: tuple[str, ...] = ("",)  # an empty name: no middlebox
    cases: tuple[str, ...]
    iterations: int | None = None  # None: the number in `counts`, or the declared number of the case
    counts: Mapping[str, int] = field(default_factory=dict)  # number of iterations in a stored run, by case


def iterations_of(selection: Selection, case: CaseRecord) -> int:
    """The number of iterations of a case. A case that declares one iteration has one. Other cases have the number of
    `--iterations`; without this option, the number of the stored run or the declared number."""
    if case.iterations == 1:
        return 1
    return selection.iterations or selection.counts.get(case.name, case.iterations)


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
        """The question of a record."""
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
        """The case's declaration with the changes of this question."""
        case = cases[self.declared]
        case = case if self.size is None else case.sized(self.size)
        case = case.warmed() if self.warm else case
        return case.accompanied(self.beside) if self.beside not in ("", case.beside) else case

    def record(self, cases: Mapping[str, Case], links: Mapping[str, LinkRecord]) -> CaseRecord:
        """The record of the question's case over its link. `links`: emulated and real links by name. Raises UsageError
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
    if record.kind is Kind.MEASUREMENT and record.client is ClientKind.STACK:
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


def _require_other_link(case: Case, question: CaseVariant) -> None:
    option = f"--link {question.link}" if question.link else f"--loss {question.loss:g}"
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


@dataclass(frozen=True, kw_only=True)
class CaseChanges:
    """The parsed options that change cases. An option that is not used is empty. `sizes` is None for `all`."""

    links: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = ()
    losses: tuple[float, ...] = ()
    warm: bool = False
    besides: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        *,
        links: tuple[str, ...],
        sizes: tuple[str, ...],
        losses: tuple[str, ...],
        warm: bool,
        besides: tuple[str, ...] = (),
    ) -> "CaseChanges":
        """Parse sizes and losses. `links` and `besides` are resolved names already. Raises UsageError for an invalid
        size or loss."""
        return cls(links=links, sizes=_sizes(sizes), losses=_losses(losses), warm=warm, besides=besides)

    def new(self, cases: Iterable[Case]) -> list[CaseVariant]:
        """The questions of a new run. Raises UsageError for an option that applies to none of the cases."""
        cases = list(cases)
        self._require_sense(cases)
        return [
            CaseVariant(
                declared=case.name, size=size, warm=self.warm and _can_warm(case), link=link, loss=loss, beside=beside
            )
            for case in cases
            for size in self._sizes_of(case)
            for link in self.links or ("",)
            for loss in self.losses or (0.0,)
            for beside in (self.besides if _can_share(case) else ()) or ("",)
        ]

    def more(self, cases: Iterable[Case], stored: Iterable[CaseVariant]) -> dict[CaseVariant, CaseVariant | None]:
        """The questions of an extended run, each with the stored question from which it comes, or None for a new case.
        For options that are not used, the run's sizes, links, losses, warm rounds and second flows stay the same.
        """
        cases, stored = list(cases), list(stored)
        self._require_sense(cases)
        known = {question.declared for question in stored}
        questions: dict[CaseVariant, CaseVariant | None] = {}
        for case in cases:
            origins = [before for before in stored if before.declared == case.name] or list(
                dict.fromkeys(map(_place, stored))
            )
            for before in origins:
                origin = before if case.name in known else None
                warm = _can_warm(case) and (self.warm or (origin is not None and before.warm))
                named = self.sizes != () and _can_size(case)
                sizes = self._sizes_of(case) if named or origin is None else (before.size,)
                besides = (self.besides or (before.beside,)) if _can_share(case) else ("",)
                axes = product(sizes, self.links or (before.link,), self.losses or (before.loss,), besides)
                for size, link, loss, beside in axes:
                    question = CaseVariant(
                        declared=case.name, size=size, warm=warm, link=link, loss=loss, beside=beside
                    )
                    questions.setdefault(question, origin)
        return questions

    def _sizes_of(self, case: Case) -> tuple[int | None, ...]:
        if not _can_size(case):
            return (None,)
        if self.sizes is None:
            return case.sweep or case.sizes or (None,)
        return self.sizes or case.sizes or (None,)

    def _require_sense(self, cases: list[Case]) -> None:
        names = ", ".join(case.name for case in cases[:5]) + (", …" if len(cases) > 5 else "")
        if self.sizes != () and not any(map(_can_size, cases)):
            raise UsageError(
                f"--size is for measurements of one file, not for {names}: leave it out, or add --case goodput."
            )
        if self.warm and not any(map(_can_warm, cases)):
            raise UsageError(
                f"--warm is for downloads and page loads, not for {names}: a stack can't load its files twice. Leave "
                "it out, or add --case download."
            )
        if self.besides and not any(map(_can_share, cases)):
            raise UsageError(
                f"--beside is for measurements of stacks, not for {names}: leave it out, or add --case goodput."
            )


def _place(question: CaseVariant) -> CaseVariant:
    """A question with only the link, loss and second flow of a stored question. A new case of the run gets these."""
    return CaseVariant(declared="", link=question.link, loss=question.loss, beside=question.beside)


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
