"""Which address of the server's host can the client's host reach? Each one is asked, over the link's interface."""

import ipaddress
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.lanes.holders import TOOLS
from runner.lanes.supervised import Bell
from runner.model.real_link import RealLink
from runner.remote.station import SCRIPTS

LEAST_PAYLOAD = 1200  # bytes of UDP that the path must carry both ways, RFC 9000 §14
_ANSWER_LIFE = 120  # s
_FIND_LIFE = 60
_SECONDS = 40.0
_TRIES = 3
Route = tuple[str, str]

_DEVICE = re.compile(r"\bdev (\S+)")
_SOURCE = re.compile(r"\bsrc (\S+)")
_GLOBAL = re.compile(r"^\d+: +(\S+) +inet6? ([0-9a-fA-F.:]+)/\d+ .*scope global", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An address of the server's host as the client's host sees it. RTT in seconds, payload in bytes of UDP."""

    address: str
    interface: str  # over which the client's host goes there
    rtt: float | None = None  # None: no answer
    payload: int = 0  # the largest that came back
    source: str = ""  # where the answer came from
    client: str = ""  # the client's address as the server sees it
    own: str = ""  # and as the client's host itself has it: there is a NAT when they differ
    server_interface: str = ""  # over which the server's host answers

    @property
    def family(self) -> int:
        return ipaddress.ip_address(self.address).version

    def detour(self, link: RealLink) -> str:
        """Why the way there isn't the link, whoever answers; empty when it is."""
        if self.family not in link.families:
            return f"IPv{self.family} is not among the link's families"
        if link.interface and self.interface != link.interface:
            where = f"over {self.interface}" if self.interface else "nowhere"
            return f"the client's host goes there {where}, not over {link.interface}"
        return ""

    def problem(self, link: RealLink) -> str:
        """Why it can't be used; empty when it can."""
        if detour := self.detour(link):
            return detour
        if self.rtt is None:
            return "no answer"
        if self.source != self.address:
            return f"the answer comes from {self.source}"
        if self.payload < LEAST_PAYLOAD:
            return f"it carries {self.payload} B of UDP at most, {LEAST_PAYLOAD} are needed"
        return ""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What was found: the chosen address by family, and every candidate."""

    chosen: dict[int, Candidate]
    known: tuple[Candidate, ...]

    def of(self, host: str) -> Candidate:
        """The address of a case's host. Raises LaneError `no-address` for one that is IPv6 alone, without any."""
        if host == "server6" and 6 not in self.chosen:
            raise LaneError("no-address", "The case asks for IPv6, and the link has none.")
        return self.chosen.get(6 if host == "server6" else 4) or next(iter(self.chosen.values()))

    def hosts(self) -> tuple[str, ...]:
        """What endpoints resolve, `name:address`: as in lanes, as far as the link has the families."""
        found = []
        for family, one in sorted(self.chosen.items()):
            found += [f"server{family}:{one.address}", f"server46:{one.address}"]
        if 4 not in self.chosen:  # every measurement asks server4
            found += [f"server4:{one.address}" for one in self.chosen.values()]
        return tuple(found)


def find(link: RealLink, client: Engine, server: Engine, bell: Bell, *, name: str, seen_as: str = "") -> Reach:
    """Ask every address of the server's host to which the link leads, from the client's.

    `seen_as`: the address of the server's host as SSH tells it: to the client's host, or to us.
    Raises LaneError `no-address` with what each candidate said when none can be used.
    """
    token = secrets.token_hex(16)
    answering = ("answer", str(_ANSWER_LIFE), token, str(link.udp_port))
    with _helper(server, f"{name}-answer", answering) as there:
        _printed(server, there, "side ready", bell)
        candidates = _candidates(link, server, there, seen_as)
        routes = _routes(client, f"{name}-route", candidates)
        known = [Candidate(address=one, interface=device, own=own) for one, (device, own) in routes.items()]
        text, to_ask = "", [one.address for one in known if not one.detour(link)]
        if to_ask:
            asking = ("find", str(_FIND_LIFE), token, str(link.udp_port), *to_ask)
            with _helper(client, f"{name}-find", asking) as here:
                text = _printed(client, here, "found", bell)
        answers = {one.address: _answered_over(server, there, one) for one in _read(text, routes)}
        known = [answers.get(one.address, one) for one in known]
        trouble = [line for line in server.printed(there).splitlines() if line.startswith("port ")]
    usable = [one for one in known if not one.problem(link)]
    if not usable:
        raise LaneError("no-address", unreachable(link, known, trouble))
    chosen: dict[int, Candidate] = {}
    for one in sorted(usable, key=lambda one: (candidates.index(one.address), one.rtt or 0.0)):
        chosen.setdefault(one.family, one)
    return Reach(chosen=chosen, known=tuple(known))


def unreachable(link: RealLink, known: Iterable[Candidate], trouble: list[str]) -> str:
    """Why no address can be used, and the mend. `trouble`: what the server's side said of the port."""
    said = "; ".join([f"{one.address}: {one.problem(link)}" for one in known] + trouble) or "it has none"
    mend = "open the port in its firewall, or name an address in `server_addresses`"
    if any("already in use" in line for line in trouble):
        mend = "end what uses the port there (`ss -ulpn`), or give the link another `udp_port`"
    return f"{link.client.name} reaches no address of the server's host at UDP port {link.udp_port} ({said}): {mend}."


def _candidates(link: RealLink, server: Engine, container: str, seen_as: str) -> list[str]:
    """What links.json names; else the address that SSH tells, unless it goes through a tunnel, then all of the host."""
    if link.server_addresses:
        return list(link.server_addresses)
    text = _said(server, container, "ip", "-o", "address", "show", "scope", "global")
    own = [address for interface, address in _GLOBAL.findall(text) if not interface.startswith(("docker", "br-"))]
    return list(dict.fromkeys(([seen_as] if _lies_elsewhere(seen_as) else []) + own))


def _lies_elsewhere(address: str) -> bool:
    """Whether what SSH tells can be an address of the server's host; through a tunnel, SSH tells the tunnel's end."""
    try:
        told = ipaddress.ip_address(address)
    except ValueError:  # nothing, or what a login prints of its own
        return False
    return not (told.is_loopback or told.is_link_local)


def _routes(client: Engine, name: str, candidates: Iterable[str]) -> dict[str, Route]:
    """The interface over which the client's host goes to each address, and with which address of its own."""
    found: dict[str, Route] = {}
    with _helper(client, name, ("answer", str(_FIND_LIFE), "00" * 16)) as container:
        for address in candidates:
            text = _said(client, container, "ip", "-o", "route", "get", address)
            device = _DEVICE.search(text)
            source = _SOURCE.search(text)
            found[address] = (device[1] if device else "", source[1] if source else "")
    return found


def _said(engine: Engine, container: str, *command: str) -> str:
    """What a command prints; the engine may lose the output of one that ends at once, so it is asked again."""
    text = ""
    for _ in range(_TRIES):
        text = text or engine.execute(container, list(command))[1]
    return text


@contextmanager
def _helper(engine: Engine, name: str, arguments: tuple[str, ...]) -> Iterator[str]:
    """A container in the host's network that runs scripts/side.py."""
    spec = ContainerSpec(
        image=TOOLS,
        role="reach",
        command=("/usr/bin/python3", "-ISB", "/side/side.py", *arguments),
        host={
            "network_mode": "host",
            "cap_drop": ["ALL"],
            "cap_add": ["NET_BIND_SERVICE"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": 64,
        },
    )
    container = engine.create(name, spec)
    try:
        engine.put(container, "/", {"side/side.py": (SCRIPTS / "side.py").read_bytes()})
        engine.start(container)
        yield container
    finally:
        engine.remove(container)


def _printed(engine: Engine, container: str, word: str, bell: Bell) -> str:
    waited = 0.0
    while waited < _SECONDS:
        ended = engine.state(container).exit_code is not None
        text = engine.printed(container)  # after the state: it may end in between
        if word in text:
            return text
        if ended:
            break
        bell.wait(lambda: False, timeout=0.5)
        waited += 0.5
    raise LaneError("no-address", "The addresses could not be asked.", printed=engine.printed(container)[-2000:])


def _answered_over(server: Engine, container: str, one: Candidate) -> Candidate:
    """With the interface over which the server's host goes to the client."""
    if not one.client:
        return one
    text = _said(server, container, "ip", "-o", "route", "get", one.client)
    device = _DEVICE.search(text)
    return replace(one, server_interface=device[1] if device else "")


def _read(text: str, routes: dict[str, Route]) -> Iterator[Candidate]:
    for line in text.splitlines():
        words = line.split()
        if len(words) != 5 or words[0] not in routes:
            continue
        address, rtt, payload, source, client = words
        yield Candidate(
            address=address,
            interface=routes[address][0],
            own=routes[address][1],
            rtt=int(rtt) / 1e9 if int(rtt) >= 0 else None,
            payload=int(payload),
            source="" if source == "-" else source,
            client="" if client == "-" else client,
        )
