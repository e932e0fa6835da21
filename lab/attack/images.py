"""Runs, for every behaviour in both roles, a job with a hostile endpoint and then an honest job in the same lane, or in
the next guest."""

import itertools
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import docker

from lab.attack.verdicts import Finding, Tally, Verdict, family, largest_resident, proc_file, reset_peak
from lab.run_folders import run
from runner.campaign.campaign import Campaign
from runner.engine.containers import LABEL_ROLE, LABEL_RUN
from runner.model.result import Artifacts, Outcome, Result
from runner.model.run import REAL, VIRTUAL, CaseRecord, ImplementationRecord, Job, Retention, Run, host_facts
from runner.paths import VERSION
from runner.places.guests import guests, processes
from runner.places.lane_job import Deployment
from runner.places.place import Concurrency, GuestPlace, LanePlace
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.jobs import with_clock
from runner.store.runs import RunFolder, load_evidence
from runner.units import MIB

_HERE = Path(__file__).parent
IMAGE = "bentpipe-test/hostile"
_WEAK_GUEST = "bentpipe-test/guest-seccomp"  # guests in which the attack `_MEMORY` must succeed
_MEMORY = "guest-memory"
_DISK = Path("/var/lib/docker")  # of the engine
_HONEST = ImplementationRecord(name="honest", version="", url="", image="bentpipe/quinn")
_CASE = "handshake"
_LOSSY_CASE, _LIES_CASE = "transferloss", "transfer"  # for lies in ACK frames, which a handshake doesn't show
_LOSSY = ("ack-gaps",)
_TIMEOUTS = {_CASE: 12.0, _LIES_CASE: 40.0, _LOSSY_CASE: 40.0}  # s
_FORGING = ("forge-close", "forge-initial-close")  # packets with the peer's address, which the link drops and counts
_CONTROL = "control"  # no attack: the image is honest
_HARMLESS = ("ack-delay-none",)  # lies that no rule can find: an ideal endpoint also sends ACKs without delay
_LONGEST_S = 60.0  # the longest time of a hostile job beside its own time-out; a busy host's load multiplies it
_ATTEMPTS = 2  # at an attack whose jobs other load on this host disturbs
_OWN_JOB_ENDED = ("spins", "cpu-limit")  # a guest's errors, which blame nobody (docs/virtual-time.md, Isolation)
_LONGEST_CPU_S = 600.0  # the most CPU time of a guest: 300 s of its kernel, and as much of its processes
_MOST_MEMORY = 1536 * MIB  # for all our processes together
_MOST_DISK = 1024 * MIB  # for the layer of an endpoint's container
_MOST_FILES = 700 * MIB  # for a job's folder
_POLL_S = 0.5
_MOST_VIOLATIONS = 4  # the most violations of a result that are shown
_ONLY = {"ignore-sigterm": ("server",), "never-end": ("client",), "end-at-once": ("client",)}


def behaviours() -> list[tuple[str, str]]:
    """Role and name of each behaviour. The first two are controls."""
    names = (_CONTROL, *_names(), *_variants())
    return [(role, name) for name in names for role in _ONLY.get(name, ("client", "server"))]


@cache
def _variants() -> list[str]:
    """Images that attack by their configuration."""
    return re.findall(r"^FROM \S+ AS (image-\S+)", (_HERE / "image" / "Dockerfile").read_text(), re.MULTILINE)


def _image(name: str) -> str:
    return f"{IMAGE}:{name}" if name in _variants() else IMAGE


@cache
def _lies() -> list[str]:
    return _names("LIE")


def _names(when: str = r"\w+") -> list[str]:
    text = "".join(path.read_text() for path in sorted((_HERE / "image").glob("*.py")))
    names = re.findall(rf'^(?:@behaviour\({when}\)\ndef (\w+)|    \("([\w-]+)", {when}, )', text, re.MULTILINE)
    return ["".join(name).replace("_", "-") for name in names]


def build() -> None:
    """Build the images. Raises CalledProcessError."""
    stages = {IMAGE: "hostile", _WEAK_GUEST: "guest-seccomp", **{_image(name): name for name in _variants()}}
    for tag, stage in stages.items():
        command = ["docker", "build", "-q", "-t", tag, "--target", stage, str(_HERE / "image")]
        subprocess.run(command, check=True, capture_output=True)


