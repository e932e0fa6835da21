"""One simulated link between two namespaces: a holder with both captures, and the simulator."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.engine.containers import ContainerSpec, Volume
from runner.errors import LaneError
from runner.images.images import SIMULATOR
from runner.lanes.holders import bounded, link_holder
from runner.lanes.link_document import LOGS
from runner.lanes.resident import Holder, Resident
from runner.units import MIB

if TYPE_CHECKING:
    from runner.lanes.lane_base import LaneBase

_LINES = 20  # lines of a failed tool's output in an error message
LINK_LOGS = 256 * MIB  # bytes for truth and packet log
SIMULATOR_MEMORY = LINK_LOGS + 1024 * MIB  # bytes of memory, with its volume and the packets that wait in queues
WAKE_UP = Path("/dev/cpu_dma_latency")  # kernel, "PM Quality Of Service Interface": how late an idle CPU may wake up
_READY_SECONDS = 10.0
_STOP_SECONDS = 10.0
_DROPPED = re.compile(r"^(\d+) packets? dropped by (kernel|interface)", re.MULTILINE)
_ENDED = re.compile(r"^link ended with (\d+)$", re.MULTILINE)
_FLOODED = "link flooded"
_LISTENING = re.compile(r"listening on eth[01]")  # both captures print at the same time, so their lines may be joined


class Segment:
    """One simulated segment of a lane's link. `role` is part of the names of its containers and its volume, and it is
    the name of its folder in the job's folder."""

    def __init__(self, lane: "LaneBase", role: str) -> None:
        self.role = role
        self.volume = Volume(name=f"{lane.name}-{role}-logs", path=LOGS)
        self._lane = lane
        self._holder: Holder | None = None
        self._link: Resident | None = None
        self._began = False  # True: the link was started in this job

    def hold(self) -> None:
        """Start the holder, whose captures wait for the wiring, and the simulator, which waits for its document."""
        lane = self._lane
        lane.engine.create_volume(self.volume.name, role=self.role, quota=LINK_LOGS)
        self._holder = lane.hold(self.role, link_holder(self.role, (self.volume,)))
        self._link = Resident(lane.engine, lane.create(self._simulator(), stays=True), lane.bell)
        self._link.start()

    def _simulator(self) -> ContainerSpec:
        return ContainerSpec(
            image=SIMULATOR,
            role=self.role,
            command=("--serve",),
            volumes=(self.volume,),
            stdin=True,
            host={
                "network_mode": self._lane.namespace(self.role),
                "cap_drop": ["ALL"],
                "cap_add": ["NET_RAW", "NET_ADMIN", "SYS_NICE"],
                "devices": [f"{WAKE_UP}:{WAKE_UP}:w"] if WAKE_UP.exists() else [],
                "security_opt": ["no-new-privileges"],
                "pids_limit": 64,
                **bounded(SIMULATOR_MEMORY),
                "cpu_shares": 262144,  # the largest weight: it must never wait for a core
                "log_config": {"Type": "none", "Config": {}},
            },
        )

    def renew(self) -> None:
        """Forget the output of the last job; the captures wait for the next wiring."""
        for part in self._parts():
            part.forget()
        self._began = False

    def start(self, document: dict[str, Any]) -> None:
        """Start the link (link_document.py); return when it carries packets and both captures listen."""
        link, holder = self._parts()
        self._began = True
        link.say(json.dumps(document).encode() + b"\n")

        def is_ready() -> bool:
            printed = holder.printed
            return "link ready" in printed and len(_LISTENING.findall(printed)) == 2

        self._lane.bell.wait(lambda: is_ready() or self.died, timeout=_READY_SECONDS)
        if self.died or not is_ready():
            lines = "\n".join((link.last_lines(3), holder.last_lines(3))).strip()
            raise LaneError(
                "link-not-ready", "The simulator was not ready in time.", printed=lines or "it printed nothing"
            )

    @property
    def died(self) -> bool:
        """True when the link or a capture ended before it was stopped."""
        return any(part.ended for part in self._parts()) or self._exit_code() is not None

    @property
    def is_gone(self) -> bool:
        """True when the holder or the simulator has ended, so that the namespace may have ended."""
        return any(part.ended for part in self._parts())

    @property
    def flooded(self) -> bool:
        """True when the simulator reported a flood in this job."""
        link, _ = self._parts()
        return _FLOODED in link.printed

    def _exit_code(self) -> int | None:
        """The exit code of the link; None while it runs."""
        link, _ = self._parts()
        ended = _ENDED.search(link.printed)
        return int(ended[1]) if ended else None

    def stop_captures(self) -> int:
        """End both captures. Returns how many packets the kernel dropped before the two captures could read them."""
        _, holder = self._parts()
        holder.execute(["kill", "-TERM", "1"])  # `hold` passes the signal on
        ended = self._lane.bell.wait(lambda: "captures ended" in holder.printed or holder.ended, timeout=_STOP_SECONDS)
        if not ended:
            raise LaneError(
                "captures-not-ended", "The captures did not end in time.", printed=holder.last_lines(_LINES)
            )
        dropped = _DROPPED.findall(holder.printed)
        if sum(where == "kernel" for _, where in dropped) < 2:
            raise LaneError("captures-died", "A capture ended before its time.", printed=holder.last_lines(_LINES))
        return sum(int(count) for count, _ in dropped)

    def stop(self) -> None:
        """End the link; the simulator then writes its truth."""
        link, _ = self._parts()
        if not self._began:
            raise LaneError("no-lane", "There is no link.")
        if not link.ended:
            link.say(b"stop\n")
        self._lane.bell.wait(lambda: self._exit_code() is not None or link.ended, timeout=_STOP_SECONDS)
        code = self._exit_code()
        if code != 0:
            raise LaneError(
                "link-failed", f"The simulator ended with exit code {code}.", printed=link.last_lines(_LINES)
            )

    def output(self) -> str:
        """The output of simulator and captures."""
        return "".join(part.printed for part in (self._link, self._holder) if part is not None)

    def _parts(self) -> tuple[Resident, Holder]:
        if self._link is None or self._holder is None:
            raise LaneError("no-lane", "The lane was not prepared.")
        return self._link, self._holder
