"""The one reader of tshark. `rows` gives values of fields. `frames` gives the packets as the public QUIC Interop Runner
reads them: one layer for each packet of a datagram."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

CLIENT, SERVER = "client", "server"
_ADDRESSES = {
    "193.167.0.100": CLIENT,
    "fd00:cafe:cafe::100": CLIENT,
    "193.167.100.100": SERVER,
    "fd00:cafe:cafe:100::100": SERVER,
}
"""Address → endpoint. Other addresses, such as a migrated client's, belong to no endpoint."""
INITIAL, EARLY, HANDSHAKE, RETRY = "initial", "0rtt", "handshake", "retry"
_TYPES = {1: (INITIAL, EARLY, HANDSHAKE, RETRY), 2: (RETRY, INITIAL, EARLY, HANDSHAKE)}
V2 = 0x6B3343CF
_SECONDS = 600

Fields = dict[str, list[str]]
"""All values of each field in the packet. Key: the name of the field, without its prefix `quic.`."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One QUIC packet. `type`: the type in its long header; empty for a short header."""

    type: str
    fields: Fields

    def get(self, name: str) -> str | None:
        """The first value of a field."""
        return self.fields[name][0] if name in self.fields else None

    @property
    def version(self) -> int | None:
        """The version in the long header."""
        value = self.get("version")
        return None if value is None else int(value, 0)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One captured frame with QUIC in it. `size`: bytes of UDP payload."""

    source: tuple[str, int]
    destination: tuple[str, int]
    size: int
    ecn: int
    is_ipv4: bool
    layers: tuple[Layer, ...]

    @property
    def sender(self) -> str:
        """Client or server, according to the source address; empty when the public runner knows no such address."""
        return _ADDRESSES.get(self.source[0], "")

    def has(self, name: str) -> bool:
        """True when the first QUIC packet of the frame has the field. Other packets are not searched."""
        return bool(self.layers) and name in self.layers[0].fields


def dissect(capture: Path, key_logs: Sequence[Path], *options: str) -> bytes:
    """What tshark prints about a capture, with the secrets of all key logs. Raises CalledProcessError, and
    FileNotFoundError without tshark."""
    with tempfile.NamedTemporaryFile(suffix=".keys.log") as merged:
        merged.write(b"\n".join(path.read_bytes() for path in key_logs))
        merged.flush()
        command = ["tshark", "-r", str(capture), "-o", f"tls.keylog_file:{merged.name}", *options]
        return subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS).stdout


def rows(
    capture: Path, shown: str, *fields: str, key_logs: Sequence[Path] = (), options: Sequence[str] = ()
) -> Iterator[dict[str, list[str]]]:
    """All values of `fields` in each frame that the display filter `shown` selects."""
    columns = [argument for name in fields for argument in ("-e", name)]
    formats = ("-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,")
    for line in dissect(capture, key_logs, "-Y", shown, *formats, *columns, *options).decode().splitlines():
        values = [value.split(",") if value else [] for value in line.split("\t")]
        yield dict(zip(fields, values, strict=True))


def elements(capture: Path, key_logs: Sequence[Path], *options: str) -> Iterator[ElementTree.Element]:
    """Each frame as an element of tshark's PDML."""
    return ElementTree.fromstring(dissect(capture, key_logs, "-T", "pdml", *options)).iter("packet")


def frames(capture: Path, key_log: Path | None) -> tuple[Frame, ...]:
    """All frames with QUIC, except ICMP messages that quote a QUIC packet. Raises FileNotFoundError without tshark."""
    options = ["-Y", "quic && !icmp && !icmpv6", "-d", "udp.port==443,quic"]
    options += ["--disable-protocol", "http3", "-J", "ip ipv6 udp quic tls"]
    return tuple(map(_frame, elements(capture, [key_log] if key_log else [], *options)))


def _frame(packet: ElementTree.Element) -> Frame:
    ip4, ip6, udp = (packet.find(f"proto[@name='{name}']") for name in ("ip", "ipv6", "udp"))
    ip, name, ecn = (ip4, "ip", "ip.dsfield.ecn") if ip4 is not None else (ip6, "ipv6", "ipv6.tclass.ecn")
    assert ip is not None
    assert udp is not None
    return Frame(
        source=(_value(ip, f"{name}.src"), int(_value(udp, "udp.srcport"))),
        destination=(_value(ip, f"{name}.dst"), int(_value(udp, "udp.dstport"))),
        size=int(_value(udp, "udp.length")) - 8,
        ecn=int(_value(ip, ecn), 0),
        is_ipv4=ip4 is not None,
        layers=tuple(_layers(packet)),
    )


def _value(element: ElementTree.Element, name: str) -> str:
    field = element.find(f".//field[@name='{name}']")
    assert field is not None, name
    return field.get("show", "")


def _layers(packet: ElementTree.Element) -> Iterator[Layer]:
    for proto in packet.iterfind("proto[@name='quic']"):
        fields: Fields = {}
        for field in proto.iter("field"):
            fields.setdefault(field.get("name", "").removeprefix("quic."), []).append(field.get("show", ""))
        yield Layer(type=_type(fields), fields=fields)


def _type(fields: Fields) -> str:
    for name, version in (("long.packet_type", 1), ("long.packet_type_v2", 2)):
        if name in fields:
            return _TYPES[version][int(fields[name][0], 0)]
    return ""


def usable_key_log(logs: Sequence[Path]) -> Path | None:
    """The first key log that has handshake secrets. The client's comes before the server's."""
    word = "SERVER_HANDSHAKE_TRAFFIC_SECRET"
    return next((log for log in logs if log.is_file() and f"\n{word}" in "\n" + log.read_text()), None)
