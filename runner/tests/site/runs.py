"""Run folders that only tests of pages need."""

import shutil
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

from lab.run_folders import RECORDINGS, case, measured, run
from runner.judge.judges import analyse
from runner.model.result import Finding, Outcome, Reading, Result
from runner.model.run import Job
from runner.plan.catalog import load_catalog
from runner.store.runs import RunFolder


def plotted(script: str) -> str:
    """The JSON that a `series.js` brings to its page."""
    return zlib.decompress(b64decode(script.split('"')[1])).decode()


def two_protocols_run(path: Path) -> RunFolder:
    """A run with one server, measured over HTTP/0.9 by one client and over HTTP/3 by two clients."""
    order = tuple(Job(server="s", client=client, case="sat", iteration=1) for client in ("old", "web", "browser"))
    folder = RunFolder.create(path, run(path.name, {"sat": case("sat")}, order))
    for job, efficiency, protocol in zip(order, (0.5, 0.2, 0.4), ("hq-interop", "h3", "h3"), strict=True):
        folder.save_result(
            replace(Result.of(job, Outcome.SUCCEEDED), protocol=protocol, sample=measured(efficiency * 20e6))
        )
    return folder


def wide_run(path: Path) -> RunFolder:
    """A run with more clients than fit on a page of any width. It has a cell of every kind; cells with numbers have a
    curve."""
    catalog = load_catalog()
    clients = ("plain", "tried", "web", "asked", "split", "failed", "none")
    order = tuple(Job(server="s", client=one, case="sat", iteration=i) for one in clients for i in range(1, 9))
    folder = RunFolder.create(path, run(path.name, {"sat": case("sat", iterations=8)}, order, started=1.5e9))
    first = folder.artifacts(order[0])
    shutil.copytree(RECORDINGS / "quinn_quinn/lossy/1", first.folder)
    analyse(order[0], first, catalog.cases["goodput"], replace(catalog.cases["goodput"].record(), file_sizes=(102400,)))
    for job in order[:-8]:
        good = job.client != "failed" and (job.client, job.iteration) != ("tried", 8)
        efficiency = 0.8 if job.client == "split" and job.iteration > 4 else 0.4 + job.iteration / 1000
        finding = Finding(code="timeout", requirement="It ends.", expected="an end", actual="none")
        reading = Reading(role="server", parameter="IW", asked="10", found="32", source="output", holds=False)
        result = replace(
            Result.of(job, Outcome.SUCCEEDED) if good else Result.of(job, Outcome.FAILED, finding),
            protocol="h3" if job.client == "web" else "hq-interop",
            sample=measured(efficiency * 20e6, ttlb=0.5 / efficiency),
            readings=(reading,) if job.client == "asked" else (),
        )
        folder.save_result(result)
        if job != order[0]:
            shutil.copyfile(first.series, folder.artifacts(job).series)
    return folder
