"""Make the recordings of this folder again: `.venv/bin/python -m runner.tests.recordings.make [NAME…]` (10 minutes).

Real pairs run in real lanes, with small files. A recording is good for the case for which it was made, and bad for
other cases: the recording of `retry` must fail `handshake`, which forbids Retry. The recordings in `bad/` are made with
misbehaving endpoints (conformance.py). Needs the images of the stacks, and bentpipe/misbehaving.
"""

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from runner.engine.engine import connect
from runner.images.images import image_ids
from runner.images.setup import Ready
from runner.judge.execution import disturbed, load_truth
from runner.model.result import Artifacts
from runner.model.run import CaseRecord, Job, Run
from runner.model.stack import Variant
from runner.paths import ROOT
from runner.places.place import Concurrency, HostDeployment, LanePlace
from runner.plan import jobs
from runner.plan.catalog import Catalog, load_catalog
from runner.plan.choice import with_requested
from runner.tests.recordings.conformance import BAD, GOOD, Bad, changed
from runner.tests.records import directed, select
from runner.units import KIB

HERE = Path(__file__).parent
KEPT = (
    "evidence.json",
    "output.log",
    "sim/left.pcap",
    "sim/right.pcap",
    "sim/truth.json",
    "client/keys.log",
    "server/keys.log",
    "client/output.log",
    "server/output.log",
)
# The files that are kept of a bad recording. It is only judged, so it needs no output and only the client's key log.
KEPT_BAD = ("evidence.json", "sim/left.pcap", "sim/right.pcap", "sim/truth.json", "client/keys.log")
ATTEMPTS = 10
MISBEHAVING = "misbehaving"
STACKS = ("quic-go", "quinn", "aioquic", "ngtcp2", "quiche", "picoquic", MISBEHAVING)
# The first variant applies its parameter; the second does not, because quic-go's window is compiled in.
VARIANTS = (Variant.of("quinn", {"IW": "32"}), Variant.of("quic-go", {"IW": "10"}))


def _sinners(bad: Bad) -> dict[str, Variant]:
    """Role → endpoint, for the roles whose endpoint is not the plain misbehaving stack."""
    requested = {"client": bad.client, "server": bad.server}
    return {
        role: Variant.of(MISBEHAVING, {f"{role.upper()}_PARAMS": f"sin={sin}"})
        for role, sin in requested.items()
        if sin
    }


def _job(bad: Bad) -> Job:
    names = {role: variant.name for role, variant in _sinners(bad).items()}
    return Job(
        server=bad.server_stack or names.get("server", MISBEHAVING),
        client=bad.client_stack or names.get("client", MISBEHAVING),
        case=bad.name,
        iteration=1,
    )


def _cases() -> dict[str, CaseRecord]:
    """Name of the recording → record of its case."""
    declared = {name: case.record() for name, case in load_catalog().cases.items()}
    base = declared["handshake"]

    def variant(name: str, wire: str, *sizes: int) -> CaseRecord:
        return replace(base, name=name, wire_names={"client": wire, "server": wire}, file_sizes=sizes)

    lossy = replace(base.forward, loss=0.08)
    return {
        "handshake": base,
        "longrtt": declared["longrtt"],
        "retry": variant("retry", "retry", 1 * KIB),
        "resumption": variant("resumption", "resumption", 1 * KIB, 1 * KIB),
        "zerortt": variant("zerortt", "zerortt", 1 * KIB, 1 * KIB),
        "http3": variant("http3", "http3", 1 * KIB),
        "chacha20": variant("chacha20", "chacha20", 1 * KIB),
        "multiconnect": variant("multiconnect", "multiconnect", 1 * KIB, 1 * KIB, 1 * KIB),
        "transfer": variant("transfer", "transfer", 20 * KIB, 30 * KIB, 50 * KIB),
        "credit": variant("credit", "transfer", 80 * KIB, 80 * KIB, 120 * KIB),  # larger than quic-go's first limits
        "multiplexing": replace(declared["multiplexing"], file_sizes=(32,) * 250),
        "keyupdate": replace(declared["keyupdate"], file_sizes=(20 * KIB,)),
        "v2": declared["v2"],
        "ecn": replace(declared["ecn"], file_sizes=(20 * KIB,)),
        "ipv6": declared["ipv6"],
        "window": variant("window", "transfer", 100 * KIB),
        "lossy": directed(variant("lossy", "transfer", 100 * KIB), forward=lossy, return_=lossy),
    }


