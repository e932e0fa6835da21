"""Each number has one definition: testcases/README.md and the program define it equally.

`.venv/bin/python -m runner.tests.model.test_definitions` writes the program's tables into the document.
"""

from collections.abc import Sequence
from dataclasses import fields

import pytest

from runner.model.result import DOWNLOAD_NUMBERS, PAGE_NUMBERS, PAIR_NUMBERS, UNITS, Number, Sample
from runner.model.stack import PageLoad
from runner.paths import ROOT

README = ROOT / "testcases" / "README.md"
TABLES = {"pairs": PAIR_NUMBERS, "downloads": DOWNLOAD_NUMBERS, "pages": PAGE_NUMBERS}


def table(numbers: Sequence[Number]) -> str:
    """A Markdown table with name, unit, and formula with its note."""
    rows = [
        f"| {number.label} | {number.shown_in} | {number.formula}. {number.note} |".replace(". |", ". |")
        for number in numbers
    ]
    clean = [row.replace(".  |", " |") for row in rows]
    return "\n".join(["| number | unit | definition |", "| --- | --- | --- |", *clean])


def with_tables(text: str) -> str:
    """The document with the program's tables between their marks. Raises ValueError when a mark is missing."""
    for name, numbers in TABLES.items():
        begin, end = f"<!-- numbers of {name} -->\n", f"\n<!-- end of the numbers of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{README} lacks the marks of the numbers of {name}")
        before, after = text.split(begin)
        text = f"{before}{begin}{table(numbers)}{end}{after.split(end)[1]}"
    return text


def test_the_document_has_the_program_s_definitions() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_tables(text) == text
    changed = text.replace("The time that a user waits.", "Something else.", 1)
    assert with_tables(changed) == text
    with pytest.raises(ValueError, match="lacks the marks of the numbers of pages"):
        with_tables(text.replace("<!-- numbers of pages -->", ""))


def test_every_number_is_a_field_with_a_known_unit_and_declared_once() -> None:
    for numbers, of in ((PAIR_NUMBERS, Sample), (DOWNLOAD_NUMBERS, Sample), (PAGE_NUMBERS, PageLoad)):
        keys = [one.key for one in numbers]
        assert len(keys) == len(set(keys))
        assert set(keys) <= {field.name for field in fields(of)}
        assert all(one.shown_in in UNITS for one in numbers)


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
