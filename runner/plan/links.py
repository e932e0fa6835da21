"""Reads and validates links.json (real links and their hosts), emulated-links.json, and links on the command line."""

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import urlsplit

from pydantic import Field

from runner.errors import UsageError, did_you_mean
from runner.model.link import (
    DISCIPLINES,
    DROP_TAIL,
    LEAST_RATE,
    NO_PATH_IMPAIRMENTS,
    Direction,
    LinkImpairments,
    LinkRecord,
    PathImpairments,
    Queue,
    RealLink,
    RealLinkRecord,
    RemoteHost,
    SegmentRecord,
)
from runner.model.run import Pause
from runner.model.stack import Role, same_fields
from runner.paths import HOME, LINKS_FILE
from runner.plan.catalog import FileModel, read_as
from runner.plan.link_traces import LinkTrace, read_mahimahi, read_trace, with_trace
from testcases.links import LINKS

# Reads and validates links.json: hosts that are reached over SSH, and the real links to these hosts.

LINKS_SCHEMA = 1
_EXAMPLE = "links.example.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")  # the names become names of cases and folders
_ABBREVIATION = re.compile(r"[A-Za-z0-9.-]{0,8}")
_INTERFACE = re.compile(r"(\w[\w.:@-]{0,14})?", re.ASCII)  # IFNAMSIZ is 16, including the final zero byte
_SOCKET = re.compile(r"(/[\w.@+-]+)+", re.ASCII)  # no ':', which separates the words of a bind mount
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_THIS_HOST = "this host"

Port = Annotated[int, Field(ge=1, le=65535)]
Rate = Annotated[int, Field(gt=0, le=10**12, description="bit/s")]


class _Host(FileModel):
    """A host with a Docker Engine. `ssh`: its URL, `ssh://USER@ADDRESS:PORT`, with an IPv6 address in brackets.
    `host_key`: a line of `ssh-keyscan` without the host's name. `key`: the private key; without it, the SSH agent is
    used."""

    ssh: str
    host_key: str
    key: str | None = None
    docker_socket: str = "/var/run/docker.sock"
    roles: list[Role] = Field(default=[Role.CLIENT, Role.SERVER], min_length=1)


class _Link(FileModel):
    """A real link. `client` and `server` are names in `hosts`. Without `server`, the server runs on the runner's host.
    Data rates are in bit/s, as advertised. Budgets are in bytes of IP packets of both directions together."""

    client: str
    server: str | None = None
    forward_rate: Rate
    return_rate: Rate
    interface: str = ""
    server_interface: str = ""
    server_addresses: tuple[str, ...] = ()
    families: list[Literal[4, 6]] = Field(default=[4, 6], min_length=1)
    udp_port: Port = 443
    probe_port: Port = 57833
    provider: str = ""
    tariff: str = ""
    budget_per_day: int | None = Field(default=None, gt=0, description="bytes")
    budget_per_month: int | None = Field(default=None, gt=0, description="bytes")
    quiet_hours: tuple[str, ...] = ()
    ssh_over_link: bool = False
    abbreviation: str = ""
    timeout: float = Field(default=120.0, gt=0, le=86_400, description="seconds")
    iterations: int = Field(default=5, ge=1, le=1000)
    comment: str = ""


class LinksFile(FileModel):
    """The content of links.json."""

    schema_: int = Field(alias="schema", ge=1, le=LINKS_SCHEMA)
    hosts: dict[str, _Host] = Field(min_length=1)
    links: dict[str, _Link] = Field(min_length=1)


def load_links(path: Path = LINKS_FILE) -> dict[str, RealLink]:
    """The links by name. Raises UsageError with the file, the field and the expected value."""
    missing = f"is missing: copy {_EXAMPLE} to it and enter the hosts of your link (README, Real links)"
    file = read_as(LinksFile, path, missing=missing)
    hosts = {name: _host(f"{path}, host '{name}'", name, entry) for name, entry in file.hosts.items()}
    return {name: _link(f"{path}, link '{name}'", name, entry, hosts) for name, entry in file.links.items()}


def refuse_shared_ports(links: Iterable[RealLink]) -> None:
    """Raise UsageError when two links need the same UDP port of a host: their jobs run at the same time."""
    taken: dict[tuple[str, int], RealLink] = {}
    for link in links:
        where = link.server.name if link.server else _THIS_HOST
        for port in (link.udp_port, link.probe_port):
            first = taken.setdefault((where, port), link)
            if first is not link:
                raise UsageError(
                    f"--link: '{first.name}' and '{link.name}' both need UDP port {port} of {where} at the same time: "
                    "give one of them another udp_port and probe_port, or run them one after the other."
                )


