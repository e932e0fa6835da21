"""The list of all mutants. Each breaks one rule of docs/rules.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lab.mutate.mutation import Mutation
from lab.mutate.recording import CLIENT, SERVER

Break = Callable[[Mutation], None]
MUTANTS: list["Mutant"] = []
BOTH = (CLIENT, SERVER)


@dataclass(frozen=True)
class Mutant:
    """A way in which `role` breaks `rule`. `along`: rules that are necessarily broken, too, each with the reason."""

    rule: str
    name: str
    role: str
    apply: Break
    cases: tuple[str, ...] = ()
    """Ends of the paths of the recordings to try first; empty: no recording is preferred."""
    along: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name of the mutant with its role."""
        return f"{self.rule} {self.name} ({self.role})"


def mutant(
    rule: str,
    *roles: str,
    cases: Sequence[str] = (),
    along: Mapping[str, str] | None = None,
    name: str = "",
) -> Callable[[Break], Break]:
    """Register a function as the mutants of a rule, one for each role that can break it."""

    def register(function: Break) -> Break:
        for role in roles or BOTH:
            label = name or function.__name__.removeprefix("_")
            MUTANTS.append(Mutant(rule, label, role, function, tuple(cases), along or {}))
        return function

    return register
