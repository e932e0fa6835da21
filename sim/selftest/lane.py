"""A lane for tests of the link: client, simulator and server are network namespaces, connected as the runner does it.

    client eth0 ------ eth0 simulator eth1 ------ eth0 server
    193.167.0.100   193.167.0.2  193.167.100.2   193.167.100.100

The simulator's eth0 has the server's MAC address and its eth1 the client's. A frame of the client to its gateway
therefore already has the right address on the server's side. The three namespaces have no other connection. Needs root.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

CLIENT_V4, CLIENT_V6 = "193.167.0.100", "fd00:cafe:cafe:0::100"
SERVER_V4, SERVER_V6 = "193.167.100.100", "fd00:cafe:cafe:100::100"
CLIENT_MAC, SERVER_MAC = "02:bb:00:00:00:01", "02:bb:00:00:00:02"
TRAFFIC = Path(__file__).with_name("traffic.py")
READY_TIMEOUT = 10.0  # s


def run(*command: str) -> str:
    """Runs a command to its end and returns its output. Raises an exception with its error text when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Lane:
    """Three namespaces and their wiring. With `image` they belong to holder containers, and the link is a container."""

    def __init__(self, *, folder: Path, program: Path | None = None, image: str | None = None) -> None:
        self.folder = folder
        self.program = program
        self.image = image
        self.name = f"bpsim{os.getpid()}"
        self.netns: dict[str, str] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> "Lane":
        try:
            for end in ("client", "sim", "server"):
                self.netns[end] = self._holder(end) if self.image else self._namespace(end)
            self._wire("client", "eth0", "eth0", CLIENT_MAC, SERVER_MAC)
            self._wire("server", "eth0", "eth1", SERVER_MAC, CLIENT_MAC)
            self._address("client", "eth0", "193.167.0.100/24", "fd00:cafe:cafe:0::100/64")
            self._address("sim", "eth0", "193.167.0.2/24", "fd00:cafe:cafe:0::2/64")
            self._address("sim", "eth1", "193.167.100.2/24", "fd00:cafe:cafe:100::2/64")
            self._address("server", "eth0", "193.167.100.100/24", "fd00:cafe:cafe:100::100/64")
            for end, v4, v6 in (
                ("client", "193.167.0.2", "fd00:cafe:cafe:0::2"),
                ("server", "193.167.100.2", "fd00:cafe:cafe:100::2"),
            ):
                self.inside(end, "ip", "route", "add", "193.167.0.0/16", "via", v4)
                self.inside(end, "ip", "-6", "route", "add", "fd00:cafe:cafe::/48", "via", v6)
                self.offload(end, on=False)
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def _namespace(self, end: str) -> str:
        name = f"{self.name}{end}"
        run("ip", "netns", "add", name)
        self._cleanup.callback(run, "ip", "netns", "del", name)
        path = f"/run/netns/{name}"
        self.netns[end] = path
        for setting in ("ipv4.conf.all.forwarding", "ipv6.conf.all.forwarding", "ipv6.conf.all.disable_ipv6"):
            self.sysctl(end, setting, 0)
        return path

    def _holder(self, end: str) -> str:
        settings = ("ipv4.ip_forward", "ipv6.conf.all.forwarding", "ipv6.conf.all.disable_ipv6")
        sysctls = [word for setting in settings for word in ("--sysctl", f"net.{setting}=0")]
        name = f"{self.name}{end}"
        run(
            "docker", "run", "-d", "--name", name, "--network", "none", *sysctls, "bentpipe/base:trixie", "sleep", "900"
        )
        self._cleanup.callback(run, "docker", "rm", "-f", name)
        pid = run("docker", "inspect", "-f", "{{.State.Pid}}", name).strip()
        return f"/proc/{pid}/ns/net"

    def _wire(self, end: str, interface: str, sim_interface: str, mac: str, sim_mac: str) -> None:
        run("ip", "link", "add", interface, "netns", self.netns[end], "address", mac,
            "type", "veth", "peer", "name", sim_interface, "netns", self.netns["sim"], "address", sim_mac)  # fmt: skip

    def _address(self, end: str, interface: str, v4: str, v6: str) -> None:
        self.sysctl(end, f"ipv6.conf.{interface}.accept_dad", 0)
        self.inside(end, "ip", "address", "add", v4, "dev", interface)
        self.inside(end, "ip", "address", "add", v6, "dev", interface, "nodad")
        self.inside(end, "ip", "link", "set", interface, "up")

    def sysctl(self, end: str, name: str, value: int) -> None:
        """Sets net.`name` in the namespace of an end."""
        path = "/proc/sys/net/" + name.replace(".", "/")
        self.inside(end, "sh", "-c", f"echo {value} > {path}")

    def offload(self, end: str, *, on: bool) -> None:
        """Switches the transmit offloads of an endpoint's eth0."""
        self.inside(end, "ethtool", "-K", "eth0", "tx", "on" if on else "off")

    def enter(self, end: str, *command: str) -> list[str]:
        """The command line that runs a command in the network namespace of an end."""
        return ["nsenter", f"--net={self.netns[end]}", *command]

    def inside(self, end: str, *command: str) -> str:
        """Runs a command in the network namespace of an end."""
        return run(*self.enter(end, *command))

    def traffic(self, end: str, *arguments: str) -> dict[str, Any]:
        """Runs traffic.py at an end and returns its result."""
        result: dict[str, Any] = json.loads(self.inside(end, sys.executable, str(TRAFFIC), *arguments))
        return result

    def start_traffic(self, end: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts traffic.py at an end. `finish` returns its result."""
        command = self.enter(end, sys.executable, str(TRAFFIC), *arguments)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def link(self, document: dict[str, Any]) -> "RunningLink":
        """Starts the link program on eth0 and eth1 and waits until the link is open. `document`: without the ends and
        files."""
        return RunningLink(self, document)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for a started traffic.py and returns its result."""
    output, _ = process.communicate(timeout=120)
    result: dict[str, Any] = json.loads(output)
    return result


class RunningLink:
    """A running link program. `stop` ends it and reads its truth."""

    def __init__(self, lane: Lane, document: dict[str, Any]) -> None:
        self._lane = lane
        self._truth = lane.folder / "truth.json"
        self._truth.unlink(missing_ok=True)
        self._container = f"{lane.name}link"
        self.stop_s = 0.0
        self.exit_code: int | None = None
        begin = time.monotonic()
        self._process = subprocess.Popen(self._command(document))
        try:
            self._wait_until_open()
        except BaseException:
            self._process.kill()
            raise
        self.ready_s = time.monotonic() - begin

    def _command(self, document: dict[str, Any]) -> list[str]:
        folder = "/truth" if self._lane.image else str(self._lane.folder)
        ends = {"left": {"interface": "eth0"}, "right": {"interface": "eth1"}}
        files = {"truth": f"{folder}/truth.json", "packets": f"{folder}/packets.bin"}
        text = json.dumps({**ends, **files, **document})
        if self._lane.image is None:
            return self._lane.enter("sim", str(self._lane.program), text)
        capabilities = [word for name in ("NET_RAW", "NET_ADMIN", "SYS_NICE") for word in ("--cap-add", name)]
        return ["docker", "run", "--rm", "--name", self._container, "--network", f"container:{self._lane.name}sim",
                "--cpu-shares", "262144", "--cap-drop", "ALL", *capabilities, "-v", f"{self._lane.folder}:/truth",
                "--security-opt", "no-new-privileges", self._lane.image, text]  # fmt: skip

    def _wait_until_open(self) -> None:
        connect = "import socket, sys; socket.create_connection((sys.argv[1], 57832), 1).close()"
        deadline = time.monotonic() + READY_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the link ended with exit code {self._process.returncode} before it was open")
            command = self._lane.enter("client", sys.executable, "-c", connect, "193.167.0.2")
            if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return
            time.sleep(0.02)
        raise RuntimeError("the link did not open within 10 s")

    def cpu_s(self) -> float:
        """CPU time used so far in seconds, user and system."""
        pid = str(self._process.pid)
        if self._lane.image is not None:
            pid = run("docker", "inspect", "-f", "{{.State.Pid}}", self._container).strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> dict[str, Any]:
        """Sends SIGTERM, waits, and returns the truth; sets `stop_s` and `exit_code`."""
        begin = time.monotonic()
        if self._lane.image is None:
            self._process.send_signal(signal.SIGTERM)
        else:
            run("docker", "kill", "--signal", "TERM", self._container)
        self.exit_code = self._process.wait(timeout=15)
        self.stop_s = time.monotonic() - begin
        truth: dict[str, Any] = json.loads(self._truth.read_text())
        return truth
