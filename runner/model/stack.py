"""A stack under test and its variants, middleboxes, second flows, and the protocols that they speak."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from runner.units import format_size

# A middlebox (RFC 3234), such as a VPN or a PEP, and how traffic crossed the satellite link through it.

NO_VIA = "none"  # the value of `--via` for no middlebox


class Box(StrEnum):
    """The places of a middlebox's containers. A box without a container forwards packets and does nothing else."""

    TERMINAL = "terminal"  # the client's end of the satellite link
    GATEWAY = "gateway"  # the server's end of the satellite link


BOXES = (Box.TERMINAL, Box.GATEWAY)


def same_fields(kind: type, source: object) -> dict[str, Any]:
    """The values of `source` for the fields of the dataclass `kind` that have the same names. Lists become tuples."""
    values = {field.name: vars(source)[field.name] for field in fields(kind) if field.name in vars(source)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Middlebox:
    """One entry of `middleboxes` in implementations.json. `build`: the folder from which `image` is built; None when
    the image is pulled."""

    name: str
    image: str
    url: str
    version: str
    build: str | None = None
    note: str = ""
    boxes: tuple[Box, ...] = BOXES  # boxes where the image runs
    splits: tuple[Box, ...] = ()  # boxes where TCP connections end and new TCP connections begin
    splits_quic: tuple[Box, ...] = ()  # boxes where QUIC connections end and new QUIC connections begin
    carries: tuple[str, ...] = ("tcp", "udp")  # transports that the middlebox handles; it forwards others unchanged
    lacks: tuple[str, ...] = ()  # values of TESTCASE that don't work through the middlebox, such as `zerortt`
    encrypts: bool = False  # True: nothing of the inner connections may be visible on the satellite link
    link_port: bool = False  # True: the boxes use only UDP port LINK_PORT of the gateway between each other
    poses_as_server: bool = False  # True: it ends TLS connections in the server's name, and gets /certs
    knobs: tuple[str, ...] = ()  # environment variables that a variant may set
    variant_of: str = ""  # the middlebox of which this is a variant; empty: this is no variant
    parameters: dict[str, str] = field(default_factory=dict)  # parameters of a variant

    @property
    def forwards(self) -> bool:
        """True when the middlebox only forwards packets."""
        return not (self.splits or self.splits_quic or self.encrypts)

    def as_stack(self) -> "Implementation":
        """The middlebox in the form that the image builder takes."""
        return Implementation(name=self.name, image=self.image, url=self.url, version=self.version, build=self.build)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One kind of private data, for which every captured byte of the satellite link was searched."""

    what: str  # client address, server address, ports, server name, secret in the URL, …
    visible: bool
    times: int = 0  # number of packets that show the data
    packet: int | None = None  # number of the first such packet in the capture at the terminal, counted from 1
    how: str = ""  # form of the data: in the clear, inside a tunnel without encryption, as base64, …


@dataclass(frozen=True, kw_only=True)
class PageLoad:
    """Times of a page load from the Navigation and Paint Timing APIs (W3C), in seconds since the navigation began."""

    response_start: float | None
    first_contentful_paint: float | None
    load: float | None  # loadEventStart; None: the page was not loaded within the case's time-out
    completed: int  # number of objects that arrived completely, with status 200
    attempted: int  # number of objects that were requested


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """How a job's traffic crossed the satellite link, from captures at the client, on the link and at the server.

    `inner_bytes` and `outer_bytes` are IP bytes on the satellite segment, in both directions. `inner_bytes` are in
    packets between client and server; `outer_bytes` are in packets of the middlebox, between terminal and gateway.
    """

    connections: int  # TCP connections of the client that carried data
    whole: int = 0  # connections that reach the server unchanged: both initial sequence numbers are the same there
    on_link: int = 0  # TCP connections in the clear on the satellite segment, between client's and server's address
    terminal_split: int = 0  # connections that begin at the terminal: the client's capture lacks their sequence numbers
    gateway_split: int = 0  # connections that end at the gateway: the server's capture lacks their sequence numbers
    inner_bytes: int = 0
    outer_bytes: int = 0
    client_bytes: int = 0  # IP bytes between client and server in the client's capture, both directions
    answered: bool = True  # True: payload of the server reached the client
    sights: tuple[Sight, ...] = ()

    @property
    def visible(self) -> tuple[str, ...]:
        """The names of the private data that an eavesdropper sees."""
        return tuple(sight.what for sight in self.sights if sight.visible)


# The application protocols of the matrix by ALPN (RFC 7301 §3.1), and the value of TESTCASE for each protocol.

HTTP09 = "hq-interop"  # HTTP/0.9 over QUIC (contract.md): the response is only the file
HTTP3 = "h3"  # RFC 9114: the response consists of frames
HTTP2 = "h2"  # RFC 9113, over TLS and TCP
HTTP1 = "http/1.1"  # RFC 9112, over TLS and TCP
OVER_QUIC = (HTTP09, HTTP3)
OVER_TCP = (HTTP2, HTTP1)
PROTOCOLS = (*OVER_QUIC, *OVER_TCP)
"""All protocols, preferred first."""

UPLOAD = "upload"  # the value of TESTCASE for uploads, which exist over HTTP/3 only
WIRE_NAMES = {HTTP3: "http3", HTTP2: "h2", HTTP1: "h1"}
"""Protocol → the value of TESTCASE that requests it, in every case. Over HTTP/0.9, each case has its own value."""


def protocol_of(wire_name: str) -> str:
    """The protocol that an endpoint speaks when TESTCASE is `wire_name`."""
    protocols = {name: protocol for protocol, name in WIRE_NAMES.items()} | {UPLOAD: HTTP3}
    return protocols.get(wire_name, HTTP09)


def transport_of(protocol: str) -> str:
    """The transport of a protocol: tcp or udp."""
    return "tcp" if protocol in OVER_TCP else "udp"


# A stack under test and the image that holds its endpoints.


class Role(StrEnum):
    """The side of a connection that an endpoint takes (RFC 9000 §1.2)."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def peer(self) -> "Role":
        """The other end of the connection."""
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


_EXCHANGED = {"client": "server", "server": "client", "forward": "return", "return": "forward"}
_EXCHANGED |= {word.capitalize(): other.capitalize() for word, other in _EXCHANGED.items()}


def exchanged(text: str) -> str:
    """A text about a download as a text about an upload: client and server, forward and return change places. Times
    still begin with the client's first packet, and the client still waits for HANDSHAKE_DONE."""
    words = rf"\b({'|'.join(_EXCHANGED)})\b(?!'s first packet| receives)"
    return re.sub(words, lambda found: _EXCHANGED[found[0]], text)


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
    real_time: tuple[str, ...] = ()  # `ROLE` or `ROLE:CASE`, where verdicts differ in virtual time
    language: str = ""
    roles: tuple[Role, ...] = (Role.CLIENT, Role.SERVER)
    kind: str = "stack"  # stack, downloader, browser (ClientKind), or origin: the server of downloader and browser
    speaks: tuple[str, ...] = OVER_QUIC  # protocols by ALPN; empty: not declared
    cases: dict[Role, tuple[str, ...]] = field(default_factory=dict)  # wire names; empty: not declared
    congestion_control: str = ""  # the default controller as its developers name it
    congestion_controls: tuple[str, ...] = ()  # allowed values of `CCA`
    congestion_implemented: tuple[str, ...] = ()  # in the stack's source, also those that `CCA` can't select
    congestion_source: str = ""  # source of the facts about congestion control; empty: this project found them
    hystart: bool | None = None
    initial_window: int | None = None  # packets; None: unknown
    initial_window_settable: bool = False
    variant_of: str = ""  # the stack of which this is a variant; empty: this is no variant
    parameters: dict[str, str] = field(default_factory=dict)  # environment variables of a variant (model/stack.py)

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


# A variant: a stack with parameters other than its defaults. It has its own row or column in the matrix.

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


# A second flow that shares the bottleneck with a job's own flow: its stacks and endpoints.

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


# How a job's traffic crossed the satellite link, in sentences.


def carried(crossing: Crossing) -> Iterator[str]:
    """Sentences with the counts that show how the traffic crossed the satellite link: IP bytes, and TCP connections
    that ended at a box."""
    yield (
        f"{format_size(crossing.client_bytes)} of IP at the client; on the satellite link "
        f"{format_size(crossing.inner_bytes)} between client and server, "
        f"{format_size(crossing.outer_bytes)} between terminal and gateway"
    )
    if crossing.connections:
        ended = crossing.connections - crossing.whole
        where = [
            f"{number} at the {side}"
            for side, number in (("terminal", crossing.terminal_split), ("gateway", crossing.gateway_split))
            if number
        ]
        places = f", of them {' and '.join(where)}" if where else ""
        yield (
            f"{crossing.connections} TCP connections of the client, {ended} ended on the way{places} "
            "(by sequence numbers)"
        )
