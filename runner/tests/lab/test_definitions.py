"""Each number has one definition: testcases/README.md and the program define it equally."""

from dataclasses import fields

import pytest

from lab.definitions import README, with_tables
from runner.model.numbers import DOWNLOAD_NUMBERS, PAGE_NUMBERS, PAIR_NUMBERS, UNITS
from runner.model.result import Sample
from runner.model.stack import PageLoad


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
