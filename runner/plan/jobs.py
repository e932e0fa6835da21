"""Makes the run of a selection: its jobs in their order, its clock, and the virtual time that CPU work takes."""

import json
import os
import random
import secrets
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from runner.errors import UsageError
from runner.files import read_regular
from runner.model.link import LARGEST_DELAY
from runner.model.result import Finding, JobVerdict, Outcome, Result
from runner.model.run import REAL, VIRTUAL, ImplementationRecord, Job, Run, best_clock, estimate, host_cpu, host_facts
from runner.model.stack import Implementation, Middlebox, Role, same_fields, transport_of
from runner.paths import HOME, LOGS, VERSION
from runner.plan.catalog import Catalog
from runner.plan.choice import Selection
from runner.plan.options import AUTO, CALIBRATED, MEASURED, NO_CPU_MODEL, MatrixOptions
from runner.store.runs import RunFolder, guest_pace, own_logs, write_atomically
from runner.units import format_count, format_duration, format_size

# Makes the jobs of a selection in their order, and finds the jobs that are left. Pure.

# The first case of every pair. When it fails, the other cases would fail for the same reason.
FIRST_CASE = "handshake"
FIRST_CASE_FAILED = "handshake-failed"


def jobs(selection: Selection, *, shuffle_seed: int | None = None) -> tuple[Job, ...]:
    """Every job of the selection whose client and server are of the kinds that its case needs. Iterations are the outer
    loop, so that an interrupted run has complete matrices.

    Handshakes come first, because a pair whose handshake fails skips its other cases. The jobs of a pair with different
    middleboxes run one after the other, so that the conditions of a real link are similar. Each iteration begins with a
    different middlebox, so that no middlebox is always first. With `shuffle_seed` the order is random and reproducible,
    so that jobs that follow each other are not neighbours in the matrix.
    """

    def kind(stack: str) -> str:
        return selection.catalog.implementations[stack].kind

    ordered = [
        Job(server=server, client=client, via=via, case=record.case, link=record.link_name, iteration=iteration)
        for name, record in selection.cases.items()
        for iteration in range(1, selection.iterations[name] + 1)
        for server in selection.servers
        for client in selection.clients
        if kind(server) == record.client.server and kind(client) == record.client.value
        for via in _rotated(selection.vias, iteration)
    ]
    ordered.sort(key=lambda job: job.iteration)
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(ordered)
    ordered.sort(key=lambda job: job.case != FIRST_CASE)
    return tuple(ordered)


def _rotated(vias: Sequence[str], iteration: int) -> Sequence[str]:
    first = (iteration - 1) % len(vias)
    return (*vias[first:], *vias[:first])


def handshake_of(job: Job) -> Job:
    """The job that must succeed before `job` is run."""
    return replace(job, case=FIRST_CASE, link="", iteration=1)


def cannot_talk(handshake: JobVerdict) -> bool:
    """True when the pair of this result transferred no file, so that no other case can succeed. A handshake may fail
    although its file arrived, such as after a Retry that the case forbids."""
    return handshake.outcome is Outcome.FAILED and handshake.delivered is False


def prevented(job: Job, done: Mapping[Job, JobVerdict]) -> Finding | None:
    """A finding with the reason why `job` is skipped: the handshake of its pair failed. None when the job may run."""
    before = done.get(handshake_of(job))
    if job.case == FIRST_CASE or before is None or not cannot_talk(before):
        return None
    why = before.findings[0].headline if before.findings else before.outcome.value
    return Finding(
        code=FIRST_CASE_FAILED,
        requirement="The client gets a file from the server before the pair runs other cases.",
        expected=f"the file of `{FIRST_CASE}`",
        actual=why,
    )


def remaining(order: Iterable[Job], done: Mapping[Job, JobVerdict], retry: frozenset[Outcome]) -> tuple[Job, ...]:
    """The jobs without a result, the jobs whose outcome is in `retry`, and jobs that were skipped because of their
    pair's handshake, when this handshake runs again or no longer prevents them."""
    left = {job for job in order if job not in done or done[job].outcome in retry}

    def reopened(job: Job) -> bool:
        codes = [finding.code for finding in done[job].findings]
        return FIRST_CASE_FAILED in codes and (handshake_of(job) in left or prevented(job, done) is None)

    return tuple(job for job in order if job in left or reopened(job))


