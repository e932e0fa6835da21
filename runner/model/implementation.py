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
    """One entry of implementations.json. `build`: the folder that makes `image`, None when it is only pulled."""

    name: str
    image: str
    url: str
    version: str
    build: str | None = None
    withdrawn: bool = False  # the image is the last one known; its registry may not have it any more
    note: str = ""
    language: str = ""
    roles: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)
    kind: str = "stack"  # or downloader, browser (ClientKind), or origin, their server
    speaks: tuple[str, ...] = OVER_QUIC  # by ALPN; not declared: either, the image answers
    cases: dict[Role, tuple[str, ...]] = field(default_factory=dict)  # wire names; empty: not declared, ask the image
    congestion_control: str = ""  # the default controller as its developers name it
    congestion_controls: tuple[str, ...] = ()  # what `CCA` may ask for
    congestion_implemented: tuple[str, ...] = ()  # what the stack has, whether `CCA` may ask for it or not
    congestion_source: str = ""  # who says so, when it isn't this project
    hystart: bool | None = None
    initial_window: int | None = None  # packets; None: unknown
    initial_window_settable: bool = False
    variant_of: str = ""  # the stack beside which it stands; empty: it is one itself
    parameters: dict[str, str] = field(default_factory=dict)  # of a variant: environment variables (model/variant.py)

    @property
    def is_over_tcp(self) -> bool:
        """Whether it speaks over TCP alone."""
        return all(protocol in OVER_TCP for protocol in self.speaks)

    def claims(self, role: Role, wire_name: str) -> bool:
        """True when the entry doesn't rule the case out. An entry without a list claims everything."""
        return role in self.roles and (not self.cases.get(role) or wire_name in self.cases[role])
