"""Precision and recall of the diagnoses over run folders whose causes were set.

`python -m runner.benchmarks.diagnoses RUN…`. The label of a job is what was asked for: `sin=NAME` in SERVER_PARAMS or
CLIENT_PARAMS of a variant of `misbehaving`, and losses of the link. A stored result is judged as it stands:
`./bentpipe analyse RUN` first, when the detectors changed.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from runner.model.job import Job
from runner.model.result import Result
from runner.model.run import Run
from runner.store import RunFolder

EXPECTED = {
    "sends-twice": "sent-twice",
    "retransmits-early": "spurious-retransmissions",
    "out-of-order": "out-of-order",
    "numbers-go-back": "packet-numbers",
    "reuses-packet-numbers": "packet-numbers",
    "bursts": "bursts",
    "small-datagrams": "small-datagrams",
    "tiny-window": "receive-window",
    "never-extends-windows": "receive-window",
    "stalls": "application-idle",
    "collapses": "rate-collapse",
    "leaves-slow-start": "slow-start-left-early",
    "acks-everything": "dense-acks",
    "no-ecn-counts": "ecn-not-reported",
    "no-ce-counts": "ecn-not-reported",
}
"""Sin → the diagnosis that it must lead to."""

ALLOWED = {
    "window-after-loss",
    "queue-overflow",
    "standing-queue",
    "mtu-not-raised",
    "mtu-black-hole",
    "return-link-full",
    "window-never-grew",
}
"""True of a link or a stack whatever the sin: neither found nor missed."""

_LOSSY = 0.005


def labels(run: Run, job: Job) -> set[str] | None:
    """The diagnoses that the job must get. None: its sin is about something else."""
    sins = set()
    for name in (job.server, job.client):
        words = [
            word
            for key, value in run.implementations[name].parameters.items()
            if key in ("SERVER_PARAMS", "CLIENT_PARAMS")
            for word in value.replace(",", " ").split()
        ]
        sins |= {word.partition("=")[2] for word in words if word.startswith("sin=")}
    if not sins <= EXPECTED.keys():
        return None
    expected = {EXPECTED[sin] for sin in sins}
    if run.cases[job.case].forward.loss >= _LOSSY:
        expected.add("window-after-loss")
    return expected


def judged(folder: RunFolder) -> Iterator[tuple[Job, set[str], Result]]:
    """Jobs with a label and a transfer that could be explained."""
    for job, result in folder.results().items():
        wanted = labels(folder.run, job)
        if wanted is not None and result.limits:
            yield job, wanted, result


def main(paths: list[str]) -> int:
    """The table by diagnosis, and what went wrong by job. 0: precision and recall are 95 % at least."""
    right, wrong, missed = Counter[str](), Counter[str](), Counter[str]()
    jobs = 0
    known = []
    for path in paths:
        for job, wanted, result in judged(RunFolder.open(Path(path))):
            jobs += 1
            known.append(1 - result.limits.get("unknown", 0.0))
            found = {one.code for one in result.diagnoses}
            extra, lacking = found - wanted - ALLOWED, wanted - found
            right.update(wanted & found)
            wrong.update(extra)
            missed.update(lacking)
            if extra or lacking:
                print(
                    f"{job}: {', '.join(['+' + one for one in sorted(extra)] + ['-' + one for one in sorted(lacking)])}"
                )
    if not jobs:
        print("no job with a label")
        return 2
    for code in sorted(right.keys() | wrong.keys() | missed.keys()):
        print(f"{code:28} found {right[code]:4}  too much {wrong[code]:4}  missed {missed[code]:4}")
    precision = right.total() / max(right.total() + wrong.total(), 1)
    recall = right.total() / max(right.total() + missed.total(), 1)
    print(f"{jobs} traces: precision {precision:.3f}, recall {recall:.3f}, limit named for {min(known):.1%} at least")
    return 0 if min(precision, recall) >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
