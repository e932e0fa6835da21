"""Judges good recordings with mutated key logs, and finds verdicts that the evidence does not support.

python -m lab.key_logs [--inputs 2000] [--seed 1]
"""

import argparse
import tempfile
from collections import Counter
from pathlib import Path

from lab.evidence_campaign import campaign, recordings
from runner.model.result import Outcome
from runner.plan.catalog import load_catalog

_NAMES = {
    frozenset({Outcome.SUCCEEDED}): "no secret is missing: succeeded",
    frozenset({Outcome.ERROR}): "a secret is missing: error",
    frozenset({Outcome.ERROR, Outcome.SUCCEEDED}): "a secret has a wrong name: error or succeeded",
}


def main() -> int:
    """Print the wrong verdicts; exit code 1 when there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=2000, help="how many key logs")
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    catalog, expected = load_catalog(), Counter[frozenset[Outcome]]()
    with tempfile.TemporaryDirectory(prefix="bentpipe-key-logs-") as folder:
        wrong = campaign(
            catalog,
            seed=options.seed,
            inputs=range(options.inputs),
            folder=Path(folder) / "job",
            tell=lambda outcomes: expected.update([outcomes]),
        )
    for case in wrong:
        print(case)
    print(f"{options.inputs} mutated key logs of {len(recordings(catalog))} recordings, seed {options.seed}:")
    for outcomes, name in _NAMES.items():
        print(f"  {expected[outcomes]:6} {name}")
    failed = sum(case.result.outcome is Outcome.FAILED for case in wrong)
    print(f"wrong verdicts: {len(wrong)}, of these failed: {failed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