def attack_images(
    tally: Tally, scratch: Path, *, clock: str, seconds: float, only: str, progress: Callable[[Tally], None]
) -> None:
    """Try the behaviours that `tally` lacks, in a run with `clock` below `scratch`, until all are done or `seconds`
    have passed."""
    build()
    catalog = load_catalog()
    every = behaviours()
    path = scratch / ("images" if clock == REAL else f"images-{clock}")
    known = (path / "run.json").is_file()
    folder = RunFolder.open(path) if known else RunFolder.create(path, with_clock(_run(path, catalog, every), clock))
    place = LanePlace() if clock == REAL else GuestPlace(scratch=scratch / ".guests")
    with place.open(folder.run, Concurrency.fixed(1)):
        deployment = place.deployment(folder.run)
        usual = _usual_violations(folder, catalog, deployment)
        left = [
            attack
            for number, (role, name) in enumerate(every)
            if re.search(only, name) and (attack := _left(folder, tally, role, name, number)) is not None
        ]
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            attack = left.pop(0)
            _try(attack, folder, catalog, deployment, usual, tally)
            if tally.bad.get(attack.title) == Verdict.DISTURBED and attack.attempt + 1 < _ATTEMPTS:
                left.append(replace(attack, attempt=attack.attempt + 1))  # after all others
            progress(tally)
    if clock != REAL and re.search(only, _MEMORY):
        _attack_weak_guest(tally, scratch, catalog)


def _left(folder: RunFolder, tally: Tally, role: str, name: str, number: int) -> "_Attack | None":
    """The next attempt at an attack; None when there is none."""
    for attempt in range(_ATTEMPTS):
        attack = _Attack(role, name, number, attempt)
        if folder.result(attack.honest) is None:
            return attack if attempt == 0 or tally.bad.get(attack.title) == Verdict.DISTURBED else None
    return None


def _attack_weak_guest(tally: Tally, scratch: Path, catalog: Catalog) -> None:
    """Try the attack on a guest's memory where it must succeed; else its failure elsewhere would prove nothing."""
    path = scratch / "images-weak-guest"
    shutil.rmtree(path, ignore_errors=True)
    role, name = attack = ("client", _MEMORY)
    folder = RunFolder.create(path, with_clock(_run(path, catalog, [attack]), VIRTUAL))
    job = _Attack(role, name, 0, 0).hostile
    # The product has no setting for another kernel.
    with (
        patch.object(processes, "IMAGE", _WEAK_GUEST),
        patch.object(guests, "IMAGE", _WEAK_GUEST),
        GuestPlace(scratch=scratch / ".guests").open(folder.run, Concurrency.fixed(1)) as place,
    ):
        _execute(folder, catalog, place.deployment(folder.run), job)
    marks = path / job.path / role / "escaped.txt"
    reached = marks.read_text(errors="replace") if marks.is_file() else ""
    places = ", ".join(filter(None, reached.splitlines())) or "nothing"
    tally.kinds[f"{role} {name}, guest with seccomp: reached {places}"] += 1
    if "all memory of the guest" not in reached:
        attack_name = f"images --only {name} (guest with seccomp)"
        tally.add(Finding(attack=attack_name, verdict=Verdict.LOST, what="control", text=reached or "nothing reached"))


@dataclass(frozen=True)
class _Attack:
    """One attempt at an attack. `number`: that of the behaviour."""

    role: str
    name: str
    number: int
    attempt: int

    @property
    def title(self) -> str:
        return f"images --only {self.name} ({self.role})"

    @property
    def hostile(self) -> Job:
        sides = {"client": _HONEST.name, "server": _HONEST.name, self.role: f"{self.role}-{self.name}"}
        case = _CASE if self.name not in _lies() else _LOSSY_CASE if self.name in _LOSSY else _LIES_CASE
        return Job(**sides, case=case, iteration=self.attempt + 1)

    @property
    def honest(self) -> Job:
        """The job after the hostile job."""
        iteration = 1 + self.attempt + _ATTEMPTS * self.number
        return Job(client=_HONEST.name, server=_HONEST.name, case=_CASE, iteration=iteration)


def _try(  # noqa: PLR0917
    attack: _Attack, folder: RunFolder, catalog: Catalog, deployment: Deployment, usual: set[str], tally: Tally
) -> None:
    """Run the hostile job, then the honest job in the same lane, and note what went wrong."""
    began, load, sampler = time.monotonic(), os.getloadavg()[0] / (os.cpu_count() or 1), Sampler(folder.name)
    sampler.start()
    hostile = _execute(folder, catalog, deployment, attack.hostile)[attack.hostile]
    sampler.stop()
    took = time.monotonic() - began
    honest = _execute(folder, catalog, deployment, attack.honest)[attack.honest]
    tally.tried += attack.attempt == 0
    tally.forget(attack.title)
    tally.seconds += time.monotonic() - began
    tally.kinds[f"{attack.role} {attack.name}: {_shown(hostile)}"] += 1
    trial = Trial(attack.role, hostile, honest, took=took, load=load, peaks=sampler.peaks)
    for verdict, kind, text in trial.problems(folder, usual):
        tally.add(Finding(attack=attack.title, verdict=verdict, what=kind, text=text))
    for kind, value in sampler.peaks.items():
        tally.peak(kind, value)


