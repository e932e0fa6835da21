"""Watched containers: endpoints and the harness's own helpers, with the volumes that jobs read."""

import hashlib
import itertools
import queue
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from runner.engine import engine as host_engine
from runner.engine.containers import (
    LABEL_LANES,
    WATCHDOG_ROLE,
    ContainerSpec,
    ContainerState,
    Engine,
    Output,
    Stream,
    Volume,
)
from runner.errors import LaneError
from runner.inputs.inputs import ServedFile, certificates, path_keys
from runner.model.link import CLIENT, SERVER
from runner.model.stack import BesideRole
from runner.places.lane_job import (
    BESIDE_HOSTS,
    CLIENT_HOSTS,
    LEFT_NETS,
    READY_PORT,
    RIGHT_NETS,
    SERVER_HOSTS,
    hosts_file,
)
from runner.store.collect import COPY_MEMBERS, DEPTH, Expected
from runner.units import MIB

# Watches a container from before its start to its end: output, exit, floods. A lane waits until its notifier
# rings.

STOPPED = "stopped"  # code of the LaneError for a job that was running when the run was stopped
_LOOK = 0.25  # seconds between checks of `_stop` while the notifier doesn't ring


class Notifier:
    """Rings when something changed in a lane. `stop` is set when the whole run ends."""

    def __init__(self, stop: threading.Event) -> None:
        self._changed = threading.Condition()
        self._stop = stop

    def notify(self) -> None:
        """Wake all threads that wait."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, until: Callable[[], bool], *, timeout: float) -> bool:
        """Wait until `until()` is true. False after `timeout` seconds. Raises LaneError `stopped` when the run ends."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not until():
                if self._stop.is_set():
                    raise LaneError(STOPPED, "The run was stopped while this job ran.")
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _LOOK))
        return True


