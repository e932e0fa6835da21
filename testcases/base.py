"""What a case is: a declaration plus, for a test case, one pure function over facts.

To add one, add a module to this package with a `CASE`. Nothing else has to know.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from runner.model.artifacts import Evidence
from runner.model.implementation import Role
from runner.model.link import AdvertisedLink, Link
from runner.model.protocol import HTTP09, OVER_TCP, WIRE_NAMES
from runner.model.result import Finding, LinkTruth
from runner.model.run import CaseRecord, ClientKind, Kind
from runner.trace import Place, TraceFacts
from runner.units import MIB


@dataclass(frozen=True, kw_only=True)
class CaseEvidence:
    """What a check sees: facts from the packets and the harness's record, never packets or paths."""

    facts: TraceFacts
    evidence: Evidence
    case: CaseRecord
    truth: LinkTruth | None
    protocol: str  # ALPN that the endpoints were asked to speak


SHOWN_PACKETS = 5


def proven(finding: Finding, *places: Place | None) -> Finding:
    """The finding with the packets that prove it: the first few of these, at the vantage point of the first."""
    known = [place for place in dict.fromkeys(places) if place is not None]
    chosen = [place for place in known if place.vantage == known[0].vantage][:SHOWN_PACKETS]
    times = [place.time for place in chosen if place.time is not None]
    return replace(
        finding,
        packets=tuple(place.record for place in chosen),
        times=tuple(times) if len(times) == len(chosen) else (),
        vantage=chosen[0].vantage if chosen else "",
    )


Check = Callable[[CaseEvidence], Iterable[Finding]]

PACKET_TYPES = frozenset({"initial", "0rtt", "handshake", "1rtt"})
"""Of packets with packet protection."""

_AnyCheck = TypeVar("_AnyCheck", bound=Check)


def reads(*packet_types: str) -> Callable[[_AnyCheck], _AnyCheck]:
    """Declare which protected packets the findings of a check rest on; without it, on all.

    A finding still stands when no packet of the other types could be decrypted: those could add findings, and undo
    none. `reads()` without a type: its findings need no packet that is protected.
    """
    assert PACKET_TYPES.issuperset(packet_types)

    def declare(check: _AnyCheck) -> _AnyCheck:
        check.reads = frozenset(packet_types)  # type: ignore[attr-defined]
        return check

    return declare