def _usual_violations(folder: RunFolder, catalog: Catalog, deployment: Deployment) -> set[str]:
    """Rules that the honest stack breaks without an attack."""
    controls = [_Attack(role, name, 0, 0).hostile for role, name in behaviours() if name == _CONTROL]
    lacking = [job for job in controls if folder.result(job) is None]
    _execute(folder, catalog, deployment, *lacking)
    results = [folder.result(job) for job in controls]
    return {violation.code for result in results if result is not None for violation in result.violations}


def _run(path: Path, catalog: Catalog, behaviours: list[tuple[str, str]]) -> Run:
    cases: dict[str, CaseRecord] = {
        name: replace(catalog.cases[name].record(), timeout=timeout, iterations=_ATTEMPTS * len(behaviours))
        for name, timeout in _TIMEOUTS.items()
    }
    attempts = itertools.product(enumerate(behaviours), range(_ATTEMPTS))
    attacks = [_Attack(role, name, number, attempt) for (number, (role, name)), attempt in attempts]
    jobs = [job for attack in attacks for job in (attack.hostile, attack.honest)]
    stacks = {
        f"{role}-{name}": ImplementationRecord(
            name=f"{role}-{name}", version="", url="", image=_image(name), parameters={f"{role.upper()}_PARAMS": name}
        )
        for role, name in behaviours
    }
    planned = run(path.name, cases, tuple(jobs), time.time())
    return replace(
        planned,
        bentpipe_version=VERSION,
        host=host_facts(),
        seed=1,
        implementations={**stacks, _HONEST.name: _HONEST},
    )


def _execute(folder: RunFolder, catalog: Catalog, deployment: Deployment, *jobs: Job) -> dict[Job, Result]:
    work = Campaign(
        folder=folder,
        cases=catalog.cases,
        todo=jobs,
        verdicts_without_run={},
        deployment=deployment,
        width=Concurrency.fixed(1),
        retention=Retention.ALL,
    )
    return work.execute()


def _shown(result: Result) -> str:
    shown = (*result.findings[:2], *result.violations[:_MOST_VIOLATIONS])
    codes = ", ".join(f"{finding.code} ({finding.role})" for finding in shown)
    return f"{result.outcome}{' ' + codes if codes else ''}"


def _is_reported(result: Result, role: str) -> bool:
    """Whether a finding or violation of a rule on ACK frames blames the role."""
    return any(
        finding.role == role and finding.code.startswith(("rfc9000-13.", "rfc9000-19.3"))
        for finding in (*result.findings, *result.violations)
    )


def _is_counted(result: Result, role: str) -> bool:
    """Whether the result reports packets with the peer's address."""
    return any(check.name == f"{role}_side.spoofed_packets" and not check.holds for check in result.invariants)


