"""Describes a job for the first process of a guest, as records (guest/init/job.c). No input or output."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner.guests.disks import Disk
from runner.lanes.addresses import (
    CLIENT4,
    CLIENT6,
    CLIENT_HOSTS,
    READY_PORT,
    SERVER4,
    SERVER6,
    SERVER_HOSTS,
    hosts_file,
)
from runner.lanes.experiment import downloads_quota
from runner.lanes.holders import NAMESPACE_SETTINGS, ROUTER_SETTINGS
from runner.lanes.lane_experiment import DISCARD, LAST_PACKETS
from runner.lanes.link_document import LOGS, link_documents
from runner.lanes.network import GATEWAY4, cables, routes
from runner.lanes.request import EndpointSpec, LaneJob
from runner.lanes.wiring import Cable, Route
from runner.model.topology import CLIENT, GATEWAY, SERVER, TERMINAL
from runner.units import MIB

COPY_BUDGET = 256 * MIB  # most bytes of a folder that are copied out of the guest
_SNAPSHOT = 2048  # captured bytes of each packet, the same as in lanes
_SERVER_PORT = 443
_PRELOADED = "/.bentpipe/chance.so"  # guest/init/preload/chance.c
_SYSTEM = {"kernel.randomize_va_space": "0"}  # memory addresses of programs must not be random
_OWN = {CLIENT: (CLIENT4, CLIENT6), SERVER: (SERVER4, SERVER6)}
_HOSTS = {CLIENT: CLIENT_HOSTS, SERVER: SERVER_HOSTS}
_TUN = ("/dev/net/tun", 10, 200)  # path, major and minor number


class Description:
    """Records of one job, in the order in which they are added."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def add(self, name: str, *fields: object) -> None:
        """Add a record. Raises ValueError for a field with a NUL: no variable or path of Linux can contain it."""
        texts = [name, str(len(fields)), *(str(field) for field in fields)]
        if any("\0" in text for text in texts):
            raise ValueError(f"a field of the record {name} has a NUL")
        self._words += texts

    def set(self, **numbers: float) -> None:
        """Add numbers by name."""
        for name, number in numbers.items():
            self.add("set", name, f"{number:.9f}".rstrip("0").rstrip("."))

    def content(self) -> bytes:
        """The file that the guest reads."""
        return b"".join(word.encode(errors="surrogateescape") + b"\0" for word in self._words)

    def network(
        self, namespaces: Sequence[str], between: Sequence[Cable], routes: Mapping[str, Sequence[Route]]
    ) -> None:
        """Add namespaces with the settings of lanes, the cables between them, and the routes of each role."""
        for setting in _SYSTEM.items():
            self.add("system", "=".join(setting))
        for role in namespaces:
            settings = ROUTER_SETTINGS if role in (TERMINAL, GATEWAY) else NAMESPACE_SETTINGS
            self.add("namespace", role, *("=".join(setting) for setting in settings.items()))
        for near, other in between:
            ends = [(end.role, end.name, end.mac, end.ipv4, end.ipv6) for end in (near, other)]
            self.add("cable", *ends[0], *ends[1])
        for role, routes_of_role in routes.items():
            for route in routes_of_role:
                how = "add" if route.gateway else "change"
                self.add("route", role, how, route.network, route.gateway, route.interface, route.controller)

    def container(self, role: str, kind: str, spec: EndpointSpec, disk: Disk, logs: int) -> None:
        """Add an endpoint: its root, host names, /logs of `logs` bytes, and its first process."""
        self.add("root", role, disk.path.name)
        self.add("tmpfs", role, LOGS, logs)
        own = (f"{role}:{address}" for address in _OWN.get(role, ()))
        self.add("file", role, "/etc/hosts", hosts_file((*own, *_HOSTS.get(role, ()))))
        self.add("file", role, "/etc/hostname", f"{role}\n")
        self.add("file", role, "/etc/resolv.conf", "")
        entry = list(spec.entrypoint) if spec.entrypoint is not None else disk.command
        variables = {"LD_PRELOAD": _PRELOADED, **disk.environment, "HOSTNAME": role, **spec.environment, "ROLE": role}
        self.process(role, kind, role, variables, entry, user=disk.user, group=disk.group, folder=disk.folder)

    def process(
        self,
        role: str,
        kind: str,
        namespace: str,
        variables: Mapping[str, str],
        command: Sequence[str],
        *,
        user: int = 0,
        group: int = 0,
        folder: str = "/",
    ) -> None:
        """Add a process, which sees the root of `role`. `kind`: link, box, server or client."""
        texts = [f"{name}={value}" for name, value in sorted(variables.items())]
        self.add("process", role, kind, namespace, user, group, folder, len(texts), *texts, *command)

    def link(self, role: str, disk: Disk, document: dict[str, Any]) -> None:
        """Add a simulated link in the namespace `role`, and captures at both ends."""
        self.add("root", role, disk.path.name)
        self.add("bind", role, LOGS, f"out/{role}", "rw")
        self.process(role, "link", role, {}, [*disk.command, json.dumps(document, sort_keys=True)])
        self.capture(role, "eth0", "left", foreign=document["left"]["foreign"])
        self.capture(role, "eth1", "right", foreign=document["right"]["foreign"])

    def capture(self, role: str, interface: str, name: str, *, foreign: Sequence[str] = ()) -> None:
        """Add a capture at an interface in the namespace of `role`, without incoming packets from the subnets
        `foreign`."""
        self.add("capture", role, interface, f"{role}/{name}.pcap", _SNAPSHOT, READY_PORT, *foreign)


