"""Converts a pcap file to a pcapng file that contains the TLS secrets. Wireshark decrypts such a file without further
settings.

Format: draft-ietf-opsawg-pcapng; the secrets are in a Decryption Secrets Block. bentpipe writes this format itself,
because python-pcapng has had no release since 2022, and users would have to install `editcap` for `--inject-secrets`.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from runner.decode.capture import MAX_RECORD, PCAP_MAGIC, TLS_KEY_LOG
from runner.decode.keylog import LARGEST_KEY_LOG, MOST_SECRETS
from runner.files.safe_files import read_head

_SECRET = re.compile(rb"[A-Z0-9_]{1,64} [0-9a-fA-F]{64} [0-9a-fA-F]{64,128}")  # draft-ietf-tls-keylogfile §2
_BUFFER = 1 << 20  # bytes of the buffers for reading and writing
_SECTION = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
_PACKET = struct.Struct("<IIIIIII")
_TAIL = struct.Struct("<I")


def embed_secrets(capture: Path, key_logs: Iterable[Path]) -> Path:
    """Replace a pcap file by a pcapng file that begins with the secrets of the key logs. Returns the path of the new
    file.

    Packets keep their order, times and lengths. When there are no secrets, or when `capture` is missing, cut off or no
    pcap file, nothing changes and `capture` is returned; its readers report the damage. Packets are read and written
    one by one.
    """
    secrets = _secrets(key_logs)
    if not secrets or not capture.is_file():
        return capture
    target = capture.with_suffix(".pcapng")
    partial = target.with_suffix(".partial")
    with capture.open("rb", buffering=_BUFFER) as source, partial.open("wb", buffering=_BUFFER) as file:
        whole = _rewrite(source, file, secrets)
    if not whole:
        partial.unlink()
        return capture
    partial.rename(target)
    capture.unlink()
    return target


def _secrets(key_logs: Iterable[Path]) -> bytes:
    """The lines with secrets of all key logs. Each line occurs once, although client and server usually write the same
    lines.

    Only the beginning of each log is read, so that the log of one endpoint can't make both captures large.
    """
    logs = (read_head(path, size=LARGEST_KEY_LOG) for path in key_logs)
    return b"".join(dict.fromkeys(line + b"\n" for log in logs for line in _lines(log)))


def _lines(log: bytes) -> Iterator[bytes]:
    """The lines with secrets of one key log, at most MOST_SECRETS for each label and session. So the false secrets of
    one endpoint can't displace the secrets of its peer."""
    counts: dict[bytes, int] = {}
    for line in map(bytes.strip, log.splitlines()):
        if _SECRET.fullmatch(line):
            of = line.rpartition(b" ")[0]
            counts[of] = counts.get(of, 0) + 1
            if counts[of] <= MOST_SECRETS:
                yield line


def _rewrite(source: BinaryIO, file: BinaryIO, secrets: bytes) -> bool:
    """Write the secrets and the packets of `source` to `file`. False when the source is no complete pcap file."""
    header = source.read(24)
    if len(header) < 24 or header[:4] not in PCAP_MAGIC:
        return False
    order, tick_ns = PCAP_MAGIC[header[:4]]
    snap_length, link_type = struct.unpack_from(order + "II", header, 16)
    resolution = 9 if tick_ns == 1 else 6  # if_tsresol: negative power of 10
    file.write(_SECTION)
    # An Interface Description Block with one option (code 9, one byte) and the end of options.
    file.write(struct.pack("<IIHHIHHBxxxII", 1, 32, link_type & 0xFFFF, 0, snap_length, 9, 1, resolution, 0, 32))
    padding = -len(secrets) % 4
    length = 20 + len(secrets) + padding
    file.write(struct.pack("<IIII", 10, length, TLS_KEY_LOG, len(secrets)) + secrets + bytes(padding))
    file.write(_TAIL.pack(length))
    for block in _blocks(source, order, 10**resolution):
        if not block:
            return False
        file.write(block)
    return True


def _blocks(source: BinaryIO, order: str, per_second: int) -> Iterator[bytes]:
    """An Enhanced Packet Block for each record of a pcap file. An empty block: the file is cut off or damaged here."""
    record = struct.Struct(order + "IIII")
    while header := source.read(16):
        if len(header) < 16:
            yield b""
            return
        seconds, fraction, captured, wire_length = record.unpack(header)
        data = source.read(captured) if captured <= MAX_RECORD else b""
        if len(data) < captured:
            yield b""
            return
        ticks = seconds * per_second + fraction
        padding = -captured % 4
        length = 32 + captured + padding
        start = _PACKET.pack(6, length, 0, ticks >> 32, ticks & 0xFFFFFFFF, captured, wire_length)
        yield start + data + bytes(padding) + _TAIL.pack(length)
