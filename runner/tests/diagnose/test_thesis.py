"""Each pattern of section 5.6 of the thesis (runner/diagnose/README.md) is reproduced, and its detector finds it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lab.causes import CELL, labelled
from lab.labelled_diagnoses import explain_again
from lab.labelled_virtual import make
from runner.compare.rankings import two_modes
from runner.diagnose import explain
from runner.store.runs import RunFolder
from runner.tests.diagnose.test_recorded import RECORDED, codes

PACKAGE = Path(explain.__file__).parent
ROW = re.compile(r"^\| §(5\.6\.[\d.]+).*\| `([a-z-]+)` \| (?:`([a-z-]+)` )?\|$", re.MULTILINE)
ROWS = [row.groups() for row in ROW.finditer((PACKAGE / "README.md").read_text())]


@pytest.mark.parametrize(("name", "code"), [(name, code) for _, name, code in ROWS if code != CELL])
def test_a_pattern_is_reproduced_and_found(name: str, code: str | None) -> None:
    assert codes(name) - {"mtu-not-raised"} >= ({code} if code else set())
    assert code is None or code in RECORDED[name].expected
    assert code is not None or codes(name) <= {"mtu-not-raised"}


def test_every_pattern_that_a_detector_is_about_is_in_the_table() -> None:
    cited = {
        section
        for path in (PACKAGE / "detectors").glob("*.py")
        for section in re.findall(r"thesis §(5\.6[\d.]*\d)", path.read_text())
    }
    assert len(ROWS) >= 18
    assert cited <= {section for section, _, _ in ROWS}
    assert {name for _, name, code in ROWS if code == CELL} == {"sometimes-slow"}
    assert any(label.name.startswith("sometimes-slow") and CELL in label.expected for label in labelled())


@pytest.mark.slow
def test_slow_and_fast_iterations_are_two_modes(tmp_path: Path) -> None:
    """In the labelled set, chance decides for each process whether it is slow. Here four iterations are slow and four
    are not."""
    make(tmp_path / "run", tuple(replace(RECORDED[name], iterations=4) for name in ("clean", "never-grows")))
    folder = RunFolder.open(tmp_path / "run")
    numbers = [explained[1] for job in folder.run.order if (explained := explain_again(folder, job)) is not None]
    goodputs = [number.goodput for number in numbers if number.goodput]
    modes = two_modes(goodputs)
    assert modes is not None
    assert (modes.lower, modes.upper) == (4, 4)
    assert two_modes([*goodputs[:4], *goodputs[:4]]) is None
