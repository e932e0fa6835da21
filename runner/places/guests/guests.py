"""Guests, in virtual time: one guest for each job, from its description (guest/init/job.c) to the same evidence that a
lane writes."""

import hashlib
import itertools
import json
import math
import os
import queue
import re
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.engine.containers import LABEL_LANES, ContainerState, Engine, Output
from runner.engine.engine import connect, labels_of, remove_own, sweep
from runner.errors import LaneError
from runner.files import locked_folder, own_folder, remove_abandoned
from runner.images.images import SIMULATOR
from runner.images.pulling import SavedImages
from runner.inputs.inputs import certificates, path_keys
from runner.model.link import CLIENT, GATEWAY, SERVER, TERMINAL
from runner.model.result import Evidence, GuestEvidence
from runner.model.run import Run
from runner.places.experiment import Endpoint, Experiment, downloads_quota
from runner.places.guests.processes import (
    IMAGE,
    LATE,
    ContainerLauncher,
    Disk,
    Disks,
    ImageDisks,
    Images,
    Launcher,
    open_launcher,
    require_memory,
)
from runner.places.lane_job import (
    CLIENT4,
    CLIENT6,
    CLIENT_HOSTS,
    GATEWAY4,
    LOGS,
    PACKETS,
    READY_PORT,
    SERVER4,
    SERVER6,
    SERVER_HOSTS,
    TRUTH,
    Cable,
    EndpointSpec,
    LaneJob,
    Route,
    cables,
    hosts_file,
    link_documents,
    routes,
)
from runner.places.lanes.lane import unconnected_ports
from runner.places.lanes.lanes import DISCARD, LAST_PACKETS
from runner.places.supervised import NAMESPACE_SETTINGS, ROUTER_SETTINGS, start_watchdog
from runner.store.collect import Expected
from runner.store.runs import save_evidence
from runner.units import MIB

# Parses the reports about a guest, which a hostile guest may have written: that of its first process, lines with a
# word and values, and that of run-guest. No input or output.

