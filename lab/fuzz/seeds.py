"""The seeds of mutations: small recordings of this repository. All packets are opened, so that frames can be changed,
too."""

import gzip
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from runner.decode import Trace, decode_capture
from runner.decode.capture import capture_of, open_capture, read_datagrams
from runner.decode.columns import Data
from runner.decode.connection import Connection, KeyRing
from runner.decode.decoder import Decoder
from runner.decode.keys import APPLICATION_SECRETS, Protection, Session, candidates, read_key_logs
from runner.decode.wire import (
    CONNECTION,
    DATAGRAM,
    DECRYPTED,
    GENERATION,
    INDEX,
    NUMBER,
    SENDER,
    TYPE,
    LongHeader,
    PacketType,
    parse_long_header,
)
from runner.judge.execution import load_truth
from runner.model.result import Artifacts, Evidence, LinkTruth
from runner.paths import ROOT
from runner.store.runs import load_evidence

PCAP_HEADER, RECORD_HEADER = 24, 16  # bytes, draft-ietf-opsawg-pcap
_TESTS = ROOT / "runner/tests"
# A recording of each kind of handshake, header and frame. They have at most 27 kB, so that a million inputs are fast.
RECORDINGS = (
    "quinn_quinn/handshake",
    "aioquic_aioquic/handshake",
    "aioquic_aioquic/v2",
    "quic-go_quinn/retry",
    "quic-go_quinn/resumption",
    "quic-go_quinn/zerortt",
    "quic-go_quinn/http3",
    "quinn_aioquic/chacha20",
    "quinn_aioquic/ipv6",
    "quinn_quinn/amplificationlimit",
    "bad/keeps-connection-id-server",
    "bad/no-key-update-client",
    "bad/wrong-retry-tag",
    "bad/second-connection",
)
_QLOG_BYTES = 4 * 1024  # the part of each qlog that is used, because metrics are at its beginning
_PIECE = 4  # records of a handshake, and of each later part
_END_OF_FRAME = 32  # bytes that identify a packet in both captures


@dataclass(frozen=True)
class Sealed:
    """An opened packet: its place in the capture file, and the data that is needed to seal another payload into it."""

    start: int
    number_at: int
    end: int
    number: int
    number_size: int
    first: int  # the first byte of the packet, without header protection
    plain: bytes
    protection: Protection

    def sealed(self, data: bytes, plain: bytes) -> bytes:
        """The protected packet with another payload of the same length (RFC 9001 §5.3, §5.4)."""
        number = (self.number & ((1 << 8 * self.number_size) - 1)).to_bytes(self.number_size)
        header = bytes((self.first,)) + data[self.start + 1 : self.number_at] + number
        aead: AESGCM | ChaCha20Poly1305 = self.protection.open.__self__  # type: ignore[attr-defined]
        body = number + aead.encrypt((self.protection.iv ^ self.number).to_bytes(12), plain, header)
        mask = self.protection.mask(body[4:20])
        first = self.first ^ mask[0] & (0x0F if self.first & 0x80 else 0x1F)
        masked = bytes(a ^ b for a, b in zip(number, mask[1:], strict=False))
        return bytes((first,)) + header[1 : -self.number_size] + masked + body[self.number_size :]


@dataclass(frozen=True, eq=False)
class Seed:
    """One recording: both captures as bytes and as opened packets, its key logs, and the files of the harness."""

    name: str
    captures: tuple[bytes, bytes]
    opened: tuple[tuple[Sealed, ...], tuple[Sealed, ...]]
    keys: bytes
    traces: tuple[Trace, Trace]
    evidence: Evidence
    truth: LinkTruth | None
    folder: Path


@cache
def seeds() -> tuple[Seed, ...]:
    """All seeds, with opened packets."""
    return tuple(_seed(name) for name in RECORDINGS)


@cache
def pieces() -> tuple[Seed, ...]:
    """The same seeds in pieces of a few packets, which are decoded twice as fast. Each piece has the beginning and one
    later part."""
    return tuple(piece for name in RECORDINGS for piece in _pieces(name))


def _pieces(name: str) -> Iterator[Seed]:
    artifacts = Artifacts(_TESTS / "recordings" / name / "1")
    whole = artifacts.client_capture.read_bytes(), artifacts.server_capture.read_bytes()
    heads = tuple(data[:PCAP_HEADER] for data in whole)
    left, right = (_datagrams(data) for data in whole)
    with tempfile.TemporaryDirectory() as scratch:
        for start in range(_PIECE, max(len(left), _PIECE + 1), _PIECE):
            kept = left[:_PIECE] + left[start : start + _PIECE]
            known = {record[-_END_OF_FRAME:] for record in kept}
            both = kept, [record for record in right if record[-_END_OF_FRAME:] in known]
            paths = Path(scratch) / "left.pcap", Path(scratch) / "right.pcap"
            for path, head, chosen in zip(paths, heads, both, strict=True):
                path.write_bytes(head + b"".join(chosen))
            yield _seed(name, paths)


