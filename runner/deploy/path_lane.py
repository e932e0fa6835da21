"""The lane of a path: six wired namespaces, two simulated links, captures on both of them and at the client."""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor

from runner.deploy import holders
from runner.deploy.containers import ContainerSpec, Engine, Volume
from runner.deploy.holders import CAPTURE_LIMIT, CAPTURES, TOOLS
from runner.deploy.lane_base import LaneBase, together
from runner.deploy.path_wiring import CLIENT, GATEWAY, GROUND, SATELLITE, SERVER, TERMINAL, path_wiring_script
from runner.deploy.segment import HOLDER_OUTPUT, Segment
from runner.deploy.supervised import Bell, Supervised
from runner.errors import LaneError
from runner.model.path import SIDES, Side

CLIENT_CAPTURE = "client.pcap"
READY_FILE = "/logs/ready"
_HEADERS = 128  # bytes of each packet at the client: addresses, ports, sequence numbers
_STOP_SECONDS = 10.0
_READY_LOOK = 1.0  # s that one command in a holder may wait
_LISTENS = re.compile(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) 0+:0000 0A ", re.MULTILINE)  # of /proc/net/tcp
_DROPPED = re.compile(r"^(\d+) packets? dropped by kernel", re.MULTILINE)


class PathLane(LaneBase):
    """`controllers`: TCP's congestion controller by role. Quotas in bytes."""

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
        super().__init__(engine, pool, bell, name=name)
        self.logs_quota, self.downloads_quota = logs, downloads
        self.satellite = Segment(self, role=SATELLITE)
        self.ground = Segment(self, role=GROUND)
        self.logs = {
            role: Volume(name=f"{name}-{role}-logs", path="/logs") for role in (CLIENT, TERMINAL, GATEWAY, SERVER)
        }
        self.downloads = Volume(name=f"{name}-downloads", path="/downloads")
        self._controllers = controllers
        self._client_capture: Supervised | None = None

    def _hold_all(self) -> None:
        self.engine.create_volume(self.downloads.name, role=CLIENT, quota=self.downloads_quota)
        together(
            self.pool,
            *(lambda role=role: self._hold_role(role) for role in self.logs),
            self.satellite.hold,
            self.ground.hold,
        )

    def _hold_role(self, role: str) -> None:
        self.engine.create_volume(self.logs[role].name, role=role, quota=self.logs_quota)
        volumes = (self.logs[role], self.downloads) if role == CLIENT else (self.logs[role],)
        spec = holders.path_holder(role, volumes, forwards=role in SIDES)
        self.engine.start(self.hold(role, spec))

    def _script(self, pids: dict[str, int]) -> str:
        return path_wiring_script(pids, self._controllers)

    def _volumes(self) -> list[str]:
        every = (*self.logs.values(), self.downloads, self.satellite.volume, self.ground.volume)
        return [volume.name for volume in every]

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
                "ulimits": [{"Name": "fsize", "Soft": CAPTURE_LIMIT, "Hard": CAPTURE_LIMIT}],
                "log_config": {"Type": "none", "Config": {}},
            },
        )
        capture = self._client_capture = self.supervise(self.create(spec), output_limit=HOLDER_OUTPUT)
        capture.start()
        self.bell.wait(lambda: "listening on eth0" in capture.printed or capture.ended, timeout=_STOP_SECONDS)
        if capture.ended or "listening on eth0" not in capture.printed:
            raise LaneError("no-client-capture", f"The client's capture did not begin: {capture.last_lines(3)}")

    def stop_captures(self) -> int:
        """End all captures. Returns how many packets the kernel dropped before them."""
        capture = self._client_capture
        if capture is None:
            raise LaneError("no-lane", "There is no capture at the client.")
        capture.terminate(grace=_STOP_SECONDS)
        dropped = _DROPPED.findall(capture.printed)
        if not dropped:
            raise LaneError("captures-died", f"The client's capture ended before its time: {capture.last_lines(3)}")
        return int(dropped[0]) + self.satellite.stop_captures() + self.ground.stop_captures()

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

    def listens(self, role: str, port: int) -> bool:
        """Whether somebody in the namespace of `role` accepts TCP on `port`."""
        _, table = self.execute(role, ["cat", "/proc/net/tcp", "/proc/net/tcp6"])
        return any(int(found, 16) == port for found in _LISTENS.findall(table))

    @property
    def link_died(self) -> bool:
        """Whether a simulator or a capture ended although nobody asked it to."""
        capture = self._client_capture
        return self.satellite.died or self.ground.died or (capture is not None and capture.ended)

    def link_output(self) -> str:
        """What both simulators and their captures printed."""
        return self.satellite.output() + self.ground.output()
