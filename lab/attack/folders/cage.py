"""The cage: namespaces in which hardly any file can be written, and which report every file that is opened outside the
work folder.

The process has its own mounts, processes, network, host name and System V objects (unshare(1), namespaces(7)). All
mounts become read-only, except those of the work folder, the canaries, /dev/shm and /proc. fanotify(7) watches the
mounts of this namespace, so it reports only files that processes inside the cage open. The canaries are writable, so
that a forbidden write succeeds and is noticed.
"""

import ctypes
import hashlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.paths import ROOT

WORK = Path("/media/work")
CANARIES = Path("/srv/canary")
_WRITABLE = (str(WORK.parent), str(CANARIES.parent), "/dev/shm")
ENTER = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
_LIBC = ctypes.CDLL(None, use_errno=True)
_FAN_CLASS_NOTIF, _FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_UNLIMITED_QUEUE = 0, 1, 2, 0x10
_FAN_MARK_ADD, _FAN_MARK_MOUNT = 0x01, 0x10
_FAN_MODIFY, _FAN_OPEN = 0x02, 0x20
_AT_FDCWD = -100
_EVENT = struct.Struct("=IBBHQii")  # struct fanotify_event_metadata
# Files that a Python interpreter may read at any time, and files of the host that bentpipe reads.
_USUAL = re.compile(
    r"/(usr|lib|lib64|bin|sbin)(/|$)|/etc/(ld\.so|localtime|mime\.types|ssl|hosts|host\.conf|nsswitch|passwd|group|resolv)"
    r"|/proc/(self|\d+)/(stat|statm|status|clear_refs|fd|task|maps|mountinfo|cgroup|limits)|/proc/(stat|meminfo|cpuinfo|uptime|filesystems)"
    r"|/proc/(pressure|sys/)|/sys/(devices/system/cpu|fs/cgroup)|/dev/(null|urandom|shm|pts|tty$)|/$|anon_inode|pipe:|socket:"
)


def enter_cage() -> None:
    """Set up the mounts of this namespace. Call this once, in a process that the command ENTER started."""
    _run("mount", "--make-rprivate", "/")
    for place in _WRITABLE:
        _run("mount", "-t", "tmpfs", "-o", "size=4g,mode=755", "attack", place)
    WORK.mkdir()
    os.environ["TMPDIR"] = str(WORK.parent)
    CANARIES.mkdir()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split(" ")[4].encode().decode("unicode_escape")
        if place not in ("/proc", *_WRITABLE):
            subprocess.run(["mount", "-o", "remount,bind,ro", place], check=False, capture_output=True)
    _run("ip", "link", "set", "lo", "up")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def plant_canaries(secret: bytes, run: Path) -> None:
    """Make files that no command should read or change, each with `secret` in it. One folder is a copy of a run."""
    (CANARIES / "secret").write_bytes(secret)
    precious = CANARIES / "precious" / "handshake" / "1"
    precious.mkdir(parents=True)
    (precious / "result.json").write_bytes(b'{"schema": 1, "secret": "%s"}' % secret)
    (CANARIES / "precious" / "thesis.tex").write_bytes(secret)
    subprocess.run(["cp", "-r", str(run), str(CANARIES / "run")], check=True)
    for path in (CANARIES / "run").rglob("*.json"):
        path.write_bytes(path.read_bytes().replace(b'"quinn"', b'"%s"' % secret))


def digest(folder: Path) -> str:
    """A digest of names, types and contents below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(os.fsencode(path) + b"\0")
        if path.is_file() and not path.is_symlink():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


class Opens:
    """Reports the files that processes in the cage opened or changed outside of WORK since the last call."""

    def __init__(self) -> None:
        flags = _FAN_CLASS_NOTIF | _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_UNLIMITED_QUEUE
        self._descriptor = _LIBC.fanotify_init(flags, os.O_RDONLY | os.O_LARGEFILE)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "fanotify_init")
        self._usual: set[str] = set()
        self._own = tuple(
            str(Path(place).resolve())
            for place in (sys.prefix, sys.base_prefix, ROOT / "runner", ROOT / "web/templates")
        ) + tuple(str(ROOT / name) for name in ("web", "testcases", "implementations", "docs", "sim", "guest"))
        self._mark()

    def _mark(self) -> None:
        """Watch every mount except WORK's, which all targets may read and write."""
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            place = line.split(" ")[4].encode().decode("unicode_escape")
            if place == str(WORK.parent):
                continue
            mask = ctypes.c_uint64(_FAN_OPEN | _FAN_MODIFY)
            marked = _LIBC.fanotify_mark(
                self._descriptor, _FAN_MARK_ADD | _FAN_MARK_MOUNT, mask, _AT_FDCWD, os.fsencode(place)
            )
            if marked < 0 and place in ("/", str(CANARIES.parent)):
                raise OSError(ctypes.get_errno(), f"fanotify_mark {place}")

    def learn(self) -> None:
        """From now on, don't report the files that were opened so far."""
        self._usual |= {path for path, _ in self._events()}

    def unusual(self) -> list[str]:
        """Paths that commands don't open for an honest folder, each once, with the operation."""
        states = dict.fromkeys(
            f"{'changed' if mask & _FAN_MODIFY else 'opened'} {path}"
            for path, mask in self._events()
            if path not in self._usual and not self._is_usual(path)
        )
        return list(states)

    def _is_usual(self, path: str) -> bool:
        if path.startswith(self._own) or path == str(ROOT) or path.startswith(str(ROOT / "implementations")):
            return True
        return _USUAL.match(path) is not None

    def _events(self) -> Iterator[tuple[str, int]]:
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return
            position = 0
            while position < len(data):
                length, _, _, _, mask, descriptor, _ = _EVENT.unpack_from(data, position)
                position += length
                if descriptor < 0:
                    continue
                try:
                    path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
                except OSError:
                    path = "?"
                os.close(descriptor)
                yield path, mask


def command(module: str, *arguments: str) -> Sequence[str]:
    """The command that calls a module in the cage."""
    return (*ENTER, sys.executable, "-m", module, *arguments)
