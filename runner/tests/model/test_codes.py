"""Codes after which no other attempt is made: each is one that the program writes."""

from runner.model.result import FOR_GOOD, another_attempt_helps
from runner.paths import ROOT


def test_codes_for_good_are_written_by_the_program() -> None:
    sources = [*(ROOT / "runner").rglob("*.py"), *(ROOT / "testcases").glob("*.py")]
    text = "".join(path.read_text() for path in sources if "tests" not in path.parts and path.name != "result.py")
    assert {code for code in FOR_GOOD if f'"{code}"' not in text} == set()


def test_an_unknown_code_is_tried_again() -> None:
    assert another_attempt_helps("disturbed")
    assert another_attempt_helps("a-code-of-another-version")
    assert not another_attempt_helps("no-key-log")
