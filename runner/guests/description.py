"""What the first process of a guest is told: the world of one job as records (guest/init/job.c). Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runner.decode.flood import flood_limit
from runner.guests.disks import Disk
from runner.lanes.addresses import (
    CLIENT4,
    CLIENT6,
    CLIENT_HOSTS,
    LANE4,
    LANE6,
    LEFT4,
    LEFT6,
    READY_PORT,
    RIGHT4,
    RIGHT6,
    SERVER4,
    SERVER6,
    SERVER_HOSTS,
)
from runner.lanes.experiment import downloads_quota
from runner.lanes.holders import NAMESPACE_SETTINGS
from runner.lanes.lane_experiment import LAST_PACKETS
from runner.lanes.link_document import LOGS, link_document
from runner.lanes.request import EndpointSpec, LaneJob
from runner.lanes.wiring import CABLES, CLIENT, SERVER, SIM, Cable
from runner.units import MIB

COPY_BUDGET = 256 * MIB  # bytes of one folder that are copied out
_SNAPSHOT = 2048  # bytes of each packet, as in lanes
_SERVER_PORT = 443
_PRELOADED = "/.bentpipe/chance.so"  # guest/init/preload/chance.c
_SYSTEM = {"kernel.randomize_va_space": "0"}  # addresses of programs are no source of chance
_OWN = {CLIENT: (CLIENT4, CLIENT6), SERVER: (SERVER4, SERVER6)}
_HOSTS = {CLIENT: CLIENT_HOSTS, SERVER: SERVER_HOSTS}


class Description:
    """Records of one job, in the order in which they are added."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def add(self, name: str, *fields: object) -> None:
        """A record. Raises ValueError for a field with a NUL, which no variable or path of Linux can have."""
        texts = [name, str(len(fields)), *(str(field) for field in fields)]
        if any("\0" in text for text in texts):
            raise ValueError(f"a field of the record {name} has a NUL")
        self._words += texts

    def set(self, **numbers: float) -> None:
        """Numbers by name."""
        for name, number in numbers.items():
            self.add("set", name, f"{number:.9f}".rstrip("0").rstrip("."))

    def content(self) -> bytes:
        """The file that the guest reads."""
        return b"".join(word.encode(errors="surrogateescape") + b"\0" for word in self._words)

    def network(self, namespaces: Sequence[str], cables: Sequence[Cable]) -> None:
        """Namespaces with the settings that lanes have, and cables between them."""
        for setting in _SYSTEM.items():
            self.add("system", "=".join(setting))
        for role in namespaces:
            self.add("namespace", role, *("=".join(setting) for setting in NAMESPACE_SETTINGS.items()))
        for one, other in cables:
            ends = [(end.role, end.name, end.mac, end.ipv4, end.ipv6) for end in (one, other)]
            self.add("cable", *ends[0], *ends[1])

    def container(self, role: str, kind: str, spec: EndpointSpec, disk: Disk, logs: int) -> None:
        """An endpoint: its root, names, /logs of `logs` bytes, and its first process."""
        self.add("root", role, disk.path.name)
        self.add("tmpfs", role, LOGS, logs)
        hosts = [tuple(reversed(entry.split(":", 1))) for entry in _HOSTS.get(role, ())]
        named = [("127.0.0.1", "localhost"), ("::1", "localhost"), *((own, role) for own in _OWN.get(role, ())), *hosts]
        self.add("file", role, "/etc/hosts", "".join(f"{address}\t{name}\n" for address, name in named))
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
        """What runs in the root of `role`. `kind`: link, side, server or client."""
        texts = [f"{name}={value}" for name, value in sorted(variables.items())]
        self.add("process", role, kind, namespace, user, group, folder, len(texts), *texts, *command)

    def link(self, role: str, disk: Disk, document: dict[str, Any]) -> None:
        """A simulated link in the namespace `role`, and captures on both of its sides."""
        self.add("root", role, disk.path.name)
        self.add("bind", role, LOGS, f"out/{role}", "rw")
        self.process(role, "link", role, {}, [*disk.command, json.dumps(document, sort_keys=True)])
        for interface, name in (("eth0", "left"), ("eth1", "right")):
            self.add("capture", role, interface, f"{role}/{name}.pcap", _SNAPSHOT, READY_PORT)


def describe_pair(job: LaneJob, disks: Mapping[str, Disk], folder_of_disks: str) -> bytes:
    """The description of a job of a pair. `disks`: by role, `sim` included."""
    text = Description()
    limits, one_way_sum = job.limits, job.forward.delay + job.return_.delay
    text.add("disks", folder_of_disks)
    text.set(
        timeout=job.timeout,
        one_way_sum=one_way_sum,
        last_packets=job.return_.delay + LAST_PACKETS,
        ready_port=READY_PORT,
        threads=2 * limits.processes + 200,
        largest_file=limits.largest_file,
        largest_output=limits.output,
        copy_budget=COPY_BUDGET,
        paths=0,
    )
    text.network((CLIENT, SIM, SERVER), CABLES)
    for role, gateway4, gateway6 in ((CLIENT, LEFT4, LEFT6), (SERVER, RIGHT4, RIGHT6)):
        text.add("route", role, "add", LANE4, gateway4, "", "")
        text.add("route", role, "add", LANE6, gateway6, "", "")
    flood = flood_limit([file.size for file in job.files])
    document = link_document(forward=job.forward, return_=job.return_, seed=job.seed, path=job.path, flood=flood)
    text.link(SIM, disks[SIM], document)
    text.container(SERVER, "server", job.server, disks[SERVER], limits.logs)
    text.container(CLIENT, "client", job.client, disks[CLIENT], limits.logs)
    text.add("tmpfs", CLIENT, "/downloads", downloads_quota(job.files))
    text.add("bind", CLIENT, "/certs", "certs", "ro")
    text.add("bind", SERVER, "/certs", "certs", "ro")
    text.add("bind", SERVER, "/www", "www", "ro")
    if job.wait_for_server:
        text.add("ready", "quic", SERVER, SERVER4, _SERVER_PORT)
    return text.content()
