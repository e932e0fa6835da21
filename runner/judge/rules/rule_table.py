"""Writes the table of rules (runner/model/rules.py) as docs/rules.md: `python -m runner.judge.rules.rule_table`."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from runner.model.rules import RULES, RULES_OF_CODES, Rule, Where
from runner.paths import ROOT
from runner.plan.catalog import load_cases
from testcases.base import EVERY_CASE

PAGE = ROOT / "docs" / "rules.md"

_HEAD = """# Rules of the RFCs, and where they are checked

Each row is a MUST or a MUST NOT, or a plain statement that leaves no choice, such as “a final size cannot change”. The
last ones are of a draft whose extension the peer offered. Rows with *should* or *as a note* are only recommended. Where
a part of a rule is not checked, its row says so. *Every connection*: the rule is checked in every job. Rules about what
arrived before, such as limits and acknowledgments, need complete captures, and all packets of the connection must be
readable. `./bentpipe show`, the page of the pair and `result.json` (`violations`; the code is the rule's id) list
broken rules, and matrices show them as §. A broken rule makes the job fail only when the purpose of the case depends on
the rule: *red in* names these cases. For rules that are *unchecked* or *not visible*, the table gives the reason. An
endpoint is judged by the packets that it sent and received at its own end of the link. *Provoked* are rules that no
ordinary job makes visible, by flights of [the hostile peer](hostile.md).

This page is generated from `runner/model/rules.toml` by `python -m runner.judge.rules.rule_table`.
"""


def rule_lines(words: Sequence[str]) -> Iterator[str]:
    """Each rule whose line contains all `words`, in any case: id, role, sentence, and where it is checked."""
    depends = _depends()
    for rule in RULES:
        line = f"{rule.id}  {rule.who}: {rule.requirement} ({_where(rule, depends)})"
        if all(word.lower() in line.lower() for word in words):
            yield line


def _depends() -> dict[str, tuple[str, ...]]:
    """Case → beginnings of the ids of the rules on which its purpose depends."""
    return {name: case.depends for name, case in sorted(load_cases().items()) if case.depends}


def rules_page() -> str:
    """The page in Markdown."""
    checked, depends = sum(rule.checked for rule in RULES), _depends()
    provoked = sum(not rule.checked and "; provoked by" in _where(rule, depends) for rule in RULES)
    count = f"{checked} of {len(RULES)} rules are checked, and the hostile peer provokes {provoked} of the others."
    lines = [_HEAD, count, ""]
    for title, rules in groupby(RULES, key=lambda rule: rule.title):
        lines += [f"## {title}", "", "| id | who | rule | checked |", "| --- | --- | --- | --- |"]
        lines += [f"| `{rule.id}` | {rule.who} | {rule.requirement} | {_where(rule, depends)} |" for rule in rules]
        lines.append("")
    return "\n".join(lines)


def _where(rule: Rule, depends: Mapping[str, tuple[str, ...]]) -> str:
    if rule.where is Where.INVARIANT:
        red = ", ".join(name for name, beginnings in depends.items() if rule.id.startswith(beginnings))
        red = "every case" if rule.id in EVERY_CASE else red
        return "every connection" + (f"; red in {red}" if red else "")
    if rule.where is Where.NOTE:
        return "every connection, as a note"
    if rule.where is Where.CASE:
        return "case " + ", ".join(rule.cases)
    flights = [name for name, flight in _flights().items() if flight.get("rule") == rule.id]
    text = f"{'unchecked' if rule.where is Where.UNCHECKED else 'not visible'}: {rule.reason}"
    if rule.id in (*RULES_OF_CODES, "rfc9000-11.1-error-not-signalled"):
        flights = ["all flights with an error code"]
    return text + (f"; provoked by {', '.join(flights)}" if flights else "")


@cache
def _flights() -> dict[str, dict[str, Any]]:
    """The rows of the hostile peer's list."""
    return tomllib.loads((ROOT / "implementations" / "hostile" / "source" / "flights.toml").read_text())


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(rules_page())
