"""tshark as the first oracle of the decoder: values of fields, and the packets of a capture as plain tuples."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_SECONDS = 600
_LONG_TYPES = {0: "initial", 1: "0rtt", 2: "handshake", 3: "retry"}
# Frame type → the fields of its tuple, in the decoder's order: stream id, offset, length, value, payload.
_FIELDS: dict[int, tuple[str, ...]] = {
    0x00: ("quic.padding_length",),
    0x06: ("quic.crypto.offset", "quic.crypto.length"),
    0x07: ("quic.nt.length", "quic.nt.token"),
    0x10: ("quic.md.maximum_data",),
    0x11: ("quic.msd.stream_id", "quic.msd.maximum_stream_data"),
    0x12: ("quic.ms.max_streams",),
    0x13: ("quic.ms.max_streams",),
    0x14: ("quic.sb.stream_data_limit",),
    0x18: ("quic.nci.connection_id.length", "quic.nci.sequence", "quic.nci.connection_id"),
    0x19: ("quic.rci.sequence",),
    0x1A: ("quic.path_challenge.data",),
    0x1B: ("quic.path_response.data",),
    0x1C: ("quic.cc.error_code",),
    0x1D: ("quic.cc.error_code.app",),
}


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


def tshark(capture: Path, key_logs: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """All QUIC packets of a capture in order, each with its header's fields and `frames`, a list of tuples."""
    for datagram in elements(capture, key_logs, "-J", "frame icmp icmpv6 quic"):
        if datagram.find("proto[@name='icmp']") is not None or datagram.find("proto[@name='icmpv6']") is not None:
            continue  # an ICMP error that quotes a packet
        (header,) = datagram.iterfind("proto[@name='frame']")
        seconds, fraction = _values(header)["frame.time_epoch"].split(".")
        index = 0
        for quic in datagram.iterfind("proto[@name='quic']"):
            first = _values(quic)
            kind = _type(first) if "quic.header_form" in first else None
            if kind is None:
                continue  # bytes after the last packet of a datagram
            yield {
                "time_ns": int(seconds) * 1_000_000_000 + int(fraction),
                "index": index,
                "type": kind,
                "version": int(first["quic.version"], 16) if "quic.version" in first else None,
                "dcid": _octets(first.get("quic.dcid")),
                "scid": _octets(first.get("quic.scid")) if "quic.version" in first else None,
                "packet_number": int(first["quic.packet_number"]) if "quic.packet_number" in first else None,
                "key_phase": int(first["quic.key_phase"]) if "quic.key_phase" in first else None,
                "length": int(first["quic.packet_length"]),
                # Without keys tshark gives no packet number; with wrong keys it gives a meaningless packet number.
                "decrypted": "quic.decryption_failed" not in first
                and ("quic.packet_number" in first or kind in ("retry", "version_negotiation")),
                "frames": [_frame(each) for each in quic.iterfind("field[@name='quic.frame']")],
            }
            index += 1


def _values(element: Any) -> dict[str, str]:
    values: dict[str, str] = {}
    for each in element.iter("field"):
        values.setdefault(each.get("name"), each.get("show", ""))
    return values


def _type(values: dict[str, str]) -> str:
    if values["quic.header_form"] == "0":
        return "1rtt"
    version = int(values["quic.version"], 16)
    if version == 0:
        return "version_negotiation"
    name = "quic.long.packet_type_v2" if "quic.long.packet_type_v2" in values else "quic.long.packet_type"
    if name not in values:
        return "unknown"
    code = int(values[name], 0)
    return _LONG_TYPES[code - 1 & 3 if name.endswith("v2") else code]


def _octets(show: str | None) -> bytes:
    return bytes.fromhex((show or "").replace(":", ""))


def _frame(element: Any) -> tuple[Any, ...]:
    values = _values(element)
    kind = int(values["quic.frame_type"])
    if 0x08 <= kind <= 0x0F:
        data = element.find(".//field[@name='quic.stream_data']")
        length = int(values.get("quic.stream.length", 0 if data is None else data.get("size")))
        offset = int(values.get("quic.stream.offset", 0))
        return kind, int(values["quic.stream.stream_id"]), offset, length, bool(kind & 1)
    if kind in (0x02, 0x03):
        return _ack(element, kind, values)
    return kind, *(_value(name, values.get(name)) for name in _FIELDS.get(kind, ()))


def _value(name: str, show: str | None) -> int | bytes:
    if name in ("quic.nt.token", "quic.nci.connection_id", "quic.path_challenge.data", "quic.path_response.data"):
        return _octets(show)
    return int(show or "0", 0)


def _ack(element: Any, kind: int, values: dict[str, str]) -> tuple[Any, ...]:
    largest = int(values["quic.ack.largest_acknowledged"])
    first = largest - int(values["quic.ack.first_ack_range"])
    ranges = [(first, largest)]
    gaps = [int(each.get("show")) for each in element.iter("field") if each.get("name") == "quic.ack.gap"]
    lengths = [int(each.get("show")) for each in element.iter("field") if each.get("name") == "quic.ack.ack_range"]
    for gap, length in zip(gaps, lengths, strict=True):
        last = first - gap - 2
        first = last - length
        ranges.append((first, last))
    names = ("quic.ack.ect0_count", "quic.ack.ect1_count", "quic.ack.ecn_ce_count")
    counts = [int(values[name]) if name in values else None for name in names]
    return kind, largest, int(values["quic.ack.ack_delay"]), tuple(ranges), *counts
