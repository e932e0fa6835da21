"""Make the recordings of known causes again: `.venv/bin/python -m runner.tests.recordings.causes [NAME…]` (3 minutes).

They are the part `recorded` of the labelled set (lab/causes.py): small transfers between two misbehaving
endpoints, each with one cause. They run in virtual time (lab/labelled_virtual.py), so other load on the
host can't disturb them. `causes/NAME` keeps the tables of both sides and the truth about the link.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from lab.causes import Labelled, recorded
from lab.labelled import jobs_of
from lab.labelled_virtual import make
from runner.model.result import Artifacts
from runner.store.runs import RunFolder

HERE = Path(__file__).parent / "causes"


def artifacts_of(transfer: Labelled) -> Artifacts:
    """The files of a transfer that are kept."""
    return Artifacts(HERE / transfer.name)


def main(*names: str) -> None:
    """Make the named recordings, or all recordings, and keep them."""
    chosen = tuple(item for item in recorded() if not names or item.name in names)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "recordings"
        make(folder, chosen)
        for item in chosen:
            made, kept = RunFolder.open(folder).artifacts(jobs_of(item)[0]), artifacts_of(item)
            shutil.rmtree(kept.folder, ignore_errors=True)
            shutil.copytree(made.client_tables, kept.client_tables)
            shutil.copytree(made.server_tables, kept.server_tables)
            kept.link_truth.parent.mkdir(parents=True)
            shutil.copy(made.link_truth, kept.link_truth)


if __name__ == "__main__":
    main(*sys.argv[1:])
