"""`Case`: the declaration of a test case or a measurement. Checks are pure functions over facts.

To add a case, add a module to this package that defines `CASE`, or a row of a module's `CASES`. No other file changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from runner.model.facts import TraceFacts
from runner.model.link import LinkRecord
from runner.model.result import Evidence, Finding, LinkTruth
from runner.model.run import CaseRecord, ClientKind, Kind
from runner.model.stack import HTTP09, OVER_TCP, WIRE_NAMES, Role, same_fields
from runner.units import MIB
from testcases.links import DEFAULT


@dataclass(frozen=True, kw_only=True)
class CaseEvidence:
    """The input of a check: facts from the packets and the harness's record. A check sees no packets and no files."""

    facts: TraceFacts
    evidence: Evidence
    case: CaseRecord
    truth: LinkTruth | None
    protocol: str  # ALPN of the protocol that the job uses


_SHARED = 3  # a transfer beside another flow gets this multiple of its time-out

Check = Callable[[CaseEvidence], Iterable[Finding]]

PACKET_TYPES = frozenset({"initial", "0rtt", "handshake", "1rtt"})
"""Types of packets that have packet protection."""

_AnyCheck = TypeVar("_AnyCheck", bound=Check)
_Keyless = TypeVar("_Keyless", bound=Callable[..., object])


def reads(*packet_types: str) -> Callable[[_AnyCheck], _AnyCheck]:
    """Declare the types of protected packets that the findings of a check depend on. Default: all types.

    Such a finding stays valid when packets of other types can't be decrypted. `reads()` declares that the findings need
    no protected packet.
    """
    assert PACKET_TYPES.issuperset(packet_types)

    def declare(check: _AnyCheck) -> _AnyCheck:
        check.reads = frozenset(packet_types)  # type: ignore[attr-defined]
        return check

    return declare


def reads_of(check: Check) -> frozenset[str]:
    """The types of protected packets that the findings of `check` depend on."""
    declared: frozenset[str] = getattr(check, "reads", PACKET_TYPES)
    return declared


def keyless(check: _Keyless) -> _Keyless:
    """Declare that a job can pass `check` although no key log opens its packets: the check then decides by files, long
    headers, Initial packets, ECN marks and sizes. If these do not suffice in a job, it yields `undecided`."""
    check.keyless = True  # type: ignore[attr-defined]
    return check


def is_keyless(check: Check) -> bool:
    """Whether `check` is declared `keyless`."""
    return getattr(check, "keyless", False)


def undecided(expected: str, actual: str) -> Finding:
    """The finding of a `keyless` check that can't decide this job without secrets. The job becomes an error."""
    return Finding(
        code=UNDECIDED,
        requirement="Endpoints write their secrets to SSLKEYLOGFILE, because verdicts come from decrypted packets.",
        expected=expected,
        actual=actual,
    )


UNDECIDED = "secrets-missing"