@dataclass(frozen=True)
class Trial:
    """A hostile job and the honest job after it. `took`: seconds of the hostile job. `load`: the load average for each
    core before it. `peaks`: see Sampler."""

    role: str
    result: Result
    after: Result
    took: float
    load: float
    peaks: Mapping[str, float]

    def _failed(self, result: Result, text: str) -> tuple[Verdict, str]:
        """The verdict on a job that failed, and whose result does not blame the attacker. On a busy host, a job that
        bentpipe calls disturbed proves nothing; on a quiet host the attack disturbed it."""
        disturbed = bool(result.findings) and (result.findings[0].code, result.findings[0].role) == ("disturbed", "")
        why = result.findings[0].actual if result.findings else ""
        verdict = Verdict.DISTURBED if disturbed and self.load > 1 else Verdict.LOST
        return verdict, f"{text}{_shown(result)}: {why} (load of {self.load:.1f} for each core)"

    def problems(self, folder: RunFolder, usual: set[str]) -> Iterator[tuple[Verdict, str, str]]:
        """The findings. `usual`: rules that the honest stack breaks without an attack."""
        role, result, job = self.role, self.result, self.result.job
        place = folder.path / job.path
        marks = place / role / "escaped.txt"
        if marks.is_file():
            yield Verdict.ESCAPED, "rights", marks.read_text(errors="replace")[:2000]
        blamed = result.findings[0].role if result.findings else ""
        verdict = Verdict.HELD
        ended = result.outcome is Outcome.ERROR and result.findings[0].code in _OWN_JOB_ENDED
        if result.outcome is not Outcome.SUCCEEDED and blamed != role and not ended:
            verdict, text = self._failed(result, f"expected {role}: ")
            yield verdict, "blame", text
        for violation in result.violations:
            if violation.role and violation.role != role and violation.code not in usual:
                yield Verdict.LOST, "blame", f"{violation.code} is blamed on {violation.role}: {violation.actual}"
        if self.after.outcome is not Outcome.SUCCEEDED:
            next_verdict, text = self._failed(self.after, "")
            yield next_verdict, "next job", text
        if verdict is not Verdict.DISTURBED:
            yield from self._unreported()
        evidence = load_evidence(Artifacts(place))
        guest = evidence.guest if evidence is not None else None
        longest = _TIMEOUTS[job.case] + _LONGEST_S * max(1.0, self.load)
        if self.took > longest if guest is None else guest.cpu_s > _LONGEST_CPU_S:
            yield Verdict.LOST, "time", f"{self.took:.0f} s" if guest is None else f"{guest.cpu_s:.0f} s of CPU time"
        for measurement, most in {"our memory, MiB": _MOST_MEMORY, "container's disk, MiB": _MOST_DISK}.items():
            if (value := self.peaks.get(measurement, 0.0) * MIB) > most:
                yield Verdict.LOST, "memory" if "memory" in measurement else "disk", f"{measurement}: {value / MIB:.0f}"
        stored = sum(path.lstat().st_blocks * 512 for path in place.rglob("*"))
        if stored > _MOST_FILES:
            yield Verdict.LOST, "disk", f"the job's folder has {stored / MIB:.0f} MiB"
        if not Artifacts(place).result.is_file():
            yield Verdict.LOST, "result", "no result is stored"

    def _unreported(self) -> Iterator[tuple[Verdict, str, str]]:
        """Forgeries and lies that the result must report."""
        job = self.result.job
        name = (job.client if self.role == "client" else job.server).removeprefix(f"{self.role}-")
        if name in _FORGING and not _is_counted(self.result, self.role):
            yield Verdict.LOST, "unreported", f"packets in the peer's name: {_shown(self.result)}"
        if job.case != _CASE and name not in _HARMLESS and not _is_reported(self.result, self.role):
            yield Verdict.LOST, "unreported", f"a lie in ACK frames: {_shown(self.result)}"


class Sampler:
    """Measures two peaks while a job runs: the memory of this process, its descendants and our containers (simulator,
    holders, plumber) together, and the bytes that an endpoint's container wrote to its own layer.

    The memory is the sum of the largest resident memory of each process, so it is rather too large than too small.
    """

    def __init__(self, run: str) -> None:
        """`run`: the name of the run whose containers count."""
        self.peaks: dict[str, float] = {}
        self._run = run
        self._free = _free_disk()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        for pid in family(os.getpid()):
            reset_peak(pid)
        self._thread.start()

    def stop(self) -> None:
        """End the measurement."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        client = docker.from_env()
        while not self._stop.wait(_POLL_S):
            with suppress(docker.errors.DockerException, OSError):
                self._look(client)
        client.close()

    def _look(self, client: docker.DockerClient) -> None:
        resident_bytes = sum(map(largest_resident, family(os.getpid())))
        for container in client.api.containers(filters={"label": f"{LABEL_RUN}={self._run}"}):
            about = client.api.inspect_container(container["Id"])
            role = container["Labels"][LABEL_ROLE]
            if role not in ("client", "server", "guest", "disk"):  # the memory of a guest is that of its endpoints
                resident_bytes += sum(map(largest_resident, _members(about["State"]["Pid"])))
            elif layer := about["GraphDriver"]["Data"].get("UpperDir"):
                written = _written(Path(layer))
                # Without a count, all of the disk's lost space counts.
                self._note("container's disk, MiB", self._free - _free_disk() if written is None else written)
        self._note("our memory, MiB", resident_bytes)

    def _note(self, measurement: str, value: float) -> None:
        self.peaks[measurement] = max(value / MIB, self.peaks.get(measurement, 0.0))


def _members(pid: int) -> list[int]:
    """All processes of a container, those of `docker exec` included. `pid`: its first process."""
    for line in proc_file(pid, "cgroup").decode().splitlines():
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(",") or not controllers:
            for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
                with suppress(OSError):
                    return [int(member) for member in Path(f"{root}{group}/cgroup.procs").read_text().split()]
    return family(pid)


def _free_disk() -> int:
    return shutil.disk_usage(_DISK if _DISK.is_dir() else "/").free


def _written(upper: Path) -> int | None:
    """Bytes that a container wrote to its layer; None when counting takes longer than two seconds."""
    layer = upper.parent
    if os.path.ismount(layer):
        about = os.statvfs(layer)
        return (about.f_blocks - about.f_bfree) * about.f_frsize
    try:
        done = subprocess.run(["du", "-sxk", str(upper)], capture_output=True, text=True, timeout=2, check=False)
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout.split()[0]) * 1024 if done.stdout else 0
