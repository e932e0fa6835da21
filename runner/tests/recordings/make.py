"""Make the recordings of this folder anew: `.venv/bin/python -m runner.tests.recordings.make` (2 minutes).

Real pairs in real lanes, with small files. A recording is good for the case that it was made for, and bad for others:
what `retry` leaves must fail `handshake`, which forbids Retry.
"""

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from runner import campaign
from runner.analyse import disturbed, load_truth
from runner.catalog import load_catalog
from runner.deploy.emulated import Emulated
from runner.deploy.engine import connect
from runner.deploy.images import image_ids
from runner.model.artifacts import Artifacts
from runner.model.job import Job
from runner.model.run import CaseRecord
from runner.model.variant import Variant
from runner.units import KIB
from runner.variants import place

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
ATTEMPTS = 10
STACKS = ("quic-go", "quinn", "aioquic")
# One that can do what it is asked, and one whose window is compiled in.
VARIANTS = (Variant.of("quinn", {"IW": "32"}), Variant.of("quic-go", {"IW": "10"}))


def _cases() -> dict[str, CaseRecord]:
    """Name of the recording → what was run."""
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
        "multiplexing": replace(declared["multiplexing"], file_sizes=(32,) * 250),
        "keyupdate": replace(declared["keyupdate"], file_sizes=(20 * KIB,)),
        "v2": declared["v2"],
        "ecn": replace(declared["ecn"], file_sizes=(20 * KIB,)),
        "ipv6": declared["ipv6"],
        "window": variant("window", "transfer", 100 * KIB),
        "lossy": replace(variant("lossy", "transfer", 100 * KIB), forward=lossy, return_=lossy),
    }


def _jobs() -> tuple[Job, ...]:
    wanted = [(stack, stack, case) for stack in STACKS for case in ("handshake", "transfer", "lossy")]
    wanted += [("quic-go", "quinn", case) for case in ("longrtt", "retry", "resumption", "zerortt", "http3")]
    wanted += [("aioquic", "quic-go", "multiconnect"), ("quinn", "aioquic", "chacha20"), ("quinn", "aioquic", "ipv6")]
    wanted += [("quinn", "aioquic", "keyupdate")]
    wanted += [("quinn", "quic-go", case) for case in ("multiplexing", "ecn")]
    wanted += [("aioquic", "aioquic", "v2")]
    wanted += [(variant.name, "quic-go", "window") for variant in VARIANTS]
    return tuple(Job(server=server, client=client, case=case, iteration=1) for server, client, case in wanted)


def main(*names: str) -> None:
    """Run the jobs one after the other and keep what judges and plots need; those of the named cases, or all."""
    catalog = load_catalog()
    selection = campaign.select(catalog, servers=STACKS, clients=STACKS, cases=("handshake",), iterations=None)
    images = image_ids(connect(), [catalog.implementations[name].image for name in STACKS])
    placed = place(catalog, selection, VARIANTS)
    run = campaign.new_run(
        Path("recordings"),
        placed.catalog,
        placed.selection,
        seed=2,
        shuffled=False,
        image_ids=images,
        timeout_scale=1.0,
    )
    run = replace(run, cases=_cases(), order=_jobs())
    with tempfile.TemporaryDirectory() as scratch, Emulated.open(run, lanes=1) as lanes:
        for job in (job for job in run.order if not names or job.case in names):
            for attempt in range(1, ATTEMPTS + 1):
                folder = Path(scratch) / f"{'-'.join(job.path.parts)}-{attempt}"
                folder.mkdir()
                evidence = lanes.run(job, folder, attempt=attempt)
                disturbance = disturbed(evidence, load_truth(Artifacts(folder).link_truth), run.cases[job.case])
                if disturbance is None:
                    break
                print(f"{job}: {disturbance}")
            target = HERE / job.path
            shutil.rmtree(target, ignore_errors=True)
            for name in KEPT:
                if (folder / name).is_file():
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(folder / name, target / name)
            print(f"{job}: client exit code {evidence.client.exit_code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
