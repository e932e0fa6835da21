"""A stack under test and the image that holds its endpoints."""

from dataclasses import dataclass, field
from enum import StrEnum

from runner.model.protocol import OVER_QUIC, OVER_TCP


class Role(StrEnum):
    """The side of a connection that an endpoint takes (RFC 9000 §1.2)."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One entry of implementations.json. `build`: the folder from which `image` is built; None when the image is
    pulled."""

    name: str
    image: str
    url: str
    version: str
    build: str | None = None
    withdrawn: bool = False  # True: this is the last known image, and its registry may no longer have it
    note: str = ""
    language: str = ""
    roles: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)
    kind: str = "stack"  # stack, downloader, browser (ClientKind), or origin: the server of downloader and browser
    speaks: tuple[str, ...] = OVER_QUIC  # protocols by ALPN; empty: not declared
    cases: dict[Role, tuple[str, ...]] = field(default_factory=dict)  # wire names; empty: not declared
    congestion_control: str = ""  # the default controller as its developers name it
    congestion_controls: tuple[str, ...] = ()  # allowed values of `CCA`
    congestion_implemented: tuple[
        str, ...
    ] = ()  # controllers in the stack's source, including controllers that `CCA` can't select
    congestion_source: str = ""  # source of the facts about congestion control; empty: this project found them
    hystart: bool | None = None
    initial_window: int | None = None  # packets; None: unknown
    initial_window_settable: bool = False
    variant_of: str = ""  # the stack of which this is a variant; empty: this is no variant
    parameters: dict[str, str] = field(default_factory=dict)  # environment variables of a variant (model/variant.py)

    @property
    def is_over_tcp(self) -> bool:
        """True when the implementation has only protocols over TCP."""
        return all(protocol in OVER_TCP for protocol in self.speaks)

    @property
    def is_a_pair(self) -> bool:
        """True when the implementation is a stack with a client and a server over QUIC."""
        return self.kind == "stack" and set(self.roles) == set(Role) and not self.is_over_tcp

    def claims(self, role: Role, wire_name: str) -> bool:
        """True when the entry lists the case. An entry without a list claims every case."""
        return role in self.roles and (not self.cases.get(role) or wire_name in self.cases[role])
