"""The container that removes what a runner leaves when it is killed: its own clean-up can't run then."""

import threading
from contextlib import suppress
from pathlib import Path

from runner.engine import engine as host_engine
from runner.engine.containers import LABEL_LANES, WATCHDOG_ROLE, ContainerSpec, Engine
from runner.errors import LaneError
from runner.lanes.holders import TOOLS, bounded
from runner.lanes.resident import Resident
from runner.lanes.supervised import Bell
from runner.units import MIB

LEASE_SECONDS = 60.0  # without a sign of the runner
_SIGN_SECONDS = 5.0  # between signs
_READY_SECONDS = 10.0
_SCRIPT = Path(__file__).parent / "scripts" / "lane_watchdog.py"
_NO_WATCHDOG = "no-watchdog"
_PLACE = "/lane_watchdog.py"
_MEMORY = 64 * MIB


def start_watchdog(engine: Engine, prefix: str, stop: threading.Event) -> str:
    """Start a watchdog. Returns why it can't work here, empty when it does: an engine behind TCP, or with names of
    users of its own, may keep a container from its socket. Raises LaneError when the engine fails."""
    try:
        Watchdog(engine, prefix, stop).start()
    except LaneError as error:
        if error.code not in (_NO_WATCHDOG, "engine"):
            raise
        return f"{error} If this run is killed, the next one removes its containers."
    return ""


class Watchdog:
    """Watches this process for all containers and volumes with the label `LABEL_LANES=prefix`.

    It sees the runner's end at once, for its standard input ends with the runner. It is removed with the rest.
    """

    def __init__(self, engine: Engine, prefix: str, stop: threading.Event) -> None:
        """`stop`: set when the runner ends in good order."""
        own = f"{prefix}-{WATCHDOG_ROLE}"
        path = host_engine.socket_path() or host_engine.SOCKET
        spec = ContainerSpec(
            image=TOOLS,
            role=WATCHDOG_ROLE,
            command=("/usr/bin/python3", "-ISB", _PLACE, str(LEASE_SECONDS), f"{LABEL_LANES}={prefix}", own),
            stdin=True,
            host={
                "network_mode": "none",
                "binds": [f"{path}:/docker.sock"],
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges", "label=disable"],  # SELinux keeps containers from the socket
                "pids_limit": 16,
                **bounded(_MEMORY),
                # It survives a restart of the engine, which ends all other containers and leaves them there.
                "restart_policy": {"Name": "unless-stopped"},
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        container = engine.create(own, spec)
        engine.put(container, "/", {_PLACE.lstrip("/"): _SCRIPT.read_bytes()}, mode=0o555)
        self._bell = Bell(stop)
        self._resident = Resident(engine, container, self._bell)
        self._stop = stop

    def start(self) -> None:
        """Start it. Raises LaneError when it doesn't work: then nothing would end the containers of a killed runner."""
        resident = self._resident
        resident.start()
        self._bell.wait(lambda: "watchdog" in resident.printed or resident.ended, timeout=_READY_SECONDS)
        if "watchdog ready" not in resident.printed:
            said = resident.last_lines(3) or "it printed nothing"
            raise LaneError(_NO_WATCHDOG, "The watchdog over the lanes did not start.", printed=said)
        threading.Thread(target=self._give_signs, name="watchdog", daemon=True).start()

    def _give_signs(self) -> None:
        while not self._stop.wait(_SIGN_SECONDS):
            with suppress(LaneError):  # an engine that is away is noticed by the jobs
                self._resident.say(b".")
