"""Reachability and condition of a real link: addresses, probes, offset of the clocks, datagrams of a capture."""

import ipaddress
import itertools
import mmap
import re
import secrets
import statistics
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runner.engine.containers import ContainerSpec, ContainerState, Engine
from runner.errors import LaneError
from runner.model.link import Clock, Probing, RealLink
from runner.places.supervised import SCRIPTS, TOOLS, Notifier, confined
from runner.plan.link_traces import ProbeExchange
from runner.units import MIB

# Finds an address of the server's host that the client's host reaches over the link: all addresses are probed.

LEAST_PAYLOAD = 1200  # bytes of UDP that the link must carry in both directions, RFC 9000 §14
_ANSWER_LIFE = 120  # seconds for which the server's helper answers
_FIND_LIFE = 60
_SECONDS = 40.0
_TRIES = 3
_MEMORY = 256 * MIB  # bytes
QUIET = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}}
"""The log of a container on the host of a link, from which its output is read."""
Route = tuple[str, str]

_DEVICE = re.compile(r"\bdev (\S+)")
_SOURCE = re.compile(r"\bsrc (\S+)")
_GLOBAL = re.compile(r"^\d+: +(\S+) +inet6? ([0-9a-fA-F.:]+)/\d+ .*scope global", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class AddressCandidate:
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

    chosen: dict[int, AddressCandidate]
    known: tuple[AddressCandidate, ...]

    def of(self, host: str) -> AddressCandidate:
        """The address for a case's host name. Raises LaneError `no-address` for IPv6 over a link without it."""
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


def find(link: RealLink, client: Engine, server: Engine, notifier: Notifier, *, name: str, seen_as: str = "") -> Reach:
    """Probe every address of the server's host from the client's host over the link. `seen_as`: the address of the
    server's host according to SSH. Raises LaneError `no-address`, with the reason for each candidate, when no address
    can be used."""
    token = secrets.token_hex(16)
    answering = ("answer", str(_ANSWER_LIFE), token, str(link.udp_port))
    with _helper(server, f"{name}-answer", answering) as there:
        _printed(server, there, "monitor ready", notifier)
        candidates = _candidates(link, server, there, seen_as)
        routes = _routes(client, f"{name}-route", candidates)
        known = [
            AddressCandidate(address=candidate, interface=device, local=source)
            for candidate, (device, source) in routes.items()
        ]
        text, to_ask = "", [candidate.address for candidate in known if not candidate.detour(link)]
        if to_ask:
            asking = ("find", str(_FIND_LIFE), token, str(link.udp_port), *to_ask)
            with _helper(client, f"{name}-find", asking) as here:
                text = _printed(client, here, "found", notifier)
        answers = {candidate.address: _answered_over(server, there, candidate) for candidate in _read(text, routes)}
        known = [answers.get(candidate.address, candidate) for candidate in known]
        trouble = [line for line in server.printed(there).splitlines() if line.startswith("port ")]
    usable = [candidate for candidate in known if not candidate.problem(link)]
    if not usable:
        raise LaneError("no-address", unreachable(link, known, trouble))
    chosen: dict[int, AddressCandidate] = {}
    for candidate in sorted(usable, key=lambda candidate: (candidates.index(candidate.address), candidate.rtt or 0.0)):
        chosen.setdefault(candidate.family, candidate)
    return Reach(chosen=chosen, known=tuple(known))


def unreachable(link: RealLink, known: Iterable[AddressCandidate], trouble: list[str]) -> str:
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
    """True when the address according to SSH can be the server host's. Through a tunnel, it is the tunnel's end."""
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
    """The output of a command, repeated without output: the engine may lose that of a very short command."""
    text = ""
    for _ in range(_TRIES):
        text = text or engine.execute(container, list(command))[1]
    return text


@contextmanager
def _helper(engine: Engine, name: str, arguments: tuple[str, ...]) -> Iterator[str]:
    """A container in the host's network that runs scripts/capture_and_probe.py."""
    spec = ContainerSpec(
        image=TOOLS,
        role="reach",
        command=("/usr/bin/python3", "-ISB", "/monitor/monitor.py", *arguments),
        host=confined(_MEMORY, capabilities=("NET_BIND_SERVICE",), network_mode="host", log_config=QUIET),
    )
    container = engine.create(name, spec)
    try:
        engine.put(container, "/", {"monitor/monitor.py": (SCRIPTS / "capture_and_probe.py").read_bytes()})
        engine.start(container)
        yield container
    finally:
        engine.remove(container)


def _printed(engine: Engine, container: str, word: str, notifier: Notifier) -> str:
    waited = 0.0
    while waited < _SECONDS:
        ended = engine.state(container).exit_code is not None
        text = engine.printed(container)  # read after the state: the container may end in between
        if word in text:
            return text
        if ended:
            break
        notifier.wait(lambda: False, timeout=0.5)
        waited += 0.5
    raise LaneError("no-address", "The addresses could not be probed.", printed=engine.printed(container)[-2000:])


def _answered_over(server: Engine, container: str, candidate: AddressCandidate) -> AddressCandidate:
    """The candidate, with the interface over which the server's host answers the client."""
    if not candidate.client:
        return candidate
    text = _output(server, container, "ip", "-o", "route", "get", candidate.client)
    device = _DEVICE.search(text)
    return replace(candidate, server_interface=device[1] if device else "")


def _read(text: str, routes: dict[str, Route]) -> Iterator[AddressCandidate]:
    for line in text.splitlines():
        words = line.split()
        if len(words) != 5 or words[0] not in routes:
            continue
        address, rtt, payload, source, client = words
        yield AddressCandidate(
            address=address,
            interface=routes[address][0],
            local=routes[address][1],
            rtt=int(rtt) / 1e9 if int(rtt) >= 0 else None,
            payload=int(payload),
            source="" if source == "-" else source,
            client="" if client == "-" else client,
        )


# Computes the link's condition in each phase of a job, and the offset of the clocks, from the record of the probes.
# No input or output.

PROBE_BYTES = 94 + 28  # bytes of a probe as an IPv4 packet, and of its answer; an IPv6 packet has 20 more
_PROBES_PER_SECOND = 5.0
_PROBE_SHARE = 0.01  # largest share of the return link's data rate for probes
# A probe without an answer is not counted as lost if it was sent within this number of median RTTs before the end.
_UNDER_WAY = 1.5
_LEAST_SPAN = 20.0  # seconds between first and last exchange; with less, drift can't be distinguished from noise
_NEAR_LEAST = 0.02  # share of the least RTT by which an undisturbed exchange may be slower
_LEAST_EXCHANGES = 3


def probe_period(link: RealLink) -> float:
    """Seconds between two probes: 5 probes a second, fewer when they would take more than 1 % of the return link."""
    return max(1 / _PROBES_PER_SECOND, 8 * PROBE_BYTES / (_PROBE_SHARE * link.return_rate))


def settled(exchanges: Sequence[ProbeExchange]) -> list[ProbeExchange]:
    """The exchanges, without unanswered probes at the end whose answers may still have been on the link."""
    rtts = [rtt for exchange in exchanges if (rtt := exchange.rtt) is not None]
    if not rtts:
        return list(exchanges)
    over = exchanges[-1].sent / 1e9 - _UNDER_WAY * statistics.median(rtts)
    return [exchange for exchange in exchanges if exchange.rtt is not None or exchange.sent / 1e9 < over]


def probing(exchanges: Iterable[ProbeExchange], begin: float, end: float) -> Probing:
    """A summary of the probes sent from `begin` to `end`, in seconds since 1970 by the client's clock."""
    phase = [exchange for exchange in exchanges if begin <= exchange.sent / 1e9 < end]
    rtts = [rtt for exchange in phase if (rtt := exchange.rtt) is not None]
    answered = [exchange.sent / 1e9 for exchange in phase if exchange.rtt is not None]
    gap = 0.0
    if phase:
        edges = [phase[0].sent / 1e9, *answered, phase[-1].sent / 1e9]
        gap = max(after - before for before, after in itertools.pairwise(edges))
    return Probing(
        sent=len(phase),
        received=len(rtts),
        rtt_min=min(rtts, default=None),
        rtt_median=statistics.median(rtts) if rtts else None,
        rtt_max=max(rtts, default=None),
        longest_gap=gap,
    )


def clock(exchanges: Sequence[ProbeExchange]) -> Clock | None:
    """The client's clock compared with the server's, from the exchanges with the least RTT; None without any."""
    known = [
        (exchange, rtt, offset)
        for exchange in exchanges
        if (rtt := exchange.rtt) is not None and (offset := exchange.offset) is not None
    ]
    if not known:
        return None
    least = min(rtt for _, rtt, _ in known)
    near = [entry for entry in known if entry[1] <= least * (1 + _NEAR_LEAST)]
    if len(near) < _LEAST_EXCHANGES:
        near = sorted(known, key=lambda entry: entry[1])[:_LEAST_EXCHANGES]
    times = np.array([exchange.received for exchange, _, _ in near], dtype=np.float64) / 1e9
    offsets = np.array([offset for _, _, offset in near])
    slower = np.array([rtt - least for _, rtt, _ in near])
    at = float(times.mean())
    drift = 0.0
    if times.max() - times.min() >= _LEAST_SPAN:
        drift = float(np.polyfit(times - at, offsets, 1)[0])
    rest = offsets - drift * (times - at)
    middle = float(np.median(rest))
    # A queue may delay only one direction; then half of this delay is in the offset.
    uncertainty = float(np.median(np.abs(rest - middle)) + np.median(slower) / 2)
    return Clock(offset=middle, drift=drift, at=at, uncertainty=uncertainty, bound=least / 2, exchanges=len(near))


# Decides whether a link was up before, during and after a transfer, and compares the clocks. No input or
# output.

_OUTAGE = 3.0  # seconds without any answer that count as an outage
_OUTAGE_RTTS = 4  # RTTs without any answer that count as an outage; the longer of both times counts
_BAD_BASELINE = 0.2  # share of probes that may be lost while the link carries only probes


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The link in each phase of a job, and the clocks. `problem`: why the link did not work, or empty."""

    before: Probing
    during: Probing | None
    after: Probing | None
    clock: Clock | None
    problem: str


def judge(exchanges: Sequence[ProbeExchange], client: ContainerState | None) -> Conditions:
    """Judge the link from the probes. `client`: its container's state, by the probes' clock; None: it never ran."""
    end = float("inf")
    started = client.started if client is not None and client.started is not None else end
    ended = client.ended if client is not None and client.ended is not None else end
    before = probing(exchanges, 0.0, started)
    during = probing(exchanges, started, ended) if started < end else None
    after = probing(exchanges, ended, end) if ended < end else None
    return Conditions(
        before=before, during=during, after=after, clock=clock(exchanges), problem=_problem(before, during, after)
    )


def _problem(before: Probing, during: Probing | None, after: Probing | None) -> str:
    if before.sent and not before.received:
        return f"none of {before.sent} probes was answered before the transfer"
    if before.loss > _BAD_BASELINE:
        return f"{before.loss:.0%} of the probes were lost before the transfer, when nothing else was on the link"
    limit = max(_OUTAGE, _OUTAGE_RTTS * (before.rtt_median or 0.0))
    for phase, when in ((during, "during"), (after, "after")):
        if phase is not None and phase.longest_gap > limit:
            return f"no probe was answered for {phase.longest_gap:.1f} s {when} the transfer, limit {limit:.1f} s"
    return ""


# Checks that a capture of a host's interface has one datagram in each frame.

_LARGEST_FRAME = 2048  # bytes; no path of the internet carries more than 1500 B


def require_datagrams(path: Path, *, where: str, interface: str) -> None:
    """Raises LaneError `offload` when a frame of the capture has several datagrams: then sizes and times are wrong."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as capture:  # the capture may have a gigabyte
            largest = max(wire_lengths(capture), default=0)
    if largest > _LARGEST_FRAME:
        raise LaneError(
            "offload",
            f"The capture at the {where} has a frame of {largest} B: its network card joins datagrams. Run there "
            f"as root: `ethtool -K {interface} tx-udp-segmentation off gro off`.",
        )


def wire_lengths(capture: bytes | mmap.mmap) -> Iterator[int]:
    """The lengths on the wire of a pcap's frames, little-endian as tcpdump writes it here (draft-ietf-opsawg-pcap)."""
    position = 24
    while position + 16 <= len(capture):
        _, _, held, length = struct.unpack_from("<IIII", capture, position)
        yield length
        position += 16 + held
