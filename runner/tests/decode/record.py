"""Make the recordings of this folder again: `.venv/bin/python -m runner.tests.decode.record` (about a minute).

Real pairs run in real lanes with small files. The recordings keep the qlogs of both endpoints, which are the second
oracle of the decoder. They don't repeat the cases of the general recordings in runner/tests/recordings.
"""

import gzip
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from runner.engine.engine import connect
from runner.images.images import image_ids
from runner.images.setup import Ready
from runner.model.run import Job
from runner.places.place import Concurrency, LanePlace
from runner.plan import jobs as runs
from runner.plan.catalog import load_catalog
from runner.tests.records import select
from runner.units import KIB

HERE = Path(__file__).parent / "recordings"
STACKS = ("quic-go", "quinn", "aioquic")
SIZES = {"transfer": 20 * KIB, "keyupdate": 20 * KIB, "v2": KIB, "versionnegotiation": KIB}
# quic-go updates its keys by itself, after 100 packets.
OWN_KEY_UPDATE = 150 * KIB


def _keep(folder: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(folder / "sim" / "left.pcap", target / "left.pcap")
    for role in ("client", "server"):
        if (folder / role / "keys.log").is_file():
            shutil.copy(folder / role / "keys.log", target / f"{role}.keys.log")
        for qlog in sorted(folder.glob(f"{role}/qlog/**/*.sqlog")):
            with gzip.GzipFile(target / f"{role}.{qlog.name}.gz", "wb", mtime=0) as packed:
                packed.write(qlog.read_bytes())


def main() -> None:
    """Run the jobs one after another, and keep captures, key logs and qlogs."""
    catalog = load_catalog()
    base = catalog.cases["handshake"].record()
    cases = {
        name: replace(base, name=name, wire_names={"client": name, "server": name}, file_sizes=(size,))
        for name, size in SIZES.items()
    }
    cases["keyupdate"] = replace(cases["keyupdate"], wire_names={"client": "keyupdate", "server": "transfer"})
    cases["owngeneration"] = replace(cases["transfer"], name="owngeneration", file_sizes=(OWN_KEY_UPDATE,))
    pairs = [(stack, "transfer") for stack in STACKS]
    pairs += [(stack, "keyupdate") for stack in ("quinn", "aioquic")]
    pairs += [("aioquic", "v2"), ("aioquic", "versionnegotiation"), ("quic-go", "owngeneration")]
    jobs = tuple(Job(server=stack, client=stack, case=case, iteration=1) for stack, case in pairs)
    selection = select(catalog, servers=STACKS, clients=STACKS, cases=("handshake",), iterations=None)
    images = image_ids(connect(), [catalog.implementations[name].image for name in STACKS])
    run = Ready(ids=images).recorded_in(runs.new_run(Path("recordings"), selection, seed=3))
    run = replace(run, cases=cases, order=jobs)
    with tempfile.TemporaryDirectory() as scratch, LanePlace().open(run, Concurrency.fixed(1)) as place:
        for job in jobs:
            folder = Path(scratch) / "-".join(job.path.parts)
            folder.mkdir()
            evidence = place.deployment(run).run(job, folder, attempt=1)
            _keep(folder, HERE / f"{job.client}_{job.case}")
            print(f"{job}: client exit code {evidence.client.exit_code}")


if __name__ == "__main__":
    main()
