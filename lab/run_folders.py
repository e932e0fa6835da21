"""Run folders to draw: one with judged recordings of real pairs, and others made by hand with rare content."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner.judge.judges import analyse
from runner.model.link import LinkParameters, LinkRecord
from runner.model.result import DEFINITIONS, Finding, Invariant, Outcome, Result, Sample
from runner.model.run import CaseRecord, ImplementationRecord, Job, Kind, Run
from runner.model.stack import Crossing, PageLoad, Sight
from runner.paths import ROOT
from runner.plan.catalog import load_catalog
from runner.plan.choice import choose
from runner.plan.jobs import new_run, verdicts_without_run
from runner.plan.options import MatrixOptions
from runner.store.runs import RunFolder
from runner.units import KIB

RECORDINGS = ROOT / "runner/tests/recordings"
STACKS = ("quinn", "quic-go", "aioquic")
# recording → the case by which it is judged; the last recording fails
RECORDED = {
    **{
        f"{stack}_{stack}/{name}": case for stack in STACKS for name, case in (("lossy", "goodput"), ("handshake",) * 2)
    },
    "quinn_quinn/transfer": "transfer",
    "quic-go_quinn/longrtt": "longrtt",
    "quic-go_quinn/retry": "handshake",
}
VARIANTS = {"quinn+iw=32": {"IW": "32"}, "quic-go+iw=10": {"IW": "10"}}
VIAS = ("plain", "openvpn", "pep-split")
QLOG = """\x1e{"qlog_format":"JSON-SEQ","trace":{}}
\x1e{"time":0,"name":"transport:packet_sent","data":{}}
\x1e{"time":1,"name":"recovery:metrics_updated","data":{"congestion_window":12000}}
\x1e{"time":90,"name":"recovery:metrics_updated","data":{"congestion_window":18000}}
"""
SECONDS = {"plain": 4.0, "openvpn": 4.2, "pep-split": 3.0}
SIZES = {"goodput": (100 * KIB,), "transfer": (20 * KIB, 30 * KIB, 50 * KIB)}


def link(data_rate: int = 20_000_000, delay: float = 0.3, queue: int = 125, loss: float = 0.0) -> LinkParameters:
    return LinkParameters(data_rate=data_rate, delay=delay, queue_packets=queue, loss=loss)


def case(name: str, kind: Kind = Kind.MEASUREMENT, iterations: int = 1, **changes: object) -> CaseRecord:
    record = CaseRecord(
        name=name,
        case=name,
        abbreviation=name[:3].upper(),
        kind=kind,
        description=f"What {name} asks.",
        link=LinkRecord.single("SAT", link(), link(data_rate=2_000_000)),
        wire_names={"client": "transfer", "server": "transfer"},
        file_sizes=(1_000_000,),
        timeout=120.0,
        iterations=iterations,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def measured(goodput: float, *, ttlb: float | None = None, **more: float) -> Sample:
    """The numbers of a transfer of 1 MB over 20 Mbit/s. Without `ttlb`, TTLB follows from goodput, as if goodput
    counted from the client's first packet."""
    time = 8e6 / goodput if ttlb is None else ttlb
    outcome = Sample(
        file_size=1_000_000,
        definitions=DEFINITIONS,
        goodput=goodput,
        efficiency=goodput / 20e6,
        ttlb=time,
        **more,  # type: ignore[arg-type]
    )
    return outcome.completed(20e6)


def run(name: str, cases: Mapping[str, CaseRecord], order: tuple[Job, ...], started: float = 1.8e9) -> Run:
    stacks = tuple(dict.fromkeys(name for job in order for name in (job.server, job.client)))
    return Run(
        name=name,
        started_unix_s=started,
        bentpipe_version="0.1.0",
        host={"name": "lab", "cores": "2", "python": "3.11"},
        seed=5,
        shuffled=False,
        clients=tuple(dict.fromkeys(job.client for job in order)),
        servers=tuple(dict.fromkeys(job.server for job in order)),
        cases=dict(cases),
        implementations={
            stack: ImplementationRecord(name=stack, version="1.0", url="https://example.org", image=stack)
            for stack in stacks
        },
        order=order,
    )


def recorded_run(path: Path) -> RunFolder:
    """A run whose jobs are recordings of real pairs, judged like any other job."""
    catalog = load_catalog()
    jobs = {
        Job(server=name.split("_")[0], client=name.split("_")[1].split("/")[0], case=case, iteration=1): name
        for name, case in RECORDED.items()
    }
    cases = {name: catalog.cases[name].record() for name in sorted(set(RECORDED.values()))}
    cases = {
        name: replace(entry, file_sizes=SIZES.get(name, entry.file_sizes), iterations=1)
        for name, entry in cases.items()
    }
    folder = RunFolder.create(path, run(path.name, cases, tuple(jobs)))
    for job, name in jobs.items():
        artifacts = folder.artifacts(job)
        shutil.copytree(RECORDINGS / name / "1", artifacts.folder)
        if name == "quinn_quinn/lossy":
            (artifacts.folder / "server/qlog").mkdir()
            (artifacts.folder / "server/qlog/a b#1.sqlog").write_text(QLOG)
        folder.save_result(analyse(job, artifacts, catalog.cases[job.case], cases[job.case]))
    return folder