_CODE = re.compile(r"[a-z0-9-]{1,40}")
_LONGEST = 500  # characters of a message or name
_ROLES = ("client", "server")
_WORK = ("syscalls", "faults", "cpu_s")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a guest ended (guest/run-guest): ended, spins, hangs, late, stopped, memory, panic, died. Times in
    seconds."""

    how: str
    exit_code: int  # of the guest's kernel; negative: the signal that ended it
    host_s: float
    cpu_s: float
    virtual_s: float
    spinner: str = ""  # role and name of the process that spins
    spin_s: float = 0.0  # CPU time in which it did
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by role: syscalls, faults, cpu_s
    least_s: float = 0.0  # shortest time in user code, in seconds; 0 without charges


def read_ended(about: Mapping[str, Any]) -> Ended:
    """Check the JSON object of run-guest. Values of other types count as missing."""
    spinner, work = about.get("spinner"), about.get("work")
    spinner, work = spinner if isinstance(spinner, dict) else {}, work if isinstance(work, dict) else {}
    return Ended(
        how=_text(about.get("how")),
        exit_code=int(_number(about.get("exit_code"))),
        host_s=_number(about.get("host_s")),
        cpu_s=_number(about.get("cpu_s")),
        virtual_s=_number(about.get("virtual_s")),
        spinner=f"{_text(spinner.get('name'))} of the {_text(spinner.get('role')) or 'guest'}",
        spin_s=_number(spinner.get("cpu_s")),
        work={
            role: {name: _number(counts.get(name)) for name in _WORK}
            for role in _ROLES
            if isinstance(counts := work.get(role), dict)
        },
        least_s=_number(about.get("least_s")),
    )


def _number(value: object) -> float:
    usable = isinstance(value, int | float) and abs(value) < 1e15
    return value if usable else 0.0  # type: ignore[return-value]


def _text(value: object) -> str:
    text = value[:_LONGEST] if isinstance(value, str) else ""
    return text if text.isprintable() else ascii(text)


@dataclass(kw_only=True)
class ProcessReport:
    """The report about the first process of one container. Times in seconds of virtual time since 1970."""

    started: bool = False
    ended: bool = False
    code: int = 0
    began: float = 0.0
    end: float = 0.0
    stopped: bool = False
    timed_out: bool = False
    flooded: bool = False
    printed: int = 0


@dataclass(kw_only=True)
class GuestReport:
    """The whole report. It is incomplete when the guest was ended from outside."""

    began: float = 0.0
    done: float | None = None
    ready: bool | None = None
    flooded: bool = False
    transfer: float = 0.0
    oom_kills: int = 0
    memory_left: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # number of packets, by capture
    stages: dict[str, float] = field(default_factory=dict)
    processes: dict[str, ProcessReport] = field(default_factory=dict)
    error: dict[str, str] = field(default_factory=dict)
    error_role: str = ""  # role whose last lines of output explain the error; `-`: none


def read_report(text: str) -> GuestReport:
    """Parse the lines of a report. Unknown and broken lines are ignored."""
    report = GuestReport()
    for line in text.splitlines():
        with suppress(ValueError, KeyError):
            _read_line(report, line)
    return report


def _read_line(report: GuestReport, line: str) -> None:
    word, _, rest = line.partition(" ")
    first, _, more = rest.partition(" ")
    if word in ("began", "done", "transfer"):
        setattr(report, word, _finite(first))
    elif word in ("oom_kills", "memory_left"):
        setattr(report, word, int(_finite(first)))
    elif word in ("ready", "flooded"):
        setattr(report, word, first == "1")
    elif word == "stage":
        report.stages[_text(first.replace("-", " "))] = _finite(more)
    elif word == "dropped":
        report.dropped[first] = int(_finite(more))
    elif word == "process":
        report.processes[first] = _process(more)
    elif word == "error" and not report.error and _CODE.fullmatch(first):
        role, _, message = more.partition(" ")
        report.error, report.error_role = {"code": first, "message": _text(message)}, role


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _process(text: str) -> ProcessReport:
    values = dict(part.split("=", 1) for part in text.split())
    flags = {name: values[name] == "1" for name in ("started", "ended", "stopped", "timed_out", "flooded")}
    return ProcessReport(
        **flags,
        code=int(_finite(values["code"])),
        printed=int(_finite(values["printed"])),
        began=_finite(values["began"]),
        end=_finite(values["end"]),
    )


# Describes a job for the first process of a guest, as records (guest/init/job.c). No input or output.

COPY_BUDGET = 256 * MIB  # most bytes of a folder that are copied out of the guest
_SNAPSHOT = 2048  # captured bytes of each packet, the same as in lanes
_SERVER_PORT = 443
_PRELOADED = "/.bentpipe/chance.so"  # guest/init/preload/chance.c
_SYSTEM = {"kernel.randomize_va_space": "0"}  # memory addresses of programs must not be random
_OWN = {CLIENT: (CLIENT4, CLIENT6), SERVER: (SERVER4, SERVER6)}
_HOSTS = {CLIENT: CLIENT_HOSTS, SERVER: SERVER_HOSTS}
_TUN = ("/dev/net/tun", 10, 200)  # path, major and minor number


_DOCUMENT = "/parameters.json"


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
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        self.add("file", role, _DOCUMENT, text)
        self.process(role, "link", role, {}, [*disk.command, f"@{_DOCUMENT}"])
        self.capture(role, "eth0", "left", foreign=document["left"]["foreign"])
        self.capture(role, "eth1", "right", foreign=document["right"]["foreign"])

    def capture(self, role: str, interface: str, name: str, *, foreign: Sequence[str] = ()) -> None:
        """Add a capture at an interface in the namespace of `role`, without incoming packets from the subnets
        `foreign`."""
        self.add("capture", role, interface, f"{role}/{name}.pcap", _SNAPSHOT, READY_PORT, *foreign)


def describe_job(job: LaneJob, disks: Mapping[str, Disk], folder_of_disks: str, *, noise: float = 0.0) -> bytes:
    """The description of a job. `disks`: by role, also for segments and boxes. `noise`: seconds, as in `Setting`."""
    text = Description()
    text.add("disks", folder_of_disks)
    _describe_limits(text, job)
    topology = job.topology
    nodes = (*topology.nodes, *topology.segments)
    text.network(nodes, cables(topology.hops), routes(topology.hops, job.controllers))
    for role, document in link_documents(job, noise=noise).items():
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
    text.add("tmpfs", job.sender.peer.value, "/downloads", downloads_quota(job.required_files))
    text.add("bind", CLIENT, "/certs", "certs", "ro")
    text.add("bind", SERVER, "/certs", "certs", "ro")
    text.add("bind", job.sender.value, "/www", "www", "ro")
    for role, spec in job.boxes.items():
        text.container(role.value, "box", spec, disks[role.value], logs)
        text.add("device", role.value, *_TUN)
        text.add("bind", role.value, "/keys", "keys", "ro")
        if job.topology.poses_as_server:
            text.add("bind", role.value, "/certs", "certs", "ro")


# One job in one guest, from its description to the same evidence that a lane writes.

_MEMORY, _OWN_MEMORY = 1024, 192  # MiB: the most memory, and the part for kernel and link
_KILLED = 137
_NOT_STARTED = 125
_BLOCK = 1 << 20
_RESULT_BUDGET = 2048 * MIB  # most bytes that come out of a guest
_LARGEST_TEXT = 4 * MIB
_LINK_FILES = ("left.pcap", "right.pcap", TRUTH, PACKETS)
_LINES = 3  # lines of a process' output in an error message
_HOW = {
    "hangs": ("guest-hangs", "The guest did nothing, and its clock stood still."),
    "late": ("guest-late", "The guest was still running when its time on this host was over."),
    "memory": ("guest-memory", "This host had no memory left for the guest."),
    "panic": ("guest-panic", "The guest's kernel panicked."),
    "died": ("guest-died", "The guest's kernel ended before its job did (exit code {code})."),
    "stopped": ("stopped", "The run was stopped while this job ran."),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of all guests of a run. `epoch` in seconds since 1970. `charge`: see guest.h; empty: CPU work
    takes no time. `noise`: each segment delays each packet by a random time from 0 to this many seconds."""

    epoch: int
    charge: str = ""
    noise: float = 0.0
    spin_cpu_s: float = 60.0  # most CPU seconds with less than 5 ms of virtual time for each
    # Most CPU seconds of the guest's kernel, and for each MiB of the case's files. A slow stack took 70 s for 10 MiB.
    kernel_cpu_s: float = 300.0
    kernel_cpu_s_per_mib: float = 30.0
    silence_s: float = 120.0  # most seconds of this host without progress of virtual time or CPU time
    host_s: float = 3600.0  # most seconds of this host for the whole job
    memory: int = _MEMORY * MIB  # most bytes of memory, without /logs and /downloads

    @classmethod
    def of(cls, run: Run) -> "Setting":
        """The setting in the record of a run in virtual time."""
        guest = run.guest
        return cls(epoch=int(guest["epoch"]), charge=guest.get("charge", ""), noise=float(guest.get("noise", 0)))