def _datagrams(data: bytes) -> list[bytes]:
    """The records of a capture that have a UDP datagram."""
    every = [head + frame for head, frame in records(data)]
    return [every[number - 1] for number in read_datagrams(capture_of(data, Path("any.pcap"))).record]


def records(data: bytes) -> list[tuple[bytes, bytes]]:
    """The records of a pcap file in this host's byte order, as header and frame."""
    collected, position = [], PCAP_HEADER
    while position + RECORD_HEADER <= len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "little")
        start = position + RECORD_HEADER
        collected.append((data[position:start], data[start : start + size]))
        position = start + size
    return collected


def _seed(name: str, paths: tuple[Path, Path] | None = None) -> Seed:
    """The recording with this name. `paths`: use these captures instead of its own."""
    artifacts = Artifacts(_TESTS / "recordings" / name / "1")
    evidence = load_evidence(artifacts)
    if evidence is None:
        raise ValueError(f"{artifacts.folder} has no evidence.json")
    paths = paths or (artifacts.client_capture, artifacts.server_capture)
    logs = artifacts.key_logs
    client, server = (tuple(_open(path, logs)) for path in paths)
    return Seed(
        name=name,
        captures=(paths[0].read_bytes(), paths[1].read_bytes()),
        opened=(client, server),
        keys=b"".join(path.read_bytes() for path in logs),
        traces=(decode_capture(paths[0], logs), decode_capture(paths[1], logs)),
        evidence=evidence,
        truth=load_truth(artifacts.link_truth),
        folder=artifacts.folder,
    )


@cache
def qlogs() -> tuple[bytes, ...]:
    """The beginnings of real qlogs, in JSON and JSON-SEQ."""
    paths = sorted((_TESTS / "decode" / "recordings").rglob("*.sqlog.gz"))
    paths += sorted((_TESTS / "trace" / "recordings").rglob("*.qlog.json.gz"))
    return tuple(gzip.decompress(path.read_bytes())[:_QLOG_BYTES] for path in paths)


def _open(capture: Path, key_logs: tuple[Path, ...]) -> Iterator[Sealed]:
    """Every packet of the capture that the decoder could open."""
    file, _ = open_capture(capture)
    datagrams, (sessions, _) = read_datagrams(file), read_key_logs(key_logs)
    decoder = Decoder(datagrams, sessions)
    decoder.run(list(range(len(datagrams.start))))
    rows = sorted(decoder.rows.packets.matrix().tolist(), key=lambda row: (row[DATAGRAM], row[INDEX]))
    starts, ends, position = datagrams.start.tolist(), datagrams.end.tolist(), 0
    for row in rows:
        if row[INDEX] == 0:
            position = starts[row[DATAGRAM]]
        end = ends[row[DATAGRAM]]
        header = parse_long_header(file.data, position, end) if file.data[position] & 0x80 else None
        if row[DECRYPTED] and row[NUMBER] >= 0:
            connection = decoder.registry.connections[row[CONNECTION]]
            protections = _protections(row, connection, header, sessions)
            sealed = _unseal(file.data, position, header, end, row, connection, protections)
            if sealed is not None:
                yield sealed
        position = header.end if header is not None else end


def _protections(
    row: list[int], connection: Connection, header: LongHeader | None, sessions: dict[bytes, Session]
) -> list[Protection]:
    side = connection.sides[row[SENDER]]
    if header is not None:
        if row[TYPE] == PacketType.INITIAL:
            return connection.initial_options(header.version, row[SENDER])
        return side.handshake if row[TYPE] == PacketType.HANDSHAKE else side.early
    secrets = sessions.get(connection.client_random or b"", {}).get(APPLICATION_SECRETS[row[SENDER]], ())
    outcome = candidates(secrets, connection.version or 0, connection.suite)
    for _ in range(row[GENERATION]):
        outcome = [protection.next_generation() for protection in outcome]
    return outcome


def _unseal(  # noqa: PLR0917
    data: Data,
    start: int,
    header: LongHeader | None,
    end: int,
    row: list[int],
    connection: Connection,
    protections: list[Protection],
) -> Sealed | None:
    """The packet at `start`, opened with the protection that fits."""
    at = header.number_at if header is not None else start + 1 + connection.sides[row[SENDER]].cid_length
    end = header.end if header is not None else end
    for protection in protections:
        first, _, size = KeyRing(protection).unmask(data, start, at)
        if header is not None:
            first = data[start] ^ (data[start] ^ first) & 0x0F
        number = (row[NUMBER] & ((1 << 8 * size) - 1)).to_bytes(size)
        associated = bytes((first,)) + data[start + 1 : at] + number
        plain = KeyRing(protection).open_with(0, associated, data[at + size : end], row[NUMBER])
        if plain is not None:
            return Sealed(start, at, end, row[NUMBER], size, first, plain, protection)
    return None
