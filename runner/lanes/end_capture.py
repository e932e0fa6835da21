"""Captures packets in the namespace of the client or the server. On the link, a tunnel may hide these packets."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.engine.containers import ContainerSpec
from runner.errors import LaneError
from runner.lanes.addresses import READY_PORT
from runner.lanes.holders import CAPTURE_LIMIT, CAPTURES, LINK_MEMORY, TOOLS, bounded
from runner.lanes.supervised import Supervised
from runner.units import MIB

if TYPE_CHECKING:
    from runner.lanes.lane_base import LaneBase

_OUTPUT = MIB
_SNAPSHOT = 2048  # captured bytes of each packet, the same as on the segments
_STOP_SECONDS = 10.0
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)


class EndCapture:
    """A capture of one job at eth0 of `role`; the file is `<role>.pcap`."""

    def __init__(self, lane: "LaneBase", role: str) -> None:
        self.role = role
        self._lane = lane
        self._running: Supervised | None = None

    def start(self) -> None:
        """Start the capture and wait until it listens. Raises LaneError when it doesn't listen."""
        command = (
            f"mkdir -p {CAPTURES}; exec tcpdump -Z root -n -i eth0 --immediate-mode -s {_SNAPSHOT} -B 16384 "
            f"--time-stamp-precision=nano -w {CAPTURES}/{self.role}.pcap not tcp port {READY_PORT}"
        )
        spec = ContainerSpec(
            image=TOOLS,
            role=f"{self.role}-capture",
            command=("sh", "-c", command),
            host={
                "network_mode": self._lane.namespace(self.role),
                "cap_drop": ["ALL"],
                "cap_add": ["NET_RAW", "SETUID", "SETGID"],  # `tcpdump -Z root` needs them
                "security_opt": ["no-new-privileges"],
                "pids_limit": 64,
                **bounded(LINK_MEMORY),
                "ulimits": [{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        running = self._running = self._lane.supervise(self._lane.create(spec), output_limit=_OUTPUT)
        running.start()
        self._lane.bell.wait(lambda: "listening on eth0" in running.printed or running.ended, timeout=_STOP_SECONDS)
        if running.ended or "listening on eth0" not in running.printed:
            raise LaneError(
                "no-end-capture", f"The capture at the {self.role} did not begin.", printed=running.last_lines(3)
            )

    @property
    def died(self) -> bool:
        """True when the capture ended before `stop` was called."""
        return self._running is not None and self._running.ended

    def stop(self) -> int:
        """End the capture. Returns how many packets the kernel dropped before the capture could read them. Raises
        LaneError."""
        running = self._require()
        running.terminate(grace=_STOP_SECONDS)
        dropped = _DROPPED.findall(running.printed)
        if not dropped:
            raise LaneError(
                "captures-died",
                f"The capture at the {self.role} ended before its time.",
                printed=running.last_lines(3),
            )
        return int(dropped[0])

    def archive(self) -> Iterator[bytes]:
        """The folder with the capture, as tar. Raises LaneError without a capture."""
        return self._lane.engine.archive(self._require().container, CAPTURES)

    def _require(self) -> Supervised:
        if self._running is None:
            raise LaneError("no-lane", f"There is no capture at the {self.role}.")
        return self._running