def _conformance() -> dict[str, CaseRecord]:
    """The same for the recordings of conformance.py. Bad recordings have their own names."""
    declared = {name: case.record() for name, case in load_catalog().cases.items()}
    made = {good.case: changed(declared[good.case], good.changes) for good in GOOD}
    return made | {bad.name: changed(declared[bad.case], bad.changes) for bad in BAD}


def _jobs() -> tuple[Job, ...]:
    wanted = [(stack, stack, case) for stack in STACKS[:3] for case in ("handshake", "transfer", "lossy")]
    wanted += [("quic-go", "quinn", case) for case in ("longrtt", "retry", "resumption", "zerortt", "http3")]
    wanted += [("aioquic", "quic-go", "multiconnect"), ("quinn", "aioquic", "chacha20"), ("quinn", "aioquic", "ipv6")]
    wanted += [("quinn", "aioquic", "keyupdate")]
    wanted += [("quinn", "quic-go", case) for case in ("multiplexing", "ecn")]
    wanted += [("aioquic", "aioquic", "v2"), ("ngtcp2", "ngtcp2", "v2")]
    wanted += [("quinn", "quic-go", "credit"), ("ngtcp2", "quinn", "retry"), ("ngtcp2", "ngtcp2", "zerortt")]
    wanted += [(variant.name, "quic-go", "window") for variant in VARIANTS]
    wanted += [(good.server, good.client, good.case) for good in GOOD]
    plain = [Job(server=server, client=client, case=case, iteration=1) for server, client, case in wanted]
    return (*plain, *(_job(bad) for bad in BAD))


def _run() -> Run:
    """A run with all jobs, and with every variant that a job needs."""
    catalog = load_catalog()
    own = load_catalog(ROOT / "implementations" / f"_{MISBEHAVING}" / "implementations.json").implementations
    catalog = Catalog(implementations={**own, **catalog.implementations}, cases=catalog.cases)
    selection = select(catalog, servers=STACKS, clients=STACKS, cases=("handshake",), iterations=None)
    images = image_ids(connect(), [catalog.implementations[name].image for name in STACKS])
    variants = dict.fromkeys((*VARIANTS, *(variant for bad in BAD for variant in _sinners(bad).values())))
    selection = with_requested(selection, variants, {})
    run = Ready(ids=images).recorded_in(jobs.new_run(Path("recordings"), selection, seed=2))
    return replace(run, cases=_cases() | _conformance(), order=_jobs())


def main(*names: str) -> None:
    """Run the jobs of the named recordings, or all jobs, one after another. Keep the files that judges and plots
    need."""
    run = _run()
    bad = {one.name: HERE / one.path / "1" for one in BAD}
    with tempfile.TemporaryDirectory() as scratch, LanePlace().open(run, Concurrency.fixed(1)) as place:
        for job in (job for job in run.order if not names or job.case in names):
            folder = _record(place.deployment(run), run, job, Path(scratch))
            target = bad.get(job.case, HERE / job.path)
            shutil.rmtree(target, ignore_errors=True)
            for name in KEPT_BAD if job.case in bad else KEPT:
                if (folder / name).is_file():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(folder / name, target / name)


def _record(lanes: HostDeployment, run: Run, job: Job, scratch: Path) -> Path:
    """The folder of the first attempt that was not disturbed, or of the last attempt."""
    for attempt in range(1, ATTEMPTS + 1):
        folder = scratch / f"{'-'.join(job.path.parts)}-{attempt}"
        folder.mkdir()
        evidence = lanes.run(job, folder, attempt=attempt)
        disturbance = disturbed(evidence, load_truth(Artifacts(folder).link_truth), run.cases[job.case])
        if disturbance is None:
            break
        print(f"{job}: {disturbance}", flush=True)
    print(f"{job}: client exit code {evidence.client.exit_code}", flush=True)
    return folder


if __name__ == "__main__":
    main(*sys.argv[1:])
