"""Make the recordings of set causes anew: `.venv/bin/python -m runner.tests.recordings.causes [NAME…]` (5 minutes).

They are the part `recorded` of the labelled set (runner/benchmarks/causes.py): small transfers between two misbehaving
endpoints, one cause each. Kept are the tables of both sides and the simulator's count, in `causes/NAME`. An attempt
that something disturbed is run again.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from runner.analyse import disturbed, load_truth
from runner.benchmarks.causes import Labelled, recorded
from runner.benchmarks.labelled import case_of, jobs_of, make
from runner.model.artifacts import Artifacts
from runner.store import RunFolder, load_evidence

HERE = Path(__file__).parent / "causes"
_ATTEMPTS = 3


def artifacts_of(one: Labelled) -> Artifacts:
    """The files that are kept of it."""
    return Artifacts(HERE / one.name)


def main(*names: str) -> int:
    """Run what was named, or all, and keep it. 1 when something was disturbed each time; its old recording stays."""
    left = tuple(one for one in recorded() if not names or one.name in names)
    with tempfile.TemporaryDirectory() as scratch:
        for attempt in range(_ATTEMPTS):
            folder = Path(scratch) / f"recordings-{attempt}"
            make(folder, left, lanes="1", retry=False, console=Console())
            left = tuple(one for one in left if not _kept(RunFolder.open(folder), one))
            if not left:
                return 0
    print(f"disturbed each time: {', '.join(one.name for one in left)}")
    return 1


def _kept(run: RunFolder, one: Labelled) -> bool:
    """Keep the recording unless something disturbed it."""
    made = run.artifacts(jobs_of(one)[0])
    evidence, truth = load_evidence(made), load_truth(made.link_truth)
    if evidence is None or evidence.error or disturbed(evidence, truth, case_of(one).record()):
        return False
    kept = artifacts_of(one)
    shutil.rmtree(kept.folder, ignore_errors=True)
    for source, target in (
        (made.client_tables, kept.client_tables),
        (made.server_tables, kept.server_tables),
    ):
        shutil.copytree(source, target)
    kept.link_truth.parent.mkdir(parents=True)
    shutil.copy(made.link_truth, kept.link_truth)
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
