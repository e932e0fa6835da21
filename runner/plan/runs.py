"""Makes the plan of a new, resumed or extended run from the user's selection. It does not use the Docker Engine."""

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from runner.config.catalog import Catalog
from runner.config.selection import Selection
from runner.errors import UsageError
from runner.model.host import host_facts
from runner.model.implementation import Role
from runner.model.job import Job
from runner.model.result import Finding, Outcome, Result
from runner.model.run import CaseRecord, ImplementationRecord, Run
from runner.paths import ROOT
from runner.plan.jobs import declared_unsupported, fits, jobs, protocol
from runner.store import RunFolder

VERSION = "0.1.0"
LOGS = ROOT / "logs"
LEDGER = LOGS / "volume.json"  # bytes on real links, over all runs


def run_path(name: str | None) -> Path:
    """The folder of `--run NAME|DIR`. A name is the name of a folder in logs/. The default name is the date and
    time."""
    if name is None:
        return LOGS / datetime.now().strftime("%Y-%m-%dT%H%M%S")
    return Path(name) if "/" in name or Path(name).is_dir() else LOGS / name


def new_run(
    path: Path,
    catalog: Catalog,
    selection: Selection,
    *,
    seed: int | None,
    shuffled: bool,
    image_ids: Mapping[str, str],
    image_digests: Mapping[str, str] | None = None,
    timeout_scale: float,
    records: Mapping[str, CaseRecord] | None = None,
) -> Run:
    """The record of a run that begins now. Without `seed`, the seed is random.

    `records`: the selected cases over their links; without it, the cases of the catalogue over their own links.
    `image_ids`, and `image_digests` of published images, are by stack. The variants of a stack have the same image.
    """
    seed = secrets.randbits(31) if seed is None else seed
    records = records or {name: catalog.cases[name].record() for name in selection.cases}
    scaled = {name: replace(case, timeout=case.timeout * timeout_scale) for name, case in records.items()}
    planned = jobs(selection, scaled, shuffle_seed=seed if shuffled else None)
    order = tuple(job for job in planned if fits(catalog, scaled, job))
    return Run(
        name=path.name,
        started_unix_s=time.time(),
        bentpipe_version=VERSION,
        host=host_facts(),
        seed=seed,
        shuffled=shuffled,
        clients=selection.clients,
        servers=selection.servers,
        vias=selection.vias,
        cases=scaled,
        implementations=_implementations(catalog, selection, scaled.values(), image_ids, image_digests or {}),
        middleboxes={name: catalog.middleboxes[name] for name in selection.vias if name},
        order=order,
        options={"timeout_scale": f"{timeout_scale:g}"},
        protocols=_protocols(catalog, order),
    )


def _protocols(catalog: Catalog, order: tuple[Job, ...]) -> dict[str, str]:
    """The protocol of each cell that does not use the first protocol of its case, by cell."""
    spoken = {job.cell: (job, protocol(catalog, job)) for job in order}
    return {key: name for key, (job, name) in spoken.items() if name and name != catalog.cases[job.case].protocols[0]}


def _implementations(
    catalog: Catalog,
    selection: Selection,
    cases: Iterable[CaseRecord],
    image_ids: Mapping[str, str],
    image_digests: Mapping[str, str],
) -> dict[str, ImplementationRecord]:
    beside = [name for case in cases for name in case.beside_stacks]
    stacks = {
        name: ImplementationRecord(
            name=name,
            version=entry.version,
            url=entry.url,
            image=entry.image,
            language=entry.language,
            congestion_control=entry.congestion_control,
            initial_window=entry.initial_window,
            image_id=image_ids.get(entry.variant_of or name, ""),
            image_digest=image_digests.get(entry.variant_of or name, ""),
            variant_of=entry.variant_of,
            parameters=entry.parameters,
        )
        for name, entry in catalog.implementations.items()
        if name in (*selection.servers, *selection.clients, *beside)
    }
    boxes = {
        box.name: ImplementationRecord(
            name=box.name,
            version=box.version,
            url=box.url,
            image=box.image,
            image_id=image_ids.get(box.variant_of or box.name, ""),
            variant_of=box.variant_of,
            parameters=box.parameters,
        )
        for box in (catalog.middleboxes[via] for via in selection.vias if via)
    }
    return boxes | stacks


def no_wider(stored: Run, selected: Run) -> Run:
    """`selected` without the jobs that the stored run lacks. A job of a new variant stays when the stored run has this
    job for the variant's stack or middlebox."""

    def known_as(name: str) -> str:
        return name if name in stored.implementations else selected.implementations[name].variant_of

    known = set(stored.order)
    order = (
        job
        for job in selected.order
        if replace(job, server=known_as(job.server), client=known_as(job.client), via=job.via and known_as(job.via))
        in known
    )
    return replace(selected, order=tuple(order))


def extend_run(folder: RunFolder, selected: Run) -> Run:
    """The stored run with the jobs, stacks and cases that `selected` adds. Raises UsageError when a part that both runs
    have is different in `selected`."""
    stored = folder.run
    for name, case in selected.cases.items():
        if name in stored.cases and replace(case, iterations=0) != replace(stored.cases[name], iterations=0):
            raise UsageError(
                f"The case '{name}' has other parameters now than when {folder.path} began: start a new --run."
            )
    for name, entry in selected.implementations.items():
        before = stored.implementations.get(name)
        if before is not None and before.image_id != entry.image_id:
            raise UsageError(
                f"The image of {name} has changed since {folder.path} began "
                f"({before.image_id[:19]} → {entry.image_id[:19]}): start a new --run, or restore the image."
            )
    if stored.guest != selected.guest:
        raise UsageError(
            f"{folder.path} began with another epoch or CPU model: start a new --run, or leave out --cpu-model."
        )
    known = set(stored.order)
    for job in selected.order:
        if job in known and stored.protocol(job) != selected.protocol(job):
            raise UsageError(
                f"{job.client} and {job.server} would use {selected.protocol(job)} now, and used "
                f"{stored.protocol(job)} when {folder.path} began: start a new --run."
            )
    return replace(
        stored,
        clients=_union(stored.clients, selected.clients),
        servers=_union(stored.servers, selected.servers),
        cases={**selected.cases, **stored.cases},
        implementations={**stored.implementations, **selected.implementations},
        order=stored.order + tuple(job for job in selected.order if job not in known),
        protocols={**stored.protocols, **selected.protocols},
        vias=_union(stored.vias, selected.vias),
        middleboxes={**selected.middleboxes, **stored.middleboxes},
        clocks={**selected.clocks, **stored.clocks},
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def presets(
    catalog: Catalog, todo: tuple[Job, ...], not_compliant: Mapping[tuple[str, Role], str]
) -> dict[Job, Result]:
    """Verdicts on jobs that need no run, because the pair declares no support, or because an image failed the
    compliance probe."""
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
    """The new result `after`, with facts that only the first result has: times of the harness, attempts, kept
    captures."""
    return replace(
        after,
        attempts=before.attempts,
        disturbed=before.disturbed,
        wall_s=before.wall_s,
        overhead_s=before.overhead_s,
        captures_kept=before.captures_kept,
    )
