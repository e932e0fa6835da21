"""Finds an address of the server's host that the client's host reaches over the link: all addresses are probed."""

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

LEAST_PAYLOAD = 1200  # bytes of UDP that the link must carry in both directions, RFC 9000 §14
_ANSWER_LIFE = 120  # seconds for which the server's helper answers
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
    interface: str  # the interface of the client's host that leads to the address
    rtt: float | None = None  # None: no answer
    payload: int = 0  # the largest answered payload
    source: str = ""  # source address of the answer
    client: str = ""  # the client's address as the server sees it
    local: str = ""  # the client's address on its own host; if it differs from `client`, there is a NAT
    server_interface: str = ""  # the interface over which the server's host answers

    @property
    def family(self) -> int:
        return ipaddress.ip_address(self.address).version

    def detour(self, link: RealLink) -> str:
        """Why the route to this address doesn't cross the link; empty when it does."""
        if self.family not in link.families:
            return f"IPv{self.family} is not among the link's families"
        if link.interface and self.interface != link.interface:
            where = f"over {self.interface}" if self.interface else "nowhere"
            return f"the client's host routes it {where}, not over {link.interface}"
        return ""

    def problem(self, link: RealLink) -> str:
        """Why the address can't be used; empty when it can."""
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
    """The result of the search: the chosen address by family, and every candidate."""

    chosen: dict[int, Candidate]
    known: tuple[Candidate, ...]

    def of(self, host: str) -> Candidate:
        """The address for the host name of a case. Raises LaneError `no-address` when the case needs IPv6 and the link
        has no IPv6."""
        if host == "server6" and 6 not in self.chosen:
            raise LaneError("no-address", "The case needs IPv6, and the link has no IPv6.")
        return self.chosen.get(6 if host == "server6" else 4) or next(iter(self.chosen.values()))

    def hosts(self) -> tuple[str, ...]:
        """Host names for endpoints, `name:address`: the host names of lanes for each address family of the link."""
        hosts = []
        for family, candidate in sorted(self.chosen.items()):
            hosts += [f"server{family}:{candidate.address}", f"server46:{candidate.address}"]
        if 4 not in self.chosen:  # all measurements use server4
            hosts += [f"server4:{candidate.address}" for candidate in self.chosen.values()]
        return tuple(hosts)


def find(link: RealLink, client: Engine, server: Engine, bell: Bell, *, name: str, seen_as: str = "") -> Reach:
    """Probe every address of the server's host from the client's host over the link. `seen_as`: the address of the
    server's host according to SSH. Raises LaneError `no-address`, with the reason for each candidate, when no address
    can be used.
    """
    token = secrets.token_hex(16)
    answering = ("answer", str(_ANSWER_LIFE), token, str(link.udp_port))
    with _helper(server, f"{name}-answer", answering) as there:
        _printed(server, there, "side ready", bell)
        candidates = _candidates(link, server, there, seen_as)
        routes = _routes(client, f"{name}-route", candidates)
        known = [
            Candidate(address=candidate, interface=device, local=source)
            for candidate, (device, source) in routes.items()
        ]
        text, to_ask = "", [candidate.address for candidate in known if not candidate.detour(link)]
        if to_ask:
            asking = ("find", str(_FIND_LIFE), token, str(link.udp_port), *to_ask)
            with _helper(client, f"{name}-find", asking) as here:
                text = _printed(client, here, "found", bell)
        answers = {candidate.address: _answered_over(server, there, candidate) for candidate in _read(text, routes)}
        known = [answers.get(candidate.address, candidate) for candidate in known]
        trouble = [line for line in server.printed(there).splitlines() if line.startswith("port ")]
    usable = [candidate for candidate in known if not candidate.problem(link)]
    if not usable:
        raise LaneError("no-address", unreachable(link, known, trouble))
    chosen: dict[int, Candidate] = {}
    for candidate in sorted(usable, key=lambda candidate: (candidates.index(candidate.address), candidate.rtt or 0.0)):
        chosen.setdefault(candidate.family, candidate)
    return Reach(chosen=chosen, known=tuple(known))


def unreachable(link: RealLink, known: Iterable[Candidate], trouble: list[str]) -> str:
    """Why no address can be used, and the fix. `trouble`: errors of the port on the server's host."""
    reasons = (
        "; ".join([f"{candidate.address}: {candidate.problem(link)}" for candidate in known] + trouble)
        or "the host has no global address"
    )
    fix = "open the port in its firewall, or name an address in `server_addresses`"
    if any("already in use" in line for line in trouble):
        fix = "end the program that uses the port there (`ss -ulpn` shows it), or give the link another `udp_port`"
    return f"{link.client.name} reaches no address of the server's host at UDP port {link.udp_port} ({reasons}): {fix}."


def _candidates(link: RealLink, server: Engine, container: str, seen_as: str) -> list[str]:
    """The addresses in links.json. If links.json has none: the address according to SSH (unless SSH goes through a
    tunnel), then all addresses of the host."""
    if link.server_addresses:
        return list(link.server_addresses)
    text = _output(server, container, "ip", "-o", "address", "show", "scope", "global")
    addresses = [address for interface, address in _GLOBAL.findall(text) if not interface.startswith(("docker", "br-"))]
    return list(dict.fromkeys(([seen_as] if _lies_elsewhere(seen_as) else []) + addresses))


def _lies_elsewhere(address: str) -> bool:
    """True when the address according to SSH can be an address of the server's host. Through a tunnel, SSH shows the
    end of the tunnel instead."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # an empty text, or output of the login shell
        return False
    return not (parsed.is_loopback or parsed.is_link_local)


def _routes(client: Engine, name: str, candidates: Iterable[str]) -> dict[str, Route]:
    """The interface and the source address that the client's host uses for each address."""
    routes: dict[str, Route] = {}
    with _helper(client, name, ("answer", str(_FIND_LIFE), "00" * 16)) as container:
        for address in candidates:
            text = _output(client, container, "ip", "-o", "route", "get", address)
            device = _DEVICE.search(text)
            source = _SOURCE.search(text)
            routes[address] = (device[1] if device else "", source[1] if source else "")
    return routes


def _output(engine: Engine, container: str, *command: str) -> str:
    """The output of a command. A command without output is repeated, because the engine may lose the output of a very
    short command."""
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
        text = engine.printed(container)  # read after the state: the container may end in between
        if word in text:
            return text
        if ended:
            break
        bell.wait(lambda: False, timeout=0.5)
        waited += 0.5
    raise LaneError("no-address", "The addresses could not be probed.", printed=engine.printed(container)[-2000:])


def _answered_over(server: Engine, container: str, candidate: Candidate) -> Candidate:
    """The candidate, with the interface over which the server's host answers the client."""
    if not candidate.client:
        return candidate
    text = _output(server, container, "ip", "-o", "route", "get", candidate.client)
    device = _DEVICE.search(text)
    return replace(candidate, server_interface=device[1] if device else "")


def _read(text: str, routes: dict[str, Route]) -> Iterator[Candidate]:
    for line in text.splitlines():
        words = line.split()
        if len(words) != 5 or words[0] not in routes:
            continue
        address, rtt, payload, source, client = words
        yield Candidate(
            address=address,
            interface=routes[address][0],
            local=routes[address][1],
            rtt=int(rtt) / 1e9 if int(rtt) >= 0 else None,
            payload=int(payload),
            source="" if source == "-" else source,
            client="" if client == "-" else client,
        )
