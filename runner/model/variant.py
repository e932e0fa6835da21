"""A stack with other parameters than its defaults, as another row or column."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from runner.model.implementation import Role

# Parameters of variants, in the order of the variant's name: environment variables (docs/contract.md) → roles that get
# them.
PARAMETERS: dict[str, tuple[Role, ...]] = {
    "CCA": (Role.CLIENT, Role.SERVER),
    "IW": (Role.CLIENT, Role.SERVER),
    "ACK_FREQUENCY": (Role.CLIENT, Role.SERVER),
    "CLIENT_PARAMS": (Role.CLIENT,),
    "SERVER_PARAMS": (Role.SERVER,),
}
_LONGEST_VALUE = 24  # characters of a value in a name
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """`stack` with `parameters`, by name of the environment variable, in the order of PARAMETERS."""

    stack: str
    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, stack: str, parameters: Mapping[str, str]) -> "Variant":
        """The variant with its parameters in their order."""
        return cls(stack=stack, parameters=tuple((name, parameters[name]) for name in PARAMETERS if name in parameters))

    @property
    def name(self) -> str:
        """The name in folders and pages, such as `quinn+cca=bbr+iw=32`. Free text is shortened, and a digest makes it
        unique."""
        parts = (f"{name.lower().replace('_', '-')}={_short(value)}" for name, value in self.parameters)
        return "+".join((self.stack, *parts))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles in which it differs from its stack: `SERVER_PARAMS` doesn't change a client."""
        return tuple(role for role in Role if any(role in PARAMETERS[name] for name, _ in self.parameters))


def _short(value: str) -> str:
    safe = _UNSAFE.sub("-", value).strip("-.")
    if safe == value and len(value) <= _LONGEST_VALUE:
        return value
    return f"{safe[:_LONGEST_VALUE]}~{hashlib.sha256(value.encode()).hexdigest()[:6]}"