def rare_run(path: Path) -> RunFolder:
    """A run with matrix cells that failed wholly or in part, were disturbed, unsupported or never run, and with names
    that need escaping."""
    evil = "<b>&\"'"
    order = tuple(
        Job(server=server, client=client, case=name, iteration=iteration)
        for server in ("alpha", evil)
        for client in ("alpha", evil)
        for name, iterations in (("sat", 3), ("hs", 1))
        for iteration in range(1, iterations + 1)
    )
    cases = {"sat": case("sat", iterations=3), "hs": case("hs", Kind.TEST_CASE, description="Is <i>it</i> escaped?")}
    folder = RunFolder.create(path, run(path.name, cases, order, started=1.7e9))
    sample = measured(8e6, slow_start_bound=0.55, ttlb=1.4)
    finding = Finding(
        code="timeout",
        requirement="It ends.",
        expected="an end",
        actual="<script>alert(1)</script>",
        log_tail="</pre><script>alert(2)</script>",
    )
    for job in order:
        result = Result.of(job, Outcome.FAILED)
        if (job.server, job.client) == ("alpha", "alpha"):
            outcome = (Outcome.SUCCEEDED, Outcome.ERROR, Outcome.FAILED)[job.iteration - 1]
            good = outcome is Outcome.SUCCEEDED
            broken = Invariant(name="unique bytes", holds=False, expected="10", actual="<9>")
            result = replace(
                result,
                outcome=outcome,
                sample=sample if good else None,
                findings=() if good else (finding,),
                invariants=(broken,),
            )
        elif (job.server, job.client) == ("alpha", evil):
            result = replace(result, findings=(finding,))
        elif job.client == "alpha":
            result = replace(result, outcome=Outcome.UNSUPPORTED, findings=(replace(finding, code="unsupported"),))
        else:
            continue
        folder.save_result(result)
    return folder


def variants_run(path: Path) -> RunFolder:
    """A run of recordings with a stack and two variants as servers. One variant applied its window; in the other the
    window is compiled in."""
    catalog = load_catalog()
    record = replace(catalog.cases["goodput"].record(), file_sizes=(100 * KIB,), iterations=1)
    names = {"quinn": "quinn_quinn/lossy", **{f"{name}": f"{name}_quic-go/window" for name in VARIANTS}}
    jobs = {Job(server=server, client="c", case="goodput", iteration=1): name for server, name in names.items()}
    planned = run(path.name, {"goodput": record}, tuple(jobs))
    stacks = dict(planned.implementations)
    for name, parameters in VARIANTS.items():
        stacks[name] = replace(stacks[name], variant_of=name.split("+")[0], parameters=parameters)
    folder = RunFolder.create(path, replace(planned, implementations=stacks))
    for job, name in jobs.items():
        artifacts = folder.artifacts(job)
        shutil.copytree(RECORDINGS / name / "1", artifacts.folder)
        judged = analyse(job, artifacts, catalog.cases["goodput"], record)
        # The recording was made on a busy host. This disturbs its numbers, but not the applied parameters.
        folder.save_result(replace(judged, outcome=Outcome.SUCCEEDED, findings=()))
    return folder


def vias_run(
    path: Path,
    *,
    iterations: int = 4,
    started: float = 1.9e9,
    variants: tuple[str, ...] = (),
    losses: tuple[str, ...] = (),
) -> RunFolder:
    """A run with three middleboxes, with downloads, page loads, and a case that not all middleboxes can carry."""
    options = MatrixOptions(
        vias=VIAS,
        cases=("download", "page", "download-h3"),
        sizes=("500000,2000000",),
        iterations=iterations,
        variants=variants,
        losses=losses,
    )
    choice = choose(options, load_catalog(), None)
    made = new_run(path, choice, seed=3)
    folder = RunFolder.create(path, replace(made, started_unix_s=started))
    for result in verdicts_without_run(choice.catalog, made.order, {}).values():
        folder.save_result(result)
    for job in made.order:
        if folder.result(job) is None:
            folder.save_result(_via(made, job))
    return folder


def _via(run: Run, job: Job) -> Result:
    case, entry = run.case(job), run.middleboxes[job.via]
    size = sum(case.file_sizes)
    took = (SECONDS[entry.variant_of or job.via] + 0.01 * job.iteration) * (1 + size / 1e7)
    lost = case.page and job.via == "plain" and job.iteration == 4
    page = PageLoad(response_start=1.0, first_contentful_paint=2.0, load=took, completed=75, attempted=75)
    sights = tuple(Sight(what=what, visible=not entry.encrypts, times=3) for what in ("client address", "content"))
    return replace(
        Result.of(job, Outcome.FAILED if lost else Outcome.SUCCEEDED),
        sample=Sample(file_size=size, definitions=DEFINITIONS, ttlb=took),
        page=page if case.page else None,
        crossing=Crossing(connections=1, sights=sights),
    )
