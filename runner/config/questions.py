"""Cases × sizes × links × losses, as a user names them or as a stored run has them → declarations and records. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from runner.config.names import number, values
from runner.config.over_links import real_record
from runner.errors import UsageError
from runner.model.link_record import LinkRecord
from runner.model.real_link import RealLink
from runner.model.run import CaseRecord, ClientKind, Kind
from testcases.base import Case
from testcases.links import LOSS_SWEEP

_LEAST_TIMEOUT = 120.0  # s, of a measurement over another link than its own
_SMALLEST, _LARGEST = 1000, 1e9  # bytes


@dataclass(frozen=True, kw_only=True)
class Question:
    """A declared case with what a user adds to it. `size` in bytes, None: as declared; `link` empty: the case's own;
    `loss`: a fraction in both directions of the satellite segment, 0: as the link is declared."""

    declared: str
    size: int | None = None
    warm: bool = False
    link: str = ""
    loss: float = 0.0

    @classmethod
    def of(cls, record: CaseRecord) -> "Question":
        """The question of a record."""
        declared = record.declared or record.case
        sized = record.case.removesuffix("+warm") != declared
        link, lossy, _ = record.link_name.partition("+loss=")
        return cls(
            declared=declared,
            size=record.file_sizes[0] if sized else None,
            warm=record.warm,
            link=link,
            loss=record.forward.loss if lossy else 0.0,
        )

    def case(self, cases: Mapping[str, Case]) -> Case:
        """The declaration of exactly this question."""
        case = cases[self.declared]
        case = case if self.size is None else case.sized(self.size)
        return case.warmed() if self.warm else case

    def record(
        self, cases: Mapping[str, Case], emulated: Mapping[str, LinkRecord], real: Mapping[str, RealLink]
    ) -> CaseRecord:
        """The question over its link. Raises UsageError when it can't be asked over it."""
        case = self.case(cases)
        record, own = case.record(), case.link.name.lower()
        if case.is_real:
            if own not in real:
                raise UsageError(f"--case {case.name}: it runs over a real link: name it with --link, from links.json.")
            record = replace(record, link=real_record(real[own], name=record.link.name))
        name = "" if self.link == own else self.link
        if not name and not self.loss:
            return record
        _require_other_link(case, self)
        if name in real:
            link = real_record(real[name])
        else:
            link = replace(_emulated(emulated, name) if name else record.link, name=name or own)
        if self.loss:
            link = _lossy(link, self.loss)
        if record.kind is Kind.MEASUREMENT:
            record = replace(record, timeout=max(record.timeout, _LEAST_TIMEOUT))
        return record.over(link)


def _emulated(links: Mapping[str, LinkRecord], name: str) -> LinkRecord:
    """The emulated link of a question of a stored run. Raises UsageError when nobody declares it any more."""
    if name not in links:
        raise UsageError(f"--link: the run has a link '{name}' that is declared no more: write it again with --link.")
    return links[name]


def _require_other_link(case: Case, question: Question) -> None:
    option = f"--link {question.link}" if question.link else f"--loss {question.loss:g}"
    if case.is_real:
        raise UsageError(f"--case {case.name}: it is a transfer over a real link; {option} goes with --case goodput.")
    if not case.is_clean:
        raise UsageError(
            f"--case {case.name}: it asks about its own link, which loses or changes packets: leave out {option}."
        )


