"""A second flow that shares the bottleneck with a job's own flow: its stacks and endpoints."""

from dataclasses import dataclass, field
from enum import StrEnum

from runner.model.implementation import Role

KERNEL_CONTROLLERS = ("bbr", "cubic", "reno")  # TCP's congestion controllers on every kernel that bentpipe runs on
_OVER_TCP = {f"tcp-{controller}": controller for controller in KERNEL_CONTROLLERS}
FLOWS_OVER_TCP = tuple(_OVER_TCP)
_TCP_SERVER, _TCP_CLIENT = "nginx+h1", "curl+h1"


class BesideRole(StrEnum):
    """An endpoint of the second flow. The value is also the name of the endpoint's namespace and folder."""

    CLIENT = "beside-client"
    SERVER = "beside-server"

    @property
    def role(self) -> Role:
        """The endpoint's role in its connection."""
        return Role.CLIENT if self is BesideRole.CLIENT else Role.SERVER


@dataclass(frozen=True, kw_only=True)
class BesideFlow:
    """A download of one file. `stacks`: names in the catalogue; `parameters`: environment variables of a variant."""

    stacks: dict[BesideRole, str]
    wire_name: str  # TESTCASE of both endpoints
    over_tcp: bool
    parameters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str) -> "BesideFlow":
        """The flow for a value of `--beside`: TCP with a congestion controller of the kernel, or a stack in both
        roles."""
        if name in _OVER_TCP:
            stacks = {BesideRole.SERVER: _TCP_SERVER, BesideRole.CLIENT: _TCP_CLIENT}
            return cls(stacks=stacks, wire_name="h1", over_tcp=True, parameters={"CCA": _OVER_TCP[name]})
        return cls(stacks=dict.fromkeys(BesideRole, name), wire_name="transfer", over_tcp=False)
