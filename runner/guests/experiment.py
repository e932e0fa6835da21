"""One job in one guest, from its description to the same evidence that a lane writes."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner import collect
from runner.collect import Expected
from runner.engine.output import Output
from runner.errors import LaneError
from runner.guests.description import describe_job
from runner.guests.disks import Disk, Disks
from runner.guests.launcher import LATE, Launcher
from runner.guests.reading import Ended, GuestReport, ProcessReport, read_ended, read_report
from runner.images.images import SIMULATOR
from runner.inputs.inputs import ServedFile, certificates, path_keys
from runner.lanes.experiment import downloads_quota
from runner.lanes.lane import LOCAL_PORT
from runner.lanes.link_document import PACKETS, TRUTH
from runner.lanes.request import EndpointSpec, LaneJob
from runner.model.artifacts import Artifacts, EndpointRecord, Evidence, FileRecord, GuestEvidence
from runner.model.run import Run
from runner.model.topology import CLIENT, SERVER
from runner.store import save_evidence
from runner.units import MIB

_MEMORY, _OWN_MEMORY = 1024, 192  # MiB: the most memory, and the part for kernel and link
_ALMOST_FULL = 64 * 1024  # bytes; with less of a quota left, the file system counts as full
_OUTPUT = "output.log"
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
    "died": ("guest-died", "The guest's kernel ended before its job did."),
    "stopped": ("stopped", "The run was stopped while this job ran."),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings of all guests of a run. `epoch` in seconds since 1970. `charge`: see guest.h; empty: CPU work
    takes no time."""

    epoch: int
    charge: str = ""
    spin_cpu_s: float = 60.0  # most CPU seconds without progress of virtual time
    silence_s: float = 120.0  # most seconds of this host without progress of virtual time or CPU time
    host_s: float = 3600.0  # most seconds of this host for the whole job
    memory: int = _MEMORY * MIB  # most bytes of memory, without /logs and /downloads

    @classmethod
    def of(cls, run: Run) -> "Setting":
        """The setting in the record of a run in virtual time."""
        return cls(epoch=int(run.guest["epoch"]), charge=run.guest.get("charge", ""))


