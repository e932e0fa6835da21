"""TLS key logs in the NSS format (draft-ietf-tls-keylogfile): the traffic secrets of each session."""

from collections.abc import Iterable
from pathlib import Path

from runner.errors import CaptureError
from runner.files.safe_files import read_head

HANDSHAKE = ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", "SERVER_HANDSHAKE_TRAFFIC_SECRET")
APPLICATION = ("CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0")
EARLY = "CLIENT_EARLY_TRAFFIC_SECRET"
_LABELS = frozenset((*HANDSHAKE, *APPLICATION, EARLY))

MOST_SECRETS = 4  # most secrets of one label and session that are read from one key log

LARGEST_KEY_LOG = 1 << 20  # most bytes that are read of a key log; a connection has five lines of at most 200 bytes

Session = dict[str, tuple[bytes, ...]]
"""Label of a secret → the secrets with this label, of 32 bytes (cipher suites with SHA-256) or 48 bytes (SHA-384).
There are several secrets when key logs disagree. They are all kept, so that an endpoint can't hide the secrets of its
peer with false secrets; only packets show which secret is right."""


def read_key_logs(paths: Iterable[Path], embedded: Iterable[bytes] = ()) -> dict[bytes, Session]:
    """Client random → session, merged from several key logs. Lines without a secret of QUIC are skipped."""
    sessions: dict[bytes, Session] = {}
    for path in paths:
        try:
            _merge(read_head(path, size=LARGEST_KEY_LOG), sessions)
        except OSError as error:
            raise CaptureError(f"{path} can't be read ({error.strerror}): give the path of a key log.") from error
    for text in embedded:
        _merge(text[: 2 * LARGEST_KEY_LOG], sessions, most=2 * MOST_SECRETS)  # the secrets of both endpoints
    return sessions


def _merge(text: bytes, sessions: dict[bytes, Session], *, most: int = MOST_SECRETS) -> None:
    counts: dict[tuple[bytes, str], int] = {}
    for line in text.splitlines():
        words = line.decode("ascii", "replace").split()
        if len(words) != 3 or words[0] not in _LABELS:
            continue
        try:
            client_random, secret = bytes.fromhex(words[1]), bytes.fromhex(words[2])
        except ValueError:
            continue
        if len(client_random) != 32 or len(secret) not in (32, 48):
            continue
        session = sessions.setdefault(client_random, {})
        known = session.get(words[0], ())
        count = counts.get((client_random, words[0]), 0)
        if secret not in known and count < most:
            session[words[0]] = (*known, secret)
            counts[client_random, words[0]] = count + 1