EVERY_CASE = ("rfc9000-12.3-number-reused", "rfc9000-12.4-empty-payload")
"""Rules that decide every case, whichever roles it judges."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test case (yes or no) or a measurement (numbers).

    Four kinds of checks run in the order of their tuples, and all findings are kept:

    - `preconditions`: the link's impairment affected this connection. A finding makes the job an error.
    - `capabilities`: the pair can do what the case tests. A finding makes the job unsupported.
    - `checks`: the verdict. A finding makes the job fail. Over TCP, `over_tcp` replaces them.
    - `notes`: remarks that break no MUST of an RFC and no rule of the contract. They never change the verdict.

    Capabilities and notes exist for QUIC only.
    """

    name: str
    abbreviation: str
    description: str
    wire_name: str  # value of TESTCASE; the server's is `wire_name_server` when that is set
    files: tuple[int, ...]  # sizes in bytes
    checks: tuple[Check, ...]
    kind: Kind = Kind.TEST_CASE
    link: LinkRecord = DEFAULT
    timeout: float = 60.0  # seconds from the client's start to its end
    iterations: int = 1
    judges: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)  # roles that findings are about; `check` runs only these
    wire_name_server: str | None = None
    preconditions: tuple[Check, ...] = ()
    capabilities: tuple[Check, ...] = ()
    over_tcp: tuple[Check, ...] = ()
    may_miss: frozenset[str] = frozenset({"0rtt"})  # types of packets that need not be decrypted for a verdict
    depends: tuple[str, ...] = ()  # prefixes of ids: rules that no check repeats; the case fails when one is broken
    notes: tuple[Check, ...] = ()
    protocols: tuple[str, ...] = (HTTP09,)  # ALPNs, preferred first; a job uses the first that both ends speak
    host: str = "server4"  # the server's name in the URLs: server4, server6 or server46
    name_length: int = 16  # characters of a file name
    chain_length: int = 1  # certificates in the server's chain
    chain_bytes: int = 0  # smallest allowed size of the server's chain
    client: ClientKind = ClientKind.STACK
    encrypted: bool = True  # TLS end to end: an eavesdropper sees addresses, ports and the server name only
    origins: int = 1  # number of origins that serve the objects of a page
    sizes: tuple[int, ...] = ()  # sizes of the single file, each in a separate case. Empty: one case with `files`
    sweep: tuple[int, ...] = ()  # sizes of `--size all`
    slowest: int = 0  # bit/s; `sized` adds the transfer time at this rate. 0: the time-out grows with the size
    declared: str = ""  # name of the declaration from which `sized`, `warmed` or `accompanied` made this case
    warm: bool = False  # the client loads everything twice; only the second time counts
    beside: str = ""  # the flow beside (runner/model/stack.py): `tcp-cubic`, …; empty: the link has no other flow
    upload: bool = False  # the client sends the files

    def sized(self, size: int) -> "Case":
        """The same case with one file of `size` bytes; the size is part of the case's name."""
        text = f"{size}B" if size % 1000 else f"{size // 1000}kB"  # no rounding: two sizes never share a name
        longer = self.timeout + 8 * size / self.slowest if self.slowest else self.timeout * max(1, size / self.files[0])
        return self._variant(f"-{text}", files=(size,), timeout=longer)

    def warmed(self) -> "Case":
        """The same case with everything loaded twice; only the second time counts."""
        description = f"{self.description} It loads everything twice, and only the second time counts."
        return self._variant("+warm", description=description, timeout=2 * self.timeout, warm=True)

    def accompanied(self, beside: str) -> "Case":
        """The same case beside another flow through the same link."""
        description = f"{self.description} A second flow ({beside}) shares the link."
        longer = self.timeout if self.beside else _SHARED * self.timeout
        return self._variant(f"+{beside}", description=description, timeout=longer, beside=beside)

    def _variant(self, suffix: str, **changes: Any) -> "Case":
        name, abbreviation = self.name + suffix, self.abbreviation + suffix
        return replace(self, name=name, abbreviation=abbreviation, declared=self.declared or self.name, **changes)

    @property
    def needs_a_name(self) -> bool:
        """True when the case runs only if `--case` names it, because it needs a real link or a second flow, repeats a
        measurement, or is an upload, which few stacks know."""
        return (
            self.is_real or bool(self.beside) or self.upload or (self.kind is Kind.MEASUREMENT and len(self.files) > 1)
        )

    @property
    def is_real(self) -> bool:
        """True when the case runs only over real links."""
        return self.link.is_real

    @property
    def is_clean(self) -> bool:
        """True when the case's link has no impairments. Then `--link` may replace the link."""
        return self.link.is_clean and not self.preconditions

    def checks_over(self, protocol: str) -> tuple[Check, ...]:
        """The checks of a job over `protocol` (ALPN)."""
        return self.over_tcp if protocol in OVER_TCP else self.checks

    def wire(self, role: Role, protocol: str | None = None) -> str:
        """The value of TESTCASE for `role`. `protocol`: ALPN of the job; None: the case's preferred protocol."""
        if protocol in WIRE_NAMES and self.client is ClientKind.STACK and not self.upload:
            return WIRE_NAMES[protocol]
        return self.wire_name_server or self.wire_name if role is Role.SERVER else self.wire_name

    def record(self) -> CaseRecord:
        """The declaration with its link, as `run.json` stores it."""
        changed = {
            "case": self.name,
            "wire_names": {role.value: self.wire(role) for role in Role},
            "file_sizes": self.files,
            "alpn": "" if self.client is ClientKind.STACK else self.protocols[0],
        }
        return CaseRecord(**(same_fields(CaseRecord, self) | changed))


MEASURED_FILE = 10 * MIB  # the size in every measurement of the public runner and of the thesis (docs/references.md)