def declared_unsupported(catalog: Catalog, job: Job) -> str | None:
    """Why the pair can't run the job, by the declarations of its stacks and its middlebox; None when it can."""
    spoken = protocol(catalog, job)
    if spoken is not None:
        return _not_carried(catalog, job, spoken)
    case, server, client = catalog.cases[job.case], *_pair(catalog, job)
    shared = [name for name in server.speaks if name in client.speaks]
    if not shared:
        return f"{job.server} speaks {', '.join(server.speaks)}, {job.client} speaks {', '.join(client.speaks)}"
    possible = [name for name in case.protocols if name in shared]
    if not possible:
        protocols = " or ".join(case.protocols)
        return f"{job.server} and {job.client} share {', '.join(shared)} only, and {job.case} runs over {protocols}"
    role, stack = next(
        (role, stack)
        for role, stack in ((Role.SERVER, server), (Role.CLIENT, client))
        if not all(stack.claims(role, case.wire(role, name)) for name in possible)
    )
    lacking = [case.wire(role, name) for name in possible if not stack.claims(role, case.wire(role, name))]
    names = " and ".join(f"'{name}'" for name in lacking)
    return f"{stack.name} declares no support of {names} as {role.value}"


def _not_carried(catalog: Catalog, job: Job, spoken: str) -> str | None:
    """Why the middlebox does not carry the job; None when it does, or when there is none."""
    box = catalog.middleboxes.get(job.via)
    if box is not None and transport_of(spoken) not in box.carries:
        return f"{job.via} carries {' and '.join(box.carries)} only, and {spoken} runs over {transport_of(spoken)}"
    name = catalog.cases[job.case].wire(Role.CLIENT, spoken)
    return f"{job.via} declares no support of '{name}'" if box is not None and name in box.lacks else None


def protocol(catalog: Catalog, job: Job) -> str | None:
    """The ALPN of the job: the case's first protocol that both stacks speak and claim; None without one."""
    case, server, client = catalog.cases[job.case], *_pair(catalog, job)
    for name in case.protocols:
        spoken = name in server.speaks and name in client.speaks
        wire_server, wire_client = case.wire(Role.SERVER, name), case.wire(Role.CLIENT, name)
        if spoken and server.claims(Role.SERVER, wire_server) and client.claims(Role.CLIENT, wire_client):
            return name
    return None


def _pair(catalog: Catalog, job: Job) -> tuple[Implementation, Implementation]:
    return catalog.implementations[job.server], catalog.implementations[job.client]


# Makes the plan of a new, resumed or extended run from the user's selection. It does not use the Docker Engine.


def new_run(
    path: Path,
    selection: Selection,
    *,
    clock: str = REAL,
    guest: Mapping[str, str] | None = None,
    busy_host: bool = False,
    seed: int | None = None,
    shuffled: bool = False,
) -> Run:
    """The record of a run that begins now, without the ids of its images. Without `seed`, the seed is random. `clock`,
    `guest`, `busy_host`: as in `with_clock`."""
    seed = secrets.randbits(31) if seed is None else seed
    catalog, scale = selection.catalog, selection.timeout_scale
    order = jobs(selection, shuffle_seed=seed if shuffled else None)
    beside = {name for case in selection.cases.values() for name in case.beside_stacks}
    stacks = {*selection.servers, *selection.clients, *beside}
    entries: list[Implementation | Middlebox] = [catalog.middleboxes[via] for via in selection.vias if via]
    entries += [entry for name, entry in catalog.implementations.items() if name in stacks]
    run = Run(
        name=path.name,
        started_unix_s=time.time(),
        bentpipe_version=VERSION,
        host=host_facts(),
        seed=seed,
        shuffled=shuffled,
        clients=selection.clients,
        servers=selection.servers,
        vias=selection.vias,
        cases={name: replace(case, timeout=case.timeout * scale) for name, case in selection.cases.items()},
        implementations={  # qpep is a stack and a middlebox: the stack's entry stays
            entry.name: ImplementationRecord(**same_fields(ImplementationRecord, entry)) for entry in entries
        },
        middleboxes={name: catalog.middleboxes[name] for name in selection.vias if name},
        order=order,
        options={"timeout_scale": f"{scale:g}"},
        protocols=other_protocols(catalog, order),
    )
    return with_clock(run, clock, guest=guest, stacks=catalog.implementations, busy_host=busy_host)