def _host(where: str, name: str, entry: _Host) -> RemoteHost:
    user, address, port = _ssh_url(where, entry.ssh)
    return RemoteHost(
        name=_named(where, name),
        user=user,
        address=address,
        port=port,
        host_key=_host_key(where, entry.host_key),
        key=_key(where, entry.key) if entry.key is not None else None,
        docker_socket=_absolute(where, entry.docker_socket),
        roles=tuple(entry.roles),
    )


def _named(where: str, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: use at most 40 small letters, digits, '-' and '.' for a name, such as roof-1.")
    return name


def _ssh_url(where: str, url: str) -> tuple[str, str, int]:
    message = f"{where}: '{url}' is not a host: write ssh://USER@ADDRESS or ssh://USER@ADDRESS:PORT."
    try:
        parts = urlsplit(url)
        port = 22 if parts.port is None else parts.port
    except ValueError as error:
        raise UsageError(message) from error
    if parts.password is not None:
        raise UsageError(f"{where}: everyone can read a password in an SSH URL: remove it, and use a key.")
    rest = parts.path.strip("/") or parts.query or parts.fragment
    blank = any(map(str.isspace, url))
    if parts.scheme != "ssh" or not parts.hostname or not parts.username or not port or rest or blank:
        raise UsageError(message)
    return parts.username, parts.hostname, port


def _host_key(where: str, text: str) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - slow to import; only for real links
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key  # noqa: PLC0415

    words = text.split()
    write = "write 'ssh-ed25519 AAAA…', the last two words of `ssh-keyscan`."
    if len(words) < 2 or words[0] not in _KEY_TYPES:
        raise UsageError(f"{where}: host_key is not a public key: {write}")
    key = f"{words[0]} {words[1]}"
    try:
        load_ssh_public_key(key.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{where}: host_key is damaged, or is not a key of type {words[0]}: {write}") from error
    return key


def _key(where: str, text: str) -> Path:
    path = Path(os.path.expandvars(text)).expanduser()
    if path.is_dir():
        raise UsageError(f"{where}: key '{text}' is a folder: name the private key in it.")
    if not path.is_file():
        raise UsageError(f"{where}: there is no private key {path}: make one with `ssh-keygen -t ed25519 -f {path}`.")
    if path.suffix == ".pub":
        raise UsageError(f"{where}: {path} is the public key: name the private key, {path.with_suffix('')}.")
    mode = path.stat().st_mode
    if mode & 0o077:
        raise UsageError(f"{where}: others may read the private key {path}: run `chmod 600 {path}`.")
    return path


def _absolute(where: str, path: str) -> str:
    if not _SOCKET.fullmatch(path) or "/../" in f"{path}/":
        raise UsageError(f"{where}: docker_socket '{path}' is not an absolute path, such as /var/run/docker.sock.")
    return path


def _link(where: str, name: str, entry: _Link, hosts: dict[str, RemoteHost]) -> RealLink:
    _named(where, name)
    client = _end(where, entry.client, Role.CLIENT, hosts)
    server = _end(where, entry.server, Role.SERVER, hosts) if entry.server is not None else None
    if server == client:
        raise UsageError(
            f"{where}: client and server are the same host, '{client.name}', so there is no link between them."
        )
    _require_addresses(where, entry)
    _require_open_hours(where, entry.quiet_hours)
    for field, interface in (("interface", entry.interface), ("server_interface", entry.server_interface)):
        if not _INTERFACE.fullmatch(interface):
            raise UsageError(
                f"{where}: {field} '{interface}' is not the name of an interface: copy it from `ip link`, such as eth1."
            )
    if not _ABBREVIATION.fullmatch(entry.abbreviation):
        raise UsageError(
            f"{where}: abbreviation '{entry.abbreviation}' is not valid: write up to 8 letters and digits."
        )
    if entry.udp_port == entry.probe_port:
        raise UsageError(f"{where}: udp_port and probe_port are both {entry.udp_port}: the probe needs its own port.")
    day, month = entry.budget_per_day, entry.budget_per_month
    if day is not None and month is not None and day > month:
        raise UsageError(f"{where}: budget_per_day is larger than budget_per_month.")
    changed = {
        "client": client,
        "server": server,
        "families": tuple(sorted(set(entry.families))),
        "budget_day": day,
        "budget_month": month,
    }
    return RealLink(name=name, **(same_fields(RealLink, entry) | changed))


def _require_addresses(where: str, entry: _Link) -> None:
    versions = set()
    for address in entry.server_addresses:
        try:
            versions.add(ipaddress.ip_address(address).version)
        except ValueError as error:
            raise UsageError(f"{where}: server_addresses: '{address}' is not an IP address.") from error
    if versions and versions.isdisjoint(entry.families):
        families = " or ".join(f"IPv{family}" for family in entry.families)
        raise UsageError(f"{where}: server_addresses has no address of its families: add one of {families}.")


def _require_open_hours(where: str, spans: Iterable[str]) -> None:
    """Raise UsageError for quiet hours in a wrong form, and for quiet hours that cover the whole day."""
    pauses = []
    for span in spans:
        try:
            pauses.append(Pause.parse(span))
        except UsageError as error:
            raise UsageError(f"{where}: quiet_hours: '{span}' is not a span: write it as 18:00-23:00.") from error
    day = [time(minute // 60, minute % 60) for minute in range(24 * 60)]
    if all(any(pause.holds(minute) for pause in pauses) for minute in day):
        raise UsageError(
            f"{where}: quiet_hours cover the whole day, so no job would ever begin: leave at least an hour out."
        )


def _end(where: str, name: str, role: Role, hosts: dict[str, RemoteHost]) -> RemoteHost:
    if name not in hosts:
        raise UsageError(f"{where}: there is no host '{name}'. Choices: {', '.join(hosts)}.")
    if role not in hosts[name].roles:
        raise UsageError(
            f"{where}: host '{name}' can't be the {role.value}: its roles are {', '.join(hosts[name].roles)}."
        )
    return hosts[name]


# Reads and validates emulated-links.json. In this file, users declare links with the same fields as built-in links.

EMULATED_LINKS = HOME / "emulated-links.json"
EMULATED_LINKS_SCHEMA = 1


class _TraceFile(FileModel):
    """The files of a segment's trace (docs/link-traces.md), in the folder of this file: `file`, a table, or `down` and
    `up`, files of mahimahi. `loop`: True: the trace begins again at its end, and first at a time that the seed
    chooses."""

    file: str = ""
    down: str = ""
    up: str = ""
    loop: bool = True


class _Segment(FileModel):
    """One segment of a link. `forward` carries the download, `return` carries the client's ACKs."""

    forward: Direction
    return_: Direction = Field(alias="return")
    impairments: PathImpairments = NO_PATH_IMPAIRMENTS
    trace: _TraceFile | None = None


class _EmulatedLink(FileModel):
    """A link with a satellite segment, and perhaps a ground segment. `source`: of the parameters."""

    segments: list[_Segment] = Field(min_length=1, max_length=2)
    source: str = ""
    note: str = ""


class EmulatedLinksFile(FileModel):
    """The content of emulated-links.json."""

    schema_: int = Field(alias="schema", ge=1, le=EMULATED_LINKS_SCHEMA)
    links: dict[str, _EmulatedLink] = Field(min_length=1)


def load_emulated_links(path: Path = EMULATED_LINKS) -> dict[str, LinkRecord]:
    """The links of the file by name, if it exists. Raises UsageError with the file, the field and the mistake."""
    if not path.exists():
        return {}
    links = {}
    for name, entry in read_as(EmulatedLinksFile, path).links.items():
        _named(f"{path}, link '{name}'", name)
        try:
            segments = tuple(_emulated_segment(segment, path.parent) for segment in entry.segments)
            links[name] = LinkRecord.of(name, segments, source=entry.source, note=entry.note)
        except ValueError as error:
            raise UsageError(f"{path}, link '{name}': {error}.") from error
    return links


def declared_links(path: Path = EMULATED_LINKS) -> dict[str, LinkRecord]:
    """The built-in links and those of the file. Raises UsageError for two links of the same name."""
    declared = load_emulated_links(path)
    for name in declared:
        if name in LINKS:
            raise UsageError(f"{path}, link '{name}': that is the name of a built-in link: give it another name.")
    return {**LINKS, **declared}


def _emulated_segment(entry: _Segment, folder: Path) -> SegmentRecord:
    if entry.trace is None:
        return SegmentRecord.declared(entry.forward, entry.return_, entry.impairments)
    files = {name: folder / text for name in _FILES if (text := getattr(entry.trace, name.replace("trace", "file")))}
    ways = with_trace(entry.forward, entry.return_, _trace_of(files), loop=entry.trace.loop)
    return SegmentRecord.declared(*ways, entry.impairments)


def _trace_of(files: Mapping[str, Path]) -> LinkTrace:
    """The trace in a table, or in two files of mahimahi. Raises ValueError when other files are named."""
    if set(files) == {"trace"}:
        return read_trace(files["trace"])
    if set(files) == {"down", "up"}:
        return read_mahimahi(files["down"], files["up"])
    raise ValueError("a trace is one table, or the two files down and up of mahimahi")


# Parses a link that is written on the command line: `--link rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp`. Pure.
#
# A single value is for both directions; FORWARD/RETURN has one value for each direction. A second segment, which is the
# ground segment, is written after a `;`.

EXAMPLE = "rate=50M/5M,delay=300ms,loss=0.1%,queue=1bdp"
_SOURCE = "written on the command line"
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:[eE]-?\d+)?)\s*([A-Za-z%/]*)")
_LARGEST = 10**15  # largest number: int() of a much larger Decimal may take very long
_RATES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_TIMES = {"ms": Decimal("0.001"), "s": Decimal(1), "us": Decimal("0.000001")}
_SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "KiB": 2**10, "MiB": 2**20}

_FILES = ("trace", "down", "up")  # keys with the name of a file
_UNUSABLE = re.compile(r"[^a-z0-9.-]+")  # characters that can't be in the name of a link

Parser = Callable[[str], Any]


def is_link_text(text: str) -> bool:
    """True when a value of `--link` describes a link; False when it consists of names of links."""
    return "=" in text


def parse_link(text: str) -> LinkRecord:
    """The link that the text describes. Raises UsageError with one sentence about the correct form."""
    parts = text.split(";")
    if len(parts) > 2:
        raise UsageError(f"--link '{text}': a link has one segment, or two: satellite;ground.")
    named = [_pairs(part, text) for part in parts]
    names = [pairs.pop("name") for pairs in named if "name" in pairs]
    if len(names) > 1 or (names and not _NAME.fullmatch(names[0])):
        raise UsageError(
            f"--link '{text}': write one name, of at most 40 small letters, digits, '-' and '.', such as name=alpine."
        )
    try:
        segments = tuple(_segment_of_text(pairs, text) for pairs in named)
        name = names[0] if names else "--".join(map(_segment_name, named))
        return LinkRecord.of(name, segments, source=_SOURCE)
    except ValueError as error:
        raise UsageError(f"--link '{text}': {error}.") from error


def _pairs(part: str, text: str) -> dict[str, str]:
    """The values of one segment by key."""
    pairs: dict[str, str] = {}
    for word in part.split(","):
        key, equals, value = (piece.strip() for piece in word.partition("="))
        if not equals or not value:
            raise UsageError(f"--link '{text}': '{word.strip()}' is not KEY=VALUE: write it as {EXAMPLE}.")
        if key not in _KEYS and key != "name":
            hint = f"{did_you_mean(key, _KEYS)} Keys: {', '.join(_KEYS)}, name."
            raise UsageError(f"--link '{text}': there is no key '{key}'.{hint}")
        if key in pairs:
            raise UsageError(f"--link '{text}': '{key}' is given twice: keep one of them.")
        pairs[key] = value
    return pairs


def _segment_of_text(pairs: Mapping[str, str], text: str) -> SegmentRecord:
    files = {key: Path(value) for key, value in pairs.items() if key in _FILES}
    trace = _trace_of(files) if files else None
    forward, return_ = {}, {}
    for key, value in pairs.items():
        if key in (*_FILES, "loop"):
            continue
        both = value.split("/")
        if len(both) > 2:
            raise UsageError(f"--link '{text}': {key} has one value, or FORWARD/RETURN, not {value}.")
        forward[key], return_[key] = _KEYS[key](both[0]), _KEYS[key](both[-1])
    for key, quantity in (("rate", "data_rate"), ("delay", "delay")):
        for way, values in (("forward", forward), ("return", return_)):
            if trace is not None and f"{way}_{quantity}" in trace.columns:
                values[key] = max(LEAST_RATE, round(trace.mean(f"{way}_{quantity}"))) if key == "rate" else 0.0
            elif key not in values:
                where = f", and {trace.name} has no column {quantity}" if trace else ""
                raise UsageError(f"--link '{text}': {key} is missing{where}: write it as {EXAMPLE}.")
    ways = _direction(forward), _direction(return_)
    if trace is not None:
        ways = with_trace(*ways, trace, loop=_yes(pairs.get("loop", "yes")))
    return SegmentRecord.declared(*ways)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        _refuse(text, "yes or no, such as loop=no")
    return text == "yes"


def _direction(values: dict[str, Any]) -> Direction:
    return Direction(
        data_rate=values.pop("rate"),
        delay=values.pop("delay"),
        loss=values.pop("loss", 0.0),
        queue=replace(values.pop("queue", Queue(bdp=1.0)), discipline=values.pop("discipline", DROP_TAIL)),
        impairments=LinkImpairments(**values),
    )


def _segment_name(pairs: Mapping[str, str]) -> str:
    """A name such as `50M-5M-300ms-1bdp-loss0.001`, with every parameter, so that no other link has it."""
    bare = (*_FILES, "rate", "delay", "queue", "discipline")
    words = []
    for key in (*bare, *sorted(set(pairs) - set(bare))):
        if key in _FILES and key in pairs:
            words.append(_UNUSABLE.sub("-", Path(pairs[key]).stem.lower()).strip("-"))
        elif key in pairs:
            values = [_canonical(key, value) for value in dict.fromkeys(pairs[key].split("/"))]
            words.append(("" if key in bare else key.replace("_", "-")) + "-".join(values))
    return "-".join(words)


def _canonical(key: str, text: str) -> str:
    """The value in one standard spelling. It has no `%`, which has a special meaning in URLs, and no blanks."""
    value = _KEYS[key](text)
    if isinstance(value, Queue | str):
        return text.replace(" ", "")
    if key == "rate":
        unit = next(unit for unit in ("G", "M", "k", "") if value % _RATES[unit] == 0)
        return f"{value // _RATES[unit]}{unit}"
    if _UNITS.get(key) == "seconds":
        return f"{_plain(Decimal(repr(value)) * 1000)}ms"
    return _plain(Decimal(repr(value)))


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"


def _refuse(text: str, expected: str) -> NoReturn:
    raise ValueError(f"'{text}' is not {expected}")


def _number(text: str, expected: str, units: Mapping[str, int | Decimal]) -> Decimal:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        _refuse(text, expected)
    value = Decimal(match[1])
    if value > _LARGEST:
        _refuse(text, expected)
    return value * units[match[2]]


def _whole(text: str, expected: str, units: Mapping[str, int | Decimal]) -> int:
    value = _number(text, expected, units)
    if value != int(value):
        _refuse(text, expected)
    return int(value)


def _rate(text: str) -> int:
    return _whole(text.removesuffix("bit/s"), "a data rate in bit/s, such as 50M or 500k", _RATES)


def _seconds(text: str) -> float:
    return float(_number(text, "a time, such as 300ms or 0.3s", _TIMES))


def _fraction(text: str) -> float:
    return float(_number(text, "a fraction, such as 0.1% or 0.001", {"": 1, "%": Decimal("0.01")}))


def _packets(text: str) -> int:
    return _whole(text, "a number of packets, such as 3", {"": 1, "p": 1})


def _discipline(text: str) -> str:
    if text not in DISCIPLINES:
        _refuse(text, f"a discipline of queues: {', '.join(DISCIPLINES)}")
    return text


def _queue(text: str) -> Queue:
    expected, units = "a queue, such as 1bdp, 125p (packets) or 750kB", {"bdp": 1, "p": 1, **_SIZES}
    if text.rstrip().endswith("bdp"):
        return Queue(bdp=float(_number(text, expected, units)))
    value = _whole(text, expected, units)
    return Queue(packets=value) if text.rstrip().endswith("p") else Queue(bytes=value)


_PARSERS: dict[str, Parser] = {"fraction": _fraction, "seconds": _seconds, "packets": _packets}
# The impairments that are single numbers, with their units.
_UNITS = {
    about.name: about.metadata["unit"] for about in fields(LinkImpairments) if about.metadata and about.default == 0
}
_UNITS["delay"] = "seconds"
_KEYS: dict[str, Parser] = {
    "rate": _rate,
    "delay": _seconds,
    "queue": _queue,
    "discipline": _discipline,
    "loss": _fraction,
    **dict.fromkeys((*_FILES, "loop"), str),
    **{name: _PARSERS[unit] for name, unit in _UNITS.items() if name != "delay"},
}


def real_record(link: RealLink) -> LinkRecord:
    """A real link as `run.json` stores it. Only its advertised data rates are known before a job."""
    advertised = LinkRecord.advertised(link.name, link.forward_rate, link.return_rate)
    return replace(advertised, real=RealLinkRecord.of(link))
