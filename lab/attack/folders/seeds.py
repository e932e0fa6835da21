"""The small run folders that are mutated, one of every kind that bentpipe writes."""

import gzip
import json
import shutil
from pathlib import Path
from random import Random

import pyarrow as pa

from lab.run_folders import rare_run, recorded_run, variants_run, vias_run
from runner.model.run import Job
from runner.store.runs import RunFolder

KINDS = ("handshake", "measured", "paths", "rare", "retry", "variants")
GOOD = "good"  # the run that is never mutated


def make_seeds(folder: Path) -> None:
    """Make a run of each of KINDS, and GOOD, below `folder`."""
    source = recorded_run(folder / "source")
    _part(source, folder / "handshake", ("quinn_quinn/handshake",))
    _part(source, folder / "measured", ("quinn_quinn/goodput",))
    _part(source, folder / "retry", ("quic-go_quinn/handshake", "aioquic_aioquic/handshake"))
    _part(source, folder / GOOD, ("quinn_quinn/handshake", "quinn_quinn/goodput"))
    shutil.rmtree(source.path)
    rare_run(folder / "rare")
    vias_run(folder / "paths", iterations=1)
    variants = variants_run(folder / "variants-of-all")
    _part(variants, folder / "variants", ("quinn+iw=32_c/goodput",))
    shutil.rmtree(variants.path)
    for kind in ("measured", "variants"):
        for job in (folder / kind).glob("*_*/*/1"):
            _add_logs(job)


def _part(source: RunFolder, target: Path, cells: tuple[str, ...]) -> None:
    """A copy of the run with only some of its cells, named after its folder."""
    document = json.loads((source.path / "run.json").read_bytes())
    kept = [entry for entry in document["order"] if f"{entry['server']}_{entry['client']}/{entry['case']}" in cells]
    names = {entry[role] for entry in kept for role in ("server", "client")}
    document |= {
        "name": target.name,
        "order": kept,
        "servers": sorted({entry["server"] for entry in kept}),
        "clients": sorted({entry["client"] for entry in kept}),
        "cases": {name: case for name, case in document["cases"].items() if name in {entry["case"] for entry in kept}},
        "implementations": {name: record for name, record in document["implementations"].items() if name in names},
    }
    target.mkdir(parents=True)
    (target / "run.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    for entry in kept:
        job = Job(**{key: entry[key] for key in ("server", "client", "case", "iteration")})
        shutil.copytree(source.path / job.path, target / job.path)


def _add_logs(job: Path) -> None:
    """Add logs and qlogs like those of endpoints, plain and compressed, where the recording has none."""
    text = b"applied: cca=cubic iw=10 ack=2\nlistening\n" + b"".join(b"line %d of a log\n" % line for line in range(50))
    for role in ("client", "server"):
        qlogs = job / role / "qlog"
        qlogs.mkdir(parents=True, exist_ok=True)
        (job / role / "output.log").write_bytes(text)
        (qlogs / "b.qlog.gz").write_bytes(gzip.compress(_qlog(role), mtime=0))
        (qlogs / "c.sqlog").write_bytes(_qlog(role) * 2)
        with pa.OSFile(str(qlogs / "d.sqlog.zst"), "wb") as file, pa.CompressedOutputStream(file, "zstd") as packed:
            packed.write(_qlog(role))
    (job / "output.log").write_bytes(text * 2)
    (job / "attempts.log").write_bytes(b"attempt 1: disturbed: the host was busy\n" + text)


def _qlog(role: str) -> bytes:
    rng = Random(role)
    lines: list[dict[str, object]] = [{"qlog_format": "JSON-SEQ", "trace": {"configuration": {"time_units": "us"}}}]
    for number in range(40):
        name = rng.choice(("recovery:metrics_updated", "transport:packet_sent", "recovery:parameters_set"))
        data = {"congestion_window": 12000 + 1200 * number, "cc_algorithm": "cubic"}
        lines.append({"time": number * 1000.5, "name": name, "data": data})
    return b"".join(b"\x1e" + json.dumps(line).encode() + b"\n" for line in lines)
