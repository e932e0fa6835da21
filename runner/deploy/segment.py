"""One simulated link between two namespaces: its holder, with both captures, and the simulator itself."""

import re
from typing import TYPE_CHECKING

from runner.deploy.containers import ContainerSpec, Volume
from runner.deploy.holders import link_holder
from runner.deploy.link_arguments import LOGS
from runner.deploy.supervised import Supervised
from runner.errors import LaneError
from runner.units import MIB

if TYPE_CHECKING:
    from runner.deploy.lane_base import LaneBase  # which has segments

SIMULATOR = "bentpipe/sim"
LINK_LOGS = 256 * MIB  # bytes: truth and packet log
HOLDER_OUTPUT = MIB
_READY_SECONDS = 10.0
_STOP_SECONDS = 10.0
_DROPPED = re.compile(r"^(\d+) packets? dropped by (kernel|interface)", re.MULTILINE)
_LISTENING = re.compile(r"listening on eth[01]")  # both print at once: nothing need stand between


class Segment:
    """The link of a lane, or one of several. `role` names its containers, its volume and its folder of the job."""

    def __init__(self, lane: "LaneBase", role: str) -> None:
        self.role = role
        self.volume = Volume(name=f"{lane.name}-{role}-logs", path=LOGS)
        self._lane = lane
        self._holder: Supervised | None = None
        self._link: Supervised | None = None

    def hold(self) -> None:
        """Start the holder, whose captures wait for the wiring."""
        self._lane.engine.create_volume(self.volume.name, role=self.role, quota=LINK_LOGS)
        holder = self._lane.hold(self.role, link_holder(self.role, (self.volume,)))
        self._holder = self._lane.supervise(holder, output_limit=HOLDER_OUTPUT)
        self._holder.start()

    def renew(self) -> None:
        """Forget the simulator, which was removed, and what the captures said: they wait for another wiring."""
        self._link = None
        self._held().forget()

    def start(self, arguments: list[str]) -> None:
        """Start the simulator; return when it carries packets and both captures listen."""
        spec = ContainerSpec(
            image=SIMULATOR,
            role=self.role,
            command=tuple(arguments),
            volumes=(self.volume,),
            host={
                "network_mode": self._lane.namespace(self.role),
                "cap_drop": ["ALL"],
                "cap_add": ["NET_RAW", "NET_ADMIN", "SYS_NICE"],
                "security_opt": ["no-new-privileges"],
                "cpu_shares": 262144,  # the most that there are: it must never wait for a core
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        self._link = self._lane.supervise(self._lane.create(spec), output_limit=HOLDER_OUTPUT)
        self._link.start()
        link, holder = self._link, self._held()

        def is_ready() -> bool:
            printed = holder.printed
            return "link ready" in printed and len(_LISTENING.findall(printed)) == 2

        self._lane.bell.wait(lambda: is_ready() or link.ended or holder.ended, timeout=_READY_SECONDS)
        if link.ended or holder.ended or not is_ready():
            said = " ".join((link.last_lines(3), holder.last_lines(3))).strip()
            raise LaneError("link-not-ready", f"The simulator did not open the path: {said or 'it printed nothing'}")

    @property
    def died(self) -> bool:
        """Whether the simulator or the captures ended although nobody asked them to."""
        return any(part is not None and part.ended for part in (self._link, self._holder))

    def stop_captures(self) -> int:
        """End both captures. Returns how many packets the kernel dropped before them, both sides together."""
        holder = self._held()
        self._lane.engine.signal(holder.container, "SIGTERM")
        ended = self._lane.bell.wait(lambda: "captures ended" in holder.printed or holder.ended, timeout=_STOP_SECONDS)
        if not ended:
            raise LaneError("captures-not-ended", f"The captures did not end in time: {holder.last_lines(3)}")
        dropped = _DROPPED.findall(holder.printed)
        if sum(where == "kernel" for _, where in dropped) < 2:
            raise LaneError("captures-died", f"A capture ended before its time: {holder.last_lines(3)}")
        return sum(int(count) for count, _ in dropped)

    def stop(self) -> None:
        """End the simulator, which then writes its truth."""
        if self._link is None:
            raise LaneError("no-lane", "There is no simulator.")
        self._link.terminate(grace=_STOP_SECONDS)
        final = self._link.final
        if final is None or final.exit_code != 0:
            code = None if final is None else final.exit_code
            raise LaneError("link-failed", f"The simulator ended with exit code {code}: {self._link.last_lines(3)}")

    def output(self) -> str:
        """What simulator and captures printed."""
        return "".join(part.printed for part in (self._link, self._holder) if part is not None)

    def _held(self) -> Supervised:
        if self._holder is None:
            raise LaneError("no-lane", "The lane was not prepared.")
        return self._holder
