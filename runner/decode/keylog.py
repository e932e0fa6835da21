"""TLS key logs in the NSS format (draft-ietf-tls-keylogfile): the traffic secrets of each session."""

import codecs
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import CaptureError
from runner.files.safe_files import open_regular
from runner.units import MIB, format_count, format_size

HANDSHAKE = ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET")
APPLICATION = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")
EARLY = "CLIENT_EARLY_TRAFFIC_SECRET"
_LABELS = frozenset((*HANDSHAKE, *APPLICATION, EARLY))

MOST_SECRETS = 4  # most secrets of one label and session that are read from one key log

LARGEST_KEY_LOG = 1 << 20  # most bytes that are read of a key log; a connection has five lines of at most 200 bytes
LARGEST_FOREIGN = 256 * MIB  # most bytes of a key log that the user gives to `decode`: browsers append for months
_PIECE = 1 << 20  # bytes that are read at once
_LONGEST_LINE = 4096  # characters; a longer line is no secret
_ENCODINGS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))

Session = dict[str, tuple[bytes, ...]]
"""Label of a secret → the secrets with this label, of 32 bytes (cipher suites with SHA-256) or 48 bytes (SHA-384).
There are several secrets when key logs disagree. They are all kept, so that an endpoint can't hide the secrets of its
peer with false secrets; only packets show which secret is right."""


@dataclass(slots=True)
class KeyLog:
    """What one key log contained, so that a user learns why packets stay unread."""

    name: str
    utf16: bool = False
    cut: int = 0
    """Bytes after which reading ended; 0 when the whole file was read."""
    lines: int = 0
    of_tls12: int = 0
    """Lines with a secret of TLS 1.2."""
    client_randoms: set[bytes] = field(default_factory=set)

    def remarks(self, client_randoms: Iterable[bytes | None]) -> Iterator[str]:
        """Sentences about what is unusual. `client_randoms`: of all connections in the capture."""
        if self.utf16:
            yield f"{self.name} is UTF-16 text, as PowerShell writes it; it was read as such."
        if self.cut:
            yield f"Only the first {format_size(self.cut)} of the key log {self.name} were read."
        if not self.lines:
            yield f"The key log {self.name} is empty."
        elif not self.client_randoms and self.of_tls12:
            yield f"The key log {self.name} has only secrets of TLS 1.2 (CLIENT_RANDOM). QUIC uses TLS 1.3."
        elif not self.client_randoms:
            yield (
                f"The key log {self.name} has no usable line. Expected: CLIENT_TRAFFIC_SECRET_0 (or another label of "
                "TLS 1.3), a client random and a secret, both in hexadecimal."
            )
        elif self.client_randoms.isdisjoint(filter(None, client_randoms)):
            sessions = format_count(len(self.client_randoms), "session")
            yield f"The key log {self.name} has secrets of {sessions}, but none of a connection in this capture."


def read_key_logs(
    paths: Iterable[Path], embedded: Iterable[bytes] = (), *, limit: int = LARGEST_KEY_LOG
) -> tuple[dict[bytes, Session], list[KeyLog]]:
    """Client random → session, merged from several key logs; and what each key log contained.

    Lines without a secret of QUIC are skipped. `limit`: bytes that are read of each key log.
    """
    sessions: dict[bytes, Session] = {}
    logs = []
    for path in paths:
        log = KeyLog(path.name)
        try:
            _merge(_pieces(path, limit, log), sessions, log)
        except OSError as error:
            raise CaptureError(f"{path} can't be read ({error.strerror}): give the path of a key log.") from error
        logs.append(log)
    for secrets in embedded:
        log = KeyLog("in the capture")
        text = secrets[: 2 * limit].decode("latin-1")
        _merge([text], sessions, log, most=2 * MOST_SECRETS)  # the secrets of both endpoints
        logs.append(log)
    return sessions, logs


def _pieces(path: Path, limit: int, log: KeyLog) -> Iterator[str]:
    """The text of a key log in pieces of whole lines. Bytes that are no text become other characters."""
    with os.fdopen(open_regular(path), "rb") as file:
        head = file.read(4)
        encoding = next((name for mark, name in _ENCODINGS if head.startswith(mark)), "latin-1")
        if encoding == "latin-1" and b"\0" in head[:2]:
            encoding = "utf-16-be" if head[0] == 0 else "utf-16-le"
        log.utf16 = encoding.startswith("utf-16")
        decoder, rest, left = codecs.getincrementaldecoder(encoding)("replace"), "", limit
        file.seek(0)
        while left > 0 and (piece := file.read(min(_PIECE, left))):
            left -= len(piece)
            whole, newline, rest = (rest + decoder.decode(piece)).rpartition("\n")
            yield whole + newline
            rest = rest[:_LONGEST_LINE]
        yield rest
        log.cut = limit if file.read(1) else 0


def _merge(pieces: Iterable[str], sessions: dict[bytes, Session], log: KeyLog, *, most: int = MOST_SECRETS) -> None:
    counts: dict[tuple[bytes, str], int] = {}
    for line in (line for piece in pieces for line in piece.splitlines()):
        words = line.split()
        log.lines += bool(words)
        if len(words) != 3 or words[0].removeprefix("QUIC_") not in _LABELS:  # the prefix of early drafts
            log.of_tls12 += len(words) == 3 and words[0] == "CLIENT_RANDOM"
            continue
        try:
            client_random, secret = bytes.fromhex(words[1]), bytes.fromhex(words[2])
        except ValueError:
            continue
        if len(client_random) != 32 or len(secret) not in (32, 48):
            continue
        label = words[0].removeprefix("QUIC_")
        log.client_randoms.add(client_random)
        session = sessions.setdefault(client_random, {})
        known = session.get(label, ())
        count = counts.get((client_random, label), 0)
        if secret not in known and count < most:
            session[label] = (*known, secret)
            counts[client_random, label] = count + 1