class GuestExperiment(Experiment):
    """A job. `run` is called once."""

    def __init__(
        self, job: LaneJob, launcher: Launcher, disks: Disks, setting: Setting, work: Path, *, cpu: int
    ) -> None:
        super().__init__(job)
        self._launcher = launcher
        self._disks = disks
        self._setting = setting
        self._work = work
        self._cpu = cpu
        self._segments = tuple(job.topology.segments)
        boxes = {role.value: spec for role, spec in job.boxes.items()}
        self._specs: dict[str, EndpointSpec] = {CLIENT: job.client, SERVER: job.server, **boxes}
        self._captured = (*self._segments, *job.topology.captured_endpoints)

    def _links(self) -> Sequence[str]:
        return self._segments

    def run(self) -> Evidence:
        """Run the job and write its folder, `evidence.json` last. Raises LaneError when the harness can't run it."""
        disks = {role: self._disks.of(SIMULATOR, role) for role in self._segments}
        disks |= {role: self._disks.of(spec.pinned, role) for role, spec in self._specs.items()}
        used = sorted({disk.path for disk in disks.values()})
        try:
            about = self._launcher.run(
                "guest",
                self._given(disks),
                self._work,
                budget=_RESULT_BUDGET,
                seconds=self._setting.host_s + LATE,
                disks=used,
                cpu_s=self._kernel_cpu_s(),
            )
            report = read_report(_text_of(self._work / "out" / "report"))
            evidence = self._collect(disks, read_ended(about), report)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        save_evidence(self._artifacts, evidence)
        return evidence

    def _kernel_cpu_s(self) -> int | None:
        """The most CPU seconds of the guest's kernel. None where the endpoints' files don't tell how much is sent."""
        if self._job.flood is None:
            return None
        size = sum(file.size for file in self._job.files)
        return round(self._setting.kernel_cpu_s + self._setting.kernel_cpu_s_per_mib * size / MIB)

    def _given(self, disks: Mapping[str, Disk]) -> Iterator[tuple[str, bytes]]:
        """The files that the guest gets, by name. A name that ends with `/` is a folder."""
        job, setting = self._job, self._setting
        quotas = len(self._specs) * job.limits.logs + downloads_quota(job.required_files)
        description = {
            "seed": job.seed,
            "epoch_s": setting.epoch,
            "memory_mib": min(setting.memory, job.limits.memory + _OWN_MEMORY * MIB) // MIB + quotas // MIB,
            "charge": setting.charge,
            "cpu": self._cpu,
            "spin_cpu_s": setting.spin_cpu_s,
            "silence_s": setting.silence_s,
            "host_s": setting.host_s,
        }
        yield "guest.json", json.dumps(description).encode()
        folder = self._launcher.folder_of_disks(self._disks.folder)
        yield "job", describe_job(job, disks, folder, noise=setting.noise)
        yield from ((f"out/{role}/", b"") for role in self._captured)
        made = certificates(chain_length=job.chain_length, seed=job.seed, now=setting.epoch)
        self._fingerprints = made.fingerprints
        keys = path_keys(seed=job.seed, now=setting.epoch) if job.boxes else {}
        yield from ((f"certs/{name}", content) for name, content in made.files().items())
        yield from ((f"keys/{name}", content) for name, content in keys.items())
        yield "www/", b""
        yield from ((f"www/{file.name}", file.content()) for file in job.files)

    def _collect(self, disks: Mapping[str, Disk], ended: Ended, report: GuestReport) -> Evidence:
        folder, out = self._job.folder, self._work / "out"
        self._make_folders()
        self._write_outputs()
        for role in self._captured:
            for name in (*_LINK_FILES, f"{role}.pcap"):  # a hostile guest may have left other files
                if (out / role / name).is_file():
                    (out / role / name).rename(folder / role / name)
        captures = {CLIENT: self._artifacts.client_capture, SERVER: self._artifacts.server_capture}
        hashes = {role: _hash(path) for role, path in captures.items() if path.is_file()}
        self._error = self._error_of(ended, report)
        if (self._work / "console").is_file():
            (self._work / "console").rename(folder / self._segments[0] / "console.log")
        for endpoint in self._endpoints:
            self._note_end(endpoint, disks[endpoint.role.value], report)
            if self._tar(endpoint, "/logs").is_file():
                self._copy_logs(endpoint)
        if self._tar(self._receiver, "/downloads").is_file():
            self._compare_downloads()
        self._server_ready = report.ready
        self._capture_drops = sum(report.dropped.values()) if report.dropped else None
        return replace(
            self._record(report.began or float(self._setting.epoch), ended.host_s, report.stages),
            transfer_s=report.transfer,
            server_udp_ports=unconnected_ports(_text_of(out / "server.udp") + _text_of(out / "server.udp6")),
            flooded=report.flooded,
            guest=GuestEvidence(
                kernel=self._launcher.kernel,
                epoch_unix_s=self._setting.epoch,
                seed=self._job.seed,
                charge=self._setting.charge,
                noise_s=self._setting.noise,
                virtual_s=ended.virtual_s,
                host_s=ended.host_s,
                cpu_s=ended.cpu_s,
                memory_left=report.memory_left,
                work={role: dict(counts) for role, counts in ended.work.items()},
                least_s=ended.least_s,
                captures=hashes,
            ),
        )

    def _error_of(self, ended: Ended, report: GuestReport) -> dict[str, str]:
        """Code and message of the most informative error of the job; empty without an error."""
        if ended.how == "spins":
            used = f"used {ended.spin_s:.0f} s of CPU while hardly any time passed"
            return {
                "code": "spins",
                "message": f"the process {ended.spinner} {used}: it runs in a loop that does not sleep",
            }
        if refused := self._not_started(report):
            return refused
        if report.error:
            printed = "\n".join(self._outputs().get(report.error_role, "").splitlines()[-_LINES:])
            return LaneError(report.error["code"], report.error["message"], printed=printed).record()
        if ended.how == "ended" and report.done is not None:
            return {}
        if ended.exit_code == -signal.SIGXCPU:
            calls = " and ".join(f"{counts['syscalls']:,.0f} of the {role}" for role, counts in ended.work.items())
            limit = f"its kernel used {self._kernel_cpu_s()} s of CPU time, the limit for this case's files"
            return {"code": "cpu-limit", "message": f"{limit}, in {ended.virtual_s:.1f} s; system calls: {calls}"}
        code, message = _HOW.get(ended.how, _HOW["died"])
        console = _text_of(self._work / "console")[-300:]
        return {"code": code, "message": f"{message.format(code=ended.exit_code)} {console}".strip()}

    def _not_started(self, report: GuestReport) -> dict[str, str]:
        """The error of an image whose first process can't be started, with the code that lanes use; empty when all
        processes started."""
        for role in (*(role for role in self._specs if role != CLIENT), CLIENT):
            process = report.processes.get(role)
            last_lines = _text_of(self._work / "out" / f"{role}.output").splitlines()[-1:]
            if process and process.code == _NOT_STARTED and last_lines and last_lines[0].startswith("bentpipe: "):
                return {"code": f"{role}-not-started", "message": last_lines[0].removeprefix("bentpipe: ")}
        return {}

    def _note_end(self, endpoint: Endpoint, disk: Disk, report: GuestReport) -> None:
        process = report.processes.get(endpoint.role.value, ProcessReport())
        killed_for_memory = bool(report.oom_kills) and process.code == _KILLED and not process.flooded
        endpoint.timed_out, endpoint.stopped_by_us = process.timed_out, process.stopped
        final = ContainerState(
            pid=0,
            exit_code=process.code if process.started and process.ended else None,
            oom_killed=killed_for_memory and not (process.stopped or process.timed_out),
            started=process.began if process.started else None,
            ended=process.end if process.ended else None,
        )
        endpoint.note_end(f"sha256:{disk.path.stem}", final, flooded=process.flooded)

    def _tar(self, endpoint: Endpoint, path: str) -> Path:
        return self._work / "out" / f"{endpoint.role.value}-{path.strip('/')}.tar"

    def _archive(self, endpoint: Endpoint, path: str) -> Iterator[bytes]:
        return _blocks(self._tar(endpoint, path))

    def _required_files(self) -> Mapping[str, Expected]:
        return {
            file.name: Expected(size=file.size, digest=hashlib.sha256(file.content()).digest())
            for file in self._job.required_files
        }

    def _outputs(self) -> dict[str, str]:
        out = self._work / "out"
        return {role: _output(out / f"{role}.output") for role in (*self._specs, *self._segments)}


