"""Each pattern of section 5.6 of the thesis (runner/diagnose/README.md) is reproduced, and its detector finds it."""

import re
from pathlib import Path

import pytest

from runner.diagnose import explain
from runner.tests.diagnose.test_recorded import RECORDED, codes

CELL = "bimodal"  # it compares iterations: runner/tests/compare/test_modes.py
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