def describe_job(job: LaneJob, disks: Mapping[str, Disk], folder_of_disks: str) -> bytes:
    """The description of a job. `disks`: by role, also for segments and boxes."""
    text = Description()
    text.add("disks", folder_of_disks)
    _describe_limits(text, job)
    topology = job.topology
    nodes = (*topology.nodes, *topology.segments)
    text.network(nodes, cables(topology.hops), routes(topology.hops, job.controllers))
    for role, document in link_documents(job).items():
        text.link(role, disks[role], document)
    for role in topology.captured_endpoints:
        text.capture(role, "eth0", role)
    if topology.routed:
        text.add("listen", TERMINAL, READY_PORT)  # with boxes, the terminal box is the `sim` of the contract
        if job.forward.impairments.changes:
            text.add("first-packet", TERMINAL, GATEWAY4, DISCARD)
    _describe_containers(text, job, disks)
    if job.wait_for_server and job.server_port is None:
        text.add("ready", "quic", SERVER, SERVER4, _SERVER_PORT)
    elif job.wait_for_server:
        text.add("ready", "tcp", SERVER, "", job.server_port)
    return text.content()


def _describe_limits(text: Description, job: LaneJob) -> None:
    limits, both = job.limits, job.topology.link.end_to_end
    text.set(
        timeout=job.timeout,
        one_way_sum=both.forward.delay + both.return_.delay,
        last_packets=both.return_.delay + LAST_PACKETS,
        ready_port=READY_PORT,
        threads=(2 + len(job.boxes)) * limits.processes + 200,
        largest_file=limits.largest_file,
        largest_output=limits.output,
        copy_budget=COPY_BUDGET,
        own_server=job.own_server,
    )


def _describe_containers(text: Description, job: LaneJob, disks: Mapping[str, Disk]) -> None:
    """Add server, client and boxes, with the volumes of lanes."""
    logs = job.limits.logs
    text.container(SERVER, "server", job.server, disks[SERVER], logs)
    text.container(CLIENT, "client", job.client, disks[CLIENT], logs)
    text.add("tmpfs", CLIENT, "/downloads", downloads_quota(job.required_files))
    text.add("bind", CLIENT, "/certs", "certs", "ro")
    text.add("bind", SERVER, "/certs", "certs", "ro")
    text.add("bind", SERVER, "/www", "www", "ro")
    for role, spec in job.boxes.items():
        text.container(role.value, "box", spec, disks[role.value], logs)
        text.add("device", role.value, *_TUN)
        text.add("bind", role.value, "/keys", "keys", "ro")
        if job.topology.poses_as_server:
            text.add("bind", role.value, "/certs", "certs", "ro")
