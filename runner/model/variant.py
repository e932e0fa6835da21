"""A variant: a stack with parameters other than its defaults. It has its own row or column in the matrix."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from runner.model.implementation import Role

# Parameters of variants, which are environment variables (docs/contract.md), and the roles that get them. The order is
# that of the variant's name.
PARAMETERS: dict[str, tuple[Role, ...]] = {
    "CCA": (Role.CLIENT, Role.SERVER),
    "IW": (Role.CLIENT, Role.SERVER),
    "ACK_FREQUENCY": (Role.CLIENT, Role.SERVER),
    "CLIENT_PARAMS": (Role.CLIENT,),
    "SERVER_PARAMS": (Role.SERVER,),
}
_LONGEST_VALUE = 24  # longest value in a name, in characters
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The stack `stack` with `parameters`: names and values of environment variables, in the order of PARAMETERS."""

    stack: str
    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, stack: str, parameters: Mapping[str, str]) -> "Variant":
        """The variant with its parameters in the order of PARAMETERS."""
        return cls(stack=stack, parameters=tuple((name, parameters[name]) for name in PARAMETERS if name in parameters))

    @property
    def name(self) -> str:
        """The name in folders and pages, such as `quinn+cca=bbr+iw=32`. Long or unusual values are shortened, and a
        digest makes them unique."""
        parts = (f"{name.lower().replace('_', '-')}={_short(value)}" for name, value in self.parameters)
        return "+".join((self.stack, *parts))

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles in which the variant differs from its stack. For example, `SERVER_PARAMS` doesn't change a
        client."""
        return tuple(role for role in Role if any(role in PARAMETERS[name] for name, _ in self.parameters))


def _short(value: str) -> str:
    safe = _UNSAFE.sub("-", value).strip("-.")
    if safe == value and len(value) <= _LONGEST_VALUE:
        return value
    return f"{safe[:_LONGEST_VALUE]}~{hashlib.sha256(value.encode()).hexdigest()[:6]}"
