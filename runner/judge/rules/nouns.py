"""A rule: one MUST or MUST NOT of an RFC, or a recommendation, and where bentpipe checks it."""

from dataclasses import dataclass
from enum import StrEnum


class Who(StrEnum):
    """The endpoint that must keep a rule."""

    CLIENT = "client"
    SERVER = "server"
    ENDPOINT = "endpoint"  # client and server


class Where(StrEnum):
    """Where a rule is checked."""

    INVARIANT = "invariant"  # in every job, on every connection whose packets can be read
    NOTE = "note"  # in every job; the RFC has no MUST, so that a violation is only a note
    CASE = "case"  # by the test cases named in `cases`
    UNCHECKED = "unchecked"  # packets could show a violation, but bentpipe does not check the rule; see `reason`
    UNSEEN = "unseen"  # packets can't show a violation; see `reason`


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table."""

    rfc: int
    section: str
    """Number of the section, without the section sign, such as `12.3`."""
    name: str
    """A few words with hyphens that describe the violation."""
    who: Who
    requirement: str
    """The requirement of the RFC, in our own words."""
    where: Where
    cases: tuple[str, ...] = ()
    """Names of the test cases that check the rule, for `Where.CASE`."""
    reason: str = ""
    """Why nothing checks the rule, for `Where.UNCHECKED` and `Where.UNSEEN`."""

    @property
    def id(self) -> str:
        """The stable name of the rule, such as `rfc9000-12.3-number-reused`. Findings use it as their code."""
        return f"rfc{self.rfc}-{self.section}-{self.name}"

    @property
    def reference(self) -> str:
        """The RFC and the section, such as `RFC 9000 §12.3`."""
        return f"RFC {self.rfc} §{self.section}"

    @property
    def checked(self) -> bool:
        """Whether bentpipe checks the rule."""
        return self.where in (Where.INVARIANT, Where.NOTE, Where.CASE)


CLIENT, SERVER, ENDPOINT = Who.CLIENT, Who.SERVER, Who.ENDPOINT


class Document:
    """Collects the rows of one RFC, in the order of its sections."""

    def __init__(self, rfc: int) -> None:
        self._rfc = rfc
        self.rules: list[Rule] = []

    def every(self, section: str, name: str, sender: Who, requirement: str) -> None:
        """A rule that is checked on every connection."""
        self._add(section, name, sender, requirement, Where.INVARIANT)

    def note(self, section: str, name: str, sender: Who, requirement: str) -> None:
        """A recommendation of the RFC, without MUST, that is checked on every connection."""
        self._add(section, name, sender, requirement, Where.NOTE)

    def case(self, section: str, name: str, sender: Who, requirement: str, *cases: str) -> None:
        """A rule that these test cases check, because other traffic doesn't exercise it."""
        self._add(section, name, sender, requirement, Where.CASE, cases=cases)

    def unchecked(self, section: str, name: str, sender: Who, requirement: str, reason: str) -> None:
        """A rule whose violation packets could show, but that bentpipe does not check yet."""
        self._add(section, name, sender, requirement, Where.UNCHECKED, reason=reason)

    def unseen(self, section: str, name: str, sender: Who, requirement: str, reason: str) -> None:
        """A rule whose violation packets can't show."""
        self._add(section, name, sender, requirement, Where.UNSEEN, reason=reason)

    def _add(
        self,
        section: str,
        name: str,
        sender: Who,
        requirement: str,
        where: Where,
        *,
        cases: tuple[str, ...] = (),
        reason: str = "",
    ) -> None:
        self.rules.append(
            Rule(
                rfc=self._rfc,
                section=section,
                name=name,
                who=sender,
                requirement=requirement,
                where=where,
                cases=cases,
                reason=reason,
            )
        )