def _text_of(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_LARGEST_TEXT).decode(errors="replace")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _output(path: Path) -> str:
    output = Output()
    for block in _blocks(path) if path.is_file() else ():
        output.feed(block)
    return output.text()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The guests of a runner: several guests at the same time.

_DISKS = "images"


class GuestHost:
    """The place of all guests of a run. Construct with `open`; `run` may be called from as many threads as `lanes`."""

    def __init__(self, launcher: Launcher, disks: Disks, work: Path, setting: Setting, *, lanes: int) -> None:
        self._launcher = launcher
        self._disks = disks
        self._work = work
        self._setting = setting
        self._numbers = itertools.count(1)
        self._cpus: queue.LifoQueue[int] = queue.LifoQueue()
        cores = sorted(os.sched_getaffinity(0))
        first = os.getpid()  # so that the guests of several runs on one host are not all on its first CPU
        for number in range(first, first + lanes):
            self._cpus.put(cores[number % len(cores)])
        self._stopped = threading.Event()
        self._stopping = threading.Lock()

    @classmethod
    @contextmanager
    def open(
        cls, name: str, setting: Setting, *, lanes: int, scratch: Path, saved: SavedImages | None = None
    ) -> Iterator["GuestHost"]:
        """Run up to `lanes` guests at the same time, for the run `name`. `scratch`: a folder for running jobs and for
        disks; disks are kept. `saved`: images from archives, which need no engine. Raises SetupError when this host has
        too little memory.
        """
        require_memory(lanes)
        prefix, labels = labels_of(name)
        own_folder(scratch)
        work, disks = scratch / prefix, scratch / _DISKS
        with locked_folder(work):
            try:
                remove_abandoned(scratch)
                with ExitStack() as stack:
                    if saved is None:
                        launcher, images = stack.enter_context(_containers(prefix, labels, work))
                    else:
                        launcher, images = open_launcher(saved, scratch), saved
                        stack.callback(launcher.close)
                    yield cls(launcher, Disks(images, launcher, disks), work, setting, lanes=lanes)
            finally:
                shutil.rmtree(work, ignore_errors=True)

    def run(self, job: LaneJob) -> Evidence:
        """Run one job in its own guest and write the job's folder, `evidence.json` last. Raises LaneError."""
        # A guest has one CPU and is fastest on one CPU of the host, because its kernel and its processes take turns.
        cpu = self._cpus.get()
        try:
            if self._stopped.is_set():
                raise LaneError("stopped", "The run was stopped while this job ran.")
            work = self._work / str(next(self._numbers))
            return GuestExperiment(job, self._launcher, self._disks, self._setting, work, cpu=cpu).run()
        finally:
            self._cpus.put(cpu)

    def stop(self) -> None:
        """Make running jobs end soon. Two campaigns that share this host may both call it."""
        with self._stopping:
            if not self._stopped.is_set():
                self._stopped.set()
                self._launcher.close()


@contextmanager
def _containers(prefix: str, labels: Mapping[str, str], work: Path) -> Iterator[tuple[Launcher, Images]]:
    """Containers for guests, and the images of their engine. First removes leftovers of killed runners."""
    client = connect()
    engine, stop = Engine(client, labels), threading.Event()
    try:
        sweep(engine)
        start_watchdog(engine, prefix, stop)
        mapped = any("name=userns" in option or "name=rootless" in option for option in engine.security)
        images = ImageDisks(engine, prefix)
        kernel = images.text(IMAGE, "/guest/version", work / "version").strip()
        yield ContainerLauncher(engine, name=prefix, mapped=mapped, kernel=kernel), images
    finally:
        stop.set()
        try:
            remove_own(engine, {LABEL_LANES: prefix})
        finally:
            engine.close()
