from pathlib import Path

import pytest

from runner.catalog import load_cases, load_implementations
from runner.errors import UsageError
from runner.model.implementation import Role


def test_the_shipped_catalogue_is_valid() -> None:
    stacks = load_implementations()
    assert {"quic-go", "quinn", "aioquic"} <= set(stacks)
    for stack in stacks.values():
        assert stack.claims(Role.CLIENT, "transfer")
        assert not stack.claims(Role.CLIENT, "no-such-case")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "the whole file"),
        ('{"schema": 9, "implementations": {}}', "schema"),
        ('{"schema": 1, "implementations": {"a": {"url": "u", "roles": ["client"]}}}', "implementations.a.image"),
        ('{"schema": 1, "implementations": {"a": {"image": "i", "url": "u", "roles": ["cliemt"]}}}', "a.roles.0"),
        ('{"schema": 1, "implementations": {"a_b": {"image": "i", "url": "u", "roles": ["client"]}}}', "'a_b'"),
        ('{"schema": 1, "implementations": {"a": {"image": "i", "url": "u", "roles": ["client"], "x": 1}}}', "a.x"),
    ],
)
def test_a_broken_catalogue_is_refused_with_file_and_field(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "implementations.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_implementations(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


def test_a_missing_catalogue_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load_implementations(tmp_path / "none.json")


def test_cases_have_distinct_names_abbreviations_and_matching_modules() -> None:
    cases = load_cases()
    assert len({case.abbreviation for case in cases.values()}) == len(cases)
    for name, case in cases.items():
        assert case.name == name
        assert case.description.endswith(".")
        assert case.checks


def test_the_satellite_link_is_the_one_of_the_thesis() -> None:
    sat = load_cases()["sat"].record()
    assert (sat.forward.data_rate, sat.return_.data_rate) == (20_000_000, 2_000_000)
    assert sat.forward.delay == sat.return_.delay == 0.3
    assert sat.forward.queue_packets == 125
    assert load_cases()["satloss"].record().forward.loss == 0.01