def other_protocols(catalog: Catalog, order: Iterable[Job]) -> dict[str, str]:
    """The protocol of each cell that does not use the first protocol of its case, by cell."""
    first = {job.cell: job for job in order}  # one job of each cell
    spoken = {cell: protocol(catalog, job) for cell, job in first.items()}
    return {
        cell: name for cell, name in spoken.items() if name and name != catalog.cases[first[cell].case].protocols[0]
    }


def verdicts_without_run(
    catalog: Catalog, todo: tuple[Job, ...], not_compliant: Mapping[tuple[str, Role], str]
) -> dict[Job, Result]:
    """Verdicts on jobs that need no run: the pair declares no support, or an image failed the probe."""
    verdicts = {}
    for job in todo:
        if reason := declared_unsupported(catalog, job):
            verdicts[job] = unsupported(job, reason, requirement="The pair can run the case.")
            continue
        for role, name in ((Role.SERVER, job.server), (Role.CLIENT, job.client)):
            if reason := not_compliant.get((name, role)):
                finding = Finding(
                    code="not-compliant",
                    requirement="An image exits with 127 for a case that it doesn't know, within the time limit.",
                    expected="exit code 127",
                    actual=f"{name}: {reason}",
                    role=role,
                )
                verdicts[job] = without_run(job, Outcome.SKIPPED, finding)
    return verdicts


def unsupported(job: Job, reason: str, *, requirement: str) -> Result:
    """The verdict that follows from a declaration."""
    finding = Finding(code="declared-unsupported", requirement=requirement, expected="support", actual=reason)
    return without_run(job, Outcome.UNSUPPORTED, finding)


def without_run(job: Job, outcome: Outcome, finding: Finding) -> Result:
    """A verdict on a job that needs no run."""
    return replace(Result.of(job, outcome, finding), started_unix_s=time.time(), captures_kept=False)


def rejudged(before: Result, after: Result) -> Result:
    """The new result `after`, with the times of the harness, attempts and kept captures of the first one."""
    return replace(
        after,
        attempts=before.attempts,
        disturbed=before.disturbed,
        wall_s=before.wall_s,
        overhead_s=before.overhead_s,
        cpu_s=before.cpu_s,
        captures_kept=before.captures_kept,
    )


# The clock of a run, and the virtual time that the CPU work of endpoints takes in a guest: no time, or a time that was
# calibrated with lanes of this host.

CALIBRATE = ".venv/bin/python -m lab.cpu_model"
_MEASURE_ONLY = "0,0,0,0"


