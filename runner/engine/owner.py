"""The owner of a container or volume, and whether its process still lives. A runner removes only containers and volumes
of dead runners."""

import hashlib
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_START_TIME = 21 - 2  # field 22 of /proc/<pid>/stat, counted from field 3: the name in field 2 may contain blanks


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process. Start time and boot distinguish it from later processes with the same number."""

    machine: str
    boot: str
    pid: int
    start: int  # clock ticks after the boot

    @classmethod
    def current(cls) -> "Owner":
        """This process."""
        start = _start_time(os.getpid())
        assert start is not None, "this process lives"
        return cls(machine=_machine(), boot=_boot(), pid=os.getpid(), start=start)

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        """The owner in a label, or None when the label has another form."""
        try:
            machine, boot, pid, start = text.split(":")
            return cls(machine=machine, boot=boot, pid=int(pid), start=int(start))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.machine}:{self.boot}:{self.pid}:{self.start}"

    def is_dead(self) -> bool:
        """True when the process has certainly ended. Processes of other machines never count as dead."""
        if self.machine != _machine():
            return False
        return self.boot != _boot() or _start_time(self.pid) != self.start


@cache
def _machine() -> str:
    """32 hexadecimal digits that identify this machine. Copies of a virtual machine have the same machine-id, so the
    host name and the network cards are included."""
    digest = hashlib.sha256(socket.gethostname().encode())
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if path.is_file() and (text := path.read_text().strip()):
            digest.update(text.encode())
            break
    for card in sorted(Path("/sys/class/net").glob("*/device")):  # bridges and veths have no device
        with suppress(OSError):
            digest.update((card.parent / "address").read_bytes())
    return digest.hexdigest()[:32]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_time(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_TIME])
    except (OSError, IndexError, ValueError):
        return None