def _lossy(link: LinkRecord, loss: float) -> LinkRecord:
    """The same with `loss`, both ways on the satellite segment."""
    if link.real is not None:
        raise UsageError(f"--loss {loss:g}: nobody can add loss to the real link {link.name}: leave one of them out.")
    one, digits = link.satellite, repr(float(loss)).removesuffix(".0")  # all digits: two losses never share a name
    lossy = replace(one, forward=replace(one.forward, loss=loss), return_=replace(one.return_, loss=loss))
    return replace(link, name=f"{link.name}+loss={digits}", segments=(lossy, *link.segments[1:]))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the options add to cases, parsed. Empty: not named; `sizes` None: `all`."""

    links: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = ()
    losses: tuple[float, ...] = ()
    warm: bool = False

    @classmethod
    def parse(cls, *, links: tuple[str, ...], sizes: tuple[str, ...], losses: tuple[str, ...], warm: bool) -> "Asked":
        """`links` are resolved names. Raises UsageError for a size or a loss that is none."""
        return cls(links=links, sizes=_sizes(sizes), losses=_losses(losses), warm=warm)

    def new(self, cases: Iterable[Case]) -> list[Question]:
        """The questions of a new run. Raises UsageError where an option means nothing to any of the cases."""
        cases = list(cases)
        self._require_sense(cases)
        return [
            Question(declared=case.name, size=size, warm=self.warm and _can_warm(case), link=link, loss=loss)
            for case in cases
            for size in self._sizes_of(case)
            for link in self.links or ("",)
            for loss in self.losses or (0.0,)
        ]

    def more(self, cases: Iterable[Case], stored: Iterable[Question]) -> dict[Question, Question | None]:
        """The questions that a stored run is asked, and the stored question from which each comes; None: a new case.

        What isn't named are the run's sizes, links, losses and warmth.
        """
        cases, stored = list(cases), list(stored)
        self._require_sense(cases)
        known = {one.declared for one in stored}
        found: dict[Question, Question | None] = {}
        for case in cases:
            origins = [one for one in stored if one.declared == case.name] or list(dict.fromkeys(map(_place, stored)))
            for one in origins:
                origin = one if case.name in known else None
                warm = _can_warm(case) and (self.warm or (origin is not None and one.warm))
                named = self.sizes != () and _can_size(case)
                sizes = self._sizes_of(case) if named or origin is None else (one.size,)
                for size, link, loss in product(sizes, self.links or (one.link,), self.losses or (one.loss,)):
                    found.setdefault(Question(declared=case.name, size=size, warm=warm, link=link, loss=loss), origin)
        return found

    def _sizes_of(self, case: Case) -> tuple[int | None, ...]:
        if not _can_size(case):
            return (None,)
        if self.sizes is None:
            return case.sweep or case.sizes or (None,)
        return self.sizes or case.sizes or (None,)

    def _require_sense(self, cases: list[Case]) -> None:
        names = ", ".join(case.name for case in cases[:5]) + (", …" if len(cases) > 5 else "")
        if self.sizes != () and not any(map(_can_size, cases)):
            raise UsageError(f"--size is for measurements of one file, not for {names}: leave it out, or add goodput.")
        if self.warm and not any(map(_can_warm, cases)):
            raise UsageError(
                f"--warm is for downloads and page loads, not for {names}: a stack has no uncounted first round. Leave "
                "it out, or add --case download."
            )


def _place(question: Question) -> Question:
    """Where a new case of a stored run is asked: the same link and loss."""
    return Question(declared="", link=question.link, loss=question.loss)


def _can_size(case: Case) -> bool:
    return case.kind is Kind.MEASUREMENT and len(case.files) == 1 and case.client is not ClientKind.BROWSER


def _can_warm(case: Case) -> bool:
    return case.client is not ClientKind.STACK


def _sizes(texts: tuple[str, ...]) -> tuple[int, ...] | None:
    example = "500000,2000000 (bytes), or all"
    found = values(texts, option="--size", example=example)
    if found == ["all"]:
        return None
    sizes = []
    for text in found:
        value = number(text, option="--size", top=_LARGEST, example=example)
        if not value.is_integer():
            raise UsageError(f"--size {text}: write a whole number of bytes.")
        if value < _SMALLEST:
            raise UsageError(f"--size {text}: a transfer has at least {_SMALLEST} bytes.")
        sizes.append(int(value))
    return tuple(dict.fromkeys(sizes))


def _losses(texts: tuple[str, ...]) -> tuple[float, ...]:
    example = "0,0.001,0.01, or all"
    found = values(texts, option="--loss", example=example)
    if found == ["all"]:
        return (0.0, *LOSS_SWEEP)
    return tuple(dict.fromkeys(number(text, option="--loss", top=1.0, example=example) for text in found))
