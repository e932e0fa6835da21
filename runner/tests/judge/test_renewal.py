"""Numbers by formulas of another version are left out, and `analyse` measures them again."""

import json
from pathlib import Path

import pytest

from lab.run_folders import recorded_run
from runner.model.run import Job
from runner.tests.program import bentpipe

JOB = Job(server="quinn", client="quinn", case="goodput", iteration=1)


def test_numbers_by_other_formulas_are_left_out_until_analyse_measures_them_again(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "old")
    now, path = folder.result(JOB), folder.artifacts(JOB).result
    assert now is not None and now.sample is not None and now.sample.goodput is not None
    document = json.loads(path.read_bytes())
    document["sample"] |= {"definitions": 1, "goodput": 2 * now.sample.goodput}
    path.write_text(json.dumps(document))
    old = folder.result(JOB)
    assert old is not None and (old.outcome, old.sample) == (now.outcome, None)
    assert bentpipe("analyse", str(folder.path)).returncode == 0
    again = folder.result(JOB)
    assert again is not None and again.sample is not None
    assert again.sample.goodput == pytest.approx(now.sample.goodput)
