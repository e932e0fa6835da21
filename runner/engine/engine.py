"""The Docker Engine of this host: connect to it or install it, the owners of containers, and the removal of
leftovers."""

import hashlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException
from docker.utils import kwargs_from_env
from requests import Response
from requests.exceptions import ConnectionError as BrokenConnectionError
from requests.exceptions import Timeout

from runner.engine.containers import LABEL_LANES, LABEL_OWNER, LABEL_RUN, Engine
from runner.errors import LaneError, SetupError

# The Docker Engine of this host: connect to it, or install it from the distribution and start it.

SOCKET = Path("/var/run/docker.sock")
LOG = Path("/var/log/bentpipe-dockerd.log")
MINIMUM_API = (1, 41)  # Docker Engine 20.10 is the oldest version on which bentpipe was tried

Progress = Callable[[str], None]
Consent = Callable[[str], bool]

_PID_FILES = {
    "dockerd": Path("/var/run/docker.pid"),
    "containerd": Path("/var/run/docker/containerd/containerd.pid"),
}
_PACKAGES = ("docker.io", "iptables", "ca-certificates")
_ANSWER_SECONDS = 30.0
PATIENCE = 30.0  # the longest wait for an answer to a first call, which takes less than a second on an idle host
_CALL_SECONDS = 120
_PROGRAM_SECONDS = 3600.0  # the longest time of a program that installs something


class SocketState(Enum):
    """The result of connecting to the engine's socket."""

    ANSWERS = "answers"
    FORBIDDEN = "forbidden"
    SILENT = "silent"


def connect(*, progress: Progress = lambda _: None, consent: Consent = lambda _: True) -> docker.DockerClient:
    """A client of a running Docker Engine. Installs and starts the engine when needed, but not when DOCKER_HOST is set.
    `progress` is called with a sentence for each change of the host. `consent` is called with a question before an
    installation and returns whether to continue. Raises SetupError."""
    if not os.environ.get("DOCKER_HOST") and socket_state(SOCKET) is SocketState.SILENT:
        if os.geteuid() != 0:
            raise SetupError("No Docker Engine answers here, and starting one needs root: run `sudo ./bentpipe build`.")
        if daemon() is None:
            install_packages(_packages(), consent=consent, progress=progress, purpose="No Docker Engine is installed.")
        _start(progress)
    return client()


def socket_path() -> Path | None:
    """The engine's socket, from DOCKER_HOST or the default; None when DOCKER_HOST names no local socket."""
    url = os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"
    return Path(url.removeprefix("unix://")) if url.startswith("unix://") else None


def socket_state(path: Path) -> SocketState:
    """Connect to the engine's socket at `path` and return the result."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(str(path))
        except PermissionError:
            return SocketState.FORBIDDEN
        except OSError:
            return SocketState.SILENT
    return SocketState.ANSWERS


def daemon() -> str | None:
    """The path of dockerd, or None when it isn't installed. Also searches /usr/sbin, which is often not in PATH."""
    return shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def install_packages(packages: Sequence[str], *, consent: Consent, progress: Progress, purpose: str) -> None:
    """Install distribution packages with apt-get. Raises SetupError without root, apt-get or consent."""
    names = " ".join(packages)
    fix = f"run `sudo apt-get install {names}`, then this command again"
    if shutil.which("apt-get") is None:
        raise SetupError(f"{purpose} This is neither Debian nor Ubuntu: install it by hand, then run this again.")
    if os.geteuid() != 0:
        raise SetupError(f"{purpose} Installing needs root: {fix}.")
    if not consent(f"{purpose} Install {names} with apt-get?"):
        raise SetupError(f"{purpose} Nothing was installed: {fix}.")
    progress(f"installing {names} (apt-get)")
    apt_install(*packages)


def _packages() -> tuple[str, ...]:
    # Where the kernel runs AppArmor, dockerd needs this package's parser to start containers.
    enabled = Path("/sys/module/apparmor/parameters/enabled")
    with_apparmor = enabled.exists() and enabled.read_text().startswith("Y")
    return (*_PACKAGES, "apparmor") if with_apparmor else _PACKAGES


