"""Invitations of workers: the certificates of one campaign, and a line of text that brings them to another host."""

import json
import os
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from runner.errors import UsageError
from runner.files.safe_files import read_regular
from runner.inputs.inputs import mutual_keys

PORT = 8786
_MEMBER = "member"
_UNTIL = "until"  # seconds since 1970
_FILES = ("ca.pem", f"{_MEMBER}.pem", f"{_MEMBER}.key", _UNTIL)
_LONGEST = 16 * 1024  # characters of an invitation


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a scheduler: `tls://HOST:PORT`."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `tls://HOST[:PORT]`. Raises UsageError for any other text."""
        try:
            parts = urlsplit(text)
            port = parts.port or PORT
        except ValueError as error:
            raise UsageError(f"{text}: {error}: write tls://HOST:{PORT}.") from error
        if parts.scheme != "tls" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise UsageError(f"{text} is no address of a scheduler: write tls://HOST:{PORT}.")
        return cls(host=parts.hostname, port=port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{host}:{self.port}"


class Invitation:
    """The certificates of one campaign, in a folder that only its user may read. All members have the same certificate.
    With it, a member can run any program as the user of any other member.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, *, days: float) -> "Invitation":
        """Make a new certificate authority and one certificate. The authority's key is not kept, so no other
        certificate can be made later."""
        files = {
            name: content.decode() for name, content in mutual_keys([_MEMBER], validity=timedelta(days=days)).items()
        }
        return cls._store(folder, {**files, _UNTIL: f"{datetime.now().timestamp() + days * 86_400:.0f}"})

    @classmethod
    def accept(cls, folder: Path, token: str) -> "Invitation":
        """Store the certificates of an invitation. `token`: the line of text. Raises UsageError when it is
        not complete."""
        try:
            packed = urlsafe_b64decode(token.strip().encode())
            text = zlib.decompressobj().decompress(packed, _LONGEST)
            files = json.loads(text)
            entries = {name: str(files[name]) for name in _FILES}
            float(entries[_UNTIL])
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise UsageError(
                "The invitation is not complete: paste the line that `./bentpipe worker invite` printed."
            ) from error
        return cls._store(folder, entries)

    @classmethod
    def _store(cls, folder: Path, files: dict[str, str]) -> "Invitation":
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name, content in files.items():
            temporary = folder / f".{name}.new"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(content)
            temporary.replace(folder / name)
        return cls(folder)

    @property
    def complete(self) -> bool:
        """True when all files of the invitation exist."""
        return all((self.folder / name).is_file() for name in _FILES)

    @property
    def until(self) -> datetime:
        """The time at which the certificates expire, in local time."""
        return datetime.fromtimestamp(float(read_regular(self.folder / _UNTIL, limit=_LONGEST)))

    @property
    def valid(self) -> bool:
        """True when the invitation is complete and has not expired."""
        return self.complete and datetime.now() < self.until

    @property
    def token(self) -> str:
        """The whole invitation as one word, to be pasted on another host."""
        files = {name: read_regular(self.folder / name, limit=_LONGEST).decode() for name in _FILES}
        return urlsafe_b64encode(zlib.compress(json.dumps(files).encode(), 9)).decode()

    @property
    def ca(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def certificate(self) -> str:
        return str(self.folder / f"{_MEMBER}.pem")

    @property
    def key(self) -> str:
        return str(self.folder / f"{_MEMBER}.key")


def invitation_folder(logs: Path, address: Address) -> Path:
    """The folder in which this host keeps the invitation to the scheduler at `address`."""
    return logs / ".workers" / f"{address.host.replace(':', '-')}-{address.port}"


def accepted(logs: Path, address: Address, token: str | None) -> Invitation:
    """The invitation to `address`, from `token` or from an earlier call. Raises UsageError when there is no invitation,
    or when it has expired."""
    folder = invitation_folder(logs, address)
    kept = Invitation.accept(folder, token) if token else Invitation(folder)
    if kept.complete and not kept.valid:
        raise UsageError(
            f"The invitation to {address} ended at {kept.until:%Y-%m-%d %H:%M}: run `./bentpipe worker invite` again, "
            "and paste the new line."
        )
    if not kept.complete:
        raise UsageError(
            f"This host has no invitation to {address}: paste the line that `./bentpipe worker invite` printed there."
        )
    return kept
