"""Preconditions: the link's impairment affected this connection. Otherwise the job can't be judged."""

from collections.abc import Iterator
from dataclasses import dataclass

from runner.model.result import IMPAIRED, DirectionTruth, Finding, LinkTruth
from testcases.base import CaseEvidence, keyless

MISSED = "impairment-missed"
# Counter of the simulator → what happened to the counted packets.
_WORDS = {"dropped_loss": "lost by the model", **IMPAIRED}


@keyless
@dataclass(frozen=True)
class Hit:
    """The simulator counted `counter` at least `least` times in each direction that is set."""

    counter: str
    forward: bool = True
    return_: bool = True
    least: int = 1

    def __call__(self, case: CaseEvidence) -> Iterator[Finding]:
        """A finding for each direction in which the impairment affected too few packets."""
        for name, wanted, way in self._ways(case.truth):
            count = getattr(way, self.counter) if way is not None else 0
            if wanted and count < self.least:
                packets = "packet" if self.least == 1 else "packets"
                yield missed(f"at least {self.least} {packets} {_WORDS[self.counter]} on the {name} link", f"{count}")

    def _ways(self, truth: LinkTruth | None) -> tuple[tuple[str, bool, DirectionTruth | None], ...]:
        return (
            ("forward", self.forward, truth.forward if truth else None),
            ("return", self.return_, truth.return_ if truth else None),
        )


def rebound(case: CaseEvidence) -> Iterator[Finding]:
    """The NAT made a new mapping, and packets of the client used it."""
    used = [mapping for mapping in (case.truth.mappings if case.truth else ()) if mapping.packets]
    if not used:
        yield missed("a new mapping of the NAT that packets of the client used", "none")


def missed(expected: str, actual: str) -> Finding:
    """The finding that the link's impairment did not affect the connection."""
    return Finding(
        code=MISSED,
        requirement="The link's impairment affects this connection.",
        expected=expected,
        actual=actual,
    )
