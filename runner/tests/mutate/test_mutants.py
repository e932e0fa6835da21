"""A seeded part of the mutants is found, and nothing else; the whole is `python -m lab.mutants`."""

from collections import Counter
from pathlib import Path

import pytest

from lab.mutants import KILLED, good_recordings, try_mutant, unchanged
from lab.mutate.mutants import MUTANTS, Mutant
from runner.model.rules import BY_ID
from runner.plan.catalog import Catalog

# One for each kind of edit: a frame, a parameter, a TLS message, a header, a key, a path, a stream, HTTP/3.
PART = (
    "rfc9000-19.11-max-streams-high",
    "rfc9000-18.2-ack-delay-exponent-high",
    "rfc9001-8.1-alpn-not-offered",
    "rfc9000-17.3.1-reserved-bits-short",
    "rfc9001-6.4-old-keys-on-higher-number",
    "rfc9001-5.8-retry-tag-wrong",
    "rfc9000-12.3-number-reused",
    "rfc9000-13.1-ack-of-unsent",
    "rfc9000-13.1-ack-of-unreceived",
    "rfc9000-13.2.1-handshake-unacknowledged",
    "rfc9000-4.5-data-beyond-final-size",
    "rfc9114-7.2.1-data-on-control",
)


@pytest.mark.parametrize("rule", PART)
def test_a_broken_rule_is_found_and_no_other(rule: str, catalog: Catalog) -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.rule == rule]
    assert mutants
    for mutant in mutants:
        trial = try_mutant(mutant, good_recordings(), seed=2, catalog=catalog, before={})
        assert trial.end == KILLED, (mutant.title, trial)


def test_a_recording_that_is_opened_and_sealed_has_no_violation(catalog: Catalog, tmp_path: Path) -> None:
    clean = next(folder for folder in good_recordings() if folder.parts[-3:-1] == ("quinn_quinn", "handshake"))
    assert unchanged(clean, tmp_path / "copy", catalog) == frozenset()


def test_mutants_break_rules_of_the_table() -> None:
    assert [mutant.title for mutant in MUTANTS if mutant.rule not in BY_ID] == []

    def key(mutant: Mutant) -> tuple[str, str, str]:
        return mutant.rule, mutant.name, mutant.role

    assert [title for title, count in Counter(map(key, MUTANTS)).items() if count > 1] == []