@dataclass(frozen=True, kw_only=True)
class CpuModel:
    """The virtual time in seconds that the CPU work of an endpoint takes: `syscall_s` for each system call, `fault_s`
    for each page fault, and `factor` for each second of the host's CPU time in user code. Before the CPU time is
    multiplied, `trap_s` is subtracted for each entry into user code, because this time is the cost of the guest's
    kernel itself.

    `host`: the CPU's name. `error`: the median relative error for stacks that were not used in the calibration.
    """

    syscall_s: float
    fault_s: float
    factor: float
    trap_s: float
    host: str
    stacks: tuple[str, ...]
    error: float
    made_unix_s: int

    @property
    def charge(self) -> str:
        """The text that the guest's kernel reads (guest/kernel/guest.h)."""
        numbers = (self.syscall_s * 1e9, self.fault_s * 1e9, self.factor * 100, self.trap_s * 1e9)
        return ",".join(str(round(number)) for number in numbers)

    def save(self, path: Path) -> None:
        """Write the model to `path`. An older model is replaced."""
        write_atomically(path, json.dumps(asdict(self), indent=1, sort_keys=True).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> "CpuModel":
        """The model of an earlier calibration. Raises UsageError when there is none for this CPU."""
        try:
            model = TypeAdapter(cls).validate_json(read_regular(path))
        except FileNotFoundError:
            raise UsageError(
                f"--cpu-model {CALIBRATED}: this host is not calibrated yet; run `{CALIBRATE}` first "
                f"(about {format_duration(20 * 60)} on an idle host)."
            ) from None
        except (OSError, ValidationError) as error:
            raise UsageError(f"{path} can't be read as a CPU model: run `{CALIBRATE}` again.") from error
        if model.host != host_cpu():
            raise UsageError(
                f"{path} was calibrated on '{model.host}', and this CPU is '{host_cpu()}': run `{CALIBRATE}` again."
            )
        return model


def charge_of(mode: str, path: Path) -> str:
    """The charge for the guest in this mode, from the calibration's `path`. Raises UsageError."""
    if mode == CALIBRATED:
        return CpuModel.load(path).charge
    return _MEASURE_ONLY if mode == MEASURED else ""


# The clock of a run: real, virtual, or a clock for each case.

_BUSY = 1.5  # processes that run or wait, per core: at twice this load, a matrix took twice as long as on an idle host
CPU_MODEL = LOGS / ".guests" / "cpu-model.json"
"""The result of the last calibration of this host."""

EPOCH = 1_767_225_600  # 2026-01-01T00:00:00Z; every guest starts at this time, so that equal seeds give equal packets
NOISE = "0.0001"
"""Seconds. In a guest, nothing delays a packet by chance, so all iterations of a lossless link would have one course.
In lanes of a quiet host, a packet takes 0.03 to 0.1 ms longer than the link's delay."""


def chosen_clock(option: str | None, stored: RunFolder | None) -> str:
    """The clock of `--clock`; without it the clock of the stored run; without both the real clock. Raises UsageError
    when the stored run has another clock than `option`."""
    if stored is None:
        return option or REAL
    clock = stored.run.clock
    if option not in (None, clock):
        raise UsageError(
            f"{stored.path} began with --clock {clock}, and its numbers can't be pooled with those of another clock: "
            "start a new --run."
        )
    return clock


def guest_of_run(clock: str, cpu_model: str | None, stored: RunFolder | None) -> dict[str, str]:
    """The settings of a run's guests (`Run.guest`); empty in real time. A stored run keeps them; `cpu_model` asks for
    another charge. Raises UsageError when a CPU model is chosen in real time, or when it can't be loaded."""
    if clock == REAL:
        if cpu_model not in (None, NO_CPU_MODEL):
            raise UsageError(f"--cpu-model {cpu_model}: this option is for virtual time; add --clock virtual.")
        return {}
    guest = {"epoch": str(EPOCH), "charge": "", "noise": NOISE}
    if stored is not None:
        guest = dict(stored.run.guest)
        try:
            sound = int(guest["epoch"]) >= 0 and 0 <= float(guest.get("noise", 0)) <= LARGEST_DELAY
        except (KeyError, ValueError):
            sound = False
        if not sound:
            raise UsageError(
                f"{stored.path}/run.json: guest needs an epoch (whole seconds since 1970) and may have noise (0 to "
                f"{LARGEST_DELAY:g} s): start a new --run."
            )
    return guest if cpu_model is None else guest | {"charge": charge_of(cpu_model, CPU_MODEL)}


def refuse_contradictions(options: MatrixOptions, clock: str) -> None:
    """Raise UsageError for options that exclude each other with this clock."""
    if options.store and options.on is None:
        raise UsageError("--store is only for workers: add --on, or leave out --store.")
    if options.rootless is None:
        return
    if clock != VIRTUAL:
        raise UsageError(f"--rootless: only jobs in virtual time run without Docker; add --clock {VIRTUAL}.")
    if options.on is not None:
        raise UsageError("--on: workers use Docker; leave out --on or --rootless.")
    if options.images:
        raise UsageError(
            "--image: with --rootless, images come only from the archives; leave out --image or --rootless."
        )


def with_clock(
    run: Run,
    clock: str,
    *,
    guest: Mapping[str, str] | None = None,
    stacks: Mapping[str, Implementation] = MappingProxyType({}),
    busy_host: bool = False,
) -> Run:
    """Return `run` with this clock; for `auto`, with a clock for each case, and real time for cells of stacks whose
    verdicts differ in virtual time. `guest`: the settings of its guests; None: those of a new run without a CPU model.
    `stacks`: the stacks by name. `busy_host`: other work of this host would disturb
    jobs in real time, so `auto` takes virtual time wherever a verdict does not need real time."""
    if clock == REAL:
        return run
    clocks = {}
    if clock == AUTO:
        clocks = {  # guests can't run second flows
            name: REAL if case.beside else VIRTUAL if busy_host else best_clock(case)
            for name, case in run.cases.items()
        }
        real = {(name, where) for name, stack in stacks.items() for where in stack.real_time}
        for cell, (job, *_) in run.cells.items():
            ends = ((job.server, Role.SERVER), (job.client, Role.CLIENT))
            wheres = {(name, where) for name, role in ends for where in (role.value, f"{role}:{job.case}")}
            if clocks[job.case_link] == VIRTUAL and real & wheres:
                clocks[cell] = REAL
    return replace(run, clock=clock, clocks=clocks, guest=dict(guest or guest_of_run(clock, None, None)))


def busy(clock: str = REAL) -> str:
    """A sentence when other work of this host will disturb jobs in real time, with the clock that avoids this, or what
    `auto` does about it; empty on an idle host and in virtual time."""
    if clock == VIRTUAL:
        return ""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load <= _BUSY * cores:
        return ""
    busy_host = f"This host is busy: its load is {load:.0f} on {format_count(cores, 'core')}."
    if clock == AUTO:
        return (
            f"{busy_host} New jobs run in virtual time, where load does not matter, except those that need real time."
        )
    return (
        f"{busy_host} Disturbed jobs run again, up to "
        "3 times, which takes longer. Load does not matter in virtual time (--clock virtual; run: also --clock auto)."
    )


# How long the jobs take, and how much disk they need.

_LONG = 8 * 3600.0  # seconds; a night


def cost(run: Run, todo: Sequence[Job], keep_captures: str) -> tuple[float, int]:
    """The estimated seconds of the jobs, one after the other, and their bytes on disk."""
    seconds, logs = 0.0, own_logs(LOGS, todo, run.cases)
    for clock, jobs_of_clock in run.parts_by_clock(todo):
        part = estimate(jobs_of_clock, run.cases, guest_pace(LOGS) if clock == VIRTUAL else {})
        seconds += part.guest_seconds if clock == VIRTUAL else part.seconds
    return seconds, estimate(todo, run.cases).disk(keep_captures) + logs


def announcement(
    folder: RunFolder, selected: Sequence[Job], todo: Sequence[Job], catalog: Catalog, keep_captures: str
) -> str:
    """How many jobs are left, their time and their disk. Jobs declared as unsupported need nothing."""
    path, run = folder.path, folder.run
    if not todo:
        return f"Nothing is left to run: {path} has the results of {format_count(len(selected), 'job')}."
    without_run = verdicts_without_run(catalog, tuple(todo), {})
    seconds, disk = cost(run, [job for job in todo if job not in without_run], keep_captures)
    return (
        f"{format_count(len(todo), 'job')} into {path}, seed {run.seed}, about {format_duration(seconds)} one after "
        f"the other, {format_size(disk)} on disk."
    )


def large(run: Run, stored: RunFolder | None, catalog: Catalog, options: MatrixOptions) -> str:
    """The size of what the call adds, when it takes longer than a night or names no stacks; else empty."""
    known = frozenset() if stored is None else frozenset(stored.run.order)
    added = tuple(job for job in run.order if job not in known)
    unsupported = verdicts_without_run(catalog, added, {})
    todo = tuple(job for job in added if job not in unsupported)
    times = options.repeat_runs or 1
    seconds, disk = cost(run, todo, options.keep_captures)
    if not todo or (seconds * times < _LONG and options.servers and options.clients):
        return ""
    servers, clients = ({getattr(job, role) for job in todo} for role in ("server", "client"))
    free = shutil.disk_usage(HOME).free
    stacks = f"{format_count(len(clients), 'client')} and {format_count(len(servers), 'server')}"
    return (
        f"This adds {format_count(len(todo) * times, 'job')} of {stacks}: about {format_duration(seconds * times)} "
        f"one after the other, {format_size(disk * times)} on disk ({format_size(free)} are free).\n"
        "Missing images are built or pulled first. --server, --client, --case and --iterations select fewer jobs; "
        "./bentpipe plan with the same options shows the time of each case."
    )
