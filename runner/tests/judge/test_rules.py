"""The table of rules is whole: stable ids, a reason for what nothing checks, cases that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.judge.judges import decisive
from runner.judge.rules.rule_table import PAGE, rules_page
from runner.model.result import Finding
from runner.model.rules import BY_ID, RULES, TRANSPORT, Rule, Where
from runner.paths import ROOT
from runner.plan.catalog import load_cases


def test_ids_are_unique_and_named_alike() -> None:
    assert len(BY_ID) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"(rfc\d{4}|ack-frequency)-\d+(\.\d+)*-[a-z0-9]+(-[a-z0-9]+)*", rule.id), rule.id
        assert rule.requirement.endswith("."), rule.id


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_where_it_is_checked_or_why_not(rule: Rule) -> None:
    assert bool(rule.cases) == (rule.where is Where.CASE)
    assert bool(rule.reason) == (not rule.checked)


_ANSWERS = {*TRANSPORT, "TLS alert", "HTTP/3 error", "stateless reset", "discard", "give up"}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.answer or rule.seldom], ids=lambda rule: rule.id)
def test_what_a_violation_causes_is_a_known_error_of_a_rule_that_is_checked(rule: Rule) -> None:
    assert rule.checked
    assert not (rule.answer and rule.seldom)
    assert {*rule.answer, *rule.seldom} <= _ANSWERS


@pytest.mark.parametrize(
    ("rule", "consequence"),
    [
        ("rfc9000-7.4-parameter-twice", "The peer closes with TRANSPORT_PARAMETER_ERROR or a TLS alert."),
        (
            "rfc9000-5.1.2-retired-id-used",
            "Many peers don't enforce this rule; one that does closes with PROTOCOL_VIOLATION, or sends a stateless "
            "reset.",
        ),
        ("rfc9000-8.1-amplification", "A violation ends no connection: the peer can't notice it, or must ignore it."),
        ("rfc9000-2.2-data-in-order", ""),
    ],
)
def test_what_a_violation_causes_in_words(rule: str, consequence: str) -> None:
    assert BY_ID[rule].consequence == consequence


def test_cases_of_the_table_exist() -> None:
    assert {name for rule in RULES for name in rule.cases} <= load_cases().keys()


def test_enough_is_checked() -> None:
    assert sum(rule.checked for rule in RULES) >= 150


def test_the_page_of_the_table_is_in_step() -> None:
    assert PAGE.read_text() == rules_page(), "write it anew: python -m runner.judge.rules.rule_table"


def test_cases_depend_on_rules_of_the_table() -> None:
    for name, case in load_cases().items():
        for beginning in case.depends:
            assert any(rule.id.startswith(beginning) for rule in RULES), f"{name}: {beginning}"


@pytest.mark.parametrize(
    ("name", "rule", "red"),
    [
        ("retry", "rfc9000-17.2.5.3-number-reset", ["packet-number-reset"]),
        ("retry", "rfc9000-17.2.5.3-hello-changed", []),
        ("handshake", "rfc9001-4.9.1-client-initial-late", []),
        ("handshake", "rfc9000-12.3-number-reused", ["packet-number-reused"]),
        ("ecn", "rfc9000-19.3.2-ect0-count-too-high", ["ecn-counts-wrong"]),
        ("ecn", "rfc9000-19.3.2-ce-count-too-high", ["rfc9000-19.3.2-ce-count-too-high"]),
    ],
)
def test_a_case_fails_by_the_rules_on_which_its_purpose_depends(name: str, rule: str, red: list[str]) -> None:
    broken = Finding(code=rule, requirement="r", expected="e", actual="a", role="client")
    assert [finding.code for finding in decisive((broken,), load_cases()[name])] == red


_NOUNS = "packets|frames|datagrams|bytes|streams|connections|times|handshakes|ranges|files|records|requests"
# A number, or `a of b`, then at most three words that tell which, then a noun in the plural: wrong for 1.
_PLURAL = re.compile(rf"(?:^|[^\w#]|of )# (?:[A-Z#][\w#-]* |such |later |more ){{0,3}}(?:{_NOUNS})\b")

# Here, a name is before the noun.
_NAMED = {"keys for # packets", "a TLS message of type # in # packets", "# in # packets", "# streams"}


def _messages(source: str) -> Iterator[str]:
    """Each f-string of a module, with # in the place of its values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "#" for part in node.values)


@pytest.mark.parametrize("path", sorted((ROOT / "runner/judge").rglob("*.py")), ids=lambda path: str(path.name))
def test_a_counted_noun_agrees_with_its_number(path: Path) -> None:
    """`format_count` writes 1 packet and 2 packets."""
    found = {each for each in _messages(path.read_text()) if _PLURAL.search(each)}
    assert not found - _NAMED
