"""The simulator as the only path between a remote host and the server's host. In the tests it acts as a real link."""

import contextlib
import json
import subprocess

import docker
from docker.errors import DockerException
from docker.models.containers import Container

from lab.testbed.hosts import Host, offloads_off, run
from runner.images.images import SIMULATOR
from runner.model.link import LinkParameters, SegmentRecord
from runner.places.lane_job import READY_PORT, link_document
from runner.places.supervised import TOOLS
from runner.tests.links.nat import Nat

INTERFACE = "sat0"
_NAMESPACE = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv4.ip_forward": "0"}
_CLIENT_MAC, _SERVER_MAC = "02:bc:00:00:{:02x}:01", "02:bc:00:00:{:02x}:02"
_READY_SECONDS = 10


class Satellite:
    """A link from `client` to `server`; None means this host. The client has the address 10.214.N.100, the server
    10.215.N.100."""

    def __init__(self, client: Host | Nat, server: Host | None, number: int) -> None:
        self.client, self.server, self.number = client, server, number
        self.client_address, self.server_address = f"10.214.{number}.100", f"10.215.{number}.100"
        self._engine = docker.from_env()
        self._ours = f"{client.name}s"
        self._keeper: Container | None = None
        self._simulator: Container | None = None
        self._pid = ""

    def open(self, forward: LinkParameters, return_: LinkParameters, *, seed: int = 1) -> "Satellite":
        """Wire the two hosts to the simulator, and start it."""
        self._keeper = self._engine.containers.run(
            TOOLS,
            ["sleep", "infinity"],
            name=f"{self.client.name}-link",
            detach=True,
            network_mode="none",
            sysctls=_NAMESPACE,
        )
        self._keeper.reload()
        self._pid = pid = str(self._keeper.attrs["State"]["Pid"])
        near, far = _CLIENT_MAC.format(self.number), _SERVER_MAC.format(self.number)
        left = ("peer", "name", "eth0", "netns", pid, "address", far)
        right = ("peer", "name", "eth1", "netns", pid, "address", near)
        end = self.server.name if self.server else ""
        name = INTERFACE if self.server else self._ours
        run("ip", "-n", self.client.name, "link", "add", INTERFACE, "address", near, "type", "veth", *left)
        run("ip", *(("-n", end) if end else ()), "link", "add", name, "address", far, "type", "veth", *right)
        self._address(self.client.name, INTERFACE, f"10.214.{self.number}", f"10.215.{self.number}")
        self._address(end, name, f"10.215.{self.number}", f"10.214.{self.number}")
        for interface, net in (("eth0", 214), ("eth1", 215)):
            for words in (f"address add 10.{net}.{self.number}.2/24 dev {interface}", f"link set {interface} up"):
                run("nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words.split())
        self.start(forward, return_, seed=seed)
        return self

    @staticmethod
    def _address(namespace: str, interface: str, network: str, peer: str) -> None:
        inside = (f"--net=/run/netns/{namespace}",) if namespace else ("--net=/proc/self/ns/net",)
        offloads_off(interface, inside=("nsenter", *inside))
        for command in (
            f"address add {network}.100/24 dev {interface}",
            f"link set {interface} up",
            f"route add {peer}.0/24 via {network}.2 dev {interface}",
        ):
            run("nsenter", *inside, "ip", *command.split())

    def start(self, forward: LinkParameters, return_: LinkParameters, *, seed: int = 1) -> None:
        """Start the simulator, so that packets pass."""
        assert self._keeper is not None, "open() comes first"
        self._simulator = self._engine.containers.run(
            SIMULATOR,
            [json.dumps(link_document(SegmentRecord(forward=forward, return_=return_), seed=seed))],
            name=f"{self.client.name}-sim",
            detach=True,
            network_mode=f"container:{self._keeper.id}",
            tmpfs={"/logs": ""},
            cap_add=["NET_ADMIN", "SYS_NICE"],
            cpu_shares=262144,
        )
        open_port = f"until (: <> /dev/tcp/127.0.0.1/{READY_PORT}) 2> /dev/null; do sleep 0.1; done"
        run("nsenter", f"--net=/proc/{self._pid}/ns/net", "timeout", str(_READY_SECONDS), "bash", "-c", open_port)

    def stop(self) -> None:
        """Stop the simulator, so that no packet passes."""
        if self._simulator is not None:
            self._simulator.remove(force=True)
            self._simulator = None

    def close(self) -> None:
        """Remove simulator and wires."""
        for container in (self._simulator, self._keeper):
            if container is not None:
                with contextlib.suppress(DockerException):
                    container.remove(force=True)
        # The other end of the wire vanishes some time after the keeper; a next link of this name would still find it.
        end = self.server.name if self.server else ""
        name = INTERFACE if self.server else self._ours
        subprocess.run(["ip", *(("-n", end) if end else ()), "link", "del", name], capture_output=True, check=False)
