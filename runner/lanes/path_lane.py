"""The lane of a path: six wired namespaces, two simulated links, captures on both of them and at the client."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor

from runner.engine.containers import ContainerSpec, Engine
from runner.errors import LaneError
from runner.lanes import holders
from runner.lanes.holders import CAPTURE_LIMIT, CAPTURES, LINK_MEMORY, TOOLS, bounded
from runner.lanes.lane_base import LaneBase
from runner.lanes.path_wiring import GATEWAY, GROUND, SATELLITE, TERMINAL, path_wiring_script
from runner.lanes.supervised import Bell, Supervised
from runner.lanes.wiring import CLIENT, SERVER
from runner.model.path import SIDES, Side
from runner.units import MIB

CLIENT_CAPTURE = "client.pcap"
_CAPTURE_OUTPUT = MIB
READY_FILE = "/logs/ready"
_HEADERS = 128  # bytes of each packet at the client: addresses, ports, sequence numbers
_STOP_SECONDS = 10.0
_READY_LOOK = 1.0  # s that one command in a holder may wait
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)


class PathLane(LaneBase):
    """`controllers`: TCP's congestion controller by role."""

    def __init__(
        self,
        engine: Engine,
        pool: Executor,
        bell: Bell,
        *,
        name: str,
        controllers: Mapping[str, str],
        logs: int,
        downloads: int,
    ) -> None:
        super().__init__(
            engine,
            pool,
            bell,
            name=name,
            roles=(CLIENT, TERMINAL, GATEWAY, SERVER),
            segments=(SATELLITE, GROUND),
            logs=logs,
            downloads=downloads,
        )
        self._controllers = controllers
        self._client_capture: Supervised | None = None

    def _holder(self, role: str) -> ContainerSpec:
        return holders.path_holder(role, self.volumes(role), forwards=role in SIDES)

    def _script(self, pids: dict[str, int]) -> str:
        return path_wiring_script(pids, self._controllers)

    def capture_client(self) -> None:
        """Capture headers at the client; return when the capture listens."""
        command = (
            f"mkdir -p {CAPTURES}; exec tcpdump -Z root -n -i eth0 --immediate-mode -s {_HEADERS} -B 16384 "
            f"--time-stamp-precision=nano -w {CAPTURES}/{CLIENT_CAPTURE}"
        )
        spec = ContainerSpec(
            image=TOOLS,
            role="client-capture",
            command=("sh", "-c", command),
            host={
                "network_mode": self.namespace(CLIENT),
                "cap_drop": ["ALL"],
                "cap_add": ["NET_RAW", "SETUID", "SETGID"],  # what `tcpdump -Z root` needs
                "security_opt": ["no-new-privileges"],
                "pids_limit": 64,
                **bounded(LINK_MEMORY),
                "ulimits": [{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        capture = self._client_capture = self.supervise(self.create(spec), output_limit=_CAPTURE_OUTPUT)
        capture.start()
        self.bell.wait(lambda: "listening on eth0" in capture.printed or capture.ended, timeout=_STOP_SECONDS)
        if capture.ended or "listening on eth0" not in capture.printed:
            raise LaneError("no-client-capture", "The client's capture did not begin.", printed=capture.last_lines(3))

    def stop_captures(self) -> int:
        capture = self._client_capture
        if capture is None:
            raise LaneError("no-lane", "There is no capture at the client.")
        capture.terminate(grace=_STOP_SECONDS)
        dropped = _DROPPED.findall(capture.printed)
        if not dropped:
            raise LaneError(
                "captures-died", "The client's capture ended before its time.", printed=capture.last_lines(3)
            )
        return int(dropped[0]) + super().stop_captures()

    def client_capture(self) -> Iterator[bytes]:
        """The folder with the client's capture as tar. Raises LaneError without one."""
        if self._client_capture is None:
            raise LaneError("no-lane", "There is no capture at the client.")
        return self.engine.archive(self._client_capture.container, CAPTURES)

    def path_ready(self, side: Side) -> bool:
        """Whether this side of the path has said that it is ready; takes a second when it hasn't."""
        rounds = round(_READY_LOOK / 0.05)
        loop = f"for _ in $(seq {rounds}); do [ -e {READY_FILE} ] && exit 0; sleep 0.05; done; exit 1"
        return self.execute(side.value, ["sh", "-c", loop])[0] == 0

    @property
    def link_died(self) -> bool:
        capture = self._client_capture
        return super().link_died or (capture is not None and capture.ended)