def reads_of(check: Check) -> frozenset[str]:
    """The types of protected packets that the findings of `check` rest on."""
    declared: frozenset[str] = getattr(check, "reads", PACKET_TYPES)
    return declared


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question to a pair.

    `wire_name` is what TESTCASE says, per role when they differ. `files` are sizes in bytes. `timeout` is in seconds,
    from the client's start to its end. Checks run in order; all findings are kept. `over_tcp` are the checks in place
    of `checks` when the pair is asked over TCP. `preconditions` say whether the question was put at all, such as
    whether a loss hit: their findings make the job an error. `capabilities` say whether the pair does what the question
    is about, where a wire name can't tell: their findings make the job unsupported. `notes` are told beside a verdict
    and never change it: what rests on less than a MUST of an RFC or the plain word of the contract. Capabilities and
    notes are about QUIC. `protocols`, by ALPN: over what it can be asked, the preferred one first; a pair is asked over
    the first that it shares. `judges`: the roles that findings are about; `./bentpipe check` asks an image in these
    alone, lest it be told of the faults of its peer. `may_miss`: types of packets that the case does not ask about, so
    that they need not be decrypted for a verdict; that of other packets that can't be is an error.
    """

    name: str
    abbreviation: str
    kind: Kind
    description: str
    wire_name: str
    link: Link | AdvertisedLink
    files: tuple[int, ...]
    checks: tuple[Check, ...]
    timeout: float = 60.0
    iterations: int = 1
    judges: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)
    wire_name_server: str | None = None
    preconditions: tuple[Check, ...] = ()
    capabilities: tuple[Check, ...] = ()
    over_tcp: tuple[Check, ...] = ()
    may_miss: frozenset[str] = frozenset({"0rtt"})
    exercises: tuple[str, ...] = ()  # beginnings of rule ids: a case fails by the rules that its traffic is about
    notes: tuple[Check, ...] = ()
    protocols: tuple[str, ...] = (HTTP09,)
    host: str = "server4"  # the server's name in the URLs: server4, server6 or server46
    name_length: int = 16  # characters of a file's name
    chain_length: int = 1  # certificates that the server has to send
    chain_bytes: int = 0  # that these have at least
    client: ClientKind = ClientKind.STACK
    encrypted: bool = True  # TLS end to end: no middlebox can show more than addresses, ports and the server's name
    origins: int = 1  # over how many the objects of a page are spread
    sizes: tuple[int, ...] = ()  # of the single file: each is a question of its own; empty: `files` is the question
    sweep: tuple[int, ...] = ()  # the sizes of `--size all`
    slowest: int = 0  # bit/s that a transfer must reach beyond `timeout`; 0: the time-out is for every size
    declared: str = ""  # the name of the declaration from which `sized` or `warmed` made this question
    warm: bool = False  # the client loads the same once before, uncounted

    def sized(self, size: int) -> "Case":
        """The same question with one file of `size` bytes, whose name says so."""
        text = f"{size}B" if size % 1000 else f"{size // 1000}kB"  # without rounding: two sizes never share a name
        return replace(
            self,
            name=f"{self.name}-{text}",
            abbreviation=f"{self.abbreviation}-{text}",
            declared=self.declared or self.name,
            files=(size,),
            timeout=self.timeout + 8 * size / self.slowest
            if self.slowest
            else self.timeout * max(1, size / self.files[0]),
        )

    def warmed(self) -> "Case":
        """The same question after an uncounted first round."""
        return replace(
            self,
            name=f"{self.name}+warm",
            abbreviation=f"{self.abbreviation}+warm",
            declared=self.declared or self.name,
            timeout=2 * self.timeout,
            warm=True,
        )

    @property
    def is_real(self) -> bool:
        """Whether it runs over a real link only, which `--link` names."""
        return isinstance(self.link, AdvertisedLink)

    @property
    def is_clean(self) -> bool:
        """Whether the link does nothing to it on purpose, so that any link will do."""
        return self.link.is_clean and not self.preconditions

    def checks_over(self, protocol: str) -> tuple[Check, ...]:
        """The checks of a job that runs over this protocol."""
        return self.over_tcp if protocol in OVER_TCP else self.checks

    def wire(self, role: Role, protocol: str | None = None) -> str:
        """The value of TESTCASE for this role, over the preferred protocol or the given one."""
        if protocol in WIRE_NAMES and self.client is ClientKind.STACK:
            return WIRE_NAMES[protocol]
        return self.wire_name_server or self.wire_name if role is Role.SERVER else self.wire_name

    def record(self) -> CaseRecord:
        """The declaration with its link resolved, as `run.json` keeps it."""
        return CaseRecord(
            name=self.name,
            case=self.name,
            declared=self.declared,
            abbreviation=self.abbreviation,
            kind=self.kind,
            description=self.description,
            link=self.link.record(),
            wire_names={role.value: self.wire(role) for role in Role},
            file_sizes=self.files,
            timeout=self.timeout,
            iterations=self.iterations,
            host=self.host,
            name_length=self.name_length,
            chain_length=self.chain_length,
            chain_bytes=self.chain_bytes,
            client=self.client,
            alpn="" if self.client is ClientKind.STACK else self.protocols[0],
            encrypted=self.encrypted,
            origins=self.origins,
            warm=self.warm,
        )


MEASURED_FILE = 10 * MIB  # what every measurement of the public runner and the thesis transfers