class Watched:
    """A container that is watched until its end. Its fields may be read at any time."""

    def __init__(self, engine: Engine, container: str, notifier: Notifier) -> None:
        self.container = container
        self.flooded = False  # killed because it printed more than its limit
        self.final: ContainerState | None = None
        self._engine = engine
        self._notifier = notifier
        self._started = False
        self._failure: LaneError | None = None

    @property
    def ended(self) -> bool:
        """True when the container was started and has ended. Raises LaneError when the engine could not report this."""
        if self._failure is not None:
            raise self._failure
        return self.final is not None

    def start(self) -> None:
        """Start the container and watch it. Raises LaneError when it can't be started."""
        self._engine.start(self.container)
        self._started = True
        threading.Thread(target=self._watch, name="container", daemon=True).start()

    def _watch(self) -> None:
        try:
            self._read()
            self._engine.wait(self.container)
            self.final = self._engine.state(self.container)
        except LaneError as error:
            self._failure = error
        self._notifier.notify()

    def _read(self) -> None:
        """Read the container's output until the end of the stream."""

    def kill(self) -> None:
        """Kill the container and wait for its end."""
        if self._started and not self.ended:
            self._engine.signal(self.container, "SIGKILL")
            self._notifier.wait(lambda: self.ended, timeout=10)

    def terminate(self, *, grace: float, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Send SIGTERM, and SIGKILL after `grace` s or as soon as `hurry()`. Returns True when it still ran."""
        if not self._started or self.ended or not self._engine.signal(self.container, "SIGTERM"):
            return False
        self._notifier.wait(lambda: self.ended or hurry(), timeout=grace)
        if not self.ended:
            self.kill()
        return True


class Supervised(Watched):
    """A watched container whose output is kept and limited. `ended` becomes true after all output was read."""

    _has_stdin = False  # True: the container has a stdin to write to

    def __init__(self, engine: Engine, container: str, notifier: Notifier, *, output_limit: int) -> None:
        super().__init__(engine, container, notifier)
        self._output_limit = output_limit
        self._output = Output()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    @property
    def printed(self) -> str:
        """The kept part of the container's output so far."""
        with self._lock:
            return self._output.text()

    def last_lines(self, count: int) -> str:
        """The last lines of the container's output so far."""
        with self._lock:
            return self._output.last_lines(count)

    def forget(self) -> None:
        """Forget the container's output so far."""
        with self._lock:
            self._output = Output()

    def start(self) -> None:
        self._stream = self._engine.follow(self.container, stdin=self._has_stdin)
        super().start()

    def _read(self) -> None:
        assert self._stream is not None, "start() comes first"
        for source, data in self._stream:
            self._take(source, data)

    def _take(self, source: int, data: bytes) -> None:  # noqa: ARG002 - stdout is 1, stderr is 2
        """Add the next output."""
        with self._lock:
            self._output.feed(data)
        if self._output.total > self._output_limit and not self.flooded:
            self.flooded = True
            # In another thread, because a kill returns only after the output has been read.
            threading.Thread(target=self._kill_flood, name="flood", daemon=True).start()
        self._notifier.notify()

    def _kill_flood(self) -> None:
        try:
            self._engine.signal(self.container, "SIGKILL")
        except LaneError as error:
            self._failure = error
            self._notifier.notify()


# What tcpdump prints at its end.

_DROPPED = re.compile(r"^(\d+) packets? dropped by (kernel|interface)", re.MULTILINE)


def capture_drops(printed: str, captures: int, *, where: str = "") -> int:
    """The number of packets that were dropped before `captures` captures could read them, from their output. Raises
    LaneError `captures-died` when one of them has not counted them. `where`: ` at the client`."""
    counts = _DROPPED.findall(printed)
    if sum(by == "kernel" for _, by in counts) < captures:
        raise LaneError("captures-died", f"A capture{where} ended before its time.", printed=printed[-2000:])
    return sum(int(count) for count, _ in counts)


# Containers of the harness that serve several jobs and read commands from stdin.

_OUTPUT_LIMIT = MIB  # bytes that a resident may print in addition to its answers
_SILENCE = 60.0  # seconds without an answer
_LINES = 20  # lines of the output of an ended keeper in an error message
_AHEAD = 16  # most blocks of an answer that wait for their reader
_REQUEST, _FRAME = struct.Struct(">II"), struct.Struct(">IBI")  # sim/tools/hold
_OUTPUT, _END, _GONE = 0, 1, 2  # kinds of frames; the last kind is made here, at the end of the stream
_STDOUT = 1
# Sorted by depth, then by name, so that the selection does not depend on the file system. Depth and number of
# members are limited already here: the names of 16,000 nested folders once took 15 GB.
_TAR = (
    'cd "$1" && find "$2" -maxdepth "$3" -printf "%d\\t%p\\0" 2> /dev/null | LC_ALL=C sort -z -k1,1n -k2 | cut -z -f2-'
    ' | head -z -n "$4" | exec tar --no-recursion --null --verbatim-files-from -T - -c 2> /dev/null'
)


class Resident(Supervised):
    """A container that reads commands from its stdin and ends when its stdin ends."""

    _has_stdin = True

    def __init__(self, engine: Engine, container: str, notifier: Notifier) -> None:
        super().__init__(engine, container, notifier, output_limit=_OUTPUT_LIMIT)

    def say(self, data: bytes) -> None:
        """Write to the container's stdin. Raises LaneError when the container has ended."""
        if self._stream is None:
            raise LaneError("no-lane", "The container was not started.")
        self._stream.write(data)


class CommandContainer(Resident):
    """A resident that runs `hold`, which runs many commands at the same time in its namespaces. The engine needs a
    tenth of a second of CPU time to run a command or to read a folder; `hold` only starts a process."""

    def __init__(self, engine: Engine, container: str, notifier: Notifier, *, silence: float = _SILENCE) -> None:
        """`silence`: seconds without an answer after which a command counts as lost."""
        super().__init__(engine, container, notifier)
        self._silence = silence
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[tuple[int, bytes]]] = {}
        self._rest = bytearray()
        self._gone = False

    def run(self, command: Sequence[str]) -> Generator[bytes, None, int]:
        """Yields the output of a command in blocks, and returns its exit code. Closing the generator kills the command.
        Raises LaneError when the keeper ends, or when it prints nothing for `silence` seconds."""
        number, frames = next(self._numbers), queue.Queue[tuple[int, bytes]](_AHEAD)
        self._answers[number] = frames
        kind = _OUTPUT
        try:
            if self._gone:
                raise LaneError("holder-died", "A namespace keeper has ended.", printed=self.last_lines(_LINES))
            words = "\0".join(command).encode()
            self.say(_REQUEST.pack(number, len(words)) + words)
            while True:
                kind, data = frames.get(timeout=self._silence)
                if kind == _END:
                    return int(data)
                if kind == _GONE:
                    raise LaneError("holder-died", "A keeper ended while it worked.", printed=self.last_lines(_LINES))
                yield data
        except queue.Empty:
            raise LaneError("holder-silent", f"A keeper said nothing for {self._silence:g} s: {command[0]}") from None
        finally:
            del self._answers[number]
            while not frames.empty():  # the reader of the stream may wait for a free place in the queue
                frames.get_nowait()
            if kind == _OUTPUT and not self._gone:
                with suppress(LaneError):
                    self.say(_REQUEST.pack(number, 0))

    def execute(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end. Returns its exit code and its output."""
        running, printed = self.run(command), bytearray()
        while True:
            try:
                printed += next(running)
            except StopIteration as end:
                return end.value, printed.decode(errors="replace")

    def archive(self, path: str) -> Iterator[bytes]:
        """Yields a folder as tar, in blocks: at most COPY_MEMBERS members, down to the depth DEPTH. Slightly more than
        these limits is sent, so that the reader notices that members are left out."""
        folder = PurePosixPath(path)
        limits = (str(DEPTH + 1), str(COPY_MEMBERS + 2))
        return self.run(["sh", "-c", _TAR, "tar", str(folder.parent), folder.name, *limits])

    def _read(self) -> None:
        super()._read()
        self._gone = True
        for frames in list(self._answers.values()):
            frames.put((_GONE, b""))

    def _take(self, source: int, data: bytes) -> None:
        if source != _STDOUT:
            super()._take(source, data)
            return
        self._rest += data
        while len(self._rest) >= _FRAME.size:
            number, kind, length = _FRAME.unpack_from(self._rest)
            end = _FRAME.size + length
            if len(self._rest) < end:
                return
            content = bytes(memoryview(self._rest)[_FRAME.size : end])
            del self._rest[:end]
            if number == 0 and kind == _OUTPUT:
                super()._take(source, content)
            elif (frames := self._answers.get(number)) is not None:
                frames.put((kind, content))


# Containers of the tools image: keepers keep the namespaces and volumes of a lane, and the wiring container lays the
# cables.

TOOLS = "bentpipe/tools"
CAPTURES = "/captures"
CAPTURE_LIMIT = 1024 * MIB  # bytes of one capture: a server that floods its interface must not fill the disk

# The engine switches IPv6 off in namespaces without a network. Without duplicate address detection and router
# solicitations, addresses work immediately, and the link carries only packets of the endpoints.
NAMESPACE_SETTINGS = {
    f"net.ipv6.conf.{which}.{name}": value
    for which in ("all", "default")
    for name, value in (
        ("disable_ipv6", "0"),
        ("accept_dad", "0"),
        ("accept_ra", "0"),
        ("router_solicitations", "0"),
    )
} | {
    "net.ipv4.ip_forward": "0",
    "net.ipv6.conf.all.forwarding": "0",
    # A client that connects to a closed port of its own host can be assigned the same port as its source port and so
    # connect to itself (TCP simultaneous open): the simulator would seem ready, and its port would be in use.
    "net.ipv4.ip_local_reserved_ports": str(READY_PORT),
}

ROUTER_SETTINGS = NAMESPACE_SETTINGS | {
    "net.ipv4.ip_forward": "1",
    "net.ipv6.conf.all.forwarding": "1",
    # A box that intercepts connections sends packets from addresses of other hosts; the check of RFC 3704 drops them.
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
}

# Limits of the harness's own containers: files of images that they read must not fill the host's memory.
_MEMORY = 256 * MIB  # bytes
LINK_MEMORY = 1024 * MIB  # bytes; captured packets wait in memory until they are written
CAPTURING: dict[str, Any] = {
    "capabilities": ("NET_RAW", "SETUID", "SETGID"),  # `tcpdump -Z root` needs them
    "ulimits": [{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
}
"""What a container that captures needs in addition."""
_KEEPER_CPUS = 1_500_000_000  # nanoseconds of CPU time per second; enough to read a folder


def confined(memory: int, *, pids: int = 64, capabilities: Sequence[str] = (), **host: Any) -> dict[str, Any]:
    """The HostConfig of a container of the harness: `memory` bytes without swap, no rights but `capabilities`, no log.
    `host`: further entries, or others in place of these."""
    return {
        "cap_drop": ["ALL"],
        "cap_add": list(capabilities),
        "security_opt": ["no-new-privileges"],
        "pids_limit": pids,
        "mem_limit": memory,
        "memswap_limit": memory,
        # The output is read while the container runs. Without a log file, a flood takes half of the engine's work.
        "log_config": {"Type": "none", "Config": {}},
        **host,
    }


def keeper(
    role: str,
    volumes: tuple[Volume, ...],
    command: Sequence[str] = (),
    *,
    capabilities: Sequence[str] = (),
    memory: int = _MEMORY,
    sysctls: Mapping[str, str] = NAMESPACE_SETTINGS,
    nano_cpus: int | None = _KEEPER_CPUS,
    **host: Any,
) -> ContainerSpec:
    """The keeper of namespace and volumes of `role`, which runs `command`. `host`: more HostConfig."""
    return ContainerSpec(
        image=TOOLS,
        role=f"{role}-holder",
        command=("hold", *command),
        volumes=volumes,
        hostname=role,
        stdin=True,
        host=confined(
            memory,
            # DAC_OVERRIDE: the keeper reads the files of endpoints, which may belong to any user.
            capabilities=("DAC_OVERRIDE", *capabilities),
            network_mode="none",
            sysctls=sysctls,
            nano_cpus=nano_cpus,
            **host,
        ),
    )


def link_keeper(role: str, volumes: tuple[Volume, ...]) -> ContainerSpec:
    """The keeper of the simulator's namespace and volume. It runs both captures and prints `link ready`."""
    return keeper(
        role,
        volumes,
        ["hold-link", str(READY_PORT), ",".join(RIGHT_NETS), ",".join(LEFT_NETS)],
        nano_cpus=None,  # a capture that waits for a CPU loses packets
        memory=LINK_MEMORY,
        **CAPTURING,
    )


def wiring_container() -> ContainerSpec:
    """The container that lays the cables between namespaces. It enters the namespaces of keepers by their process ids,
    so that the runner only needs the right to use Docker."""
    return ContainerSpec(
        image=TOOLS,
        role="plumber",
        command=("hold",),
        stdin=True,
        host=confined(
            _MEMORY,
            pids=256,
            # The last two rights are for emptying volumes, whose files may belong to any user.
            capabilities=("SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE", "FOWNER"),
            network_mode="none",
            pid_mode="host",
            security_opt=["no-new-privileges", "apparmor=unconfined"],
        ),
    )


def engine_test() -> ContainerSpec:
    """A container that does nothing. An engine that can start this container works."""
    host = confined(_MEMORY, pids=16, network_mode="none")
    return ContainerSpec(image=TOOLS, role="engine-test", command=("true",), host=host)


# The volumes that jobs of a run read: a /www for each set of files, a /certs for each chain length, /keys, and
# /etc/hosts for each role.

_HOSTS = {
    **{CLIENT: CLIENT_HOSTS, SERVER: SERVER_HOSTS},
    **{role.value: BESIDE_HOSTS for role in BesideRole},
}
_BOXES = "boxes"  # the file of boxes, which only know themselves


class Served:
    """Makes each volume once, when it is first needed. The end of the run removes them. Thread-safe."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        self._engine = engine
        self._prefix = prefix
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._made: dict[object, str] = {}  # names of volumes by what is in them
        self._fingerprints: dict[int, tuple[str, ...]] = {}  # by chain length
        self._expected: dict[ServedFile, Expected] = {}

    def www(self, files: tuple[ServedFile, ...]) -> Volume:
        """/www with exactly `files`."""
        return Volume(name=self._volume("www", files, lambda: self._contents(files)), path="/www", read_only=True)

    def certs(self, chain_length: int) -> Volume:
        """/certs with a leaf certificate and `chain_length` - 1 intermediate certificates."""

        def contents() -> dict[str, bytes]:
            made = certificates(chain_length=chain_length)
            self._fingerprints[chain_length] = made.fingerprints
            return made.files()

        return Volume(name=self._volume("certs", chain_length, contents), path="/certs", read_only=True)

    def fingerprints(self, chain_length: int) -> tuple[str, ...]:
        """SHA-256 of the certificates of the server. `certs` must have been called for this chain."""
        return self._fingerprints[chain_length]

    def path_keys(self) -> Volume:
        """/keys of both boxes of a middlebox."""
        return Volume(name=self._volume("keys", None, path_keys), path="/keys", read_only=True)

    def hosts(self, role: str) -> Volume:
        """/etc/hosts of an endpoint or of a box of a middlebox."""
        contents = {role: hosts_file(names).encode() for role, names in {**_HOSTS, _BOXES: ()}.items()}
        name, file = self._volume("hosts", None, lambda: contents), role if role in _HOSTS else _BOXES
        return Volume(name=name, path="/etc/hosts", read_only=True, file=file)

    def expected(self, files: tuple[ServedFile, ...]) -> dict[str, Expected]:
        """Size and digest of the files that a client must have, by name. `www` must have been called for them."""
        return {file.name: self._expected[file] for file in files}

    def _contents(self, files: tuple[ServedFile, ...]) -> dict[str, bytes]:
        contents = {file.name: file.content() for file in files}
        for file in files:
            digest = hashlib.sha256(contents[file.name]).digest()
            self._expected[file] = Expected(size=file.size, digest=digest)
        return contents

    def _volume(self, role: str, which: object, contents: Callable[[], Mapping[str, bytes]]) -> str:
        """The volume with `which` contents, made at its first use."""
        with self._lock:
            if (role, which) not in self._made:
                self._made[role, which] = self._fill(role, contents())
            return self._made[role, which]

    def _fill(self, role: str, contents: Mapping[str, bytes]) -> str:
        """A volume with files in it, written through a container that is never started."""
        name = f"{self._prefix}-{role}-{next(self._numbers)}"
        self._engine.create_volume(name, role=role)
        spec = ContainerSpec(
            image=TOOLS,
            role=f"{role}-filler",
            volumes=(Volume(name=name, path="/volume"),),
            host={"network_mode": "none"},
        )
        filler = self._engine.create(f"{name}-filler", spec)
        try:
            self._engine.put(filler, "/volume", contents)
        finally:
            self._engine.remove(filler)
        return name


# The container that removes the leftovers of a killed runner, which can't clean up after itself.

LEASE_SECONDS = 60.0  # seconds without a sign of life, after which the runner counts as dead
_SIGN_SECONDS = 5.0  # seconds between signs of life
_READY_SECONDS = 10.0
SCRIPTS = Path(__file__).parent / "scripts"
_SCRIPT = SCRIPTS / "watchdog.py"
_NO_WATCHDOG = "no-watchdog"
_WATCHDOG = "/watchdog.py"
_WATCHDOG_MEMORY = 64 * MIB


def start_watchdog(engine: Engine, prefix: str, stop: threading.Event) -> str:
    """Start a watchdog. Returns the reason why it can't work here; empty when it works. Containers of an engine behind
    TCP, or of an engine with user namespaces, may be unable to use the engine's socket. Raises LaneError when the
    engine doesn't answer."""
    start_process(prefix, stop)  # first, because the runner may die before the container has started
    try:
        Watchdog(engine, prefix, stop).start()
    except LaneError as error:
        if error.code not in (_NO_WATCHDOG, "engine"):
            raise
        return f"{error} If this run is killed, the next one removes its containers."
    return ""


def _of_runner(prefix: str) -> str:
    """The filter that finds the containers and volumes of one runner."""
    return f"label={LABEL_LANES}={prefix}"


def create_watchdog(
    engine: Engine, name: str, which: str, *, lease: float, path: Path, life: float | None = None
) -> str:
    """Create the container `name` with scripts/watchdog.py, without starting it. `which`: the filter for the
    containers that it removes. `lease`: seconds without a sign of life. `path`: the engine's socket on its host.
    `life`: the longest time of a job on another host in seconds; the watchdog has no stdin there. Returns its id."""
    arguments = (str(lease), which, name, *(() if life is None else (str(round(life)),)))
    spec = ContainerSpec(
        image=TOOLS,
        role=WATCHDOG_ROLE,
        command=("/usr/bin/python3", "-ISB", _WATCHDOG, *arguments),
        stdin=life is None,
        host=confined(
            _WATCHDOG_MEMORY,
            pids=16,
            network_mode="none",
            binds=[f"{path}:/docker.sock"],
            security_opt=["no-new-privileges", "label=disable"],  # else SELinux forbids the socket
            # It survives its own death and a restart of the engine, which stops all other containers without removing
            # them.
            restart_policy={"Name": "unless-stopped"},
        ),
    )
    container = engine.create(name, spec)
    engine.put(container, "/", {_WATCHDOG.lstrip("/"): _SCRIPT.read_bytes()}, mode=0o555)
    return container


def start_process(prefix: str, stop: threading.Event) -> None:
    """Start a process of this host that does the same as the container of `Watchdog`. It runs without the engine. After
    `stop` was set, it looks once more whether something is left, and ends. Without a local engine nothing is started.
    """
    path = host_engine.socket_path()
    if path is None or not path.exists():
        return
    process = subprocess.Popen(
        (sys.executable, "-ISB", _SCRIPT, _of_runner(prefix), path.absolute()),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a signal to the runner's group must not end it
        cwd="/",
    )

    def end() -> None:
        stop.wait()
        process.communicate()

    threading.Thread(target=end, name="watchdog-process", daemon=True).start()


class Watchdog:
    """Removes all containers and volumes with the label `LABEL_LANES=prefix`, itself included, when this process dies.
    It notices this immediately, because its standard input then ends.

    It also works when all processes of the runner's control group are killed. When the watchdog itself is killed, the
    engine starts it again, and this process attaches to it again. But the engine gives up when it can't start the
    container at once, for example after the death of containerd: see `start_process`.
    """

    def __init__(self, engine: Engine, prefix: str, stop: threading.Event) -> None:
        """`stop`: set when the runner ends normally."""
        path = host_engine.socket_path() or host_engine.SOCKET
        self._engine = engine
        self._container = create_watchdog(
            engine, f"{prefix}-{WATCHDOG_ROLE}", _of_runner(prefix), lease=LEASE_SECONDS, path=path
        )
        self._notifier = Notifier(stop)
        self._resident = Resident(engine, self._container, self._notifier)
        self._stop = stop

    def start(self) -> None:
        """Start the watchdog. Raises LaneError when it would not remove the containers of a killed runner."""
        resident = self._resident
        resident.start()
        self._notifier.wait(lambda: "watchdog" in resident.printed or resident.ended, timeout=_READY_SECONDS)
        if "watchdog ready" not in resident.printed:
            printed = resident.last_lines(3) or "it printed nothing"
            raise LaneError(_NO_WATCHDOG, "The watchdog over the lanes did not start.", printed=printed)
        threading.Thread(target=self._give_signs, name="watchdog", daemon=True).start()

    def _give_signs(self) -> None:
        again: Stream | None = None  # to a container that the engine has started again
        while not self._stop.wait(_SIGN_SECONDS):
            try:
                if again is None:
                    self._resident.say(b".")
                else:
                    again.write(b".")
            except LaneError:
                if again is not None:
                    again.close()
                with suppress(LaneError):  # jobs notice when the engine doesn't answer
                    again = self._engine.follow(self._container, stdin=True)
