"""The container that removes the leftovers of a killed runner, which can't clean up after itself."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from runner.engine import engine as host_engine
from runner.engine.containers import LABEL_LANES, WATCHDOG_ROLE, ContainerSpec, Engine
from runner.engine.stream import Stream
from runner.errors import LaneError
from runner.lanes.holders import TOOLS, bounded
from runner.lanes.resident import Resident
from runner.lanes.supervised import Bell
from runner.units import MIB

LEASE_SECONDS = 60.0  # seconds without a sign of life, after which the runner counts as dead
_SIGN_SECONDS = 5.0  # seconds between signs of life
_READY_SECONDS = 10.0
_SCRIPT = Path(__file__).parent / "scripts" / "lane_watchdog.py"
_NO_WATCHDOG = "no-watchdog"
_PLACE = "/lane_watchdog.py"
_MEMORY = 64 * MIB


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


def start_process(prefix: str, stop: threading.Event) -> None:
    """Start a process of this host that does the same as the container of `Watchdog`. It runs without the engine.

    After `stop` was set, it looks once more whether something is left, and ends. Without a local engine nothing is
    started.
    """
    path = host_engine.socket_path()
    if path is None or not path.exists():
        return
    process = subprocess.Popen(
        (sys.executable, "-ISB", _SCRIPT, f"{LABEL_LANES}={prefix}", path.absolute()),
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
        name = f"{prefix}-{WATCHDOG_ROLE}"
        path = host_engine.socket_path() or host_engine.SOCKET
        spec = ContainerSpec(
            image=TOOLS,
            role=WATCHDOG_ROLE,
            command=("/usr/bin/python3", "-ISB", _PLACE, str(LEASE_SECONDS), f"{LABEL_LANES}={prefix}", name),
            stdin=True,
            host={
                "network_mode": "none",
                "binds": [f"{path}:/docker.sock"],
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges", "label=disable"],  # else SELinux forbids the socket
                "pids_limit": 16,
                **bounded(_MEMORY),
                # It survives its own death and a restart of the engine, which stops all other containers without
                # removing them.
                "restart_policy": {"Name": "unless-stopped"},
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        self._engine = engine
        self._container = engine.create(name, spec)
        engine.put(self._container, "/", {_PLACE.lstrip("/"): _SCRIPT.read_bytes()}, mode=0o555)
        self._bell = Bell(stop)
        self._resident = Resident(engine, self._container, self._bell)
        self._stop = stop

    def start(self) -> None:
        """Start the watchdog. Raises LaneError when it doesn't work: then nothing would remove the containers of a
        killed runner."""
        resident = self._resident
        resident.start()
        self._bell.wait(lambda: "watchdog" in resident.printed or resident.ended, timeout=_READY_SECONDS)
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