def apt_install(*packages: str) -> None:
    """Install distribution packages. Raises SetupError."""
    for arguments in (("update",), ("install", "-y", "--no-install-recommends", *packages)):
        run_program("apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments)


def run_program(*command: str) -> None:
    """Run a command to its end. When it fails, raises SetupError with the last lines of its output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"`{' '.join(command)}` can't run: {error}.") from error
    if done.returncode != 0:
        last = "\n".join(done.stdout.strip().splitlines()[-5:]) or "no output"
        raise SetupError(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{last}")


def _start(progress: Progress) -> None:
    """Start the daemon and wait until it answers. If the host has systemd, systemd starts the daemon."""
    process: subprocess.Popen[bytes] | None = None
    if Path("/run/systemd/system").is_dir():
        progress("starting the Docker Engine (systemctl start docker)")
        done = subprocess.run(["systemctl", "start", "docker"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"`systemctl start docker` failed: {done.stderr.strip()} Look at `journalctl -u docker`.")
    elif not _runs("dockerd"):
        path = daemon()
        if path is None:
            raise SetupError("docker.io is installed and yet there is no dockerd: reinstall docker.io.")
        progress(f"starting the Docker Engine (dockerd; its log is {LOG})")
        for program, pid_file in _PID_FILES.items():
            if not _runs(program):  # dockerd would wait for any process with that number
                pid_file.unlink(missing_ok=True)
        with LOG.open("ab") as log:
            process = subprocess.Popen(
                [path], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
    deadline = time.monotonic() + _ANSWER_SECONDS
    while not _answers():
        ended = process is not None and process.poll() is not None and not _runs("dockerd")
        if ended or time.monotonic() > deadline:
            how = "ended while it started" if ended else f"doesn't answer after {_ANSWER_SECONDS:.0f} s"
            raise SetupError(f"The Docker Engine {how}. The last lines of its log ({LOG}):\n{_tail(LOG)}")
        time.sleep(0.1)


def _answers() -> bool:
    """True when the daemon answers a call. Its socket accepts connections before the daemon answers calls."""
    try:
        docker.DockerClient(f"unix://{SOCKET}", version="1.41", timeout=5).ping()
    except (DockerException, OSError):
        return False
    return True


def _runs(program: str) -> bool:
    """True when the pid file names a running process of this program. After a crash, another process may have the
    same number. A dead process whose parent has not waited for it still has a name, but no executable."""
    try:
        return program in Path(f"/proc/{int(_PID_FILES[program].read_text())}/exe").readlink().name
    except (OSError, ValueError):
        return False


def _tail(path: Path) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-8:])
    except OSError as error:
        return f"({path} can't be read: {error.strerror})"


class SilentEngineError(SetupError):
    """An engine accepts connections and does not answer."""

    def __init__(self) -> None:
        super().__init__(
            f"The Docker Engine at {_where()} accepts connections and does not answer, so it hangs for every program "
            "and user. Restart it (`sudo systemctl restart docker`; without systemd, kill dockerd and run "
            "`sudo ./bentpipe build`), which ends its containers, and run this command again: "
            "`./bentpipe doctor` tells in 10 s whether it answers."
        )


class _Api(docker.APIClient):
    """docker-py's client; a call that the engine does not answer is a SetupError instead of an error of requests."""

    def send(self, *arguments: Any, **options: Any) -> Response:
        """Like requests.Session.send. Raises SetupError."""
        try:
            return super().send(*arguments, **options)
        except Timeout as error:
            raise SilentEngineError from error
        except BrokenConnectionError as error:
            raise _no_answer(error) from error


class _Client(docker.DockerClient):
    def __init__(self, **options: Any) -> None:
        self.api = _Api(**options)


def _where() -> str:
    return os.environ.get("DOCKER_HOST") or str(SOCKET)


def _no_answer(error: BaseException) -> SetupError:
    while error.__context__ is not None:
        error = error.__context__
    if isinstance(error, TimeoutError):
        return SilentEngineError()
    fix = "start it, or fix DOCKER_HOST" if os.environ.get("DOCKER_HOST") else "start it"
    return SetupError(f"No Docker Engine answers at {_where()} ({error}): {fix}.")


def client(*, patience: float = PATIENCE) -> docker.DockerClient:
    """A client of a running engine. Raises SilentEngineError when the engine does not answer a call within `patience`
    seconds, SetupError when there is no engine, when the user may not use it, or when it is too old. Later calls of the
    client raise the same errors after two minutes."""
    path = socket_path()
    if path is not None and socket_state(path) is SocketState.FORBIDDEN:
        raise SetupError(
            f"{user()} may not use the Docker Engine ({path}): run `sudo usermod -aG docker {user()}` and log in "
            "again, or run bentpipe as root. Without Docker: `run --clock virtual --rootless` (docs/virtual-time.md)."
        )
    try:
        client = _Client(timeout=patience, **kwargs_from_env())
        api = client.version()["ApiVersion"]
        client.info()  # an engine whose containers or networks are in a deadlock still tells its version
    except (DockerException, OSError) as error:
        raise _no_answer(error) from error
    if tuple(int(part) for part in api.split(".")) < MINIMUM_API:
        raise SetupError(
            f"The Docker Engine at {_where()} speaks API {api}: Docker Engine 20.10 (API 1.41) or newer is needed."
        )
    client.api.timeout = _CALL_SECONDS
    return client


def user() -> str:
    """The name of this process's user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


# The owner of a container or volume, and whether its process still lives. A runner removes only containers and volumes
# of dead runners.

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


def labels_of(run_name: str) -> tuple[str, dict[str, str]]:
    """A new beginning for the names of this process's containers and volumes, and their labels."""
    prefix = f"bentpipe-{secrets.token_hex(4)}"
    return prefix, {LABEL_OWNER: str(Owner.current()), LABEL_RUN: run_name, LABEL_LANES: prefix}


@cache
def _machine() -> str:
    """32 hexadecimal digits of this machine. Copies of a VM share the machine-id: name and cards count, too."""
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


# Removes leftovers of runners: of dead runners at the start, of this runner at the end.

Belongs = Callable[[Mapping[str, str]], bool]
_AT_ONCE = 8  # objects that are removed at the same time: dockerd can take 12 s for a container that does not end


def sweep(engine: Engine) -> int:
    """Remove containers and volumes of dead runners of this machine. Returns their number.

    When a runner has a running watchdog, its containers and volumes are left to the watchdog: it knows whether the
    runner lives, even on a copy of this machine. Objects that can't be removed, for example because another runner is
    removing them, are left to the next sweep.
    """
    watched = engine.watched()

    def is_orphan(labels: Mapping[str, str]) -> bool:
        owner = Owner.parse(labels.get(LABEL_OWNER, ""))
        return owner is not None and owner.is_dead() and labels.get(LABEL_LANES) not in watched

    removed, _ = _remove(engine, is_orphan)
    return removed


def remove_own(engine: Engine, labels: Mapping[str, str]) -> int:
    """Remove all containers and volumes with these labels. Returns their number. Raises LaneError."""
    removed, failures = _remove(engine, lambda made: all(made.get(name) == value for name, value in labels.items()))
    if failures:
        raise failures[0]
    return removed


def _remove(engine: Engine, belongs: Belongs) -> tuple[int, list[LaneError]]:
    """Remove containers, then volumes, which may be in use before. Returns the removed number and failures."""
    outcomes: list[LaneError | None] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="removal") as pool:
        for listed, remove in (
            (engine.labelled_containers, engine.remove),
            (engine.labelled_volumes, engine.remove_volume),
        ):
            names = [name for name, labels in listed() if belongs(labels)]
            outcomes += pool.map(partial(_outcome, remove), names)
    failures = [outcome for outcome in outcomes if outcome is not None]
    return len(outcomes) - len(failures), failures


def _outcome(remove: Callable[[str], object], name: str) -> LaneError | None:
    """Remove one object. Returns its failure."""
    try:
        remove(name)
    except LaneError as error:
        return error
    return None