class GuestExperiment:
    """A job. `run` is called once."""

    def __init__(
        self, job: LaneJob, launcher: Launcher, disks: Disks, setting: Setting, work: Path, *, cpu: int
    ) -> None:
        self._job = job
        self._launcher = launcher
        self._disks = disks
        self._setting = setting
        self._work = work
        self._cpu = cpu
        self._segments = tuple(job.topology.segments)
        boxes = {role.value: spec for role, spec in job.boxes.items()}
        self._specs: dict[str, EndpointSpec] = {CLIENT: job.client, SERVER: job.server, **boxes}
        self._captured = (*self._segments, *job.topology.captured_endpoints)

    def run(self) -> Evidence:
        """Run the job and write its folder, `evidence.json` last. Raises LaneError when the harness can't run it."""
        disks = {role: self._disks.of(SIMULATOR) for role in self._segments}
        disks |= {role: self._disks.of(spec.image) for role, spec in self._specs.items()}
        used = sorted({disk.path for disk in disks.values()})
        try:
            about = self._launcher.run(
                "guest",
                self._files(disks),
                self._work,
                budget=_RESULT_BUDGET,
                seconds=self._setting.host_s + LATE,
                disks=used,
            )
            report = read_report(_text(self._work / "out" / "report"))
            evidence = self._collect(disks, read_ended(about), report)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        save_evidence(Artifacts(self._job.folder), evidence)
        return evidence

    def _files(self, disks: Mapping[str, Disk]) -> Iterator[tuple[str, bytes]]:
        """The files that the guest gets, by name. A name that ends with `/` is a folder."""
        job, setting = self._job, self._setting
        quotas = len(self._specs) * job.limits.logs + downloads_quota(job.required_files)
        description = {
            "seed": job.seed,
            "epoch_s": setting.epoch,
            "memory_mib": min(setting.memory, job.limits.memory + _OWN_MEMORY * MIB) // MIB + quotas // MIB,
            "charge": setting.charge,
            "cpu": self._cpu,
            "guard": "seccomp",
            "spin_cpu_s": setting.spin_cpu_s,
            "silence_s": setting.silence_s,
            "host_s": setting.host_s,
        }
        yield "guest.json", json.dumps(description).encode()
        yield "job", describe_job(job, disks, self._launcher.folder_of_disks(self._disks.folder))
        yield from ((f"out/{role}/", b"") for role in self._captured)
        certs = certificates(chain_length=job.chain_length, seed=job.seed, now=setting.epoch).files()
        keys = path_keys(seed=job.seed, now=setting.epoch) if job.boxes else {}
        yield from ((f"certs/{name}", content) for name, content in certs.items())
        yield from ((f"keys/{name}", content) for name, content in keys.items())
        yield "www/", b""
        yield from ((f"www/{file.name}", file.content()) for file in job.files)

    def _collect(self, disks: Mapping[str, Disk], ended: Ended, report: GuestReport) -> Evidence:
        folder, out = self._job.folder, self._work / "out"
        artifacts = Artifacts(folder)
        outputs = {role: _output(out / f"{role}.output") for role in (*self._specs, *self._segments)}
        for role, text in outputs.items():
            (folder / role).mkdir(parents=True, exist_ok=True)
            (folder / role / _OUTPUT).write_text(text)
        for role in self._captured:
            for name in (*_LINK_FILES, f"{role}.pcap"):  # a hostile guest may have left other files
                if (out / role / name).is_file():
                    (out / role / name).rename(folder / role / name)
        captures = {CLIENT: artifacts.client_capture, SERVER: artifacts.server_capture}
        hashes = {role: _hash(path) for role, path in captures.items() if path.is_file()}
        error = self._error(ended, report, outputs)
        if (self._work / "console").is_file():
            (self._work / "console").rename(folder / self._segments[0] / "console.log")
        artifacts.output_log.write_text(collect.merge_outputs(list(outputs.items())))
        endpoints = {role: self._endpoint(role, disks[role], report) for role in self._specs}
        files, extra, full = self._downloads(out / "client-downloads.tar")
        if full:
            endpoints[CLIENT]["volumes_full"] = (*endpoints[CLIENT]["volumes_full"], "/downloads")  # type: ignore[misc]
        records = {role: EndpointRecord(**fields) for role, fields in endpoints.items()}  # type: ignore[arg-type]
        return Evidence(
            started_unix_s=report.began or float(self._setting.epoch),
            wall_s=ended.host_s,
            transfer_s=report.transfer,
            stages_s=report.stages,
            client=records.pop(CLIENT),
            server=records.pop(SERVER),
            boxes=records,
            via=self._job.topology.middlebox,
            content_seed=self._job.content_seed,
            server_ready=report.ready,
            server_udp_ports=_udp_ports(out),
            files=files,
            extra_files=extra,
            flooded=report.flooded,
            capture_drops=sum(report.dropped.values()) if report.dropped else None,
            error=error,
            guest=GuestEvidence(
                kernel=self._launcher.kernel,
                epoch_unix_s=self._setting.epoch,
                seed=self._job.seed,
                charge=self._setting.charge,
                virtual_s=ended.virtual_s,
                host_s=ended.host_s,
                cpu_s=ended.cpu_s,
                memory_left=report.memory_left,
                work={role: dict(counts) for role, counts in ended.work.items()},
                least_s=ended.least_s,
                captures=hashes,
            ),
        )

    def _error(self, ended: Ended, report: GuestReport, outputs: Mapping[str, str]) -> dict[str, str]:
        """Code and message of the most informative error of the job; empty without an error."""
        if ended.how == "spins":
            used = f"used {ended.spin_s:.0f} s of CPU while no time passed"
            return {
                "code": "spins",
                "message": f"the process {ended.spinner} {used}: it waits in a loop that reads no clock",
            }
        if refused := self._not_started(report):
            return refused
        if report.error:
            printed = "\n".join(outputs.get(report.error_role, "").splitlines()[-_LINES:])
            return LaneError(report.error["code"], report.error["message"], printed=printed).record()
        if ended.how == "ended" and report.done is not None:
            return {}
        code, message = _HOW.get(ended.how, _HOW["died"])
        return {"code": code, "message": f"{message} {_text(self._work / 'console')[-300:]}".strip()}

    def _not_started(self, report: GuestReport) -> dict[str, str]:
        """The error of an image whose first process can't be started, with the code that lanes use; empty when all
        processes started."""
        for role in (*(role for role in self._specs if role != CLIENT), CLIENT):
            process = report.processes.get(role)
            last_lines = _text(self._work / "out" / f"{role}.output").splitlines()[-1:]
            if process and process.code == _NOT_STARTED and last_lines and last_lines[0].startswith("bentpipe: "):
                return {"code": f"{role}-not-started", "message": last_lines[0].removeprefix("bentpipe: ")}
        return {}

    def _endpoint(self, role: str, disk: Disk, report: GuestReport) -> dict[str, object]:
        spec = self._specs[role]
        process = report.processes.get(role, ProcessReport())
        archive = self._work / "out" / f"{role}-logs.tar"
        done = collect.Extraction()
        if archive.is_file():
            reserved = frozenset((_OUTPUT,))
            done = collect.extract(_blocks(archive), self._job.folder / role, reserved=reserved)
        full = done.occupied > self._job.limits.logs - _ALMOST_FULL
        killed_for_memory = bool(report.oom_kills) and process.code == _KILLED and not process.flooded
        return {
            "image": spec.image,
            "image_id": f"sha256:{disk.path.stem}",
            "exit_code": process.code if process.started and process.ended else None,
            "timed_out": process.timed_out,
            "oom_killed": killed_for_memory and not (process.stopped or process.timed_out),
            "stopped_by_us": process.stopped,
            "output_flooded": process.flooded,
            "started": process.began - report.began if process.started else None,
            "ended": process.end - report.began if process.ended else None,
            "environment": {**spec.environment, "ROLE": role},
            "skipped_files": tuple(done.skipped),
            "volumes_full": ("/logs",) if full else (),
        }

    def _downloads(self, archive: Path) -> tuple[tuple[FileRecord, ...], tuple[str, ...], bool]:
        files, quota = self._job.required_files, downloads_quota(self._job.required_files)
        if not archive.is_file():
            return tuple(_missing(file) for file in files), (), False
        expected = {
            file.name: Expected(size=file.size, digest=hashlib.sha256(file.content()).digest()) for file in files
        }
        received = collect.compare(_blocks(archive), expected, budget=2 * quota)
        return received.files, received.extra, received.occupied > quota - _ALMOST_FULL


def _missing(file: ServedFile) -> FileRecord:
    return FileRecord(name=file.name, size=file.size, received=None, equal=False)


def _text(path: Path) -> str:
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


def _udp_ports(out: Path) -> tuple[int, ...]:
    tables = _text(out / "server.udp") + _text(out / "server.udp6")
    return tuple(sorted({int(port, 16) for port in re.findall(LOCAL_PORT, tables)}))
